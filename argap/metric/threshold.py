"""Parse and resolve the threshold τ: how often an AR hit's bigram may have been seen in training."""

import re
from typing import Literal

from argap.errors import ArgapError

Threshold = int | Literal["scaled"]
"""A number of exposures, or ``scaled``: 1,250 per 10 B tokens that training read."""

PAPER_THRESHOLD = 1250
PAPER_TOKENS = 10_000_000_000
"""Section 3.1 of arXiv 2312.04927: at most 1,250 times in 10 B training tokens, each read once."""


def parse_threshold(text: str) -> Threshold:
    """Parse ``1250`` or ``scaled``, as written on a command line. Raises `ArgapError` for anything else."""
    if text == "scaled":
        return "scaled"
    if not re.fullmatch(r"\d{1,18}", text):
        raise ArgapError(f"`threshold` {text}: expected a whole number of occurrences below 10¹⁸, or scaled")
    return int(text)


def resolve_threshold(threshold: Threshold, training_tokens: float) -> int:
    """Return τ as a whole number; rounding ``scaled`` down changes nothing because counts are whole.

    ``training_tokens``: tokens that training read, all passes counted.
    """
    if threshold == "scaled":
        return int(PAPER_THRESHOLD * training_tokens // PAPER_TOKENS)
    if isinstance(threshold, bool) or not isinstance(threshold, int) or threshold < 0:
        raise ArgapError(f"`threshold` {threshold}: expected a whole number of occurrences, or scaled")
    return threshold
