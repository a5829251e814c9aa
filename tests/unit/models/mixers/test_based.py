"""Based's gated convolutions against loops in float64, and the pattern of its layers."""

import pytest
import torch

from argap.errors import ArgapError
from argap.models.mixers.based import BasedConv, ShortLongConv
from argap.models.presets import build_config
from argap.models.registry import build_mixer
from tests.builders.weights import redraw

WIDTH, LENGTH = 8, 13


@torch.no_grad()
def test_the_gated_convolution_is_its_formula() -> None:
    torch.manual_seed(1)
    mixer = BasedConv(WIDTH, kernel_size=3, expand=2).double()
    redraw(mixer)
    x = torch.randn(LENGTH, WIDTH, dtype=torch.float64)
    w1, w2 = mixer.projections.weight.split(16)
    b1, b2 = mixer.projections.bias.split(16)
    for t in range(LENGTH):
        mixed = torch.zeros(16, dtype=torch.float64)
        for s in range(min(t + 1, 3)):
            mixed += mixer.conv.weight[s] * (w1 @ x[t - s] + b1)
        expected = mixer.out.weight @ (mixed * mixed.sigmoid() * (w2 @ x[t] + b2)) + mixer.out.bias
        torch.testing.assert_close(mixer(x[None])[0, t], expected, rtol=0, atol=1e-11)


def test_layers_are_those_of_the_authors_360m() -> None:
    """Of 27 layers, counted from 0, Taylor linear attention in 1, 6, 11, 16, 21 and windows in 2, 7, 12, 17, 22."""
    config = build_config("based", hidden_size=1024, num_hidden_layers=27, vocab_size=64, seq_len=2048)
    names = [mixer["name"] for mixer in config.mixers]
    assert [i for i, name in enumerate(names) if name == "linear_attention"] == [1, 6, 11, 16, 21]
    assert [i for i, name in enumerate(names) if name == "attention"] == [2, 7, 12, 17, 22]
    assert names.count("based_conv") == 17
    assert config.mixers[1] == {"name": "linear_attention", "feature_map": "taylor", "feature_dim": 16}
    assert config.mixers[2] == {"name": "attention", "window": 128}


@pytest.mark.parametrize("long", [4, 40])  # directly and by FFT
@torch.no_grad()
def test_the_posts_convolution_is_its_formula(long: int) -> None:
    torch.manual_seed(2)
    mixer, length = ShortLongConv(WIDTH, short_kernel=3, long_kernel=long).double(), 50
    redraw(mixer)
    x = torch.randn(length, WIDTH, dtype=torch.float64)
    near = []
    for t in range(length):
        mixed = mixer.short.bias + sum(mixer.short.weight[s] * x[t - s] for s in range(min(t + 1, 3)))
        near.append(mixed * mixed.sigmoid())
        far = mixer.long.bias + sum(mixer.long.weight[s] * near[t - s] for s in range(min(t + 1, long)))
        gate = mixer.gate.weight @ x[t] + mixer.gate.bias
        torch.testing.assert_close(mixer(x[None])[0, t], gate * gate.sigmoid() * far, rtol=0, atol=1e-10)


def test_the_post_has_convolutions_and_linear_attention_alone() -> None:
    config = build_config("based_post", hidden_size=64, num_hidden_layers=4, vocab_size=64, seq_len=200)
    linear = {"name": "linear_attention", "feature_map": "taylor", "feature_dim": 16}
    assert config.mixers == [{"name": "short_long_conv"}, linear] * 2
    assert config.max_position_embeddings is None
    mixer = ShortLongConv(64)
    # D·D and a bias of the gate, 3 and 128 taps and a bias of the filters.
    assert sum(p.numel() for p in mixer.parameters()) == 64 * 64 + 64 + 64 * 4 + 64 * 129
    assert mixer(torch.zeros(2, 150, 64)).shape == (2, 150, 64)
    with pytest.raises(ArgapError, match="short_long_conv: long_kernel 0; expected at least 1"):
        build_mixer({"name": "short_long_conv", "long_kernel": 0}, 64, None)
