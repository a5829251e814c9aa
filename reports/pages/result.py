"""Render the report as one HTML file that needs no network: style, figures, text, and an optional script.

With more than `MANY` models there is one summary, and the tables of parts are split to fit a printed page.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from argap.records import COPY, INDUCTION, KNOWN, Estimate, Examples, Gap, GapRow, Part
from argap.reports.pages.interactive import page_data
from argap.reports.pages.page import inline_svg, render_page
from argap.reports.tables.by_source import source_cells, source_columns, source_notes, sources_table, sources_title
from argap.reports.tables.fidelity import fidelity_table
from argap.reports.tables.formats import Table
from argap.reports.tables.numbers import DASH, MANY, nats_interval, percent, signed, threshold_text
from argap.reports.tables.overview import by_gap, overview
from argap.reports.tables.provenance import provenance
from argap.reports.tables.result import context_table, interval_notes, main_tables, recall_table, slices_table
from argap.reports.tables.sentences import caption, headlines
from argap.reports.tables.tokens import show_window
from argap.results.layout import OWN_SCALES

if TYPE_CHECKING:
    from argap.reports.figures.result import Drawn
    from argap.results.by_source import BySource

BREAKDOWNS = {
    "frequency": "By training frequency of the bigram",
    "distance": "By distance to the bigram's nearest occurrence",
    "position": "By position in the window",
    "domain": "By domain",
    COPY: "By what can be copied from the window",
    INDUCTION: "By the induction prediction",
}


@dataclass(frozen=True)
class PartsTable:
    """Sets of scored tokens as text: slices, or a partition, whose last row is the total.

    A cell's second line is its 95% interval.
    """

    title: str
    first: str
    """Heading of the first column."""
    columns: list[str]
    groups: list[tuple[str, list[list[str]]]]
    """Rows under a heading of their own; a single group has the heading ""."""
    total: list[str]
    """Empty for slices, which may overlap."""
    notes: Sequence[str] = ()
    wide: Sequence[int] = ()
    """Columns that a phone leaves out."""


@dataclass(frozen=True)
class Further:
    """An extra section of the page."""

    title: str
    tables: Mapping[str, Table]
    """By title."""
    figures: "Mapping[str, Drawn]"
    captions: Mapping[str, str]


def render(
    gap: Gap,
    examples: Examples | None,
    figures: "Mapping[str, Drawn]",
    further: Further | None = None,
    sources: "BySource | None" = None,
) -> str:
    """Render the whole page. ``figures``: from `argap.reports.figures.result.draw_all`. ``further``: an extra section.

    ``sources``: the gap without each source; None leaves that section out.

    All text from models, corpora and folders is escaped.
    """
    more = {} if further is None else further.figures
    names = [name for name in figures if not name.endswith(OWN_SCALES)]
    # Many models are sorted by ΔNLL, and each table of parts has as many as fit across a printed page.
    rows = by_gap(gap) if len(gap.compared) > MANY else [row for row in gap.compared if row.model in gap.deltas]
    data = page_data(gap, {name: drawn.panels for name, drawn in [*figures.items(), *more.items()]}, slices_rows)
    return render_page(
        "report.html.j2",
        data,
        states=len(data.states),
        own=data.own,
        reference=gap.reference,
        headlines=headlines(gap),
        overview=overview(gap),
        doubts=interval_notes(gap)[1:],
        threshold=None if gap.threshold is None else threshold_text(gap.threshold),
        hits=gap.hits,
        share=percent(gap.on_hits.share_of_tokens),
        tables=main_tables(gap),
        fidelity=fidelity_table(gap),
        recall=recall_table(gap),
        context=context_table(gap),
        figures=[(name, inline_svg(figures[name].path, name), caption(gap, name)) for name in names],
        own_scales={
            name: inline_svg(figures[own].path, own, name)
            for name in names
            if (own := f"{name}{OWN_SCALES}") in figures
        },
        further=further,
        more=[(name, inline_svg(drawn.path, name), further.captions[name]) for name, drawn in more.items()]
        if further
        else [],
        rule=examples.choice if examples else "",
        known=percent(KNOWN, 0),
        dropped=len(examples.windows) - len(examples.known) if examples else 0,
        windows=[show_window(window, gap.reference) for window in (() if examples is None else examples.known)],
        slices=_slices_table(gap) if gap.named else None,
        breakdowns=[
            (title, [_parts_table(gap, parts, title, rows[k : k + MANY]) for k in range(0, max(1, len(rows)), MANY)])
            for by, title in BREAKDOWNS.items()
            if len(parts := gap.parts(by)) > 1 and gap.on_all[gap.reference].nll is not None
        ],
        sources=None
        if sources is None or not gap.compared or (sources.by == "domain" and len(gap.parts("domain")) < 2)
        else _without_each(sources, gap, [row.model for row in rows]),
        evaluation=gap.evaluation,
        unit=gap.unit,
        provenance=provenance(gap),
    )


def _slices_table(gap: Gap) -> PartsTable:
    """Return the rows of `slices_table` grouped by model, with each interval below its value."""
    table = slices_table(gap.named, threshold=gap.threshold, unit=gap.unit)
    groups: dict[str, list[list[str]]] = {}
    for model, name, n, share, ppl, delta, part, ends, due, due_ends, hits in table.rows:
        below = [
            value if DASH in (value, interval) else f"{value}\n{interval}"
            for value, interval in ((part, ends), (due, due_ends))
        ]
        groups.setdefault(model, []).append([name, n, share, ppl, delta, *below, hits])
    titles = [title for title in table.columns if title != "95% interval"]
    return PartsTable("Slices", "Slice", titles[2:], list(groups.items()), [], table.notes, wide=(0, 2, 3, 6))


def slices_rows(gap: Gap) -> tuple[list[list[str]], Sequence[str]] | None:
    """Return rows and notes of `_slices_table`, without the headings of groups; None without slices."""
    if not gap.named:
        return None
    table = _slices_table(gap)
    return [row for _, rows in table.groups for row in rows], table.notes


def _parts_table(gap: Gap, parts: Sequence[Part], title: str, rows: Sequence[GapRow]) -> PartsTable:
    """Return the table of a partition for the reference and the models of ``rows``."""
    models = [gap.reference, *(row.model for row in rows)]
    groups: dict[str, list[list[str]]] = {}
    compared = [row.model for row in rows]
    for part in parts:
        group = {None: "", True: "repeated", False: "not repeated"}[part.repeated]
        cells = [f"{part.n:,}", percent(part.share_of_tokens), *(_nll(part[m].nll, gap) for m in models)]
        cells += [_contribution(part[m]) for m in compared]
        groups.setdefault(group, []).append([part.bin, *cells])
    whole = gap.on_all
    total = ["all", f"{whole.n:,}", percent(whole.share_of_tokens), *(_nll(whole[m].nll, gap) for m in models)]
    total += [_contribution(whole[m]) for m in compared]
    return PartsTable(
        title=title if len(models) == len(gap.models) else f"{title}: {', '.join(models[1:])}",
        first="Domain" if parts[0].partition == "domain" else "Bin",
        columns=[
            f"{gap.unit.capitalize()}s",
            "Share",
            *(f"NLL, {m}" for m in models),
            *(f"ΔNLL, {row.model}" for row in rows),
        ],
        groups=sorted(groups.items(), key=lambda item: item[0] != "repeated"),
        total=total,
    )


@dataclass(frozen=True)
class WithoutEach:
    """The gap without each source, as text."""

    title: str
    reason: str | None
    """Why there is nothing to leave out."""
    summary: Table | None
    """Over more than `MANY` models."""
    parts: list[PartsTable]
    notes: Sequence[str]


def _without_each(found: "BySource", gap: Gap, models: Sequence[str]) -> WithoutEach:
    """Return the section on sources; ``models``: in the order of the page."""
    title = sources_title(found)
    if found.reason:
        return WithoutEach(title, found.reason, None, [], ())
    parts = []
    for k in range(0, len(models), MANY):
        some = models[k : k + MANY]
        rows, total = source_cells(found, some)
        first, *columns = source_columns(found, gap, some)
        name = title if len(models) <= MANY else f"{title}: {', '.join(some)}"
        parts.append(PartsTable(name, first, columns, [("", rows)], total))
    summary = sources_table(found, gap) if len(models) > MANY else None
    return WithoutEach(title, None, summary, parts, source_notes(found, gap))


def _nll(value: float | None, gap: Gap) -> str:
    return DASH if value is None else f"{value:.{2 if gap.unit == 'token' else 3}f}"


def _contribution(each: Estimate) -> str:
    """Format a contribution in nats, its share, and its interval on a second line: ``+0.132 · 26%``.

    The share is in percent of the gap or lead, if there is one; in parentheses if unresolved.
    """
    if each.contribution is None:
        return DASH
    text = signed(each.contribution)
    if each.share is not None:
        share = percent(each.share, 0)
        text += f" · ({share})" if each.reason else f" · {share}"
    return text if each.contribution_ci95 is None else f"{text}\n{nats_interval(each.contribution_ci95)}"
