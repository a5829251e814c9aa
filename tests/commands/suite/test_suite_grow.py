"""A result to which members are added when the runs of the others are gone: as if all were collected at once."""

import dataclasses
import errno
import itertools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml

from argap.errors import ArgapError, FormatError, MismatchError
from argap.files.atomic import read_json, remove_leftovers, write_json
from argap.files.checksums import write_checksums
from argap.files.parquet import read_frame, write_parquet
from argap.records import as_json, read_gap
from argap.results.in_place import NEW
from argap.suite.collect import collect
from argap.suite.config import load_suite
from argap.suite.earlier import Earlier, open_earlier
from argap.suite.layout import Layout, put_in_place
from argap.suite.members import evaluation_set, training_index
from argap.suite.result import read_size
from argap.tokens.labels import label
from argap.train.log import read_log
from tests.commands.suite.conftest import ROOT, command

pytestmark = pytest.mark.usefixtures("known")
FIRST, SECOND = ["attention", "attention-seed1"], ["base_conv"]
EVERY = [*FIRST, *SECOND, "base_conv-seed1"]


@pytest.fixture(scope="module")
def labels(place):
    suite = load_suite(place / "suite.yaml")
    return label(evaluation_set(suite, "tiny")[0], training_index(suite, "tiny", Layout(place / "work")))


@pytest.fixture(scope="module")
def add(place, labels, tmp_path_factory):
    """Collects some members, whose runs alone are in the work folder, into the result that ``out`` may have."""
    suite = load_suite(place / "suite.yaml")
    tokenizer = evaluation_set(suite, "tiny")[1]

    def collected(out: Path, names: list[str], suite=suite, labels=labels, threshold: int = 1250) -> Path:
        work, have = tmp_path_factory.mktemp("work"), place / "work" / "tiny"
        for name in names:
            for path in (have / name, have / "runs" / name, have / "trajectories" / name, have / f"mqar/{name}.json"):
                (copy := work / path.relative_to(place / "work")).parent.mkdir(parents=True, exist_ok=True)
                copy.symlink_to(path)
        collect(suite, "tiny", Layout(work), labels, tokenizer, out, threshold=threshold)
        return out

    return collected


@pytest.fixture(scope="module")
def collected(known, add, tmp_path_factory) -> Path:
    return add(tmp_path_factory.mktemp("collected") / "out", [*FIRST, *SECOND])


@pytest.fixture
def out(collected, tmp_path) -> Path:
    """A result with all members but base_conv-seed1."""
    return shutil.copytree(collected, tmp_path / "out")


@pytest.fixture(scope="module")
def at_once(known, add, tmp_path_factory) -> dict[str, bytes | str]:
    """The contents of a result whose members are collected together."""
    return contents(add(tmp_path_factory.mktemp("at-once") / "out", EVERY))


def contents(folder: Path) -> dict[str, bytes | str]:
    """Each file's bytes; of ``gap.json`` all but the date."""
    files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    gap = read_json(folder / "gap.json")
    return files | {"gap.json": json.dumps({k: v for k, v in gap.items() if k not in ("date", "checksum")})}


def changed(out: Path, name: str, **values: object) -> None:
    """Change a record of a result; for ``members.json`` the first member."""
    record = {key: value for key, value in read_json(out / name).items() if key != "checksum"}
    (record["members"][0] if name == "members.json" else record).update(values)
    write_json(out / name, record)


@pytest.mark.parametrize(
    "steps",
    [[[*FIRST, *SECOND], ["base_conv-seed1"]], [["attention", "base_conv-seed1"], SECOND, ["attention-seed1"]]],
)
def test_members_may_come_in_any_order(add, at_once, tmp_path, steps):
    expected = dict(at_once)
    for names in steps:
        add(tmp_path / "out", names)
    found = contents(tmp_path / "out")
    if "base_conv" not in steps[0]:  # the windows were chosen without it
        examples = json.loads(found.pop("examples.json"))
        assert (examples["models"], examples["added"]) == (["attention", "base_conv"], ["base_conv"])
        expected.pop("examples.json")
    assert found.keys() == expected.keys()
    assert [name for name in found if found[name] != expected[name]] == []


def test_the_same_run_again_changes_nothing(add, out):
    before = contents(out)
    assert json.loads((out / "examples.json").read_text())["windows"]
    assert contents(add(out, SECOND)) == before


