"""Write the tables, figures and pages of a suite from its committed result files."""

import dataclasses
from pathlib import Path
from typing import NamedTuple

from argap.files.atomic import write_text
from argap.files.lock import alone_in
from argap.records import THRESHOLD, LeftOut
from argap.reports.figures.suite import CAPTIONS, draw_suite
from argap.reports.pages.result import Further
from argap.reports.pages.write import write_report
from argap.reports.tables.formats import Table, markdown
from argap.reports.tables.suites.suite import further_tables, suite_csv, tables_of_size, write_rates
from argap.results.in_place import whole
from argap.suite.config import Suite
from argap.suite.layout import put_in_place
from argap.suite.result import SizeResult, read_sizes


class Written(NamedTuple):
    """The results read and the tables written by `write_suite`."""

    results: list[SizeResult]
    tables: list[Table]
    """The tables of ``table.md``; the first of each size has the size as its title."""


def write_suite(suite: Suite, out: Path) -> Written:
    """Write ``table.md``, ``table.csv`` and perhaps ``rates.md`` to ``out``, report and figures to ``out/SIZE``.

    If writing a result was interrupted, it is put in place first. Sizes without a result are skipped; a note names the
    members missing from a size. Raises `FormatError` if there is no result, or a file is missing or invalid.
    """
    for folder in (out / size for size in suite.sizes):
        if whole(folder) != folder:
            with alone_in(folder):
                put_in_place(folder)
    results = read_sizes(out, list(suite.sizes))
    sections, written = [], []
    for result in results:
        labels = dict(suite.labels)
        first, *others = tables_of_size(result, labels)
        scored = {member.name for member in result.members}
        if missing := [entry.name for entry in suite.entries(result.size) if entry.name not in scored]:
            note = f"Members without a result: {', '.join(missing)}."
            first = dataclasses.replace(first, notes=(*first.notes, note))
        if result.gap.evaluation.left_out is not None:
            first = dataclasses.replace(first, notes=(*first.notes, left_out_note(result.gap.evaluation.left_out)))
        sections.append(f"## {result.size}\n\n" + "\n".join(map(markdown, (first, *others))))
        written += [dataclasses.replace(first, title=result.size), *others]
        figures = draw_suite(result, result.folder / "figures")
        further = Further("The suite", further_tables(result, labels), figures, CAPTIONS)
        write_report(result.folder, gap=result.gap.replaced({THRESHOLD: result.curve}), further=further)
    write_text(out / "table.md", "\n".join(sections))
    write_text(out / "table.csv", suite_csv(results))
    write_rates(suite, out)
    return Written(results, written)


def left_out_note(left_out: LeftOut) -> str:
    """Return the note on documents that were left out when a result was restated."""
    values = (f"{column} {value}" for column, each in left_out.where.items() for value in each)
    note = f"Restated without {len(left_out.documents)} documents ({', '.join(values)}), {left_out.scored:,} tokens"
    return f"{note}; {', '.join(left_out.unchanged)} still includes them." if left_out.unchanged else f"{note}."
