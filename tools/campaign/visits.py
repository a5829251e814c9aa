"""Visit the page of `argap view`: ask its server for everything the page does, then interrupt it."""

import json
import os
import signal
import urllib.request
from pathlib import Path
from typing import Any

from forked import Ended, output, start, wait

ANSWERS = "answers.json"
"""What the server answered, in the folder of the try."""
ASKED = (
    "overview", "thresholds?intervals=1", "breakdown?by=distance", "slices?name=a&where=repeated&model=model",
    "slices?name=a&where=contains(piece,'w')&model=model", "window?window=0&model=model", "windows?model=model",
    "losses?where=repeated&model=model", "search?text=w1",
)  # fmt: skip


class _Visitor:
    """Asks once the address is printed, and ends the server."""

    def __init__(self, process: int, folder: Path) -> None:
        self.process, self.folder = process, folder
        self.answers: dict[str, Any] = {}

    def __call__(self, seconds: float) -> None:
        printed = output(self.folder, "stdout")
        if self.answers or not printed.exists() or "\n" not in (text := printed.read_text()):
            return
        origin, _, token = text.strip().partition("/?token=")
        cookie = {"Cookie": f"argap-{origin.rpartition(':')[2]}={token}"}
        for name in ASKED:
            self.answers[name] = _answer(urllib.request.Request(f"{origin}/api/{name}", headers=cookie))
        self.answers["overview"].pop("name", None)  # the folder's, with that above it
        os.kill(self.process, signal.SIGINT)


def _answer(request: urllib.request.Request) -> Any:
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)
    except (OSError, ValueError) as error:
        return {"failed": str(error)}


def visit(command: str, folder: Path) -> Ended:
    """Serve, ask, interrupt. A refusal that the page shows counts as the command's."""
    process = start(command, folder)
    visitor = _Visitor(process, folder)
    ended = wait(process, folder, visitor)
    (folder / ANSWERS).write_text(json.dumps(visitor.answers))
    if ended.code != 130 or not visitor.answers:
        return ended
    answers = visitor.answers.values()
    refused = [answer["error"] for answer in answers if "error" in answer]
    failed = [answer["failed"] for answer in answers if "failed" in answer]
    if failed:
        return Ended(70, "", f"{ended.stderr}{failed[0]}", ended.seconds, ended.alive)
    said = ended.stderr + (f"argap: {refused[0]}" if refused else "")
    return Ended(int(bool(refused)), "", said, ended.seconds, ended.alive)
