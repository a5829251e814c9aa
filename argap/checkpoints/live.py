"""A model in memory, scored without a trace: mode, random state, gradients and weights are afterwards as before."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from argap.checkpoints.find import max_positions

if TYPE_CHECKING:
    import torch
    from torch import nn
    from transformers import PreTrainedModel


@dataclass(frozen=True, eq=False)
class LiveModel:
    """A causal language model in memory, on its device and in its dtype."""

    name: str
    model: "PreTrainedModel"

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 (hex) over configuration, parameters and buffers as they are when it is first read."""
        import torch

        digest = hashlib.sha256(self.model.config.to_json_string().encode())
        for name, values in self.model.state_dict().items():
            digest.update(name.encode())
            digest.update(values.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
        return digest.hexdigest()

    @property
    def longest(self) -> int | None:
        """Tokens of the longest window that the model takes; None where any length goes."""
        return max_positions(self.model.config.to_dict())

    @property
    def dtype(self) -> str:
        return str(self.model.dtype).removeprefix("torch.")

    @property
    def device(self) -> "torch.device":
        return self.model.device


def live_model(model: "PreTrainedModel", name: str | None = None) -> LiveModel:
    """A model under ``name``, else the name that it was loaded by, else that of its class."""
    return LiveModel(name or Path(model.name_or_path or "").name or type(model).__name__, model)


@contextmanager
def undisturbed(model: "nn.Module") -> Iterator[None]:
    """Within the block the model is in evaluation mode and records no gradients. Afterwards each module has its own
    mode again, and so have the random generators of the CPU and of the model's device their state."""
    import torch

    modes = {module: module.training for module in model.modules()}
    devices = {parameter.device for parameter in model.parameters() if parameter.is_cuda}
    model.eval()
    try:
        with torch.random.fork_rng(devices=list(devices)), torch.no_grad():
            yield
    finally:
        for module, training in modes.items():
            module.training = training
