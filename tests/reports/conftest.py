"""Results for the reports: random log-probs passed through the real summary, and rows worked by hand."""

from collections.abc import Callable
from math import exp

import msgspec
import numpy as np
import pandas as pd
import pytest

from argap.metric.bins import distance_bins, frequency_bins, position_bins
from argap.records import (
    GAP_FORMAT,
    Bins,
    Breakdowns,
    Case,
    Delta,
    EvaluationRecord,
    Examples,
    ExampleWindow,
    Gap,
    GapRow,
    GapShare,
    IndexRecord,
    Interval,
    SliceScores,
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
    return Gap(
        format=GAP_FORMAT,
        rows=(
            _row("attention", (2.40, 0.77, 2.52), None),
            _row("h3", worse, _due(0.8871, 0.8871, "explained", (0.8512, 0.9234))),
            _row("hyena", worse, _due(1.0, 1.31, "explained", (0.97, 1.0))),
            _row("slide", (2.37, 1.23, 2.44), _due(1.0, -1.5, "recall_only", None)),
            _row("mamba", (2.30, 0.70, 2.42), _due(None, 0.05, "no_gap", None)),
            _row("odd", (2.45, 0.70, 2.58), _due(-0.098, -0.098, "reversed", (-0.21, 0.02))),
            _row("close", (2.405, 0.80, 2.525), _due(0.42, 0.42, "explained", None)),
        ),
        reference="attention",
        threshold=THRESHOLD,
        bins=Bins((), (), ()),
        breakdowns=Breakdowns((), (), (), (), ()),
        date="2026-01-01",
        fingerprint=EVALUATION.fingerprint,
        run="runs",
        evaluation=EVALUATION,
        index=INDEX,
        versions={},
    )


def _row(model: str, nlls: tuple[float, float, float], due: GapShare | None) -> GapRow:
    scores = (SliceScores(n, nll, round(exp(nll), 4)) for n, nll in zip((1000, 70, 930), nlls, strict=True))
    return GapRow(
        model,
        due is None,
        *scores,
        share_ar_hits=0.07,
        gap_due_to_ar=due,
        delta=None if due is None else Delta(0.05, (0.04, 0.06)),
        delta_ar=None if due is None else Delta(0.03, (0.02, 0.04)),
        run=f"runs/{model}",
        parameters=125_000_000,
    )


def _due(value: float | None, raw: float, case: Case, ci95: Interval | None) -> GapShare:
    return GapShare(value, raw, case, ci95, None if ci95 else "gap not resolved")
