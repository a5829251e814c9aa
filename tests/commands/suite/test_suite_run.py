"""Two tiny models end to end: train, score, collect, and rebuild from the small files."""

import json
import os
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from argap.bigram_index.store import open_index
from argap.errors import ArgapError, FormatError
from argap.files.atomic import _machine, read_json, write_json
from argap.slices.figures import slices_of_cells
from argap.slices.partitions import hits_and_others
from argap.suite.config import load_suite
from argap.suite.layout import Layout
from argap.suite.members import evaluation_set, training_index
from argap.suite.result import read_size
from argap.suite.trajectory import share_along
from argap.suite.weights import export_weights, import_weights, note_published
from argap.tokens import runs
from argap.train.records import read_train
from tests.builders.processes import said, torchrun
from tests.commands.suite.conftest import command, text
from tests.conftest import estimates_in, word_tokenizer

ROOT = Path(__file__).parents[3]


def test_status_and_rerun(place):
    names = ("attention", "base_conv", "attention-seed1", "base_conv-seed1")
    assert command(place, "status").output.split() == [word for name in names for word in ("tiny", name, "scored")]
    weights = place / "work" / "tiny" / "attention" / "model.safetensors"
    before = weights.stat().st_mtime_ns
    assert command(place, "run").exit_code == 0
    assert weights.stat().st_mtime_ns == before


def test_the_index_is_recorded_without_a_path_of_this_machine(place, tmp_path):
    """``place`` is absolute, in ``--work`` too; a result written with that path is corrected."""
    path = shutil.copytree(place / "out", tmp_path / "out") / "tiny" / "gap.json"
    good = read_json(path)
    assert good["index"]["folder"] == "runs/suite/tiny/index"
    write_json(path, good | {"index": good["index"] | {"folder": str(place / "work" / "tiny" / "index")}})
    shutil.copy(place / "suite.yaml", tmp_path)
    assert command(tmp_path, "table").exit_code == 0
    assert read_json(path) == good


def test_table_rebuilds_from_committed_files_alone(place, tmp_path):
    shutil.copytree(place / "out", tmp_path / "out")
    for path in (tmp_path / "out").rglob("*"):
        if path.suffix in (".md", ".csv", ".html"):
            path.unlink()
    shutil.copy(place / "suite.yaml", tmp_path)
    table = command(tmp_path, "table")
    assert (table.exit_code, table.output.split()) == (
        0,
        [f"{tmp_path}/out/tiny/report.html", f"{tmp_path}/out/table.md"],
    )
    for path in (place / "out").rglob("*"):
        if path.suffix in (".md", ".csv"):
            assert (tmp_path / "out" / path.relative_to(place / "out")).read_bytes() == path.read_bytes(), path.name


@pytest.mark.parametrize("name", ["status", "run"])
def test_a_damaged_record_is_not_that_of_an_unfinished_run(place, tmp_path, name):
    shutil.copytree(place / "work", tmp_path / "work")
    shutil.copy(place / "suite.yaml", tmp_path)
    path = tmp_path / "work" / "tiny" / "runs" / "base_conv" / "run.json"
    path.write_text(path.read_text().replace('"parameters":', '"parameter":'))
    result = command(tmp_path, name)
    assert (result.exit_code, "run.json: damaged, or changed by hand" in str(result.exception)) == (1, True)


def test_the_table_as_json_has_every_seed(place, tmp_path):
    shutil.copytree(place / "out", tmp_path / "out")
    shutil.copy(place / "suite.yaml", tmp_path)
    found = json.loads(command(tmp_path, "table", "--json").output)["tiny"]
    assert [row["model"] for row in found["models"]] == ["attention", "base_conv"]
    seeds = {seed["name"]: seed for seed in found["seeds"]}
    assert list(seeds) == ["attention", "attention-seed1", "base_conv", "base_conv-seed1"]
    assert seeds["attention-seed1"]["over"] is None
    own, theirs = (seeds[name]["nll"]["overall"] for name in ("base_conv-seed1", "attention-seed1"))
    assert seeds["base_conv-seed1"]["over"]["overall"] == pytest.approx(own - theirs)
    means = [np.mean([seeds[name]["nll"]["ar_hits"] for name in (m, f"{m}-seed1")]) for m in ("attention", "base_conv")]
    assert means == [pytest.approx(each["nll"]) for each in found["slices"][1]["models"]]


