"""Trace five commands and list the modules that each passes: ``python tools/pages.py journeys``.

A module counts if one of its functions is called, other than while it is imported.
"""

import contextlib
import io
import shutil
import sys
import tempfile
import threading
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).parents[1]
BEGIN, END = "<!-- journeys: written by tools/journeys.py -->\n", "<!-- end of journeys -->\n"
OPTIMIZED = 1
"""The flag of the code of functions, which that of modules and classes lacks (`inspect.CO_OPTIMIZED`)."""
TEXT = 40 * "The letter of Ann Kranz came to Bob Lomax on day 12. Bob Lomax met Ann Kranz again on day 21.\n"
DEMO = ROOT / "argap" / "demo"
SUITE = "table2-mini"
JOURNEYS = {
    "text → counts": f"index build text --tokenizer {DEMO}/tokenizer --out index",
    "checkpoint → log-probs": (
        f"score {DEMO}/checkpoints/base_conv --ref {DEMO}/checkpoints/attention --data text --index index "
        "--seq-len 64 --device cpu --out result"
    ),
    "condition → share": "slice result --where repeated --name again",
    "suite → table": f"suite table {ROOT}/suites/{SUITE}.yaml --out suite",
    "result → page": "report result",
}
"""Commands, run one after the other in a folder with ``text`` and ``suite``."""
UNTIL = {"checkpoint → log-probs": "write_gap"}
"""Functions that begin what is no longer part of the journey."""


def trace() -> dict[str, list[str]]:
    """Run `JOURNEYS`; return the modules of argap that each passes, in the order in which they are first called."""
    with tempfile.TemporaryDirectory() as name, contextlib.chdir(name):
        Path("text").mkdir()
        for k in range(3):
            Path("text", f"{k}.txt").write_text(TEXT.replace("12", str(k)))
        shutil.copytree(ROOT / "results" / SUITE, "suite", ignore=shutil.ignore_patterns("figures"))
        return {journey: passed(command, UNTIL.get(journey)) for journey, command in JOURNEYS.items()}


def passed(command: str, until: str | None = None) -> list[str]:
    """Run a command of argap; return the modules that it passes before the function ``until`` is called."""
    from argap.cli import main

    found: dict[str, None] = {}
    over: list[str | None] = []
    said = io.StringIO()

    def profile(frame: FrameType, event: str, _: Any) -> None:
        module = frame.f_globals.get("__name__", "")
        if event != "call" or over or not module.startswith("argap."):
            return
        if frame.f_code.co_name == until:
            over.append(until)
        elif module in found:
            return
        elif frame.f_code.co_flags & OPTIMIZED and not _imports(frame):
            found[module] = None

    sys.argv = ["argap", *command.split()]
    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
            main()
    except SystemExit as end:
        if end.code:
            raise RuntimeError(f"argap {command}: {said.getvalue()}") from None
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # pyright: ignore[reportArgumentType]
    return list(found)


def _imports(frame: FrameType | None) -> bool:
    """Return whether a module of argap is being imported."""
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_globals.get("__name__", "").startswith("argap"):
            return True
        frame = frame.f_back
    return False


def section(journeys: dict[str, list[str]]) -> str:
    """Return the lists as Markdown, between their marks: the modules of each room, rooms as they are reached."""
    lines = []
    for journey, modules in journeys.items():
        rooms: dict[str, list[str]] = {}
        for module in modules:
            room, _, name = module.removeprefix("argap.").partition(".")
            rooms.setdefault(room, []).append(name or room)
        said = "; ".join(f"`{room}`: {', '.join(names)}" for room, names in rooms.items())
        lines.append(f"- **{journey}**, {len(modules)} modules: {said}.\n")
    return f"{BEGIN}{''.join(lines)}{END}"


def committed() -> str:
    """Return the section of the committed page."""
    found = (ROOT / "docs" / "architecture.md").read_text().partition(BEGIN)[2].partition(END)[0]
    return f"{BEGIN}{found}{END}"


def write(docs: Path) -> None:
    """Trace the journeys and rewrite their section of the page in the folder of pages."""
    page = docs / "architecture.md"
    before, _, rest = page.read_text().partition(BEGIN)
    page.write_text(before + section(trace()) + rest.partition(END)[2])
