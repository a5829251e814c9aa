"""A result to which members are added when the runs of the others are gone: as if all were collected at once."""

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
import yaml

from argap.atomic import read_json, write_json
from argap.errors import ArgapError, MismatchError
from argap.labels import label
from argap.parquet import read_frame
from argap.records import read_gap
from argap.suite.collect import collect
from argap.suite.config import load_suite
from argap.suite.earlier import Earlier, with_models
from argap.suite.layout import Layout
from argap.suite.members import evaluation_set, training_index
from argap.suite.result import read_size

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


@pytest.fixture(autouse=True)
def known(monkeypatch):
    """Six steps of training teach the reference nothing, and there would be no windows."""
    monkeypatch.setattr("argap.example_windows.KNOWN", 0.0)


@pytest.fixture
def out(known, add, tmp_path) -> Path:
    """A result with all members but base_conv-seed1."""
    return add(tmp_path / "out", [*FIRST, *SECOND])


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
def test_members_may_come_in_any_order(add, tmp_path, steps):
    expected = contents(add(tmp_path / "at once", EVERY))
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


def test_a_result_without_positions_by_document_keeps_its_figures(add, out, tmp_path):
    """That of an older argap: without the reference's run a new member has no interval by position."""
    gap = read_gap(out)
    expected = gap.breakdowns.position
    sums = with_models(read_frame(out / "positions.parquet"), gap.models)
    assert Earlier(out).by_position(sums.iloc[:, ::-1], gap) == expected  # the reference need not come first
    old = add(tmp_path / "old", FIRST)
    (old / "positions.parquet").unlink()
    (out / "positions.parquet").unlink()
    for own, part in zip(read_gap(add(old, SECOND)).breakdowns.position, expected, strict=True):
        assert (own.n, own.nll, own.ci95) == (part.n, pytest.approx(part.nll, rel=1e-12), {"base_conv": None})
        assert own.contribution == pytest.approx(part.contribution, rel=1e-9)
    assert read_gap(add(out, ["base_conv-seed1"])).breakdowns.position == expected
    (out / "positions.parquet").unlink()
    assert read_gap(add(out, [*FIRST, "base_conv-seed1"])).breakdowns.position == expected


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
    assert [path.stem for path in sorted((out / "logs").iterdir())] == ["attention", "base_conv"]
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
            {"fingerprint": "f" * 64},
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
