"""The result as a table in the form of the paper's Table 1: for a terminal, Markdown and CSV.

A slice's cell reads ``11.01 (2.40)``: perplexity (NLL). An em dash means that there is no number; a raised letter after
a percentage points to the note that explains it. A percentage in parentheses is unresolved: it must not be claimed.
"""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Literal

from argap.intervals import FEW
from argap.records import ClosedShare, Delta, Gap, GapRow, GapShare, SliceScores
from argap.reports.numbers import DASH, parameters, percent, percent_range, perplexity, threshold_text

if TYPE_CHECKING:
    from rich.table import Table as RichTable

WIDEST = 1000  # columns; wider than any table
HEADING = 9  # columns that a heading may take before it breaks
MARKS = "ᵃᵇᶜᵈᵉᶠᵍʰⁱʲ"
CASES = {
    "recall_only": "at least as good as the reference overall but worse on the AR hits: by the paper's rule 100%",
    "no_gap": "at least as good as the reference overall and on the AR hits: there is no gap to explain",
    "reversed": "worse than the reference overall but better on the AR hits: the quotient is negative, shown as it is",
}
CAPPED = "the AR hits lose more than the whole gap, other tokens win some back: the quotient is capped at 100%"
NO_INTERVAL = {
    "gap not resolved": "gap not resolved: in more than 2.5% of the bootstrap's resamples the model has no gap",
    "a single document": "no interval: all scored tokens are of a single document, and documents are resampled",
}


@dataclass(frozen=True)
class Column:
    """A heading and how its cells are set."""

    title: str
    align: Literal["left", "right"] = "right"


@dataclass(frozen=True)
class Table:
    """Cells as text, one tuple a model, and the notes below them."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]


def gap_table(gap: Gap) -> Table:
    """One row a model: parameters, the three slices, and the share of the gap due to AR with its interval."""
    marks = _marks(gap.rows)
    hits, due = ("AR hits", "% of gap due to AR") if gap.index else ("Repeated", "% of gap due to repeats")
    titles = ("Params", "Overall", hits, "Other tokens", due, "95% interval")
    rows = tuple(
        (
            row.model,
            parameters(row.parameters),
            *(perplexity_cell(scores) for scores in (row.overall, row.ar_hits, row.other)),
            gap_cell(row) + "".join(marks.get(reason, "") for reason in _reasons(row)),
            interval_cell(row),
        )
        for row in gap.rows
    )
    notes = (
        _scope(gap),
        *_few_documents(gap),
        *(f"{mark} {reason.replace('AR hits', gap.hits)}." for reason, mark in marks.items()),
    )
    return Table((Column("Model", "left"), *map(Column, titles)), rows, notes)


def closed_table(gap: Gap) -> Table | None:
    """The share of a base model's gap that each other model closes; None for a comparison without a base."""
    closed = {row.model: row.closed for row in gap.rows if row.closed is not None}
    if not closed:
        return None
    base = next(iter(closed.values())).base
    columns = (Column("Model", "left"), Column("Gap closed, overall"), Column(f"Gap closed, {gap.hits}"))
    rows = tuple((model, _closed_cell(share.overall), _closed_cell(share.ar_hits)) for model, share in closed.items())
    note = f"Share of the gap of {base} to {gap.reference} that is closed, in perplexity (in NLL)."
    return Table(columns, rows, (note,))


def tables_of(gap: Gap) -> list[Table]:
    """All tables of a result, in the order to show them."""
    tables = [gap_table(gap), closed_table(gap)]
    return [table for table in tables if table is not None]


