"""Find out, before the first window, the server's dialect and whether its log-probs are those of the next token."""

from collections.abc import Sequence

import numpy as np

from argap.errors import ArgapError
from argap.runtime.progress import say
from argap.scoring.per_model import OWN_BOS
from argap.scoring.server.client import AGAIN, Client, ServerRefusal
from argap.scoring.server.dialects import DIALECTS, Dialect, NoLogprobs
from argap.text.tokenizer import Tokenizer

PROBE_TOKENS = 16
ENDINGS = 4
"""Number of probes, which differ in their last token."""
TOLERANCE = 0.05
"""Nats by which a log-prob may differ between two requests, as with a server that computes in bfloat16."""
UNSUPPORTED = (400, 413, 415, 422, 500, 501)
"""Statuses that refuse a form of request, not the user; llama-cpp-python answers 500 to forms it does not know."""


def find_dialect(client: Client, model: str, tokens: Sequence[int], tokenizer: Tokenizer, bos: int | None) -> Dialect:
    """Return the first of `DIALECTS` in which the server returns log-probs of a prompt.

    ``tokens``: a stretch of the text. ``bos``: the token to send before each window, unless the server adds one.

    Raises `ArgapError` that quotes the server's last answer if no dialect works, at once if the server refuses the key
    or the model, and if its log-probs are not those of the next token.
    """
    last = ""
    for dialect in DIALECTS:
        probes = probes_of(tokens, tokenizer, as_text=dialect.prompts == "text")
        client.again = AGAIN if dialect == DIALECTS[-1] else AGAIN - set(UNSUPPORTED)
        try:
            adds = dialect.adds_token(client, model, probes[0], tokenizer)
            dialect = dialect._replace(adds=adds, sends=None if adds else bos)
            best = [dialect.ask(client, model, [probe], tokenizer)[0].best[-1] for probe in probes]
        except ServerRefusal as refusal:
            if refusal.status not in UNSUPPORTED:
                raise
            last = str(refusal)
            continue
        except NoLogprobs as answer:
            last = str(answer)
            continue
        check_next_token(
            best,
            f"{client.address}: its",
            "; llama-cpp-python pairs tokens with log-probs one position late unless a BOS precedes the prompt: use "
            f"`bos={OWN_BOS}`",
        )
        if dialect.adds and bos is None:
            say(
                f"{client.address}: adds a token of its own, a BOS, before each window; argap's own scorer does so "
                f"with --bos {OWN_BOS}"
            )
        client.again = AGAIN
        return dialect
    raise ArgapError(
        f"{last}; expected a completions server that returns the log-probs of a prompt, by vLLM's prompt_logprobs or "
        "by echo with logprobs"
    )


def check_next_token(best: Sequence[float], whose: str, remedy: str = "") -> None:
    """Raise `ArgapError` if ``best``, the highest log-prob at the last token of each probe, depends on that token.

    A server that does not say it gives NaN, and is believed.
    """
    if not np.isnan(best).any() and float(max(best)) - float(min(best)) > TOLERANCE:
        raise ArgapError(
            f"{whose} distribution for a token changes with that token, so it is not that of the next token{remedy}"
        )


def probes_of(tokens: Sequence[int], tokenizer: Tokenizer, *, as_text: bool) -> list[list[int]]:
    """Return up to `ENDINGS` probes that differ only in the last token, which must not change its own distribution."""
    length = min(len(tokens), PROBE_TOKENS)
    probes = [[*tokens[: length - 1], ending] for ending in dict.fromkeys(tokens[length - 1 :])]
    if as_text:
        probes = [probe for probe, same in zip(probes, round_trips(probes, tokenizer), strict=True) if same] or probes[
            :1
        ]
    return probes[:ENDINGS]


def round_trips(windows: Sequence[Sequence[int]], tokenizer: Tokenizer) -> list[bool]:
    """Return for each window whether tokenizing its text again gives its ids."""
    again = tokenizer.encode([tokenizer.decode(ids) for ids in windows])
    return [ids.tolist() == list(window) for ids, window in zip(again, windows, strict=True)]
