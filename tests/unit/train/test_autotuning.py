"""A recorded configuration runs untimed; without one, all of a kernel compile together before the first is timed."""

import ast
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from triton.compiler.errors import CompileTimeAssertionFailure
from triton.runtime._async_compile import active_mode
from triton.runtime.autotuner import Autotuner, Config
from triton.runtime.errors import OutOfResources, PTXASError

from argap.models.fla import autotuning
from argap.models.fla.tuned import Launch, Tuned

TIMES = {"32x4": 3.0, "32x8": 2.0, "64x4": 1.0, "64x8": 9.0}
"""Of each configuration; 64x8 does not compile."""
UNCOMPILED = (
    OutOfResources(300_000, 232_448, "shared memory"),
    PTXASError("registers"),
    CompileTimeAssertionFailure("", ast.Pass()),
)


class Kernel:
    """Stands for a compiled function: notes what is asked of it."""

    def __init__(self, error: Exception = UNCOMPILED[0]) -> None:
        self.events: list[str] = []
        self.error = error

    def run(self, B: int, K: int, *, BLOCK: int, num_warps: int, grid: Any, warmup: bool, **options: Any) -> Any:
        name = f"{BLOCK}x{num_warps}"
        if not warmup:
            self.events.append(f"run {name} on {B} {K}")
            return None
        if (mode := active_mode.get()) is not None:
            mode.submit(name, lambda: self.compile(name), lambda kernel: self.events.append(f"compiled {name}"))
        return SimpleNamespace(_init_handles=lambda: self.compile(name))

    def compile(self, name: str) -> str:
        if name == "64x8":
            raise self.error
        return name

    def of(self, kind: str) -> list[str]:
        return [event for event in self.events if event.startswith(kind)]


def body(B: int, K: int, BLOCK: int) -> None: ...


def recorded(B: int, K: int, **config: int) -> tuple[Launch, dict[str, int]]:
    return Launch(f"{__name__}.body", {"B": B, "K": K}, ()), {"num_ctas": 1, "num_stages": 3, **config}


