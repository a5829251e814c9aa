"""Training: `train` turns a `TrainConfig` into a checkpoint and resumes after an interruption.

``config`` all settings · ``tokens`` packed data · ``windows`` data order · ``model`` · ``objective`` the loss ·
``optimizer`` · ``loop`` · ``checkpoint`` · ``log`` · ``records`` the files · ``run`` everything above.
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
"""Imported on first use, so that configurations and logs can be read without torch."""

__all__ = ["DataSource", "TrainConfig", "load_config", "read_log", "train"]


def __getattr__(name: str) -> Any:
    if name not in MODULES:
        raise AttributeError(f"module 'argap.train' has no attribute {name!r}")
    return getattr(importlib.import_module(MODULES[name]), name)
