"""The training loss: the summed next-token NLL of a batch of windows, in float32."""

import torch
from torch import nn
from torch.nn import functional as F

IGNORED = -100  # marks targets that are not scored; cross_entropy's default


class Objective(nn.Module):
    """A language model and its loss as one module, so that torch.compile sees both.

    When compiled, the loss never stores float32 logits: the conversion from bfloat16 is fused into the softmax.
    Legend: B windows, T tokens.
    """

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.model = model
        self.dtype = dtype

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The summed NLL of all targets except `IGNORED`, in nats, and in training the mixers' auxiliary loss, or None.

        Ids are int64 ``[B, T]``. The auxiliary loss is added to the mean loss per token (see
        `argap.models.mixer.Mixer.auxiliary_loss`).
        """
        with torch.autocast(inputs.device.type, self.dtype, enabled=self.dtype != torch.float32):
            output = self.model(input_ids=inputs, use_cache=False)
        logits = output.logits.float().flatten(0, 1)
        nll = F.cross_entropy(logits, targets.flatten(), ignore_index=IGNORED, reduction="sum")
        return nll, output.auxiliary_loss
