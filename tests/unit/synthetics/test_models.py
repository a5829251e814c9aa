"""The members of a sweep, and the decoder of compression."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from argap.errors import ArgapError
from argap.synthetics.training.models import LastVectorDecoder, member_from, sinusoids
from argap.synthetics.training.supervision import supervision
from argap.synthetics.training.trainer import Trainer
from tests.builders.sweeps import CPU, TINY, task_run


def test_a_members_name_is_a_preset_or_a_mixer_and_unknown_keys_are_named():
    assert member_from("attention").learned_positions
    assert member_from("argap.models.mixers.gla:GLA").mixers == ("argap.models.mixers.gla:GLA",)
    assert member_from("hyena", {"mlp": True}).mlp
    with pytest.raises(ArgapError, match=r"hyena: unknown key layers; known are mixers"):
        member_from("hyena", {"layers": 2})


def test_a_member_may_have_more_layers_and_a_task_a_fill_token():
    four = replace(TINY, member=member_from("attention", {"mixers": ["attention", "base_conv"] * 2}), fill=3)
    assert four.model_config().num_hidden_layers == 4
    two = TINY.model_config()
    assert (two.num_hidden_layers, two.learned_positions, two.norm, two.mlp) == (2, True, "layer", "none")
    assert replace(TINY, member=member_from("gla", {"mlp": True})).model_config().mlp == "swiglu"
    inputs = supervision(four, "train").inputs
    assert ((inputs == 3).sum(dim=1) == 16 - 4 * 2).all()  # all but two pairs and their second occurrences


def test_compression_is_decoded_from_the_last_vector_and_the_place_alone():
    config = task_run("compression", length=8)
    trainer = Trainer(config, supervision(config, "train"), CPU)
    made = supervision(config, "test")
    assert (made.inputs.gather(1, made.positions + 1) == made.targets).all()  # each token at its own place
    assert made.positions[0].tolist() == [-1, 0, 1, 2, 3, 4, 5]
    assert trainer.decoder is not None
    states = trainer.model.model(made.inputs).last_hidden_state
    expected = trainer.decoder(states, torch.arange(7).expand(20, -1))
    torch.testing.assert_close(trainer.logits(made.inputs, made.positions), expected)
    decoder = LastVectorDecoder(16, 16, 8)
    hidden = torch.randn(2, 8, 16)
    places = torch.arange(7).expand(2, -1)
    logits = decoder(hidden, places)
    assert len(decoder.mlp) == 2
    torch.testing.assert_close(logits, decoder.head(decoder.mlp(hidden[:, -1:] + sinusoids(8, 16)[:7])))
    changed = hidden.clone()
    changed[:, :-1] = 0
    torch.testing.assert_close(decoder(changed, places), logits)
    assert (decoder(hidden.roll(1, 1), places) - logits).abs().min() > 0
    assert (logits[:, 1:] - logits[:, :-1]).abs().max() > 1e-3  # places are told apart
    before = [weight.detach().clone() for weight in trainer.weights]
    trainer.step()
    moved = [bool((a != b).any()) for a, b in zip(before, trainer.weights, strict=True)]
    assert all(moved[-len(list(trainer.decoder.parameters())) :])


def test_places_are_sines_and_cosines():
    # Width 4: rates 1 and 1/10,000.
    expected = [[np.sin(2), np.sin(2e-4), np.cos(2), np.cos(2e-4)]]
    np.testing.assert_allclose(sinusoids(3, 4)[2:], expected, rtol=1e-5)
    with pytest.raises(ArgapError, match="width 5"):
        sinusoids(3, 5)
