"""Print results to stdout: JSON for machines, tables for people and papers."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any

import typer

from argap.cli.options import Json
from argap.errors import ArgapError
from argap.runtime.streams import is_unicode

if TYPE_CHECKING:
    from argap.records import Gap
    from argap.reports.tables.formats import Form, Table


@dataclass(frozen=True)
class Output:
    """The output format of a result. Raises `ArgapError` if more than one is chosen."""

    as_json: Json = False
    latex: Annotated[bool, typer.Option("--latex", help="Print LaTeX for booktabs, the best values in bold.")] = False
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown, the best values in bold.")] = False

    def __post_init__(self) -> None:
        if self.latex + self.markdown + self.as_json > 1:
            raise ArgapError("--json, --latex and --markdown: expected one of them at most")

    @property
    def form(self) -> "Form":
        """Return the format of tables."""
        return "latex" if self.latex else "markdown" if self.markdown else "terminal"

    def show(self, value: Any, tables: "Callable[[], Sequence[Table]]") -> None:
        """Print ``value`` as JSON, or as ``tables``, which are built only if needed."""
        if self.as_json:
            print_json(value)
            return
        from argap.reports.tables.formats import print_tables

        print_tables(tables(), self.form)

    def show_gap(self, gap: "Gap") -> None:
        """Print a result: the tables of `argap.reports.tables.result`, or `argap.results.printed.result_json`."""
        from argap.reports.tables.result import tables_of
        from argap.results.printed import result_json

        self.show(result_json(gap) if self.as_json else None, lambda: tables_of(gap))


FORMATS = tuple(each.name for each in fields(Output))
"""The names of the options in `Output`."""


def print_json(value: Any) -> None:
    """Print a record, a dataclass, or nested plain values as JSON, with escapes for what stdout cannot write."""
    import json

    import msgspec

    ascii_only = not is_unicode(sys.stdout)
    typer.echo(json.dumps(msgspec.to_builtins(value), indent=2, ensure_ascii=ascii_only))
