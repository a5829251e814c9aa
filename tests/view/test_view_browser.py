"""The page in a real browser: what a user clicks, types and reads. Skipped where no Chromium is installed."""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import uvicorn

from argap.reports.tables.formats import markdown
from argap.reports.tables.result import few_documents, gap_table
from argap.result import open_result
from argap.results.restated import restate
from argap.runtime.interrupt import Interrupt
from argap.tokens.batches import TokenReader
from argap.view.answers import Answers, Setting
from argap.view.app import view_app
from argap.view.serve import listen
from tests.view.browser import PAPER, SECONDS, Page
from tests.view.conftest import HOSTILE

TOKEN = "a-token"
SIXTEEN = Path(__file__).parents[2] / "results" / "table1-mini" / "7m"


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
    page = browser.page()
    yield page
    origin = address.partition("/?")[0]
    assert page.errors == []
    assert [each for each in page.requested if not each.startswith(f"{origin}/")] == []


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
    page.open(address)
    page.wait_for("document.querySelector('polygon.band') !== null")


def test_models_are_chosen_and_tau_moves_table_and_curve(page, address, result):
    open_settled(page, address)
    assert page.evaluate("document.querySelectorAll('path.line').length") == 1
    assert "Grey: 1 other model." in page.text("main")
    assert "token" not in page.evaluate("location.href")
    page.click(".models tbody tr:nth-child(2) .model")  # m-1, beside the one with the largest gap
    page.expect("document.querySelectorAll('path.line').length", 2)
    page.evaluate("document.getElementById('tau').focus()")
    for presses, tau in ((1, 5), (1, 10), (0, 10)):
        page.press(*["ArrowRight"] * presses)
        page.expect("document.querySelector('output').innerText", str(tau))
        frame = result.gap({}, threshold=tau)
        expected = frame[(frame["slice"] == "ar_hits") & (frame["model"] == "m2")].iloc[0]
        cells = row(page, "m2")
        assert number(cells[7].strip("()")) == pytest.approx(expected["share"], abs=6e-4)
        assert number(cells[5].split()[0]) == pytest.approx(result.record.deltas["m2"], abs=6e-4)
        assert f"({expected['nll']:.2f})" in cells[3]
        low, high = (f"{100 * expected[f'share_{end}']:.1f}" for end in ("low", "high"))
        assert cells[9] == f"{low}–{high}%"
        assert f"{100 * expected['share_of_tokens']:.1f}% of tokens" in page.text(".finding h1")
        assert f"tau={tau}" in page.evaluate("location.hash")


def test_few_documents_have_a_note_below_the_table(page, address, result):
    open_settled(page, address)
    (note,) = few_documents(result.record)
    assert note in page.text("main")


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
        page.open(address)
        page.wait_for("document.querySelector('path.line') !== null")
        assert page.evaluate(f"document.querySelectorAll('polygon.band').length || Boolean({effect})") is False
        page.hold(pressed)
        page.evaluate(f"document.querySelector('{pressed}').old = true")
    finally:
        come.set()
    page.wait_for("document.querySelector('polygon.band') !== null")
    assert page.evaluate(f"document.querySelector('{pressed}').old === undefined")  # it was drawn anew
    focused = "document.activeElement.closest('button')?.innerText"
    page.expect(focused, page.evaluate(f"document.querySelector('{pressed}').closest('button')?.innerText"))
    page.release()
    page.wait_for(f"Boolean({effect})")


def test_the_table_is_sorted_by_a_heading(page, address):
    open_settled(page, address)
    page.click('[data-key="gap"]')
    page.wait_for("document.querySelector('[aria-sort=descending]') !== null")
    order = "[...document.querySelectorAll('.models tbody th bdi')].map((e) => e.innerText)"
    page.expect(order, ["ref", "m2", "m-1"])
    page.press("Enter")  # the heading keeps the focus
    page.wait_for("document.querySelector('[aria-sort=ascending]') !== null")
    page.expect(order, ["ref", "m-1", "m2"])


