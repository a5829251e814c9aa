"""The pinned protocol: how a recall example is asked, and how its answer is judged.

Published numbers differ by details of the prompt, so each is fixed here and stands beside every score.
"""

import re
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from argap.errors import ArgapError

VERSION = 1
"""Raised whenever a change here changes a score."""
STOP = "\n"
NEW_TOKENS = 48
"""As the Based paper has it (arXiv 2402.18668)."""
Truncate = Literal["left", "oracle"]


@dataclass(frozen=True)
class Protocol:
    """Zero-shot, greedy, `NEW_TOKENS` tokens or up to `STOP`; the prompt is the row's ``text``, stripped.

    Raises `ArgapError` for a context that leaves no room for a prompt, and for an unknown truncation.
    """

    context: int | None = None
    """Tokens of prompt and answer together; longer prompts are cut. None: nothing is cut."""
    truncate: Truncate = "left"
    """``left``: the start of the text goes, wherever the gold stands. ``oracle``: what is kept lies around
    the gold; no model can do that, so the score is an upper bound, as in the papers' harness."""
    twice: bool = False
    """Text and question are read twice (arXiv 2407.05483)."""

    def __post_init__(self) -> None:
        if self.context is not None and self.context <= NEW_TOKENS:
            raise ArgapError(f"--context {self.context}: expected more than the {NEW_TOKENS} tokens of the answer")
        if self.truncate not in get_args(Truncate):
            raise ArgapError(f"--truncate {self.truncate}: expected {' or '.join(get_args(Truncate))}")
        if self.truncate == "oracle" and self.context is None:
            raise ArgapError("--truncate oracle: nothing is cut without --context; give both")

    @property
    def room(self) -> int | None:
        """Tokens that a prompt may have."""
        return None if self.context is None else self.context - NEW_TOKENS

    def describe(self) -> dict[str, Any]:
        return {"version": VERSION, **asdict(self), "stop": STOP, "new_tokens": NEW_TOKENS, "shots": 0, "greedy": True}


def contains(generation: str, gold: str) -> bool:
    """Whether the gold is a substring, whatever the case: the papers' metric."""
    return re.search(re.escape(gold), generation, re.IGNORECASE) is not None


def whole_word(generation: str, gold: str) -> bool:
    """`contains`, and not in the middle of a word or number: ``5`` is not in ``1995``."""
    return re.search(rf"(?<!\w){re.escape(gold)}(?!\w)", generation, re.IGNORECASE) is not None