def terminal(table: Table) -> "RichTable":
    """A rich table, without the notes; model names are never read as markup."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table as RichTable
    from rich.text import Text

    result = RichTable(box=SIMPLE_HEAD, padding=0)
    for k, column in enumerate(table.columns):
        # Headings break; a number never does.
        width = max(HEADING, *(len(row[k]) for row in table.rows))
        result.add_column(Text("\n".join(wrap(column.title, width))), justify=column.align, no_wrap=True)
    for row in table.rows:
        result.add_row(*(Text(cell) for cell in row))
    return result


def print_table(gap: Gap) -> None:
    """Print the tables of a result."""
    for table in tables_of(gap):
        print_one(table)


def print_one(table: Table, notes: Sequence[str] = ()) -> None:
    """Print a table, its notes and further ones; one wider than the terminal is printed whole, and the terminal wraps
    its lines."""
    from rich.console import Console
    from rich.text import Text

    console = Console()
    drawn = terminal(table)
    needed = console.measure(drawn, options=console.options.update(width=WIDEST)).maximum
    Console(width=max(console.width, needed)).print(drawn)
    console.print(Text("\n".join([*table.notes, *notes])))


def markdown(table: Table) -> str:
    """A GitHub table with the notes below it."""
    titles = [_cell_of_markdown(column.title) for column in table.columns]
    rule = ["---" if column.align == "left" else "---:" for column in table.columns]
    lines = [titles, rule, *([_cell_of_markdown(cell) for cell in row] for row in table.rows)]
    body = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    notes = "\n".join(f"- {_cell_of_markdown(note)}" for note in table.notes)
    return f"{body}\n\n{notes}\n"


def csv_text(gap: Gap) -> str:
    """One line a model; a field without a value is empty. NLLs, differences and their intervals are in nats."""
    worth = {"documents": gap.documents, "effective_documents": gap.effective_documents}
    records = [_record(row) | worth for row in gap.rows]
    return csv_of(records, list(dict.fromkeys(name for record in records for name in record)))


def csv_of(records: Sequence[Mapping[str, Any]], fields: list[str]) -> str:
    """The ``fields`` of each record, one line each.

    Numbers have twelve digits: the last digits of an interval depend on the order in which a processor sums.
    """
    out = io.StringIO()
    writer = csv.DictWriter(out, fields, lineterminator="\n")
    writer.writeheader()
    for record in records:
        writer.writerow({name: f"{x:.12g}" if isinstance(x, float) else x for name, x in record.items()})
    return out.getvalue()


def perplexity_cell(scores: SliceScores) -> str:
    """``11.01 (2.40)``; ``> 1e308`` for a perplexity beyond float64."""
    if scores.nll is None:
        return DASH
    return f"{'> 1e308' if scores.ppl is None else perplexity(scores.ppl)} ({scores.nll:.2f})"


def gap_cell(row: GapRow) -> str:
    """``73.1%``, ``(73.1%)`` where it is unresolved; a dash for the reference and for a model without a gap."""
    due = row.gap_due_to_ar
    if due is None or due.value is None:
        return DASH
    return f"({percent(due.value)})" if due.unresolved else percent(due.value)


def interval_cell(row: GapRow) -> str:
    """``70.2–75.4%``."""
    due = row.gap_due_to_ar
    return DASH if due is None or due.value is None or due.ci95 is None else percent_range(*due.ci95)


def _scope(gap: Gap) -> str:
    row = gap.rows[0]
    scope = f"Perplexity (NLL in nats) on {row.overall.n:,} scored tokens; "
    share = percent(row.share_ar_hits)
    if gap.index is None or gap.threshold is None:
        scope += f"no index: every repeated bigram counts, {share} of the tokens"
    else:
        proxy = " (proxy: not counted from the training documents)" if gap.index.proxy else ""
        scope += (
            f"AR hits are {share} of them: bigrams repeated in the window and seen at most "
            f"{threshold_text(gap.threshold)} times in training{proxy}"
        )
    return f"{scope}. Reference: {gap.reference}."


def _few_documents(gap: Gap) -> list[str]:
    if gap.documents is None or gap.effective_documents is None or gap.effective_documents >= FEW:
        return []
    return [
        f"{gap.documents:,} documents, worth {int(gap.effective_documents)} of equal size: with fewer than {FEW} the "
        "intervals are too narrow."
    ]


def _reasons(row: GapRow) -> list[str]:
    """The notes that a row's percentage needs."""
    due = row.gap_due_to_ar
    if due is None:
        return []
    reasons = [CASES[due.case]] if due.case in CASES else []
    if due.case == "explained" and due.raw is not None and due.raw > 1:
        reasons.append(CAPPED)
    if due.unresolved and due.unresolved not in NO_INTERVAL:
        reasons.append(f"unresolved: {due.unresolved}")
    elif due.reason and due.case in ("explained", "reversed"):
        reasons.append(NO_INTERVAL[due.reason])
    return reasons


def _marks(rows: Sequence[GapRow]) -> dict[str, str]:
    """A letter for each note in use, in the order of the rows."""
    reasons = dict.fromkeys(reason for row in rows for reason in _reasons(row))
    return dict(zip(reasons, MARKS, strict=False))


def _closed_cell(share: ClosedShare | None) -> str:
    """``97.4% (96.1%)``: in perplexity (in NLL)."""
    if share is None or share.ppl is None or share.nll is None:
        return DASH
    return f"{percent(share.ppl)} ({percent(share.nll)})"


def _record(row: GapRow) -> dict[str, Any]:
    """A row as the fields of a CSV line."""
    record: dict[str, Any] = {
        "model": row.model,
        "reference": row.reference,
        "parameters": row.parameters,
        "run": row.run,
    }
    for name, scores in (("overall", row.overall), ("ar_hits", row.ar_hits), ("other", row.other)):
        record |= {f"{name}_n": scores.n, f"{name}_nll": scores.nll, f"{name}_ppl": scores.ppl}
    due = row.gap_due_to_ar
    record["share_ar_hits"] = row.share_ar_hits
    record |= {f"gap_due_to_ar_{name}": getattr(due, name, None) for name in ("value", "raw", "case", "unresolved")}
    record |= _ends("gap_due_to_ar", due)
    for name, delta in (("delta", row.delta), ("delta_ar", row.delta_ar)):
        record |= {f"{name}_nll": getattr(delta, "nll", None), **_ends(f"{name}_nll", delta)}
    if row.closed is not None:
        record["closed_base"] = row.closed.base
        for name, share in (("overall", row.closed.overall), ("ar_hits", row.closed.ar_hits)):
            record |= {f"closed_{name}_{unit}": getattr(share, unit, None) for unit in ("ppl", "nll")}
    return record


def _ends(name: str, value: GapShare | Delta | None) -> dict[str, float | None]:
    """Both ends of a 95% interval."""
    low, high = (None, None) if value is None or value.ci95 is None else value.ci95
    return {f"{name}_low": low, f"{name}_high": high}


def _cell_of_markdown(text: str) -> str:
    """Text that cannot break the table, nor turn into markup or HTML."""
    text = " ".join(text.split())
    for sign in "\\`*_{}[]<>|#!":
        text = text.replace(sign, "\\" + sign)
    return text
