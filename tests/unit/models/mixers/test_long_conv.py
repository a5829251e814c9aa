"""The ungated long convolution against its equation, its squashed filter by hand, its cost."""

import math

import torch

from argap.models.mixers.long_conv import DecayingFilter, LongConv
from tests.builders.weights import redraw


@torch.no_grad()
def test_long_conv_is_the_papers_loop() -> None:
    torch.manual_seed(0)
    width, length, squash = 3, 40, 0.2
    mixer = LongConv(width, 50, squash=squash).double()
    redraw(mixer)
    u = torch.randn(length, width, dtype=torch.float64)
    h = mixer.filter.weight
    expected = torch.zeros(length, width, dtype=torch.float64)
    for t in range(length):
        mixed = [0.0] * width
        for c in range(width):
            for s in range(t + 1):
                tap = float(h[s, c])
                mixed[c] += math.copysign(max(abs(tap) - squash, 0.0), tap) * float(u[t - s, c])
            z = mixed[c] + float(mixer.skip[c] * u[t, c])
            mixed[c] = z * 0.5 * (1 + math.erf(z / math.sqrt(2)))
        expected[t] = mixer.out.weight @ torch.tensor(mixed, dtype=torch.float64)
    torch.testing.assert_close(mixer(u[None])[0], expected, rtol=0, atol=1e-11)


@torch.no_grad()
def test_a_filter_starts_with_a_decay_of_its_own_for_each_channel() -> None:
    torch.manual_seed(0)
    made = DecayingFilter(64, 4096, 0.0)
    made.initialize(0.02, 0.01)
    # Channel 32 of 64 decays as e^{−(s/N)·√32}: from the first eighth to the second by e^{−√32/8}.
    first, second = (made.weight[part, 32].square().mean().sqrt() for part in (slice(512), slice(512, 1024)))
    assert abs(float(second / first) - math.exp(-math.sqrt(32) / 8)) < 0.05
    gains = made.weight.norm(dim=0)
    assert gains.min() > 0.5
    assert gains.max() < 0.9
