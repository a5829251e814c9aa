"""Options shared by several commands, alone or as groups, and amounts as they are written.

A group is a dataclass with an option in each field. A parameter of that type gives a command all of its options, and an
instance that has checked them before the command begins.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from inspect import Parameter, signature
from typing import Annotated, Any, Literal, get_type_hints

import typer

from argap.errors import ArgapError
from argap.runtime.trust import trusting


class Commands(typer.Typer):
    """Commands whose parameters may be groups of options."""

    def command(self, *arguments: Any, **options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """As `typer.Typer.command`."""
        register = super().command(*arguments, **options)
        return lambda command: register(_flat(command))


def _flat(command: Callable[..., Any]) -> Callable[..., Any]:
    """``command`` with the options of its groups as parameters."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}

    @wraps(command)
    def ungrouped(**given: Any) -> Any:
        made = {name: of(**{each.name: given.pop(each.name) for each in fields(of)}) for name, of in groups.items()}
        return command(**given, **made)

    parameters = []
    for name, each in signature(command).parameters.items():
        of_group = get_type_hints(groups[name], include_extras=True) if name in groups else {}
        options = {option: (hint, getattr(groups[name], option)) for option, hint in of_group.items()}
        for option, (hint, default) in (options or {name: (hints[name], each.default)}).items():
            parameters.append(Parameter(option, Parameter.KEYWORD_ONLY, default=default, annotation=hint))
    ungrouped.__signature__ = signature(command).replace(parameters=parameters)  # pyright: ignore
    return ungrouped


Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
Overwrite = Annotated[bool, typer.Option(help="Replace earlier output that was made from other inputs.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any other field of the configuration.")
]

BatchSize = Annotated[str, typer.Option(help="Windows at once, or auto (halved when out of memory).")]
Threshold = Annotated[
    str, typer.Option(help="Maximum exposures of an AR hit's bigram; scaled: 1,250 per 10 B tokens read in training.")
]

# The text that is scored, labelled or recorded.
Data = Annotated[
    list[str] | None,
    typer.Option(metavar="PATH", help="Evaluation text: file, folder, hub:NAME, stdlib:heldout. Repeatable."),
]
Index = Annotated[str | None, typer.Option(metavar="DIR", help="Bigram index of the training text.")]
LimitTokens = Annotated[int | None, typer.Option(metavar="N", help="Only the first N tokens of the text.")]


@dataclass(frozen=True)
class Reading:
    """How a text is read: fields of `argap.records.EvaluationSpec`."""

    seq_len: Annotated[int | None, typer.Option(metavar="N", help="Tokens a window [2048].")] = None
    packing: Annotated[
        Literal["packed", "document"] | None, typer.Option(help="With an EOS between documents, or each on its own.")
    ] = None
    text_column: Annotated[
        str | None, typer.Option(help="Column of JSON lines and Parquet that holds the text [text].")
    ] = None


@dataclass(frozen=True)
class Windows(Reading):
    """The same, of a part of the text."""

    limit_tokens: LimitTokens = None
    limit_document_tokens: Annotated[
        int | None, typer.Option(metavar="N", help="Only the first N tokens of each document.")
    ] = None


Engine = Annotated[str, typer.Option(help="local (this machine), or ray (tasks of a Ray cluster).")]
Address = Annotated[str | None, typer.Option(help="ray: HOST:PORT of the cluster [this machine alone].")]


def check_engine(engine: str, *, local: Mapping[str, object], ray: Mapping[str, object]) -> None:
    """Raise `ArgapError` for an unknown engine, and for a flag that only the other engine uses.

    ``local`` and ``ray`` map each engine's own flags to their values; a falsy value means that the flag was not given.
    """
    if engine not in ("local", "ray"):
        raise ArgapError(f"--engine {engine}: expected local or ray")
    for flag, given in (local if engine == "ray" else ray).items():
        if given:
            raise ArgapError(f"{flag}: has no effect with --engine {engine}; leave it out")


def parse_bytes(text: str) -> int:
    """Parse ``2GB`` (10⁹), ``512MiB`` (2²⁰) or a plain number of bytes. Raises `ArgapError` for anything else."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?\s*", text, re.IGNORECASE)
    if match is None:
        raise ArgapError(f"`memory` {text!r}: expected an amount such as 2GB or 512MiB")
    number, prefix, binary = match.groups()
    return int(float(number) * (1024 if binary else 1000) ** " kmgt".index(prefix.lower() or " "))


def parse_tokens(text: str, option: str = "tokens") -> float:
    """Parse ``10B``, ``1.5T``, ``300M`` or a plain number of tokens. Raises `ArgapError` for anything else."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMBT]?)\s*", text, re.IGNORECASE)
    if match is None:
        raise ArgapError(f"`{option}` {text!r}: expected a number such as 10B or 1T")
    return float(match[1]) * 1000 ** " KMBT".index(match[2].upper() or " ")


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