def test_a_phone_shows_the_share(page, address):
    page.resize(390, 844)
    open_settled(page, address)
    page.expect("document.querySelector('.models .due').getBoundingClientRect().right < innerWidth", True)
    page.resize(1440, 900)
    page.expect("document.querySelectorAll('.models tbody tr:first-child .wide').length", 4)
    page.expect("document.querySelector('.models .wide').offsetWidth > 0", True)


def test_the_table_is_copied_as_it_is_printed(page, address, result):
    page.allow("clipboardReadWrite", "clipboardSanitizedWrite")
    open_settled(page, f"{address}#tau=10")
    page.click("[aria-label='Copy as Markdown']")
    page.expect("document.querySelector('#status').textContent", "Markdown copied")  # it is shown for seconds only
    copied = page.evaluate("navigator.clipboard.readText()")
    gap = restate(result.record, result.cells, threshold=10, reference="ref")
    assert copied.split("\n- ")[0] == markdown(gap_table(gap)).split("\n- ")[0]


def test_another_reference(page, address, result):
    record = result.record
    page.open(f"{address}#ref=m-1&model=m2")
    expected = record.on_all["m2"].nll - record.on_all["m-1"].nll
    page.wait_for("document.querySelector('.models .reference')?.innerText.startsWith('m-1')")
    assert number(row(page, "m2")[5].split()[0]) == pytest.approx(expected, abs=6e-4)
    assert "behind m-1" in page.text(".finding h1")


def test_a_slice_and_its_refusal(page, address, result):
    where = "repeated AND train_count < 10"
    frame = result.gap({"rare": where})
    expected = frame[(frame["slice"] == "rare") & (frame["model"] == "m2")].iloc[0]
    page.open(f"{address}#view=slices&model=m2")
    page.wait_for("document.querySelector('textarea') !== null")
    page.evaluate("document.querySelector('textarea').focus()")
    page.call("Input.insertText", text=where)
    page.click(".slice-form .primary")
    page.expect("document.querySelector('.slice-table .slice code').innerText", where)
    assert number(page.text(".slice .n")) == expected["n"]
    assert number(page.text(".slice .share")) == pytest.approx(expected["share_of_tokens"], abs=6e-4)
    assert number(page.text(".part")) == pytest.approx(expected["contribution"], abs=6e-4)
    assert number(page.text(".due").strip("()")) == pytest.approx(expected["share"], abs=6e-4)
    assert page.text(".due-ci") == f"{100 * expected['share_low']:.1f}–{100 * expected['share_high']:.1f}%"
    page.evaluate("document.querySelector('textarea').value = 'piece IN (SELECT 1)'")
    page.click(".slice-form .primary")
    assert "holds a subquery" in page.wait_for("document.querySelector('.alert')?.innerText")


def test_a_bin_leads_to_its_tokens_and_a_link_to_the_same_window(page, browser, address):
    page.open(f"{address}#view=breakdowns&by=distance&model=m2")
    page.click("table.parts tbody tr:nth-child(3) a")
    page.wait_for("document.querySelector('.items a') !== null")
    where = page.evaluate("new URLSearchParams(location.hash.slice(1)).get('where')")
    assert where.startswith("distance")
    page.wait_for("document.querySelector('.flow .current') !== null")  # it is scrolled into view
    page.click(".items li:nth-child(2) a")
    page.wait_for("document.querySelector('.items li:nth-child(2) a[aria-current]') !== null")
    window = page.evaluate("new URLSearchParams(location.hash.slice(1)).get('window')")
    page.wait_for(f"document.querySelector('#window-title').innerText.startsWith('Window {window} ')")
    card = page.text(".inspector")
    link, title = page.evaluate("location.href"), page.text("#window-title")
    fresh = browser.page()
    fresh.open(link)
    assert "open the address" in fresh.wait_for("document.querySelector('.empty[role=alert]')?.innerText")
    assert all("403" in error for error in fresh.errors)
    fresh.open(f"{address}#{link.partition('#')[2]}")
    fresh.expect("document.querySelector('#window-title').innerText", title)
    fresh.expect("document.querySelector('.inspector').innerText", card)


