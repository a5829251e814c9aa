"""``recall.json``: all models on all tasks, how they differ from the reference, and the link to the AR gap."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from argap.errors import ArgapError
from argap.recall.examples import TaskData
from argap.recall.prompts import Protocol
from argap.recall.samples import Sample
from argap.recall.scores import Score
from argap.records import Record, read_gap, read_record

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
    gold_gap_nll: float | None = None
    """On the tokens of the golds, in nats; None without log-probs (the copy baseline), and in older results."""


class GapLink(Record, frozen=True):
    """The models' recall gaps on one task beside their AR gaps."""

    task: str
    points: list[LinkPoint]
    pearson: float | None
    """Correlation across models; None for fewer than three, and where one of the gaps does not vary."""
    spearman: float | None
    pearson_gold: float | None = None
    """Correlation of the AR gaps with the gaps on the golds' tokens, which vary also where hardly a model answers."""
    spearman_gold: float | None = None


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
    rows = read_gap(folder).rows
    return {row.model: row.ar_hits.nll for row in rows if row.ar_hits.nll is not None}


def link_to_gap(scores: Sequence[Score], ar_nlls: Mapping[str, float], reference: str) -> list[GapLink]:
    """The recall gap of each model beside its AR gap, for each task; models without an AR gap are skipped."""
    links = []
    for task in dict.fromkeys(row.task for row in scores):
        rows = {row.model: row for row in scores if row.task == task and row.model in ar_nlls}
        if reference not in rows:
            continue
        against, points = rows.pop(reference), []
        for model, row in rows.items():
            gold = None if row.gold_nll is None or against.gold_nll is None else row.gold_nll - against.gold_nll
            ar_gap = ar_nlls[model] - ar_nlls[reference]
            points.append(LinkPoint(model, ar_gap, against.contains - row.contains, gold))
        pearson, spearman = _correlations([(p.ar_gap_nll, p.recall_gap) for p in points])
        golds = [(p.ar_gap_nll, p.gold_gap_nll) for p in points if p.gold_gap_nll is not None]
        links.append(GapLink(task, points, pearson, spearman, *_correlations(golds)))
    return links


def _correlations(pairs: Sequence[tuple[float, float]]) -> tuple[float | None, float | None]:
    """Pearson's and Spearman's; None for fewer than three pairs, and where a side does not vary."""
    from scipy.stats import pearsonr, spearmanr

    x, y = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    if len(pairs) < 3 or len(set(x)) < 2 or len(set(y)) < 2:
        return None, None
    return float(pearsonr(x, y).statistic), float(spearmanr(x, y).statistic)  # pyright: ignore
