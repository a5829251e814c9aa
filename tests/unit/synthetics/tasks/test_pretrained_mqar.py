"""Recall in a model's own vocabulary: pairs among a fill token or the tokens of a text."""

import hashlib
from typing import Any

import numpy as np
import pytest

from argap.errors import ArgapError
from argap.synthetics.tasks.examples import IGNORED
from argap.synthetics.tasks.mqar import ROWS
from argap.synthetics.tasks.pretrained_mqar import build, layout

VOCABULARY = np.arange(100, 900)
TEXT = np.random.default_rng(0).integers(0, 700, 5000).astype(np.int32)


@pytest.mark.parametrize("around", [{"fill": 3}, {"fill": 250}, {"text": TEXT}], ids=["fill", "fill of ours", "text"])
@pytest.mark.parametrize("pairs", [1, 16, 32])
def test_every_return_of_a_key_is_asked_and_nothing_else_is_a_key(around: dict[str, Any], pairs: int) -> None:
    config = layout(examples=40, pairs=pairs, length=128)
    found = build(config, 1, vocabulary=VOCABULARY, **around)
    for tokens, labels, distances in zip(
        found.inputs.tolist(), found.labels.tolist(), found.slices["distance"].tolist(), strict=True
    ):
        answer = dict(zip(tokens[: 2 * pairs : 2], tokens[1 : 2 * pairs : 2], strict=True))
        assert len({*answer, *answer.values()}) == 2 * pairs
        assert {*answer, *answer.values()} <= set(VOCABULARY.tolist())
        asked = {}
        for t in range(2 * pairs + 1, 128):
            if tokens[t - 1] in answer:
                asked[t] = answer[tokens[t - 1]]
                assert distances[t] == t - 1 - tokens.index(tokens[t - 1])
        assert {t: label for t, label in enumerate(labels) if label != IGNORED} == asked
        assert all(tokens[t] == value for t, value in asked.items())
        assert len(asked) == pairs
        around_them = [
            token for t, token in enumerate(tokens[2 * pairs :], start=2 * pairs)
            if t not in asked and t + 1 not in asked
        ]  # fmt: skip
        assert not set(around_them) & {*answer, *answer.values()}
        if "fill" in around:
            assert set(around_them) <= {around["fill"]}


def test_a_text_stays_in_its_order() -> None:
    found = build(layout(examples=30, pairs=2, length=64), 5, vocabulary=VOCABULARY, text=TEXT)
    starts = set()
    for tokens, labels in zip(found.inputs, found.labels, strict=True):
        own = np.flatnonzero(labels != IGNORED)
        kept = np.setdiff1d(np.arange(4, 64), np.concatenate([own, own - 1]))
        (fits,) = [k for k in range(len(TEXT) - 63) if (TEXT[k : k + 64][kept] == tokens[kept]).all()]
        starts.add(fits)
    assert len(starts) > 20


def test_a_text_of_the_length_and_a_vocabulary_of_the_pairs_are_enough() -> None:
    config = layout(examples=20, pairs=4, length=32)
    found = build(config, 0, vocabulary=VOCABULARY, text=TEXT[:32])
    assert ((found.inputs == TEXT[:32]).sum(axis=1) >= 32 - 4 * 4).all()
    full = build(config, 0, vocabulary=np.arange(9), fill=0)
    assert (np.sort(full.inputs[:, :8]) == np.arange(1, 9)).all()


def test_all_of_1024_tokens_can_be_pairs() -> None:
    found = build(layout(examples=2, pairs=256), 0, vocabulary=np.arange(5000), fill=0)
    assert ((found.labels != IGNORED).sum(axis=1) == 256).all()
    assert not (found.inputs == 0).any()


def test_a_seed_fixes_the_bytes_and_more_examples_only_add() -> None:
    config = layout(examples=3, pairs=4, length=32)
    found = build(config, 2, vocabulary=VOCABULARY, fill=0)
    assert hashlib.sha256(found.inputs.astype("<i4").tobytes()).hexdigest()[:16] == "357b867d20e7fe56"
    more = build(layout(examples=ROWS + 5, pairs=4, length=32), 2, vocabulary=VOCABULARY, fill=0)
    assert np.array_equal(more.inputs[:3], found.inputs)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "expected either a fill token or a text"),
        ({"fill": 0, "text": TEXT}, "expected either a fill token or a text"),
        ({"text": TEXT[:50]}, "the text has 50 tokens; expected at least 64"),
        ({"fill": 0, "vocabulary": np.arange(8)}, "7 tokens of the vocabulary .* 4 pairs need 8"),
    ],
)
def test_what_does_not_fit_is_refused(options: dict[str, Any], said: str) -> None:
    config = layout(examples=1, pairs=4, length=64)
    with pytest.raises(ArgapError, match=said):
        build(config, 0, **{"vocabulary": VOCABULARY, **options})
    with pytest.raises(ArgapError, match="need 1028 tokens, the length is 1024"):
        layout(examples=1, pairs=257)
