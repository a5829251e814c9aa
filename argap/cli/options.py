"""Options shared by several commands."""

from typing import Annotated

import typer

from argap.trust import trusting

Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]


def _trust(context: typer.Context, trust: bool) -> bool:
    context.with_resource(trusting(trust))  # until the command ends
    return trust


LogTo = Annotated[
    list[str] | None,
    typer.Option("--log-to", metavar="TRACKER", help="Also log to tensorboard, wandb or trackio. Repeatable."),
]
TrustRemoteCode = Annotated[
    bool, typer.Option("--trust-remote-code", callback=_trust, help="Run code named by a checkpoint or file.")
]
"""The callback trusts remote code until the command ends; the command itself need not pass the value on."""
