"""Mamba against its recurrence as a loop and against transformers' layer; the scan; its cost."""

import math

import pytest
import torch
from transformers.models.mamba.configuration_mamba import MambaConfig
from transformers.models.mamba.modeling_mamba import MambaMixer

import argap.kernels.scan.selective_scan as module
from argap.kernels.recurrent.recurrence import linear_scan
from argap.models.mixers.mamba import Mamba
from tests.builders.weights import redraw


@torch.no_grad()
def test_mamba_is_the_papers_recurrence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK", 7)
    torch.manual_seed(0)
    width, length, states, rank = 3, 20, 2, 2
    mixer = redraw(Mamba(width, states=states, step_rank=rank).double(), 0.5)
    assert mixer.short.bias is not None
    x = torch.randn(length, width, dtype=torch.float64)
    to_u, to_z = mixer.projection.weight.chunk(2)
    h = torch.zeros(2 * width, states, dtype=torch.float64)
    expected = torch.zeros(length, width, dtype=torch.float64)
    for t in range(length):
        convolved = sum(mixer.short.weight[s] * (to_u @ x[t - s]) for s in range(min(4, t + 1))) + mixer.short.bias
        u = convolved * torch.sigmoid(convolved)
        selected = mixer.selection.weight @ u
        steps = torch.log(1 + torch.exp(mixer.step_size.weight @ selected[:rank] + mixer.step_size.bias))
        y = mixer.skip * u
        for e in range(2 * width):
            for n in range(states):
                decay = math.exp(-float(steps[e]) * math.exp(mixer.log_decay[e, n]))
                h[e, n] = decay * h[e, n] + steps[e] * u[e] * selected[rank + n]
                y[e] += selected[rank + states + n] * h[e, n]
        z = to_z @ x[t]
        expected[t] = mixer.out.weight @ (y * z * torch.sigmoid(z))
    torch.testing.assert_close(mixer(x[None])[0], expected, rtol=1e-11, atol=1e-11)


@torch.no_grad()
def test_mamba_is_transformers_layer() -> None:
    torch.manual_seed(1)
    width = 32
    mixer = redraw(Mamba(width), 0.25)
    theirs = MambaMixer(MambaConfig(hidden_size=width), layer_idx=0).eval()
    theirs.in_proj.weight.copy_(mixer.projection.weight)
    theirs.conv1d.weight.copy_(mixer.short.weight.flip(0).T[:, None])  # their last tap is the newest input
    assert theirs.conv1d.bias is not None
    assert mixer.short.bias is not None
    theirs.conv1d.bias.copy_(mixer.short.bias)
    theirs.x_proj.weight.copy_(mixer.selection.weight)
    theirs.dt_proj.load_state_dict(mixer.step_size.state_dict())
    theirs.A_log.copy_(mixer.log_decay)
    theirs.D.copy_(mixer.skip)
    theirs.out_proj.weight.copy_(mixer.out.weight)
    x = torch.randn(2, 70, width)
    y = mixer(x)
    assert y.std() > 0.1
    torch.testing.assert_close(y, theirs(x), rtol=0, atol=1e-4)


@pytest.mark.parametrize("length", [1, 2, 3, 7, 8, 65])
def test_the_scan_is_the_recurrence(length: int) -> None:
    torch.manual_seed(length)
    decay = torch.rand(2, length, 3, 1, dtype=torch.float64)
    decay[:, ::5] = 0  # forgets everything
    value = torch.randn(2, length, 3, 2, dtype=torch.float64)
    state = h = torch.randn(2, 3, 2, dtype=torch.float64)
    found = linear_scan(decay, value, state)
    for t in range(length):
        h = decay[:, t] * h + value[:, t]
        torch.testing.assert_close(found[:, t], h, rtol=0, atol=1e-13)


@torch.no_grad()
def test_steps_start_between_a_thousandth_and_a_tenth() -> None:
    torch.manual_seed(2)
    mixer = Mamba(64)
    mixer.initialize(0.02, 0.01)
    mixer.step_size.initialize(0.02, 0.01)
    steps = torch.nn.functional.softplus(mixer.step_size.bias)
    assert 0.00099 < steps.min() < 0.003
    assert 0.05 < steps.max() < 0.101
    torch.testing.assert_close(-mixer.log_decay[5].exp(), -torch.arange(1.0, 17.0))
