"""What a model costs: its parameters, the operations of a window, and the state that generation keeps."""

from dataclasses import dataclass

import torch

from argap.models.configuration import ArgapConfig
from argap.models.modeling import ArgapForCausalLM


@dataclass(frozen=True)
class Cost:
    """Of one model and one window."""

    parameters: int
    """Trained numbers; a tied head is counted once."""
    flops: int
    """Floating-point operations of one forward pass over the window, a multiply-add counting 2."""
    state_size: int
    """Elements that generation keeps for one sequence at the window's end, over all layers."""

    @property
    def train_tflops(self) -> float:
        """10¹² operations of a training step on the window: the backward pass takes twice the forward's."""
        return 3 * self.flops / 1e12


def cost(config: ArgapConfig, length: int) -> Cost:
    """The cost of a model on windows of ``length`` tokens, without building its weights.

    Raises `ArgapError` for a mixer that is unknown and for a window that the model does not take.
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
    """What every architecture has beside its mixers: 6·T·D·I for each layer's SwiGLU of inner width I, where
    there is one, and 2·T·D·V for the head. Norms, the nonlinearity and the embedding's look-up are left out:
    together they are O(T·D) a layer."""
    inner = config.intermediate_size if config.mlp == "swiglu" else 0
    mlp = 6 * config.hidden_size * inner * config.num_hidden_layers
    return length * (mlp + 2 * config.hidden_size * config.vocab_size)
