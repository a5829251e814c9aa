"""What the speed bench measures, how its command writes and draws it, and the benchmark of DeltaNet's forms."""

import hashlib
import importlib
import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from msgspec.structs import asdict, replace
from typer.testing import CliRunner

from argap.cli.models import app
from argap.errors import ArgapError
from argap.files.atomic import write_json
from argap.kernels.recurrent.delta_rule import delta_rule
from argap.models import speed as speed_module
from argap.models.speed import STEPS, WARM_TOKENS, WARM_UP, Mode, Speed, SpeedCase, measure, measure_apart
from argap.records import as_json
from argap.reports.figures.drawing import save
from argap.reports.tables.suites.speed import SpeedResult, read_speed, speed, write_speed
from tests.builders.processes import fork_server

CASE = SpeedCase("attention", "training", 16, 2, 32, 2, 64, "cpu", "float32")


def test_training_takes_the_median_of_the_steps_after_the_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    # The clock is read before and after each step: steps of 100, 100 (warm-up), 5, 1, 2, 9, 3 seconds.
    took = [100.0, 100.0, 5.0, 1.0, 2.0, 9.0, 3.0]
    assert len(took) == WARM_UP + STEPS
    ticks = iter([t for seconds in took for t in (0.0, seconds)])
    monkeypatch.setattr(speed_module, "_now", lambda device: next(ticks))
    found = measure(CASE)
    assert found.seconds == 3.0
    assert found.tokens_per_s == 16 * 2 / 3
    assert found.parameters == 64 * 32 + 2 * (4 * 32**2 + 3 * 32 * 128 + 2 * 32) + 32


def test_a_row_names_the_operators_that_ran_and_a_missing_backend_is_refused() -> None:
    assert measure(replace(CASE, backend="auto")).operators == "native"
    with pytest.raises(ArgapError, match="`backend=fla`: needs a GPU"):
        measure(replace(CASE, architecture="gla", backend="fla"))


def test_generation_counts_every_token_after_a_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter([0.0, 50.0, 100.0, 104.0])
    monkeypatch.setattr(speed_module, "_now", lambda device: next(ticks))
    steps = []
    step = speed_module.ArgapForCausalLM.step

    def counted(self: Any, ids: torch.Tensor, state: Any) -> Any:
        steps.append(ids.shape)
        return step(self, ids, state)

    monkeypatch.setattr(speed_module.ArgapForCausalLM, "step", counted)
    found = measure(replace(CASE, mode="generation", dtype="bfloat16"))
    assert (found.seconds, found.tokens_per_s) == (4.0, 8.0)
    assert steps == [(2,)] * (WARM_TOKENS + 16)
    assert found.graph is False  # on a CPU


def test_memory_is_that_of_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """8 M weights with their gradient and two moments are 128 MiB, whatever this process held before."""
    monkeypatch.setattr(speed_module, "get_context", fork_server)
    held = torch.ones(100 * 2**20)  # 400 MiB, which would hide them
    row = measure_apart(replace(CASE, hidden_size=8, vocab_size=2**20, length=2, batch=1))
    assert held[0] == 1
    assert 128 * 2**20 < row.peak_bytes < 350 * 2**20
    assert row.architecture == "attention"
    assert row.seconds is not None
    assert row.tokens_per_s == pytest.approx(2 / row.seconds)


def test_too_little_memory_is_a_row_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed_module, "exit_with_parent", lambda: None)
    # More than there are addresses: what the system promises beyond its memory, it would have to deliver.
    monkeypatch.setattr(speed_module, "ArgapForCausalLM", lambda config: torch.empty(2**60))
    ends: Any = Pipe(duplex=False)
    receiver, sender = ends
    speed_module._measure_in_worker(CASE, sender)
    row = receiver.recv()
    assert row.figures == ("out of memory", "")
    assert (row.tokens_per_s, row.architecture, row.length) == (None, "attention", 16)


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["training", "generation"])
def test_on_a_gpu(mode: Any) -> None:
    case = replace(CASE, mode=mode, hidden_size=64, device="cuda", dtype="bfloat16")
    row = measure_apart(case)
    assert row.seconds is not None
    assert row.parameters is not None
    assert row.tokens_per_s == pytest.approx(32 / row.seconds)
    assert row.peak_bytes > row.parameters * (16 if mode == "training" else 2)
    assert measure_apart(replace(case, hidden_size=2**14, vocab_size=2**24)).tokens_per_s is None


