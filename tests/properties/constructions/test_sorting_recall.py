"""BaseConv layers of logarithmic width answer every query by sorting (theorem 4.4)."""

import pytest
import torch

from argap.errors import ArgapError
from argap.models.mixers.base_conv import BaseConv
from argap.synthetics.tasks.mqar import MqarConfig, build
from tests.properties.constructions.by_hand import base_conv_by_hand
from tests.properties.constructions.sorting_recall import NOT_FOUND, SortingRecall, sorting_recall


def followers(tokens: list[int]) -> list[int]:
    """What followed the last earlier occurrence of each token: the definition."""
    latest: dict[int, int] = {}
    found = []
    for position, token in enumerate(tokens):
        found.append(tokens[latest[token] + 1] if token in latest else NOT_FOUND)
        latest[token] = position
    return found


def sizes(made: SortingRecall) -> tuple[int, int, int]:
    """Width, number of layers and parameters."""
    width = made.layers[0].get_parameter("projection.weight").shape[0]
    return width, len(made.layers), sum(p.numel() for p in made.layers.parameters())


def test_by_hand() -> None:
    #                       a  b  c  a  b  b  a  c: b after a, c after b, b after b, b after the second a, a after c
    tokens = torch.tensor([[0, 1, 2, 0, 1, 1, 0, 2]])
    assert sorting_recall(3, 8)(tokens).tolist() == [[-1, -1, -1, 1, 2, 1, 1, 0]]


@pytest.mark.parametrize(("vocab", "length", "used"), [(4, 4, 4), (6, 7, 8), (16, 16, 16), (60, 16, 9)])
def test_answers_are_the_definitions(vocab: int, length: int, used: int) -> None:
    tokens = torch.randint(used, (32, length), generator=torch.Generator().manual_seed(0))
    expected = [followers(row) for row in tokens.tolist()]
    assert any(NOT_FOUND in row for row in expected)
    assert sorting_recall(vocab, length)(tokens).tolist() == expected


@pytest.mark.parametrize("fill", [None, 5])
def test_every_query_is_answered(fill: int | None) -> None:
    examples = build(MqarConfig(examples=4, length=32, pairs=4, vocab_size=48, fill=fill), seed=0)
    answers = sorting_recall(48, 32)(torch.from_numpy(examples.inputs).long())[:, :-1]
    labels = torch.from_numpy(examples.labels).long()[:, 1:]
    assert (labels >= 0).sum() == 16
    assert answers[labels >= 0].tolist() == labels[labels >= 0].tolist()


def test_bits_stay_exact() -> None:
    made = sorting_recall(8, 16)
    x = torch.zeros(1, made.positions, sizes(made)[0], dtype=torch.float64)
    x[0, :16, :3] = torch.randint(2, (16, 3), generator=torch.Generator().manual_seed(0)).double()
    assert set(made.layers(x).unique().tolist()) == {0.0, 1.0}
    assert {float(value) for p in made.layers.parameters() for value in p.unique()} == {-1.0, 0.0, 1.0, 2.0}


def test_size_grows_with_the_length_times_logarithms() -> None:
    made = {n: sorting_recall(64, n) for n in (4, 8, 16)}
    assert [sizes(each)[0] for each in made.values()] == [61, 66, 71]  # 8·6 + 5·p + 3
    assert base_conv_by_hand(64, 16).config.hidden_size == 202
    for n, each in made.items():
        p = n.bit_length() - 1
        width, layers, parameters = sizes(each)
        # Three layers read; an exchange has 8, and 2 for each halving of a key of 6 + p and of p bits; the look back
        # has 7, and 2 for each halving of 6 bits.
        exchanges = p * (p + 1) // 2
        halvings = {2: 3 + 1, 3: 4 + 2, 4: 4 + 2}[p]
        assert layers == 3 + exchanges * 2 * (8 + halvings) + 7 + 2 * 3
        assert each.positions == n + each.delay == n + 1 + 2 * (2 * n - 2 - p)
        assert parameters <= layers * width * (width + 2 * 5 * n + n + 1)  # W², two biases of 5·N and a filter


def test_fixed_filters_alone() -> None:
    assert {type(layer) for layer in sorting_recall(4, 4).layers} == {BaseConv}


def test_tokens_that_do_not_fit_are_refused() -> None:
    made = sorting_recall(8, 8)
    with pytest.raises(ArgapError, match=r"`tokens` \(1, 9\) up to 0; expected at most 8 of them, from 0 to 7"):
        made(torch.zeros(1, 9, dtype=torch.int64))
    with pytest.raises(ArgapError, match=r"`tokens` \(1, 1\) up to 8; expected"):
        made(torch.tensor([[8]]))
