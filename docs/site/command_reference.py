"""Generate the page of all commands from the output of `--help`: usage, help, arguments and options."""

import re
from collections.abc import Iterator
from html import escape
from typing import Any

import typer

from argap.cli import commands

HEAD = """# Commands

Every command with its arguments and options, as `--help` prints them, and an example. [Which command
when](which-command.md) chooses among them. Results go to stdout (`--json` for machines),
progress and logs to stderr. Exit codes: 0 done, 1 an expected failure (one line), 2 usage, 70 an internal error, 130
interrupted.
"""

Command = Any  # click's, which typer may vendor


def command_reference() -> str:
    leaves = list(_leaves(commands(), ["argap"]))
    overview = [f"| [`{' '.join(words)}`](#{'-'.join(words)}) | {_summary(leaf)} |" for words, leaf in leaves]
    sections = [line for words, leaf in leaves for line in _section(words, leaf)]
    return "\n".join([HEAD, "| command | |", "| --- | --- |", *overview, "", *sections])


def _leaves(command: Command, words: list[str]) -> Iterator[tuple[list[str], Command]]:
    """Yield the commands that run something, in the order of ``--help``."""
    for name, child in command.commands.items():
        if hasattr(child, "commands"):
            yield from _leaves(child, [*words, name])
        elif not child.hidden:
            yield [*words, name], child


def _section(words: list[str], command: Command) -> Iterator[str]:
    name = " ".join(words)
    context = typer.Context(command, info_name=name)
    yield f"## {name}\n\n```text\n{' '.join([name, *command.collect_usage_pieces(context)])}\n```\n"
    yield _prose(command.help) + "\n"
    if command.epilog:
        yield f"```console\n$ {command.epilog}\n```\n"
    for title in ("argument", "option"):
        parameters = [each for each in command.params if each.param_type_name == title]
        rows = [record for each in parameters if (record := each.get_help_record(context))]
        if rows:
            yield f"| {title} | |\n| --- | --- |"
            yield from (f"| `{_cell(shown)}` | {_cell(_prose(text))} |" for shown, text in rows)
            yield ""


def _summary(command: Command) -> str:
    return _cell(_prose(re.split(r"\.(?=\s|$)", command.short_help or command.help)[0]))


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _prose(text: str) -> str:
    """Turn plain help text into Markdown: flags become code, and Markdown's signs are escaped except in backticks."""
    parts = re.split(r"(`[^`]+`)", text.replace("\b", "").strip())
    return "".join(part if part[:1] == "`" else _escape(part) for part in parts)


def _escape(text: str) -> str:
    text = re.sub(r"[*_\[\]#]", r"\\\g<0>", escape(text, quote=False))
    return re.sub(r"(?<![\w-])--[a-z][a-z-]*[a-z]", r"`\g<0>`", text)
