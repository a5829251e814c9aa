"""The training loss: the summed next-token NLL of a batch of windows, in float32."""

import torch
from torch import nn
from torch.nn import functional as F

IGNORED = -100  # a target that is not scored: cross_entropy's own default


class Objective(nn.Module):
    """A language model and its loss as one module, so that torch.compile sees both.

    Compiled, the float32 logits of the loss are never stored: they are made from the bfloat16 ones
    where the softmax reads them. Legend: B windows, T tokens, V vocabulary.
    """

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.model = model
        self.dtype = dtype

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Sum of −log p(targets) in nats over all targets but `IGNORED`; ids are int64 ``[B, T]``.

        Beside it, in training, what the model's mixers add to the mean loss of a token, or None: see
        `argap.models.mixer.Mixer.auxiliary_loss`."""
        with torch.autocast(inputs.device.type, self.dtype, enabled=self.dtype != torch.float32):
            output = self.model(input_ids=inputs, use_cache=False)
        logits = output.logits.float().flatten(0, 1)
        nll = F.cross_entropy(logits, targets.flatten(), ignore_index=IGNORED, reduction="sum")
        return nll, output.auxiliary_loss
