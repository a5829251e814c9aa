"""The cost of a model: parameters, FLOPs per window, and the size of its generation state."""

from dataclasses import dataclass

import torch

from argap.models.configuration import MLP_MATRICES, ArgapConfig
from argap.models.modeling import ArgapForCausalLM


@dataclass(frozen=True)
class Cost:
    """The cost of one model on one window."""

    parameters: int
    """Trainable parameters; a tied head counts once."""
    flops: int
    """Floating-point operations of one forward pass over the window; a multiply-add counts 2."""
    state_size: int
    """Elements of the recurrent state of one sequence at the end of the window, over all layers."""

    @property
    def train_tflops(self) -> float:
        """10¹² operations of one training step on the window; the backward pass costs twice the forward pass."""
        return 3 * self.flops / 1e12


def cost(config: ArgapConfig, length: int) -> Cost:
    """Compute the cost of a model on windows of ``length`` tokens, without building its weights.

    Raises `ArgapError` for an unknown mixer and for a window longer than the model allows.
    """
    with torch.device("meta"):
        model = ArgapForCausalLM(config)
    model.model.check_length(length)
    mixers = [block.mixer for block in model.model.blocks]
    return Cost(
        parameters=sum(p.numel() for p in model.parameters()),
        flops=sum(mixer.flops(1, length) for mixer in mixers) + _dense_flops(config, length),
        state_size=sum(mixer.state_size(length) for mixer in mixers),
    )


def _dense_flops(config: ArgapConfig, length: int) -> int:
    """Count operations outside the mixers: 2·T·D·I for each matrix of an MLP of inner width I, 2·T·D·V for the head.

    Norms, nonlinearities and the embedding lookup are not counted; together they are O(T·D) per layer.
    """
    mlp = 2 * MLP_MATRICES[config.mlp] * config.hidden_size * config.intermediate_size * config.num_hidden_layers
    return length * (mlp + 2 * config.hidden_size * config.vocab_size)