def test_the_table_names_members_without_a_result(place, tmp_path):
    shutil.copytree(place / "out", tmp_path / "out")
    suite = yaml.safe_load((place / "suite.yaml").read_text())
    suite["members"] |= {"h3": {"seeds": [0, 1]}}
    (tmp_path / "suite.yaml").write_text(yaml.safe_dump(suite))
    assert command(tmp_path, "table").exit_code == 0
    assert "Members without a result: h3, h3-seed1." in (tmp_path / "out" / "table.md").read_text()
    assert "without a result" not in (place / "out" / "table.md").read_text()


def test_rows_from_cells_equal_gap_json(place):
    result = read_size(place / "out" / "tiny")
    written = json.loads((place / "out" / "tiny" / "gap.json").read_text())
    assert [row["model"] for row in written["models"]] == ["attention", "base_conv"]  # further seeds have no row
    seeds = result.gap.seeds
    assert seeds == {name: (name, f"{name}-seed1") for name in ("attention", "base_conv")}
    masks = hits_and_others(result.cells, result.gap.threshold, result.gap.bins)
    cells = slices_of_cells(result.cells, masks, "attention", seeds=seeds)
    for key, part in cells.items():
        for own, theirs in zip(part.estimates.values(), estimates_in(written, key.bin, key.partition), strict=True):
            assert (own.model, own.n) == (theirs["model"], theirs["n"])
            assert own.nll == pytest.approx(theirs["nll"], rel=1e-12)
            assert own.share_ci95 == (theirs.get("share_ci95") and pytest.approx(theirs["share_ci95"], rel=1e-9))


@pytest.mark.parametrize("change", ["name", "unfinished"])
def test_members_that_are_not_those_of_the_cells_are_refused(place, tmp_path, change: str):
    folder = shutil.copytree(place / "out" / "tiny", tmp_path / "tiny")
    members = json.loads((folder / "members.json").read_text())
    members.pop("checksum")
    if change == "name":
        members["members"][0]["name"] = "attentionx"
        said = "members.json: has attentionx, .*have attention, .*repeat its `argap suite run`"
    else:
        members["members"][0]["train"]["finished"] = None
        said = "members.json: attention: `train.finished` is null; .*repeat its `argap suite run`"
    (folder / "members.json").write_text(json.dumps(members))
    with pytest.raises(FormatError, match=said):
        read_size(folder)


def test_the_curve_has_intervals_everywhere(place):
    result = read_size(place / "out" / "tiny")
    at = {int(point.bin): point for point in result.curve}
    assert result.gap.threshold is not None
    assert set(result.marks) >= {result.gap.threshold, result.exposed}
    assert all(point["base_conv"].contribution_ci95 for point in result.curve)
    own, row = at[result.gap.threshold]["base_conv"], result.gap.on_hits["base_conv"]
    assert own.reason == row.reason
    assert own.contribution == pytest.approx(row.contribution, rel=1e-9)
    assert own.contribution_ci95 == pytest.approx(row.contribution_ci95, rel=1e-9)


