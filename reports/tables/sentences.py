"""Put the result into words: one sentence per model for each case of the metric, and the captions of the figures."""

from typing import NamedTuple

from argap.metric.share import contains_zero
from argap.records import Estimate, Gap
from argap.reports.tables.fidelity import closeness, is_near
from argap.reports.tables.numbers import DASH, MANY, OF, nats, percent, signed, signed_range, word
from argap.reports.tables.overview import COLOURS, ENDS, shown
from argap.reports.tables.result import interval_cell

CAPTIONS = {
    "nll_by_frequency": (
        "How well each model predicts a token, against how often its bigram occurs in the training text "
        "(lower is better). Left: bigrams seen before in the window, where a model can look back. Right: all others. "
        "In the left panel AR hits lie left of the line at τ. Hollow points stand for fewer than 30 tokens."
    ),
    "gap_by_frequency": (
        "Where the difference lies, by training frequency. Each bar is a bin's share of tokens times ΔNLL: above zero "
        "the model is behind, below it ahead; a model's bars add up to its ΔNLL. Numbers are percent of that. Full "
        "colour: AR hits. Whiskers are 95% intervals."
    ),
    "share_by_threshold": (
        "The share of the gap or lead that falls on the AR hits, by the threshold τ: AR hits are repeated bigrams seen "
        "at most τ times in training. Dashed: the threshold of this result, and 1,250 scaled to the training text. "
        "Bands or whiskers: 95% intervals, cut at the axes. A model whose share is unresolved is not drawn, or, if all "
        "are, in parentheses."
    ),
    "gap_by_distance": (
        "Where the difference lies, by the distance back to the bigram's previous occurrence. Pale: not repeated, so "
        "never an AR hit. A model's bars add up to its ΔNLL. Whiskers are 95% intervals."
    ),
    "gap_by_position": "Where the difference lies, by position in the window. A model's bars add up to its ΔNLL.",
    "gap_by_domain": "Where the difference lies, by domain of the text. A model's bars add up to its ΔNLL.",
    "context_use": (
        "How much context each model uses. Left: NLL on the same tokens, all of which have more context in the window, "
        "with more and more of it. Right: what the whole window still adds. A curve flattens where further context no "
        "longer helps. Whiskers are 95% intervals over documents."
    ),
}
"""Caption of each figure of the report, by file name."""
MANY_CAPTIONS = {
    "gap_by_frequency": (
        "Where the difference lies, by training frequency, the lowest ΔNLL first. Full colour: AR hits. Pale: other "
        "repeated bigrams. Grey: not repeated. A panel's bars add up to the model's ΔNLL, which is above it with the "
        "percentage on the AR hits. Whiskers are 95% intervals."
    ),
    "gap_by_distance": (
        "Where the difference lies, by the distance back to the bigram's previous occurrence, the lowest ΔNLL first. "
        "Pale: not repeated, so never an AR hit. A panel's bars add up to the model's ΔNLL. Whiskers are 95% intervals."
    ),
    "gap_by_position": (
        "Where the difference lies, by position in the window, the lowest ΔNLL first. A panel's bars add up to the "
        "model's ΔNLL. Whiskers are 95% intervals."
    ),
    "gap_by_domain": (
        "Where the difference lies, by domain of the text, the lowest ΔNLL first; below a domain its share of the "
        "{unit}s. Numbers are percent of the model's ΔNLL, or nats where it is level; shades are nats."
    ),
}
"""Captions of figures that show more than `MANY` models as small multiples."""
IN_COLOUR = (
    "In colour, the same in every figure: the reference, and of the models with a resolved share the two with the "
    "lowest ΔNLL and the two with the highest."
)
AT_THE_ENDS = (
    "Of {models} models, the {ends} with the lowest ΔNLL and the {ends} with the highest are shown; the tables of "
    "parts have all of them."
)
COLOURED = ("nll_by_frequency", "share_by_threshold")
"""Figures in which all other models are grey."""
ONE = {"AR hits": "an AR hit", "repeated bigrams": "a repeated bigram"}
"""The singular of `argap.records.Gap.hits`."""


def caption(gap: Gap, name: str) -> str:
    """Return the caption of a figure as drawn for this result."""
    if len(gap.compared) <= MANY:
        return CAPTIONS[name]
    text = MANY_CAPTIONS.get(name, CAPTIONS[name]).format(unit=gap.unit)
    if name in MANY_CAPTIONS and len(shown(gap)) < len(gap.deltas):
        text += f" {AT_THE_ENDS.format(models=len(gap.deltas), ends=ENDS)}"
    return f"{text} {IN_COLOUR}" if name in COLOURED and len(gap.models) > COLOURS else text


