"""A table as text, for a terminal, Markdown and LaTeX, and records as CSV."""

import csv
import io
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table as RichTable

Form = Literal["terminal", "markdown", "latex"]
"""How a table is printed."""
FORMULA = ("=", "+", "-", "@")
"""What a spreadsheet takes for the beginning of a formula."""
WIDEST = 1000  # columns; wider than any table
HEADING = 9  # columns that a heading may take before it breaks
MARKS = "ᵃᵇᶜᵈᵉᶠᵍʰⁱʲ"
LATEX = {
    "\\": r"\textbackslash{}",
    **{sign: "\\" + sign for sign in "&%$#_{}"},
    **{sign: f"${sign}$" for sign in "<>|"},
    **{sign: f"{{{sign}}}" for sign in "[]"},  # no option of a line's end
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
    """Cells as text, one tuple a model, and the notes below them."""

    columns: Sequence[str]
    """Headings."""
    rows: Sequence[tuple[str, ...]]
    notes: Sequence[str] = ()
    best: frozenset[tuple[int, int]] = frozenset()
    """Row and column of the cells in bold."""
    title: str = ""
    left: Collection[int] = (0,)
    """The columns whose cells are set on the left."""

    def aligned(self) -> list[tuple[str, Literal["left", "right"]]]:
        """Each heading, and where its column is set."""
        return [(title, "left" if k in self.left else "right") for k, title in enumerate(self.columns)]


def best_in(
    rows: Sequence[Sequence[str]],
    columns: Mapping[int, Sequence[float | None]],
    *,
    highest: bool = False,
    groups: Sequence[object] | None = None,
) -> frozenset[tuple[int, int]]:
    """The cells that hold the best value of their column, the lowest unless ``highest``, and those that print the same.

    ``columns``: the values of some columns, one a row; None: not compared. ``groups``: the best of each. Where all
    print the same, none is best.
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
    """A rich table, without the notes; model names are never read as markup."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table as RichTable
    from rich.text import Text

    result = RichTable(
        box=SIMPLE_HEAD, padding=0, title=Text(table.title) if table.title else None, title_justify="left"
    )
    for k, (title, align) in enumerate(table.aligned()):
        # Headings break; a number never does.
        width = max([HEADING, *(len(row[k]) for row in table.rows)])
        result.add_column(Text("\n".join(wrap(title, width, break_long_words=False))), justify=align, no_wrap=True)
    for k, row in enumerate(table.rows):
        result.add_row(*(Text(cell, "bold" if (k, j) in table.best else "") for j, cell in enumerate(row)))
    return result


def print_tables(tables: Sequence[Table], form: Form = "terminal") -> None:
    """Print tables for people, or as text for a document. One wider than the terminal is printed whole, and its
    lines wrap."""
    if form != "terminal":
        print("\n".join(map(markdown if form == "markdown" else latex, tables)), end="")
        return
    from rich.console import Console
    from rich.text import Text

    console = Console()
    for table in tables:
        drawn = terminal(table)
        needed = console.measure(drawn, options=console.options.update(width=WIDEST)).maximum
        Console(width=max(console.width, needed)).print(drawn)
        if table.notes:
            console.print(Text("\n".join(table.notes)))


def markdown(table: Table) -> str:
    """A GitHub table with the notes below it."""
    titles = [in_markdown(title) for title in table.columns]
    rule = ["---" if align == "left" else "---:" for _, align in table.aligned()]
    lines = [
        titles,
        rule,
        *([f"**{cell}**" if best else cell for cell, best in row] for row in _marked(table, in_markdown)),
    ]
    body = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    notes = "\n".join(f"- {in_markdown(note)}" for note in table.notes)
    title = f"**{in_markdown(table.title)}**\n\n" if table.title else ""
    return f"{title}{body}\n" + (f"\n{notes}\n" if notes else "")


def latex(table: Table) -> str:
    """A tabular with rules of the package booktabs, the notes below it."""

    def line(cells: Sequence[str]) -> str:
        return " & ".join(cells) + r" \\"

    columns = "".join(align[0] for _, align in table.aligned())
    rows = [
        *([f"% {_in_latex(table.title)}"] if table.title else []),
        "% \\usepackage{booktabs}",
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        line([_in_latex(title) for title in table.columns]),
        r"\midrule",
        *(line([rf"\textbf{{{c}}}" if best else c for c, best in row]) for row in _marked(table, _in_latex)),
        r"\bottomrule",
        r"\end{tabular}",
        *(rf"\par\footnotesize {_in_latex(note)}" for note in table.notes),
    ]
    return "\n".join(rows) + "\n"


def _marked(table: Table, written: Callable[[str], str]) -> list[list[tuple[str, bool]]]:
    """Every cell as it is written, and whether it is one of the best."""
    return [[(written(cell), (k, j) in table.best) for j, cell in enumerate(row)] for k, row in enumerate(table.rows)]


def _in_latex(text: str) -> str:
    return "".join(LATEX.get(sign, sign) for sign in " ".join(text.split()))


def csv_of(records: Sequence[Mapping[str, Any]], fields: Collection[str] = ()) -> str:
    """The ``fields`` of each record, one line each; by default all that some record has.

    Numbers have twelve digits: the last digits of an interval depend on the order in which a processor sums.
    """
    out = io.StringIO()
    named = fields or dict.fromkeys(name for record in records for name in record)
    writer = csv.DictWriter(out, list(named), lineterminator="\n")
    writer.writeheader()
    for record in records:
        writer.writerow({name: _in_csv(value) for name, value in record.items()})
    return out.getvalue()


def csv_of_frame(frame: "pd.DataFrame") -> str:
    """`csv_of` the rows of a data frame."""
    return csv_of(frame.to_dict("records"), list(frame.columns))  # pyright: ignore[reportArgumentType]


def _in_csv(value: Any) -> Any:
    """A number with twelve digits; text on one line, behind an apostrophe where a spreadsheet would compute it."""
    if isinstance(value, float):
        return f"{value:.12g}"
    if not isinstance(value, str):
        return value
    text = " ".join(value.split())
    return f"'{text}" if text.startswith(FORMULA) else text


def in_markdown(text: str) -> str:
    """Text that cannot break the table, nor turn into markup or HTML."""
    text = " ".join(text.split())
    for sign in "\\`*_{}[]<>|#!":
        text = text.replace(sign, "\\" + sign)
    return text