def test_intermediate_checkpoints_are_scored(place):
    result = read_size(place / "out" / "tiny")
    found = result.trajectory()
    assert found is not None
    for name in ("attention", "base_conv", "attention-seed1", "base_conv-seed1"):
        own = found.loc[found["model"] == name]
        assert own["step"].tolist() == [2, 4, 6]
        assert own["tokens"].tolist() == [2 * 4 * 64, 4 * 4 * 64, 6 * 4 * 64]
    for seed in result.seeds:  # the last is the finished model
        last = found.loc[found["model"] == seed.name].iloc[-1]
        for part in (result.gap.on_hits, result.gap.on_other):
            assert last[f"n_{part.bin}"] == part.n
            assert last[f"nll_{part.bin}"] == pytest.approx(seed.nll[part.bin], rel=1e-6)
    (first,) = (seed for seed in result.seeds if seed.name == "base_conv")
    share = share_along(found, "base_conv", "attention")[1][-1]
    assert share == pytest.approx(first.share(result.gap.on_hits.share_of_tokens), rel=1e-4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train": {"steps": 8}}, "attention: trained with steps 6, the suite has 8; choose another `work`, or remove"),
        ({"evaluation": {"seq_len": 32}}, "scored on evaluation set"),
    ],
)
def test_models_of_another_suite_are_refused(place, tmp_path, change, message):
    """They are neither retrained nor rescored, and never combined in a table."""
    suite = yaml.safe_load((place / "suite.yaml").read_text())
    for key, value in change.items():
        suite[key] |= value
    del suite["mqar"]
    (tmp_path / "suite.yaml").write_text(yaml.safe_dump(suite))
    shutil.copytree(place / "work", tmp_path / "work")
    result = command(tmp_path, "run", "--member", "attention")
    assert result.exit_code == 1
    assert message in str(result.exception)
    shutil.rmtree(tmp_path / "work" / "tiny" / "attention")
    shutil.rmtree(tmp_path / "work" / "tiny" / "runs" / "attention")
    shutil.rmtree(tmp_path / "work" / "tiny" / "trajectories" / "attention")
    # Trains from scratch: the other members are checked only when results are collected.
    result = command(tmp_path, "run", "--member", "attention")
    assert message.replace("attention", "base_conv") in str(result.exception)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        (("runs/attention", "runs/base_conv"), r"runs/attention: scores of base_conv, expected those of attention; "),
        (
            ("trajectories/attention/step-2", "trajectories/attention/step-4"),
            r"step-2: scores of attention step-4, expected those of attention step-2; ",
        ),
        (("attention/log.jsonl", "base_conv/log.jsonl"), "attention/log.jsonl: ends with a loss of "),
    ],
)
def test_scores_of_another_member_are_refused(place, tmp_path, runs, message):
    shutil.copytree(place / "work", tmp_path / "work")
    shutil.copy(place / "suite.yaml", tmp_path)
    one, other = (tmp_path / "work" / "tiny" / run for run in runs)
    one.rename(tmp_path / "aside")
    other.rename(one)
    (tmp_path / "aside").rename(other)
    result = command(tmp_path, "run")
    assert message in str(result.exception)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("mixers", "message"),
    [
        (["attention", {"name": "gla", "haeds": 2}], "late at tiny: mixer 'gla': unknown option haeds"),
        (["my_mixers:Mine", "attention"], "late at tiny: mixer 'my_mixers:Mine': would import the module 'my_mixers'"),
    ],
)
def test_a_model_that_cannot_be_built_is_refused_before_any_training(place, tmp_path, mixers, message):
    suite = yaml.safe_load((place / "suite.yaml").read_text())
    suite["members"] = {"attention": None, "base_conv": None, "late": {"mixers": mixers}}
    (tmp_path / "suite.yaml").write_text(yaml.safe_dump(suite))
    assert message in str(command(tmp_path, "run").exception)
    assert not (tmp_path / "work").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"evaluation": {"seq_len": 96}},
            "base_conv at tiny: a window of 96 tokens; the model was made for at most 64 ",
        ),
        ({"mqar": {"length": 128}}, "base_conv at tiny: a window of 128 tokens; the model was made for at most 64 "),
        ({"mqar": {"pairs": [2, 9]}}, "mqar: 9 pairs and their second occurrences need 36 tokens, the length is 32"),
        ({"mqar": {"text": "nowhere"}}, "nowhere: no such file or folder"),
    ],
)
def test_windows_that_no_model_takes_are_refused_before_any_training(place, tmp_path, change, message):
    suite = yaml.safe_load((place / "suite.yaml").read_text())
    for key, value in change.items():
        suite[key] |= value
    (tmp_path / "suite.yaml").write_text(yaml.safe_dump(suite))
    result = command(tmp_path, "run")
    assert result.exit_code == 1
    assert message in str(result.exception)
    assert not (tmp_path / "work").exists()


def test_micro_batch_size_may_change(place, tmp_path):
    suite = yaml.safe_load((place / "suite.yaml").read_text())
    suite["train"]["micro_batch_size"] = 2
    (tmp_path / "suite.yaml").write_text(yaml.safe_dump(suite))
    shutil.copytree(place / "work", tmp_path / "work")
    assert command(tmp_path, "run").exit_code == 0


def test_a_broken_record_of_training_is_named(place, tmp_path):
    shutil.copytree(place / "work", tmp_path / "work")
    shutil.copy(place / "suite.yaml", tmp_path)
    path = tmp_path / "work" / "tiny" / "base_conv" / "train.json"
    write_json(path, read_json(path) | {"config": "x"})
    result = command(tmp_path, "run")
    assert str(result.exception) == f"{path}: Expected `object`, got `str` - at `$.config`"


