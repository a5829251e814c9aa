"""Training: `train` makes a checkpoint from a `TrainConfig`, the same on every machine and after a kill.

``config`` what a run is · ``tokens`` the packed data · ``windows`` their order · ``model`` · ``objective``
the loss · ``optimizer`` · ``loop`` the steps · ``checkpoint`` · ``log`` · ``interrupt`` ·
``run`` the folder of a run.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from argap.train.config import DataSource, TrainConfig, load_config
    from argap.train.log import read_log
    from argap.train.run import train

MODULES = {
    "DataSource": "argap.train.config",
    "TrainConfig": "argap.train.config",
    "load_config": "argap.train.config",
    "read_log": "argap.train.log",
    "train": "argap.train.run",
}
"""Imported when they are first used: configurations and logs are read without torch."""

__all__ = ["DataSource", "TrainConfig", "load_config", "read_log", "train"]


def __getattr__(name: str) -> Any:
    if name not in MODULES:
        raise AttributeError(f"module 'argap.train' has no attribute {name!r}")
    return getattr(importlib.import_module(MODULES[name]), name)
