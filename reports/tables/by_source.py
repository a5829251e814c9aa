"""Show what each source of the text does to a gap: its part of it, and the share on AR hits without it."""

from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING

from argap.metric.share import NO_SHARE, contains_zero
from argap.records import Gap
from argap.reports.tables.formats import Table
from argap.reports.tables.numbers import DASH, MANY, WORDS, gap_word, percent, percent_range, signed, signed_range

if TYPE_CHECKING:
    from argap.results.by_source import BySource, ModelWithout

LEVEL = "level"
"""Cell of a model that is level without the source."""
NAMED = 3
"""A note names at most this many sources of a model."""


def sources_title(found: "BySource") -> str:
    """Return the heading of the table."""
    return f"Without each {found.by}"


def sources_table(found: "BySource", gap: Gap) -> Table:
    """Return one row per source; for more than `MANY` models, with median and range over models.

    If there is nothing to leave out, the table has no rows, and its note says why.
    """
    models = [each.model for each in found.hits]
    titles = source_columns(found, gap, models if len(models) <= MANY else [])
    if found.reason:
        return Table(titles[:2], (), (found.reason,), title=sources_title(found))
    if len(models) <= MANY:
        rows, total = source_cells(found, models)
        return Table(titles, [*map(tuple, rows), tuple(total)], source_notes(found, gap), title=sources_title(found))
    columns = (*titles, f"% of {gap_word(gap)}", "Range", f"Change of the share on {gap.hits}, points", "Range")
    rows = [(row.name, percent(row.share_of_tokens), *_over_models(row.models, found.hits)) for row in found.sources]
    notes = [
        f"Each {found.by} is left out in turn: its share of a model's {gap_word(gap)} (median and range over models), "
        f"and by how many percentage points the share on {gap.hits} changes without it."
    ]
    return Table(columns, rows, (*notes, *_further(found, gap)), title=sources_title(found))


def source_columns(found: "BySource", gap: Gap, models: Sequence[str]) -> list[str]:
    """Return the headings of `source_cells`."""
    titles = [found.by.capitalize(), f"% of {gap.unit}s"]
    for model in models:
        titles += [f"% of {WORDS[gap.directions.get(model)]}, {model}", f"Share on {gap.hits} without it, {model}"]
    return titles


def source_cells(found: "BySource", models: Sequence[str]) -> tuple[list[list[str]], list[str]]:
    """Return the cells of each source and of the whole text: name, share of the tokens, and two for each model."""

    def cells(given: "Sequence[ModelWithout]") -> list[str]:
        by_model = {each.model: each for each in given}
        return [cell for model in models for cell in _cells(by_model[model])]

    rows = [[row.name, percent(row.share_of_tokens), *cells(row.models)] for row in found.sources]
    return rows, ["all", percent(1.0), *cells(found.hits)]


def source_notes(found: "BySource", gap: Gap) -> list[str]:
    """Return the notes below `source_cells`."""
    word = gap_word(gap)
    first = (
        f"Each {found.by} is left out in turn: its share of the {word}, and the share of the {word} on {gap.hits} in "
        f"all other {found.by}s; in the last row, in the whole text."
    )
    return [first, *_further(found, gap)]


def _further(found: "BySource", gap: Gap) -> list[str]:
    """Return the notes on models that are level, on shares not to be claimed, on intervals, and on other sources."""
    notes = []
    if level := [each.model for each in found.hits if each.part is None]:
        notes.append(f"Level with {gap.reference}, so without a share: {', '.join(level)}.")
    doubts: dict[str, dict[str, list[str]]] = {}
    for row in found.sources:
        for each in row.models:
            if each.part is not None and each.reason is not None:
                doubts.setdefault(each.reason, {}).setdefault(each.model, []).append(row.name)
    for reason, models in doubts.items():
        listed = ", ".join(f"{model} ({_some(names, len(found.sources))})" for model, names in models.items())
        without = f"without that {found.by}"
        start = f"Level {without}" if reason == NO_SHARE else f"Unresolved {without} ({reason})"
        notes.append(f"{start}: {listed}.")
    if found.by == "source":
        notes.append(_over_sources(found, gap))
    if found.smaller:
        notes.append(f"{found.smaller:,} further {found.by}s hold less of the text and of every {gap_word(gap)}.")
    return notes


def _over_sources(found: "BySource", gap: Gap) -> str:
    """Say which gaps and leads hold, and between which ends, with sources as the units of the intervals."""
    number = len(found.sources) + found.smaller
    if not found.over:
        return (
            f"The {number} sources count as {found.worth:.0f} of equal size, too few to be the units of intervals: "
            "what holds of them need not hold of others."
        )
    start = f"With the {number} sources, not the documents, as units"
    if len(found.over) > MANY:
        judged = [each for each in found.over if gap.directions[each.model] != "level"]
        lost = ", ".join(each.model for each in judged if contains_zero(each.delta_ci95))
        return f"{start}, {f'these become level: {lost}' if lost else 'no model becomes level'}."
    ends = [
        f"{signed_range(each.delta_ci95)} for {each.model}"
        + (f" ({percent_range(*each.share_ci95)} of it on {gap.hits})" if each.share_ci95 else "")
        for each in found.over
    ]
    return f"{start}, ΔNLL is {'; '.join(ends)}."


def _some(names: Sequence[str], listed: int) -> str:
    return ", ".join(names) if len(names) <= NAMED else f"{len(names)} of {listed}"


def _cells(each: "ModelWithout") -> tuple[str, str]:
    if each.part is None:
        return DASH, DASH
    if each.hits is None:
        return percent(each.part), LEVEL if each.reason == NO_SHARE else DASH
    return percent(each.part), f"({percent(each.hits)})" if each.reason else percent(each.hits)


def _over_models(models: "Sequence[ModelWithout]", whole: "Sequence[ModelWithout]") -> tuple[str, ...]:
    """Return median and range over models: of the source's share of the gap, and of the change without it; 4 cells."""
    parts = [each.part for each in models if each.part is not None]
    changes = [
        100 * (each.hits - before.hits)
        for each, before in zip(models, whole, strict=True)
        if each.hits is not None and before.hits is not None
    ]
    middle, ends = (percent(median(parts)), percent_range(min(parts), max(parts))) if parts else (DASH, DASH)
    if not changes:
        return middle, ends, DASH, DASH
    return middle, ends, signed(median(changes), 1), f"{signed(min(changes), 1)} to {signed(max(changes), 1)}"
