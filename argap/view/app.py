"""Route requests: the page's files at ``/``, answers in JSON below ``/api/``, downloads below ``/api/keep/``.

Each answer is computed in a thread, `AT_ONCE` at a time; if the browser disconnects first, the query is interrupted.
"""

import mimetypes
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import anyio
from anyio.to_thread import run_sync
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from argap.errors import ArgapError
from argap.results.printed import encoded
from argap.runtime.guard import expected, fail, shortened
from argap.runtime.interrupt import Interrupt
from argap.runtime.threads import available_cores
from argap.view.answers import Answers
from argap.view.guard import Guard
from argap.view.keep import KINDS, Asked, keep

LONGEST = 300
"""Seconds for an answer, from when it is begun."""
AT_ONCE = max(4, available_cores())
"""Answers of a result that are computed at once; others wait their turn, so that each still ends in its time."""
PAGE = Path(__file__).parent / "page"
mimetypes.add_type("text/javascript", ".js")  # some systems register text/plain, which browsers refuse
Compute = Callable[[Asked, Interrupt], Any]
Respond = Callable[[Asked, Interrupt], Response]

COMPUTED: dict[str, Compute] = {
    "overview": lambda ask, _: ask.answers.overview,
    "thresholds": lambda ask, _: ask.answers.thresholds(ask.reference, intervals=ask.flag("intervals")),
    "breakdown": lambda ask, stop: ask.answers.breakdown(ask.text("by"), ask.setting, stop),
    "sources": lambda ask, _: ask.answers.sources(ask.setting),
    "slices": lambda ask, stop: ask.answers.slices(ask.named, ask.setting, ask.models, stop, empty=ask.flag("empty")),
    "discover": lambda ask, stop: ask.answers.discover(ask.model, ask.reference, stop),
    "window": lambda ask, _: ask.answers.window(ask.whole("window"), [*ask.models, ask.reference]),
    "windows": lambda ask, _: ask.answers.worst_windows(ask.model, ask.reference),
    "losses": lambda ask, stop: ask.answers.largest_losses(
        ask.text("where"), ask.setting, ask.model, stop, in_order=ask.flag("in_order")
    ),
    "search": lambda ask, stop: ask.answers.search(ask.text("text"), stop),
}


CHANGES: dict[str, Compute] = {
    "record": lambda ask, stop: ask.answers.record(ask.text("name"), ask.text("where"), stop),
}
"""What a POST changes (`argap.view.guard`)."""


App = ASGIApp
"""An application of either kind: of one result, or of a folder of them."""


def view_app(answers: Answers, *, token: str, port: int) -> App:
    """Return the application that serves ``answers`` on 127.0.0.1 at ``port``, to browsers that have ``token``."""
    return guarded([*_routes(answers), static("page")], token=token, port=port)


def page_of(answers: Answers) -> App:
    """Return the same without a guard, for an application that has one."""
    return Starlette(routes=[*_routes(answers), static("page")])


def guarded(routes: list[Any], *, token: str, port: int) -> App:
    """Return an application that only browsers with ``token`` can read."""
    return Starlette(routes=routes, middleware=[Middleware(Guard, token=token, port=port)])


def static(folder: str, at: str = "/") -> Mount:
    """Return the route of the files of a page."""
    return Mount(at, StaticFiles(directory=PAGE.parent / folder, html=True))


def answered(compute: Callable[[], Any]) -> Callable[[Request], Response]:
    """Return an endpoint that answers in JSON without parameters."""
    return lambda _: Response(encoded(compute()), media_type="application/json")


def _routes(answers: Answers) -> list[Any]:
    endpoint = partial(_endpoint, answers=answers, turns=anyio.CapacityLimiter(AT_ONCE))
    routes: list[Any] = [Route(f"/api/{name}", endpoint(_json(each))) for name, each in COMPUTED.items()]
    routes += [Route(f"/api/{name}", endpoint(_json(do)), methods=["POST"]) for name, do in CHANGES.items()]
    routes += [Route(f"/api/keep/{kind}", endpoint(_file(kind), refused=400)) for kind in KINDS]
    return [*routes, Route("/api/{rest:path}", _unknown)]


def _json(compute: Compute) -> Respond:
    return lambda ask, stop: Response(encoded(compute(ask, stop)), media_type="application/json")


def _file(kind: str) -> Respond:
    def respond(ask: Asked, interrupt: Interrupt) -> Response:
        content, media_type, name = keep(kind, ask, interrupt)
        headers = {"Content-Disposition": f'attachment; filename="{name}"'}
        return Response(content, media_type=media_type, headers=headers)

    return respond


def _endpoint(
    respond: Respond, answers: Answers, turns: anyio.CapacityLimiter, *, refused: int = 200
) -> Callable[[Request], Any]:
    """Run ``respond`` in a thread when its turn comes; interrupt it if the browser disconnects or the server stops.

    ``refused``: the status of an `ArgapError`. The page treats a refusal as an answer, so its console need not log it.
    """

    def answer(request: Request, interrupt: Interrupt) -> Response:
        return respond(Asked(request.query_params, answers), interrupt)

    async def endpoint(request: Request) -> Response:
        interrupt = Interrupt()
        made: Any = None

        async def watch() -> None:
            while (await request.receive())["type"] != "http.disconnect":
                pass
            interrupt.set()

        try:
            async with anyio.create_task_group() as group:
                group.start_soon(watch)
                try:
                    async with turns:
                        with anyio.fail_after(LONGEST):
                            made = await run_sync(answer, request, interrupt, abandon_on_cancel=True)
                except TimeoutError:
                    interrupt.set()
                    return JSONResponse({"error": f"not answered within {LONGEST} s; ask for less"}, refused)
                except ArgapError as error:
                    return JSONResponse({"error": shortened(" ".join(str(error).split()))}, refused)
                except Exception as error:
                    if (line := expected(error, {})) is not None:  # no memory, or a disk that cannot be written
                        return JSONResponse({"error": shortened(line)}, refused)
                    fail(error, {})  # a mistake of argap's own: one line in the terminal, too
                    return JSONResponse({"error": "could not be answered; the terminal of argap view says why"}, 500)
                finally:
                    group.cancel_scope.cancel()
        except anyio.get_cancelled_exc_class():  # the server stops, and takes what is raised for a failure
            interrupt.set()
            return JSONResponse({"error": "argap view was stopped"}, 503)
        return made

    return endpoint


async def _unknown(request: Request) -> Response:
    return JSONResponse({"error": shortened(f"{request.url.path}: no such answer")}, 404)
