"""Measure the gap of a model during training, inside other programs.

`RecallGap` measures a model in memory, or one that several processes hold together, against a finished run;
`argap.integrations.transformers` logs it through the Trainer of transformers.
"""

from argap.integrations.recall_gap import GapFigures, RecallGap, SliceFigures

__all__ = ["GapFigures", "RecallGap", "SliceFigures"]
