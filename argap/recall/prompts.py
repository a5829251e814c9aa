"""The pinned protocol, and its prompts: tokens, cut on request, with the positions of the gold.

Published numbers differ in details of the prompt, so each detail is fixed here and printed with every score.
"""

import re
from dataclasses import dataclass
from typing import Literal, get_args

from argap.errors import ArgapError
from argap.recall.examples import Example, split_query
from argap.records import Bos, Record, ids_of
from argap.text.tokenizer import Tokenizer

VERSION = 1
"""Incremented whenever a change here changes a score."""
STOP = "\n"
NEW_TOKENS = 48
"""As in the Based paper (arXiv 2402.18668)."""
Truncate = Literal["left", "oracle"]
Span = tuple[int, int]


class Protocol(Record, frozen=True, omit_defaults=False):
    """Zero-shot and greedy, up to `STOP` or `NEW_TOKENS` tokens; the prompt is the row's ``text``, stripped.

    Raises `ArgapError` for a context that leaves no room for a prompt, and for an unknown truncation.
    """

    context: int | None = None
    """Tokens of prompt and answer together; longer prompts are cut. None: nothing is cut."""
    truncate: Truncate = "left"
    """``left``: cut the start of the text, whether or not it contains the gold. ``oracle``: keep the text around the
    gold; no model could choose it, so the score is an upper bound, as in the papers' harness."""
    twice: bool = False
    """Read text and question twice (arXiv 2407.05483)."""
    version: int = VERSION
    stop: str = STOP
    new_tokens: int = NEW_TOKENS
    shots: int = 0
    greedy: bool = True

    def __post_init__(self) -> None:
        if self.context is not None and self.context <= NEW_TOKENS:
            raise ArgapError(f"`context` {self.context}: expected more than the {NEW_TOKENS} tokens of the answer")
        if self.truncate not in get_args(Truncate):
            raise ArgapError(f"`truncate` {self.truncate}: expected {' or '.join(get_args(Truncate))}")
        if self.truncate == "oracle" and self.context is None:
            raise ArgapError("`truncate=oracle`: nothing is cut without `context`; give both")


@dataclass(frozen=True)
class Prompt:
    """The tokens that a model reads. All positions index ``ids``."""

    ids: list[int]
    truncated: int
    """Tokens that were cut."""
    query: int
    """First token of the query."""
    golds: list[Span]
    """Occurrences of the gold before the query: first token, one past the last."""
    gold_in_text: bool
    """Whether the uncut text contained the gold."""

    @property
    def distance(self) -> int | None:
        """Tokens from the first token of the nearest gold to the first token of the answer."""
        return len(self.ids) - self.golds[-1][0] if self.golds else None


def build_prompt(example: Example, task: str, tokenizer: Tokenizer, protocol: Protocol) -> Prompt:
    """Build the prompt of ``example``, leaving room for the answer in ``protocol.context``.

    Raises `ArgapError` if, under ``oracle``, the query alone fills the rest, and for a text that has no tokens.
    """
    query = split_query(example.text, task)[1]
    text = f"{example.text}\n{example.text}" if protocol.twice else example.text
    start = len(text) - len(query)
    ids, offsets = tokenizer.encode_spans(text)
    if not ids:
        raise ArgapError(f"example {example.id}: the tokenizer makes no token of its text")
    query_at = next((k for k, (a, b) in enumerate(offsets) if b > start), len(ids))
    occurrences = [match.span() for match in re.finditer(re.escape(example.gold), text[:start], re.IGNORECASE)]
    golds = [tokens for span in occurrences if (tokens := _tokens_of(span, offsets)) is not None]
    kept = _kept(example, len(ids), query_at, golds, protocol)
    position = {old: new for new, old in enumerate(kept)}
    golds = [(position[a], position[b - 1] + 1) for a, b in golds if all(k in position for k in range(a, b))]
    return Prompt(
        ids=[ids[k] for k in kept],
        truncated=len(ids) - len(kept),
        query=position.get(query_at, 0),
        golds=golds,
        gold_in_text=bool(occurrences),
    )


def check_fits(prompts: list[Prompt], limit: int | None, model: str, *, bos: Bos = None) -> None:
    """Raise `ArgapError` if a prompt, its answer and a ``bos`` before it are longer than the model's context."""
    longest = max(len(prompt.ids) for prompt in prompts) + NEW_TOKENS
    before = len(ids_of(bos))
    if limit is not None and longest + before > limit:
        raise ArgapError(
            f"{model}: takes at most {limit} tokens, but the longest prompt and its answer have {longest}"
            f"{' and a BOS' if before else ''}; cut prompts with `context={limit - before}`"
        )


def _kept(example: Example, length: int, query: int, golds: list[Span], protocol: Protocol) -> list[int]:
    """Return the indices of the kept tokens."""
    if protocol.context is None or length <= (room := protocol.context - NEW_TOKENS):
        return list(range(length))
    if protocol.truncate == "left" or not golds:
        return list(range(length - room, length))
    before = room - (length - query)  # the query stays whole
    if before < 1:
        raise ArgapError(f"`context` {protocol.context}: the query of example {example.id} alone fills it")
    first, last = golds[-1]
    start = min(max((first + last - before) // 2, 0), query - before)
    return [*range(start, start + before), *range(query, length)]


def _tokens_of(span: Span, offsets: list[Span]) -> Span | None:
    """Return the tokens that overlap the characters of ``span``; None where the tokenizer drops all of these."""
    inside = [k for k, (a, b) in enumerate(offsets) if a < span[1] and b > span[0]]
    return (inside[0], inside[-1] + 1) if inside else None
