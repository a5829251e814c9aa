"""The flag ``--device``: every command takes the same names, which `argap.device` reads."""

from typing import Annotated

import typer

Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
