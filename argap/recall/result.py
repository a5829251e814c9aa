"""``recall.json``: all models on all tasks, their differences from the reference, and the link to the AR gap."""

from collections.abc import Sequence
from pathlib import Path

from argap.recall.examples import TaskData
from argap.recall.link import GapLink
from argap.recall.prompts import Protocol
from argap.recall.samples import Sample
from argap.recall.scores import Score, gold_interval, gold_nll
from argap.records import Interval, Record, read_record

FORMAT = 1


class Flips(Record, frozen=True):
    """How a model and the reference differ on the examples of one task."""

    model: str
    task: str
    both: int
    gained: int
    """Examples answered only by the model."""
    lost: int
    """Examples answered only by the reference."""
    neither: int
    difference: float
    """(gained − lost) / examples."""
    p_value: float
    """McNemar's exact test of no difference."""
    lost_ids: list[str]
    gold_gap: float | None = None
    """NLL of the golds' tokens over the reference's, in nats; None without log-probs, and if the file omits it."""
    gold_gap_ci95: Interval | None = None
    """By the bootstrap over documents, paired; None for a single document, too."""


class RecallResult(Record, frozen=True):
    """``recall.json``."""

    format: int
    rows: list[Score]
    reference: str | None
    protocol: Protocol
    tasks: list[TaskData]
    flips: list[Flips]
    link: list[GapLink]
    run: str
    """The result's folder, as the user wrote it."""
    versions: dict[str, str]
    git: str | None

    @property
    def models(self) -> list[str]:
        """The models' names in the order of the rows."""
        return list(dict.fromkeys(row.model for row in self.rows))


def open_recall(folder: Path) -> RecallResult:
    """Read the ``recall.json`` of a result folder. Raises `FormatError` for a missing or broken one."""
    return read_record(folder / "recall.json", RecallResult, newest=FORMAT)


def flips(model: str, task: str, samples: Sequence[Sample], reference: Sequence[Sample]) -> Flips:
    """Compare two models on the same examples."""
    from scipy.stats import binomtest

    pairs = [(a.contains, b.contains) for a, b in zip(samples, reference, strict=True)]
    own, other = gold_nll(samples), gold_nll(reference)
    gained, lost = pairs.count((True, False)), pairs.count((False, True))
    return Flips(
        model=model,
        task=task,
        both=pairs.count((True, True)),
        gained=gained,
        lost=lost,
        neither=pairs.count((False, False)),
        difference=(gained - lost) / len(pairs),
        p_value=float(binomtest(gained, gained + lost).pvalue) if gained + lost else 1.0,
        lost_ids=[a.id for a, pair in zip(samples, pairs, strict=True) if pair == (False, True)],
        gold_gap=None if own is None or other is None else own - other,
        gold_gap_ci95=gold_interval(samples, reference),
    )
