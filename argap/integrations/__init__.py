"""argap inside other programs: the gap of a model while it is trained.

`RecallGap` measures a model in memory against a finished run; `argap.integrations.transformers` logs it through the
Trainer of transformers.
"""

from argap.integrations.recall_gap import GapFigures, RecallGap

__all__ = ["GapFigures", "RecallGap"]
