"""Which functions and methods of transformers' families argap's operators replace, and the replacement on a model."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial, wraps
from typing import TYPE_CHECKING, Any

import torch

from argap.scoring.confirmed import confirmed
from argap.scoring.operators.layers import fused_layers
from argap.scoring.operators.mamba import causal_conv1d, mamba2_scan, mamba_scan
from argap.scoring.operators.rebinding import bind, called, rebind
from argap.scoring.operators.recurrences import lightning_attention, mlstm, rg_lru, rwkv4

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class Operator:
    """What replaces a function that mixers call by name, or a method."""

    name: str
    """For messages."""
    function: Callable[..., Any]
    """Takes the family's own function, then its arguments; of a method, the module before them."""
    on_cpu: bool = True
    """Whether it is faster than the family's own on a CPU."""

    def in_place_of(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        return wraps(plain)(partial(self.function, plain))


FUNCTIONS: Mapping[str, Operator] = {
    "causal_conv1d_fn": Operator("short convolution", causal_conv1d, on_cpu=False),
    "mamba2_chunk_scan": Operator("form of Mamba-2", mamba2_scan),
    "mamba_selective_scan": Operator("selective scan", mamba_scan),
    "rwkv_linear_attention": Operator("form of RWKV-4", rwkv4),
}
"""By the name of transformers' function."""
METHODS: Mapping[tuple[str, str], Operator] = {
    ("MiniMaxLightningAttention", "forward"): Operator("linear attention", lightning_attention),
    ("RecurrentGemmaRglru", "_rnn_scan"): Operator("form of RG-LRU", rg_lru),
    ("xLSTMBackend", "forward"): Operator("form of mLSTM", mlstm),
}
"""By the class and the method."""


def use_operators(model: "PreTrainedModel", ids: torch.Tensor, name: str) -> None:
    """Let the mixers of ``model`` run argap's operators, each where the probe ``ids [1, T]`` confirms it."""
    names, classes = called(model), {type(module).__name__ for module in model.modules()}
    patches: list[tuple[str, Callable[[], None]]] = []
    for function, operator in FUNCTIONS.items():
        if function in names and (ids.is_cuda or operator.on_cpu):
            patches.append((operator.name, partial(rebind, model, {function: operator.in_place_of})))
    for (owner, method), operator in METHODS.items():
        if owner in classes and (ids.is_cuda or operator.on_cpu):
            patches.append((operator.name, partial(bind, model, owner, method, operator.function)))
    if not patches:
        return
    if ids.is_cuda:
        patches += [(f"fused {owner}", patch) for owner, patch in fused_layers(model)]

    def all_at_once() -> None:
        for _, patch in patches:
            patch()

    if len(patches) > 1 and confirmed(model, ids, all_at_once, None):
        return
    for what, patch in patches:
        confirmed(model, ids, patch, f"{name}: running without argap's {what}")
