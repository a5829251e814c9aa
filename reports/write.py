"""``write_report``: everything for people, beside the ``gap.json`` that it is made from."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from argap.atomic import read_json, write_text
from argap.errors import FormatError
from argap.reports.drawing import FORMATS
from argap.reports.figures import draw_all
from argap.reports.html import render
from argap.reports.tables import csv_text, markdown, tables_of

NEEDED = ("rows", "reference", "threshold", "fingerprint", "evaluation", "index", "versions", "bins", "breakdowns")


def write_report(folder: Path, out: Path | None = None, *, formats: Sequence[str] = FORMATS) -> Path:
    """Write ``report.html``, ``table.md``, ``table.csv`` and ``figures/`` and return the path of the page.

    ``folder``: what `argap score` or `argap compare` wrote, with ``gap.json`` and, for the example windows,
    ``examples.json``. ``out``: another folder to write to. ``formats``: the formats of the figures. Raises
    `FormatError` where ``gap.json`` is not there or lacks a key.
    """
    folder = Path(folder)
    out = folder if out is None else Path(out)
    gap = _read_gap(folder)
    examples = read_json(folder / "examples.json") if (folder / "examples.json").is_file() else None
    write_text(out / "table.md", "\n".join(markdown(table) for table in tables_of(gap)))
    write_text(out / "table.csv", csv_text(gap))
    figures = draw_all(gap, out / "figures", formats)
    page = out / "report.html"
    write_text(page, render(gap, examples, figures))
    return page


def _read_gap(folder: Path) -> dict[str, Any]:
    path = folder / "gap.json"
    if not path.is_file():
        raise FormatError(f"{folder}: no gap.json there; expected a folder that `argap score` or `argap compare` wrote")
    gap = read_json(path)
    missing = [key for key in NEEDED if key not in gap]
    if missing:
        raise FormatError(f"{path}: lacks {', '.join(missing)}; write it anew with `argap score` or `argap compare`")
    return gap