def test_a_result_without_positions_by_document_has_no_partition_by_position(add, out, tmp_path):
    """They come back once all members have sums, not before."""
    expected = [(part.bin, part.n) for part in read_gap(out).parts("position")]
    old = add(tmp_path / "old", FIRST)
    (old / "positions.parquet").unlink()
    (out / "positions.parquet").unlink()
    assert read_gap(add(old, SECOND)).parts("position") == []
    assert read_gap(add(out, ["base_conv-seed1"])).parts("position") == []
    assert [(part.bin, part.n) for part in read_gap(add(out, EVERY)).parts("position")] == expected


def test_nothing_is_read_of_a_result_whose_members_all_have_runs(add, out, at_once):
    for name in ("members.json", "cells.parquet", "curve.parquet", "trajectory.parquet"):
        (out / name).write_bytes(b"")
    assert contents(add(out, EVERY)) == at_once


def test_windows_are_chosen_anew_where_the_models_that_they_show_have_runs(add, out):
    (out / "examples.json").unlink()
    assert read_json(add(out, ["attention", "base_conv"]) / "examples.json")["windows"]


def test_the_trajectory_has_the_members_whose_checkpoints_were_scored(add, out):
    earlier = Earlier(out, {"base_conv-seed1": read_size(out).members[0]})
    assert earlier.with_rows("trajectory.parquet", None, EVERY) is None
    for name in ("trajectory.parquet", "mqar.json"):  # not every suite has them
        (out / name).unlink()
    assert set(read_frame(add(out, SECOND) / "trajectory.parquet")["model"]) == {"base_conv"}


def test_logs_are_those_of_each_training(out, place):
    result = read_size(out)
    for member in result.members:
        lines = read_log(place / "work" / "tiny" / member.name / "log.jsonl")
        log = result.log(member.name)
        assert len(lines) == 6
        assert np.isnan(log["auxiliary_loss"].to_numpy()).all()
        assert log.drop(columns=["model", "auxiliary_loss"]).to_dict("records") == [as_json(line) for line in lines]


def test_a_member_without_a_log_is_one_line(out):
    path = out / "logs.parquet"
    table = read_frame(path)
    write_parquet(path, table[table["model"] != "base_conv"])
    write_checksums(out, [path])
    with pytest.raises(
        FormatError, match=r"logs\.parquet: no rows of base_conv, expected its training log; repeat its"
    ):
        read_size(out).log("base_conv")


def test_a_member_that_is_trained_anew_is_not_taken(place, out, labels):
    suite = load_suite(place / "suite.yaml")
    earlier = open_earlier(suite, "tiny", {"base_conv": None}, labels.record.evaluation, 1250, out)
    assert (earlier.taken.keys(), earlier.same) == ({*FIRST}, {*FIRST})
    assert earlier.changes == (f"{out}: attention, attention-seed1 without a run here, taken from the result",)


def test_a_member_with_a_run_is_replaced_and_one_outside_the_suite_dropped(add, out, place, tmp_path, capsys):
    windows = json.loads((out / "examples.json").read_text())["windows"]
    assert {window["model"] for window in windows} == {"base_conv"}
    record = read_json(out / "members.json")
    record["members"][1] |= {"checkpoint": "another"}
    write_json(out / "members.json", {"members": record["members"]})
    values = yaml.safe_load((place / "suite.yaml").read_text())
    values["members"]["attention"] = {}
    (tmp_path / "suite.yaml").write_text(yaml.safe_dump(values))
    add(out, SECOND, suite=load_suite(tmp_path / "suite.yaml"))
    said = capsys.readouterr().err
    assert f"{out}: attention without a run here, taken from the result\n" in said
    assert f"{out}: base_conv replaced by the run of another checkpoint\n" in said
    assert f"{out}: attention-seed1 dropped, not in the suite\n" in said
    assert [member.name for member in read_size(out).members] == ["attention", "base_conv"]
    assert read_frame(out / "logs.parquet")["model"].unique().tolist() == ["attention", "base_conv"]
    examples = json.loads((out / "examples.json").read_text())
    assert (examples["windows"], examples["added"]) == ([], ["base_conv"])  # all showed the other checkpoint


