"""Configurations of a kernel compile together before the first is timed."""

from collections.abc import Iterator
from typing import Any

import pytest
from triton.runtime._async_compile import active_mode
from triton.runtime.autotuner import Autotuner, Config

from argap.train import autotuning


class Kernel:
    """Stands for a compiled function: notes what is asked of it."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def run(self, x: int, *, BLOCK: int, num_warps: int, grid: Any, warmup: bool, **options: Any) -> None:
        name = f"{BLOCK}x{num_warps}"
        if not warmup:
            self.events.append(f"run {name} on {x}")
            return
        mode = active_mode.get()
        assert mode is not None
        mode.submit(name, lambda: self.compile(name), lambda kernel: self.events.append(f"compiled {name}"))

    def compile(self, name: str) -> str:
        if name == "64x8":
            raise RuntimeError("too large")
        return name


def body(x: int, BLOCK: int) -> None: ...


@pytest.fixture
def patched() -> Iterator[None]:
    before = Autotuner.prune_configs
    autotuning.compile_at_once()
    yield
    Autotuner.prune_configs = before


def tuner(kernel: Kernel, **options: Any) -> Autotuner:
    kernel.fn = body  # type: ignore[attr-defined]
    configs = [Config({"BLOCK": block}, num_warps=warps) for block in (32, 64) for warps in (4, 8)]
    times = {"32x4": 3.0, "32x8": 2.0, "64x4": 1.0, "64x8": 9.0}

    def bench(call: Any, quantiles: Any) -> list[float]:
        call()
        return [times[kernel.events[-1].split()[1]]] * 3

    return Autotuner(kernel, ["x"], configs, ["x"], None, None, do_bench=bench, **options)


@pytest.mark.usefixtures("patched")
def test_all_configurations_compile_before_the_first_is_timed_and_the_fastest_runs() -> None:
    kernel = Kernel()
    found = tuner(kernel)
    found.run(7, grid=(1,), warmup=False)
    compiled, ran = kernel.events[:3], kernel.events[3:]
    assert sorted(compiled) == ["compiled 32x4", "compiled 32x8", "compiled 64x4"]
    assert ran == [f"run {name} on 7" for name in ("32x4", "32x8", "64x4", "64x8", "64x4")]
    found.run(7, grid=(1,), warmup=False)
    assert kernel.events[8:] == ["run 64x4 on 7"]


@pytest.mark.usefixtures("patched")
def test_pruned_configurations_are_not_compiled() -> None:
    kernel = Kernel()
    small = {"early_config_prune": lambda configs, nargs, **kwargs: [c for c in configs if c.kwargs["BLOCK"] == 32]}
    tuner(kernel, prune_configs_by=small).run(7, grid=(1,), warmup=False)
    assert not any("64" in event for event in kernel.events)
    assert len([event for event in kernel.events if event.startswith("compiled")]) == 2


@pytest.mark.usefixtures("patched")
def test_configurations_are_timed_briefly_unless_the_kernel_says_how() -> None:
    own, default = tuner(Kernel()), tuner(Kernel())
    default._do_bench = None
    timer = own._do_bench
    for each in (own, default):
        each.nargs = {"x": 7}
        each.prune_configs({"grid": (1,), "warmup": False})
    assert own._do_bench is timer
    assert getattr(default.do_bench, "keywords", None) == {"warmup": autotuning.WARM_UP_MS, "rep": autotuning.TIMED_MS}
