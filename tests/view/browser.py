"""A headless Chromium, driven over the DevTools protocol through two pipes: no package, no port, no download."""

import base64
import itertools
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SECONDS = 240.0
"""Limit of every wait. A machine that runs other work at the same time can be twenty times slower than an idle one."""
PAPER = 680
"""Pixels between the margins of an A4 page."""
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
KEYS = {
    "Enter": (13, "\r"), "Tab": (9, ""), "Escape": (27, ""), "Backspace": (8, ""),
    "ArrowLeft": (37, ""), "ArrowUp": (38, ""), "ArrowRight": (39, ""), "ArrowDown": (40, ""),
    "End": (35, ""), "Home": (36, ""),
}  # fmt: skip
"""Windows virtual key codes, and the text that a key types."""


def contrast(within: str = "body") -> str:
    """The expression that lists texts too pale for their ground, within one element."""
    return _checks("contrast.js", within)


def _checks(name: str, within: str) -> str:
    return (Path(__file__).parent / name).read_text().replace("document.body", f"document.querySelector('{within}')", 1)


def find_chromium() -> str | None:
    """``$ARGAP_CHROMIUM``, or a Chromium on the path."""
    named = os.environ.get("ARGAP_CHROMIUM")
    return named or next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One browser process. Use as a context manager."""

    def __init__(self, program: str, profile: Path) -> None:
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        flags = [
            "--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
            "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-extensions",
            "--hide-scrollbars", "--force-color-profile=srgb", f"--user-data-dir={profile}", "about:blank",
        ]  # fmt: skip
        # The protocol's pipes are the descriptors 3 and 4 of the browser.
        script = f'exec "$0" "$@" 3<&{to_browser} 4>&{from_browser}'
        self._process = subprocess.Popen(
            ["/bin/bash", "-c", script, program, *flags],
            pass_fds=(to_browser, from_browser),
            stderr=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._numbers = itertools.count(1)
        self._buffer = b""
        self._pages: dict[str, Page] = {}

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._write)
        os.close(self._read)

    def page(self, width: int = 1440, height: int = 900, *, dark: bool = False) -> "Page":
        """A new page, with cookies of its own."""
        context = self.call("Target.createBrowserContext")["browserContextId"]
        target = self.call("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = self._pages[session] = Page(self, session, context)
        page.resize(width, height, dark=dark)
        return page

    def close_pages(self) -> None:
        """Close all pages, so that no earlier one uses the processor or the server of a later one."""
        while self._pages:
            _, page = self._pages.popitem()
            self.call("Target.disposeBrowserContext", browserContextId=page.context)

    def call(self, method: str, session: str | None = None, /, **parameters: Any) -> dict[str, Any]:
        """Send a command and return its result; events that come first go to their pages."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters, **({"sessionId": session} if session else {})}
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]
            if (page := self._pages.get(answer.get("sessionId", ""))) is not None:
                page.heard(answer["method"], answer["params"])

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            part = os.read(self._read, 2**20)
            if not part:
                raise RuntimeError("the browser went away")
            self._buffer += part
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)


