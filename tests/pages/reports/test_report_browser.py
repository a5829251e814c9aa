"""The page and its script in a real browser, from a file and as printed. Skipped where no Chromium is installed."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from playwright.sync_api import Browser, Page

from argap.records import NAMED, Gap, SliceInfo
from argap.reports.pages.interactive import at_thresholds, main_tables, page_data
from argap.reports.pages.result import slices_rows
from argap.reports.pages.write import write_report
from argap.reports.tables.formats import best_in
from argap.reports.tables.numbers import percent_range, signed
from argap.reports.tables.sentences import headlines
from argap.result import Result
from argap.results.restated import restate
from tests.builders.browser import PAPER, expect, illegible, new_page, resize, unprintable, wait_for, watch


@pytest.fixture(scope="module")
def sliced(result: Result) -> Gap:
    """The result with a slice of all tokens, whose note names a command."""
    whole = result.record.on_all.moved(NAMED, "whole").estimates.values()
    about = SliceInfo("whole", where="n = 1", note="of `argap slice`", ar_hits=0.5)
    return replace(result.record, slices=(about,), estimates=(*result.record.estimates, *whole))


@pytest.fixture(scope="module")
def report(sliced: Gap, token_result: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(token_result, tmp_path_factory.mktemp("report"), gap=sliced)


@pytest.fixture
def page(browser: Browser, report: Path) -> Iterator[Page]:
    """A page that must log nothing and ask for nothing but itself."""
    page = new_page(browser)
    heard = watch(page)
    page.goto(report.as_uri())
    yield page
    assert heard.errors == []
    assert [each for each in heard.requested if each != report.as_uri()] == []


def cells(page: Page, table: int = 0) -> list[list[str]]:
    rows = f"document.querySelectorAll('[data-table=\"{table}\"] tbody tr')"
    return page.evaluate(f"[...{rows}].map((r) => [...r.cells].map((c) => c.textContent))")


def test_every_threshold_of_the_page_is_that_of_the_cells(result: Result) -> None:
    """What `at_thresholds` takes from gap.json alone, `restate` adds up anew from the cells."""
    found = at_thresholds(result.record)
    assert [gap.threshold for gap in found][:4] == [0, 1, 2, 5]
    for gap in found:
        expected = restate(result.record, result.cells, threshold=gap.threshold, reference=gap.reference)
        assert main_tables(gap)[0] == main_tables(expected)[0]


def test_nothing_moves_without_a_curve(result: Result) -> None:
    assert at_thresholds(result.record.replaced({"threshold": ()})) == []


def test_recorded_slices_follow_the_threshold_but_for_their_hits(sliced: Gap) -> None:
    states = page_data(sliced, {}, slices_rows).states
    for state, gap in zip(states, at_thresholds(sliced), strict=True):
        assert state.slices is not None
        hits, of_whole, *_ = state.slices.rows
        assert hits[:2] == ("ar_hits", f"{gap.on_hits.n:,}")
        assert of_whole[-1] == ("50.0%" if gap.threshold == sliced.threshold else "—")
        assert f"at most {state.tau} times" in state.slices.notes[0]


def test_the_best_are_the_lowest_and_what_prints_like_them() -> None:
    rows = [("a", "1.0"), ("b", "0.5"), ("c", "0.5"), ("d", "0.1"), ("e", "—")]
    values = [1.0, 0.52, 0.49, None, float("nan")]
    assert best_in(rows, {1: values}) == {(1, 1), (2, 1)}
    assert best_in(rows, {1: values}, highest=True) == {(0, 1)}
    assert best_in(rows, {1: values}, groups=["x", "x", "y", "y", "y"]) == {(1, 1)}  # one alone is not the best
    assert best_in(rows[1:3], {1: values[1:3]}) == set()  # nor are all


def test_tau_moves_the_table_the_finding_and_the_curve(page: Page, result: Result) -> None:
    before = cells(page)
    code = "[...document.querySelectorAll('#slices .notes code')].map((each) => each.textContent)"
    page.evaluate("document.getElementById('tau').focus()")
    at = "document.querySelector('#figure-share_by_threshold .at-tau').getAttribute('x1')"
    lines = {page.evaluate(at)}
    page.keyboard.press("Home")
    for tau in (0, 1, 2, 5):
        expect(page, "document.querySelector('#tau-at').innerText", str(tau))
        frame = result.gap({}, threshold=tau)
        share = frame.loc[frame["slice"] == "ar_hits", "share_of_tokens"].iloc[0]
        for row in cells(page)[1:]:
            expected = frame[(frame["slice"] == "ar_hits") & (frame["model"] == row[0])].iloc[0]
            assert row[3] == f"{expected['ppl']:,.2f} ({expected['nll']:.2f})"
            (part,) = (each for each in cells(page, 1) if each[0] == row[0])
            assert part[1] == signed(expected["contribution"])
            assert part[3].strip("()ᵃᵇᶜ") == f"{100 * expected['share']:.1f}%"
            assert part[4] == percent_range(expected["share_low"], expected["share_high"])
        assert f"{100 * share:.1f}% of tokens" in page.inner_text("#tau-share")
        restated = restate(result.record, result.cells, threshold=tau, reference="ref")
        assert f"(at most {tau} times)" in page.inner_text("aside")
        first = headlines(restated)[0]
        assert page.inner_text("#finding h1") == first.sentence
        assert page.inner_text("#finding .number").split("\n") == [first.number, first.unit]
        hits = "each.classList.contains('hit') !== (Number(each.dataset.count) <= TAU)".replace("TAU", str(tau))
        assert page.evaluate(f"[...document.querySelectorAll('.t[data-count]')].some((each) => {hits})") is False
        assert page.evaluate(code) == ["argap slice"]
        lines.add(page.evaluate(at))
        page.keyboard.press("ArrowRight")
    assert len(lines) == 4  # the result's own τ, 2, is one of them
    page.click("#tau-back")
    wait_for(page, "document.querySelector('#tau-back').disabled")
    assert cells(page) == before


def test_tau_moves_the_bars_and_the_words_of_the_windows(page: Page, result: Result) -> None:
    figures = [f"#figure-gap_by_frequency{suffix}" for suffix in ("", "_own_scales")]
    parts = [part for part in result.record.parts("frequency") if part.repeated]
    page.evaluate("document.getElementById('tau').focus()")
    page.keyboard.press("Home")
    for figure, shown in zip(figures, ([True, False], [False, True]), strict=True):
        assert [page.is_visible(each) for each in figures] == shown
        for tau, hits in ((0, 1), (5, sum(int(part.bin.split("–")[-1].replace(",", "")) <= 5 for part in parts))):
            expect(page, "document.querySelector('#tau-at').innerText", str(tau))
            moved = tau != result.record.threshold
            expect(page, f"document.querySelector('{figure} .own-tau').style.display", "none" if moved else "")
            label = f"document.querySelector('{figure} .now-tau').textContent"
            assert not moved or page.evaluate(label) == f"AR hits ◂ τ = {tau}"
            # the panel of the first model's repeated bigrams
            fills = f"[...document.querySelectorAll('{figure} [id$=axes_1] path')].map((each) => each.style.fill)"
            expect(page, f"{fills}.filter((fill) => fill === 'var(--model-1)').length", hits)
            assert page.evaluate(f"{fills}.filter((fill) => fill === 'var(--pale-1)').length") == len(parts) - hits
            words = "map((each) => [each.title || each.textContent, Number(each.dataset.count)])"
            told = page.evaluate(f"[...document.querySelectorAll('article [data-count]')].{words}")
            assert told
            assert [text for text, count in told if text.startswith("AR hit") != (count <= tau)] == []
            for key in ["ArrowRight"] * 3 if tau == 0 else ["Home"]:
                page.keyboard.press(key)
        page.set_checked("#own-scales", True)
        page.focus("#tau")
    page.set_checked("#own-scales", False)


def test_a_heading_sorts_and_the_reference_stays_first(page: Page) -> None:
    def order() -> list[str]:
        return [row[0] for row in cells(page)]

    page.click("[data-table='0'] th:nth-child(6) .sort")
    wait_for(page, "document.querySelector('[aria-sort=ascending]') !== null")
    assert order() == ["ref", "m-1", "m2"]
    page.keyboard.press("Enter")
    wait_for(page, "document.querySelector('[aria-sort=descending]') !== null")
    assert order() == ["ref", "m2", "m-1"]
    page.evaluate("document.getElementById('tau').focus()")
    page.keyboard.press("Home")  # the order is kept at another τ
    expect(page, "document.querySelector('#tau-at').innerText", "0")
    deltas = [float(row[5]) for row in cells(page)[1:]]
    assert deltas == sorted(deltas, reverse=True)


def test_values_are_shown_by_pointer_and_by_keys(page: Page, result: Result) -> None:
    gap = result.record
    parts = gap.parts("distance")
    page.evaluate("document.querySelector('#figure-gap_by_distance svg').focus()")
    page.keyboard.press("ArrowRight")
    tip = "document.querySelector('.tip').innerText"
    wait_for(page, f"{tip}.includes('+{parts[1]['m-1'].contribution:.3f} nats')")
    assert page.inner_text(".tip").count(" nats") == 2  # of both models
    now = "document.querySelector('.tip .now').innerText"
    assert page.evaluate(now).startswith("m-1 ")
    assert f"{parts[1].bin}: {parts[1].n:,} tokens" in page.inner_text(".tip")
    page.keyboard.press("ArrowDown")
    wait_for(page, f"{now}.includes('m2 +{parts[1]['m2'].contribution:.3f} nats')")
    page.keyboard.press("Escape")
    wait_for(page, "document.querySelector('.tip').hidden")
    page.hover("#figure-nll_by_frequency [id$=axes_1] path")  # the middle of the panel
    wait_for(page, f"{tip}.includes('in training')")
    page.hover("h2")
    wait_for(page, "document.querySelector('.tip').hidden")


def test_the_page_is_whole_without_its_script(browser: Browser, report: Path) -> None:
    page = new_page(browser, script=False)
    page.goto(report.as_uri())
    assert page.evaluate("document.getElementById('tau-bar').checkVisibility()") is False
    assert page.evaluate("document.querySelectorAll('.sort, .tip').length") == 0
    assert len(cells(page)) == 3
    assert page.evaluate("document.querySelectorAll('#parts details:not([open])').length") > 3  # numbers are closed


def test_a_phone_shows_the_columns_that_decide(page: Page) -> None:
    resize(page, 390, 844)
    for heading in ("ΔNLL", "% of gap"):
        at = f"[...document.querySelectorAll('#table th')].find((each) => each.innerText.trim() === '{heading}')"
        assert wait_for(page, f"{at}.getBoundingClientRect().right <= innerWidth")


def test_the_page_fits_and_its_text_has_contrast(page: Page) -> None:
    assert illegible(page) == []


def test_paper_has_the_chosen_threshold_without_its_slider(page: Page) -> None:
    page.evaluate("document.getElementById('tau').focus()")
    page.keyboard.press("Home")
    wait_for(page, "document.querySelector('#tau-bar.moved') !== null")
    assert unprintable(page) == []
    assert page.inner_text("#tau-bar").split()[:3] == ["Threshold", "τ", "0"]


ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def sixteen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(ROOT / "results" / "table1-mini" / "7m", tmp_path_factory.mktemp("report"))


@pytest.fixture
def unfolded(browser: Browser, sixteen: Path) -> Page:
    """The page of sixteen models with its folded tables open."""
    page = new_page(browser)
    page.goto(sixteen.as_uri())
    page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    return page


def test_paper_is_black_on_white_whole_and_without_controls(unfolded: Page) -> None:
    assert unprintable(unfolded) == []


def test_the_frequency_table_keeps_all_columns_and_one_foot(unfolded: Page) -> None:
    resize(unfolded, PAPER, 900, media="print")
    expect(unfolded, "innerWidth", PAPER)
    titles = unfolded.evaluate(
        "[...document.querySelectorAll('#parts details:first-of-type thead th')]"
        f".filter((head) => head.getBoundingClientRect().right <= {PAPER} + .5).map((head) => head.textContent)"
    )
    gaps = [title for title in titles if title.startswith("ΔNLL, ")]
    assert len(set(gaps)) == len(gaps) == 15
    assert unfolded.evaluate("[...document.querySelectorAll('#parts tfoot')].every((foot) => foot.rows.length === 1)")


def test_a_table_that_stays_folded_is_not_printed(unfolded: Page) -> None:
    unfolded.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = false; })")
    resize(unfolded, PAPER, 900, media="print")
    expect(unfolded, "document.querySelector('#parts').checkVisibility()", False)
    made = unfolded.pdf(prefer_css_page_size=True, format="A4")
    assert len(re.findall(rb"/Type\s*/Page\b", made)) <= 12
