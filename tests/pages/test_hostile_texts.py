"""Texts of models, domains, files and tokens stay text in every output: HTML, SVG, CSV, Markdown and LaTeX.

The pages and figures are opened in a real browser, without their content security policy, which alone would stop the
scripts.
"""

import csv
import json
import re
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace
from playwright.sync_api import Browser

from argap.records import Examples, Gap, read_gap, read_record, save_gap, write_record
from argap.reports.pages.page import TEMPLATES
from argap.reports.pages.write import write_report
from argap.reports.tables.formats import csv_of, csv_of_rows, latex, markdown
from argap.reports.tables.result import tables_of
from argap.result import open_result
from tests.builders.browser import new_page, wait_for

MARK = "data-obeyed"
OBEYED = f"document.documentElement.hasAttribute('{MARK}')"
SCRIPT = f"document.documentElement.setAttribute('{MARK}','1')"
HOSTILE = (
    f"<script>{SCRIPT}</script>",
    f'"><img src=x onerror="{SCRIPT}">',
    f"<svg onload={SCRIPT}>",
    f"</style></title></text><script>{SCRIPT}</script>",
    f"[x](javascript:{SCRIPT})",
)
FORMULAS = ("=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", '=HYPERLINK("http://x")')


def renamed(value: object, names: dict[str, str]) -> object:
    """A JSON value with other names of models and texts, as keys too."""
    if isinstance(value, str):
        return names.get(value, value)
    if isinstance(value, dict):
        return {names.get(key, key): renamed(item, names) for key, item in value.items()}
    return [renamed(item, names) for item in value] if isinstance(value, list) else value


@pytest.fixture(scope="module")
def hostile(token_result: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A result whose models, domains, sources and tokens are hostile texts, and its report."""
    folder = tmp_path_factory.mktemp("hostile")
    names: dict[str, str] = dict(zip(("m-1", "m2", "ref", "code", "prose"), HOSTILE, strict=True))
    gap = read_gap(token_result)
    gap = replace(gap, evaluation=replace(gap.evaluation, data=HOSTILE, tokenizer=HOSTILE[0]))
    save_gap(folder / "gap.json", msgspec.convert(renamed(json.loads(msgspec.json.encode(gap)), names), Gap))
    examples = json.loads(msgspec.json.encode(read_record(token_result / "examples.json", Examples)))
    for window in examples["windows"]:
        window["tokens"] = [HOSTILE[k % len(HOSTILE)] for k in range(len(window["tokens"]))]
        window["source"] = HOSTILE[3]
    write_record(folder / "examples.json", msgspec.convert(renamed(examples, names), Examples))
    cells = pq.read_table(token_result / "cells.parquet")
    for old, new in names.items():
        cells = cells.rename_columns([name.replace(f"logprob/{old}", f"logprob/{new}") for name in cells.column_names])
    pq.write_table(cells, folder / "cells.parquet")
    write_report(folder)
    return folder


def test_a_browser_runs_nothing_of_a_report(hostile: Path, tmp_path: Path, browser: Browser) -> None:
    page = new_page(browser)

    def obeyed(path: Path) -> bool:
        page.goto(path.as_uri())
        return page.evaluate(OBEYED)

    for k, text in enumerate(HOSTILE[:4]):  # so that the test can fail; the last waits for a click
        control = tmp_path / f"control-{k}.html"
        control.write_text(f"<!doctype html><html><body>{text}</body></html>")
        page.goto(control.as_uri())
        wait_for(page, OBEYED)
    text = (hostile / "report.html").read_text()
    assert "data-obeyed" in text
    unprotected = tmp_path / "report.html"
    unprotected.write_text(re.sub(r"<meta http-equiv=[^>]*>", "", text))
    assert "Content-Security-Policy" not in unprotected.read_text()
    assert not obeyed(unprotected)
    figures = sorted((hostile / "figures").glob("*.svg"))
    (tmp_path / "figures.html").write_text("<!doctype html>" + "".join(path.read_text() for path in figures))
    assert not obeyed(tmp_path / "figures.html")
    notebook = tmp_path / "notebook.html"
    notebook.write_text(f"<!doctype html>{open_result(hostile)._repr_html_()}")
    assert not obeyed(notebook)


def test_no_hostile_text_is_markup_in_a_page_or_figure(hostile: Path) -> None:
    script = (TEMPLATES / "report.js").read_text()
    for path in (hostile / "report.html", *(hostile / "figures").glob("*.svg")):
        text = path.read_text()
        for own in ('<script type="application/json" id="data">', f"<script>{script}</script>"):
            text = text.replace(own, "", 1)
        assert "<script" not in text, path
        assert "<img src=x" not in text, path
        assert "<svg onload" not in text, path


def test_markdown_and_latex_hold_no_markup(hostile: Path) -> None:
    for table in tables_of(read_gap(hostile)):
        lines = markdown(table).splitlines()
        for line in lines:
            assert not re.search(r"(?<!\\)[<>`]", line)
            assert not re.search(r"(?<!\\)\]\(", line)
        widths = {len(re.findall(r"(?<!\\)\|", line)) for line in lines if line.startswith("|")}
        assert len(widths) == 1
        plain = re.sub(r"\\textbackslash\{\}|\\text\w+\{\w*\}|\$[<>|]\$|\\\$|\$\\?[A-Za-z×-]*\$", "", latex(table))
        assert not re.search(r"(?<!\\)[#%&](?!.*\\\\$)", "\n".join(plain.splitlines()[3:]).replace(" & ", " "))
        assert not re.search(r"\\(input|write|def|include)", plain)


def test_a_formula_is_text_in_csv(hostile: Path) -> None:
    text = csv_of([{"model": name, "nll": -1.5, "n": -3} for name in FORMULAS], ["model", "nll", "n"])
    header, *rows = csv.reader(text.splitlines(keepends=True))
    assert header == ["model", "nll", "n"]
    assert [row[0] for row in rows] == [f"'{name.strip()}" for name in FORMULAS]
    assert {tuple(row[1:]) for row in rows} == {("-1.5", "-3")}  # numbers stay numbers
    for row in csv.reader((hostile / "table.csv").read_text().splitlines()):
        assert not [cell for cell in row if re.match(r"[=+@\t\r]|-\D", cell)]


def test_no_cell_of_many_rows_is_a_formula() -> None:
    texts = [*FORMULAS, "＝1", " =1", "the", " the", None]
    columns = {"=name": texts, "domain": pa.array(texts).dictionary_encode(), "n": range(len(texts))}
    head, *rows = csv.reader(csv_of_rows(pa.table(columns)).decode().splitlines(keepends=True))
    assert head == ["'=name", "domain", "n"]
    expected = [text if text in ("the", " the") else f"'{text}" for text in texts if text]
    assert [row[0] for row in rows[:-1]] == [row[1] for row in rows[:-1]] == expected
