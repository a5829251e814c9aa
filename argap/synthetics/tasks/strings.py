"""Strings of random tokens: copy them, reverse them, find an n-gram in them, or a number in a phone book.

After arXiv 2402.01032 (sjelassi/transformers_ssm_copy, synthetic_exps/data_utils.py), whose models are trained on
short strings and tested on longer ones. `StringConfig.shortest` mixes sizes in training.

Legend: E examples, N tokens, V vocabulary, n tokens of a string.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from msgspec import Meta

from argap.errors import ArgapError
from argap.files.configs import Count, Length
from argap.synthetics.tasks.examples import IGNORED, Examples, TaskConfig, generator
from argap.synthetics.tasks.recall.scatter import check_fewest, check_room, draw_sizes

REPEATED = 4.0
"""The largest expected number of chance repetitions of an n-gram: above it, few are unique."""


@dataclass(frozen=True)
class StringConfig(TaskConfig):
    """One data set of `build_copy`. Raises `ArgapError` for sizes that do not fit."""

    length: Length = 128
    """N; the longest string has (N − 1) / 2 tokens."""
    order: Literal["forward", "reversed"] = "forward"
    vocab_size: Annotated[int, Meta(ge=4)] = 28
    """V: the symbols, a token that asks for the copy, and one that fills."""
    shortest: Count | None = 1
    """Fewest tokens n; all sizes up to the longest string are equally likely. None: always the longest."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_room(self.length, "a string, a token that asks and the copy", 2 * (self.shortest or 1) + 1)

    @property
    def longest(self) -> int:
        """Tokens of the longest string."""
        return (self.length - 1) // 2


def build_copy(config: StringConfig, seed: int) -> Examples:
    """Build the examples of a seed: a string, the token that asks, and the string again, forward or reversed.

    Reversed, this is the palindrome task of Kimi Linear (arXiv 2510.26692). Every token of the copy is
    labelled. ``slices["size"]`` is n, ``slices["distance"]`` the distance between a token and its copy.
    """
    rng = generator(seed)
    ask, fill = config.vocab_size - 2, config.vocab_size - 1
    sizes = draw_sizes(rng, config.shortest, config.longest, config.examples)[:, None]
    text = rng.integers(0, ask, (config.examples, config.longest), dtype=np.int32)
    position = np.arange(config.length)
    after = position - sizes - 1  # place in the copy
    source = np.where(after < 0, position, after if config.order == "forward" else sizes - 1 - after)
    copied = (after >= 0) & (after < sizes)
    used = copied | (position < sizes)
    tokens = np.take_along_axis(text, np.where(used, source, 0), axis=1)
    inputs = np.where(used, tokens, np.where(after == -1, ask, fill)).astype(np.int32)
    return _labelled(inputs, copied, {"size": sizes, "distance": position - source})


@dataclass(frozen=True)
class NgramConfig(TaskConfig):
    """One data set of `build_ngram`. Raises `ArgapError` for sizes that do not fit."""

    length: Length = 128
    """N; the longest string leaves room for the question and the answer."""
    ngram: Count = 3
    """Tokens of the n-gram that is looked up."""
    answer: Count = 4
    """Tokens of the answer."""
    question: Literal["suffix", "prefix"] = "suffix"
    """Whether the n-gram comes after the string or before it."""
    vocab_size: Annotated[int, Meta(ge=4)] = 28
    """V: the symbols, a token that separates, and one that fills."""
    shortest: Count | None = 8
    """Fewest tokens of a string; all sizes up to the longest are equally likely. None: always the longest."""

    def __post_init__(self) -> None:
        super().__post_init__()
        least = self.ngram + self.answer
        check_room(self.length, "an n-gram, its answer and a string that has both", self.around + least)
        check_fewest("shortest", self.shortest, self.longest, least)
        if self.longest > REPEATED * self.symbols**self.ngram:
            raise ArgapError(
                f"{self.longest} tokens of {self.symbols} symbols repeat most {self.ngram}-grams; expected at "
                f"most {int(REPEATED * self.symbols**self.ngram)} tokens"
            )

    @property
    def symbols(self) -> int:
        """Number of symbols."""
        return self.vocab_size - 2

    @property
    def around(self) -> int:
        """Tokens beside the string: separators, the n-gram and the answer."""
        return self.ngram + self.answer + (1 if self.question == "suffix" else 2)

    @property
    def longest(self) -> int:
        """Tokens of the longest string."""
        return self.length - self.around


