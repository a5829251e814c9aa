"""The pipeline from the command line: JSON, exit codes, references, thresholds."""

import json
import math
import shutil

import pytest

from argap.metric.threshold import parse_threshold, resolve_threshold


@pytest.mark.parametrize(
    ("text", "tokens", "expected"),
    [("1250", 1, 1250), ("0", 1, 0), ("scaled", 10**10, 1250), ("scaled", 10**10 - 1, 1249), ("scaled", 54_000_000, 6)],
)
def test_a_threshold_is_a_count_or_scaled_to_the_training_tokens(text, tokens, expected):
    assert resolve_threshold(parse_threshold(text), tokens) == expected


def test_score_prints_json_of_the_documented_shape(place, tmp_path, run_command):
    code, out, _ = run_command(
        "score", place.bad, "--ref", place.good,
        "--data", place.text, "--index", place.index, "--seq-len", "48",
        "--limit-tokens", "1500", "--out", str(tmp_path), "--json",
    )  # fmt: skip
    assert code == 0
    gap = json.loads(out)
    assert gap.keys() == {"reference", "threshold", "unit", "fingerprint", "models", "slices", "partitions", "fidelity"}
    assert [each["model"] for each in gap["models"]] == ["good", "bad"]
    slices = {each["name"]: each for each in gap["slices"]}
    assert slices.keys() == {"all", "ar_hits", "other", "ar_hits at 0", "ar_hits at 1250", "repeated"}
    assert gap["partitions"].keys() == {"copy", "induction"}
    figures = {"model", "nll", "ppl", "delta", "delta_ci95", "contribution", "contribution_ci95"}
    figures |= {"share", "share_ci95", "paper_rule", "reason"}
    for each in (*slices.values(), *(part for parts in gap["partitions"].values() for part in parts)):
        assert each.keys() == {"name", "where", "n", "share_of_tokens", "models"}
        assert all(model.keys() == figures for model in each["models"])
    parts = [slices[name]["models"][1]["contribution"] for name in ("ar_hits", "other")]
    assert math.isclose(sum(parts), gap["models"][1]["delta"])


def test_a_reference_that_is_replaced_is_named(place, run_command, own_home):
    assert run_command("ref", "add", "mine", place.good)[1] == f"mine: {place.good}\n"
    assert run_command("ref", "add", "mine", place.bad)[1] == f"mine: {place.bad}, in place of {place.good}\n"
    shadowed = run_command("ref", "add", "attention", place.bad)[1]
    assert shadowed.endswith("argap/demo/checkpoints/attention\n")


def test_windows_longer_than_those_of_training_are_named(place, tmp_path, run_command):
    trained = tmp_path / "trained"
    shutil.copytree(place.bad, trained)
    flags = ["--data", place.text, "--limit-tokens", "200", "--seq-len", "48"]
    line = (
        "trained: trained on windows of 32 tokens, scored on windows of 48; positions beyond 32 are new to it, "
        "--seq-len 32 leaves them out\n"
    )
    for length, expected in ((32, line), (48, "")):
        (trained / "train.json").write_text(json.dumps({"config": {"seq_len": length}}))
        code, _, err = run_command("score", str(trained), "--ref", place.good, *flags, "--out", str(tmp_path / "out"))
        assert code == 0
        assert "".join(said for said in err.splitlines(keepends=True) if said.startswith("trained:")) == expected


def test_references_are_added_listed_and_removed(place, run_command, own_home):
    assert run_command("ref", "add", "mine", place.good, "--index", place.index)[0] == 0
    listed = run_command("ref", "list")[1]
    assert "attention\t" in listed
    assert f"mine\t{place.good}\tno text recorded\t{place.index}" in listed
    assert run_command("ref", "remove", "mine")[0] == 0
    assert "mine" not in run_command("ref", "list")[1]
