"""``recall.json``: all models on all tasks, how they differ from the reference, and the link to the AR gap."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from argap.errors import ArgapError
from argap.recall.examples import TaskData
from argap.recall.prompts import ProtocolRecord
from argap.recall.samples import Sample
from argap.recall.scores import Score
from argap.records import Gap, Record, read_record

FORMAT = 1


class Flips(Record, frozen=True):
    """How a model and the reference differ on the examples of one task."""

    model: str
    task: str
    both: int
    gained: int
    """Examples that only the model answers."""
    lost: int
    """Examples that only the reference answers."""
    neither: int
    difference: float
    """(gained − lost) / examples."""
    p_value: float
    """McNemar's exact test of no difference."""
    lost_ids: list[str]


class LinkPoint(Record, frozen=True):
    """One model's gaps to the reference."""

    model: str
    ar_gap_nll: float
    """On the AR hits, in nats."""
    recall_gap: float


class GapLink(Record, frozen=True):
    """The models' recall gaps on one task beside their AR gaps."""

    task: str
    points: list[LinkPoint]
    pearson: float | None
    """Correlation across models; None for fewer than three, and where one of the gaps does not vary."""
    spearman: float | None


class RecallResult(Record, frozen=True):
    """``recall.json``."""

    format: int
    rows: list[Score]
    reference: str | None
    protocol: ProtocolRecord
    tasks: list[TaskData]
    flips: list[Flips]
    link: list[GapLink]
    run: str
    """The result's folder, as the user wrote it."""
    versions: dict[str, str]
    git: str | None

    @property
    def models(self) -> list[str]:
        """Names in the order of the rows."""
        return list(dict.fromkeys(row.model for row in self.rows))


def open_recall(folder: Path) -> RecallResult:
    """The ``recall.json`` of a result folder. Raises `FormatError` for a missing or broken one."""
    return read_record(folder / "recall.json", RecallResult, newest=FORMAT)


def flips(model: str, task: str, samples: Sequence[Sample], reference: Sequence[Sample]) -> Flips:
    """Compare two models on the same examples."""
    from scipy.stats import binomtest

    pairs = [(a.contains, b.contains) for a, b in zip(samples, reference, strict=True)]
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
    )


def read_ar_nlls(folder: Path, reference: str | None) -> dict[str, float]:
    """NLL on the AR hits of each model in the ``gap.json`` of ``folder``.

    Raises `ArgapError` without a reference, to which recall gaps are measured, and `FormatError` for a broken file.
    """
    if reference is None:
        raise ArgapError(f"`gap` {folder}: the recall gap needs a reference; name it with `reference`")
    rows = read_record(folder / "gap.json", Gap).rows
    return {row.model: row.ar_hits.nll for row in rows if row.ar_hits.nll is not None}


def link_to_gap(scores: Sequence[Score], ar_nlls: Mapping[str, float], reference: str) -> list[GapLink]:
    """The recall gap of each model beside its AR gap, for each task; models without an AR gap are skipped."""
    from scipy.stats import pearsonr, spearmanr

    links = []
    for task in dict.fromkeys(row.task for row in scores):
        contains = {row.model: row.contains for row in scores if row.task == task}
        if reference not in contains or reference not in ar_nlls:
            continue
        points = [
            LinkPoint(model, ar_nlls[model] - ar_nlls[reference], contains[reference] - contains[model])
            for model in contains
            if model != reference and model in ar_nlls
        ]
        x, y = [p.ar_gap_nll for p in points], [p.recall_gap for p in points]
        varied = len(set(x)) > 1 and len(set(y)) > 1 and len(points) > 2
        links.append(
            GapLink(
                task=task,
                points=points,
                pearson=float(pearsonr(x, y).statistic) if varied else None,  # pyright: ignore
                spearman=float(spearmanr(x, y).statistic) if varied else None,  # pyright: ignore
            )
        )
    return links
