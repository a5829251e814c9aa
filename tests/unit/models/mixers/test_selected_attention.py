"""Attention at selected positions: the selections by hand and against loops, the equation, the future unseen."""

import math
from itertools import pairwise

import pytest
import torch

from argap.errors import ArgapError
from argap.models import ArgapConfig, ArgapForCausalLM
from argap.models.mixers.attention import Attention
from argap.models.mixers.selected_attention import (
    BLOCK,
    SelectedAttention,
    among_highest,
    random_as_many,
    repeated_bigrams,
    repeated_tokens,
)
from argap.models.registry import build_mixer
from tests.builders.weights import redraw

WIDTH = 16


def tokens(length: int, vocabulary: int = 12, batch: int = 3) -> torch.Tensor:
    return torch.randint(vocabulary, (batch, length), generator=torch.Generator().manual_seed(length))


def mixer(**options: object) -> SelectedAttention:
    torch.manual_seed(0)
    made = SelectedAttention(WIDTH, heads=2, **options).double().eval()  # pyright: ignore[reportArgumentType]
    redraw(made, 0.35)
    return made


def inputs(length: int) -> torch.Tensor:
    return torch.randn(3, length, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(length))


def test_repeats_by_hand() -> None:
    #                     a  b  a  b  a  a  a  c  b  a
    ids = torch.tensor([[5, 7, 5, 7, 5, 5, 5, 0, 7, 5]])
    assert repeated_tokens(ids)[0].int().tolist() == [0, 0, 1, 1, 1, 1, 1, 0, 1, 1]
    # ab at 3; ba at 4 and 9; aa at 6, whose first, at 5, overlaps it; the pair of position 0 is none.
    assert repeated_bigrams(ids)[0].int().tolist() == [0, 0, 0, 1, 1, 0, 1, 0, 0, 1]


