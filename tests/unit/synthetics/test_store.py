"""The folder of a sweep: after a kill, with broken files, and of another sweep."""

import resource
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from argap.cli import app
from argap.errors import ArgapError, FormatError, MismatchError
from argap.files.atomic import read_json_lines, write_json, write_json_lines
from argap.files.configs import build
from argap.reports.figures.mqar import write_sweep
from argap.synthetics.sweeps.jobs import run_sweep
from argap.synthetics.sweeps.store import (
    TABLE,
    check_folder,
    collect_runs,
    read_results,
    read_runs,
    read_sweep,
    write_run,
)
from argap.synthetics.sweeps.sweep import Sweep, load_sweep
from tests.builders.sweeps import HERE, ROOT, RUN

SMALL = {"members": {"attention": None}, "lengths": [16], "widths": [8], "pairs": [2], "lrs": [1e-3, 1e-2]}


def sweep(**change: Any) -> Sweep:
    """Two runs of two steps, unless changed."""
    return build(Sweep, {**SMALL, "run": RUN, **change})


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    run_sweep(sweep(), folder, HERE)
    return folder


@pytest.fixture
def out(trained, tmp_path) -> Path:
    """A folder of the trained sweep, to be harmed."""
    for path in [path for path in trained.rglob("*") if path.is_file()]:
        copy = tmp_path / path.relative_to(trained)
        copy.parent.mkdir(exist_ok=True)
        copy.write_bytes(path.read_bytes())
    return tmp_path


def test_a_folder_records_its_sweep(out):
    assert read_sweep(out).configs() == sweep().configs()


def as_killed(out: Path) -> list[Path]:
    """Give every run of the table a file of its own, as a kill leaves those that ended since the last call."""
    for result in read_results(out).values():
        write_run(out, result)
    (out / TABLE).unlink()
    return sorted((out / "runs").iterdir())


def test_finished_runs_move_into_the_table_once_all_have_ended(out):
    table = (out / TABLE).read_bytes()
    assert [line["config"]["lr"] for line in read_json_lines(out / TABLE)] == [1e-3, 1e-2]  # in the sweep's order
    assert not (out / "runs").exists()
    whole = read_runs(out).to_dict()
    as_killed(out)
    assert read_runs(out).to_dict() == whole
    assert run_sweep(sweep(), out, HERE).to_dict() == whole
    assert (out / TABLE).read_bytes() == table
    assert not (out / "runs").exists()


def test_a_kill_between_the_table_and_the_removal_of_files_changes_nothing(out):
    table = (out / TABLE).read_bytes()
    as_killed(out)
    (out / TABLE).write_bytes(table)
    assert len(read_runs(out)) == len(run_sweep(sweep(), out, HERE)) == 2
    assert (out / TABLE).read_bytes() == table


def test_what_is_finished_is_drawn_after_a_kill(out):
    """A kill leaves the files of the runs that had ended."""
    first, second = read_runs(out).to_numpy().tolist()
    as_killed(out)[0].unlink()
    solved, text = write_sweep(out)
    assert "| 16 | 2 | attention |" in text
    (left,) = read_runs(out).to_numpy().tolist()
    assert left in (first, second)
    assert len(solved) == 1


def test_epochs_are_the_steps_over_those_of_an_epoch(out):
    assert read_runs(out)["epochs"].tolist() == [1, 1]  # two steps of two in an epoch


DAMAGES = [
    (lambda one, other: {}, "Object missing required field `config`"),
    (
        lambda one, other: {key: one[key] for key in ("config", "accuracy")},
        "Object missing required field `validation_accuracy`",
    ),
    (lambda one, other: one | {"more": 1}, "Object contains unknown field `more`"),
    (lambda one, other: one | {"steps": -1}, "Expected `int` >= 0 - at `$.steps`"),
    (lambda one, other: one | {"flops": 2**63}, "Expected `int` <= 9223372036854775807 - at `$.flops`"),
]


def refused(out: Path) -> str:
    """What the sweep and its plot say, both the same, and neither has written anything."""
    told, before = [], (out / "sweep.json").stat().st_mtime_ns
    for act in (lambda: run_sweep(sweep(), out, HERE), lambda: write_sweep(out)):
        with pytest.raises(FormatError) as raised:
            act()
        told.append(str(raised.value))
    assert told[0] == told[1]
    assert (out / "sweep.json").stat().st_mtime_ns == before
    return told[0]


@pytest.mark.parametrize(("change", "said"), DAMAGES)
def test_a_line_that_is_not_a_run_is_named(change, said, out):
    first, second = read_json_lines(out / TABLE)
    write_json_lines(out / TABLE, [first, change(second, first)])
    assert refused(out) == f"{out / TABLE}: line 2: {said}; remove it, and the sweep trains it again"


@pytest.mark.parametrize(
    ("change", "said"), [*DAMAGES, (lambda one, other: other, "its configuration is another run's")]
)
def test_a_file_that_is_not_a_run_is_named(change, said, out):
    other, one = read_json_lines(out / TABLE)
    first = as_killed(out)[0]  # of 1.0e-02, by name before 1.0e-03
    write_json(first, change(one, other))
    assert refused(out) == f"{first}: {said}; remove it, and the sweep trains it again"


