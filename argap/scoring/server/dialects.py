"""Ask servers for the log-probs of a prompt, in the forms they know, and check their answers.

- ``prompt_logprobs``: vLLM's parameter; the prompt is token ids, and each position of the answer lists ids.
- ``echo``: OpenAI's completions interface, ``echo`` with ``logprobs``, with tokens as text. The prompt is token ids if
  the server takes them, else text.

Every request asks for one new token, which is ignored: some servers read 0 as no limit, and some continue until the new
tokens complete a character. ``temperature`` is 1, because some servers scale log-probs by it.
"""

import math
import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
import numpy as np

from argap.errors import ArgapError, MismatchError
from argap.records import Record
from argap.scoring.server.client import Client
from argap.text.tokenizer import Tokenizer
from argap.tokens.runs import LARGEST_LOGPROB

FLOOR = -9000.0
"""Servers write −∞, which JSON cannot represent, as -9999 or less."""
SAID = 2000
"""Most characters of an answer to quote."""
PADDED = 2**16
"""Ids that a model's vocabulary may have beyond twice its tokenizer's: it may be padded, but not without end."""
NEW_TOKENS = 4
"""Most new tokens in an answer: a character has at most four bytes."""
COMMON = {"max_tokens": 1, "temperature": 1.0, "stream": False}
UNREADABLE = re.compile("\ufffd|^bytes:|^<0x[0-9A-Fa-f]{2}>$|^$")
"""Token texts that stand for part of a character, or for nothing."""
TokenId = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]


class TokenScore(Record, frozen=True):
    """One token at a position of ``prompt_logprobs``."""

    logprob: float | None = None
    rank: int | None = None
    decoded_token: str | None = None


class Echo(Record, frozen=True):
    """``logprobs`` of an echo: lists with one entry per token."""

    tokens: list[str | None] | None = None
    token_logprobs: list[float | None] | None = None
    top_logprobs: list[dict[str, float] | None] | None = None


class Choice(Record, frozen=True):
    """The answer to one prompt."""

    index: int = 0
    prompt_logprobs: list[dict[TokenId, TokenScore] | None] | None = None
    logprobs: Echo | None = None


class Usage(Record, frozen=True):
    """The server's token counts."""

    prompt_tokens: int | None = None


class Answer(Record, frozen=True):
    """The keys of an answer that are used; others are ignored."""

    choices: list[Choice]
    usage: Usage | None = None


class NoLogprobs(ArgapError):
    """The server answered without the log-probs of the prompt."""


class Scored(NamedTuple):
    """The scores of a window of T tokens. Position 0 has no log-prob."""

    logprob: np.ndarray
    """float64 ``[T]``; NaN at position 0."""
    top1: np.ndarray
    """int32 ``[T]``: the most likely id; -1 if the server does not say which, and at position 0."""
    best: np.ndarray
    """float64 ``[T]``: the log-prob of the most likely token; NaN if the server does not say."""


class Dialect(NamedTuple):
    """A way to request log-probs."""

    logprobs: Literal["prompt_logprobs", "echo"]
    """The request parameter that returns them."""
    prompts: Literal["token ids", "text"]
    adds: bool = False
    """Whether the server puts a token of its own, a BOS, before each prompt."""
    sends: int | None = None
    """Id of the BOS that we send instead."""

    def ask(self, client: Client, model: str, windows: Sequence[Sequence[int]], tokenizer: Tokenizer) -> list[Scored]:
        """Request the log-probs of ``windows``, lists of token ids, all at once.

        Raises `NoLogprobs`, `MismatchError` for tokens that were not sent, and what `Client.complete` raises.
        """
        answer = self._request(client, model, windows, tokenizer)
        where = client.address
        added = tokens_added(answer, windows)
        if added is not None and added != (self.adds or self.sends is not None) * len(windows):
            own = sum(map(len, windows))
            raise MismatchError(
                f"{where}: read {own + added} tokens, {own} were sent in {len(windows)} windows; does it cut the "
                "prompt, or have another tokenizer?"
            )
        choices = sorted(answer.choices, key=lambda choice: choice.index)  # in the order of the prompts
        if [choice.index for choice in choices] != list(range(len(windows))):
            raise MismatchError(f"{where}: {len(choices)} choices for {len(windows)} prompts; use `batch_size=1`")
        read = of_ids if self.logprobs == "prompt_logprobs" else _of_texts
        if self.sends is not None:
            pairs = zip(choices, windows, strict=True)
            choices = [without_first(choice, self.sends, ids, tokenizer) for choice, ids in pairs]
        return [read(choice, ids, tokenizer, where) for choice, ids in zip(choices, windows, strict=True)]

    def adds_token(self, client: Client, model: str, window: Sequence[int], tokenizer: Tokenizer) -> bool:
        """Return whether the server reads one more token than ``window`` has."""
        return tokens_added(self._request(client, model, [window], tokenizer), [window]) == 1

    def _request(self, client: Client, model: str, windows: Sequence[Sequence[int]], tokenizer: Tokenizer) -> Answer:
        before = [] if self.sends is None else [self.sends]
        prompts: Any = [[*before, *ids] for ids in windows]
        if self.prompts == "text":  # a special token's text: a server that reads it as text has read too many tokens
            prompts = ["".join(map(tokenizer.token_text, before)) + tokenizer.decode(ids) for ids in windows]
            prompts = prompts[0] if len(prompts) == 1 else prompts
        asked = {"prompt_logprobs": 1} if self.logprobs == "prompt_logprobs" else {"echo": True, "logprobs": 1}
        answer = client.complete({"model": model, "prompt": prompts, **COMMON, **asked})
        try:
            return msgspec.convert(answer, Answer, strict=True, str_keys=True)
        except msgspec.ValidationError as error:
            said = client.said(str(answer)[:SAID].encode(errors="replace"))
            raise NoLogprobs(
                f"{client.address}: the answer does not have the choices of a completion: {error}{said}"
            ) from None


