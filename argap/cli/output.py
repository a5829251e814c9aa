"""What commands print to stdout for machines: JSON."""

from typing import Any

import typer


def print_json(value: Any) -> None:
    """Print a record, a dataclass, or a nest of them and of plain values."""
    import json

    import msgspec

    typer.echo(json.dumps(msgspec.to_builtins(value), indent=2, ensure_ascii=False))