def build_ngram(config: NgramConfig, seed: int) -> Examples:
    """Build the examples of a seed: a string and an n-gram that occurs in it once; then the tokens that follow it.

    ``suffix``: string, separator, n-gram, answer. ``prefix``: n-gram, separator, string, separator, answer. The tokens
    of the answer are labelled. ``slices["size"]`` is n, ``slices["distance"]`` the distance between a token and its
    copy.
    """
    rng = generator(seed)
    n, count, longest = config.ngram, config.answer, config.longest
    sizes = draw_sizes(rng, config.shortest, longest, config.examples)
    text = np.empty((config.examples, longest), dtype=np.int32)
    start = np.empty(config.examples, dtype=np.int64)
    pending = np.arange(config.examples)
    while len(pending):  # until the n-gram occurs once
        text[pending] = rng.integers(0, config.symbols, (len(pending), longest))
        start[pending] = rng.integers(0, sizes[pending] - n - count + 1)
        grams = np.lib.stride_tricks.sliding_window_view(text[pending], n, axis=1)
        own = np.take_along_axis(grams, start[pending, None, None], axis=1)
        inside = np.arange(longest - n + 1) <= sizes[pending, None] - n
        pending = pending[((grams == own).all(axis=2) & inside).sum(axis=1) > 1]
    begin = np.zeros((config.examples, 1), dtype=np.int64) if config.question == "suffix" else np.array([[n + 1]])
    sizes, start = sizes[:, None], start[:, None]
    separator, position = config.symbols, np.arange(config.length)
    place = position - begin  # in the string
    asked = place - sizes - 1  # place after the string and its separator
    if config.question == "suffix":
        source = np.where(place < sizes, place, start + asked)
        used = (place < sizes) | ((asked >= 0) & (asked < n + count))
        labelled = (asked >= n) & (asked < n + count)
        separators = asked == -1
    else:
        source = np.where(position < n, start + position, np.where(place < sizes, place, start + n + asked))
        labelled = (asked >= 0) & (asked < count)
        used = (position < n) | ((place >= 0) & (place < sizes)) | labelled
        separators = (position == n) | (asked == -1)
    tokens = np.take_along_axis(text, np.where(used, source, 0), axis=1)
    inputs = np.where(used, tokens, np.where(separators, separator, separator + 1)).astype(np.int32)
    return _labelled(inputs, labelled, {"size": sizes, "distance": place - source})


@dataclass(frozen=True)
class PhonebookConfig(TaskConfig):
    """One data set of `build_phonebook`. Raises `ArgapError` for sizes that do not fit."""

    length: Length = 128
    """N; the longest book leaves room for the questions."""
    name_tokens: Count = 2
    """Tokens of a name."""
    digits: Count = 4
    """Digits of a number."""
    questions: Count = 1
    """Names asked for, all different."""
    vocab_size: Annotated[int, Meta(ge=14)] = 39
    """V: 10 digits, a token that ends an entry, one that asks, and one that fills; the rest are tokens of names."""
    shortest: Count | None = 1
    """Fewest entries; all sizes up to the longest book are equally likely. None: always the longest."""

    def __post_init__(self) -> None:
        super().__post_init__()
        entry = self.name_tokens + self.digits + 1
        what = f"{self.questions} entries and as many questions"
        check_room(self.length, what, 2 * self.questions * entry)
        check_fewest("shortest", self.shortest, self.longest, self.questions)
        if 2 * self.longest > self.letters**self.name_tokens:
            raise ArgapError(
                f"{self.longest} names of {self.name_tokens} tokens from {self.letters}; expected at most half of the "
                f"{self.letters**self.name_tokens} names there are: a vocabulary larger than {self.vocab_size} tokens"
            )

    @property
    def letters(self) -> int:
        """Number of tokens of names."""
        return self.vocab_size - 13

    @property
    def longest(self) -> int:
        """Entries of the longest book: an entry and a question have as many tokens."""
        return self.length // (self.name_tokens + self.digits + 1) - self.questions


