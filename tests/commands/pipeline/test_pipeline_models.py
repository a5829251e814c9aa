"""Which models, references and texts the pipeline takes and refuses, and what its command line prints."""

import json
import math
import shutil
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, LlamaConfig

from argap.checkpoints.references import Reference, add_reference
from argap.errors import ArgapError, MismatchError
from argap.metric.threshold import parse_threshold, resolve_threshold
from argap.records import EvaluationSpec
from argap.results.compare import compare_runs
from argap.results.pipeline import score_models
from argap.scoring.config import ScoreConfig

TOKENIZER = Path(__file__).parents[3] / "argap" / "demo" / "tokenizer"
SEQ_LEN, LIMIT, THRESHOLD = 48, 1500, 3


def test_a_finished_run_serves_as_reference_with_its_settings_from_any_folder(place, scored, tmp_path, monkeypatch):
    _, gap = scored
    monkeypatch.chdir(place.folder)
    relative = place.spec(data=("text",))
    score_models(["bad"], "good", tmp_path, ScoreConfig(text=relative, index="index", threshold=THRESHOLD))
    monkeypatch.chdir(tmp_path)
    again = score_models([place.bad], "good", tmp_path, ScoreConfig(threshold=THRESHOLD))
    assert again.estimates == gap.estimates


def test_a_named_reference_brings_its_text_and_index(place, tmp_path, own_home):
    add_reference("mine", Reference(checkpoint=place.good, data=(place.text,), index=place.index, seq_len=SEQ_LEN))
    gap = score_models([place.bad], "mine", tmp_path, ScoreConfig(text=EvaluationSpec(limit_tokens=LIMIT)))
    assert [row.model for row in gap.rows] == ["mine", "bad"]
    assert gap.evaluation.seq_len == SEQ_LEN


def test_without_text_the_standard_library_is_scored_and_said(place, tmp_path, capsys):
    spec = EvaluationSpec(seq_len=SEQ_LEN, limit_tokens=LIMIT)
    gap = score_models([place.bad], place.good, tmp_path, ScoreConfig(text=spec))
    assert "no text given: scoring the held-out modules of Python's standard library" in capsys.readouterr().err
    assert gap.evaluation.data == ("stdlib:heldout",)
    assert (gap.index, gap.threshold, gap.bins.frequency, gap.parts("frequency")) == (None, None, (), [])


def test_a_tokenizer_other_than_the_references_is_refused(place, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(place.folder / "bad", other)
    state = json.loads((other / "tokenizer.json").read_text())
    state["pre_tokenizer"]["add_prefix_space"] = True
    (other / "tokenizer.json").write_text(json.dumps(state))
    with pytest.raises(MismatchError, match=r"good and .*other: their tokenizers differ \(\w+ and \w+\)"):
        place.score(tmp_path / "out", text=place.spec(tokenizer=str(other)))
    assert not (tmp_path / "out").exists()


def test_runs_of_different_windows_are_not_joined(place, scored, tmp_path):
    out, _ = scored
    other = place.spec(seq_len=32)
    place.score(tmp_path / "o", text=other)
    with pytest.raises(MismatchError, match=r"holds evaluation set \w+, the labels .* hold \w+"):
        compare_runs([str(tmp_path / "o" / "bad")], str(out / "good"), tmp_path / "c")


def test_a_run_of_another_configuration_is_kept(place, scored):
    out, _ = scored
    before = {p: p.read_bytes() for p in sorted(out.rglob("*")) if p.is_file()}
    other = place.spec(seq_len=32)
    said = r"evaluation set \w{12} \(data .*, seq_len 48\b.*\), asked for \w{12}; choose another `out`"
    with pytest.raises(MismatchError, match=f"holds a run with {said}"):
        place.score(out, text=other)
    assert {p: p.read_bytes() for p in sorted(out.rglob("*")) if p.is_file()} == before


def test_a_checkpoint_named_twice_is_scored_once(place, tmp_path):
    shutil.copytree(place.folder / "bad", tmp_path / "copy")
    models = [place.bad, str(tmp_path / "copy"), place.good]
    gap = score_models(models, place.good, tmp_path / "out", ScoreConfig(**place.on()))
    assert [row.model for row in gap.rows] == ["good", "bad"]


def test_checkpoints_with_equal_names_get_their_parent_s_name(place, save_model, tmp_path):
    for seed, parent in ((2, "first"), (3, "second")):
        save_model(tmp_path / parent / "final", seed)
    models = [str(tmp_path / parent / "final") for parent in ("first", "second")]
    gap = score_models(models, place.good, tmp_path / "out", ScoreConfig(**place.on()))
    assert [row.model for row in gap.rows] == ["good", "final", "second/final"]


def test_runs_never_share_a_folder(place, save_model, tmp_path):
    for seed, name in ((2, "labels"), (3, "a b"), (4, "a-b")):
        save_model(tmp_path / name, seed)
    with pytest.raises(ArgapError, match="labels: its run and the labels would share the folder labels; rename"):
        score_models([str(tmp_path / "labels")], place.good, tmp_path / "out", ScoreConfig(**place.on()))
    both = [str(tmp_path / "a b"), str(tmp_path / "a-b")]
    with pytest.raises(ArgapError, match="a-b: its run and the run of a b would share the folder a-b; rename"):
        score_models(both, place.good, tmp_path / "out", ScoreConfig(**place.on()))
    assert not (tmp_path / "out").exists()


def test_incomparable_models_are_refused_before_scoring(place, scored, tmp_path):
    good, bad, out = place.good, place.bad, tmp_path / "out"
    with pytest.raises(ArgapError, match="`base` nobody: not one of the models compared, which are good, bad"):
        score_models([bad], good, out, ScoreConfig(**place.on(), base="nobody"))
    with pytest.raises(MismatchError, match=r"good holds .*, the text is now .*; expected the text and windows"):
        score_models([bad], str(scored[0] / "good"), out, ScoreConfig(text=EvaluationSpec(seq_len=32)))
    assert not out.exists()


def test_models_with_a_bigger_vocabulary_than_the_tokenizer_are_fine(place, tmp_path):
    model = AutoModelForCausalLM.from_config(
        LlamaConfig(vocab_size=8256, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
    )
    model.save_pretrained(tmp_path / "padded")
    shutil.copytree(TOKENIZER, tmp_path / "padded", dirs_exist_ok=True)
    gap = score_models([str(tmp_path / "padded")], place.good, tmp_path / "out", ScoreConfig(**place.on()))
    assert gap.rows[1].model == "padded"


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
