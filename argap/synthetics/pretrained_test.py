"""The test of recalling KV pairs for models trained on text: its settings and results, which suites read without
torch."""

from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from argap.configuration import Count, Length, Seed, check_ranges
from argap.errors import FormatError
from argap.records import Interval, Record, read_record

PAIRS = (16, 32, 64, 128, 256)
FORMAT = 2


@dataclass(frozen=True)
class PretrainedTest:
    """The examples of a test. Models with the same tokenizer see the same ones."""

    pairs: tuple[int, ...] = PAIRS
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

    @property
    def between(self) -> str:
        """What stands between the pairs, in words."""
        return f"the text {self.text}" if self.text else f"{self.fill!r}" if self.fill else "the end-of-sequence token"

    def as_json(self) -> dict[str, Any]:
        """All fields as JSON values."""
        return {**vars(self), "pairs": list(self.pairs)}


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


class PretrainedScores(Record, frozen=True):
    """``scores.json`` of ``argap synthetics score`` and ``mqar.json`` of a suite: the scores of models on one test."""

    format: int
    pairs: tuple[Count, ...]
    examples: int
    length: Length
    fill: str | None
    text: str | None
    alpha: float
    seed: int
    between: str
    """`PretrainedTest.between`."""
    rows: tuple[ScoreRow, ...]
    device: str
    dtype: str
    versions: dict[str, str]
    git: str | None


def read_scores(path: Path, *, remedy: str = "") -> PretrainedScores:
    """Read the scores of a test. Raises `FormatError`, also where a model was not scored on each number of pairs."""
    scores = read_record(path, PretrainedScores, newest=FORMAT, remedy=remedy)
    answered = {(row.model, row.pairs) for row in scores.rows if row.slice == "ar"}
    for model, pairs in product(dict.fromkeys(row.model for row in scores.rows), scores.pairs):
        if (model, pairs) not in answered:
            raise FormatError(f"{path}: {model} has no answers on {pairs} pairs{remedy and f'; {remedy}'}")
    if not answered:
        raise FormatError(f"{path}: rows: expected those of at least one model{remedy and f'; {remedy}'}")
    return scores
