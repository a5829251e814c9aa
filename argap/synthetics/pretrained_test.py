"""Recall of KV pairs by models trained on text: the settings of the test and its scores, read without torch."""

from pathlib import Path
from typing import Literal

from argap.configuration import Count, Length, Seed, check_ranges
from argap.records import Interval, Record, read_record

FORMAT = 2
"""Of the scores. In format 1 the slice ``other`` also has the keys and the first values."""


class PretrainedTest(Record, frozen=True, omit_defaults=False):
    """The examples of a test. Models with the same tokenizer see the same ones."""

    pairs: tuple[int, ...] = (16, 32, 64, 128, 256)
    examples: Count = 1000
    """Per number of KV pairs."""
    length: Length = 1024
    fill: str | None = None
    """Text of the single token that fills all positions between the pairs; if None, EOS."""
    text: str | None = None
    """A corpus whose tokens fill the positions between the pairs instead of ``fill``."""
    alpha: float = 0.1
    seed: Seed = 0

    def __post_init__(self) -> None:
        check_ranges(self)


class Measures(Record, frozen=True):
    """Means over the tokens of a slice, with 95% intervals over examples."""

    n: int
    nll: float
    """In nats."""
    ppl: float
    ppl_ci95: Interval
    accuracy: float
    """Of the most probable token."""
    accuracy_ci95: Interval


class ScoreRow(Measures, frozen=True, kw_only=True):
    """One model, number of KV pairs and slice."""

    model: str
    pairs: int
    slice: Literal["ar", "other", "pairs"]
    """``ar``: the values after the queries; ``other``: the fill token or text between the pairs, the other tokens of
    figure 7; ``pairs``: the first keys and values and the queries, which nothing predicts."""


class PretrainedScores(PretrainedTest, frozen=True, kw_only=True):
    """The scores of several models on one test: ``scores.json``, and a suite's ``mqar.json``."""

    format: int
    between: str
    """What stands between the pairs, in words."""
    rows: tuple[ScoreRow, ...]
    device: str
    dtype: str
    versions: dict[str, str]
    git: str | None

    @property
    def models(self) -> list[str]:
        """Names in the order of the rows."""
        return list(dict.fromkeys(row.model for row in self.rows))


def read_scores(path: Path, *, remedy: str = "") -> PretrainedScores:
    """The scores in ``path``. Raises `FormatError` for a missing or broken file."""
    return read_record(path, PretrainedScores, newest=FORMAT, remedy=remedy)
