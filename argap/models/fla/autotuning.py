"""Triton's autotuner with recorded launch configurations, and with configurations compiled in parallel.

The autotuner compiles and times one configuration after another. Kernels of flash-linear-attention have up to 48 each,
a training step of GLA about 270 in all, and most of the time to the first step is spent compiling. argap therefore
bundles the choices made on one GPU of a class (`argap.models.fla.tuned`): a recorded launch compiles one configuration
and times none. The configurations of every other launch are compiled on all cores and then timed.
"""

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import torch
from triton.compiler.errors import CompileTimeAssertionFailure
from triton.runtime._async_compile import AsyncCompileMode
from triton.runtime.autotuner import Autotuner, Config
from triton.runtime.errors import OutOfResources, PTXASError
from triton.testing import do_bench

from argap.kernels.launch import device_class
from argap.models.fla.tuned import Launch, tuned_for
from argap.runtime.threads import available_cores

WARM_UP_MS, TIMED_MS = 5, 25
"""How long each configuration runs; Triton's defaults are 25 and 100."""


def compile_at_once() -> None:
    """Make every autotuner of this process use recorded configurations, and compile the others in parallel.

    For a launch without a record, it compiles all configurations at once and times them briefly. The configurations and
    the way to choose among them stay Triton's. A second call changes nothing.
    """
    Autotuner.prune_configs, Autotuner._bench = _candidates, _time


def chosen_here() -> Iterator[tuple[Launch, Mapping[str, Any]]]:
    """Yield launches whose configuration this process chose among several, with that configuration's arguments.

    The choice was by timing, or from Triton's timings on disk.
    """
    for tuner, launch, key in _choosing:
        if key in tuner.cache:
            yield launch, tuner.cache[key].all_kwargs()


_prune, _bench = Autotuner.prune_configs, Autotuner._bench
_choosing: list[tuple[Autotuner, Launch, tuple[Any, ...]]] = []
_uncompiled: dict[Autotuner, list[Config]] = {}
"""The configurations of the current launch, until the first is timed."""


def _candidates(self: Autotuner, kwargs: dict[str, object]) -> list[Config]:
    """Replace `Autotuner.prune_configs`: return the recorded configuration alone, or those to be timed.

    ``kwargs`` are those of the launch.
    """
    configs = _prune(self, kwargs)
    launch = _launch(self, kwargs)
    recorded = tuned_for(_device_class()).chosen(launch)
    if chosen := [config for config in configs if config.all_kwargs() == recorded and _fits(self, config, kwargs)]:
        configs = chosen
    elif len(configs) > 1:
        _choosing.append((self, launch, (*launch.key.values(), *launch.dtypes)))
    _uncompiled[self] = configs
    return configs


def _fits(self: Autotuner, config: Config, kwargs: dict[str, object]) -> bool:
    """Return whether ``config`` compiles for that launch, within this GPU's shared memory and registers."""
    try:
        self.fn.run(*(self.nargs or {}).values(), **kwargs | {"warmup": True}, **config.all_kwargs())._init_handles()
    except (OutOfResources, CompileTimeAssertionFailure, PTXASError):  # the autotuner skips these
        return False
    return True


def _device_class() -> str:
    return device_class(torch.device("cuda")) if torch.cuda.is_available() else "any"


def _launch(self: Autotuner, kwargs: dict[str, Any]) -> Launch:
    """Return the launch of ``self`` with ``self.nargs`` and ``kwargs``, identified as `Autotuner.run` does it."""
    given = (self.nargs or {}) | kwargs
    key = {name: given[name] for name in self.keys if name in given}
    dtypes = tuple(str(value.dtype) for value in given.values() if hasattr(value, "dtype"))
    return Launch(f"{self.base_fn.__module__}.{self.base_fn.__name__}", key, dtypes)


def _time(self: Autotuner, *args: Any, config: Config, **kwargs: Any) -> Any:
    """Replace `Autotuner._bench`: time after compiling all configurations; do not run a single one.

    Choices that Triton finds on disk do not come here, so for them only the chosen configuration is compiled.
    """
    if configs := _uncompiled.pop(self, []):  # before the first is timed
        if configs == [config]:
            return [0.0, 0.0, 0.0]
        _compile(self, configs, args, kwargs)
    if self._do_bench is None:
        self._do_bench = partial(do_bench, warmup=WARM_UP_MS, rep=TIMED_MS)
    return _bench(self, *args, config=config, **kwargs)


def _compile(self: Autotuner, configs: list[Config], args: tuple[Any, ...], kwargs: dict[str, object]) -> None:
    """Compile all ``configs`` for one launch at once."""
    launch = kwargs | {"warmup": True}  # compiles, does not run
    with (
        ThreadPoolExecutor(available_cores()) as pool,
        AsyncCompileMode(pool, ignore_errors=True),  # an error is raised again when the configuration is timed
    ):
        for config in configs:
            if config.pre_hook is None:
                self.fn.run(*args, **launch, **config.all_kwargs())