def build_phonebook(config: PhonebookConfig, seed: int) -> Examples:
    """Build the examples of a seed: entries of a name and a number; then names, each followed by its number.

    The digits of the answers are labelled. ``slices["size"]`` is the number of entries, ``slices["distance"]`` the
    distance between a digit and its copy.
    """
    rng = generator(seed)
    letters, name, longest, asked = config.letters, config.name_tokens, config.longest, config.questions
    width = name + config.digits + 1
    end, ask, fill = config.vocab_size - 3, config.vocab_size - 2, config.vocab_size - 1
    sizes = draw_sizes(rng, config.shortest, longest, config.examples)
    codes = _distinct_codes(rng, letters**name, config.examples, longest)
    names = codes[..., None] // letters ** np.arange(name)[::-1] % letters
    numbers = letters + rng.integers(0, 10, (config.examples, longest, config.digits))
    last = np.full((config.examples, longest, 1), end)
    entries = np.concatenate([names, numbers, last], axis=2)
    chosen = np.where(np.arange(longest) < sizes[:, None], rng.random(codes.shape), 2.0).argsort(axis=1)[:, :asked]
    picked = np.take_along_axis(entries[..., :-1], chosen[..., None], axis=1)
    asks = np.concatenate([np.full((config.examples, asked, 1), ask), picked], axis=2)
    inputs = np.full((config.examples, config.length), fill, dtype=np.int32)
    inside = np.repeat(np.arange(longest) < sizes[:, None], width, axis=1)
    inputs[:, : longest * width][inside] = entries.reshape(config.examples, -1)[inside]
    begin = width * sizes[:, None, None] + width * np.arange(asked)[:, None]  # [E, Q, 1]
    rows = np.arange(config.examples)[:, None, None]
    inputs[rows, begin + np.arange(width)] = asks
    digits = begin + 1 + name + np.arange(config.digits)
    labelled = np.zeros(inputs.shape, dtype=bool)
    labelled[rows, digits] = True
    distance = np.zeros_like(inputs)
    distance[rows, digits] = digits - (width * chosen[..., None] + name + np.arange(config.digits))
    return _labelled(inputs, labelled, {"size": sizes[:, None], "distance": distance})


def _distinct_codes(rng: np.random.Generator, most: int, examples: int, count: int) -> np.ndarray:
    """Draw ``count`` distinct numbers below ``most`` for each example, ``[E, count]``: repetitions are drawn again."""
    codes = rng.integers(0, most, (examples, count))
    while True:
        order = codes.argsort(axis=1, kind="stable")
        ranked = np.take_along_axis(codes, order, axis=1)
        row, rank = np.nonzero(ranked[:, 1:] == ranked[:, :-1])
        if not len(row):
            return codes
        codes[row, order[row, rank + 1]] = rng.integers(0, most, len(row))


def _labelled(inputs: np.ndarray, labelled: np.ndarray, slices: dict[str, np.ndarray]) -> Examples:
    """Label the tokens of the inputs themselves at ``labelled``, and keep the slices there."""
    labels = np.where(labelled, inputs, IGNORED).astype(np.int32)
    return Examples(inputs, labels, {name: np.where(labelled, x, 0).astype(np.int32) for name, x in slices.items()})
