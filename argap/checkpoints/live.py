"""Score a model in memory without side effects: restore its mode and random state, touch no gradients or weights."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from argap.checkpoints.find import NATIVE
from argap.checkpoints.lengths import max_positions
from argap.checkpoints.rebinding import use_torch_on_cpu

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
        """Return the SHA-256 (hex) over configuration, parameters and buffers at the first call."""
        import torch

        digest = hashlib.sha256(self.model.config.to_json_string().encode())
        for name, values in self.model.state_dict().items():
            digest.update(name.encode())
            digest.update(values.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
        return digest.hexdigest()

    @property
    def without_bos(self) -> bool:
        """Return whether it was trained on windows without a BOS, whatever its tokenizer does: native models."""
        return self.model.config.model_type == NATIVE

    @property
    def longest(self) -> int | None:
        """Return the tokens of the longest window that the model takes; None if there is no limit."""
        return max_positions(self.model.config.to_dict())

    @property
    def dtype(self) -> str:
        return str(self.model.dtype).removeprefix("torch.")

    @property
    def device(self) -> "torch.device":
        return self.model.device


def live_model(model: "PreTrainedModel", name: str | None = None) -> LiveModel:
    """Wrap a model under ``name``, by default the name it was loaded from, else that of its class.

    On a CPU it runs the PyTorch form of functions for GPUs (`use_torch_on_cpu`), as a loaded checkpoint does.
    """
    use_torch_on_cpu(model)
    return LiveModel(name or Path(model.name_or_path or "").name or type(model).__name__, model)


@contextmanager
def undisturbed(model: "nn.Module") -> Iterator[None]:
    """Run the block with the model in evaluation mode and without gradients.

    Afterwards the mode of each module and the random state of the CPU and the model's device are restored.
    """
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