def test_trajectory_survives_without_weights(place, tmp_path):
    shutil.copy(place / "suite.yaml", tmp_path)
    result = command(tmp_path, "run", "--no-keep", "--member", "attention")
    assert result.exit_code == 0, result.output
    folder = tmp_path / "work" / "tiny" / "attention"
    assert not (folder / "model.safetensors").exists()
    assert not (folder / "checkpoints").exists()
    found = read_size(tmp_path / "out" / "tiny").trajectory()
    assert found is not None
    kept = read_size(place / "out" / "tiny").trajectory()
    assert kept is not None
    pd.testing.assert_frame_equal(found, kept.loc[kept["model"] == "attention"].reset_index(drop=True))


def test_ray_gives_the_same_result(place, tmp_path):
    ray = pytest.importorskip("ray")
    shutil.copy(place / "suite.yaml", tmp_path)
    result = command(tmp_path, "run", "--engine", "ray", "--device", "cpu")
    ray.shutdown()
    assert result.exit_code == 0, result.output
    ours, theirs = (json.loads((root / "out" / "tiny" / "gap.json").read_text()) for root in (tmp_path, place))
    assert [(each["model"], each["n"], each["nll"]) for each in estimates_in(ours)] == [
        (each["model"], each["n"], pytest.approx(each["nll"])) for each in estimates_in(theirs)
    ]


IN_SMALL_SHARDS = """
from argap.tokens import runs
from argap.train.records import read_train
from argap.cli import main
runs.SHARD_TOKENS = 512
main()
"""


def test_two_processes_train_and_score_together(place, tmp_path, monkeypatch):
    """One of the models is there already, one is only trained; its scores are the files that one process writes."""
    shutil.copy(place / "suite.yaml", tmp_path)
    work, rescored = tmp_path / "runs" / "suite" / "tiny", tmp_path / "work" / "tiny"
    for copy in (work, rescored):
        shutil.copytree(place / "work" / "tiny", copy, ignore=shutil.ignore_patterns("base_conv*"))
        shutil.rmtree(copy / "runs" / "attention-seed1")
    members = [part for name in ("attention", "attention-seed1", "base_conv") for part in ("--member", name)]
    codes = torchrun(IN_SMALL_SHARDS, "suite", "run", "suite.yaml", *members, "--device", "cpu", folder=tmp_path)
    out, err = said(tmp_path)
    assert codes == [0, 0], err
    assert out.split() == ["results/suite/tiny/report.html", "results/suite/table.md"]  # only the main process prints
    assert err.count("trained and scored already") == 1
    trained = {name: json.loads((work / name / "train.json").read_text()) for name in ("attention", "base_conv")}
    assert [trained[name]["processes"] for name in trained] == [1, 2]
    monkeypatch.setattr(runs, "SHARD_TOKENS", 512)
    assert command(tmp_path, "run", *members[:4]).exit_code == 0
    two, one = (
        {path.name: path.read_bytes() for path in (each / "runs" / "attention-seed1" / "tokens").iterdir()}
        for each in (work, rescored)
    )
    assert len(one) > 2
    assert one == two
    found = read_size(tmp_path / "results" / "suite" / "tiny")
    before = read_size(place / "out" / "tiny")
    assert found.gap.fingerprint == before.gap.fingerprint
    alone, together = ({seed.name: seed.nll["overall"] for seed in each.seeds} for each in (before, found))
    together["base_conv"] = found.gap.on_all["base_conv"].nll  # of one seed
    assert together == {name: pytest.approx(alone[name], rel=1e-4) for name in members[1::2]}
    recall = found.mqar()
    assert recall is not None
    assert set(recall.models) == {"attention", "attention-seed1", "base_conv"}