@pytest.fixture
def record(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Autotuners as `compile_at_once` leaves them, and a function that records choices for a class of GPUs."""
    tables: dict[str, Tuned] = {}
    monkeypatch.setattr(autotuning, "tuned_for", lambda gpus: tables.get(gpus, Tuned()))
    monkeypatch.setattr(autotuning, "_choosing", [])
    monkeypatch.setattr(autotuning, "_uncompiled", {})
    before = Autotuner.prune_configs, Autotuner._bench
    autotuning.compile_at_once()
    here = autotuning._device_class()
    yield lambda *choices, gpus=here: tables.update({gpus: Tuned(choices)})
    Autotuner.prune_configs, Autotuner._bench = before


def tuner(kernel: Kernel, **options: Any) -> Autotuner:
    kernel.fn = body  # type: ignore[attr-defined]
    configs = [Config({"BLOCK": block}, num_warps=warps) for block in (32, 64) for warps in (4, 8)]

    def bench(call: Any, quantiles: Any) -> list[float]:
        call()
        return [TIMES[kernel.events[-1].split()[1]]] * 3

    return Autotuner(kernel, ["B", "K"], configs, ["B", "K"], None, None, do_bench=bench, **options)


def launch(kernel: Kernel, B: int = 2, K: int = 7, **options: Any) -> None:
    tuner(kernel, **options).run(B, K, grid=(1,), warmup=False)


def searched(kernel: Kernel) -> bool:
    return [event.split()[1] for event in kernel.of("run")] == ["32x4", "32x8", "64x4", "64x8", "64x4"]


@pytest.mark.usefixtures("record")
def test_all_configurations_compile_before_the_first_is_timed_and_the_fastest_runs() -> None:
    kernel = Kernel()
    found = tuner(kernel)
    found.run(2, 7, grid=(1,), warmup=False)
    compiled, ran = kernel.events[:3], kernel.events[3:]
    assert sorted(compiled) == ["compiled 32x4", "compiled 32x8", "compiled 64x4"]
    assert ran == [f"run {name} on 2 7" for name in ("32x4", "32x8", "64x4", "64x8", "64x4")]
    found.run(2, 7, grid=(1,), warmup=False)
    assert kernel.events[8:] == ["run 64x4 on 2 7"]


@pytest.mark.usefixtures("record")
def test_pruned_configurations_are_not_compiled() -> None:
    kernel = Kernel()
    launch(
        kernel,
        prune_configs_by={
            "early_config_prune": lambda configs, *_, **__: [c for c in configs if c.kwargs["BLOCK"] == 32]
        },
    )
    assert sorted(kernel.of("compiled")) == ["compiled 32x4", "compiled 32x8"]
    assert not any("64" in event for event in kernel.events)


@pytest.mark.usefixtures("record")
def test_what_pruning_leaves_no_choice_is_no_choice_made_here() -> None:
    kernel = Kernel()
    launch(kernel, prune_configs_by={"early_config_prune": lambda configs, *_, **__: configs[:1]})
    assert kernel.events == ["run 32x4 on 2 7"]
    assert not list(autotuning.chosen_here())


@pytest.mark.usefixtures("record")
def test_a_choice_that_triton_kept_on_disk_compiles_no_other_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    def kept(self: Autotuner, key: tuple[Any, ...], configs: list[Config], bench: Callable[[], None]) -> bool:
        self.cache[key] = configs[0]
        return True

    monkeypatch.setattr(Autotuner, "check_disk_cache", kept)
    kernel = Kernel()
    keeping = tuner(kernel)
    keeping.cache_results = True
    keeping.run(2, 7, grid=(1,), warmup=False)
    assert kernel.events == ["run 32x4 on 2 7"]
    assert list(autotuning.chosen_here()) == [recorded(2, 7, BLOCK=32, num_warps=4)]


@pytest.mark.usefixtures("record")
def test_configurations_are_timed_briefly_unless_the_kernel_says_how(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}
    monkeypatch.setattr(autotuning, "do_bench", lambda call, **options: asked.update(options) or [1.0] * 3)
    kernel, own = Kernel(), Kernel()
    default = tuner(kernel)
    default._do_bench = None
    launch(own)
    assert not asked
    default.run(2, 7, grid=(1,), warmup=False)
    assert asked == {"warmup": autotuning.WARM_UP_MS, "rep": autotuning.TIMED_MS, "quantiles": (0.5, 0.2, 0.8)}


def test_a_recorded_configuration_runs_untimed(record: Callable[..., None]) -> None:
    record(recorded(2, 7, BLOCK=32, num_warps=8))
    kernel = Kernel()
    launch(kernel)
    assert kernel.events == ["run 32x8 on 2 7"]  # the slower one, compiled when it runs
    assert not list(autotuning.chosen_here())


def test_the_recorded_launch_with_the_nearest_number_of_programs_serves_others(record: Callable[..., None]) -> None:
    record(recorded(1, 7, BLOCK=32, num_warps=4), recorded(8, 7, BLOCK=32, num_warps=8))
    for B, name in ((1, "32x4"), (2, "32x4"), (4, "32x8"), (8, "32x8"), (100, "32x8")):
        kernel = Kernel()
        launch(kernel, B=B)
        assert kernel.events == [f"run {name} on {B} 7"]


@pytest.mark.parametrize(
    ("choice", "options"),
    [
        (recorded(2, 8, BLOCK=32, num_warps=8), {}),  # another size
        (recorded(2, 7, BLOCK=16, num_warps=8), {}),  # not among the kernel's
        (recorded(2, 7, BLOCK=32, num_warps=8), {"gpus": "another"}),
    ],
)
def test_every_other_launch_is_tuned(record: Callable[..., None], choice: Any, options: dict[str, str]) -> None:
    record(choice, **options)
    kernel = Kernel()
    launch(kernel)
    assert searched(kernel)
    assert list(autotuning.chosen_here()) == [recorded(2, 7, BLOCK=64, num_warps=4)]


@pytest.mark.parametrize("error", UNCOMPILED)
def test_a_launch_whose_recorded_configuration_does_not_compile_is_tuned(
    record: Callable[..., None], error: Exception
) -> None:
    record(recorded(2, 7, BLOCK=64, num_warps=8))
    kernel = Kernel(error)
    launch(kernel)
    assert searched(kernel)


@pytest.mark.usefixtures("record")
def test_launches_differ_as_in_triton_by_their_key_and_the_dtypes_of_tensors() -> None:
    found = tuner(Kernel())
    found.arg_names, found.keys = ["B", "K", "x", "E"], ["B", "K", "E"]
    found.run(2, 7, x=torch.zeros(1, dtype=torch.bfloat16), grid=(1,), warmup=False)  # E has its default
    (chosen, _), *others = autotuning.chosen_here()
    assert chosen == Launch(f"{__name__}.body", {"B": 2, "K": 7}, ("torch.bfloat16",))
    assert not others


@pytest.mark.usefixtures("record")
def test_a_launch_that_fails_while_timed_has_chosen_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(TIMES, "64x8")
    with pytest.raises(KeyError):
        launch(Kernel())
    assert not list(autotuning.chosen_here())


@pytest.mark.usefixtures("record")
def test_a_configuration_with_a_hook_compiles_when_it_runs_after_the_hook() -> None:
    kernel = Kernel()
    found = tuner(kernel)
    for config in found.configs:
        config.pre_hook = lambda arguments: kernel.events.append("hook")
    found.run(2, 7, grid=(1,), warmup=False)
    assert kernel.events[:2] == ["hook", "run 32x4 on 2 7"]
