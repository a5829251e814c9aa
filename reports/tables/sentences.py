"""The result in words: one sentence a model, for each case of the metric, and the figures' captions."""

from argap.records import Delta, Gap, GapRow, Unit
from argap.reports.tables.numbers import nats, percent, percent_range
from argap.reports.tables.overview import ENDS, MANY, shown

CAPTIONS = {
    "nll_by_frequency": (
        "How well each model predicts a token, against how often its bigram occurs in the training text "
        "(lower is better). Left: bigrams seen before in the window, where a model can look back. Right: all others. "
        "AR hits lie left of the dashed line in the left panel. Hollow points stand for fewer than 30 tokens."
    ),
    "gap_by_frequency": (
        "Where the gap lies, by training frequency. Each bar is a bin's share of tokens times the difference in NLL; "
        "a model's bars add up to its gap. Numbers are percent of the gap. Full colour: AR hits. "
        "Whiskers are 95% intervals."
    ),
    "share_by_threshold": (
        "The share of the gap that is due to AR, by the threshold τ: AR hits are repeated bigrams seen at most τ times "
        "in training. Dashed: the threshold of this result, and 1,250 scaled to the training text. Bands or whiskers: "
        "95% intervals, cut at the axes. A model whose share is unresolved is not drawn, or, if all are, in "
        "parentheses."
    ),
    "gap_by_distance": (
        "Where the gap lies, by the distance back to the bigram's previous occurrence. Pale: not repeated, so never an "
        "AR hit. A model's bars add up to its gap. Whiskers are 95% intervals."
    ),
    "gap_by_position": "Where the gap lies, by position in the window. A model's bars add up to its gap.",
    "gap_by_domain": "Where the gap lies, by domain of the text. A model's bars add up to its gap.",
}
"""Caption of each figure of the report, by the name of its file."""
MANY_CAPTIONS = {
    "gap_by_frequency": (
        "Where the gap lies, by training frequency, the smallest gap first. Blue: AR hits. Pale: other repeated "
        "bigrams. Grey: not repeated. A panel's bars add up to the model's gap, whose size is above it with the "
        "percentage that is due to the AR hits. Whiskers are 95% intervals."
    ),
    "gap_by_distance": (
        "Where the gap lies, by the distance back to the bigram's previous occurrence, the smallest gap first. Pale: "
        "not repeated, so never an AR hit. A panel's bars add up to the model's gap. Whiskers are 95% intervals."
    ),
    "gap_by_position": (
        "Where the gap lies, by position in the window, the smallest gap first. A panel's bars add up to the model's "
        "gap. Whiskers are 95% intervals."
    ),
    "gap_by_domain": (
        "Where the gap lies, by domain of the text, the smallest gap first; below a domain its share of the {unit}s. "
        "Numbers are percent of the model's gap, or nats where it has none; shades are nats."
    ),
}
"""Captions of figures that show more than `MANY` models as small multiples."""
IN_COLOUR = "In colour: the reference, and of the models drawn the two closest to it and the two farthest from it."
AT_THE_ENDS = (
    "Of {models} models, the {ends} with the smallest gap and the {ends} with the largest are shown; the tables of "
    "parts have all of them."
)
SEVEN = 7  # keep in sync with `argap.reports.figures.drawing.COLOURS`, which sentences do not load
COLOURED = ("nll_by_frequency", "share_by_threshold")
ONE = {"AR hits": "an AR hit", "repeated bigrams": "a repeated bigram"}
"""One of `argap.records.Gap.hits`."""


def caption(gap: Gap, name: str) -> str:
    """The caption of a figure as it is drawn for this result."""
    if len(gap.compared) <= MANY:
        return CAPTIONS[name]
    text = MANY_CAPTIONS.get(name, CAPTIONS[name]).format(unit=gap.unit)
    if name in MANY_CAPTIONS and len(shown(gap)) < len(gap.deltas):
        text += f" {AT_THE_ENDS.format(models=len(gap.deltas), ends=ENDS)}"
    return f"{text} {IN_COLOUR}" if name in COLOURED and len(gap.models) > SEVEN else text


def headlines(gap: Gap) -> list[tuple[str, str]]:
    """A sentence and its numbers for each model compared; one for all models that are unresolved for the same reason,
    without numbers where these are several."""
    rows: dict[str, list[GapRow]] = {}
    for row in gap.compared:
        reason = row.gap_due_to_ar and row.gap_due_to_ar.unresolved
        rows.setdefault(f"unresolved: {reason}" if reason else row.model, []).append(row)
    return [_headline_of(alike, gap) for alike in rows.values()]


def _headline_of(rows: list[GapRow], gap: Gap) -> tuple[str, str]:
    row, due = rows[0], rows[0].gap_due_to_ar
    if len(rows) == 1 or due is None:
        return headline(row, gap.reference, gap.hits, gap.unit), detail(row, gap.hits, gap.unit)
    sentence = f"How much of the gap to {gap.reference} sits on the {gap.hits} is not resolved: {due.unresolved}."
    return sentence, f"Models: {', '.join(each.model for each in rows)}."


def headline(row: GapRow, reference: str, hits: str = "AR hits", unit: Unit = "token") -> str:
    """The main finding about a model other than the reference, in one sentence. ``hits`` and ``unit``: those of
    `argap.records.Gap`."""
    model, share, due = row.model, percent(row.share_ar_hits), row.gap_due_to_ar
    if due is not None and due.case == "infinite":
        return f"{model}'s gap to {reference} is not finite: {due.reason}."
    if row.ar_hits.n == 0 or due is None:
        return f"No token here is {ONE[hits]}: none of {model}'s gap to {reference} can be associative recall."
    if due.case == "no_gap" or due.value is None:
        return f"{model} has no gap to {reference}: it is at least as good overall and on the {hits}."
    if due.unresolved:
        return f"How much of {model}'s gap to {reference} sits on the {hits} is not resolved: {due.unresolved}."
    if due.case == "recall_only":
        return (
            f"{model} is at least as good as {reference} overall, but worse on the {share} of {unit}s that are {hits}."
        )
    if due.case == "reversed":
        return f"{model} is worse than {reference} overall, but better on the {share} of {unit}s that are {hits}."
    within = due.reason if due.ci95 is None else f"95% interval {percent_range(*due.ci95)}"
    whole = percent(due.value, 0) if due.value < 1 else "All"
    return f"{whole} of {model}'s gap to {reference} ({within}) sits on the {share} of {unit}s that are {hits}."


def detail(row: GapRow, hits: str = "AR hits", unit: Unit = "token") -> str:
    """The gap in nats, as a second sentence; without intervals where the text is a single document, empty where the
    gap is not finite."""
    if row.delta is None or row.delta_ar is None:
        return ""
    whole, part = _interval(row.delta), _interval(row.delta_ar)
    return (
        f"Gap: {nats(row.delta.nll)} nats per {unit}{whole and f' (95% interval {whole})'}, "
        f"of which {hits} {nats(row.delta_ar.nll)}{part and f' ({part})'}."
    )


def _interval(delta: Delta) -> str:
    return "" if delta.ci95 is None else " to ".join(nats(end) for end in delta.ci95)