class Page:
    """A page, what it logged and what it asked for."""

    def __init__(self, browser: Browser, session: str, context: str) -> None:
        self._browser = browser
        self._session = session
        self.context = context
        self.errors: list[str] = []
        """Messages of the console at level error or warning, uncaught exceptions, and what the policy blocked."""
        self.requested: list[str] = []
        self._loaded: set[str] = set()
        self._pointer = 0.0, 0.0
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call("Page.setLifecycleEventsEnabled", enabled=True)
        self.call("Emulation.setFocusEmulationEnabled", enabled=True)

    def call(self, method: str, /, **parameters: Any) -> dict[str, Any]:
        return self._browser.call(method, self._session, **parameters)

    def heard(self, method: str, event: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            details = event["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description", details["text"]))
        elif method == "Runtime.consoleAPICalled" and event["type"] in ("error", "warning"):
            self.errors.append(" ".join(str(each.get("value", each.get("description"))) for each in event["args"]))
        elif method == "Log.entryAdded" and event["entry"]["level"] in ("error", "warning"):
            self.errors.append(f"{event['entry']['text']} {event['entry'].get('url', '')}")
        elif method == "Network.requestWillBeSent":
            self.requested.append(event["request"]["url"])
        elif method == "Page.lifecycleEvent" and event["name"] == "load":
            self._loaded.add(event["loaderId"])

    def resize(self, width: int, height: int, *, dark: bool = False, media: str = "") -> None:
        """Set the size of the window, the colour scheme, and the media that is shown: ``"print"`` as on paper."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call(
            "Emulation.setEmulatedMedia",
            media=media,
            features=[scheme, {"name": "prefers-reduced-motion", "value": "reduce"}],
        )

    def allow(self, *permissions: str) -> None:
        """Grant what the browser would ask its user for."""
        self._browser.call("Browser.grantPermissions", permissions=list(permissions), browserContextId=self.context)

    def open(self, address: str) -> None:
        """Go to an address and wait until it is loaded. Raises `RuntimeError` where there is nothing."""
        navigated = self.call("Page.navigate", url=address)
        if "errorText" in navigated:
            raise RuntimeError(f"{address}: {navigated['errorText']}")
        loader = navigated.get("loaderId")  # none where only the part after # differs
        end = time.monotonic() + SECONDS
        while loader and loader not in self._loaded:
            if time.monotonic() > end:
                raise TimeoutError(f"{address} is not loaded after {SECONDS:.0f} s")
            self.call("Page.getFrameTree")  # events come with its answer
            time.sleep(0.01)

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression; a promise is awaited. Raises `RuntimeError` for what it throws."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            raise RuntimeError(details.get("exception", {}).get("description", details["text"]))
        return answer["result"].get("value")

    def wait_for(self, expression: str) -> Any:
        """The first true value of an expression. Raises `TimeoutError`."""
        return self._until(expression, bool)

    def expect(self, expression: str, expected: Any) -> None:
        """Wait until an expression has a value. Raises `TimeoutError` with the value that it has."""
        self._until(expression, lambda value: value == expected)

    def _until(self, expression: str, holds: Callable[[Any], bool]) -> Any:
        end = time.monotonic() + SECONDS
        while True:
            value = self.evaluate(f"(() => {{ try {{ return (\n{expression}\n) }} catch {{ return null }} }})()")
            if holds(value):
                return value
            if time.monotonic() > end:
                said = self.evaluate("document.body.innerText")[:600]
                raise TimeoutError(f"{value!r} after {SECONDS:.0f} s, of {expression[:400]}; the page says: {said}")
            time.sleep(0.03)

    def expect_legible(self) -> None:
        """At two widths and in both schemes nothing is wider than the window, and texts have contrast."""
        for width in (1440, 390):
            for dark in (False, True):
                self.resize(width, 844, dark=dark)
                self.expect("innerWidth", width)
                self.wait_for(f"document.documentElement.scrollWidth <= {width}")
                self.expect(contrast(), [])

    def expect_printable(self, within: str = "body") -> None:
        """On paper, in both schemes, nothing is cut off, parted or repeated, controls are gone, and texts are dark."""
        for dark in (False, True):
            self.resize(PAPER, 900, dark=dark, media="print")
            self.expect("innerWidth", PAPER)
            self.expect(_checks("print.js", within), [])
            self.expect(contrast(within), [])

    def text(self, selector: str) -> str:
        return self.evaluate(f"document.querySelector({json.dumps(selector)}).innerText")

    def texts(self, selector: str) -> list[str]:
        return self.evaluate(f"[...document.querySelectorAll({json.dumps(selector)})].map((e) => e.innerText)")

    def click(self, selector: str) -> None:
        """Click the middle of an element as a mouse does; the element is scrolled into view."""
        self.hold(selector)
        self.release()

    def hold(self, selector: str) -> None:
        """Press the mouse's button on an element as `click` does."""
        self._mouse("mousePressed", self._middle(selector))

    def release(self) -> None:
        """Release the mouse's button where it was pressed."""
        self._mouse("mouseReleased", self._pointer)

    def hover(self, selector: str) -> None:
        self._mouse("mouseMoved", self._middle(selector))

    def _mouse(self, event: str, place: tuple[float, float]) -> None:
        self._pointer = x, y = place
        button = {"button": "left", "clickCount": 1} if event != "mouseMoved" else {}
        self.call("Input.dispatchMouseEvent", type=event, x=x, y=y, **button)

    def _middle(self, selector: str) -> tuple[float, float]:
        """The middle of an element, once that is where it was at the look before and uncovered."""
        find = (
            f"(() => {{ const e = document.querySelector({json.dumps(selector)}); if (!e) return null;"
            " e.scrollIntoView({block: 'center', behavior: 'instant'}); const r = e.getClientRects()[0];"
            " const [x, y] = [r.left + r.width / 2, r.top + r.height / 2];"
            " const top = document.elementFromPoint(x, y);"
            " return top && (e.contains(top) || top.contains(e)) ? [x, y] : null; })()"
        )
        place, before = self.wait_for(find), None
        while place != before:
            time.sleep(0.03)
            place, before = self.wait_for(find), place
        return place

    def press(self, *keys: str) -> None:
        """Type keys: names as `KeyboardEvent.key` has them."""
        for key in keys:
            code, text = KEYS.get(key, (ord(key.upper()[0]) if len(key) == 1 else 0, key))
            typed = {"text": text} if text else {}
            common = {"key": key, "windowsVirtualKeyCode": code}
            self.call("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", **common, **typed)
            self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        made = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(made["data"]))
