"""Pages in a headless Chromium, which Playwright drives, and what holds for all of them: legible, and fit for print."""

import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from playwright.sync_api import Browser, ConsoleMessage, Page

SECONDS = 240.0
"""Limit of every wait. A machine that runs other work at the same time can be twenty times slower than an idle one."""
PAPER = 680
"""Pixels between the margins of an A4 page."""
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find_chromium() -> str | None:
    """Return ``$ARGAP_CHROMIUM``, or a Chromium on the path."""
    named = os.environ.get("ARGAP_CHROMIUM")
    return named or next((path for name in NAMES if (path := shutil.which(name))), None)


@dataclass
class Heard:
    """What a page logged and requested since `watch`."""

    errors: list[str] = field(default_factory=list)
    """Uncaught exceptions, and messages of the console at level error or warning, such as what a policy blocked."""
    requested: list[str] = field(default_factory=list)


def new_page(
    browser: Browser, width: int = 1440, height: int = 900, *, dark: bool = False, script: bool = True
) -> Page:
    """Open a page with cookies of its own; ``script``: whether the page's own scripts run."""
    context = browser.new_context(reduced_motion="reduce", java_script_enabled=script)
    context.set_default_timeout(1000 * SECONDS)
    page = context.new_page()
    resize(page, width, height, dark=dark)
    return page


def watch(page: Page) -> Heard:
    """Record what a page logs and requests from now on."""
    heard = Heard()

    def logged(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            heard.errors.append(f"{message.text} {message.location['url']}")

    page.on("console", logged)
    page.on("pageerror", lambda error: heard.errors.append(str(error)))
    page.on("request", lambda request: heard.requested.append(request.url))
    return heard


def resize(
    page: Page, width: int, height: int, *, dark: bool = False, media: Literal["screen", "print"] = "screen"
) -> None:
    """Set the size of the window, the colour scheme, and whether the page is shown as on paper."""
    page.set_viewport_size({"width": width, "height": height})
    page.emulate_media(media=media, color_scheme="dark" if dark else "light")


def wait_for(page: Page, expression: str) -> Any:
    """Return the first true value of an expression, which may throw until then. Raises `TimeoutError`."""
    return _checked(page, expression, bool)


def expect(page: Page, expression: str, expected: Any) -> None:
    """Wait until an expression has a value. Raises `TimeoutError` with the value that it has."""
    _checked(page, expression, lambda value: value == expected)


def settled(page: Page, expression: str, expected: Any) -> Any:
    """Return the value of an expression: ``expected`` once it is that, else the last one, after `SECONDS`."""
    return _until(page, expression, lambda value: value == expected)


def _checked(page: Page, expression: str, holds: Callable[[Any], bool]) -> Any:
    if not holds(value := _until(page, expression, holds)):
        said = page.inner_text("body")[:600]
        raise TimeoutError(f"{value!r} after {SECONDS:.0f} s, of {expression[:400]}; the page says: {said}")
    return value


def _until(page: Page, expression: str, holds: Callable[[Any], bool]) -> Any:
    end = time.monotonic() + SECONDS
    while not holds(value := page.evaluate(f"() => {{ try {{ return (\n{expression}\n) }} catch {{ return null }} }}")):
        if time.monotonic() > end:
            break
        page.wait_for_timeout(30)
    return value


def contrast(within: str = "body") -> str:
    """Return the expression that lists texts too pale for their ground, within one element."""
    return _checks("contrast.js", within)


def _checks(name: str, within: str) -> str:
    return (Path(__file__).parent / name).read_text().replace("document.body", f"document.querySelector('{within}')", 1)


def illegible(page: Page) -> list[Any]:
    """Return what is wider than the window or too pale for its ground, at two widths and in both schemes."""
    found: list[Any] = []
    for width in (1440, 390):
        for dark in (False, True):
            resize(page, width, 844, dark=dark)
            expect(page, "innerWidth", width)
            too_wide = f"[document.documentElement.scrollWidth].filter((each) => each > {width})"
            found += [*settled(page, too_wide, []), *settled(page, contrast(), [])]
    return found


def unprintable(page: Page, within: str = "body") -> list[Any]:
    """Return what paper shows wrong, in both schemes: cut off, parted or repeated, controls, and pale texts."""
    found: list[Any] = []
    for dark in (False, True):
        resize(page, PAPER, 900, dark=dark, media="print")
        expect(page, "innerWidth", PAPER)
        found += [*settled(page, _checks("print.js", within), []), *settled(page, contrast(within), [])]
    return found
