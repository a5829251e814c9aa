"""H3 against its two recurrences written as loops, S4D's filter against its powers, its cost."""

import cmath
import math

import pytest
import torch

from argap.models.mixers.diagonal_ssm import DiagonalSSM
from argap.models.mixers.h3 import H3
from tests.builders.weights import redraw


@pytest.mark.parametrize("size", [1, 2])
@torch.no_grad()
def test_h3_is_the_papers_recurrence(size: int) -> None:
    torch.manual_seed(0)
    width, length, shifts = 4, 40, 3
    mixer = H3(width, head_size=size, shift_states=shifts, states=4).double()
    redraw(mixer, 0.6)
    u = torch.randn(length, width, dtype=torch.float64)
    wq, wk, wv = mixer.qkv.weight.chunk(3)
    shift_matrix = torch.eye(shifts, dtype=torch.float64).roll(1, dims=0)  # row i takes state i − 1 …
    shift_matrix[0] = 0  # … and the first the input
    shifted = torch.zeros(shifts, width, dtype=torch.float64)
    ssm = mixer.ssm
    states = [[[0j, 0j] for _ in range(size * size)] for _ in range(width // size)]
    expected = torch.zeros(length, width, dtype=torch.float64)
    for t in range(length):
        q, k, v = wq @ u[t], wk @ u[t], wv @ u[t]
        shifted = shift_matrix @ shifted
        shifted[0] += k
        k = (mixer.shift.weight * shifted).sum(dim=0) + mixer.shift_skip * k
        read = [0.0] * width
        for h in range(width // size):
            for i in range(size):
                for j in range(size):
                    z = float(k[h * size + i] * v[h * size + j])
                    state = states[h][i * size + j]
                    y = float(mixer.ssm_skip[h]) * z
                    for n in range(2):
                        a = complex(-math.exp(ssm.log_decay[h, n]), ssm.frequency[h, n])
                        grown = cmath.exp(math.exp(ssm.log_step[h]) * a)
                        state[n] = grown * state[n] + (grown - 1) / a * z
                        y += 2 * (complex(*ssm.readout[h, n].tolist()) * state[n]).real
                    read[h * size + j] += float(q[h * size + i]) * y
        expected[t] = mixer.out.weight @ torch.tensor(read, dtype=torch.float64)
    torch.testing.assert_close(mixer(u[None])[0], expected, rtol=1e-11, atol=1e-11)


@torch.no_grad()
def test_a_diagonal_model_starts_as_s4d_lin() -> None:
    torch.manual_seed(1)
    ssm = DiagonalSSM(500, 8)
    ssm.initialize(0.02, 0.01)
    exponent, _, readout = ssm.discrete()
    step = ssm.log_step.exp()
    assert step.min() >= 0.001
    assert step.max() <= 0.1
    expected = torch.tensor([complex(-0.5, math.pi * n) for n in range(4)])
    torch.testing.assert_close(exponent, step[:, None] * expected)
    assert abs(float(readout.abs().square().mean()) - 1) < 0.1


def test_states_may_be_as_many_as_positions() -> None:
    """The authors' figure 2: ``d_state: input_seq_len``."""
    mixer = H3(8, 10, head_size=2, shift_states=None, states=None)
    assert len(mixer.shift.weight) == 10
    assert mixer.ssm.frequency.shape == (4, 5)  # conjugate pairs
