"""argap's operators against the plain ones of flash-linear-attention, on the CPU in float32, state in and out.

Theirs scale queries by 1/√K themselves; ours take them as they are. Theirs lay heads inside positions,
``[B, T, H, K]``, but for retention and the delta rule.
"""

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from argap.kernels.recurrent.delta_rule import delta_rule
from argap.kernels.recurrent.gla import gla
from argap.kernels.recurrent.linear_attention import linear_attention

BATCH, HEADS, KEY, VALUE = 2, 3, 8, 6
LENGTHS = [1, 63, 64, 65, 200]


@pytest.fixture(params=LENGTHS)
def drawn(request) -> dict[str, Any]:
    """q, k ``[B, H, T, K]``, v ``[B, H, T, V]``, β, log-decays, and a state to begin with."""
    generator = torch.Generator().manual_seed(request.param)

    def normal(*sizes: int) -> torch.Tensor:
        return torch.randn(BATCH, HEADS, *sizes, generator=generator)

    length = request.param
    return {
        "q": normal(length, KEY),
        "k": normal(length, KEY),
        "v": normal(length, VALUE),
        "beta": normal(length).sigmoid(),
        "decay": F.logsigmoid(normal(length, KEY)),
        "state": normal(KEY, VALUE),
    }


def assert_close(found: torch.Tensor | None, expected: torch.Tensor | None) -> None:
    assert found is not None
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def inside(tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
    return {name: x.transpose(1, 2) for name, x in tensors.items()}


def test_gla_is_their_recurrence(drawn, fla_models) -> None:
    from fla.ops.gla.naive import naive_recurrent_gla

    q, k, v, decay, state = (drawn[name] for name in ("q", "k", "v", "decay", "state"))
    given = {"q": q, "k": k, "v": v, "gk": decay}
    y, after = naive_recurrent_gla(**inside(given), initial_state=state, output_final_state=True)
    found, kept = gla(q * KEY**-0.5, k, v, decay, state=state)
    assert_close(found.transpose(1, 2), y)
    assert_close(kept, after)


def test_the_delta_rule_is_their_recurrence(drawn, fla_models) -> None:
    from fla.ops.delta_rule.naive import delta_rule_recurrence

    q, k, v, beta, state = (drawn[name] for name in ("q", "k", "v", "beta", "state"))
    unit = F.normalize(k, dim=-1)
    y, after = delta_rule_recurrence(q, unit, v, beta, initial_state=state)
    found, kept = delta_rule(q * KEY**-0.5, unit, v, beta, state=state)
    assert_close(found, y)
    assert_close(kept, after)


def test_linear_attention_with_a_heads_decay_is_their_retention(drawn, fla_models) -> None:
    from fla.ops.retention.naive import naive_retention

    q, k, v = (drawn[name] for name in ("q", "k", "v"))
    rates = torch.log1p(-(2.0 ** (-5 - torch.arange(HEADS))))
    found, _ = linear_attention(q * KEY**-0.5, k, v, log_decay=rates)
    assert_close(found, naive_retention(q, k, v))


def test_linear_attention_is_their_recurrence(drawn, fla_models) -> None:
    from fla.ops.linear_attn.naive import naive_recurrent_linear_attn

    q, k, v, state = (drawn[name] for name in ("q", "k", "v", "state"))
    y, after = naive_recurrent_linear_attn(
        **inside({"q": q, "k": k, "v": v}), initial_state=state, output_final_state=True
    )
    found, kept = linear_attention(q * KEY**-0.5, k, v, state=state)
    assert_close(found.transpose(1, 2), y)
    assert_close(kept, after)


def test_normalised_linear_attention_is_their_recurrence(drawn, fla_models) -> None:
    from fla.ops.linear_attn.naive import naive_recurrent_linear_attn

    q, k, v = F.elu(drawn["q"]) + 1, F.elu(drawn["k"]) + 1, drawn["v"]
    y, _ = naive_recurrent_linear_attn(**inside({"q": q, "k": k, "v": v}), normalize=True)
    found, _ = linear_attention(q, k, v, normalize=True)
    assert_close(found.transpose(1, 2), y)
