"""Linear attention against a loop over pairs, written from the papers, in float64."""

import math

import pytest
import torch

from argap.kernels.recurrent.recurrence import chunked_recurrence
from argap.models.mixers.feature_maps import Performer
from argap.models.mixers.linear_attention import LinearAttention, Normalization
from tests.builders.weights import redraw

WIDTH, HEADS, LENGTH, LONGEST = 8, 2, 13, 20


def kernel(name: str, mixer: LinearAttention, q: torch.Tensor, k: torch.Tensor, i: int, j: int) -> float:
    """The weight of position j at position i, by its formula, not by features where there is one."""
    size = len(q)
    dot = float(q @ k)
    if name == "identity":
        return dot
    if name == "elu":
        plus = [[a + 1 if a > 0 else math.exp(a) for a in x.tolist()] for x in (q, k)]
        return sum(a * b for a, b in zip(*plus, strict=True))
    if name in ("relu", "cosformer"):
        dot = sum(max(a, 0) * max(b, 0) for a, b in zip(q.tolist(), k.tolist(), strict=True))
        return dot * (math.cos(math.pi / 2 * (i - j) / LONGEST) if name == "cosformer" else 1)
    if name == "taylor":
        s = dot / math.sqrt(size)
        return 1 + s + s**2 / 2
    omega = mixer.features.get_buffer("omega")  # Performer: the mean over its rows of both exponentials
    total = 0.0
    for row in omega:
        a, b = q / size**0.25, k / size**0.25
        total += math.exp(row @ a - a @ a / 2) * math.exp(row @ b - b @ b / 2)
    return total / len(omega)


@pytest.mark.parametrize(
    ("name", "normalization"),
    [
        ("identity", "rms"),
        ("elu", "sum"),
        ("elu", "rms"),
        ("relu", "sum"),
        ("cosformer", "sum"),
        ("taylor", "sum"),
        ("taylor", "rms"),
        ("performer", "sum"),
    ],
)
@torch.no_grad()
def test_linear_attention_is_the_papers_sum(name: str, normalization: Normalization) -> None:
    torch.manual_seed(1)
    size = 3
    mixer = LinearAttention(
        WIDTH,
        LONGEST,
        heads=HEADS,
        feature_map=name,
        feature_dim=size,
        random_features=7,
        normalization=normalization,
        chunk_size=4,
    ).double()
    for tensor in (*mixer.parameters(), *mixer.buffers()):
        torch.nn.init.normal_(tensor, std=0.5)
    x = torch.randn(LENGTH, WIDTH, dtype=torch.float64)
    q_all, k_all = (x @ weight.T for weight in mixer.qk.weight.chunk(2))
    v_all = x @ mixer.v.weight.T
    expected = torch.zeros(LENGTH, WIDTH, dtype=torch.float64)
    for i in range(LENGTH):
        for h in range(HEADS):
            keys, values = slice(h * size, (h + 1) * size), slice(h * 4, (h + 1) * 4)
            weights = [kernel(name, mixer, q_all[i, keys], k_all[j, keys], i, j) for j in range(i + 1)]
            y = torch.stack([w * v_all[j, values] for j, w in enumerate(weights)]).sum(dim=0)
            if mixer.norm is None:
                expected[i, values] = y / max(sum(weights), 1e-6)
            else:
                expected[i, values] = y / (y.square().mean() + 1e-5).sqrt() * mixer.norm.weight
    torch.testing.assert_close(mixer(x[None])[0], expected @ mixer.out.weight.T, rtol=0, atol=1e-11)


@torch.no_grad()
def test_performer_estimates_the_exponential() -> None:
    """Without bias: the mean over many draws comes near. The rows of a block are orthogonal, and as long as
    normal vectors are: of mean square K."""
    torch.manual_seed(2)
    size = 4
    made = Performer(size, None, 4 * 5000 + 2).double()
    made.initialize(0.02, 0.02)
    products = made.omega[:size] @ made.omega[:size].T
    assert (products - products.diag().diag()).abs().max() < 1e-5
    assert made.omega.square().sum(dim=-1).mean() == pytest.approx(size, rel=0.03)
    q, k = (0.5 * torch.randn(size, dtype=torch.float64) for _ in range(2))
    at = torch.zeros(1)
    # A query's features are divided by their largest, which the ratio of two kernels cancels.
    over_k, over_zero = (
        float(made(q[None], at, query=True) @ made(key[None], at, query=False).T) for key in (k, torch.zeros_like(k))
    )
    assert over_k / over_zero == pytest.approx(math.exp(float(q @ k) / math.sqrt(size)), rel=0.03)


@torch.no_grad()
def test_far_keys_and_large_queries_stay_finite() -> None:
    mixer = LinearAttention(WIDTH, heads=1, feature_map="performer", random_features=32)
    redraw(mixer, 3)
    torch.manual_seed(3)
    mixer.features.initialize(0.02, 0.02)  # pyright: ignore[reportCallIssue]
    assert torch.isfinite(mixer(10 * torch.randn(1, 30, WIDTH))).all()


@pytest.mark.parametrize("decays", [0, 1, 3])
def test_the_state_carries_over_a_split_sequence(decays: int) -> None:
    torch.manual_seed(4)
    q, k, v = (torch.randn(2, 2, 50, size, dtype=torch.float64) for size in (3, 3, 5))
    # Down to e^−500 for a position: a quotient of decays would overflow.
    log_decay = -500 * torch.rand(2, 2, 50, decays, dtype=torch.float64) ** 8 if decays else None
    whole, last = chunked_recurrence(q, k, v, 16, log_decay)
    first, middle = chunked_recurrence(
        q[:, :, :21], k[:, :, :21], v[:, :, :21], 16, None if log_decay is None else log_decay[:, :, :21]
    )
    second, end = chunked_recurrence(
        q[:, :, 21:], k[:, :, 21:], v[:, :, 21:], 8, None if log_decay is None else log_decay[:, :, 21:], middle
    )
    torch.testing.assert_close(torch.cat([first, second], dim=2), whole, rtol=0, atol=1e-12)
    torch.testing.assert_close(end, last, rtol=0, atol=1e-12)
    # And the loop of the recurrence itself.
    state = torch.zeros(2, 2, 3, 5, dtype=torch.float64)
    for t in range(50):
        if log_decay is not None:
            state = state * log_decay[:, :, t].exp()[..., None]
        state = state + torch.einsum("bhk,bhv->bhkv", k[:, :, t], v[:, :, t])
        torch.testing.assert_close(torch.einsum("bhk,bhkv->bhv", q[:, :, t], state), whole[:, :, t], rtol=0, atol=1e-12)
