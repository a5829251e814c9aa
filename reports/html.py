"""The report as one HTML file that needs no network: style, figures and text inline, no script."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from argap.intervals import FEW, unresolved
from argap.records import Examples, Gap, GapRow, Interval, Part
from argap.reports.numbers import DASH, nats, nats_interval, percent, threshold_text
from argap.reports.page import template
from argap.reports.sentences import CAPTIONS, headlines
from argap.reports.slice_tables import slices_table
from argap.reports.tables import closed_table, gap_table
from argap.reports.tokens import show_window

BREAKDOWNS = {
    "frequency": "By training frequency of the bigram",
    "distance": "By distance to the bigram's nearest occurrence",
    "position": "By position in the window",
    "domain": "By domain",
}


SCORED = {"token": "of them scored", "byte": "bytes of the text scored"}


@dataclass(frozen=True)
class PartsTable:
    """Sets of scored tokens as text: slices, or a partition, whose last row is the sum of all.

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
    notes: tuple[str, ...] = ()


def render(gap: Gap, examples: Examples | None, figures: dict[str, Path]) -> str:
    """The whole page. ``figures``: the path of each SVG by the figure's name, as `argap.reports.figures.draw_all`
    returns them.

    Everything that comes from models, corpora and folders is escaped.
    """
    return template("report.html.j2").render(
        reference=gap.reference,
        headlines=headlines(gap),
        threshold=None if gap.threshold is None else threshold_text(gap.threshold),
        hits=gap.hits,
        share=percent(gap.rows[0].share_ar_hits),
        tables=[table for table in (gap_table(gap), closed_table(gap)) if table is not None],
        figures=[(name, inline_svg(path, name), CAPTIONS[name]) for name, path in figures.items()],
        rule=examples.rule if examples else "",
        windows=[show_window(window, gap.reference) for window in examples.windows] if examples else [],
        slices=_slices_table(gap) if gap.slices else None,
        breakdowns=[
            _parts_table(gap, parts, title)
            for by, title in BREAKDOWNS.items()
            if (parts := getattr(gap.breakdowns, by))
        ],
        evaluation=gap.evaluation,
        unit=gap.unit,
        provenance=_provenance(gap),
    )


def inline_svg(path: Path, name: str) -> Markup:
    """An SVG file of ours as an element: no prologue, comments or namespaces, ids that no other figure has."""
    text = path.read_text(encoding="utf-8")
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", text, flags=re.DOTALL)
    head, body = text.split(">", 1)
    view_box = re.search(r'viewBox="[\d. ]+"', head)
    assert view_box is not None  # matplotlib always writes one
    body = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", body).replace("xlink:href", "href")
    return Markup(f'<svg {view_box[0]} role="img" aria-labelledby="caption-{name}">{body}')


def _slices_table(gap: Gap) -> PartsTable:
    """The rows of `slices_table` under their models, each interval below its figure."""
    table = slices_table(gap.slices, threshold=gap.threshold, unit=gap.unit)
    groups: dict[str, list[list[str]]] = {}
    for model, name, n, share, ppl, delta, part, ends, due, due_ends, hits in table.rows:
        below = [
            f"{value}\n{interval}" if value != DASH else value for value, interval in ((part, ends), (due, due_ends))
        ]
        groups.setdefault(model, []).append([name, n, share, ppl, delta, *below, hits])
    titles = [column.title for column in table.columns if column.title != "95% interval"]
    return PartsTable("Slices", "Slice", titles[2:], list(groups.items()), [], table.notes)


def _parts_table(gap: Gap, parts: Sequence[Part], title: str) -> PartsTable:
    groups: dict[str, list[list[str]]] = {}
    for part in parts:
        group = {None: "", True: "repeated", False: "not repeated"}[part.repeated]
        cells = [f"{part.n:,}", percent(part.share), *(_nll(part.nll[m], gap) for m in gap.models)]
        cells += [
            _contribution(gap, row, part.contribution[row.model], part.ci95.get(row.model)) for row in gap.compared
        ]
        groups.setdefault(group, []).append([part.bin, *cells])
    total = ["all", f"{sum(p.n for p in parts):,}", percent(sum(p.share for p in parts))]
    total += [_nll(sum(p.share * p.nll[m] for p in parts), gap) for m in gap.models]
    for row in gap.compared:
        ends = None if row.delta is None else row.delta.ci95
        total.append(_contribution(gap, row, sum(p.contribution[row.model] for p in parts), ends))
    return PartsTable(
        title=title,
        first="Domain" if parts is gap.breakdowns.domain else "Bin",
        columns=[
            f"{gap.unit.capitalize()}s",
            "Share",
            *(f"NLL, {m}" for m in gap.models),
            *(f"Gap, {m}" for m in gap.deltas),
        ],
        groups=sorted(groups.items(), key=lambda item: item[0] != "repeated"),
        total=total,
    )


def _nll(value: float, gap: Gap) -> str:
    return f"{value:.{2 if gap.unit == 'token' else 3}f}"


def _contribution(gap: Gap, row: GapRow, value: float, ends: Interval | None) -> str:
    """``0.132 · 26%`` and on a second line its interval: nats, and percent of the gap where there is one, in
    parentheses where it is unresolved."""
    assert row.delta is not None  # not the reference
    text, delta = nats(value), row.delta.nll
    if delta > 0:
        due = percent(value / delta, 0)
        doubt = unresolved(gap.documents or 2, gap.effective_documents or FEW, row.delta.ci95, ends)
        text += f" · ({due})" if doubt else f" · {due}"
    return text if ends is None else f"{text}\n{nats_interval(ends)}"


def _provenance(gap: Gap) -> list[tuple[str, str]]:
    """What was measured with what, as names and values."""
    evaluation, index = gap.evaluation, gap.index
    return [
        ("Text", ", ".join(evaluation.data)),
        (
            "Evaluation set",
            f"{evaluation.tokens:,} tokens, {evaluation.scored:,} {SCORED[gap.unit]}; {evaluation.windows:,} "
            f"windows of up to {evaluation.seq_len:,} tokens ({evaluation.packing}); "
            f"{evaluation.documents:,} documents"
            + (f", worth {gap.effective_documents:.1f} of equal size" if gap.effective_documents else ""),
        ),
        ("Fingerprint of the evaluation set", gap.fingerprint),
        (
            "Training index",
            "none: every repeated bigram counts"
            if index is None
            else f"{index.folder}: {index.tokens:,} tokens, {index.documents:,} documents, "
            f"{index.distinct:,} distinct bigrams, read {index.passes:.4g} times",
        ),
        ("Tokenizer", f"{evaluation.tokenizer} ({evaluation.tokenizer_fingerprint})"),
        ("Threshold τ", "none" if gap.threshold is None else f"{threshold_text(gap.threshold)} exposures"),
        ("Runs", ", ".join(row.run for row in gap.rows)),
        ("Versions", ", ".join(f"{name} {version}" for name, version in gap.versions.items())),
        ("Date", gap.date),
    ]