def test_what_cannot_be_continued_is_refused(add, out, place, labels, tmp_path):
    values = yaml.safe_load((place / "suite.yaml").read_text())
    values["members"]["attention"]["lr"] = 0.5
    (tmp_path / "suite.yaml").write_text(yaml.safe_dump(values))
    other = {
        "threshold": {"threshold": 20},
        "lr": {"suite": load_suite(tmp_path / "suite.yaml")},
        "counts": {"labels": dataclasses.replace(labels, train_count=labels.train_count + 1)},
        "": {},
    }
    bins = read_json(out / "gap.json")["bins"]
    bins["distance"][0]["high"] += 1
    cases = [
        (
            "",
            "gap.json",
            {"evaluation": read_json(out / "gap.json")["evaluation"] | {"fingerprint": "f" * 64}},
            r"out: its evaluation set is f{12}, here [0-9a-f]{12}; choose",
        ),
        ("", "gap.json", {"bins": bins}, "out: its bins are those of"),
        ("", "members.json", {"checkpoint": "another"}, "its reference's checkpoint is another, here"),
        ("threshold", "", {}, "out: its threshold is 1250, here 20; choose another `out`"),
        ("lr", "", {}, r"members.json: attention: trained with lr 0.001, the suite has 0.5; choose another `out`"),
        (
            "counts",
            "",
            {},
            r"cells.parquet: its rows are not those of the evaluation text and the training counts here",
        ),
    ]
    for case, name, change, message in cases:
        folder = shutil.copytree(out, tmp_path / f"{case}{name}{message[:10]}" / "out")
        if name:
            changed(folder, name, **change)
        before = contents(folder)
        runs = ["attention", "base_conv-seed1"] if name == "members.json" else ["base_conv-seed1"]
        with pytest.raises(MismatchError, match=message):
            add(folder, runs, **other[case])
        assert contents(folder) == before


def test_a_result_needs_its_reference_and_a_run(add, out, tmp_path):
    with pytest.raises(ArgapError, match="tiny: the reference attention is not finished"):
        add(tmp_path / "new", SECOND)
    with pytest.raises(ArgapError, match="tiny: no member has a run in"):
        add(out, [])


def without(name: str, column: str):
    def change(tiny: Path) -> None:
        path = tiny / name
        pq.write_table(pq.read_table(path).drop_columns([column]), path)
        write_checksums(tiny, [path])

    return change


def damaged(name: str):
    return lambda tiny: (tiny / name).write_bytes(b"")


def without_a_member(tiny: Path) -> None:
    write_json(tiny / "members.json", {"members": read_json(tiny / "members.json")["members"][:1]})


def examples_without(model: str) -> Callable[[Path], None]:
    def leave_out(tiny: Path) -> None:
        examples = read_json(tiny / "examples.json")
        windows = [each for each in examples["windows"] if each["model"] != model]
        for each in windows:
            del each["logprob"][model], each["top1_correct"][model]
        models = [each for each in examples["models"] if each != model]
        changed(tiny, "examples.json", models=models, windows=windows)

    return leave_out


def without_an_index(tiny: Path) -> None:
    estimates = [each for each in read_json(tiny / "gap.json")["estimates"] if each["partition"] != "frequency"]
    changed(tiny, "gap.json", index=None, threshold=None, estimates=estimates)


def other_bins(tiny: Path) -> None:
    bins = read_json(tiny / "gap.json")["bins"]
    bins["distance"][0]["high"] += 1
    changed(tiny, "gap.json", bins=bins)