def test_hover_and_keys_show_a_token(page, address, result):
    columns = ["window", "pos", "distance", "nll", "token", "top1"]
    (hit,) = result.tokens("repeated AND train_count <= 2 AND top1.m2 <> token", columns=columns, limit=1).to_pylist()
    page.open(f"{address}#view=tokens&model=m2&window={hit['window']}&pos=1")
    page.wait_for("document.querySelector('.flow .current') !== null")
    page.hover(f".flow bdi:nth-child({hit['pos'] + 1})")
    page.wait_for("document.querySelector('.inspector .is-hit') !== null")
    card = page.text(".inspector")
    assert f"{hit['nll']['m2']:.2f}" in card
    assert f"{hit['nll']['ref']:.2f}" in card
    assert f"{hit['distance']} token" in card
    assert page.texts(".inspector .rank")[0] == str(2 + hit["token"] % 8)
    page.evaluate("location.hash = location.hash.replace('m2', 'm-1')")
    page.expect("document.querySelector('.inspector .rank').innerText", "—")
    page.evaluate("history.back()")
    page.wait_for("document.querySelector('.inspector .rank').innerText !== '—'")
    page.hover(f".flow bdi:nth-child({hit['pos'] + 1})")
    page.expect("document.querySelectorAll('.arcs path').length", 1)
    page.press("n")
    page.wait_for("document.activeElement.classList.contains('hit')")
    at = page.evaluate("document.activeElement.pos")
    page.press("Enter")
    page.wait_for(f"document.activeElement.pos < {at}")
    page.press("Backspace")
    page.expect("document.activeElement.pos", at)
    page.press("ArrowRight")
    page.expect("document.activeElement.pos", at + 1)
    page.press("j")
    page.wait_for(f"location.hash.includes('window={hit['window'] + 1}')")


def test_a_window_that_was_left_before_it_came_is_not_shown(page, address, monkeypatch):
    asked, come, window = threading.Event(), threading.Event(), Answers.window

    def held(self, number, models):
        if number == 1:
            asked.set()
            come.wait()
        return window(self, number, models)

    monkeypatch.setattr(Answers, "window", held)
    try:
        page.open(f"{address}#view=tokens&model=m2")
        page.wait_for("document.querySelector('.flow .current') !== null")
        page.press("j")
        assert asked.wait(SECONDS)
        page.press("k")
        page.wait_for("!location.hash.includes('window=1')")
    finally:
        come.set()
    page.evaluate("fetch('/api/window?window=1&model=m2').then((response) => response.text())")
    assert page.text("#window-title").startswith("Window 0 ")


def test_lists_and_search_by_keyboard(page, address, result):
    page.open(f"{address}#view=tokens&model=m2")
    page.wait_for("document.querySelector('.flow .current') !== null")
    answers = Answers(result)
    loss = answers.largest_losses("ar_hits", Setting(2, "ref"), "m2", Interrupt()).matches[0]
    window = answers.worst_windows("m2", "ref")[0]
    for key, first in (
        ("l", {"window": str(loss.window), "pos": str(loss.pos)}),
        ("w", {"window": str(window.window)}),
    ):
        page.press(key)
        page.wait_for("document.activeElement.getAttribute('aria-selected') === 'true'")
        page.expect("({...document.querySelector('.items li').dataset})", first)
    page.press("/")
    page.wait_for("document.activeElement.type === 'search'")
    page.call("Input.insertText", text="ada lovelace")
    page.press("Enter")
    page.wait_for("document.querySelectorAll('.items .this').length > 1")
    assert set(page.texts(".items .this")) == {"Ada Lovelace"}
    page.click(".items li:nth-child(2) a")
    page.wait_for("document.querySelector('.flow .current')?.innerText.trim().startsWith('A')")