def rows() -> list[Speed]:
    fast = {"seconds": 1.0, "parameters": 5}
    modes: tuple[Mode, ...] = ("training", "generation")
    return [
        Speed(name, mode, length, 8 // (length // 64), 32, 2, 64, "cpu", "float32", **measured)
        for k, name in enumerate(("attention", "based"))
        for mode in modes
        for length, measured in (
            (64, {"tokens_per_s": 1000.0 * (k + 1), "peak_bytes": 2**24, **fast}),
            (128, {"tokens_per_s": 2000.0, "peak_bytes": 2**25, **fast} if k else {}),
        )
    ]


def bench() -> SpeedResult:
    return SpeedResult(1, 32, 2, 64, "CPU, 1 threads", "float32", False, "native", {}, None, rows())


def test_the_figure_shows_each_case_that_ran(tmp_path: Path) -> None:
    figure = speed(bench())
    training, generation = figure.axes[0], figure.axes[1]
    assert [axes.get_title(loc="left") for axes in (training, generation)] == ["Training", "Generation"]
    drawn = {line.get_label(): np.array(line.get_data()).tolist() for line in training.lines}
    assert drawn == {"attention": [[0], [1000]], "based": [[0, 1], [2000, 2000]]}
    below = figure.axes[2]
    assert [np.array(line.get_data())[1].tolist() for line in below.lines] == [[16], [16, 32]]  # MiB
    assert [label.get_text() for label in below.get_xticklabels()] == ["64\n× 8", "128\n× 4"]
    digests = [hashlib.sha256(save(speed(bench()), tmp_path / name, "speed").read_bytes()).hexdigest() for name in "ab"]
    assert digests[0] == digests[1]


def test_the_command_writes_what_it_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def measured(case: SpeedCase) -> Speed:
        asked.append((case.architecture, case.mode, case.length, case.batch, case.hidden_size))
        return replace(rows()[0], mode=case.mode, length=case.length)

    monkeypatch.setattr(speed_module, "measure_apart", measured)
    flags = ["attention", "based", "--train", "64x8", "--generate", "32X1", "--hidden-size", "48", "--device", "cpu"]
    result = CliRunner().invoke(app, ["bench", *flags, "--out", str(tmp_path), "--json"], catch_exceptions=False)
    assert result.exit_code == 0
    assert asked == [
        ("attention", "training", 64, 8, 48),
        ("based", "training", 64, 8, 48),
        ("attention", "generation", 32, 1, 48),
        ("based", "generation", 32, 1, 48),
    ]
    written = json.loads((tmp_path / "speed.json").read_text())
    assert written == json.loads(result.stdout)
    assert written["dtype"] == "float32"
    assert len(written["rows"]) == 4
    assert {path.name for path in tmp_path.iterdir()} == {"speed.json", "speed.svg"}
    only = CliRunner().invoke(app, ["bench", "based", "--generate", "8x1", "--out", str(tmp_path), "--device", "cpu"])
    assert "1,000 tokens/s" in only.stdout
    assert len(asked) == 5


FLAGS = ["attention", "based", "--generate", "8x1", "--generate", "16x1", "--hidden-size", "32", "--device", "cpu"]


def test_finished_cases_survive_an_interrupt_and_are_not_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    stop_before = 3

    def measured(case: SpeedCase) -> Speed:
        if len(asked) + 1 == stop_before:
            raise KeyboardInterrupt
        asked.append(case.in_words)
        figures: dict[str, Any] = (
            {} if case.length == 8 and case.architecture == "based" else {"tokens_per_s": 7.0, "seconds": 1.0}
        )
        return Speed(**asdict(case), **figures)

    def bench(*more: str) -> Any:
        return CliRunner().invoke(app, ["bench", *FLAGS, *more, "--out", str(tmp_path)], catch_exceptions=False)

    monkeypatch.setattr(speed_module, "measure_apart", measured)
    interrupted = bench()
    assert interrupted.exit_code == 130
    assert interrupted.stderr.splitlines()[-1].startswith("interrupted; finished cases are kept")
    kept = json.loads((tmp_path / "speed.json").read_text())["rows"]
    assert [(row["architecture"], row["length"]) for row in kept] == [("attention", 8), ("based", 8)]
    stop_before = 0
    again = bench()
    # That memory ran out may have changed since: the case is measured again.
    assert asked[2:] == ["based, generation, 8 x 1", "attention, generation, 16 x 1", "based, generation, 16 x 1"]
    assert again.stderr.splitlines()[0] == "1 of 4 cases were measured before; their figures are kept"
    written = json.loads((tmp_path / "speed.json").read_text())
    assert [(row["architecture"], row["length"]) for row in written["rows"]] == [
        *(("attention", 8), ("based", 8), ("attention", 16), ("based", 16))
    ]
    assert len(asked) == 5
    bench()
    assert asked[5:] == ["based, generation, 8 x 1"]
    bench("--layers", "2")
    assert len(asked) == 10
    bench()  # the file holds the other depth
    assert len(asked) == 14


@pytest.mark.parametrize("changed", ["device", "versions", "git", "dtype"])
def test_figures_of_another_machine_or_version_are_not_kept(changed: str, tmp_path: Path) -> None:
    case = replace(CASE, mode="generation")
    row = Speed(**asdict(case), tokens_per_s=7.0)
    result = write_speed([row], tmp_path)
    assert read_speed(case, tmp_path) == [row]
    other: Any = {"argap": "0"} if changed == "versions" else "another"
    write_json(tmp_path / "speed.json", as_json(replace(result, **{changed: other})), seal=False)
    assert read_speed(case, tmp_path) == []


@pytest.mark.slow
def test_ctrl_c_ends_the_process_that_measures(tmp_path: Path) -> None:
    """A terminal sends the signal to both processes; the measuring one prints nothing and does not go on."""
    flags = ["attention", "--generate", "1x1", "--generate", "1000000x1", "--device", "cpu"]
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTIBLE, "models", "bench", *flags, "--out", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stderr is not None
    try:
        first = process.stderr.readline()
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=120)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert first.startswith("1 of 2: attention, generation, 1 x 1: ")
    assert (process.returncode, out) == (130, "")
    assert err == "interrupted; finished cases are kept, the same command measures the others\n"
    assert len(json.loads((tmp_path / "speed.json").read_text())["rows"]) == 1


INTERRUPTIBLE = """
import signal
if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    from argap.cli import main
    main()
"""


def test_help_stays_light() -> None:
    code = "import sys; import argap.cli.models; sys.exit('torch' in sys.modules or 'matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_both_forms_compute_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[3] / "benchmarks")
    case = importlib.import_module("kernel_case")
    cases = importlib.import_module("kernel_cases.delta_rule")
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 70, 3, 8) for _ in range(3))
    q, k, beta = F.normalize(q, dim=-1), F.normalize(k, dim=-1), torch.rand(2, 70, 3)
    chunkwise, recurrent = case.turned(delta_rule, q, k, v, beta), cases.recurrent(q, k, v, beta)
    torch.testing.assert_close(chunkwise, recurrent, rtol=1e-4, atol=1e-4)
    made = cases.case("delta rule", (q, k, v, beta), {})
    assert made.check(chunkwise) < 1e-5
    assert made.check(recurrent) < 1e-5
    assert made.check(recurrent + 0.1 * v) > 1e-2