@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 300])
def test_selections_are_as_a_loop_has_them_and_see_the_past_alone(length: int) -> None:
    ids = tokens(length, vocabulary=40) + 50_000  # ids that int32 could not hash
    by_token, by_bigram = repeated_tokens(ids), repeated_bigrams(ids)
    for row, of_tokens, of_bigrams in zip(ids.tolist(), by_token.tolist(), by_bigram.tolist(), strict=True):
        pairs = list(pairwise(row))
        assert of_tokens == [row[i] in row[:i] for i in range(length)]
        assert of_bigrams == [i > 0 and pairs[i - 1] in pairs[: i - 1] for i in range(length)]
    drawn = random_as_many(ids, by_token)
    assert torch.equal(repeated_bigrams(ids.int()), by_bigram)
    assert torch.equal(random_as_many(ids.int(), by_token), drawn)
    for prefix in {1, length // 3 + 1, length // 2 + 1, length}:
        part = ids[:, :prefix]
        assert torch.equal(repeated_tokens(part), by_token[:, :prefix])
        assert torch.equal(repeated_bigrams(part), by_bigram[:, :prefix])
        assert torch.equal(random_as_many(part, repeated_tokens(part)), drawn[:, :prefix])


def test_a_learned_selection_keeps_an_eighth_of_the_window() -> None:
    for positions, kept in ((2048, 256), (1024, 128), (5, 1), (None, 256)):
        assert SelectedAttention(WIDTH, positions, heads=2, select="learned").k == kept
    assert SelectedAttention(WIDTH, 2048, heads=2, select="learned", k=9).k == 9


def test_as_many_are_drawn_as_are_chosen_one_block_later() -> None:
    ids = tokens(40 * BLOCK, vocabulary=500)
    chosen = repeated_tokens(ids)
    drawn = random_as_many(ids, chosen)
    counts = chosen.unflatten(1, (-1, BLOCK)).sum(dim=2)
    assert torch.equal(drawn.unflatten(1, (-1, BLOCK)).sum(dim=2)[:, 1:], counts[:, :-1])
    assert not drawn[:, :BLOCK].any()
    assert (drawn.sum(dim=1) == chosen.sum(dim=1) - counts[:, -1]).all()
    assert torch.equal(drawn, random_as_many(ids, chosen))
    assert torch.equal(drawn[1:2], random_as_many(ids[1:2], chosen[1:2]))  # whatever else is in the batch


def test_every_place_of_a_block_is_drawn_alike() -> None:
    """Of 4,000 blocks that draw 4 of 16 each, every place gets 1,000 ± 4 σ, σ² = 4000·¼·¾; and two places
    together 4000·4·3/(16·15) = 200 ± 4 σ."""
    ids = tokens(9 * BLOCK, vocabulary=50_000, batch=500)
    chosen = (torch.arange(ids.shape[1]) % 4 == 0).expand_as(ids)
    drawn = random_as_many(ids, chosen)[:, BLOCK:].unflatten(1, (-1, BLOCK)).flatten(0, 1).double()
    together = drawn.T @ drawn
    assert (together.diagonal() - 1000).abs().max() < 4 * math.sqrt(750)
    apart = together[~torch.eye(BLOCK, dtype=torch.bool)]
    assert (apart - 200).abs().max() < 4 * math.sqrt(200)


def test_the_highest_so_far_by_hand() -> None:
    scores = torch.tensor([[0.5, 0.3, 0.4, 0.4, 0.9, 0.5, 0.6]])
    # The two highest before: -, -, (.5 .3), (.5 .4): a tie, the earlier stays; (.5 .4); (.9 .5): a tie; the same.
    assert among_highest(scores, 2)[0].int().tolist() == [1, 1, 1, 0, 1, 0, 1]
    assert among_highest(scores, 7).all()


@pytest.mark.parametrize("select", ["programmatic", "random", "learned", "full"])
@torch.no_grad()
def test_equation_2_is_as_a_loop_has_it(select: str) -> None:
    length, k = 70, 9
    made = mixer(select=select, k=k, positions="none")
    x, ids = inputs(length), tokens(length)
    y = made(x, ids)
    q, k_, v = (part.unflatten(-1, (2, -1)) for part in made.attention.qkv(x).chunk(3, dim=-1))
    drawn = random_as_many(ids, repeated_tokens(ids))
    selected = 0
    for b in range(len(x)):
        scores = [1 / (1 + math.exp(-float(made.score.weight[0] @ u))) for u in x[b]] if made.score else []
        for i in range(length):
            chosen = {
                "programmatic": int(ids[b, i]) in ids[b, :i].tolist(),
                "random": bool(drawn[b, i]),
                "learned": bool(scores) and scores[i] in sorted(scores[: i + 1], reverse=True)[:k],
                "full": True,
            }[select]
            if not chosen:
                assert not y[b, i].any()
                continue
            selected += 1
            heads = []
            for h in range(2):
                weights = torch.stack([torch.exp(q[b, i, h] @ k_[b, j, h] / math.sqrt(8)) for j in range(i + 1)])
                heads.append(sum(w * v[b, j, h] for j, w in enumerate(weights)) / weights.sum())
            expected = made.attention.out(torch.cat(heads))
            torch.testing.assert_close(y[b, i], expected, rtol=0, atol=1e-12)
    assert selected == 3 * length if select == "full" else 3 * k < selected < 3 * length


@pytest.mark.parametrize("select", ["programmatic", "random", "learned", "full"])
@pytest.mark.parametrize("length", [1, 15, 16, 40])
@torch.no_grad()
def test_a_prompt_leaves_the_state_of_stepping(select: str, length: int) -> None:
    made, x, ids = mixer(select=select, k=9), inputs(60), tokens(60)
    y, state = made.prefill(x[:, :length], ids[:, :length])
    whole = made(x, ids)
    torch.testing.assert_close(y, whole[:, :length], rtol=0, atol=1e-12)
    for t in range(length, 60):
        stepped, state = made.step(x[:, t], state, ids[:, t])
        torch.testing.assert_close(stepped, whole[:, t], rtol=0, atol=1e-12)
    stepwise = made.init_state(3, x.dtype, x.device)
    for t in range(60):
        _, stepwise = made.step(x[:, t], stepwise, ids[:, t])
    torch.testing.assert_close(state[1], stepwise[1], rtol=0, atol=1e-12)


@torch.no_grad()
def test_full_selection_is_attention() -> None:
    made = mixer(select="full")
    plain = Attention(WIDTH, heads=2).double()
    plain.load_state_dict(made.attention.state_dict())
    assert torch.equal(made(inputs(70), tokens(70)), plain(inputs(70)))
    assert made.state_size(70) == plain.state_size(70)


@pytest.mark.parametrize("select", ["programmatic", "random"])
@pytest.mark.parametrize("by", ["token", "bigram"])
@torch.no_grad()
def test_a_changed_token_changes_nothing_before_it(select: str, by: str) -> None:
    made, x, ids = mixer(select=select, by=by), inputs(70), tokens(70, vocabulary=4)
    y = made(x, ids)
    assert y.abs().sum() > 0
    for t in (0, 15, 16, 35, 69):
        for token in range(4):
            changed = ids.clone()
            changed[:, t] = token
            assert torch.equal(made(x, changed)[:, :t], y[:, :t])


@torch.no_grad()
def test_a_later_higher_score_unselects_no_earlier_position_in_training_too() -> None:
    made, x = mixer(select="learned", k=3).train(), inputs(40)
    torch.manual_seed(1)
    y = made(x, tokens(40))
    assert made.score is not None
    x[:, 30:] += 100 * made.score.weight[0]  # the highest scores by far
    torch.manual_seed(1)
    again = made(x, tokens(40))
    assert torch.equal(again[:, :30], y[:, :30])
    assert again[:, 30].any(dim=-1).all()


@torch.no_grad()
def test_noise_selects_others_in_training_alone() -> None:
    made, x, ids = mixer(select="learned", k=3, noise=0.3), inputs(60), tokens(60)

    def selected() -> torch.Tensor:
        return made(x, ids).any(dim=-1)

    still = selected()
    assert torch.equal(selected(), still)
    made.train()
    assert not torch.equal(selected(), still)
    made.noise = 0.0
    assert torch.equal(selected(), still)


def test_the_auxiliary_loss_by_hand() -> None:
    made = mixer(select="learned", k=3)
    assert made.score is not None
    torch.nn.init.zeros_(made.score.weight)
    x = inputs(10)
    # All scores ½: 10 of them sum to 5, 2 more than k = 3, a fifth a position.
    loss = made.auxiliary_loss(x)
    assert loss is not None
    assert loss.item() == pytest.approx(0.2)
    made.k = 8  # more than they sum to
    assert made.auxiliary_loss(x) == 0
    assert mixer(select="programmatic").auxiliary_loss(x) is None


def test_the_score_learns_from_what_is_selected() -> None:
    """Straight through: ∂/∂W of Σ y is that of Σ s_i·a_i over selected i, a_i what attention puts out there."""
    made, x, ids = mixer(select="learned", k=4), inputs(20), tokens(20)
    assert made.score is not None
    made(x, ids).sum().backward()
    found = made.score.weight.grad
    made.score.weight.grad = None
    scores = torch.sigmoid(x @ made.score.weight[0])
    attended = made.attention(x).detach().sum(dim=-1)
    (scores * attended * among_highest(scores, 4)).sum().backward()
    torch.testing.assert_close(found, made.score.weight.grad, rtol=1e-12, atol=1e-12)


def test_the_model_collects_auxiliary_losses_in_training() -> None:
    torch.manual_seed(0)
    learned = {"name": "selected_attention", "select": "learned", "k": 2}
    config = ArgapConfig(vocab_size=32, hidden_size=WIDTH, num_hidden_layers=3, mixers=[learned, "attention", learned])
    model = ArgapForCausalLM(config).train()
    ids = tokens(20, vocabulary=32)
    found = model(ids, labels=ids)
    blocks = model.model.blocks
    x = model.model.embed_tokens(ids)
    losses = []
    torch.manual_seed(1)
    for block in blocks:
        losses.append(block.mixer.auxiliary_loss(block.mixer_norm(x)))
        x = block(x, ids)
    assert losses[1] is None
    first = losses[0].item()
    assert first == pytest.approx((20 * 0.5 - 2) / 20, rel=0.1)  # scores start near ½
    assert found.auxiliary_loss.item() == pytest.approx(first + losses[2].item(), rel=0.05)  # noise apart
    assert model.eval()(ids).auxiliary_loss is None
    plain = ArgapConfig(vocab_size=32, hidden_size=WIDTH, num_hidden_layers=1, mixers=["attention"])
    assert ArgapForCausalLM(plain).train()(ids).auxiliary_loss is None


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"select": "some"}, "select 'some'; expected programmatic or random or learned or full"),
        ({"by": "word"}, "by 'word'; expected token or bigram"),
        ({"k": 0}, "k 0; expected at least 1"),
        ({"noise": -1.0}, "noise -1.0; expected at least 0"),
    ],
)
def test_a_value_that_is_no_option_is_refused(options: dict, said: str) -> None:
    with pytest.raises(ArgapError, match=said):
        build_mixer({"name": "selected_attention", **options}, WIDTH, None)