DIALECTS = (Dialect("prompt_logprobs", "token ids"), Dialect("echo", "token ids"), Dialect("echo", "text"))


def without_first(choice: Choice, bos: int, ids: Sequence[int], tokenizer: Tokenizer) -> Choice:
    """Return a choice without the entry of the BOS that was sent; llama-cpp-python itself omits it from an echo."""
    if choice.prompt_logprobs is not None:
        return msgspec.structs.replace(choice, prompt_logprobs=[None, *choice.prompt_logprobs[2:]])
    echo = choice.logprobs or Echo()
    texts = echo.tokens or [None]
    if len(texts) < len(ids) + 2 or not _same_text(tokenizer, bos, texts[0]):
        return choice
    kept = Echo(*(None if values is None else values[1:] for values in msgspec.structs.astuple(echo)))
    return msgspec.structs.replace(choice, logprobs=kept)


def tokens_added(answer: Answer, windows: Sequence[Sequence[int]]) -> int | None:
    """Return how many more tokens the server read than ``windows`` have; None if it does not count them."""
    read = (answer.usage.prompt_tokens if answer.usage else None) or 0
    return read - sum(map(len, windows)) if read > 0 else None


def of_ids(choice: Choice, ids: Sequence[int], tokenizer: Tokenizer, where: str) -> Scored:
    """Read ``prompt_logprobs``: null, then for each position a mapping from ids to log-prob, rank and text."""
    given = choice.prompt_logprobs
    if given is None:
        raise NoLogprobs(f"{where}: no prompt_logprobs in its answer")
    if len(given) != len(ids):
        raise MismatchError(f"{where}: {len(given)} log-probs for {len(ids)} tokens")
    scored = _empty(len(ids))
    for position, (token, entry) in enumerate(zip(ids, given, strict=True)):
        if position == 0:
            continue
        if entry is None or token not in entry:
            found = ", ".join(map(str, entry or ["null"]))
            raise MismatchError(f"{where}: position {position}: expected token {token}, found {found[:80]}")
        _check_text(tokenizer, token, entry[token].decoded_token, position, where)
        scored.logprob[position] = _checked(entry[token].logprob, position, where)
        for key, other in entry.items():
            if other.rank == 1:
                if key >= (most := 2 * tokenizer.vocab_size + PADDED):
                    raise MismatchError(
                        f"{where}: position {position}: id {key} is most likely; expected below {most:,}"
                    )
                scored.top1[position], scored.best[position] = key, _checked(other.logprob, position, where)
    return scored


def _of_texts(choice: Choice, ids: Sequence[int], tokenizer: Tokenizer, where: str) -> Scored:
    """Read an ``echo``: texts and log-probs of the prompt's tokens, followed by those of the new one."""
    echo = choice.logprobs or Echo()
    texts, values, tops = echo.tokens, echo.token_logprobs, echo.top_logprobs or []
    if texts is None or values is None or len(values) <= 1 < len(ids):
        raise NoLogprobs(f"{where}: no log-probs of the prompt in its answer")
    if len(texts) != len(values) or not 0 <= len(values) - len(ids) <= NEW_TOKENS:
        raise MismatchError(
            f"{where}: {len(values)} log-probs for {len(ids)} tokens and one or more new ones; does it add a BOS, cut "
            "the prompt, or have another tokenizer?"
        )
    scored = _empty(len(ids))
    for position, token in enumerate(ids):
        _check_text(tokenizer, token, texts[position], position, where)
        if position == 0:
            continue
        scored.logprob[position] = own = _checked(values[position], position, where)
        if best := tops[position] if position < len(tops) else None:
            scored.best[position] = max(_checked(value, position, where) for value in best.values())
            if own >= scored.best[position]:
                scored.top1[position] = token
    return scored


def _empty(length: int) -> Scored:
    return Scored(np.full(length, np.nan), np.full(length, -1, dtype=np.int32), np.full(length, np.nan))


def _checked(value: float | None, position: int, where: str) -> float:
    if value is None or math.isnan(value) or value > LARGEST_LOGPROB:
        raise ArgapError(f"{where}: position {position}: log-prob {value}; expected a natural logarithm of at most 0")
    return -math.inf if value <= FLOOR else value


def _check_text(tokenizer: Tokenizer, token: int, found: str | None, position: int, where: str) -> None:
    """Raise `MismatchError` if the server's text of a token differs from the tokenizer's.

    Servers write the space before a word, parts of characters and special tokens in different ways: spaces are
    normalised, the others are not compared.
    """
    expected = tokenizer.pieces[token]
    if found is None or token in tokenizer.special or _same_text(tokenizer, token, found):
        return
    raise MismatchError(
        f"{where}: position {position}: expected token {token} ({expected!r}), found {found[:40]!r}; is "
        f"{tokenizer.name} its tokenizer?"
    )


def _same_text(tokenizer: Tokenizer, token: int, found: str | None) -> bool:
    expected = tokenizer.pieces[token]
    if found is None or found == f"token_id:{token}":
        return True
    return bool(UNREADABLE.search(found) or UNREADABLE.search(expected)) or _plain(found) == _plain(expected)


def _plain(text: str) -> str:
    return text.replace("▁", " ").replace("Ġ", " ").replace("Ċ", "\n").lstrip(" ")
