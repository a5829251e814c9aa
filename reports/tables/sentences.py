"""The result in words: one sentence a model, for each case of the metric, and the figures' captions."""

from argap.metric.share import case_of, unresolved_of
from argap.records import Gap, Interval
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
    models: dict[str, list[str]] = {}
    for row in gap.compared:
        reason = unresolved_of(gap.on_hits[row.model])
        models.setdefault(f"unresolved: {reason}" if reason else row.model, []).append(row.model)
    return [_headline_of(alike, gap) for alike in models.values()]


def _headline_of(models: list[str], gap: Gap) -> tuple[str, str]:
    if len(models) == 1:
        return headline(models[0], gap), detail(models[0], gap)
    reason = unresolved_of(gap.on_hits[models[0]])
    sentence = f"How much of the gap to {gap.reference} sits on the {gap.hits} is not resolved: {reason}."
    return sentence, f"Models: {', '.join(models)}."


def headline(model: str, gap: Gap) -> str:
    """The main finding about a model other than the reference, in one sentence."""
    due, reference, hits, unit = gap.on_hits[model], gap.reference, gap.hits, gap.unit
    case, those = case_of(due), f"the {percent(due.share_of_tokens)} of {unit}s that are {hits}"
    if case == "infinite":
        return f"{model}'s gap to {reference} is not finite: {due.reason}."
    if due.n == 0:
        return f"No token here is {ONE[hits]}: none of {model}'s gap to {reference} can be associative recall."
    if case == "no_gap" or due.paper_rule is None:
        return f"{model} has no gap to {reference}: it is at least as good overall and on the {hits}."
    if doubt := unresolved_of(due):
        return f"How much of {model}'s gap to {reference} sits on the {hits} is not resolved: {doubt}."
    if case == "recall_only":
        return f"{model} is at least as good as {reference} overall, but worse on {those}."
    if case == "reversed":
        return f"{model} is worse than {reference} overall, but better on {those}."
    within = due.reason if due.share_ci95 is None else f"95% interval {percent_range(*due.share_ci95)}"
    whole = percent(due.paper_rule, 0) if due.paper_rule < 1 else "All"
    return f"{whole} of {model}'s gap to {reference} ({within}) sits on {those}."


def detail(model: str, gap: Gap) -> str:
    """The gap in nats, as a second sentence; without intervals where the text is a single document, empty where the
    gap is not finite."""
    whole, part = gap.on_all[model], gap.on_hits[model]
    if whole.contribution is None or part.contribution is None:
        return ""
    ends, of_part = _interval(whole.contribution_ci95), _interval(part.contribution_ci95)
    return (
        f"Gap: {nats(whole.contribution)} nats per {gap.unit}{ends and f' (95% interval {ends})'}, "
        f"of which {gap.hits} {nats(part.contribution)}{of_part and f' ({of_part})'}."
    )


def _interval(ends: Interval | None) -> str:
    return "" if ends is None else " to ".join(map(nats, ends))
