"""Define the records of ``examples.json``: stretches of text around AR hits."""

from math import exp

from argap.files.record import Record

KNOWN = 0.25
"""Least probability of the hit under the reference: a reference that does not know the hit shows nothing about
recall."""


class EarlierOccurrence(Record, frozen=True):
    """The text around a hit's earlier occurrence, if that is too far back to be shown in place."""

    start: int
    tokens: tuple[str, ...]
    focus: int


class ExampleWindow(Record, frozen=True):
    """A stretch of text around one AR hit; all sequences have one entry per token."""

    window: int
    document: int
    domain: str
    source: str
    model: str
    """The model that does worse there."""
    start: int
    """Position of the first token in its window."""
    tokens: tuple[str, ...]
    repeated: tuple[bool, ...]
    ar_hit: tuple[bool, ...]
    distance: tuple[int, ...]
    train_count: tuple[int, ...] | None
    """Exposures; None without an index."""
    logprob: dict[str, tuple[float | None, ...]]
    """Null for a token without a score, such as the first of a window, and for a log-prob of −∞."""
    top1_correct: dict[str, tuple[bool, ...]]
    focus: int
    """The hit's index in these sequences."""
    earlier: EarlierOccurrence | None

    def __post_init__(self) -> None:
        length = len(self.tokens)
        lists = [self.repeated, self.ar_hit, self.distance, self.train_count or self.tokens]
        lists += [*self.logprob.values(), *self.top1_correct.values()]
        if any(len(each) != length for each in lists) or not 0 <= self.focus < length:
            raise ValueError(f"expected {length} entries in every list, one for each token, and a focus among them")
        if self.model not in self.logprob or self.logprob.keys() != self.top1_correct.keys():
            raise ValueError(f"expected the same models in logprob and top1_correct, {self.model} among them")


class Examples(Record, frozen=True):
    """``examples.json``."""

    tokenizer: str
    models: tuple[str, ...]
    reference: str
    rule: str
    """How the windows were chosen."""
    windows: tuple[ExampleWindow, ...]
    added: tuple[str, ...] = ()
    """Models added to a suite's result after the windows were chosen."""

    def __post_init__(self) -> None:
        if any(each.logprob.keys() != {*self.models} for each in self.windows):
            raise ValueError(f"expected scores of {', '.join(self.models)} in every window")

    @property
    def choice(self) -> str:
        """Return the rule, and the models that were not considered."""
        return self.rule + (f"; chosen without {', '.join(self.added)}" if self.added else "")

    @property
    def known(self) -> tuple[ExampleWindow, ...]:
        """Return the windows whose hit has at least probability `KNOWN` under the reference.

        A file beside a ``gap.json`` of format 1 also has others.
        """
        chances = [each.logprob[self.reference][each.focus] for each in self.windows]
        return tuple(w for w, p in zip(self.windows, chances, strict=True) if p is not None and exp(p) >= KNOWN)
