"""``argap view``: show a result in the browser, on this machine only."""

import sys
from pathlib import Path
from typing import Annotated

import typer


def view(
    result: Annotated[
        Path, typer.Argument(help="Folder that `argap score` or `argap compare` wrote, or one size of a suite.")
    ],
    port: Annotated[
        int | None, typer.Option(metavar="N", help="Port on 127.0.0.1; 0: any free port [8717 if free].")
    ] = None,
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Only print the address, as without a terminal.")
    ] = False,
) -> None:
    """Look at a result in the browser: tables, the threshold, breakdowns, slices and every token. Ctrl-C ends it."""
    from argap.result import open_result
    from argap.view.serve import serve

    def ready(address: str) -> None:
        typer.echo(address)
        typer.echo("Ctrl-C ends it.", err=True)

    opened = open_result(result)
    serve(opened, port=port, browser=not no_browser and sys.stdout.isatty(), ready=ready)
