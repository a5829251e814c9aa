"""Write the tables, figures and pages of a suite from its committed result files."""

import dataclasses
from pathlib import Path
from typing import Literal

from msgspec.structs import replace

from argap.atomic import write_text
from argap.lock import alone_in
from argap.reports.formats import latex, markdown
from argap.reports.html import Further
from argap.reports.suite_figures import CAPTIONS, draw_suite
from argap.reports.suite_tables import further_tables, suite_csv, tables_of_size
from argap.reports.write import write_report
from argap.suite.config import Suite
from argap.suite.result import read_sizes
from argap.suite.staged import put_in_place, whole


def write_suite(suite: Suite, out: Path, form: Literal["markdown", "latex"] = "markdown") -> str:
    """Write ``table.md`` and ``table.csv`` to ``out``, and the report and figures of each size to ``out/SIZE``.

    A result whose writing was killed is put in place first. Sizes without a result are skipped; a note names the
    members that a size lacks. Returns the text of ``table.md``, or the same tables in LaTeX. Raises `FormatError` if
    there is no result, or a file is missing or invalid.
    """
    for folder in (out / size for size in suite.sizes):
        if whole(folder) != folder:
            with alone_in(folder):
                put_in_place(folder)
    results = read_sizes(out, list(suite.sizes))
    sections, papers = [], []
    for result in results:
        labels = dict(suite.labels)
        tables = tables_of_size(result, labels)
        scored = {member.name for member in result.members}
        if missing := [entry.name for entry in suite.entries(result.size) if entry.name not in scored]:
            note = f"Members without a result: {', '.join(missing)}."
            tables[0] = dataclasses.replace(tables[0], notes=(*tables[0].notes, note))
        sections.append(f"## {result.size}\n\n" + "\n".join(map(markdown, tables)))
        papers.append(f"% {result.size}\n\n" + "\n".join(map(latex, tables)))
        figures = draw_suite(result, result.folder / "figures")
        further = Further("The suite", further_tables(result, labels), figures, CAPTIONS)
        write_report(result.folder, gap=replace(result.gap, curve=result.curve), further=further)
    text = "\n".join(sections)
    write_text(out / "table.md", text)
    write_text(out / "table.csv", suite_csv(results))
    return text if form == "markdown" else "\n".join(papers)
