"""The training loss: the summed next-token NLL of a batch of windows, in float32."""

import torch
from torch import nn
from torch.nn import functional as F

from argap.models.block import compile_layers

IGNORED = -100  # marks targets that are not scored; cross_entropy's default


def summed_nll(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Sum the NLL of all targets except `IGNORED`, in nats, from ``logits [B, T, V]`` and ids ``[B, T]``."""
    return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="sum")


class Objective(nn.Module):
    """A language model and its loss. Legend: B windows, T tokens, V vocabulary."""

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.model = model
        self.dtype = dtype
        self.summed_nll = summed_nll

    def compile_parts(self) -> None:
        """Compile each layer and the loss.

        The compiled loss never stores float32 logits: the conversion from bfloat16 is fused into the softmax.
        """
        compile_layers(self.model)
        self.summed_nll = torch.compile(summed_nll)

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the summed NLL of all targets except `IGNORED`, in nats, and in training the mixers' auxiliary loss.

        Ids are int64 ``[B, T]``. The auxiliary loss, None if there is none, is added to the mean loss per token (see
        `argap.models.mixer.Mixer.auxiliary_loss`).
        """
        with torch.autocast(inputs.device.type, self.dtype, enabled=self.dtype != torch.float32):
            output = self.model(input_ids=inputs, use_cache=False)
        return self.summed_nll(output.logits, targets), output.auxiliary_loss
