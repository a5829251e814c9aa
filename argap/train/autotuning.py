"""Triton's choice of launch configurations, with all configurations of a kernel compiled at once.

The autotuner compiles and times one configuration after another. Kernels of flash-linear-attention have up to 48, a
training step of GLA about 270 in all, and compiling is most of the time to the first step.
"""

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from triton.runtime._async_compile import AsyncCompileMode
from triton.runtime.autotuner import Autotuner, Config
from triton.testing import do_bench

from argap.ahead import available_cores

WARM_UP_MS, TIMED_MS = 5, 25
"""For how long each configuration runs; Triton's defaults are 25 and 100."""


def compile_at_once() -> None:
    """From now on, let every autotuner of this process compile on all cores, and time its configurations briefly.

    The configurations and how the fastest is chosen stay Triton's. Applying it twice changes nothing.
    """
    if Autotuner.prune_configs is not _prune_and_compile:
        Autotuner.prune_configs = _prune_and_compile


_prune = Autotuner.prune_configs


def _prune_and_compile(self: Autotuner, kwargs: dict[str, Any]) -> list[Config]:
    """The configurations that ``self.run`` times next, compiled; ``kwargs``: of that launch."""
    configs = _prune(self, kwargs)
    if self._do_bench is None:
        self._do_bench = partial(do_bench, warmup=WARM_UP_MS, rep=TIMED_MS)
    launch = kwargs | {"warmup": True}  # compiles, does not run
    with (
        ThreadPoolExecutor(min(len(configs), available_cores())) as pool,
        AsyncCompileMode(pool, ignore_errors=True),  # an error returns when the configuration is timed
    ):
        for config in configs:
            if config.pre_hook is None:
                self.fn.run(*(self.nargs or {}).values(), **launch, **config.all_kwargs())
    return configs