def test_missing_ray_says_how_to_install_it(place, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert "pip install argap[cluster]" in str(command(place, "run", "--engine", "ray").exception)


def test_mqar_is_measured_once_and_reported(place):
    found = json.loads((place / "out" / "tiny" / "mqar.json").read_text())
    assert (found["pairs"], found["examples"], found["text"]) == ([2, 4], 4, str(place / "val"))
    names = ["attention", "base_conv", "attention-seed1", "base_conv-seed1"]
    rows = [(row["model"], row["pairs"], row["slice"]) for row in found["rows"]]
    assert rows == [(name, pairs, part) for name in names for pairs in (2, 4) for part in ("ar", "other", "pairs")]
    # 4 examples of D values each; other are the 32 − 4·D tokens between the pairs, pairs the rest of 31.
    assert [row["n"] for row in found["rows"][:6]] == [4 * 2, 4 * 24, 4 * 5, 4 * 4, 4 * 16, 4 * 11]
    table = (place / "out" / "table.md").read_text()
    first = found["rows"][0]["nll"], found["rows"][1]["nll"]
    assert f"| attention | {first[0]:.2f} ({first[1]:.2f}) |" in table
    assert (place / "out" / "tiny" / "figures" / "recall_of_pairs.svg").is_file()
    for shown in (table, (place / "out" / "tiny" / "report.html").read_text()):
        assert "between them the text val." in shown
        assert str(place) not in shown


def test_what_a_killed_measurement_of_pairs_left_is_removed(place):
    scores = place / "work" / "tiny" / "mqar" / "attention.json"
    before = scores.read_bytes()
    left = scores.with_name(f".{scores.name}.999999999-{_machine()}00000000.tmp")  # no process has the number
    left.write_text("{")
    scores.unlink()
    assert command(place, "run").exit_code == 0
    assert not left.exists()
    assert scores.read_bytes() == before


def test_mqar_scores_of_different_tests_are_refused(place, tmp_path):
    files = {name: place / "work" / "tiny" / "mqar" / f"{name}.json" for name in ("attention", "base_conv-seed1")}
    later = files["base_conv-seed1"]
    before, record = later.read_text(), read_json(later)
    try:
        later.write_text(json.dumps(record | {"examples": 8}))
        result = command(place, "run", "--out", str(tmp_path / "refused"))
        assert str(result.exception) == (
            f"{later}: recall of pairs with examples 8, the suite's mqar has 4; remove the file and run "
            "`argap suite run` again"
        )
        later.write_text(json.dumps(record | {"between": "another text"}))
        result = command(place, "run", "--out", str(tmp_path / "refused"))
        assert str(result.exception).startswith(f"{files['attention']} and {later}: recall of pairs on different tests")
        assert not (tmp_path / "refused").exists()
        later.write_text(json.dumps(record | {"device": "cuda", "dtype": "torch.bfloat16", "git": None}))
        assert command(place, "run", "--out", str(tmp_path / "taken")).exit_code == 0
    finally:
        later.write_text(before)
    rows = json.loads((tmp_path / "taken" / "tiny" / "mqar.json").read_text())["rows"]
    assert len(rows) == 4 * 2 * 3  # models, numbers of pairs, slices


def test_an_index_of_other_exposures_is_built_again(place, tmp_path, capsys):
    """Both an index without recorded passes and one of other sources."""
    suite, places = load_suite(place / "suite.yaml"), Layout(tmp_path / "work")
    index = training_index(suite, "tiny", places)
    assert index.passes == pytest.approx(6 * 4 * 64 / (index.tokens + index.documents))
    manifest = places.index("tiny") / "index.json"
    before, built = manifest.read_bytes(), manifest.stat().st_mtime_ns
    assert training_index(suite, "tiny", places).passes == index.passes
    assert manifest.stat().st_mtime_ns == built
    for change, reason in {
        "passes": rf"1 passes recorded, training makes {index.passes:g}; built again",
        "sources": r"an index of elsewhere, training reads .*train; built again",
    }.items():
        values = {key: value for key, value in json.loads(before).items() if key != "checksum"}
        values |= {"sources": ["elsewhere"]} if change == "sources" else {}
        values.pop("passes") if change == "passes" else None
        manifest.write_text(json.dumps(values))
        assert training_index(suite, "tiny", places).passes == index.passes
        assert re.search(reason, capsys.readouterr().err)
        assert manifest.read_bytes() == before


def test_a_training_text_that_changed_under_its_name_is_refused(place, tmp_path):
    """Once the models of the old text are removed, the index of it is built again, too."""
    shutil.copytree(place / "train", tmp_path / "train")
    values = yaml.safe_load((place / "suite.yaml").read_text())
    del values["mqar"]
    values["train"] |= {"data": [str(tmp_path / "train")], "keep_checkpoints": 1}
    (tmp_path / "suite.yaml").write_text(yaml.safe_dump(values))
    assert command(tmp_path, "run").exit_code == 0
    before = (tmp_path / "out" / "tiny" / "gap.json").read_bytes()
    (tmp_path / "train" / "notes" / "9.txt").write_text(text(9))
    message = r"tiny/{}: was trained on .*train, which had [\d,]+ bytes and has [\d,]+ now; choose another `work`"
    for member in ("attention", "base_conv"):
        assert re.search(message.format(member), str(command(tmp_path, "run", "--member", member).exception))
    assert (tmp_path / "out" / "tiny" / "gap.json").read_bytes() == before
    for name in ("attention", "base_conv", "attention-seed1", "base_conv-seed1", "runs"):
        shutil.rmtree(tmp_path / "work" / "tiny" / name)
    shutil.rmtree(tmp_path / "out")
    result = command(tmp_path, "run")
    assert result.exit_code == 0
    assert re.search(r"tokens with EOS, training reads [\d,]+ in a pass; built again", result.output)


def test_each_size_has_windows_and_an_index_of_its_tokenizer(place, tmp_path):
    """The same text under two tokenizers: windows and index belong to one size."""
    words = ["<eos>", "<unk>", *sorted(set((text(1) + text(8)).split()))]
    word_tokenizer(words, unknown="<unk>", eos="<eos>").save(tmp_path)
    values = yaml.safe_load((place / "suite.yaml").read_text())
    values["sizes"]["words"] = {"tokenizer": str(tmp_path), "hidden_size": 16, "num_layers": 2}
    (tmp_path / "suite.yaml").write_text(yaml.safe_dump(values))
    suite, places = load_suite(tmp_path / "suite.yaml"), Layout(tmp_path / "work")
    for size in ("tiny", "words"):
        data, tokenizer = evaluation_set(suite, size)
        index = training_index(suite, size, places)
        assert index.tokenizer_fingerprint == tokenizer.fingerprint == data.tokenizer_fingerprint
    assert tokenizer.vocab_size == len(words)
    assert index.tokens < open_index(places.index("tiny")).tokens  # a word is at least one token of bytes


def test_weights_travel_as_archives_with_their_hashes(place, tmp_path):
    shutil.copy(place / "suite.yaml", tmp_path)
    suite, work, out = load_suite(place / "suite.yaml"), Layout(place / "work"), tmp_path / "out" / "tiny"
    made = export_weights(suite, "suite", "tiny", work, tmp_path / "assets", out)
    assert [each.file for each in made.assets][:2] == ["suite-tiny-attention.tar", "suite-tiny-base_conv.tar"]
    again = export_weights(suite, "suite", "tiny", work, tmp_path / "again", tmp_path / "out2")
    assert again == made  # equal checkpoints, equal archives
    assert made.assets[0].git == read_train(place / "work" / "tiny" / "attention").git
    (tmp_path / "assets" / "suite-tiny-base_conv.tar").unlink()  # only what is there is unpacked
    result = command(tmp_path, "weights", "--from", str(tmp_path / "assets"))
    assert result.output.split() == [
        str(tmp_path / "work" / "tiny" / name) for name in [each.model for each in made.assets] if name != "base_conv"
    ]
    for name in ("model.safetensors", "train.json", "tokenizer.json"):
        assert (tmp_path / "work/tiny/attention" / name).read_bytes() == (
            place / "work/tiny/attention" / name
        ).read_bytes()
    path = tmp_path / "again" / "suite-tiny-base_conv.tar"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(FormatError, match=r"suite-tiny-base_conv.tar: SHA-256 \w{12}, expected .*; download it again"):
        import_weights(suite, "tiny", Layout(tmp_path / "work"), tmp_path / "again", out)
    os.truncate(path, 2**40)  # not read for its hash
    with pytest.raises(FormatError, match=r"suite-tiny-base_conv.tar: 1,099,511,627,776 bytes, expected .*; download"):
        import_weights(suite, "tiny", Layout(tmp_path / "work"), tmp_path / "again", out)
    nowhere = tmp_path / "nowhere"
    with pytest.raises(ArgapError, match=r"has none of the archives that .* lists; they are not published"):
        import_weights(suite, "tiny", Layout(tmp_path / "work"), nowhere, out)
    command(tmp_path, "weights", "--published", "https://example.org")
    with pytest.raises(ArgapError, match=r"lists; download them from https://example\.org"):
        import_weights(suite, "tiny", Layout(tmp_path / "work"), nowhere, out)
    assert export_weights(suite, "suite", "tiny", work, tmp_path / "assets", out).published == "https://example.org"
    (tmp_path / "work" / "tiny" / "attention" / "log.jsonl").write_text("")  # another archive
    changed = export_weights(suite, "suite", "tiny", Layout(tmp_path / "work"), tmp_path / "assets", out)
    assert (changed.published, len(changed.assets)) == (None, len(made.assets))
    with pytest.raises(ArgapError, match="lists no archives; pack them first"):
        note_published(tmp_path / "empty", "https://example.org")
    with pytest.raises(ArgapError, match="no weights in"):
        export_weights(suite, "suite", "tiny", Layout(tmp_path / "empty"), tmp_path / "assets", out)
