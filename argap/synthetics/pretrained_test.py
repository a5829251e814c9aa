"""The test of recalling KV pairs for models trained on text: its settings, which suites read without torch."""

from dataclasses import dataclass
from typing import Any

from argap.configuration import Count, Length, Seed, check_ranges

PAIRS = (16, 32, 64, 128, 256)


@dataclass(frozen=True)
class PretrainedTest:
    """The examples of a test. Models with the same tokenizer see the same ones."""

    pairs: tuple[int, ...] = PAIRS
    examples: Count = 1000
    """Per number of KV pairs."""
    length: Length = 1024
    fill: str | None = None
    """Text of the single token that fills all positions between the pairs; if None, EOS."""
    text: str | None = None
    """A corpus whose tokens fill the positions between the pairs instead of ``fill``."""
    alpha: float = 0.1
    seed: Seed = 0

    def __post_init__(self) -> None:
        check_ranges(self)

    @property
    def between(self) -> str:
        """What stands between the pairs, in words."""
        return f"the text {self.text}" if self.text else f"{self.fill!r}" if self.fill else "the end-of-sequence token"

    def as_json(self) -> dict[str, Any]:
        """All fields as JSON values."""
        return {**vars(self), "pairs": list(self.pairs)}
