"""Suites and sweeps on a Ray cluster of two nodes that loses a node or a worker: the result stays the same."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from argap.cli import app
from argap.files.atomic import read_json
from argap.runtime.cluster import connect, run_on_ray
from argap.synthetics.sweeps.jobs import run_sweep
from argap.synthetics.sweeps.sweep import load_sweep
from tests.builders.sweeps import HERE

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # Ray's own
VOLATILE = {"date", "run", "folder", "versions", "checksum"}


class Cluster:
    """Two nodes of a core each, so that two tasks run at a time, one on each."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster  # pyright: ignore[reportMissingImports]

        self._cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
        self._cluster.add_node(num_cpus=1)
        self.address: str = self._cluster.address
        self.lost = threading.Event()

    def lose(self, what: str, when: Callable[[], bool]) -> None:
        """End the second node, with its raylet and workers, or one worker, once ``when`` holds."""

        def wait() -> None:
            while not when():
                time.sleep(0.01)
            if what == "node":
                node = next(node for node in self._cluster.list_all_nodes() if node is not self._cluster.head_node)
                self._cluster.remove_node(node, allow_graceful=False)
            else:
                while not killed_one():
                    time.sleep(0.01)
            self.lost.set()

        threading.Thread(target=wait, daemon=True).start()

    def shutdown(self) -> None:
        self._cluster.shutdown()


def busy_workers() -> list[Any]:
    """The processes that run a task; Ray names them after it."""
    import psutil

    named = ((each, (each.info["cmdline"] or [""])[0]) for each in psutil.process_iter(["cmdline"]))
    return [each for each, name in named if name.startswith("ray::call_with_trust")]


def killed_one() -> bool:
    """Kill a worker that runs a task. False where there was none, or it ended first."""
    import psutil

    try:
        busy_workers()[0].kill()
    except (IndexError, psutil.NoSuchProcess):
        return False
    return True


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    ray = pytest.importorskip("ray")
    made = Cluster()
    yield made
    ray.shutdown()
    made.shutdown()


def plain(value: Any) -> Any:
    """JSON without what differs between two runs, floats to nine digits."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items() if key not in VOLATILE}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return float(f"{value:.9g}") if isinstance(value, float) else value


def run(*command: str) -> None:
    done = CliRunner().invoke(app, list(command))
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize("what", ["node", "worker"])
def test_a_suite_survives_the_loss(cluster: Cluster, tmp_path: Path, what: str) -> None:
    """While each of the two nodes trains a model."""
    (tmp_path / "text").mkdir()
    for k in range(6):
        (tmp_path / "text" / f"{k}.txt").write_text(
            "".join(f"Letter {k * i % 7} came to Ann on day {i}. " for i in range(90))
        )
    members = ("attention", "base_conv", "hyena", "h3")
    train = {
        "tokenizer": str(Path(__file__).parents[2] / "argap" / "demo" / "tokenizer"),
        "data": [str(tmp_path / "text")],
    }
    train |= {"seq_len": 64, "batch_size": 4, "steps": 60, "warmup_steps": 1, "checkpoint_every": 10}
    suite = {
        "reference": "attention",
        "train": train,
        "sizes": {"tiny": {"hidden_size": 16, "num_layers": 2}},
        "evaluation": {"data": [str(tmp_path / "text")], "seq_len": 64},
        "members": dict.fromkeys(members),
    }
    path = tmp_path / "suite.yaml"
    path.write_text(yaml.safe_dump(suite))
    run("suite", "run", str(path), "--work", str(tmp_path / "a"), "--out", str(tmp_path / "whole"), "--device", "cpu")
    work = tmp_path / "b"

    def two_train() -> bool:
        checkpoints = [len(list((work / "tiny" / name / "checkpoints").glob("step-*"))) for name in members]
        return sum(number > 0 for number in checkpoints) >= 2

    cluster.lose(what, two_train)
    command = ["suite", "run", str(path), "--work", str(work), "--out", str(tmp_path / "lost"), "--device", "cpu"]
    run(*command, "--engine", "ray", "--address", cluster.address)
    assert cluster.lost.is_set()
    whole, lost = (read_json(tmp_path / name / "tiny" / "gap.json") for name in ("whole", "lost"))
    assert plain(lost) == plain(whole)


@pytest.mark.parametrize("what", ["node", "worker"])
def test_a_sweep_survives_the_loss(cluster: Cluster, tmp_path: Path, what: str) -> None:
    """Once a run is finished, and before the last one is."""
    sizes = {"vocab_size": 32, "train_examples": 64, "validation_examples": 16, "test_examples": 16, "batch_size": 8}
    sweep = {
        "members": dict.fromkeys(("attention", "hyena", "base_conv", "h3")),
        "lengths": [16],
        "widths": [8, 16],
        "pairs": [2],
        "lrs": [0.01, 0.001],
        "run": sizes | {"epochs": 20},
    }
    (tmp_path / "sweep.yaml").write_text(json.dumps(sweep))
    loaded = load_sweep(tmp_path / "sweep.yaml")
    out = tmp_path / "lost"
    left: list[int] = []

    def begun() -> bool:
        finished = len(list(out.glob("runs/*.json")))
        if finished:
            left.append(len(loaded.configs()) - finished)
        return bool(finished)

    cluster.lose(what, begun)
    run_sweep(loaded, out, partial(run_on_ray, connect(cluster.address), "cpu"), together=1)
    assert cluster.lost.wait(60)
    assert left[0] > 0
    run_sweep(loaded, tmp_path / "whole", HERE, together=1)
    whole, lost = ({p.name: read_json(p) for p in folder.glob("runs/*.json")} for folder in (tmp_path / "whole", out))
    assert len(whole) == len(loaded.configs())
    assert {name: timeless(run) for name, run in lost.items()} == {name: timeless(run) for name, run in whole.items()}


def timeless(run: dict[str, Any]) -> Any:
    """A run's results without how long it took."""
    return plain({key: value for key, value in run.items() if "second" not in key})
