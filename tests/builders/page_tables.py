"""Tables on the project's pages, and whether their cells show given values."""

import itertools
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]


def on_one_line(page: Path) -> str:
    """The text of a page, without its line breaks."""
    return " ".join(page.read_text().split())


def tables(text: str) -> Iterator[list[list[str]]]:
    """The cells of every table, its header first; an empty first cell repeats the one above."""
    for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        rows = [[cell.strip() for cell in line[1:-1].split(" | ")] for line in block.splitlines()]
        rows = [row for row in rows if not set("".join(row)) <= set("-:| ")]
        for above, row in itertools.pairwise(rows):
            row[0] = row[0] or above[0]
        yield rows


def table(page: Path, *header: str) -> list[list[str]]:
    """The rows of the one table whose header starts with these cells."""
    (rows,) = (rows for rows in tables(page.read_text()) if rows[0][: len(header)] == list(header))
    return rows[1:]


def shown(cell: str, *values: float) -> bool:
    """Whether a cell's numbers are these values, each rounded to its own decimals; half may go either way."""
    numbers = [number.replace("−", "-").replace(",", "") for number in re.findall(r"−?\d[\d,]*(?:\.\d+)?", cell)]
    return len(numbers) == len(values) and all(
        abs(float(number) - value) <= 0.5000001 * 10 ** -len(number.partition(".")[2])
        for number, value in zip(numbers, values, strict=True)
    )


Check = tuple[str, *tuple[float, ...]]
"""A cell and what it should show."""


def unlike(checks: Iterable[Check]) -> list[Check]:
    return [(cell, *values) for cell, *values in checks if not shown(cell, *values)]
