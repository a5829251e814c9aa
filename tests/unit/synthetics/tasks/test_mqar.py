"""Multi-query associative recall: its law, its labels, and the bytes that a seed fixes."""

import hashlib
from itertools import islice, permutations

import numpy as np
import pytest

from argap.errors import ArgapError
from argap.synthetics.tasks.examples import IGNORED
from argap.synthetics.tasks.mqar import (
    ROWS,
    MqarConfig,
    build,
    draw_slots,
    draw_without_replacement,
    slot_probabilities,
)


def chi_square(observed: np.ndarray, expected: np.ndarray) -> float:
    """In standard deviations above its mean; cells that expect fewer than 5 are put together."""
    few = expected < 5
    observed = np.append(observed[~few], observed[few].sum())
    expected = np.append(expected[~few], expected[few].sum())
    used = expected > 0
    freedom = used.sum() - 1
    statistic = ((observed - expected)[used] ** 2 / expected[used]).sum()
    return float((statistic - freedom) / np.sqrt(2 * freedom))


def slots(config: MqarConfig, batches: int) -> np.ndarray:
    rng = np.random.default_rng(3)
    return np.concatenate([draw_slots(rng, config) for _ in range(batches)])


@pytest.mark.parametrize("alpha", [0.1, 1.0])
def test_the_first_draw_follows_the_power_law_of_distances(alpha: float) -> None:
    config = MqarConfig(examples=20 * ROWS, length=256, pairs=16, alpha=alpha)
    found = build(config, seed=1)
    # The first key stands at 0; its label follows the query, so d is the label's position less 1.
    first = found.labels == found.inputs[:, 1:2]
    distances = np.nonzero(first)[1] - 1
    assert len(distances) == config.examples
    assert (found.slices["distance"][first] == distances).all()
    allowed = np.arange(32, 256, 2, dtype=np.float64)  # behind the pairs, in steps of a slot
    law = allowed ** (alpha - 1) / (allowed ** (alpha - 1)).sum()
    observed = np.array([(distances == d).sum() for d in allowed])
    assert observed.sum() == len(distances)
    assert abs(chi_square(observed, law * len(distances))) < 4


@pytest.mark.parametrize(("length", "pairs"), [(16, 3), (16, 4)])  # 5 slots for 3 pairs; no slot left over
def test_all_draws_together_are_sequential_without_replacement(length: int, pairs: int) -> None:
    config = MqarConfig(examples=1, length=length, pairs=pairs)
    places = (length - 2 * pairs) // 2
    orders = list(permutations(range(places), pairs))
    chance = []
    for order in orders:
        p, left = 1.0, set(range(places))
        for pair, slot in enumerate(order):
            # d = 2·(pairs + slot − pair), among the slots that are left
            weights = {s: (2.0 * (pairs + s - pair)) ** (config.alpha - 1) for s in left}
            p *= weights[slot] / sum(weights.values())
            left.remove(slot)
        chance.append(p)
    assert sum(chance) == pytest.approx(1)
    drawn = slots(config, batches=20)
    number = {order: k for k, order in enumerate(orders)}
    observed = np.bincount([number[tuple(row)] for row in drawn.tolist()], minlength=len(orders))
    assert abs(chi_square(observed, np.array(chance) * len(drawn))) < 4


def test_later_draws_are_those_of_a_plain_sampler() -> None:
    config = MqarConfig(examples=1, length=64, pairs=8)
    rng = np.random.default_rng(5)
    count = 4000
    plain = np.zeros((count, config.pairs), dtype=int)
    for row in plain:
        free = np.ones(24, dtype=bool)
        for pair in range(config.pairs):
            weights = slot_probabilities(config, pair) * free
            row[pair] = rng.choice(24, p=weights / weights.sum())
            free[row[pair]] = False
    ours = slots(config, batches=10)
    for pair in range(1, config.pairs):
        one, other = (np.bincount(drawn[:, pair], minlength=24) for drawn in (plain, ours))
        # Two samples against their common frequencies: 24 cells each, 23 degrees of freedom.
        total = (one + other) / (len(plain) + len(ours))
        statistic = sum(
            ((sample - total * len(drawn)) ** 2 / (total * len(drawn))).sum()
            for sample, drawn in ((one, plain), (other, ours))
        )
        assert statistic < 23 + 4.5 * np.sqrt(46), pair


