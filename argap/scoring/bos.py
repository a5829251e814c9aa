"""Find the token to put before each window: BOS, one more token of context without a log-prob."""

from typing import Protocol

from argap.errors import ArgapError
from argap.scoring.per_model import OWN_BOS
from argap.text.tokenizer import Tokenizer


class Tokenized(Protocol):
    """A model with its tokenizer, which is loaded on first use."""

    @property
    def name(self) -> str: ...
    @property
    def tokenizer(self) -> Tokenizer: ...


def bos_id(model: Tokenized, asked: str | None) -> int | None:
    """Return the id of the token to put before each window of a model; None for none.

    ``asked``: the token's text, or `OWN_BOS`. Raises `ArgapError` for a token outside the vocabulary.
    """
    if asked is None:
        return None
    tokenizer = model.tokenizer
    found = tokenizer.bos if asked == OWN_BOS else tokenizer.vocabulary.get(asked)
    if found is None:
        what = "its tokenizer has no BOS" if asked == OWN_BOS else "not in its vocabulary"
        raise ArgapError(f"{model.name}: `bos` {asked}: {what}; expected {OWN_BOS} or a token's text")
    return found
