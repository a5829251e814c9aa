"""Define the command line: ``argap COMMAND``. Results go to stdout, progress and logs to stderr.

Exit codes: 0 done, 1 an expected failure (one line), 2 usage, 70 an internal error (one line; the traceback goes to a
file), 130 interrupted (finished work is kept), 141 the reader of stdout has gone (``argap … | head``), silently.
The modules of this folder only read flags and print; heavy imports are inside the commands, so that ``argap --help``
stays fast.
"""

import os
import sys
from typing import Annotated, Any

import typer

from argap import __version__
from argap.cli import checkpoints, index, models, probe, recall, result, score, suite, synthetics, train
from argap.cli.help import GroupedHelp, arrange
from argap.cli.options import Commands
from argap.runtime.guard import fail
from argap.runtime.signals import ending_on_interrupt, importing_whole, keeping_interrupts, quiet_if_interrupted
from argap.runtime.streams import end_stderr, ending_with_pipe, guard_streams

RENAMED = {"reference": "--ref", "as_json": "--json", "model_name": "--model"}
"""Library parameters whose flag has another name."""

app = Commands(
    name="argap",
    cls=GroupedHelp,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
# A short help replaces a command's first sentence in the list of commands.
app.command(short_help="Run the whole pipeline on the bundled checkpoints, with a report.")(score.demo)
app.add_typer(index.app, name="index")
app.command(short_help="Score checkpoints and break down their gap to a reference.")(score.score)
app.command(short_help="Compare finished runs; no model is run.")(score.compare)
app.command(short_help="Convert a GGUF file or pickled weights to safetensors.")(checkpoints.convert)
app.command(short_help="Say where two runs of the same weights differ; no model is run.")(score.diff)
app.command("import", short_help="Import log-probs computed by another tool.")(score.import_)
app.command(short_help="Add training counts to a result; no model is run.")(result.label)
app.command("slice", short_help="Show what slices of the tokens, in SQL, contribute to the gap.")(result.slice_)
app.command(short_help="Find the conditions that explain a model's gap.")(result.discover)
app.add_typer(checkpoints.references, name="ref")
app.command(short_help="Write the page, figures and tables of a result.")(result.report)
app.command(short_help="Look at a result in the browser: every table, slice and token.")(result.view)
app.command(short_help="Send a result to a data set of the Hugging Face hub; a dry run without --send.")(result.push)
app.add_typer(models.app, name="models")
app.command(short_help="Show which kernels run here, and how they are launched.")(models.kernels)
app.command(short_help="Train a language model, or resume training.")(train.train)
app.add_typer(suite.app, name="suite")
app.add_typer(synthetics.app, name="synthetics", short_help="MQAR and other synthetic tasks: data, training, sweeps.")
app.command(short_help="Check the metric against the paper's printed percentages.")(result.paper)
app.command(short_help="Measure SWDE, FDA and SQuAD, and show why answers failed.")(recall.recall)
app.command(short_help="Measure what pretrained models recall, and which layers do it.")(probe.probe)


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
    """Show on which tokens a language model is behind or ahead of another, and how sure that is."""


def main() -> None:
    """Run the command line. (Typer itself turns Ctrl-C into 130.)"""
    command = None
    try:
        guard_streams()
        with ending_on_interrupt(), keeping_interrupts(), importing_whole(), ending_with_pipe():
            "".join(sys.argv).encode()  # refuse bytes that are not UTF-8 before they reach a file
            os.getcwd()  # refuse a removed working directory, in which libraries abort the process
            command = commands()
            command(prog_name="argap")
    except SystemExit as end:
        quiet_if_interrupted(end.code)
        end_stderr()
        raise
    except BaseException as error:  # also a panic of a library in Rust
        code = fail(error, {} if command is None else _flags(command, sys.argv[1:]))
        quiet_if_interrupted(code)
        sys.exit(code)


def commands() -> Any:
    """Return the group of all commands, with their help arranged."""
    command = typer.main.get_command(app)
    arrange(command)
    return command


def _flags(command: Any, arguments: list[str]) -> dict[str, str]:
    """Map each parameter of the command in ``arguments`` to its flag: ``seq_len`` to ``--seq-len``."""
    for word in arguments:
        if word not in getattr(command, "commands", {}):
            break
        command = command.commands[word]
    options = [option for option in command.params if option.param_type_name == "option"]
    return {option.name: max(option.opts, key=len) for option in options} | RENAMED
