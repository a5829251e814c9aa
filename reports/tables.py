"""The result as a table in the form of the paper's Table 1: for a terminal, Markdown and CSV.

A cell of a slice is written ``11.01 (2.40)``: perplexity (NLL). An em dash stands where there is no
number; a raised letter after a percentage points to the note that says why the quotient is not taken as it is.
"""

import csv
import io
from dataclasses import dataclass
from textwrap import wrap
from typing import Any, Literal

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

Row = dict[str, Any]

DASH = "—"
WIDEST = 1000  # columns; no table is
HEADING = 9  # columns that a heading may take before it breaks
MARKS = "ᵃᵇᶜᵈᵉ"
SLICES = {"overall": "Overall", "ar_hits": "AR hits", "other": "Other tokens"}
CLOSED = ("overall", "ar_hits")
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


def gap_table(gap: dict[str, Any]) -> Table:
    """The rows of ``gap.json`` as text, with the notes that make them readable alone."""
    rows = gap["rows"]
    marks = _marks(rows)
    columns = [Column("Model", "left"), Column("Params")]
    columns += [Column(title) for title in SLICES.values()]
    columns += [Column("% of gap due to AR"), Column("95% interval")]
    cells = [
        (
            row["model"],
            parameters(row.get("parameters")),
            *(perplexity_cell(row[key]) for key in SLICES),
            gap_cell(row) + "".join(marks.get(reason, "") for reason in _reasons(row)),
            interval_cell(row),
        )
        for row in rows
    ]
    notes = (_scope(gap), *(f"{mark} {reason}." for reason, mark in marks.items()))
    return Table(tuple(columns), tuple(cells), notes)


def closed_table(gap: dict[str, Any]) -> Table | None:
    """The share of a base model's gap that others close; None where it was not asked for."""
    rows = [row for row in gap["rows"] if row.get("closed")]
    if not rows:
        return None
    base = rows[0]["closed"]["base"]
    columns = (Column("Model", "left"), Column("Gap closed, overall"), Column("Gap closed, AR hits"))
    cells = tuple((row["model"], *(_closed_cell(row["closed"][part]) for part in CLOSED)) for row in rows)
    note = f"Share of the gap of {base} to {gap['reference']} that is closed, in perplexity (in NLL)."
    return Table(columns, cells, (note,))


def tables_of(gap: dict[str, Any]) -> list[Table]:
    """All tables of a result, in the order to show them."""
    tables = [gap_table(gap), closed_table(gap)]
    return [table for table in tables if table is not None]


def terminal(table: Table) -> RichTable:
    """A rich table, without the notes; model names are never read as markup."""
    result = RichTable(box=SIMPLE_HEAD, padding=0)
    for k, column in enumerate(table.columns):
        # Headings break; a number never does.
        width = max(HEADING, *(len(row[k]) for row in table.rows))
        result.add_column(Text("\n".join(wrap(column.title, width))), justify=column.align, no_wrap=True)
    for row in table.rows:
        result.add_row(*(Text(cell) for cell in row))
    return result


def print_table(gap: dict[str, Any]) -> None:
    """The result on stdout; a narrow terminal breaks lines rather than lose a number."""
    console = Console()
    for table in tables_of(gap):
        drawn = terminal(table)
        needed = console.measure(drawn, options=console.options.update(width=WIDEST)).maximum
        Console(width=max(console.width, needed)).print(drawn)
        console.print(Text("\n".join(table.notes)))


def markdown(table: Table) -> str:
    """A GitHub table with the notes below it."""
    titles = [_cell_of_markdown(column.title) for column in table.columns]
    rule = ["---" if column.align == "left" else "---:" for column in table.columns]
    lines = [titles, rule, *([_cell_of_markdown(cell) for cell in row] for row in table.rows)]
    body = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    notes = "\n".join(f"- {_cell_of_markdown(note)}" for note in table.notes)
    return f"{body}\n\n{notes}\n"


def csv_text(gap: dict[str, Any]) -> str:
    """One line a model, an empty field where there is none."""
    records = [_record(row) for row in gap["rows"]]
    return csv_of(records, list(dict.fromkeys(key for record in records for key in record)))


def csv_of(records: list[dict[str, Any]], fields: list[str]) -> str:
    """The ``fields`` of each record, a line each. Numbers have twelve digits: the last ones of an interval depend on
    the order in which a processor sums."""
    out = io.StringIO()
    writer = csv.DictWriter(out, fields, lineterminator="\n")
    writer.writeheader()
    for record in records:
        writer.writerow({key: f"{x:.12g}" if isinstance(x, float) else x for key, x in record.items()})
    return out.getvalue()


def perplexity_cell(part: dict[str, Any]) -> str:
    """``11.01 (2.40)``; ``> 1e308`` where no float64 holds the perplexity."""
    if part["nll"] is None:
        return DASH
    return f"{'> 1e308' if part['ppl'] is None else number(part['ppl'])} ({part['nll']:.2f})"


