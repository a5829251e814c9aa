"""Write a prompt part by part, and find its answers among its tokens."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from argap.errors import ArgapError
from argap.text.tokenizer import Tokenizer

Part = str | tuple[int, ...]
"""Text, or token ids of the model's vocabulary."""
Span = tuple[int, int]
"""The first token, and the one after the last."""
SLOT = re.compile(r"\{(\w+)\}")


class Answer(NamedTuple):
    """Tokens of a prompt that a model can predict from the tokens before them."""

    start: int
    stop: int
    distance: int
    """Tokens from what tells the answer to the answer."""
    chance: float
    """Probability of the whole answer if each candidate that the prompt names is equally likely."""
    decoys: tuple[Span, ...] = ()
    """Wrong answers that the prompt suggests, such as an earlier value of the key."""


@dataclass(frozen=True)
class Prompt:
    """One prompt in a model's tokens."""

    ids: np.ndarray
    """int32 ``[T]``."""
    answers: tuple[Answer, ...]
    control: Span | None = None
    """The same tokens as the answers', where nothing predicts them."""


class _Asked(NamedTuple):
    part: int
    source: int
    chance: float
    decoys: tuple[int, ...]
    each: bool


@dataclass
class Draft:
    """The parts of a prompt, and which of them are answers. Parts are known by their number."""

    parts: list[Part] = field(default_factory=list)
    asked: list[_Asked] = field(default_factory=list)
    control: int | None = None
    """A part whose tokens, but for the first, are the prompt's control."""

    def write(self, part: Part) -> int:
        """Append a part; return its number."""
        self.parts.append(part)
        return len(self.parts) - 1

    def fill(self, template: str, slots: Mapping[str, Part]) -> dict[str, int]:
        """Append a template such as ``{key}: {value}``; return the number of each slot's part."""
        found: dict[str, int] = {}
        for k, piece in enumerate(SLOT.split(template)):
            if k % 2:
                found[piece] = self.write(slots[piece])
            elif piece:
                self.write(piece)
        return found

    def ask(
        self, part: int, source: int, chance: float, decoys: Sequence[int] = (), *, each_after_first: bool = False
    ) -> None:
        """Declare a part an answer that ``source`` tells; with ``each_after_first`` every token but its first is one.

        ``chance``: see `Answer`, of one token where the answers are tokens.
        """
        self.asked.append(_Asked(part, source, chance, tuple(decoys), each_after_first))


def finish(drafts: Sequence[Draft], tokenizer: Tokenizer) -> list[Prompt]:
    """Encode drafts as prompts.

    A draft of text alone is encoded as a whole, so its tokens are those of running text: an answer then has all tokens
    that overlap it, the space before it included where a token holds both. In other drafts each text is encoded by
    itself. Raises `ArgapError` for text that the tokenizer cannot spell, and for an answer without tokens.
    """
    whole = [k for k, draft in enumerate(drafts) if all(isinstance(part, str) for part in draft.parts)]
    encoded = tokenizer.encode_batch_spans(["".join(map(str, drafts[k].parts)) for k in whole])
    of_text = {k: _spans(drafts[k], *found) for k, found in zip(whole, encoded, strict=True)}
    cache: dict[str, tuple[int, ...]] = {}
    return [
        _prompt(draft, *(of_text[k] if k in of_text else _joined(draft, tokenizer, cache)), tokenizer)
        for k, draft in enumerate(drafts)
    ]


def count_tokens(parts: Sequence[Part], tokenizer: Tokenizer) -> int:
    """Count the tokens of parts that are encoded one by one."""
    return sum(len(tokenizer.encode([part])[0]) if isinstance(part, str) else len(part) for part in parts)


def _spans(draft: Draft, ids: np.ndarray, characters: np.ndarray) -> tuple[np.ndarray, list[Span]]:
    """Return the tokens of a text and those that overlap each part; ``characters [T, 2]``: what each covers."""
    ends = np.cumsum([len(part) for part in draft.parts])
    starts = np.concatenate([[0], ends[:-1]])
    first = np.searchsorted(characters[:, 1], starts, side="right")  # the first that ends behind the part's start
    last = np.searchsorted(characters[:, 0], ends, side="left")  # the first that begins at the part's end or later
    return ids, list(zip(first.tolist(), last.tolist(), strict=True))


def _joined(draft: Draft, tokenizer: Tokenizer, cache: dict[str, tuple[int, ...]]) -> tuple[np.ndarray, list[Span]]:
    pieces: list[tuple[int, ...]] = []
    for part in draft.parts:
        if isinstance(part, str):
            if part not in cache:
                cache[part] = tuple(tokenizer.encode([part])[0].tolist())
            part = cache[part]
        pieces.append(part)
    ends = np.cumsum([len(piece) for piece in pieces]).tolist()
    ids = np.array([token for piece in pieces for token in piece], dtype=np.int32)
    return ids, list(zip([0, *ends[:-1]], ends, strict=True))


def _prompt(draft: Draft, ids: np.ndarray, spans: list[Span], tokenizer: Tokenizer) -> Prompt:
    if tokenizer.unknown and not tokenizer.unknown.isdisjoint(ids.tolist()):
        raise ArgapError(f"{tokenizer.name}: the tokenizer cannot spell a prompt's text; use fewer `forms` or `tasks`")
    answers: list[Answer] = []
    for part, source, chance, decoys, each in draft.asked:
        (start, stop), (told, _) = spans[part], spans[source]
        if start >= stop or start == 0:
            raise ArgapError(f"{tokenizer.name}: an answer without tokens of its own, in {draft.parts[part]!r}")
        wrong = tuple(spans[decoy] for decoy in decoys)
        if each:
            answers += [Answer(k, k + 1, start - told, chance, wrong) for k in range(start + 1, stop)]
        else:
            answers.append(Answer(start, stop, start - told, chance, wrong))
    control = None if draft.control is None else (spans[draft.control][0] + 1, spans[draft.control][1])
    return Prompt(ids, tuple(answers), control)
