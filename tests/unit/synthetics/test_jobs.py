"""Jobs of a sweep: resumed, on several devices, and on Ray. All engines write the same files."""

import itertools
import os
import socket
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
import torch
import yaml
from typer.testing import CliRunner

from argap.cli import app
from argap.errors import ArgapError
from argap.files.atomic import read_json_lines, write_json_lines
from argap.runtime import jobs as engines
from argap.runtime.cluster import connect, run_on_ray, task_device
from argap.runtime.jobs import devices_of, run_on
from argap.runtime.trust import trusting
from argap.synthetics.sweeps import jobs
from argap.synthetics.sweeps.jobs import Job, pending_jobs, run_sweep
from argap.synthetics.sweeps.store import TABLE, read_results, read_runs, write_run
from argap.synthetics.sweeps.sweep import Sweep, load_sweep
from tests.builders.processes import fork_server
from tests.builders.sweeps import CPU, HERE

TWO = partial(run_on, [CPU, CPU])


MIXERS = '''
import os
import time
from pathlib import Path

from argap.models.mixers.gla import GLA

HERE = Path(__file__).parent


class Tells(GLA):
    """Leaves the number of the process that trains it."""

    def forward(self, x):
        (HERE / f"{os.getpid()}.process").touch()
        return super().forward(x)


class Lasts(Tells):
    """Trains for minutes, also on a fast machine."""

    def forward(self, x):
        time.sleep(0.02)
        return super().forward(x)


class Dies(GLA):
    """Kills the process that first trains it."""

    def __init__(self, *given, **named):
        super().__init__(*given, **named)
        if not (HERE / "died").exists():
            (HERE / "died").touch()
            os._exit(1)
'''


@pytest.fixture(scope="module")
def mixers(tmp_path_factory):
    """Folder of a module of mixers that this process and those it starts can import."""
    folder = tmp_path_factory.mktemp("mixers")
    (folder / "mixers_for_sweeps.py").write_text(MIXERS)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        patch.delitem(sys.modules, "mixers_for_sweeps", raising=False)  # of another folder, before and after
        patch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)  # what the nodes of a cluster begin with
        yield folder


@pytest.fixture(autouse=True)
def own_mixers_are_trusted():
    with trusting():
        yield


@pytest.fixture(autouse=True)
def no_traces(mixers):
    for path in [*mixers.glob("*.process"), *mixers.glob("died")]:
        path.unlink()


@pytest.fixture
def sweep_file(tmp_path):
    """Two members at two widths, each a group of two learning rates of two steps."""
    run = {"vocab_size": 32, "train_examples": 32, "validation_examples": 8, "test_examples": 8, "batch_size": 16}
    members = {"tells": {"mixers": ["mixers_for_sweeps:Tells"]}, "attention": None}
    asked = {"members": members, "lengths": [16], "widths": [8, 16], "pairs": [2], "lrs": [1e-3, 1e-2]}
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump({**asked, "run": {**run, "epochs": 1}}))
    return tmp_path / "tiny.yaml"


@pytest.fixture
def sweep(sweep_file) -> Sweep:
    return load_sweep(sweep_file)


@pytest.fixture
def quick_start(monkeypatch):
    monkeypatch.setattr(engines, "START_METHOD", fork_server().get_start_method())


def one_member(sweep: Sweep, mixer: str, **run) -> Sweep:
    return replace(sweep, members={"one": {"mixers": [mixer]}}, run={**sweep.run, **run})


def endless(sweep: Sweep) -> Sweep:
    """Two groups that take many minutes each, and tell that they have begun."""
    return one_member(sweep, "mixers_for_sweeps:Lasts", epochs=10_000)


def results(out: Path) -> dict[str, dict]:
    """The runs that are there, without the time they took."""
    return {key: result.as_json() | {"seconds": None} for key, result in read_results(out).items()}


def processes(mixers: Path) -> set[str]:
    return {path.stem for path in mixers.glob("*.process")}


def test_a_job_is_what_is_left_of_a_group(sweep, tmp_path):
    run_sweep(sweep, tmp_path, HERE)
    first, second = sweep.groups()[0]
    assert pending_jobs(sweep, tmp_path, together=64) == []
    lines = read_json_lines(tmp_path / TABLE)
    write_json_lines(tmp_path / TABLE, [lines[0], *lines[2:]])
    (part,) = pending_jobs(sweep, tmp_path, together=64)
    assert part == Job((second,), (first, second), False, tmp_path)
    # Once the first run has solved the task, nothing is left of a group that it ends; so also in a part made before.
    write_json_lines(tmp_path / TABLE, [lines[0] | {"stopped": "solved"}, *lines[2:]])
    assert pending_jobs(replace(sweep, first_ends=True), tmp_path, together=64) == []
    write_run(tmp_path, read_results(tmp_path)[first.key])
    assert part.unfinished() == [second]
    assert replace(part, first_ends=True).unfinished() == []
    write_run(tmp_path, msgspec.structs.replace(read_results(tmp_path)[first.key], config=second))
    assert part.unfinished() == []