def number(value: float) -> str:
    """Two decimals, fewer where the number is large: ``11.01``, ``1,234``, ``2.0e+07``."""
    if value < 1000:
        return f"{value:.2f}"
    return f"{value:,.0f}" if value < 1e6 else f"{value:.1e}"


def gap_cell(row: Row) -> str:
    """``73.1%``; an em dash for the reference and where there is no gap."""
    due = row["gap_due_to_ar"]
    return DASH if due is None or due["value"] is None else percent(due["value"])


def interval_cell(row: Row) -> str:
    """``70.2–75.4%``."""
    due = row["gap_due_to_ar"]
    return DASH if due is None or due["value"] is None or due["ci95"] is None else percent_range(*due["ci95"])


def percent(value: float, digits: int = 1) -> str:
    """``73.1%`` of a fraction, with a true minus sign and no negative zero."""
    return f"{100 * value:z.{digits}f}%".replace("-", "−")


def nats(value: float) -> str:
    """``0.506``, with a true minus sign and no negative zero."""
    return f"{value:z.3f}".replace("-", "−")


def percent_range(low: float, high: float) -> str:
    """``70.2–75.4%``, or ``−3.0 to 4.1%`` where a minus sign would hide the dash."""
    if low < 0:
        return f"{percent(low).removesuffix('%')} to {percent(high)}"
    return f"{100 * low:.1f}–{percent(high)}"


def parameters(count: int | None) -> str:
    """``6.9 M``."""
    if count is None:
        return DASH
    for unit, size in (("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if count >= size:
            scaled = count / size
            return f"{scaled:.1f} {unit}" if scaled < 100 else f"{scaled:.0f} {unit}"
    return str(count)


def threshold_text(threshold: float) -> str:
    """``1,250``. Counts are whole, so that a scaled threshold means its whole part."""
    return f"{int(threshold):,}"


def _scope(gap: dict[str, Any]) -> str:
    row = gap["rows"][0]
    proxy = " (proxy: not counted from the training documents)" if gap.get("index", {}).get("proxy") else ""
    return (
        f"Perplexity (NLL in nats) on {row['overall']['n']:,} scored tokens; AR hits are "
        f"{percent(row['share_ar_hits'])} of them: bigrams repeated in the window and seen at most "
        f"{threshold_text(gap['threshold'])} times in training{proxy}. Reference: {gap['reference']}."
    )


def _reasons(row: Row) -> list[str]:
    """The notes that a row's percentage needs."""
    due = row["gap_due_to_ar"]
    if due is None:
        return []
    reasons = [CASES[due["case"]]] if due["case"] in CASES else []
    if due["case"] == "explained" and due["raw"] > 1:
        reasons.append(CAPPED)
    if due["reason"] and due["case"] in ("explained", "reversed"):
        reasons.append(NO_INTERVAL[due["reason"]])
    return reasons


def _marks(rows: list[Row]) -> dict[str, str]:
    """A letter for each note in use, in the order of the rows."""
    reasons = dict.fromkeys(reason for row in rows for reason in _reasons(row))
    return dict(zip(reasons, MARKS, strict=False))


def _closed_cell(value: dict[str, float | None] | None) -> str:
    """``97.4% (96.1%)``: in perplexity (in NLL)."""
    if value is None or value["ppl"] is None or value["nll"] is None:
        return DASH
    return f"{percent(value['ppl'])} ({percent(value['nll'])})"


def _record(row: Row) -> dict[str, Any]:
    """One flat line of CSV."""
    due = row["gap_due_to_ar"] or {}
    record = {key: row.get(key) for key in ("model", "reference", "parameters", "run")}
    for part in SLICES:
        record |= {f"{part}_{key}": row[part][key] for key in ("n", "nll", "ppl")}
    record["share_ar_hits"] = row["share_ar_hits"]
    record |= {f"gap_due_to_ar_{key}": due.get(key) for key in ("value", "raw", "case")}
    record |= _ends("gap_due_to_ar", due)
    for name in ("delta", "delta_ar"):
        record[f"{name}_nll"] = (row[name] or {}).get("nll")
        record |= _ends(f"{name}_nll", row[name] or {})
    if row.get("closed"):
        record["closed_base"] = row["closed"]["base"]
        for part in CLOSED:
            record |= {f"closed_{part}_{key}": (row["closed"][part] or {}).get(key) for key in ("ppl", "nll")}
    return record


def _ends(name: str, value: dict[str, Any]) -> dict[str, Any]:
    low, high = value.get("ci95") or (None, None)
    return {f"{name}_low": low, f"{name}_high": high}


def _cell_of_markdown(text: str) -> str:
    """Text that cannot break the table, nor turn into markup or HTML."""
    text = " ".join(text.split())
    for sign in "\\`*_{}[]<>|#!":
        text = text.replace(sign, "\\" + sign)
    return text
