"""What prompts are made of: tokens of a model's own vocabulary, or English words that every model reads alike."""

from collections.abc import Sequence
from functools import cached_property
from typing import Literal, Protocol

import numpy as np

from argap.errors import ArgapError
from argap.probe.drafts import Part, count_tokens
from argap.text.tokenizer import Tokenizer

Form = Literal["tokens", "text"]
"""Random tokens of the vocabulary, or natural language: the same text for every model."""
FORMS: tuple[Form, ...] = ("tokens", "text")
FIRST = (
    "Ada Alan Alice Anna Arthur Barbara Ben Carl Clara Daniel David Diana Edgar Elena Emma Eric Eva Felix Frank "
    "George Grace Hannah Harry Helen Henry Hugo Ida Irene Jack James Jane John Julia Karen Kate Laura Leo Linda Louis "
    "Lucy Maria Mark Martin Mary Max Nina Nora Oliver Oscar Paul Peter Rachel Robert Rosa Ruth Sam Sarah Simon Sophie "
    "Susan Thomas Victor Walter William"
)
LAST = (
    "Adams Baker Barnes Bell Bennett Brooks Brown Butler Carter Clark Collins Cook Cooper Cox Davis Edwards Evans "
    "Fisher Foster Gray Green Hall Harris Hill Hughes Hunter James Jenkins Jones Kelly King Lee Lewis Long Marshall "
    "Martin Mason Miller Mitchell Moore Morgan Morris Murphy Nelson Parker Perry Phillips Price Reed Roberts Rogers "
    "Ross Russell Scott Shaw Smith Stewart Taylor Turner Walker Ward Watson White Young"
)
NOUNS = (
    "apple arrow bag ball bank bell bird boat book bottle box bread bridge brush bus cake camera candle car card chair "
    "clock cloud coat coin cup desk dog door dress drum egg farm field fire fish flag flower fork garden gate glass "
    "gold grass hammer hat hill horse house ice island key king knife lake lamp leaf letter lion map milk mirror moon "
    "mountain nail needle nest ocean orange paper pen pencil piano plate pocket queen rain ring river road rock roof "
    "rope rose salt ship shirt shoe silver snow soap song spoon star stone storm street sugar sun table tent ticket "
    "tower train tree wall watch water wheel wind window wine wing winter wood wool"
)
SENTENCES = (
    "The morning was cold and the streets were quiet.",
    "A small boat drifted slowly down the river.",
    "They talked about the weather for a while.",
    "The bakery on the corner opens before sunrise.",
    "Nobody had expected the train to be on time.",
    "In the afternoon the wind turned and it began to rain.",
    "The museum closes early on some days of the week.",
    "An old clock on the wall ticked without a pause.",
    "The path through the forest is longer than it looks.",
    "Most of the shops in the village were already closed.",
    "The children played in the yard until it was dark.",
    "Fresh paint and sawdust could be smelled in the hall.",
)
"""What lies between facts and questions; no sentence names anything that is asked for."""


class Kit(Protocol):
    """The material of one prompt. What it gives is distinct within the prompt, but for `string`."""

    form: Form
    rng: np.random.Generator

    def keys(self, count: int, kind: Literal["full", "first"] = "full") -> list[Part]: ...
    def values(self, count: int, digits: int = 7) -> list[Part]: ...
    def string(self, length: int) -> Part: ...
    def filler(self, units: int) -> Part: ...
    def count(self, parts: Sequence[Part]) -> int:
        """Return the length of parts in units of the form: tokens, or words."""
        ...


class Vocabulary:
    """The ordinary tokens of a tokenizer: printable text, no special tokens, no pieces of characters."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer

    @cached_property
    def ids(self) -> np.ndarray:
        """int64, ascending."""
        pieces, barred = self.tokenizer.pieces, self.tokenizer.special | self.tokenizer.unknown
        known = sorted(set(self.tokenizer.vocabulary.values()) - barred)
        return np.array([i for i in known if _is_ordinary(pieces[i])], dtype=np.int64)


def _is_ordinary(piece: str) -> bool:
    return bool(piece.strip()) and piece.isprintable() and "\ufffd" not in piece


class TokenKit:
    """Random ordinary tokens, each once in a prompt."""

    form: Form = "tokens"

    def __init__(self, rng: np.random.Generator, vocabulary: Vocabulary) -> None:
        self.rng, self.vocabulary = rng, vocabulary
        self.used: set[int] = set()

    def string(self, length: int) -> tuple[int, ...]:
        """Draw tokens. Raises `ArgapError` if the vocabulary has too few that the prompt does not hold yet."""
        ids, needed = self.vocabulary.ids, length + len(self.used)
        if needed > len(ids):
            raise ArgapError(
                f"{self.vocabulary.tokenizer.name}: {len(ids):,} ordinary tokens in its vocabulary; the prompt needs "
                f"{needed:,} different ones"
            )
        drawn: dict[int, None] = {}
        if 2 * needed > len(ids):  # most draws would repeat one
            drawn = dict.fromkeys(self.rng.permutation(np.setdiff1d(ids, list(self.used)))[:length].tolist())
        while len(drawn) < length:
            token = int(ids[self.rng.integers(len(ids))])
            if token not in self.used:
                drawn[token] = None
        self.used.update(drawn)
        return tuple(drawn)

    def keys(self, count: int, kind: Literal["full", "first"] = "full") -> list[Part]:
        return [(token,) for token in self.string(count)]

    def values(self, count: int, digits: int = 7) -> list[Part]:
        return self.keys(count)

    def filler(self, units: int) -> Part:
        return self.string(units)

    def count(self, parts: Sequence[Part]) -> int:
        return count_tokens(parts, self.vocabulary.tokenizer)


class TextKit:
    """English names, numbers and nouns."""

    form: Form = "text"

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng

    def keys(self, count: int, kind: Literal["full", "first"] = "full") -> list[Part]:
        """Draw names. Raises `ArgapError` for more than there are."""
        first = FIRST.split()
        names = first if kind == "first" else [f"{one} {other}" for one in first for other in LAST.split()]
        return [names[k] for k in self._distinct(len(names), count, "names")]

    def values(self, count: int, digits: int = 7) -> list[Part]:
        """Draw numbers of some digits."""
        low = 10 ** (digits - 1)
        return [str(low + k) for k in self._distinct(9 * low, count, f"numbers of {digits} digits")]

    def string(self, length: int) -> str:
        """Draw nouns, with repetitions."""
        nouns = NOUNS.split()
        return " ".join(nouns[k] for k in self.rng.integers(len(nouns), size=length).tolist())

    def filler(self, units: int) -> str:
        """Draw sentences of ``units`` words in all; the last may be cut."""
        words: list[str] = []
        while len(words) < units:
            words += SENTENCES[int(self.rng.integers(len(SENTENCES)))].split()
        return " ".join(words[:units])

    def count(self, parts: Sequence[Part]) -> int:
        return len("".join(map(str, parts)).split())

    def _distinct(self, available: int, count: int, what: str) -> list[int]:
        if count > available:
            raise ArgapError(f"{count:,} {what} in a prompt of text; there are {available:,}")
        return self.rng.choice(available, size=count, replace=False).tolist()
