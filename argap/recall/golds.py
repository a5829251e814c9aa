"""The NLL of the golds of generated answers, beside lm-eval's metric, for tasks in the form of RULER.

Such a task generates its own data: each document has ``input``, ``outputs`` and ``max_length``. What it generates
depends on its code, its packages and the tokenizer, so a hash over prompts and golds says whether two people asked the
same.
"""

import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from argap.records import Record

QUARTERS = ("first quarter", "second quarter", "third quarter", "last quarter")
SEVERAL = "several"
"""In place of a depth where a document has several golds."""


class Gold(NamedTuple):
    """The gold of one request."""

    task: str
    length: int
    """The task's nominal length, in tokens."""
    depth: str
    prompt: str
    text: str
    """The outputs, with commas between them."""


class Answer(NamedTuple):
    """What a model made of a gold."""

    nll: float
    """Nats, of all its tokens."""
    contained: float
    """Share of the outputs that the answer contains, ignoring case: RULER's metric."""


class GoldRow(Record, frozen=True):
    """A task's golds at one nominal length and depth."""

    task: str
    length: int
    depth: str
    n: int
    contained: float
    nll: float
    """Nats per gold."""
    stderr: float | None
    """Of the NLL."""


def gold_of(task: str, prompt: str, document: Any) -> Gold | None:
    """Return the gold of a document in RULER's form; None for any other."""
    if not isinstance(document, Mapping):
        return None
    outputs, text, length = (document.get(key) for key in ("outputs", "input", "max_length"))
    if not (isinstance(outputs, list) and outputs and isinstance(text, str) and isinstance(length, int)):
        return None
    at = text.find(str(outputs[0]))
    depth = SEVERAL if len(outputs) > 1 else QUARTERS[min(3, 4 * max(0, at) // max(1, len(text)))]
    return Gold(task, length, depth, prompt, ", ".join(map(str, outputs)))


def contained(document: Mapping[str, Any], answer: str) -> float:
    """Return the share of a document's outputs in an answer."""
    outputs = [str(output).lower() for output in document["outputs"]]
    return sum(output in answer.lower() for output in outputs) / len(outputs)


def gold_rows(answered: Sequence[tuple[Gold, Answer]]) -> list[GoldRow]:
    """Return a row for each task, length and depth."""
    groups: dict[tuple[str, int, str], list[Answer]] = {}
    for gold, answer in answered:
        groups.setdefault((gold.task, gold.length, gold.depth), []).append(answer)
    order = [*QUARTERS, SEVERAL]
    rows = []
    for (task, length, depth), own in sorted(groups.items(), key=lambda g: (*g[0][:2], order.index(g[0][2]))):
        losses = np.array([answer.nll for answer in own])
        stderr = float(losses.std(ddof=1) / np.sqrt(len(own))) if len(own) > 1 else None
        share = float(np.mean([answer.contained for answer in own]))
        rows.append(GoldRow(task, length, depth, len(own), share, float(losses.mean()), stderr))
    return rows


def fingerprint(golds: Sequence[Gold]) -> dict[str, str]:
    """Return by task the SHA-256 (hex) over its prompts and golds, in order."""
    digests = defaultdict(hashlib.sha256)
    for gold in golds:
        for part in (gold.prompt, gold.text):
            digests[gold.task].update(part.encode() + b"\0")
    return {task: digest.hexdigest() for task, digest in digests.items()}
