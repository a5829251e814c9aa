"""List the results below a folder: ``argap view FOLDER`` serves each at an address of its own, two side by side.

The list reads ``gap.json`` alone; a result's tokens are opened when its page is.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from starlette.responses import JSONResponse
from starlette.routing import Mount, Route
from starlette.types import Receive, Scope, Send

from argap.errors import ArgapError
from argap.records import Record, Unit, read_gap
from argap.result import open_result
from argap.view.answers import Answers
from argap.view.app import App, answered, guarded, page_of, static

DEPTH = 3
"""Folders below the given one in which results are looked for."""


class ModelInResult(Record, frozen=True, omit_defaults=False):
    """A model's ΔNLL in nats, and the share of its gap or lead on the AR hits; None where there is none."""

    model: str
    delta: float | None
    share: float | None
    reason: str | None


class Listed(Record, frozen=True, omit_defaults=False):
    """A result of the list, or a folder that could not be read."""

    path: str
    """Below the folder, with slashes."""
    error: str | None = None
    reference: str = ""
    threshold: int | None = None
    unit: Unit = "token"
    tokens: int = 0
    date: str = ""
    models: tuple[ModelInResult, ...] = ()


def results_in(folder: Path) -> list[Path]:
    """Return the folders of results below ``folder``, by name. Runs inside a result are none of them."""
    return sorted(_results(folder, DEPTH))


def _results(folder: Path, depth: int) -> Iterator[Path]:
    for below in folder.iterdir() if folder.is_dir() else ():
        if below.is_dir() and not below.name.startswith("."):
            if (below / "gap.json").is_file():
                yield below
            elif depth > 1:
                yield from _results(below, depth - 1)


def folder_app(folder: Path, results: list[Path], *, token: str, port: int) -> App:
    """Return the application that serves the list of ``results`` at ``/``, and each below ``/r/NUMBER/``."""
    listed = [_listed(folder, each) for each in results]
    routes: list[Any] = [Route("/api/results", answered(lambda: listed))]
    routes += [Mount(f"/r/{k}", _Opened(each)) for k, each in enumerate(results)]
    return guarded([*routes, static("page", "/page"), static("results")], token=token, port=port)


def _listed(folder: Path, result: Path) -> Listed:
    path = result.relative_to(folder).as_posix()
    try:
        gap = read_gap(result)
    except ArgapError as error:
        return Listed(path, str(error))
    models = tuple(
        ModelInResult(
            row.model, gap.on_all[row.model].delta, gap.on_hits[row.model].share, gap.on_hits[row.model].reason
        )
        for row in gap.compared
    )
    return Listed(path, None, gap.reference, gap.threshold, gap.unit, gap.evaluation.scored, gap.date[:10], models)


class _Opened:
    """ASGI application of one result, which is opened by the first request for it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._app: App | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            self._app = self._app or page_of(Answers(open_result(self._folder)))
        except ArgapError as error:
            await JSONResponse({"error": str(error)})(scope, receive, send)
        else:
            await self._app(scope, receive, send)