def test_a_table_that_is_cut_or_changed_is_refused(out):
    whole = (out / TABLE).read_text()
    (out / TABLE).write_text(whole[:-100])
    assert refused(out).startswith(f"{out / TABLE}: line 2: not readable as JSON (")
    (out / TABLE).write_text(whole.replace('"lr": 0.01,', '"lr": 0.02,'))
    assert refused(out).startswith(f"{out / TABLE}: line 2: damaged, or changed by hand")
    (out / TABLE).write_text("PAR1")
    assert refused(out).startswith(f"{out / TABLE}: line 1: not readable as JSON (")


def test_a_missing_an_empty_and_a_foreign_table_are_one_line_each(out):
    again = f"`argap synthetics sweep CONFIG.yaml --out {out}` trains them"
    write_json(out / "sweep.json", {"sweep": {**SMALL, "lengths": [32], "run": {**RUN, "epochs": 1}}})
    with pytest.raises(MismatchError) as foreign:
        write_sweep(out)
    assert str(foreign.value) == f"{out / TABLE}: none of its 2 runs belongs to the grid of sweep.json; {again}"
    for change, said in ((lambda: (out / TABLE).write_text(""), "empty"), ((out / TABLE).unlink, "no such file")):
        change()
        with pytest.raises(ArgapError) as raised:
            write_sweep(out)
        assert str(raised.value) == f"{out / TABLE}: {said}; {again}"


OTHERS = [
    {"lengths": [32]},
    {"run": {**RUN, "epochs": 2}},
    {"tasks": ["induction"], "lengths": [8], "pairs": [], "run": {k: v for k, v in RUN.items() if k != "vocab_size"}},
]


@pytest.mark.parametrize("change", OTHERS)
def test_the_folder_of_another_sweep_is_left_as_it_is(change, out):
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    with pytest.raises(
        MismatchError, match=r"sweep.json is from another sweep, none of whose 2 runs belongs to this one"
    ):
        run_sweep(sweep(**change), out, HERE)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_a_changed_sweep_that_keeps_a_run_resumes(out):
    assert len(run_sweep(sweep(lrs=[1e-2, 1e-1]), out, HERE)) == 2
    assert [line["config"]["lr"] for line in read_json_lines(out / TABLE)] == [1e-2, 1e-1, 1e-3]


def test_a_dry_run_refuses_the_folder_of_another_sweep_and_a_broken_one(out):
    path = out / "small.yaml"
    path.write_text(yaml.safe_dump({**SMALL, "lengths": [32], "run": {**RUN, "epochs": 1}}))
    call = ["synthetics", "sweep", str(path), "--out", str(out), "--dry-run"]
    assert isinstance(CliRunner().invoke(app, call).exception, MismatchError)
    write_json(out / "sweep.json", {})
    said = str(CliRunner().invoke(app, call).exception)
    assert said.startswith(f"{out / 'sweep.json'}: expected a grid under the key sweep, found None; remove it, and")


def test_the_committed_sweeps_can_be_resumed():
    for name in ("figure2-small", "attention-64-epochs"):
        committed = load_sweep(ROOT / "suites" / "mqar" / f"{name}.yaml")
        folder = ROOT / "results" / "mqar" / name
        check_folder(committed, folder)
        assert [config.key for config in read_sweep(folder).configs()] == [c.key for c in committed.configs()]


def test_the_committed_runs_keep_their_hashes():
    """A run's identity is a hash of all that decides it, so that a resumed sweep finds these."""
    sweep = load_sweep(ROOT / "suites" / "mqar" / "figure2-small.yaml")
    table = ROOT / "results" / "mqar" / "figure2-small" / TABLE
    assert [config.as_json() for config in sweep.configs()] == [line["config"] for line in read_json_lines(table)]
    assert list(read_results(table.parent)) == [config.key for config in sweep.configs()]


@pytest.mark.parametrize("folder", sorted((ROOT / "results" / "mqar").glob("*/")), ids=lambda folder: folder.name)
def test_committed_tables_are_as_they_would_be_written(folder, tmp_path):
    shutil.copy(folder / TABLE, tmp_path)
    collect_runs(read_sweep(folder), tmp_path)
    assert (tmp_path / TABLE).read_bytes() == (folder / TABLE).read_bytes()


def test_a_full_disk_in_a_sweep_is_one_line_and_changes_nothing(tmp_path):
    """Writes beyond some bytes of a file fail, as on a full disk."""
    run_sweep(sweep(), tmp_path / "whole", HERE)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    small = (tmp_path / "whole" / TABLE).stat().st_size - 100
    resource.setrlimit(resource.RLIMIT_FSIZE, (small, before[1]))
    try:
        with pytest.raises(ArgapError, match=r"could not be written \(File too large\)"):
            run_sweep(sweep(), tmp_path / "out", HERE)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not list(tmp_path.rglob("*.tmp"))
    run_sweep(sweep(), tmp_path / "out", HERE)
    whole, again = (read_json_lines(folder / TABLE) for folder in (tmp_path / "whole", tmp_path / "out"))
    assert [{**one, "seconds": 0} for one in whole] == [{**one, "seconds": 0} for one in again]
