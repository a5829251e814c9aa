"""Define options shared by several commands, alone or in groups, and parse amounts.

A group is a dataclass with an option per field, or a record that declares options (`argap.scoring.config`). A parameter
of that type adds all these options to a command, which receives a checked instance.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from inspect import Parameter, signature
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer
from msgspec import Meta
from msgspec.structs import fields as fields_of
from typer.core import TyperOption

from argap.cli.help import PanelHelp
from argap.errors import ArgapError
from argap.records import EvaluationSpec, Record
from argap.runtime.trust import trusting
from argap.scoring.config import ScoreConfig
from argap.scoring.per_model import PerModel

GIVEN = "COMMANDLINE"
"""Where the value of an option is from, if it was given."""


class Commands(typer.Typer):
    """Commands whose parameters may be groups of options."""

    def command(self, *arguments: Any, **options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Register a command like `typer.Typer.command`."""
        register = super().command(*arguments, **{"cls": PanelHelp} | options)
        return lambda command: register(_flat(command))


def _flat(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``command`` with the options of its groups as parameters."""
    hints = get_type_hints(command, include_extras=True)
    groups = {name: options for name, hint in hints.items() if (options := options_of(hint))}

    @wraps(command)
    def ungrouped(**given: Any) -> Any:
        made = {}
        for name, options in groups.items():
            build = hints[name].of if hasattr(hints[name], "of") else hints[name]
            made[name] = build(**{option: given.pop(option) for option in options})
        try:
            return command(**given, **made)
        except EOFError as error:  # which the command-line library takes for the end of what a user types
            raise RuntimeError(f"the end of a file: {error}") from error

    parameters = []
    for name, each in signature(command).parameters.items():
        for option, (hint, default) in groups.get(name, {name: (hints[name], each.default)}).items():
            parameters.append(Parameter(option, Parameter.KEYWORD_ONLY, default=default, annotation=hint))
    ungrouped.__signature__ = signature(command).replace(parameters=parameters)  # pyright: ignore
    return ungrouped


def options_of(group: Any) -> dict[str, tuple[Any, Any]]:
    """Return the type, with its typer option, and the default of each option in a group; empty for any other type."""
    if is_dataclass(group):
        hints = get_type_hints(group, include_extras=True)
        return {each.name: (hints[each.name], getattr(group, each.name)) for each in fields(group)}
    found: dict[str, tuple[Any, Any]] = {}
    if isinstance(group, type) and issubclass(group, Record):
        for field in fields_of(group):
            if isinstance(field.default, Record):  # the fields of a nested record, unless this one declares them
                inner = options_of(type(field.default))
                found |= {name: each for name, each in inner.items() if name not in group.__struct_fields__}
            elif _meta(group, field.name) is not None:
                hint, default = _written(get_args(field.type)[0], field.default)
                found[field.name] = Annotated[hint, declared(group, field.name)], default
    return found


def declared(group: type[Record], name: str) -> Any:
    """Return the typer option of a field: its help, and the flag and placeholder if the record declares them."""
    meta = _meta(group, name)
    assert meta is not None
    extra = meta.extra or {}
    flags = [extra["flag"]] if "flag" in extra else []
    return typer.Option(*flags, help=meta.description, metavar=extra.get("metavar"), min=meta.ge)


def _meta(group: type[Record], name: str) -> Meta | None:
    hint = get_type_hints(group, include_extras=True)[name]
    return next((each for each in getattr(hint, "__metadata__", ()) if each.description), None)


def _written(hint: Any, default: Any) -> tuple[Any, Any]:
    """Return the type and default of an option on the command line: lists, and text to be parsed."""
    kinds = [kind for kind in get_args(hint) or (hint,) if kind is not NoneType]
    if hint is PerModel or get_origin(hint) is tuple:
        return list[str] | None, None
    if get_origin(hint) is Literal or len(kinds) == 1:
        return hint, default
    return (str | None, None) if default is None else (str, str(default))


Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Device = Annotated[str, declared(ScoreConfig, "device")]
Dtype = Annotated[Literal["auto", "float32", "bfloat16"], typer.Option(help="auto: bfloat16 on CUDA.")]
Overwrite = Annotated[bool, declared(ScoreConfig, "overwrite")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any other field of the configuration.")
]

Bos = Annotated[list[str] | None, declared(ScoreConfig, "bos")]
MaxLength = Annotated[list[str] | None, declared(ScoreConfig, "max_length")]
BatchSize = Annotated[str, declared(ScoreConfig, "batch_size")]
Threshold = Annotated[str, declared(ScoreConfig, "threshold")]
SliceFile = Annotated[str | None, declared(ScoreConfig, "slices")]

# The text to score, label or record.
Data = Annotated[list[str] | None, declared(EvaluationSpec, "data")]
Index = Annotated[str | None, declared(ScoreConfig, "index")]
LimitTokens = Annotated[int | None, declared(EvaluationSpec, "limit_tokens")]


@dataclass(frozen=True)
class Reading:
    """How a text is read."""

    seq_len: Annotated[int | None, declared(EvaluationSpec, "seq_len")] = None
    packing: Annotated[Literal["packed", "document"] | None, declared(EvaluationSpec, "packing")] = None
    text_column: Annotated[str | None, declared(EvaluationSpec, "text_column")] = None


@dataclass(frozen=True)
class Windows(Reading):
    """How much of a text is read, and how."""

    limit_tokens: LimitTokens = None
    limit_document_tokens: Annotated[int | None, declared(EvaluationSpec, "limit_document_tokens")] = None


Engine = Annotated[Literal["local", "ray"], typer.Option(help="This machine, or tasks of a Ray cluster.")]
Address = Annotated[str | None, typer.Option(help="ray: HOST:PORT of the cluster [this machine alone].")]


def only(context: typer.Context, mode: str, *used: str) -> None:
    """Raise `ArgapError` for an option that was given and has no effect with ``mode``.

    ``used``: the names of the parameters that have one.
    """
    for each in context.command.params:
        source = context.get_parameter_source(each.name or "")
        if isinstance(each, TyperOption) and each.name not in used and source is not None and source.name == GIVEN:
            raise ArgapError(f"{each.opts[0]}: has no effect with {mode}; leave it out")


def check_engine(engine: str, *, local: Mapping[str, object], ray: Mapping[str, object]) -> None:
    """Raise `ArgapError` for a flag that only the other engine uses.

    ``local`` and ``ray`` map each engine's own flags to their values; a falsy value means that the flag was not given.
    """
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
