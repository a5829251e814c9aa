"""Training: `train` makes a checkpoint from a `TrainConfig`, the same on every machine and after a kill.

``config`` what a run is · ``tokens`` the packed data · ``windows`` their order · ``model`` · ``objective``
the loss · ``optimizer`` · ``loop`` the steps · ``checkpoint`` · ``log`` · ``interrupt`` ·
``run`` the folder of a run.
"""

from argap.train.config import DataSource, TrainConfig, load_config
from argap.train.log import read_log
from argap.train.run import train

__all__ = ["DataSource", "TrainConfig", "load_config", "read_log", "train"]
