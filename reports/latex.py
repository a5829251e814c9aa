"""Tables in LaTeX, for a paper: booktabs rules, the notes below."""

from collections.abc import Sequence

from argap.reports.tables import MARKS, Table

ESCAPED = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "%": r"\%",
    "#": r"\#",
    "_": r"\_",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "–": "--",
    "—": "---",
    "−": "$-$",
    "×": r"$\times$",
    "τ": r"$\tau$",
    "Δ": r"$\Delta$",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
} | {mark: rf"\textsuperscript{{{letter}}}" for mark, letter in zip(MARKS, "abcdefghij", strict=True)}


def latex(table: Table) -> str:
    """A ``tabular`` between the rules of the package booktabs, with the notes as a paragraph behind it."""
    align = "".join("l" if column.align == "left" else "r" for column in table.columns)
    lines = [
        rf"\begin{{tabular}}{{{align}}}",
        r"\toprule",
        _line([column.title for column in table.columns]),
        r"\midrule",
        *(_line(row) for row in table.rows),
        r"\bottomrule",
        r"\end{tabular}",
    ]
    notes = " ".join(escaped(note) for note in table.notes)
    return "\n".join(lines) + (f"\n\n\\par\\footnotesize {notes}\n" if notes else "\n")


def escaped(text: str) -> str:
    """Text on one line that LaTeX prints as it is.

    >>> escaped("50% of base_conv")
    '50\\\\% of base\\\\_conv'
    """
    return "".join(ESCAPED.get(character, character) for character in " ".join(text.split()))


def _line(cells: Sequence[str]) -> str:
    return " & ".join(map(escaped, cells)) + r" \\"