def test_a_large_group_is_several_jobs(sweep, tmp_path):
    many = replace(sweep, seeds=(0, 1))  # 4 groups of 4 runs
    assert [len(part.runs) for part in pending_jobs(many, tmp_path, together=3)] == [3, 1] * 4


def test_a_job_trains_what_is_left_unless_it_is_over(sweep, tmp_path, monkeypatch):
    trained = []
    monkeypatch.setattr(jobs, "train_group", lambda runs, device, **told: trained.append((runs, told)))
    job = replace(pending_jobs(sweep, tmp_path, together=64)[0], first_ends=True, compiled=True)

    def go_on() -> bool:
        return False

    job.run(CPU, go_on)
    ((runs, told),) = trained
    assert (tuple(runs), told["first_ends"], told["compiled"], told["stop"]) == (job.runs, True, True, go_on)
    job.run(CPU, lambda: True)
    replace(job, runs=()).run(CPU, go_on)
    assert len(trained) == 1


def test_two_processes_write_what_one_writes(quick_start, sweep, mixers, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 2)  # a thread for each process, as in this one
    one = run_sweep(sweep, tmp_path / "one", HERE)
    (here,) = processes(mixers)
    two = run_sweep(sweep, tmp_path / "two", TWO)
    assert processes(mixers) > {here}
    assert results(tmp_path / "two") == results(tmp_path / "one")
    assert two.drop(columns="seconds").equals(one.drop(columns="seconds"))


def test_processes_stop_when_asked_to(quick_start, sweep, mixers, tmp_path):
    assert len(run_sweep(endless(sweep), tmp_path, TWO, stop=lambda: len(processes(mixers)) == 2)) == 0


def test_a_lost_process_is_one_line_and_the_next_run_resumes(quick_start, sweep, tmp_path):
    dies = one_member(sweep, "mixers_for_sweeps:Dies")
    with pytest.raises(ArgapError, match="a worker process was lost"):
        run_sweep(dies, tmp_path, TWO)
    assert len(run_sweep(dies, tmp_path, HERE)) == 4


def test_what_training_raises_in_a_process_is_raised_here(quick_start, sweep, tmp_path):
    with pytest.raises(ArgapError, match="nobody"):
        run_sweep(one_member(sweep, "nobody"), tmp_path, TWO)


