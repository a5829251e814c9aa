"""What commands print to stdout: JSON for machines, tables for people."""

from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.table import Table


def print_json(value: Any) -> None:
    """Print a record, a dataclass, or a nest of them and of plain values."""
    import json

    import msgspec

    typer.echo(json.dumps(msgspec.to_builtins(value), indent=2, ensure_ascii=False))


def table(title: str, *columns: str, **options: Any) -> "Table":
    """An empty table; a column whose name begins with ``>`` is right-aligned. ``options``: as for rich's `Table`."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    made = Table(title=title, title_justify="left", box=SIMPLE_HEAD, **options)
    for name in columns:
        made.add_column(name.removeprefix(">"), justify="right" if name.startswith(">") else "left")
    return made