def test_tokens_are_drawn_without_replacement_and_all_orders_alike() -> None:
    drawn = draw_without_replacement(np.random.default_rng(0), np.array([3, 5, 7, 9]), 3)
    rows = np.concatenate(list(islice(drawn, 24)))
    number = {order: k for k, order in enumerate(permutations([3, 5, 7, 9], 3))}
    observed = np.bincount([number[tuple(row)] for row in rows.tolist()])
    assert abs(chi_square(observed, np.full(24, len(rows) / 24))) < 4


@pytest.mark.parametrize(
    "config",
    [
        MqarConfig(examples=300, length=64, pairs=4),
        MqarConfig(examples=300, length=65, pairs=8, vocab_size=40),
        MqarConfig(examples=300, length=64, pairs=16, vocab_size=33, alpha=1.0),  # no noise, and every key
        MqarConfig(examples=300, length=64, pairs=16, vocab_size=32),
        MqarConfig(examples=300, length=64, pairs=8, vocab_size=34, fill=0),
        MqarConfig(examples=1100, length=20, pairs=2, vocab_size=8),  # a cut in the second thousand
    ],
    ids=["plain", "odd length", "full", "every token", "fill", "small"],
)
def test_labels_by_a_naive_scan_and_an_oracle(config: MqarConfig) -> None:
    found = build(config, seed=2)
    predicted = np.full_like(found.labels, IGNORED)
    for row, (tokens, labels) in enumerate(zip(found.inputs.tolist(), found.labels.tolist(), strict=True)):
        answer = {tokens[k]: tokens[k + 1] for k in range(0, 2 * config.pairs, 2)}
        assert len(answer) == len(set(answer.values())) == config.pairs
        assert set(answer) <= set(range(config.vocab_size // 2))
        assert set(answer.values()) <= set(range(config.vocab_size // 2, config.vocab_size))
        distances, queried, rest = {}, [], []
        for t in range(2 * config.pairs, config.length):
            if tokens[t - 1] in answer and t > 2 * config.pairs:
                distances[t] = t - 1 - tokens.index(tokens[t - 1])
                queried.append(tokens[t - 1])
                predicted[row, t] = answer[tokens[t - 1]]
                assert labels[t] == tokens[t] == answer[tokens[t - 1]]
            else:
                assert labels[t] == IGNORED
                if tokens[t] not in answer:
                    rest.append(tokens[t])
        assert labels[: 2 * config.pairs] == [IGNORED] * (2 * config.pairs)
        assert sorted(queried) == sorted(answer)  # each key once
        assert not set(rest) & set(answer.values())
        assert config.fill is None or set(rest) <= {config.fill}
        assert np.nonzero(found.slices["distance"][row])[0].tolist() == list(distances)
        assert found.slices["distance"][row, list(distances)].tolist() == list(distances.values())
    assert (predicted == found.labels)[found.labels != IGNORED].all()


def test_noise_is_uniform_over_what_is_left() -> None:
    config = MqarConfig(examples=2000, length=40, pairs=2, vocab_size=12)
    found = build(config, seed=4)
    rest = np.ones_like(found.inputs, dtype=bool)
    rest[:, :4] = False
    at = found.labels != IGNORED
    rest &= ~at
    rest[:, :-1] &= ~at[:, 1:]
    noise = np.bincount(found.inputs[rest], minlength=12)
    # Each token is noise in 8 of 12 examples alike: key and value halves have six each, two taken of each.
    assert noise.sum() == 2000 * 32
    # The same tokens are excluded for a whole example, so counts vary more than independent draws do.
    assert abs(noise / noise.sum() - 1 / 12).max() < 0.004


def test_the_public_codes_layout() -> None:
    config = MqarConfig(examples=20 * ROWS, length=64, pairs=4, vocab_size=32, layout="zoology")
    found = build(config, seed=7)
    at = found.labels != IGNORED
    assert (at.sum(axis=1) == 4).all()
    assert not (found.inputs[:, :8:2] == 0).any()
    row, place = np.nonzero(at)
    for r, t in zip(row[:400], place[:400], strict=True):
        header = found.inputs[r, :8].tolist()
        assert header[header.index(found.inputs[r, t - 1]) + 1] == found.labels[r, t]
    assert (found.inputs[at] == found.labels[at]).mean() < 0.1  # noise stands there
    rest = ~at & (np.arange(64) >= 8)
    rest[:, :-1] &= ~at[:, 1:]
    keys = (found.inputs[:, None, :] == found.inputs[:, :8:2, None]).any(axis=1)
    assert abs((keys & rest).sum() / rest.sum() - 4 / 32) < 0.005  # keys without a label
    # The first pair's slot: counted from the end of the pairs, 28 of them.
    first = np.nonzero(found.labels == found.inputs[:, 1:2])[1]
    law = np.arange(1, 29) ** -0.9
    observed = np.bincount((first - 1 - 8) // 2, minlength=28)
    assert abs(chi_square(observed, law / law.sum() * len(first))) < 4


def test_a_seed_fixes_the_bytes() -> None:
    def digest(config: MqarConfig, seed: int) -> str:
        found = build(config, seed)
        parts = (found.inputs, found.labels, found.slices["distance"])
        return hashlib.sha256(b"".join(x.astype("<i4").tobytes() for x in parts)).hexdigest()[:16]

    golden = {
        (64, 4, None, 0): "61ef5241df69551e",
        (64, 4, None, 1): "9660e3e8a34ae4bd",
        (512, 32, None, 0): "a0a51b4bbf0b1500",
        (128, 32, 0, 0): "401725a6a1b8457c",
    }
    sizes = [dict(zip(("length", "pairs", "fill"), key[:3], strict=True)) for key in golden]
    seeds = [key[3] for key in golden]
    found = [digest(MqarConfig(examples=1500, **size), seed) for size, seed in zip(sizes, seeds, strict=True)]
    assert found == list(golden.values())
    assert digest(MqarConfig(examples=1500, length=64, pairs=4, layout="zoology"), 0) == "0dcf0b99b714b154"


def test_fewer_examples_are_the_first_of_more() -> None:
    more, fewer = (build(MqarConfig(examples=n, length=32, pairs=2), seed=6) for n in (1300, 1100))
    assert np.array_equal(more.inputs[:1100], fewer.inputs)
    assert np.array_equal(more.labels[:1100], fewer.labels)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"length": 15}, "need 16 tokens, the length is 15"),
        (
            {"examples": 10**9, "length": 18},
            "1,000,000,000 examples of length 18 are 18,000,000,000 tokens; expected at most 17,179,869,184",
        ),
        ({"pairs": 0}, "pairs: expected 1 to 1,000,000,000, found 0"),
        ({"alpha": 0.0}, r"alpha: expected above 0, at most 1e\+30, found 0.0"),
        ({"vocab_size": 6}, "a vocabulary of 6 tokens is too small for 4 keys"),
        ({"vocab_size": 8, "length": 17}, "a vocabulary of 8 tokens is too small for 4 keys"),
        ({"vocab_size": 8, "fill": 1}, "a vocabulary of 8 tokens is too small for 4 keys"),
        ({"fill": 64}, "fill 64; expected a token from 0 to 63"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(options: dict, said: str) -> None:
    with pytest.raises(ArgapError, match=said):
        MqarConfig(**{"examples": 1, "length": 16, "pairs": 4, "vocab_size": 64, **options})
