"""The folder of a sweep: after a kill, with broken files, and of another sweep."""

import json
import resource
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from typer.testing import CliRunner

from argap.cli import app
from argap.errors import ArgapError, FormatError, MismatchError
from argap.files.atomic import read_json, write_json
from argap.files.configs import build
from argap.reports.figures.mqar import write_sweep
from argap.synthetics.sweeps.jobs import run_sweep
from argap.synthetics.sweeps.store import check_folder, read_runs, read_sweep, run_path
from argap.synthetics.sweeps.sweep import Sweep, load_sweep
from tests.synthetics.conftest import HERE, ROOT, RUN

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


def test_what_is_finished_is_drawn_after_a_kill(out):
    """A kill leaves the finished runs and no table of them."""
    whole = pd.read_parquet(out / "runs.parquet")
    (out / "runs.parquet").unlink()
    first, second = sweep().configs()
    run_path(out, second).unlink()
    solved, text = write_sweep(out)
    assert "| 16 | 2 | attention |" in text
    assert read_runs(out).to_numpy().tolist() == whole[whole["key"] == first.key].to_numpy().tolist()
    assert len(pd.read_parquet(out / "runs.parquet")) == len(solved) == 1


def test_a_stale_table_is_rebuilt(out):
    (out / "runs.parquet").write_text("half a table")
    assert read_runs(out)["epochs"].tolist() == [1, 1]  # two steps of two in an epoch


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda one, other: {}, "Object missing required field `config`"),
        (
            lambda one, other: {key: one[key] for key in ("config", "accuracy")},
            "Object missing required field `validation_accuracy`",
        ),
        (lambda one, other: other, "its configuration is another run's"),
        (lambda one, other: one | {"more": 1}, "Object contains unknown field `more`"),
        (lambda one, other: one | {"steps": -1}, "Expected `int` >= 0 - at `$.steps`"),
        (lambda one, other: one | {"flops": 2**63}, "Expected `int` <= 9223372036854775807 - at `$.flops`"),
    ],
)
def test_a_file_that_is_not_a_run_is_named(change, said, out):
    first, second = (run_path(out, config) for config in sweep().configs())
    write_json(first, change(read_json(first), read_json(second)))
    for act in (lambda: run_sweep(sweep(), out, HERE), lambda: write_sweep(out)):
        with pytest.raises(FormatError) as raised:
            act()
        assert str(raised.value) == f"{first}: {said}; remove it, and the sweep trains it again"


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
    assert len(list((out / "runs").iterdir())) == 3


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
    """The file's name is a hash of all that decides a run: these are of the committed sweep."""
    sweep = load_sweep(ROOT / "suites" / "mqar" / "figure2-small.yaml")
    folder = ROOT / "results" / "mqar" / "figure2-small"
    records = {path.stem: json.loads(path.read_text())["config"] for path in (folder / "runs").glob("*.json")}
    found = [config for config in sweep.configs() if run_path(folder, config).exists()]
    assert len(found) == len(records) == 120
    assert all(config.as_json() == records[config.key] for config in found)


def test_a_full_disk_in_a_sweep_is_one_line_and_changes_nothing(tmp_path):
    """Writes beyond some bytes of a file fail, as on a full disk."""
    run_sweep(sweep(), tmp_path / "whole", HERE)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    small = min(path.stat().st_size for path in (tmp_path / "whole" / "runs").iterdir()) - 1
    resource.setrlimit(resource.RLIMIT_FSIZE, (small, before[1]))
    try:
        with pytest.raises(ArgapError, match=r"could not be written \(File too large\)"):
            run_sweep(sweep(), tmp_path / "out", HERE)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not list(tmp_path.rglob("*.tmp"))
    run_sweep(sweep(), tmp_path / "out", HERE)
    for config in sweep().configs():
        whole, again = (read_json(run_path(folder, config)) for folder in (tmp_path / "whole", tmp_path / "out"))
        assert {**whole, "seconds": 0} == {**again, "seconds": 0}