@pytest.mark.parametrize(("gpus", "found"), [(0, ["cpu"]), (1, ["cuda"]), (3, ["cuda:0", "cuda:1", "cuda:2"])])
def test_all_gpus_are_used_where_no_device_is_named(gpus, found, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    assert [str(device) for device in devices_of("auto")] == found
    assert devices_of("cpu") == [CPU]
    if gpus:
        assert devices_of("cuda") == [torch.device("cuda")]


def call(*arguments):
    return CliRunner().invoke(app, ["synthetics", "sweep", *map(str, arguments)])


def test_an_address_needs_ray(sweep_file):
    assert "--address: has no effect with --engine local" in str(call(sweep_file, "--address", "auto").exception)


def test_without_ray_it_says_how_to_install_it(sweep_file, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    result = call(sweep_file, "--engine", "ray", "--out", tmp_path / "out")
    assert "pip install argap[cluster]" in str(result.exception)
    assert not (tmp_path / "out").exists()


def test_a_task_has_a_gpu_where_the_cluster_has_one(capsys):
    with_gpus, without = (SimpleNamespace(cluster_resources=lambda r=r: r) for r in ({"CPU": 4.0, "GPU": 2.0}, {}))
    assert task_device(with_gpus, "auto") == "cuda"
    assert task_device(with_gpus, "cpu") == "cpu"
    assert task_device(without, "cuda") == "cuda"
    assert capsys.readouterr().err == ""
    assert task_device(without, "auto") == "cpu"
    assert "has no GPU" in capsys.readouterr().err
    with pytest.raises(ArgapError, match="`device=cuda:1`: expected auto, cpu or cuda; Ray chooses"):
        task_device(with_gpus, "cuda:1")


def test_a_folder_that_the_nodes_do_not_share_is_found_out(sweep, tmp_path):
    """A task that has ended, and none of its files here."""
    task = SimpleNamespace(remote=lambda *_: object())
    ray = SimpleNamespace(
        remote=lambda **_: lambda _: task,
        wait=lambda tasks, **_: (tasks, []),
        get=lambda _: None,
        cancel=lambda _: None,
    )
    with pytest.raises(ArgapError, match=rf"^{tmp_path}: lacks the files of .* a folder that all nodes"):
        run_sweep(sweep, tmp_path, partial(run_on_ray, ray, "cpu"))


@pytest.fixture(scope="module")
def resumable_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("sweep") / "tiny.yaml"
    run = {"vocab_size": 32, "train_examples": 32, "validation_examples": 8, "test_examples": 8, "batch_size": 16}
    asked = {"members": {"attention": None, "base_conv": {"mlp": True}}, "lengths": [16], "widths": [8, 16]}
    path.write_text(yaml.safe_dump({**asked, "pairs": [2], "lrs": [1e-3, 1e-2], "run": {**run, "epochs": 1}}))
    return path


def test_a_sweep_resumes_where_it_stopped(resumable_file, tmp_path, capsys):
    sweep = load_sweep(resumable_file)
    first = run_sweep(sweep, tmp_path, HERE, stop=lambda: len(list(tmp_path.glob("runs/*"))) == 2)
    assert len(first) == 2
    assert "are finished" not in capsys.readouterr().err
    written = read_json_lines(tmp_path / TABLE)
    whole = run_sweep(sweep, tmp_path, HERE)
    assert len(whole) == len(sweep.configs()) == 8
    said = capsys.readouterr().err
    assert f"{tmp_path}: 2 of 8 runs are finished" in said
    for done, (name, width) in ((4, ("base_conv", 8)), (6, ("attention", 16)), (8, ("base_conv", 16))):
        best = whole[(whole["name"] == name) & (whole["width"] == width)]["accuracy"].max()
        assert f"{done} of 8: {name}, N 16, width {width}: {best:.3f} at lr" in said
    assert read_json_lines(tmp_path / TABLE)[:2] == written
    assert read_runs(tmp_path).to_dict() == whole.to_dict()
    assert set(written[0]["slices"]) == {"distance", "pairs"}


def test_a_sweep_that_is_stopped_within_a_job_has_none_of_its_runs(resumable_file, tmp_path):
    asked = itertools.count(1)
    assert run_sweep(load_sweep(resumable_file), tmp_path, HERE, stop=lambda: next(asked) > 2).empty


def test_a_group_that_one_run_solved_is_skipped(resumable_file, tmp_path):
    """Where the first to solve the task ends the group, a rate that is added later is not trained."""
    sweep = replace(load_sweep(resumable_file), first_ends=True, lrs=(1e-3,))
    run_sweep(sweep, tmp_path, HERE)
    first, *others = read_json_lines(tmp_path / TABLE)
    write_json_lines(tmp_path / TABLE, [first | {"stopped": "solved"}, *others])
    whole = run_sweep(replace(sweep, lrs=(1e-3, 1e-2)), tmp_path, HERE)
    groups = whole.groupby(["name", "width"])["stopped"].agg(["count", lambda stopped: "solved" in set(stopped)])
    assert sorted(groups.to_numpy().tolist()) == [[1, True], [2, False], [2, False], [2, False]]


@pytest.fixture(scope="module")
def ray(mixers):
    """A cluster of two nodes of a core each; it finds modules where this process did when it was begun."""
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster  # pyright: ignore[reportMissingImports]

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    made.add_node(num_cpus=1)
    yield connect(made.address)
    ray.shutdown()
    made.shutdown()


def test_an_address_where_nothing_listens_is_refused():
    ray = pytest.importorskip("ray")
    assert not ray.is_initialized()  # this test comes before the cluster's
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # a port that nobody else has, and that does not listen
        with pytest.raises(ArgapError, match="no Ray cluster answers"):
            connect(f"127.0.0.1:{taken.getsockname()[1]}")


@pytest.mark.filterwarnings("ignore")
def test_a_cluster_writes_what_one_process_writes(ray, sweep, sweep_file, mixers, tmp_path):
    one = run_sweep(sweep, tmp_path / "one", HERE)
    (here,) = processes(mixers)
    result = call(sweep_file, "--engine", "ray", "--device", "cpu", "--out", tmp_path / "two")
    assert result.exit_code == 0, result.output
    assert "8 of 8 runs finished" in result.stdout
    assert "8 of 8: " in result.stderr
    assert processes(mixers) > {here}
    assert results(tmp_path / "two") == results(tmp_path / "one")
    assert len(one) == 8


@pytest.mark.filterwarnings("ignore")
def test_a_job_whose_worker_is_lost_is_restarted(ray, sweep, mixers, tmp_path):
    dies = one_member(sweep, "mixers_for_sweeps:Dies")
    assert len(run_sweep(dies, tmp_path, partial(run_on_ray, ray, "cpu"))) == 4
    assert (mixers / "died").exists()


@pytest.mark.filterwarnings("ignore")
def test_a_cluster_stops_when_asked_to_and_resumes(ray, sweep, mixers, tmp_path):
    engine = partial(run_on_ray, ray, "cpu")
    assert len(run_sweep(endless(sweep), tmp_path / "one", engine, stop=lambda: len(processes(mixers)) == 2)) == 0
    out = tmp_path / "two"
    assert len(run_sweep(sweep, out, engine, stop=lambda: len(list(out.glob("runs/*"))) > 1)) > 1
    assert len(run_sweep(sweep, out, engine)) == 8


@pytest.mark.filterwarnings("ignore")
def test_what_training_raises_on_a_cluster_is_raised_here(ray, sweep, tmp_path):
    with pytest.raises(ArgapError, match="nobody"):
        run_sweep(one_member(sweep, "nobody"), tmp_path, partial(run_on_ray, ray, "cpu"))
