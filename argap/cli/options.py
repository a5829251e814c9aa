"""Options that several commands share."""

from typing import Annotated

import typer

from argap.trust import trusting

Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]


def _trust(context: typer.Context, trust: bool) -> bool:
    context.with_resource(trusting(trust))  # until the command ends
    return trust


TrustRemoteCode = Annotated[
    bool, typer.Option("--trust-remote-code", callback=_trust, help="Run code that a checkpoint or file names.")
]
"""Taking part in a command is enough: the trust holds until it ends."""
