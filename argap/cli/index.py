"""``argap index``: build, merge and query the table of training bigram counts."""

import typer

app = typer.Typer(help="Count the bigrams of a training corpus.", no_args_is_help=True)
