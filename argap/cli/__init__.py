"""The command line: ``argap COMMAND``. Results go to stdout, progress and logs to stderr.

Exit codes: 0 done, 1 an expected failure (one line), 2 usage, 130 interrupted (what is finished stays).
The modules of this folder only read flags and print; heavy imports live inside the commands, so that
``argap --help`` stays fast.
"""

import sys

import typer

from argap.cli import demo, index, kernels, models, mqar, paper, recall, ref, report, score, suite, train
from argap.errors import ArgapError

app = typer.Typer(
    name="argap",
    help="Where does an efficient language model lose to attention? Measures associative recall.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    add_completion=False,
)
app.command()(demo.demo)
app.add_typer(index.app, name="index")
app.command()(score.score)
app.command()(score.compare)
app.add_typer(ref.app, name="ref")
app.command()(report.report)
app.add_typer(models.app, name="models")
app.command()(kernels.kernels)
app.command()(train.train)
app.add_typer(suite.app, name="suite")
app.add_typer(mqar.app, name="mqar")
app.command()(paper.paper)
app.command()(recall.recall)


def main() -> None:
    """Entry point of the script ``argap``. (Typer itself turns Ctrl-C into 130 and a closed pipe into 1.)"""
    try:
        app()
    except ArgapError as error:
        print(f"argap: {error}", file=sys.stderr)
        sys.exit(1)
