"""Serve the page on this machine until Ctrl-C."""

import asyncio
import secrets
import socket
import webbrowser
from collections.abc import Callable
from pathlib import Path
from threading import Thread

from argap.errors import ArgapError
from argap.files.regular import is_there
from argap.result import open_result
from argap.runtime.interrupt import Interrupt
from argap.runtime.signals import ending_as_interrupted

HOST = "127.0.0.1"
PORT = 8717
"""The page's port unless another program uses it; a fixed port keeps links alive."""
NEEDED = ("starlette", "uvicorn")


def serve(folder: Path, *, port: int | None = None, browser: bool, ready: Callable[[str], None]) -> None:
    """Serve the result in ``folder``, or the list of the results below it, until Ctrl-C, SIGTERM or SIGHUP.

    ``port``: 0 for any free port; None for `PORT`, or any free port if that is taken. ``browser``: open the page.
    ``ready``: called with the address. Raises `ArgapError` if there is no result, ``port`` is taken or a package is
    missing, and `KeyboardInterrupt` at the end.
    """
    try:
        import uvicorn

        from argap.view.answers import Answers
        from argap.view.app import view_app
        from argap.view.folder import folder_app, results_in
        from argap.view.protocol import Protocol
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in NEEDED:
            raise
        raise ArgapError(f"{package} is not installed; run `pip install {' '.join(NEEDED)}`") from None
    found = [] if is_there(folder / "gap.json") else results_in(folder)
    result = None if found else open_result(folder)
    listening = listen(port)
    number = listening.getsockname()[1]
    token = secrets.token_urlsafe(24)
    interrupt = Interrupt()
    warming = Thread(target=lambda: None)
    if result is None:
        app = folder_app(folder, found, token=token, port=number)
    else:
        answers = Answers(result)
        _ = answers.overview  # so that the page loads at once
        app = view_app(answers, token=token, port=number)
        warming = Thread(target=answers.warm, args=(interrupt,))
    config = uvicorn.Config(
        app,
        http=Protocol,
        log_level="critical",  # `view_app` says what fails; at the end uvicorn would print what it cancels
        access_log=False,
        server_header=False,
        lifespan="off",
        timeout_graceful_shutdown=1,
    )
    address = f"http://{HOST}:{number}/?token={token}"
    ready(address)
    warming.start()
    if browser:
        Thread(target=webbrowser.open, args=(address,), daemon=True).start()
    serving = uvicorn.Server(config).serve(sockets=[listening])
    with ending_as_interrupted():
        try:
            asyncio.run(serving)
        finally:
            serving.close()  # Ctrl-C may come before it has begun, and Python would warn
            listening.close()
            interrupt.set()
            warming.join()


def listen(port: int | None) -> socket.socket:
    """Return a socket that listens on 127.0.0.1 at ``port``; see `serve`."""
    if port is not None and not 0 <= port < 2**16:
        raise ArgapError(f"`port` {port}: expected 0 to 65535")
    candidates = (PORT, 0) if port is None else (port,)
    refused = ""
    for candidate in candidates:
        listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((HOST, candidate))
            listening.listen(128)
            return listening
        except OSError as error:
            listening.close()
            refused = f"`port` {candidate}: {error.strerror} on {HOST}; use `port=0` for one that is free"
    raise ArgapError(refused)
