"""The page in a real browser: what a user clicks, types and reads. Skipped where no Chromium is installed."""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import uvicorn
from msgspec.structs import replace
from playwright.sync_api import Page

from argap.records import ContextUse, read_gap, save_gap
from argap.reports.tables.formats import markdown
from argap.reports.tables.result import gap_table, interval_notes
from argap.result import open_result
from argap.results.restated import restate
from argap.runtime.interrupt import Interrupt
from argap.tokens.batches import TokenReader
from argap.view.answers import Answers, Setting
from argap.view.app import view_app
from argap.view.serve import listen
from tests.builders.browser import (
    PAPER,
    SECONDS,
    expect,
    illegible,
    new_page,
    resize,
    settled,
    unprintable,
    wait_for,
    watch,
)
from tests.conftest import copied
from tests.pages.view.conftest import HOSTILE

TOKEN = "a-token"
SIXTEEN = Path(__file__).parents[3] / "results" / "table1-mini" / "7m"


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """The address of a result's page, served by a thread."""
    listening = listen(0)
    port = listening.getsockname()[1]
    app = view_app(Answers(open_result(folder)), token=TOKEN, port=port)
    config = uvicorn.Config(app, log_level="error", lifespan="off", access_log=False, timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{port}/?token={TOKEN}"
    finally:
        server.should_exit = True
        thread.join()
        listening.close()


@pytest.fixture(scope="module")
def address(token_result):
    with serving(token_result) as address:
        yield address


@pytest.fixture
def page(browser, address) -> Iterator[Page]:
    """A page that must log nothing and ask nobody but its own server."""
    page = new_page(browser)
    heard = watch(page)
    yield page
    origin = address.partition("/?")[0]
    assert heard.errors == []
    assert [each for each in heard.requested if not each.startswith(f"{origin}/")] == []


def number(text: str) -> float:
    """The first number of a text, with its percent sign."""
    found = re.search(r"[−-]?[\d,]+\.?\d*%?", text)
    assert found, text
    value = found[0].replace("−", "-").replace(",", "")
    return float(value.removesuffix("%")) / 100 if value.endswith("%") else float(value)


def row(page: Page, model: str) -> list[str]:
    """The cells of a model's row in the table."""
    rows = page.evaluate(
        "[...document.querySelectorAll('.models tbody tr')].map((r) => [...r.cells].map((c) => c.innerText))"
    )
    return next(cells for cells in rows if cells[0].startswith(model))


def open_settled(page: Page, address: str) -> None:
    """Open the overview and wait for its intervals, which are the last to come: the table is not drawn again then."""
    page.goto(address)
    wait_for(page, "document.querySelector('polygon.band') !== null")


def test_models_are_chosen_and_tau_moves_table_and_curve(page, address, result):
    open_settled(page, address)
    assert page.evaluate("document.querySelectorAll('path.line').length") == 1
    assert "Grey: 1 other model." in page.inner_text("main")
    assert "token" not in page.evaluate("location.href")
    page.click(".models tbody tr:nth-child(2) .model")  # m-1, beside the one with the largest gap
    expect(page, "document.querySelectorAll('path.line').length", 2)
    page.evaluate("document.getElementById('tau').focus()")
    for presses, tau in ((1, 5), (1, 10), (0, 10)):
        for _ in range(presses):
            page.keyboard.press("ArrowRight")
        expect(page, "document.querySelector('output').innerText", str(tau))
        frame = result.gap({}, threshold=tau)
        expected = frame[(frame["slice"] == "ar_hits") & (frame["model"] == "m2")].iloc[0]
        cells = row(page, "m2")
        assert number(cells[7].strip("()")) == pytest.approx(expected["share"], abs=6e-4)
        assert number(cells[5].split()[0]) == pytest.approx(result.record.deltas["m2"], abs=6e-4)
        assert f"({expected['nll']:.2f})" in cells[3]
        low, high = (f"{100 * expected[f'share_{end}']:.1f}" for end in ("low", "high"))
        assert cells[9] == f"{low}–{high}%"
        assert f"{100 * expected['share_of_tokens']:.1f}% of tokens" in page.inner_text(".finding h1")
        assert f"tau={tau}" in page.evaluate("location.hash")


def test_the_table_without_each_source_follows_the_chosen_models_and_the_reference(page, address):
    page.goto(f"{address}#model=m2")
    heads = "[...document.querySelectorAll('.sources .bar-head')].map((each) => each.textContent)"
    expect(page, heads, ["m2"])
    rows = "[...document.querySelectorAll('.sources :is(tbody, tfoot) th')].map((each) => each.textContent).sort()"
    expect(page, rows, ["all", "code", "prose"])
    page.click(".models tbody tr:nth-child(2) .model")
    expect(page, heads, ["m2", "m-1"])
    before = page.inner_text(".sources tfoot")
    page.select_option(".choice:nth-of-type(2) select", "m2")
    expect(page, heads, ["m-1"])
    wait_for(page, f"document.querySelector('.sources tfoot').innerText !== {before!r}")
    assert wait_for(page, "document.querySelector('.sources thead').innerText.includes('% of lead')")


def test_what_intervals_cover_is_a_note_below_the_table(page, address, result):
    open_settled(page, address)
    notes = interval_notes(result.record)
    assert notes
    assert all(note in page.inner_text("main") for note in notes)


@pytest.mark.parametrize(
    ("pressed", "effect"),
    [
        (".models tbody tr:nth-child(2) .model", "document.querySelectorAll('path.line').length === 2"),
        (".models tbody tr:nth-child(2) td:nth-child(3)", "document.querySelectorAll('path.line').length === 2"),
        ("[data-key=overall]", "document.querySelector('[data-key=overall]').closest('[aria-sort=descending]')"),
    ],
)
def test_a_click_is_not_lost_where_the_intervals_come_between_press_and_release(
    page, address, monkeypatch, pressed, effect
):
    """Nor is the focus."""
    come, thresholds = threading.Event(), Answers.thresholds

    def held(self, reference, *, intervals):
        if intervals:
            come.wait()
        return thresholds(self, reference, intervals=intervals)

    monkeypatch.setattr(Answers, "thresholds", held)
    try:
        page.goto(address)
        wait_for(page, "document.querySelector('path.line') !== null")
        assert page.evaluate(f"document.querySelectorAll('polygon.band').length || Boolean({effect})") is False
        page.hover(pressed)
        page.mouse.down()
        page.evaluate(f"document.querySelector('{pressed}').old = true")
    finally:
        come.set()
    wait_for(page, "document.querySelector('polygon.band') !== null")
    assert page.evaluate(f"document.querySelector('{pressed}').old === undefined")  # it was drawn anew
    focused = "document.activeElement.closest('button')?.innerText"
    expect(page, focused, page.evaluate(f"document.querySelector('{pressed}').closest('button')?.innerText"))
    page.mouse.up()
    wait_for(page, f"Boolean({effect})")


def test_the_table_is_sorted_by_a_heading(page, address):
    open_settled(page, address)
    page.click('[data-key="delta"]')
    wait_for(page, "document.querySelector('[aria-sort=descending]') !== null")
    order = "[...document.querySelectorAll('.models tbody th bdi')].map((e) => e.innerText)"
    assert settled(page, order, falling := ["ref", "m2", "m-1"]) == falling
    page.keyboard.press("Enter")  # the heading keeps the focus
    wait_for(page, "document.querySelector('[aria-sort=ascending]') !== null")
    assert settled(page, order, rising := ["ref", "m-1", "m2"]) == rising


def test_a_phone_shows_the_share(page, address):
    resize(page, 390, 844)
    open_settled(page, address)
    assert settled(page, "document.querySelector('.models .due').getBoundingClientRect().right < innerWidth", True)
    resize(page, 1440, 900)
    assert settled(page, "document.querySelectorAll('.models tbody tr:first-child .wide').length", 5) == 5
    assert settled(page, "document.querySelector('.models .wide').offsetWidth > 0", True)


def test_the_table_is_copied_as_it_is_printed(page, address, result):
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    open_settled(page, f"{address}#tau=10")
    page.click("[aria-label='Copy as Markdown']")
    expect(page, "document.querySelector('#status').textContent", "Markdown copied")  # it is shown for seconds only
    copied = page.evaluate("navigator.clipboard.readText()")
    gap = restate(result.record, result.cells, threshold=10, reference="ref")
    assert copied.split("\n- ")[0] == markdown(gap_table(gap)).split("\n- ")[0]


def test_another_reference(page, address, result):
    record = result.record
    page.goto(f"{address}#ref=m-1&model=m2")
    expected = record.on_all["m2"].nll - record.on_all["m-1"].nll
    wait_for(page, "document.querySelector('.models .reference')?.innerText.startsWith('m-1')")
    assert number(row(page, "m2")[5].split()[0]) == pytest.approx(expected, abs=6e-4)
    assert "behind m-1" in page.inner_text(".finding h1")


def test_a_slice_and_its_refusal(page, address, result):
    where = "repeated AND train_count < 10"
    frame = result.gap({"rare": where})
    expected = frame[(frame["slice"] == "rare") & (frame["model"] == "m2")].iloc[0]
    page.goto(f"{address}#view=slices&model=m2")
    wait_for(page, "document.querySelectorAll('.slice-table tbody').length > 5")  # the bundled ones come by themselves
    assert page.evaluate("document.querySelector('.caption').classList.contains('alert')") is False
    page.evaluate("document.querySelector('textarea').focus()")
    page.keyboard.insert_text(where)
    page.click(".slice-form .primary")
    expect(page, "document.querySelector('.slice-table tbody code').innerText", where)
    assert number(page.inner_text(".slice-table td.n")) == expected["n"]
    assert number(page.inner_text(".slice-table td.share")) == pytest.approx(expected["share_of_tokens"], abs=6e-4)
    assert number(page.inner_text(".part").split()[0]) == pytest.approx(expected["contribution"], abs=6e-4)
    assert number(page.inner_text(".due b").strip("()")) == pytest.approx(expected["share"], abs=6e-4)
    low, high = (f"{100 * expected[f'share_{end}']:.1f}" for end in ("low", "high"))
    assert page.inner_text(".due .ends") == f"{low}–{high}%"
    page.evaluate("document.querySelector('textarea').value = 'piece IN (SELECT 1)'")
    page.click(".slice-form .primary")
    assert "holds a subquery" in wait_for(page, "document.querySelector('.alert')?.innerText")


def test_a_bin_leads_to_its_tokens_and_a_link_to_the_same_window(page, browser, address):
    page.goto(f"{address}#view=breakdowns&by=distance&model=m2")
    page.click("table.parts tbody tr:nth-child(3) a")
    wait_for(page, "document.querySelector('.items a') !== null")
    where = page.evaluate("new URLSearchParams(location.hash.slice(1)).get('where')")
    assert where.startswith("distance")
    wait_for(page, "document.querySelector('.flow .current') !== null")  # it is scrolled into view
    page.click(".items li:nth-child(2) a")
    wait_for(page, "document.querySelector('.items li:nth-child(2) a[aria-current]') !== null")
    window = page.evaluate("new URLSearchParams(location.hash.slice(1)).get('window')")
    wait_for(page, f"document.querySelector('#window-title').innerText.startsWith('Window {window} ')")
    card = page.inner_text(".inspector")
    link, title = page.evaluate("location.href"), page.inner_text("#window-title")
    fresh = new_page(browser)
    heard = watch(fresh)
    fresh.goto(link)
    assert "open the address" in wait_for(fresh, "document.querySelector('.empty[role=alert]')?.innerText")
    assert all("403" in error for error in heard.errors)
    fresh.goto(f"{address}#{link.partition('#')[2]}")
    expect(fresh, "document.querySelector('#window-title').innerText", title)
    expect(fresh, "document.querySelector('.inspector').innerText", card)


def test_hover_and_keys_show_a_token(page, address, result):
    columns = ["window", "pos", "distance", "nll", "token", "top1"]
    (hit,) = result.tokens("repeated AND train_count <= 2 AND top1.m2 <> token", columns=columns, limit=1).to_pylist()
    page.goto(f"{address}#view=tokens&model=m2&window={hit['window']}&pos=1")
    wait_for(page, "document.querySelector('.flow .current') !== null")
    page.hover(f".flow bdi:nth-child({hit['pos'] + 1})")
    wait_for(page, "document.querySelector('.inspector .is-hit') !== null")
    card = page.inner_text(".inspector")
    assert f"{hit['nll']['m2']:.2f}" in card
    assert f"{hit['nll']['ref']:.2f}" in card
    assert f"{hit['distance']} token" in card
    assert page.locator(".inspector .rank").all_inner_texts()[0] == str(2 + hit["token"] % 8)
    page.evaluate("location.hash = location.hash.replace('m2', 'm-1')")
    expect(page, "document.querySelector('.inspector .rank').innerText", "—")
    page.evaluate("history.back()")
    wait_for(page, "document.querySelector('.inspector .rank').innerText !== '—'")
    page.hover(f".flow bdi:nth-child({hit['pos'] + 1})")
    expect(page, "document.querySelectorAll('.arcs path').length", 1)
    page.keyboard.press("n")
    wait_for(page, "document.activeElement.classList.contains('hit')")
    at = page.evaluate("document.activeElement.pos")
    page.keyboard.press("Enter")
    wait_for(page, f"document.activeElement.pos < {at}")
    page.keyboard.press("Backspace")
    expect(page, "document.activeElement.pos", at)
    page.keyboard.press("ArrowRight")
    expect(page, "document.activeElement.pos", at + 1)
    page.keyboard.press("j")
    wait_for(page, f"location.hash.includes('window={hit['window'] + 1}')")


def test_a_window_that_was_left_before_it_came_is_not_shown(page, address, monkeypatch):
    asked, come, window = threading.Event(), threading.Event(), Answers.window

    def held(self, number, models):
        if number == 1:
            asked.set()
            come.wait()
        return window(self, number, models)

    monkeypatch.setattr(Answers, "window", held)
    try:
        page.goto(f"{address}#view=tokens&model=m2&window=0")
        wait_for(page, "document.querySelector('.flow .current') !== null")
        page.keyboard.press("j")
        assert asked.wait(SECONDS)
        page.keyboard.press("k")
        wait_for(page, "location.hash.includes('window=0')")
    finally:
        come.set()
    page.evaluate("fetch('/api/window?window=1&model=m2').then((response) => response.text())")
    assert page.inner_text("#window-title").startswith("Window 0 ")


def test_lists_and_search_by_keyboard(page, address, result):
    page.goto(f"{address}#view=tokens&model=m2")
    wait_for(page, "document.querySelector('.flow .current') !== null")
    answers = Answers(result)
    loss = answers.largest_losses("ar_hits", Setting(2, "ref"), "m2", Interrupt()).matches[0]
    window = answers.worst_windows("m2", "ref")[0]
    for key, first in (
        ("l", {"window": str(loss.window), "pos": str(loss.pos)}),
        ("w", {"window": str(window.window)}),
    ):
        page.keyboard.press(key)
        wait_for(page, "document.activeElement.getAttribute('aria-selected') === 'true'")
        expect(page, "({...document.querySelector('.items li').dataset})", first)
    page.keyboard.press("/")
    wait_for(page, "document.activeElement.type === 'search'")
    page.keyboard.insert_text("ada lovelace")
    page.keyboard.press("Enter")
    wait_for(page, "document.querySelectorAll('.items .this').length > 1")
    assert set(page.locator(".items .this").all_inner_texts()) == {"Ada Lovelace"}
    page.click(".items li:nth-child(2) a")
    wait_for(page, "document.querySelector('.flow .current')?.innerText.trim().startsWith('A')")


def test_everything_is_within_reach_of_the_tab_key(page, address):
    """The order of the page: skip link, views, tools, models, reference, τ, the copies, the table."""
    open_settled(page, address)
    seen = []
    for _ in range(26):
        page.keyboard.press("Tab")
        seen.append(
            page.evaluate("document.activeElement.innerText?.trim().split('\\n')[0] || document.activeElement.id")
        )
    order = ["Skip to the content", "Overview", "Tokens", "Copy link", "tau", "Markdown", "Parquet"]
    assert [seen.index(each) for each in order] == sorted(seen.index(each) for each in order)
    assert {"m2", "m-1"} < set(seen)


READY = {
    "overview": "document.querySelector('polygon.band') !== null && document.querySelector('.sources tfoot') !== null",
    "breakdowns": "document.querySelector('table.parts') !== null",
    "slices": "document.querySelector('.slice-table') !== null",
    "tokens": "document.querySelector('.flow .current') !== null",
}


@pytest.mark.parametrize("view", READY)
def test_the_page_fits_and_its_text_has_contrast(page, address, view):
    page.goto(f"{address}#view={view}&model=m2&model=m-1&sql=repeated")
    wait_for(page, READY[view])
    assert illegible(page) == []


@pytest.mark.parametrize("view", READY)
def test_the_page_prints_black_on_white_without_controls(page, address, view):
    page.goto(f"{address}#view={view}&model=m2&model=m-1&sql=repeated&tau=5")
    wait_for(page, READY[view])
    assert unprintable(page) == []
    assert page.inner_text("#header").endswith("m2, m-1 against ref, τ ≤ 5")


def test_seven_of_sixteen_models_fit_on_paper(browser):
    chosen = "&model=".join(("base_conv", "gla", "hyena", "h3", "mamba", "rwkv4", "hybrid_programmatic"))
    with serving(SIXTEEN) as address:
        page = new_page(browser)
        heard = watch(page)
        for view in ("breakdowns", "overview"):
            resize(page, 1440, 900)
            page.goto(f"{address}#view={view}&model={chosen}")
            wait_for(page, READY[view])
            assert unprintable(page) == []
        # The curve is drawn anew for paper, where the one of a wide window would be too small to read.
        resize(page, 1440, 900)
        width = "Number(document.querySelector('.chart svg').getAttribute('width'))"
        wait_for(page, f"{width} > {PAPER}")
        page.evaluate(f"addEventListener('beforeprint', () => {{ window.printed = {width}; }})")
        page.pdf()
        expect(page, "window.printed", PAPER)
        wait_for(page, f"{width} > {PAPER}")
        assert heard.errors == []


def test_hostile_texts_are_shown_as_text(browser, hostile_result):
    with serving(hostile_result) as address:
        page = new_page(browser, 390, 844)
        heard = watch(page)
        page.goto(f"{address}#view=tokens&model=m2&pos=9")
        wait_for(page, "document.querySelector('.flow .current') !== null")
        wait_for(page, "document.documentElement.scrollWidth <= 390")
        assert page.locator(".flow bdi").all_inner_texts()[:2] == [HOSTILE["markup"], HOSTILE["entity"]]
        assert page.evaluate("document.querySelectorAll('.flow script, .flow b').length") == 0
        assert page.evaluate("[...document.querySelectorAll('.flow bdi')].every((e) => e.innerText.length < 410)")
        page.evaluate("location.hash = '#view=tokens&model=m2&pos=7'")
        assert wait_for(page, "document.querySelector('.inspector').innerText.includes('100,000 characters')")
        page.evaluate("location.hash = '#view=tokens&model=m2&window=77'")
        assert "window 77: expected one of 0 to 1" in wait_for(
            page, "document.querySelector('.empty[role=alert]')?.innerText"
        )
        assert heard.errors == []


def test_a_browser_that_goes_away_stops_its_query(browser, address, monkeypatch):
    """The tokens never end here, as those of a result that is far larger."""
    asked, ended, over = threading.Event(), threading.Event(), threading.Event()
    read = TokenReader.rows

    def slow(self):
        asked.set()
        try:
            while True:
                yield from read(self)
                over.wait(0.2)
                if over.is_set():
                    break
        finally:
            ended.set()

    monkeypatch.setattr(TokenReader, "rows", slow)
    page = new_page(browser)
    page.goto(f"{address}#view=slices&model=m2&sql=word_start")
    try:
        assert asked.wait(SECONDS)
        page.goto("about:blank")
        assert ended.wait(SECONDS)
    finally:
        over.set()


def test_what_more_context_adds_is_drawn_where_it_was_measured(browser, token_result, tmp_path):
    """For the chosen model in colour, with its interval; the numbers are in a table."""
    folder = copied(token_result, tmp_path / "out")
    gap = read_gap(folder)
    points = [
        ContextUse(model, context, 100, 2 + gain, (1.5, 3.5), gain or None, (gain - 0.1, gain + 0.1) if gain else None)
        for model in gap.models
        for context, gain in ((16, 0.8), (32, 0.25), (None, 0.0))
    ]
    save_gap(folder / "gap.json", replace(gap, context=tuple(points)))
    within = "document.querySelector('section[aria-labelledby=context-title]')"
    with serving(folder) as address:
        page = new_page(browser)
        heard = watch(page)
        page.goto(f"{address}#model=m2")
        for curves, number_of in (("path.line.m0", 1), ("path.other", 2), ("polygon.band.m0", 1)):
            expect(page, f"{within}.querySelectorAll('{curves}').length", number_of)
        page.click("section[aria-labelledby=context-title] summary")
        expect(
            page,
            f"{within}.querySelectorAll('tbody tr')[6].innerText.split(/\\s+/).slice(0, 5).join(' ')",
            "m2 16 tokens 2.80 +0.800",
        )
        assert illegible(page) == []
        assert heard.errors == []
    with serving(token_result) as address:
        page = new_page(browser)
        page.goto(address)
        expect(page, f"{within}.hidden", True)
