"""Print a table as text for a terminal, Markdown or LaTeX, and write records as CSV."""

import csv
import io
import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite, isnan
from textwrap import wrap
from typing import IO, TYPE_CHECKING, Any, Literal, cast

from argap.reports.tables.numbers import DASH
from argap.runtime.streams import OwnSequences, on_one_line, visible

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from rich.table import Table as RichTable

Form = Literal["terminal", "markdown", "latex"]
"""Output format of a table."""
FORMULA = ("=", "+", "-", "@", "＝", "＋", "－", "＠")
"""First characters that a spreadsheet reads as a formula, behind white space too."""
WIDEST = 1000  # characters; wider than any table
HEADING = 9  # characters of a heading before it wraps
ENDS = "95% interval"
"""Heading of the interval of the column before it."""
MARKS = "ᵃᵇᶜᵈᵉᶠᵍʰⁱʲ"
LATEX = {
    "\\": r"\textbackslash{}",
    **{sign: "\\" + sign for sign in "&%$#_{}"},
    **{sign: f"${sign}$" for sign in "<>|"},
    **{sign: f"{{{sign}}}" for sign in "[]"},  # else the previous row's end would read [ as its option
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "—": "---",
    "–": "--",
    "“": "``",
    "”": "''",
    "−": "$-$",
    "×": r"$\times$",
    "∞": r"$\infty$",
    "Δ": r"$\Delta$",
    "β": r"$\beta$",
    "τ": r"$\tau$",
    "ᵀ": r"\textsuperscript{T}",
    **{mark: rf"\textsuperscript{{{letter}}}" for mark, letter in zip(MARKS, "abcdefghij", strict=True)},
}


@dataclass(frozen=True)
class Table:
    """Cells as text, one tuple per row, and the notes below them."""

    columns: Sequence[str]
    """Headings."""
    rows: Sequence[tuple[str, ...]]
    notes: Sequence[str] = ()
    best: frozenset[tuple[int, int]] = frozenset()
    """Row and column of the cells in bold."""
    title: str = ""
    left: Collection[int] = (0,)
    """Columns that are left-aligned."""
    spare: Sequence[int] = ()
    """Columns that a narrow terminal can do without, the least important first."""

    def aligned(self) -> list[tuple[str, Literal["left", "right"]]]:
        """Return each heading with the alignment of its column."""
        return [(title, "left" if k in self.left else "right") for k, title in enumerate(self.columns)]


def best_in(
    rows: Sequence[Sequence[str]],
    columns: Mapping[int, Sequence[float | None]],
    *,
    highest: bool = False,
    groups: Sequence[object] | None = None,
) -> frozenset[tuple[int, int]]:
    """Return the row and column of every cell that prints the best value of its column, ties included.

    The best value is the lowest, or the highest if ``highest``.
    ``columns``: values by column, one per row; None is not compared. ``groups``: the group of each row, to
    pick the best within each group. If all cells print the same, none is best.
    """
    found = set()
    for column, values in columns.items():
        by_group: dict[object, list[int]] = {}
        for k, value in enumerate(values):
            if value is not None and isfinite(value):
                by_group.setdefault(None if groups is None else groups[k], []).append(k)
        for members in by_group.values():
            first = (max if highest else min)(members, key=lambda k: values[k] or 0.0)
            like = {(k, column) for k in members if rows[k][column] == rows[first][column]}
            if len(like) < len(members):
                found |= like
    return frozenset(found)


