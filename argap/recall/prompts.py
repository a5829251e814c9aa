"""What a model reads for an example: the prompt's tokens, cut where asked, and where the gold stands in it."""

import re
from dataclasses import dataclass

from argap.errors import ArgapError
from argap.recall.examples import Example, split_query
from argap.recall.protocol import NEW_TOKENS, Protocol
from argap.tokenizer import Tokenizer

Span = tuple[int, int]


@dataclass(frozen=True)
class Prompt:
    """Positions are token positions in ``ids``."""

    ids: list[int]
    truncated: int
    """Tokens that were cut away."""
    query: int
    """Where the query begins."""
    golds: list[Span]
    """Where the gold stands before the query, first token and one past the last."""
    gold_in_text: bool
    """Whether it stood there before anything was cut."""

    @property
    def distance(self) -> int | None:
        """Tokens from the nearest gold's first token to the answer's."""
        return len(self.ids) - self.golds[-1][0] if self.golds else None


def build_prompt(example: Example, task: str, tokenizer: Tokenizer, protocol: Protocol) -> Prompt:
    """The prompt of ``example``, at most ``protocol.room`` tokens long.

    Raises `ArgapError` for a query that alone fills the room under ``oracle``.
    """
    query = split_query(example.text, task)[1]
    text = f"{example.text}\n{example.text}" if protocol.twice else example.text
    start = len(text) - len(query)
    ids, offsets = tokenizer.encode_spans(text)
    query_at = next((k for k, (a, b) in enumerate(offsets) if b > start), len(ids))
    found = [match.span() for match in re.finditer(re.escape(example.gold), text[:start], re.IGNORECASE)]
    golds = [_tokens_of(span, offsets) for span in found]
    kept = _kept(example, len(ids), query_at, golds, protocol)
    position = {old: new for new, old in enumerate(kept)}
    golds = [(position[a], position[b - 1] + 1) for a, b in golds if all(k in position for k in range(a, b))]
    return Prompt(
        ids=[ids[k] for k in kept],
        truncated=len(ids) - len(kept),
        query=position.get(query_at, 0),
        golds=golds,
        gold_in_text=bool(found),
    )


def check_fits(prompts: list[Prompt], limit: int | None, model: str) -> None:
    """Raise `ArgapError` where a prompt and its answer are longer than the model takes."""
    longest = max(len(prompt.ids) for prompt in prompts) + NEW_TOKENS
    if limit is not None and longest > limit:
        raise ArgapError(
            f"{model}: takes at most {limit} tokens, the longest prompt and its answer have {longest}; "
            f"cut prompts with --context {limit}"
        )


def _kept(example: Example, length: int, query: int, golds: list[Span], protocol: Protocol) -> list[int]:
    """Which tokens stay."""
    room = protocol.room
    if room is None or length <= room:
        return list(range(length))
    if protocol.truncate == "left" or not golds:
        return list(range(length - room, length))
    before = room - (length - query)  # the query stays whole
    if before < 1:
        raise ArgapError(f"--context {protocol.context}: the query of example {example.id} alone fills it")
    first, last = golds[-1]
    start = min(max((first + last - before) // 2, 0), query - before)
    return [*range(start, start + before), *range(query, length)]


def _tokens_of(span: Span, offsets: list[Span]) -> Span:
    """The tokens that overlap the characters of ``span``."""
    inside = [k for k, (a, b) in enumerate(offsets) if a < span[1] and b > span[0]]
    return inside[0], inside[-1] + 1
