"""A result made from random log-probs through the real summary, so that its parts add up."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

from argap.bins import distance_bins, frequency_bins, position_bins
from argap.cells import KEYS, PREFIX
from argap.summary import summarize

SEQ_LEN = 1024
THRESHOLD = 1250
TOKENS = 20_000


def _make_gap(loss_on_hits: dict[str, float], domains: tuple[str, ...] = ("prose", "code", "law")) -> dict[str, Any]:
    """``gap.json`` of a reference named attention and of models that lose so much on AR hits (nats).

    A model loses 0.1 nats on other tokens as well.
    """
    generator = np.random.default_rng(0)
    document = np.sort(generator.integers(0, 24, TOKENS))
    position = generator.integers(1, SEQ_LEN, TOKENS)
    repeated = generator.random(TOKENS) < 0.45
    count = np.floor(10 ** generator.uniform(-1, 5.5, TOKENS)).astype(np.int64)
    distance = np.where(repeated, np.floor(2 ** generator.uniform(0, np.log2(position))), 0).astype(np.int64)
    hit = repeated & (count <= THRESHOLD)
    surprise = 7.0 - 1.1 * np.log10(1 + count) + 0.6 * generator.standard_normal(TOKENS)
    logprobs = {"attention": -np.maximum(np.where(repeated, 0.35 * surprise, surprise), 0.01)}
    for name, loss in loss_on_hits.items():
        rarity = 1.6 * (1 - np.log10(1 + count) / 6)
        logprobs[name] = logprobs["attention"] - np.where(hit, loss * rarity, 0.1 * (loss != 0))
    frame = pd.DataFrame(
        {
            "document": document.astype(np.int32),
            "window": (document * 40 + position % 40).astype(np.int32),
            "domain": np.array(domains, dtype=object)[document % len(domains)],
            "repeated": repeated,
            "frequency": frequency_bins(THRESHOLD).index(count),
            "distance": distance_bins(SEQ_LEN).index(distance),
            "position": position_bins(SEQ_LEN).index(position),
            "n": 1,
            **{PREFIX + name: values for name, values in logprobs.items()},
        }
    )
    cells = pd.DataFrame(frame.groupby(KEYS, as_index=False, observed=True).sum())
    gap = summarize(cells, reference="attention", threshold=THRESHOLD, seq_len=SEQ_LEN)
    for k, row in enumerate(gap["rows"]):
        row |= {"parameters": 6_912_345 + 250_000 * k, "run": f"runs/x/{row['model']}"}
    return gap | {
        "fingerprint": "0123456789abcdef" * 4,
        "run": "runs/x",
        "evaluation": {
            "fingerprint": "0123456789abcdef" * 4,
            "tokens": TOKENS + 960,
            "scored": TOKENS,
            "windows": 960,
            "documents": 24,
            "seq_len": SEQ_LEN,
            "packing": "packed",
            "data": ["text/heldout"],
            "tokenizer": "bpe",
            "tokenizer_fingerprint": "fedcba9876543210" * 4,
        },
        "index": {
            "tokens": 80_000_000,
            "documents": 9000,
            "distinct": 3_000_000,
            "tokenizer": "bpe",
            "tokenizer_fingerprint": "fedcba9876543210" * 4,
            "folder": "index",
        },
        "versions": {"python": "3.11.2", "argap": "0.1.0"},
    }


def _make_examples(tokens: list[str], models: tuple[str, str] = ("attention", "base_conv")) -> dict[str, Any]:
    """``examples.json`` with one window of given tokens; every third is an AR hit, the last the focus."""
    size = len(tokens)
    hit = [k % 3 == 2 or k == size - 1 for k in range(size)]
    one, other = models
    window = {
        "window": 3,
        "document": 1,
        "domain": "code",
        "source": "json/decoder.py",
        "model": other,
        "start": 0,
        "tokens": tokens,
        "repeated": hit,
        "ar_hit": hit,
        "distance": [5 * h for h in hit],
        "train_count": [12 + k for k in range(size)],
        "logprob": {one: [None, *[-0.25] * (size - 1)], other: [None, *[-4.5] * (size - 1)]},
        "top1_correct": {
            one: [k > 0 and k % 4 in (0, 1) for k in range(size)],
            other: [k > 0 and k % 4 in (0, 2) for k in range(size)],
        },
        "focus": size - 1,
        "earlier": None,
    }
    return {"tokenizer": "bpe", "models": list(models), "reference": one, "rule": "by hand", "windows": [window]}


@pytest.fixture(scope="session")
def make_gap() -> Callable[..., dict[str, Any]]:
    return _make_gap


@pytest.fixture(scope="session")
def make_examples() -> Callable[..., dict[str, Any]]:
    return _make_examples


@pytest.fixture(scope="session")
def gap() -> dict[str, Any]:
    return _make_gap({"base_conv": 1.2, "hyena": 0.6})
