"""Recall of KV pairs by models trained on text: the settings of the test and its scores, read without torch."""

from itertools import product
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from argap.errors import FormatError
from argap.files.configs import Count, Length, Seed, check_ranges
from argap.files.remedies import remedy_for
from argap.records import Interval, Record, read_record
from argap.synthetics.tasks.pretrained_mqar import layout

FORMAT = 2
"""Format of the scores. In format 1 the slice ``other`` also has the keys and the first values."""


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
        for pairs in self.pairs:  # refuse impossible numbers of pairs before a model is trained or loaded
            layout(self.examples, pairs, length=self.length, alpha=self.alpha)


class Measures(Record, frozen=True):
    """Means over the tokens of a slice, with 95% intervals over examples."""

    n: Count
    nll: Annotated[float, msgspec.Meta(ge=0, le=1e300)]
    """In nats."""
    ppl: Annotated[float, msgspec.Meta(ge=0, le=1e300)]
    ppl_ci95: Interval
    accuracy: Annotated[float, msgspec.Meta(ge=0, le=1)]
    """Of the most probable token."""
    accuracy_ci95: Interval


class ScoreRow(Measures, frozen=True, kw_only=True):
    """One model, number of KV pairs and slice."""

    model: str
    pairs: Count
    slice: Literal["ar", "other", "pairs"]
    """``ar``: the values after the queries; ``other``: the fill token or text between the pairs, the other tokens of
    figure 7; ``pairs``: the first keys and values and the queries, which nothing predicts."""


class PretrainedScores(PretrainedTest, frozen=True, kw_only=True):
    """The scores of several models on one test: ``scores.json``, and a suite's ``mqar.json``."""

    format: int
    between: str
    """Filling between the pairs, in words."""
    rows: tuple[ScoreRow, ...]
    device: str
    dtype: str
    versions: dict[str, str]
    git: str | None
    bos: dict[str, str] = msgspec.field(default_factory=dict)
    """The token put before each example, by model, for those that have one."""

    @property
    def models(self) -> list[str]:
        """The models' names in the order of the rows."""
        return list(dict.fromkeys(row.model for row in self.rows))


def read_scores(path: Path) -> PretrainedScores:
    """Read the scores in ``path``.

    Raises `FormatError` for a missing or broken file, and for a model without answers on one of the numbers of pairs.
    """
    scores = read_record(path, PretrainedScores, newest=FORMAT)
    answered = {(row.model, row.pairs) for row in scores.rows if row.slice == "ar"}
    for model, pairs in product(scores.models, scores.pairs):
        if (model, pairs) not in answered:
            raise FormatError(f"{path}: {model} has no answers on {pairs} pairs{remedy_for(path)}")
    if not answered:
        raise FormatError(f"{path}: rows: expected those of at least one model{remedy_for(path)}")
    return scores
