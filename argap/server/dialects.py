"""How servers give the log-probs of a prompt, and the checks of what they answer.

- ``prompt_logprobs``: vLLM's parameter; the prompt is token ids, and each position names ids.
- ``echo``: the completions interface of OpenAI, ``echo`` with ``logprobs``, whose tokens are text. The prompt is token
  ids where the server takes them, else text.

Every request asks for one new token, which is ignored: some servers read 0 as no limit, and some go on until the new
tokens end a character. ``temperature`` is 1, because
some servers scale log-probs by it.
"""

import math
import re
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from argap.errors import ArgapError, MismatchError
from argap.server.client import Client
from argap.tokenizer import Tokenizer

LARGEST = 1e-4
"""The highest log-prob accepted: rounding may lift that of a certain token above 0."""
FLOOR = -9000.0
"""Servers write the logarithm of 0, −∞, which JSON cannot hold, as -9999 or less."""
NEW_TOKENS = 4
"""A character has at most four bytes."""
COMMON = {"max_tokens": 1, "temperature": 1.0, "stream": False}
UNREADABLE = re.compile("\ufffd|^bytes:|^<0x[0-9A-Fa-f]{2}>$|^$")
"""Texts of a token that stand for a piece of a character, or for none."""


ECHOED = ("tokens", "token_logprobs", "top_logprobs")
"""Lists of an echo, each with an entry for each token."""


class NoLogprobs(ArgapError):
    """The server answered without the log-probs of the prompt."""


class Scored(NamedTuple):
    """A window of T tokens. Position 0 has no log-prob."""

    logprob: np.ndarray
    """float64 ``[T]``; NaN at position 0."""
    top1: np.ndarray
    """int32 ``[T]``: the most likely id; -1 where the server does not tell which, and at position 0."""
    best: np.ndarray
    """float64 ``[T]``: the log-prob of the most likely token; NaN where the server does not tell."""


class Dialect(NamedTuple):
    """A way to ask."""

    logprobs: Literal["prompt_logprobs", "echo"]
    """The parameter that asks for them."""
    prompts: Literal["token ids", "text"]
    adds: bool = False
    """Whether the server puts a token of its own, a BOS, before each prompt."""
    sends: int | None = None
    """Id of the BOS that we put there."""

    def ask(self, client: Client, model: str, windows: Sequence[Sequence[int]], tokenizer: Tokenizer) -> list[Scored]:
        """The log-probs of ``windows``, lists of token ids, by one request.

        Raises `NoLogprobs`, `MismatchError` for other tokens than were sent, and what `Client.post` raises.
        """
        answer = self._request(client, model, windows, tokenizer)
        where = str(client.address)
        added = tokens_added(answer, windows)
        if added is not None and added != (self.adds or self.sends is not None) * len(windows):
            own = sum(map(len, windows))
            raise MismatchError(
                f"{where}: read {own + added} tokens, {own} were sent in {len(windows)} windows; does it cut the "
                "prompt, or have another tokenizer?"
            )
        choices = _choices(answer, len(windows), client)
        read = _of_ids if self.logprobs == "prompt_logprobs" else _of_texts
        if self.sends is not None:
            pairs = zip(choices, windows, strict=True)
            choices = [without_first(choice, self.sends, ids, tokenizer) for choice, ids in pairs]
        return [read(choice, ids, tokenizer, where) for choice, ids in zip(choices, windows, strict=True)]

    def adds_token(self, client: Client, model: str, window: Sequence[int], tokenizer: Tokenizer) -> bool:
        """Whether the server reads one more token than ``window`` has."""
        return tokens_added(self._request(client, model, [window], tokenizer), [window]) == 1

    def _request(self, client: Client, model: str, windows: Sequence[Sequence[int]], tokenizer: Tokenizer) -> Any:
        before = [] if self.sends is None else [self.sends]
        prompts: Any = [[*before, *ids] for ids in windows]
        if self.prompts == "text":  # a special token's text: a server that reads it as text has read too many tokens
            prompts = ["".join(map(tokenizer.token_text, before)) + tokenizer.decode(ids) for ids in windows]
            prompts = prompts[0] if len(prompts) == 1 else prompts
        asked = {"prompt_logprobs": 1} if self.logprobs == "prompt_logprobs" else {"echo": True, "logprobs": 1}
        return client.post("completions", {"model": model, "prompt": prompts, **COMMON, **asked})


DIALECTS = (Dialect("prompt_logprobs", "token ids"), Dialect("echo", "token ids"), Dialect("echo", "text"))


def without_first(choice: dict[str, Any], bos: int, ids: Sequence[int], tokenizer: Tokenizer) -> dict[str, Any]:
    """A choice without the entry of the BOS that was sent. llama-cpp-python leaves it out of an echo by itself."""
    if isinstance(given := choice.get("prompt_logprobs"), list):
        return choice | {"prompt_logprobs": [None, *given[2:]]}
    given = choice.get("logprobs")
    lists = {name: given.get(name) for name in ECHOED} if isinstance(given, dict) else {}
    texts = lists.get("tokens")
    if not isinstance(texts, list) or len(texts) < len(ids) + 2 or not _same_text(tokenizer, bos, texts[0]):
        return choice
    kept = {name: values[1:] if isinstance(values, list) else values for name, values in lists.items()}
    return choice | {"logprobs": kept}