def test_everything_is_within_reach_of_the_tab_key(page, address):
    """The order of the page: skip link, views, tools, models, reference, τ, the copies, the table."""
    open_settled(page, address)
    seen = []
    for _ in range(26):
        page.press("Tab")
        seen.append(
            page.evaluate("document.activeElement.innerText?.trim().split('\\n')[0] || document.activeElement.id")
        )
    order = ["Skip to the content", "Overview", "Tokens", "Copy link", "tau", "Markdown", "Parquet"]
    assert [seen.index(each) for each in order] == sorted(seen.index(each) for each in order)
    assert {"m2", "m-1"} < set(seen)


READY = {
    "overview": "document.querySelector('polygon.band') !== null",
    "breakdowns": "document.querySelector('table.parts') !== null",
    "slices": "document.querySelector('.slice-table') !== null",
    "tokens": "document.querySelector('.flow .current') !== null",
}


@pytest.mark.parametrize("view", READY)
def test_the_page_fits_and_its_text_has_contrast(page, address, view):
    page.open(f"{address}#view={view}&model=m2&model=m-1&sql=repeated")
    page.wait_for(READY[view])
    page.expect_legible()


@pytest.mark.parametrize("view", READY)
def test_the_page_prints_black_on_white_without_controls(page, address, view):
    page.open(f"{address}#view={view}&model=m2&model=m-1&sql=repeated&tau=5")
    page.wait_for(READY[view])
    page.expect_printable()
    assert page.text("#header").endswith("m2, m-1 against ref, τ ≤ 5")


def test_seven_of_sixteen_models_fit_on_paper(browser):
    chosen = "&model=".join(("base_conv", "gla", "hyena", "h3", "mamba", "rwkv4", "hybrid_programmatic"))
    with serving(SIXTEEN) as address:
        page = browser.page()
        for view in ("breakdowns", "overview"):
            page.resize(1440, 900)
            page.open(f"{address}#view={view}&model={chosen}")
            page.wait_for(READY[view])
            page.expect_printable()
        # The curve is drawn anew for paper, where the one of a wide window would be too small to read.
        page.resize(1440, 900)
        width = "Number(document.querySelector('.chart svg').getAttribute('width'))"
        page.wait_for(f"{width} > {PAPER}")
        page.evaluate(f"addEventListener('beforeprint', () => {{ window.printed = {width}; }})")
        page.call("Page.printToPDF")
        page.expect("window.printed", PAPER)
        page.wait_for(f"{width} > {PAPER}")
        assert page.errors == []


def test_hostile_texts_are_shown_as_text(browser, hostile_result):
    with serving(hostile_result) as address:
        page = browser.page(390, 844)
        page.open(f"{address}#view=tokens&model=m2&pos=9")
        page.wait_for("document.querySelector('.flow .current') !== null")
        page.wait_for("document.documentElement.scrollWidth <= 390")
        assert page.texts(".flow bdi")[:2] == [HOSTILE["markup"], HOSTILE["entity"]]
        assert page.evaluate("document.querySelectorAll('.flow script, .flow b').length") == 0
        assert page.evaluate("[...document.querySelectorAll('.flow bdi')].every((e) => e.innerText.length < 410)")
        page.evaluate("location.hash = '#view=tokens&model=m2&pos=7'")
        assert page.wait_for("document.querySelector('.inspector').innerText.includes('100,000 characters')")
        page.evaluate("location.hash = '#view=tokens&model=m2&window=77'")
        assert "window 77: expected one of 0 to 1" in page.wait_for(
            "document.querySelector('.empty[role=alert]')?.innerText"
        )
        assert page.errors == []


def test_a_browser_that_goes_away_stops_its_query(browser, address, monkeypatch):
    """The tokens never end here, as those of a result that is far larger."""
    asked, ended, over = threading.Event(), threading.Event(), threading.Event()
    read = TokenReader.rows

    def slow(self):
        asked.set()
        try:
            while not over.wait(0.01):
                yield from read(self)
        finally:
            ended.set()

    monkeypatch.setattr(TokenReader, "rows", slow)
    page = browser.page()
    page.open(f"{address}#view=slices&model=m2&sql=word_start")
    try:
        assert asked.wait(SECONDS)
        page.open("about:blank")
        assert ended.wait(SECONDS)
    finally:
        over.set()
