"""The command line: ``argap COMMAND``. Results go to stdout, progress and logs to stderr.

Exit codes: 0 done, 1 an expected failure (one line), 2 usage, 70 an internal error (one line; the traceback is in a
file), 130 interrupted (what is finished stays).
The modules of this folder only read flags and print; heavy imports live inside the commands, so that
``argap --help`` stays fast.
"""

import sys
from functools import partial
from typing import Annotated, Any

import typer

from argap import __version__
from argap.cli import (
    convert,
    demo,
    discover,
    import_,
    index,
    kernels,
    label,
    models,
    paper,
    recall,
    ref,
    report,
    score,
    slice,
    suite,
    synthetics,
    train,
    view,
)
from argap.cli.options import Commands
from argap.runtime.guard import fail, keeping_interrupts

RENAMED = {"reference": "--ref", "as_json": "--json", "model_name": "--model"}
"""Parameters of the library whose flag has another name."""

VALUES = {"str": "TEXT", "int": "N", "integer": "N", "float": "X", "path": "PATH", "Path": "PATH"}
"""How help shows a value of each type, by the names of all supported versions of typer."""

app = Commands(
    name="argap",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
# Where the first sentence of a command's help is too long for the list of commands, what stands there instead.
app.command(short_help="The whole path on the shipped checkpoints, with a report.")(demo.demo)
app.add_typer(index.app, name="index")
app.command(short_help="Score checkpoints and take their gap to a reference apart.")(score.score)
app.command(short_help="Compare finished runs; no model is run.")(score.compare)
app.command(short_help="Pickled weights to safetensors, once.")(convert.convert)
app.command("import", short_help="Log-probs made elsewhere become a run.")(import_.import_)
app.command(short_help="Add training counts to a result; no model is run.")(label.label)
app.command("slice", short_help="What slices of the tokens, in SQL, contribute to the gap.")(slice.slice_)
app.command(short_help="Find the conditions that explain a model's gap.")(discover.discover)
app.add_typer(ref.app, name="ref")
app.command(short_help="Write the page, figures and tables of a result.")(report.report)
app.command(short_help="Look at a result in the browser: every table, slice and token.")(view.view)
app.add_typer(models.app, name="models")
app.command(short_help="What runs here, kernel or reference, and how it is launched.")(kernels.kernels)
app.command(short_help="Train a language model, or go on where it was interrupted.")(train.train)
app.add_typer(suite.app, name="suite")
app.add_typer(synthetics.app, name="synthetics", short_help="MQAR and other synthetic tasks: data, training, sweeps.")
app.command(short_help="Check the metric against the paper's printed percentages.")(paper.paper)
app.command(short_help="SWDE, FDA and SQuAD, and why each answer failed.")(recall.recall)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"argap {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Where does an efficient language model lose to attention? Measures associative recall."""


def main() -> None:
    """The command line. (Typer itself turns Ctrl-C into 130 and a closed pipe into 1.)"""
    command = None
    try:
        with keeping_interrupts():
            "".join(sys.argv).encode()  # bytes that are not UTF-8 are refused before they reach a file
            command = commands()
            command()
    except (Exception, KeyboardInterrupt) as error:
        sys.exit(fail(error, {} if command is None else _flags(command, sys.argv[1:])))


def commands() -> Any:
    """The group of all commands, with the names of values as help shows them."""
    command = typer.main.get_command(app)
    _name_values(command)
    return command


def _name_values(command: Any) -> None:
    """Show values in help as ``N`` and ``PATH`` in place of ``<int>``, and arguments as ``CKPT...``."""
    for child in getattr(command, "commands", {}).values():
        _name_values(child)
    for parameter in command.params:
        many = "..." if parameter.nargs != 1 else ""
        if parameter.param_type_name == "argument":
            name = (parameter.metavar or parameter.name.upper()).removesuffix("...")
            parameter.metavar = name
            shown = f"{name}{many}" if parameter.required else f"[{name}{many}]"
            parameter._usage_display_name = partial(str, shown)
            parameter.display_type_rich = _no_type
        elif parameter.metavar is None and not parameter.is_flag:
            shown = parameter.display_type(None) if hasattr(parameter, "display_type") else parameter.type.name
            parameter.metavar = VALUES.get(shown.strip("<>").removeprefix("list[").rstrip("]"))


def _no_type(ctx: Any) -> None:
    """An argument's name says enough."""


def _flags(command: Any, arguments: list[str]) -> dict[str, str]:
    """The flag of each parameter of the command that ``arguments`` name: ``seq_len`` to ``--seq-len``."""
    for word in arguments:
        if word not in getattr(command, "commands", {}):
            break
        command = command.commands[word]
    options = [option for option in command.params if option.param_type_name == "option"]
    return {option.name: max(option.opts, key=len) for option in options} | RENAMED
