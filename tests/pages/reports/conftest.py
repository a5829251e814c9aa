"""Results for the reports: random log-probs passed through the real summary, and rows worked by hand."""

from collections.abc import Callable
from math import exp
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pytest

from argap.metric.bins import distance_bins, frequency_bins, position_bins
from argap.metric.share import NO_SHARE
from argap.records import (
    ALL,
    AR_HITS,
    GAP_FORMAT,
    OTHER,
    SLICE,
    Bins,
    Direction,
    Estimate,
    EvaluationRecord,
    Examples,
    ExampleWindow,
    Gap,
    GapRow,
    IndexRecord,
    Interval,
)
from argap.results.summary import summarize
from argap.slices.cells import KEYS, PREFIX

SEQ_LEN = 1024
THRESHOLD = 1250
TOKENS = 20_000
EVALUATION = EvaluationRecord(
    fingerprint="0123456789abcdef" * 4,
    tokenizer="bpe",
    tokenizer_fingerprint="fedcba9876543210" * 4,
    tokens=TOKENS + 960,
    scored=TOKENS,
    windows=960,
    documents=24,
    seq_len=SEQ_LEN,
    packing="packed",
    data=("text/heldout",),
)
INDEX = IndexRecord(
    folder="index",
    tokenizer="bpe",
    tokenizer_fingerprint="fedcba9876543210" * 4,
    tokens=80_000_000,
    documents=9000,
    distinct=3_000_000,
    proxy=False,
)


def _make_gap(loss_on_hits: dict[str, float], domains: tuple[str, ...] = ("prose", "code", "law")) -> Gap:
    """The result of a reference named attention and of models with a given loss on AR hits (nats).

    A model loses 0.1 nats on other tokens as well, unless its loss is 0.
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
            "copy": np.where(repeated, np.array([1, 2, 3, 5])[count % 4], -(count % 2)).astype(np.int8),
            "induction": repeated & (count % 3 > 0),
            "n": 1,
            **{PREFIX + name: values for name, values in logprobs.items()},
        }
    )
    cells = pd.DataFrame(frame.groupby(KEYS, as_index=False, observed=True).sum())
    gap = summarize(
        cells,
        reference="attention",
        threshold=THRESHOLD,
        evaluation=EVALUATION,
        index=INDEX,
        run="runs/x",
        runs={name: f"runs/x/{name}" for name in logprobs},
        parameters={name: 6_912_345 + 250_000 * k for k, name in enumerate(logprobs)},
    )
    return msgspec.structs.replace(gap, versions={"python": "3.11.2", "argap": "0.1.0"})


def _make_examples(tokens: list[str], models: tuple[str, str] = ("attention", "base_conv")) -> Examples:
    """A window with the given tokens; every third is an AR hit, and the last hit is the focus."""
    size = len(tokens)
    hit = tuple(k % 3 == 2 or k == size - 1 for k in range(size))
    one, other = models
    window = ExampleWindow(
        window=3,
        document=1,
        domain="code",
        source="json/decoder.py",
        model=other,
        start=0,
        tokens=tuple(tokens),
        repeated=hit,
        ar_hit=hit,
        distance=tuple(5 * h for h in hit),
        train_count=tuple(12 + k for k in range(size)),
        logprob={one: (None, *[-0.25] * (size - 1)), other: (None, *[-4.5] * (size - 1))},
        top1_correct={
            one: tuple(k > 0 and k % 4 in (0, 1) for k in range(size)),
            other: tuple(k > 0 and k % 4 in (0, 2) for k in range(size)),
        },
        focus=size - 1,
        earlier=None,
    )
    return Examples(tokenizer="bpe", models=models, reference=one, rule="by hand", windows=(window,))


@pytest.fixture(scope="session")
def make_gap() -> Callable[..., Gap]:
    return _make_gap


@pytest.fixture(scope="session")
def make_examples() -> Callable[..., Examples]:
    return _make_examples


@pytest.fixture(scope="session")
def gap() -> Gap:
    return _make_gap({"base_conv": 1.2, "hyena": 0.6})


@pytest.fixture(scope="session")
def by_hand() -> Gap:
    """Every case of the metric, in numbers worked by hand.

    e^2.4 = 11.0232, e^0.77 = 2.1598, e^2.52 = 12.4286, e^2.49 = 12.0613, e^1.91 = 6.7531, e^2.53 = 12.5535.
    """
    worse = (2.49, 1.91, 2.53)
    estimates = [
        *_estimates("attention", (2.40, 0.77, 2.52)),
        *_estimates("h3", worse, 0.05, 0.8871, (0.8512, 0.9234)),
        *_estimates("hyena", worse, 0.05, 1.31, (1.27, 1.35), rule=1.0),
        *_estimates("slide", (2.37, 1.23, 2.44), -0.02, -1.5, (-1.7, -1.3), rule=1.0),
        *_estimates("mamba", (2.30, 0.70, 2.42), -0.1, 0.05, (0.04, 0.06), rule=None),
        *_estimates("odd", (2.45, 0.70, 2.58), 0.05, -0.098, (-0.21, 0.02)),
        *_estimates("close", (2.405, 0.80, 2.525), 0.005, None, rule=0.42),
    ]
    directions: dict[str, Direction] = dict.fromkeys(("h3", "hyena", "odd"), "behind")
    directions |= {"slide": "ahead", "mamba": "ahead", "close": "level"}
    models = dict.fromkeys(each.model for each in estimates)
    return Gap(
        format=GAP_FORMAT,
        reference="attention",
        threshold=THRESHOLD,
        unit="token",
        rows=tuple(GapRow(model, directions.get(model), 125_000_000, f"runs/{model}") for model in models),
        slices=(),
        date="2026-01-01",
        run="runs",
        evaluation=EVALUATION,
        index=INDEX,
        versions={},
        documents=None,
        bins=Bins((), (), ()),
        estimates=tuple(estimates),
    )


def _estimates(
    model: str,
    nlls: tuple[float, float, float],
    delta: float | None = None,
    share: float | None = None,
    ends: Interval | None = None,
    rule: float | str | None = "share",
) -> list[Estimate]:
    """On all tokens, AR hits and others. ``rule``: the paper's, by default the share. A model without a share is level,
    with 0.004 nats lost on the hits."""
    sets = ((ALL, ALL, 1000), (SLICE, AR_HITS, 70), (SLICE, OTHER, 930))
    whole, hits, other = (
        Estimate(model, partition, bin_, n, n / 1000, nll, round(exp(nll), 4))
        for (partition, bin_, n), nll in zip(sets, nlls, strict=True)
    )
    if delta is None:
        return [whole, hits, other]
    part = 0.004 if share is None else share * delta
    reason = NO_SHARE if share is None else None
    change = msgspec.structs.replace

    def within(value: float) -> dict[str, Any]:
        return {"contribution": value, "contribution_ci95": (value - 0.01, value + 0.01)}

    paper: Any = share if rule == "share" else rule
    return [
        change(whole, delta=delta, delta_ci95=(delta - 0.01, delta + 0.01), **within(delta)),
        change(hits, **within(part), share=share, share_ci95=ends, paper_rule=paper, reason=reason),
        change(other, **within(delta - part), share=None if share is None else 1 - share),
    ]
