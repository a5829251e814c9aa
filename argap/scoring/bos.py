"""Decide which token comes before each window: a BOS, one more token of context without a log-prob.

Unless the user says otherwise it is what the model was trained with: what the tokenizer's own rule puts before a text
(`argap.text.tokenizer.Tokenizer.adds_bos`), one token or ChatGLM's two, and none for models that `argap train` trained.
Where there is no rule, nothing is put, and a probe says whether a BOS would have mattered (`probe_bos`).
"""

from typing import TYPE_CHECKING, NamedTuple, Protocol, Self

from argap.errors import ArgapError
from argap.records import Bos, ids_of
from argap.runtime.progress import say
from argap.scoring.config import ScoreConfig
from argap.scoring.per_model import NO_BOS, OWN_BOS
from argap.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from argap.scoring.batches import Batches

TRIFLE = 0.02
"""Nats per token by which the mean NLL may fall with a BOS before `probe_bos` says so."""
PROBED_TOKENS = 1024
"""Tokens of the text, at least one window, that `probe_bos` scores with and without a BOS."""


class Tokenized(Protocol):
    """A model with its tokenizer, which is loaded on first use."""

    @property
    def name(self) -> str: ...
    @property
    def tokenizer(self) -> Tokenizer: ...


class Model(NamedTuple):
    """A model known by its name and tokenizer alone."""

    name: str
    tokenizer: Tokenizer


class Optioned(Tokenized, Protocol):
    """A model with its options."""

    @property
    def config(self) -> ScoreConfig: ...
    @property
    def without_bos(self) -> bool: ...


class Configured:
    """A source of log-probs whose options choose the BOS; by default its name cannot be made longer."""

    without_bos = False
    """Whether the model was trained without a BOS."""

    @property
    def bos(self: Optioned) -> Bos:
        """Return what to put before each window; raises as `bos_id`."""
        return bos_id(self, self.config.bos.of(self.name), without_bos=self.without_bos)

    def qualified(self) -> Self:
        return self


def bos_id(model: Tokenized, asked: str | None, *, without_bos: bool = False) -> Bos:
    """Return the ids of the tokens to put before each window of a model.

    ``asked``: the token's text, `OWN_BOS`, `NO_BOS`, or None for the tokenizer's rule; ``without_bos``: the
    model was trained without a BOS, so no rule applies. Raises `ArgapError` for a token outside the vocabulary.
    """
    if asked == NO_BOS or (asked is None and without_bos):
        return None
    tokenizer = model.tokenizer
    if len(tokenizer.before) > 1 and asked in (None, OWN_BOS):
        return tokenizer.before
    if asked is None:
        return tokenizer.bos if tokenizer.adds_bos else None
    found = tokenizer.bos if asked == OWN_BOS else tokenizer.vocabulary.get(asked)
    if found is None:
        what = "its tokenizer has no BOS" if asked == OWN_BOS else "not in its vocabulary"
        raise ArgapError(f"{model.name}: `bos` {asked}: {what}; expected {OWN_BOS}, {NO_BOS} or a token's text")
    return found


def text_of(tokenizer: Tokenizer, bos: Bos) -> str:
    """Return the tokens of ``bos`` as spelt in the vocabulary."""
    return "".join(map(tokenizer.token_text, ids_of(bos)))


def say_bos(model: Tokenized, asked: str | None, bos: Bos) -> None:
    """Say what, ``bos``, comes before each window or prompt, and why."""
    if bos is not None:
        why = "as asked" if asked is not None else f"as its tokenizer does; --bos {NO_BOS} leaves it out"
        say(f"{model.name}: {text_of(model.tokenizer, bos)} before each window, {why}")
    elif asked is None and len(before := model.tokenizer.before) > 1:
        say(
            f"{model.name}: nothing before each window, though its tokenizer puts {text_of(model.tokenizer, before)} "
            f"before a text; a server is sent one token at most: --bos {model.tokenizer.token_text(before[-1])}"
        )


def probe_bos(batches: "Batches", model: Tokenized, asked: str | None, *, without_bos: bool) -> None:
    """Say so if a BOS lowers the NLL of the first windows, for a model whose tokenizer has no rule for it."""
    tokenizer = model.tokenizer
    ruled = tokenizer.adds_bos is not None or len(tokenizer.before) > 1
    if asked is not None or without_bos or ruled or tokenizer.bos is None:
        return
    gain = batches.gain_of_bos(tokenizer.bos, PROBED_TOKENS)
    if gain > TRIFLE:
        say(
            f"{model.name}: nothing before each window, as its tokenizer does not say; its BOS "
            f"({tokenizer.token_text(tokenizer.bos)}) lowers the NLL of the first windows by {gain:.2f} nats per "
            f"token: --bos {model.name}={OWN_BOS} puts one there, --bos {NO_BOS} leaves this out"
        )
