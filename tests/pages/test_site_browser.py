"""The built site in a real browser. Skipped where no Chromium is installed, or `make docs` has not installed mkdocs."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.builders.browser import contrast, expect, new_page, resize, unprintable, wait_for, watch

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow
PAGES = (
    "index",
    "tutorial",
    "faq",
    "slices",
    "fidelity",
    "commands",
    "python",
    "notebooks/api",
    "bigram_index/count_numba",
)


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    pytest.importorskip("mkdocs")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1440, 390])
def test_pages_are_legible_and_ask_no_other_machine(browser: Browser, address: str, width: int, dark: bool):
    page = new_page(browser, width, 1200, dark=dark)
    heard = watch(page)
    for name in PAGES:
        page.goto(f"{address}/{name}.html")
        wait_for(page, f"document.documentElement.scrollWidth <= {width}")
        expect(page, contrast("main"), [])
    assert heard.errors == []
    assert [url for url in heard.requested if not url.startswith((address, "data:"))] == []


def test_pages_print_black_on_white_without_controls(browser: Browser, address: str):
    page = new_page(browser)
    for name in PAGES:
        resize(page, 1440, 900, dark=True)
        page.goto(f"{address}/{name}.html")
        assert unprintable(page, "main") == []
        assert not page.evaluate(
            "[...document.querySelectorAll('header, .md-sidebar')].some((e) => e.checkVisibility())"
        )


def test_the_search_finds_the_answers(browser: Browser, address: str):
    page = new_page(browser)
    page.goto(f"{address}/index.html?q=threshold")
    found = "document.querySelector('.md-search-result__list').innerText"
    assert wait_for(page, f"{found}.includes('Questions and answers')")


def test_a_console_block_is_copied_without_its_prompts(browser: Browser, address: str):
    page = new_page(browser)
    page.goto(f"{address}/tutorial.html")
    copied = page.evaluate(
        "[...document.querySelectorAll('pre code')].find((code) => code.innerText.startsWith('$ ')).closest('pre')"
        ".querySelector('code').setAttribute('data-md-copying', ''),"
        "document.querySelector('[data-md-copying]').innerText"
    )
    assert copied.startswith("argap score my-model")