class Headline(NamedTuple):
    """What a result says of one model."""

    number: str
    """The one to read first: the share on the AR hits, or ΔNLL where that must not be claimed."""
    unit: str
    """What the number counts, in words."""
    sentence: str
    detail: str


def headlines(gap: Gap) -> list[Headline]:
    """Return a number, a sentence and its numbers for each compared model."""
    return [
        Headline(*_number(row.model, gap), headline(row.model, gap), detail(row.model, gap)) for row in gap.compared
    ]


def _number(model: str, gap: Gap) -> tuple[str, str]:
    """Return the largest number of a headline, and what it counts."""
    whole, hits, towards = gap.on_all[model], gap.on_hits[model], gap.directions.get(model)
    if whole.delta is None or towards is None:
        return "∞", f"nats per {gap.unit} {'behind' if gap.on_all[model].nll is None else 'ahead'}"
    if hits.share is None or hits.reason or not hits.n:
        return signed(whole.delta), f"nats per {gap.unit}, {towards}"
    return percent(hits.share, 0), f"of the {word(gap, model)} on {gap.hits}"


def headline(model: str, gap: Gap) -> str:
    """Say in one sentence whether a model is behind, ahead or level, by how much, and where."""
    whole, towards, reference = gap.on_all[model], gap.directions.get(model), gap.reference
    if whole.delta is None or towards is None:
        return f"ΔNLL of {model} to {reference} is not finite: {whole.reason}."
    hits, other = gap.on_hits[model], gap.on_other[model]
    if towards == "level":
        near = next((each for each in gap.fidelity if each.model == model and is_near(each)), None)
        apart = _against_each_other(hits, gap)
        more = "" if near is None else f"; {closeness(near)}"
        return f"{model} is level with {reference}: ΔNLL is {signed(whole.delta)} nats per {gap.unit}{apart}{more}."
    start = f"{model} is {nats(abs(whole.delta))} nats per {gap.unit} {OF[towards]} {reference}"
    if hits.n == 0:
        return f"{start}. No token here is {ONE[gap.hits]}: none of it can be associative recall."
    those = f"the {percent(hits.share_of_tokens)} of {gap.unit}s that are {gap.hits}"
    parts = {those: hits.contribution or 0.0, "the rest": other.contribution or 0.0}
    against = {name for name, value in parts.items() if value * whole.delta < 0 and nats(abs(value)) != nats(0)}
    if not against:
        return f"{start}, {nats(abs(parts[those]))} of it on {those}."
    (kept, most), (lost, less) = sorted(parts.items(), key=lambda part: part[0] in against)
    back = "ahead" if towards == "behind" else "behind"
    return f"{start}: {nats(abs(most))} on {kept}, {back} by {nats(abs(less))} on {lost}."


def _against_each_other(hits: Estimate, gap: Gap) -> str:
    """Say whether a level model is behind or ahead on the AR hits beyond the interval, balanced by the rest."""
    ends = hits.contribution_ci95
    if ends is None or hits.contribution is None or contains_zero(ends):
        return ""
    way, back = ("behind", "ahead") if hits.contribution > 0 else ("ahead", "behind")
    return f", {way} by {nats(abs(hits.contribution))} on the {gap.hits} and {back} on the rest"


def detail(model: str, gap: Gap) -> str:
    """Return ΔNLL and its part and share on the AR hits, with intervals; empty if ΔNLL is not finite."""
    whole, hits = gap.on_all[model], gap.on_hits[model]
    if whole.delta is None or hits.contribution is None:
        return ""
    text = f"ΔNLL {signed(whole.delta)}{_within(signed_range(whole.delta_ci95), '95% interval ')}"
    text += f"; on the {gap.hits} {signed(hits.contribution)}{_within(signed_range(hits.contribution_ci95))}"
    if hits.share is not None and hits.n:
        text += f", {percent(hits.share, 0)} of the {word(gap, model)}"
        text += f", not to be claimed: {hits.reason}" if hits.reason else _within(interval_cell(hits))
    return f"{text}."


def _within(ends: str, what: str = "") -> str:
    return "" if ends == DASH else f" ({what}{ends})"