def tokens_added(answer: Any, windows: Sequence[Sequence[int]]) -> int | None:
    """Tokens that the server read beyond those of ``windows``; None where it does not count them."""
    usage = answer.get("usage") if isinstance(answer, dict) else None
    read = usage.get("prompt_tokens") if isinstance(usage, dict) else None
    return read - sum(map(len, windows)) if isinstance(read, int) and read > 0 else None


def _choices(answer: Any, count: int, client: Client) -> list[dict[str, Any]]:
    """The choices of an answer in the order of the prompts."""
    choices = answer.get("choices") if isinstance(answer, dict) else None
    if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in choices):
        raise NoLogprobs(f"{client.address}: an answer without choices{client.said(str(answer).encode())}")
    if sorted(choice.get("index", 0) for choice in choices) != list(range(count)):
        raise MismatchError(f"{client.address}: {len(choices)} choices for {count} prompts; use `batch_size=1`")
    return sorted(choices, key=lambda choice: choice.get("index", 0))


def _of_ids(choice: dict[str, Any], ids: Sequence[int], tokenizer: Tokenizer, where: str) -> Scored:
    """``prompt_logprobs``: null, then for each position a mapping from ids to log-prob, rank and text."""
    given = choice.get("prompt_logprobs")
    if not isinstance(given, list):
        raise NoLogprobs(f"{where}: no prompt_logprobs in its answer")
    if len(given) != len(ids):
        raise MismatchError(f"{where}: {len(given)} log-probs for {len(ids)} tokens")
    scored = _empty(len(ids))
    for position, (token, entry) in enumerate(zip(ids, given, strict=True)):
        if position == 0:
            continue
        own = entry.get(str(token)) if isinstance(entry, dict) else None
        if not isinstance(own, dict):
            found = ", ".join(map(str, entry)) if isinstance(entry, dict) else str(entry)
            raise MismatchError(f"{where}: position {position}: expected token {token}, found {found[:80]}")
        _check_text(tokenizer, token, own.get("decoded_token"), position, where)
        scored.logprob[position] = _checked(own.get("logprob"), position, where)
        for key, other in entry.items():
            if isinstance(other, dict) and other.get("rank") == 1:
                scored.top1[position], scored.best[position] = int(key), _checked(other.get("logprob"), position, where)
    return scored


def _of_texts(choice: dict[str, Any], ids: Sequence[int], tokenizer: Tokenizer, where: str) -> Scored:
    """``echo``: the texts and log-probs of the prompt's tokens, and those of the new one behind them."""
    given = choice.get("logprobs")
    texts, values = (given.get(name) if isinstance(given, dict) else None for name in ("tokens", "token_logprobs"))
    if not isinstance(texts, list) or not isinstance(values, list) or len(values) <= 1 < len(ids):
        raise NoLogprobs(f"{where}: no log-probs of the prompt in its answer")
    if len(texts) != len(values) or not 0 <= len(values) - len(ids) <= NEW_TOKENS:
        raise MismatchError(
            f"{where}: {len(values)} log-probs for {len(ids)} tokens and one or more new ones; does it add a BOS, cut "
            "the prompt, or have another tokenizer?"
        )
    tops = given.get("top_logprobs") if isinstance(given, dict) else None
    scored = _empty(len(ids))
    for position, token in enumerate(ids):
        _check_text(tokenizer, token, texts[position], position, where)
        if position == 0:
            continue
        scored.logprob[position] = own = _checked(values[position], position, where)
        best = tops[position] if isinstance(tops, list) and position < len(tops) else None
        if isinstance(best, dict) and best:
            scored.best[position] = max(_checked(value, position, where) for value in best.values())
            if own >= scored.best[position]:
                scored.top1[position] = token
    return scored


def _empty(length: int) -> Scored:
    return Scored(np.full(length, np.nan), np.full(length, -1, dtype=np.int32), np.full(length, np.nan))


def _checked(value: Any, position: int, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value) or value > LARGEST:
        raise ArgapError(
            f"{where}: position {position}: log-prob {str(value)[:40]}; expected a natural logarithm of at most 0"
        )
    return -math.inf if value <= FLOOR else float(value)


def _check_text(tokenizer: Tokenizer, token: int, found: Any, position: int, where: str) -> None:
    """Raise `MismatchError` where the server's text of a token is another one than the tokenizer's.

    Servers write the space before a word in several ways, and pieces of characters and special tokens in many: the
    first is levelled, the others are not compared.
    """
    expected = tokenizer.pieces[token]
    if token in tokenizer.special or _same_text(tokenizer, token, found):
        return
    raise MismatchError(
        f"{where}: position {position}: expected token {token} ({expected!r}), found {found[:40]!r}; is "
        f"{tokenizer.name} its tokenizer?"
    )


def _same_text(tokenizer: Tokenizer, token: int, found: Any) -> bool:
    expected = tokenizer.pieces[token]
    if not isinstance(found, str) or found == f"token_id:{token}":
        return True
    return bool(UNREADABLE.search(found) or UNREADABLE.search(expected)) or _plain(found) == _plain(expected)


def _plain(text: str) -> str:
    return text.replace("▁", " ").replace("Ġ", " ").replace("Ċ", "\n").lstrip(" ")