def terminal(table: Table) -> "RichTable":
    """Return a rich table without the notes; model names are never parsed as markup."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table as RichTable
    from rich.text import Text

    result = RichTable(
        box=SIMPLE_HEAD, padding=0, title=Text(visible(table.title)) if table.title else None, title_justify="left"
    )
    rows = [tuple(map(on_one_line, row)) for row in table.rows]
    for k, (title, align) in enumerate(table.aligned()):
        # Headings break; a number never does.
        width = max([HEADING, *(len(row[k]) for row in rows)])
        result.add_column(
            Text("\n".join(wrap(visible(title), width, break_long_words=False))), justify=align, no_wrap=True
        )
    for k, row in enumerate(rows):
        result.add_row(*(Text(cell, "bold" if (k, j) in table.best else "") for j, cell in enumerate(row)))
    return result


def print_tables(tables: Sequence[Table], form: Form = "terminal") -> None:
    """Print tables to the terminal, or as Markdown or LaTeX.

    A table wider than the terminal is narrowed (`narrower`). If that does not suffice, or if there is no terminal, it
    is printed in full.
    """
    if form != "terminal":
        print("\n".join(map(markdown if form == "markdown" else latex, tables)), end="")
        return
    from rich.console import Console
    from rich.text import Text

    drawn_on = cast("IO[str]", OwnSequences(sys.stdout))
    console = Console(file=drawn_on)
    wide = console.options.update(width=WIDEST)

    def needed(table: Table) -> int:
        return console.measure(terminal(table), options=wide).maximum - 1  # the box ends in a space

    for table in tables:
        if console.is_terminal or "COLUMNS" in os.environ:
            table = next((each for each in narrower(table) if needed(each) <= console.width), table)
        whole = Console(file=drawn_on, width=max(console.width, needed(table) + 1))
        with whole.capture() as drawn:
            whole.print(terminal(table))
        console.file.write("\n".join(line.rstrip() for line in drawn.get().split("\n")))
        if table.notes:
            console.print(Text(visible("\n".join(table.notes))))


def narrower(table: Table) -> Iterator[Table]:
    """Yield a table in ever narrower forms: without its spare columns, then with each interval below its number."""
    for each in (table, stacked(table)):
        for count in range(len(each.spare) + 1):
            yield without_columns(each, each.spare[:count])


def stacked(table: Table) -> Table:
    """Return a table with each interval in a row of its own, below the number in the column before it."""
    own = [k for k, title in enumerate(table.columns) if title != ENDS]
    place = {k: new for new, k in enumerate(own)}
    rows: list[tuple[str, ...]] = []
    best = set()
    for number, cells in enumerate(table.rows):
        best |= {(len(rows), place[column]) for row, column in table.best if row == number and column in place}
        rows.append(tuple(cells[k] for k in own))
        below = tuple(cells[k + 1] if ENDS in table.columns[k + 1 : k + 2] else "" for k in own)
        if any(cell not in ("", DASH) for cell in below):
            rows.append(below)
    return replace(
        table,
        columns=[table.columns[k] for k in own],
        rows=rows,
        best=frozenset(best),
        left={place[k] for k in table.left if k in place},
        spare=[place[k] for k in table.spare],
    )


def without_columns(table: Table, left_out: Collection[int]) -> Table:
    """Return a table without some columns, and a note that names them."""
    if not left_out:
        return table
    place = {k: new for new, k in enumerate(k for k in range(len(table.columns)) if k not in left_out)}
    names = ", ".join(table.columns[k] for k in left_out)
    return replace(
        table,
        columns=[table.columns[k] for k in place],
        rows=[tuple(row[k] for k in place) for row in table.rows],
        notes=(*table.notes, f"Not shown at this width: {names}."),
        best=frozenset((row, place[column]) for row, column in table.best if column in place),
        left={place[k] for k in table.left if k in place},
        spare=(),
    )


def markdown(table: Table) -> str:
    """Return a GitHub table with the notes below it; the notes alone without rows."""
    titles = [in_markdown(title) for title in table.columns]
    rule = ["---" if align == "left" else "---:" for _, align in table.aligned()]
    lines = [
        titles,
        rule,
        *([f"**{cell}**" if best else cell for cell, best in row] for row in _marked(table, in_markdown)),
    ]
    body = "\n".join("| " + " | ".join(line) + " |" for line in lines) if table.rows else ""
    notes = "\n".join(f"- {in_markdown(note)}" for note in table.notes)
    title = f"**{in_markdown(table.title)}**" if table.title else ""
    return "\n\n".join(part for part in (title, body, notes) if part) + "\n"


def latex(table: Table) -> str:
    """Return a LaTeX tabular in booktabs style with the notes below it; the notes alone without rows."""

    def line(cells: Sequence[str]) -> str:
        return " & ".join(cells) + r" \\"

    columns = "".join(align[0] for _, align in table.aligned())
    title = [f"% {_in_latex(table.title)}"] if table.title else []
    notes = [rf"\par\footnotesize {_in_latex(note)}" for note in table.notes]
    if not table.rows:
        return "\n".join([*title, *notes]) + "\n"
    rows = [
        *title,
        "% \\usepackage{booktabs}",
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        line([_in_latex(title) for title in table.columns]),
        r"\midrule",
        *(line([rf"\textbf{{{c}}}" if best else c for c, best in row]) for row in _marked(table, _in_latex)),
        r"\bottomrule",
        r"\end{tabular}",
        *notes,
    ]
    return "\n".join(rows) + "\n"


def _marked(table: Table, written: Callable[[str], str]) -> list[list[tuple[str, bool]]]:
    """Return the text of every cell, with True for the best ones."""
    return [[(written(cell), (k, j) in table.best) for j, cell in enumerate(row)] for k, row in enumerate(table.rows)]


def _in_latex(text: str) -> str:
    return "".join(LATEX.get(sign, sign) for sign in " ".join(text.split()))


def csv_of(records: Sequence[Mapping[str, Any]], fields: Collection[str] = ()) -> str:
    """Return records as CSV with the given ``fields``; by default every field that any record has.

    Numbers have twelve digits: the last digits of an interval depend on the processor's order of summation.
    """
    out = io.StringIO()
    named = fields or dict.fromkeys(name for record in records for name in record)
    writer = csv.DictWriter(out, list(named), lineterminator="\n")
    writer.writerow({name: _in_csv(name) for name in named})
    for record in records:
        writer.writerow({name: _in_csv(value) for name, value in record.items()})
    return out.getvalue()


def csv_of_frame(frame: "pd.DataFrame") -> str:
    """Return the rows of a data frame as CSV; see `csv_of`."""
    return csv_of(frame.to_dict("records"), list(frame.columns))  # pyright: ignore[reportArgumentType]


def csv_of_rows(table: "pa.Table") -> bytes:
    """Return the rows of an Arrow table as CSV, for millions of them: text is whole, else as `csv_of` writes it.

    The labels of spans, a list, are joined by commas.
    """
    import pyarrow as pa
    from pyarrow import compute, csv

    made = io.BytesIO()
    formula = f"^(\\s*[{''.join(FORMULA)}])".replace("-", "\\-")
    as_text = compute.ReplaceSubstringOptions(formula, r"'\1")
    columns = []
    for column in table.columns:
        if pa.types.is_list(column.type):
            column = compute.call_function("binary_join", [column.cast(pa.list_(pa.string())), ", "])
        of_type = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
        if pa.types.is_string(of_type) or pa.types.is_large_string(of_type):
            column = compute.call_function("replace_substring_regex", [column.cast(of_type)], as_text)
        columns.append(column)
    csv.write_csv(pa.table(columns, names=[_in_csv(name) for name in table.column_names]), made)
    return made.getvalue()


def _in_csv(value: Any) -> Any:
    """Return a number with twelve digits, or text on one line, with an apostrophe before anything like a formula."""
    if isinstance(value, float):
        return "" if isnan(value) else f"{value:.12g}"
    if not isinstance(value, str):
        return value
    text = " ".join(value.split())
    return f"'{text}" if text.startswith(FORMULA) else text


def in_markdown(text: str) -> str:
    """Escape text so that it cannot break the table or turn into markup or HTML."""
    text = " ".join(text.split())
    for sign in "\\`*_{}[]<>|#!":
        text = text.replace(sign, "\\" + sign)
    return text
