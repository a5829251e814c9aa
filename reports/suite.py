"""``write_suite``: tables, figures and pages of a suite's result, from its committed files alone."""

from pathlib import Path

from argap.atomic import write_text
from argap.reports.suite_figures import draw_suite
from argap.reports.suite_tables import suite_csv, tables_of_size
from argap.reports.tables import markdown
from argap.reports.write import write_report
from argap.suite.config import Suite
from argap.suite.result import read_sizes


def write_suite(suite: Suite, out: Path) -> str:
    """Write ``table.md`` and ``table.csv`` to ``out`` and, for each size that has a result, its report and
    figures to ``out/SIZE``. Returns the text of ``table.md``.

    Raises `FormatError` where there is no result, or a file of it is missing or broken.
    """
    results = read_sizes(out, list(suite.sizes))
    sections = []
    for result in results:
        tables = "\n".join(markdown(table) for table in tables_of_size(result, dict(suite.labels)))
        sections.append(f"## {result.size}\n\n{tables}")
        write_report(result.folder)
        draw_suite(result, result.folder / "figures")
    text = "\n".join(sections)
    write_text(out / "table.md", text)
    write_text(out / "table.csv", suite_csv(results))
    return text
