"""The token to put before each window: BOS, one more token of context without a log-prob."""

from typing import Protocol, Self

from argap.errors import ArgapError
from argap.scoring.config import ScoreConfig
from argap.scoring.per_model import OWN_BOS
from argap.text.tokenizer import Tokenizer


class Tokenized(Protocol):
    """A model with its options and its tokenizer, which is loaded on first use."""

    @property
    def name(self) -> str: ...
    @property
    def config(self) -> ScoreConfig: ...
    @property
    def tokenizer(self) -> Tokenizer: ...


class Configured:
    """A source of log-probs whose options choose the BOS; by default its name cannot be made longer."""

    @property
    def bos(self: Tokenized) -> int | None:
        """Return the id of the token to put before each window: the one asked for, `OWN_BOS` or by its text.

        Raises `ArgapError` for a token outside the vocabulary.
        """
        asked = self.config.bos.of(self.name)
        if asked is None:
            return None
        tokenizer = self.tokenizer
        found = tokenizer.bos if asked == OWN_BOS else tokenizer.vocabulary.get(asked)
        if found is None:
            what = "its tokenizer has no BOS" if asked == OWN_BOS else "not in its vocabulary"
            raise ArgapError(f"{self.name}: `bos` {asked}: {what}; expected {OWN_BOS} or a token's text")
        return found

    def qualified(self) -> Self:
        return self
