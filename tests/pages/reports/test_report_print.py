"""The page of sixteen models as it is printed, in a real browser. Skipped where no Chromium is installed."""

import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from argap.reports.pages.write import write_report
from tests.builders.browser import PAPER, expect, expect_printable, new_page, resize

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(ROOT / "results" / "table1-mini" / "7m", tmp_path_factory.mktemp("report"))


@pytest.fixture
def page(browser: Browser, report: Path) -> Page:
    """The page with its folded tables open."""
    page = new_page(browser)
    page.goto(report.as_uri())
    page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    return page


def test_paper_is_black_on_white_whole_and_without_controls(page: Page) -> None:
    expect_printable(page)


def test_the_frequency_table_keeps_all_columns_and_one_foot(page: Page) -> None:
    resize(page, PAPER, 900, media="print")
    expect(page, "innerWidth", PAPER)
    titles = page.evaluate(
        "[...document.querySelectorAll('#parts details:first-of-type thead th')]"
        f".filter((head) => head.getBoundingClientRect().right <= {PAPER} + .5).map((head) => head.textContent)"
    )
    gaps = [title for title in titles if title.startswith("ΔNLL, ")]
    assert len(set(gaps)) == len(gaps) == 15
    assert page.evaluate("[...document.querySelectorAll('#parts tfoot')].every((foot) => foot.rows.length === 1)")


def test_a_table_that_stays_folded_is_not_printed(page: Page) -> None:
    page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = false; })")
    resize(page, PAPER, 900, media="print")
    expect(page, "document.querySelector('#parts').checkVisibility()", False)
    made = page.pdf(prefer_css_page_size=True, format="A4")
    assert len(re.findall(rb"/Type\s*/Page\b", made)) <= 12
