"""Expected failures. Each is one line: what was found, what was expected, what to run.

The command line prints the message and exits with 1; a traceback is for our own mistakes only.
"""


class ArgapError(Exception):
    """An expected failure: the message is all that a user needs to see."""


class FormatError(ArgapError):
    """A file that is corrupt, truncated, or written by a newer version."""


class MismatchError(ArgapError):
    """Two things that must agree (a tokenizer, an evaluation set, a configuration) and do not."""