@pytest.mark.parametrize(
    ("suite", "options", "change", "message"),
    [
        ({"reference": "base_conv"}, [], None, "its reference is attention, here base_conv; choose another `out`"),
        ({"evaluation": {"seq_len": 32}}, [], None, "its evaluation set is "),
        ({}, ["--threshold", "20"], None, "its threshold is 1250, here 20; choose another `out`"),
        ({}, ["--threshold", "scaled"], None, "its threshold is 1250, here 0; choose another `out`"),
        ({"train": {"steps": 8}}, [], None, "members.json: attention: trained with steps 6, the suite has 8; choose"),
        ({"mqar": {"pairs": [2]}}, [], None, "mqar.json: recall of pairs with pairs (2, 4), the suite's mqar has (2,)"),
        ({}, [], other_bins, "its bins are those of another argap; choose another `out`"),
        ({}, [], without("cells.parquet", "logprob/base_conv"), "cells.parquet: no column logprob/base_conv; "),
        ({}, [], without("curve.parquet", "logprob/base_conv"), "curve.parquet: no column logprob/base_conv; "),
        ({}, [], without("curve.parquet", "document"), "curve.parquet: no column document; expected document, high, n"),
        ({}, [], without("positions.parquet", "n"), "positions.parquet: no column n; expected document, position, n; "),
        ({}, [], without("trajectory.parquet", "step"), "trajectory.parquet: no column step; expected model, step, "),
        ({}, [], without("logs.parquet", "loss"), "logs.parquet: no column loss; expected model, step, tokens, loss, "),
        ({}, [], damaged("logs.parquet"), "logs.parquet: truncated at byte 0; "),
        ({}, [], lambda tiny: (tiny / "logs.parquet").unlink(), "logs.parquet: no such file; repeat its `argap suite"),
        ({}, [], damaged("positions.parquet"), "positions.parquet: truncated at byte 0; "),
        ({}, [], without_a_member, "members.json: lacks base_conv, which gap.json has; choose another `out`"),
        (
            {},
            [],
            without_an_index,
            "gap.json: `index` is null, and a suite has one",
        ),
        ({}, [], lambda tiny: (tiny / "examples.json").unlink(), "examples.json: no such file"),
        ({}, [], examples_without("base_conv"), "examples.json: lacks base_conv, which gap.json has; choose another "),
    ],
)
def test_what_cannot_be_continued_is_refused_before_training(out, place, tmp_path, suite, options, change, message):
    values = yaml.safe_load((place / "suite.yaml").read_text())
    for key, value in suite.items():
        values[key] = values[key] | value if isinstance(value, dict) else value
    (root := tmp_path / "root").mkdir()
    (root / "suite.yaml").write_text(yaml.safe_dump(values))
    tiny = shutil.copytree(out, root / "out" / "tiny")
    if change:
        change(tiny)
    before = contents(tiny)
    result = command(root, "run", "--member", "base_conv-seed1", *options)
    assert (result.exit_code, message in str(result.exception)) == (1, True), result.exception
    assert contents(tiny) == before
    assert not (root / "work").exists()


def test_a_result_without_an_index_is_not_one_of_a_suite(out):
    without_an_index(out)
    with pytest.raises(FormatError, match=r"gap\.json: `index` is null, and a suite has one; repeat its"):
        read_size(out)


def test_a_member_without_its_reference_is_refused_before_training(place, tmp_path):
    shutil.copy(place / "suite.yaml", tmp_path)
    result = command(tmp_path, "run", "--member", "base_conv")
    assert "tiny: the reference attention is not finished; train it too, or use --no-collect" in str(result.exception)
    assert not (tmp_path / "work").exists()


def test_a_member_is_trained_beside_a_result_that_it_continues_or_that_is_not_there(add, place, tmp_path):
    """With a threshold that is known only once the training text is counted, or from the result."""
    values = yaml.safe_load((place / "suite.yaml").read_text())
    values["train"]["checkpoint_every"] = values["train"]["steps"] = 2
    del values["mqar"]
    (tmp_path / "suite.yaml").write_text(yaml.safe_dump(values))
    (tmp_path / "out" / "tiny").mkdir(parents=True)
    scaled = ["--threshold", "scaled"]
    result = command(tmp_path, "run", "--member", "attention", *scaled)
    assert result.exit_code == 0, result.output
    shutil.rmtree(tmp_path / "work")
    result = command(tmp_path, "run", "--member", "base_conv", *scaled)
    assert result.exit_code == 0, result.output
    assert read_gap(tmp_path / "out" / "tiny").models == ["attention", "base_conv"]
    changed(tmp_path / "out" / "tiny", "gap.json", fingerprint="f" * 64)
    shutil.rmtree(tmp_path / "work" / "tiny" / "runs")
    assert command(tmp_path, "run", "--member", "base_conv", "--no-collect").exit_code == 0  # looks at no result


class Killed(BaseException):
    pass


def test_a_kill_before_a_result_is_whole_leaves_the_earlier_one(add, out, monkeypatch):
    before, replace = contents(out), os.replace
    for last in range(50):
        calls = itertools.count()

        def killing(source, target, last=last, calls=calls):
            if next(calls) == last:
                raise Killed
            replace(source, target)

        monkeypatch.setattr("os.replace", killing)
        with pytest.raises(Killed):
            add(out, ["base_conv-seed1"])
        if (out / NEW).is_dir():
            assert last > 10  # one for each file of the result
            break
        assert contents(out) == before
    monkeypatch.undo()
    assert {member.name for member in read_size(add(out, ["base_conv-seed1"])).members} == {*EVERY}


KILLS = """
import itertools, os, shutil, signal, sys
from pathlib import Path
from typing import Any
from argap.suite.layout import put_in_place

def killing(function, calls, last):
    def call(*arguments, **options):
        if next(calls) == last:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **options)
    return call

source, target = map(Path, sys.argv[1:])
for last in itertools.count():
    folder = shutil.copytree(source, target / str(last))
    child = os.fork()
    if not child:
        calls = itertools.count()
        for name in ("open", "link", "replace", "unlink", "rmdir"):
            setattr(os, name, killing(getattr(os, name), calls, last))
        put_in_place(folder)
        os._exit(0)
    if os.waitpid(child, 0)[1] == 0:
        break
"""


@pytest.fixture(scope="module")
def killed(add, collected, place, tmp_path_factory) -> tuple[list[Path], dict[str, bytes | str]]:
    """The result after a kill before each change of a file while a new one is put in place; and the new one.

    The new one has a member more and one less, and no recall of pairs.
    """
    tmp_path = tmp_path_factory.mktemp("killed")
    out = shutil.copytree(collected, tmp_path / "out")
    values = yaml.safe_load((place / "suite.yaml").read_text())
    values["members"]["attention"] = {}
    del values["mqar"]
    (tmp_path / "suite.yaml").write_text(yaml.safe_dump(values))
    suite = load_suite(tmp_path / "suite.yaml")
    expected = contents(add(shutil.copytree(out, tmp_path / "expected"), ["base_conv-seed1"], suite=suite))
    assert {"mqar.json"} == contents(out).keys() - expected.keys()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("argap.suite.collect.put_in_place", lambda folder: None)
        add(out, ["base_conv-seed1"], suite=suite)
    (out / "notes.txt").write_text("stays")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", KILLS, out, tmp_path / "killed"], env=environment, check=True)
    return sorted((tmp_path / "killed").iterdir()), expected | {"notes.txt": b"stays"}


def test_a_kill_while_a_result_is_put_in_place_mixes_no_two(collected, killed, tmp_path):
    folders, expected = killed
    assert len(folders) > 30
    earlier, states = contents(collected) | {"notes.txt": b"stays"}, set()
    for left in folders:
        folder = shutil.copytree(left, tmp_path / left.name)
        if (folder / "gap.json").is_file():
            found = {name: value for name, value in contents(folder).items() if not name.startswith(NEW)}
            assert found in (earlier, expected)
            states.add("earlier" if found == earlier else "new")
        else:
            with pytest.raises(FormatError, match=r"no gap\.json there"):
                read_size(folder)
            states.add("none")
        put_in_place(folder)
        remove_leftovers(folder)
        assert contents(folder) == expected
    assert states == {"earlier", "none", "new"}


def test_a_new_result_is_put_in_place_on_a_full_disk(killed, tmp_path, monkeypatch):
    def refused(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    folders, expected = killed
    folder = shutil.copytree(folders[0], tmp_path / "out")
    monkeypatch.setattr(shutil, "copyfile", refused)
    put_in_place(folder)
    assert contents(folder) == expected


def test_a_folder_with_the_name_of_a_table_does_not_cost_the_earlier_result(killed, tmp_path):
    folder = shutil.copytree(killed[0][0], tmp_path / "out")
    (folder / "logs.parquet").unlink(missing_ok=True)
    (folder / "logs.parquet").mkdir()
    before = contents(folder)
    with pytest.raises(FormatError, match=r"logs\.parquet: a folder; expected a file"):
        put_in_place(folder)
    assert contents(folder) == before


@pytest.mark.parametrize("again", ["table", "run"])
def test_the_next_command_completes_what_a_kill_left(killed, tmp_path, again):
    folders, expected = killed
    half = next(each for each in folders if not (each / "gap.json").exists() and (each / "cells.parquet").exists())
    shutil.copy(half.parents[1] / "suite.yaml", tmp_path)
    tiny = shutil.copytree(half, tmp_path / "out" / "tiny")
    result = command(tmp_path, again, *(["--member", "base_conv-seed1"] if again == "run" else []))
    assert result.exit_code == 0, result.output
    found = contents(tiny)
    assert found.keys() >= expected.keys()
    assert [name for name in found if name.startswith(".")] == []
    if again == "table":
        assert [name for name in expected if found[name] != expected[name]] == []
    else:  # the member is trained once more
        assert [member.name for member in read_size(tiny).members] == ["attention", "base_conv", "base_conv-seed1"]
