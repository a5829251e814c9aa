"""Which functions and methods of transformers' families argap's operators replace, and the replacement on a model."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, wraps
from typing import TYPE_CHECKING, Any

import torch

from argap.checkpoints.rebinding import bind, called, choice_of, rebind
from argap.runtime.progress import say
from argap.scoring.confirmed import confirmed
from argap.scoring.operators.mamba import causal_conv1d, falcon_h1_layer, mamba2_scan, mamba_block, mamba_scan
from argap.scoring.operators.recurrences import (
    gated_delta_rule,
    lightning_attention,
    mlstm,
    mlstm_in_float32,
    rg_lru,
    rwkv4,
)

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
    reference: Callable[..., Any] | None = None
    """What the probe compares it with, if not with the family's own method."""

    def in_place_of(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        return wraps(plain)(partial(self.function, plain))


FUNCTIONS: Mapping[str, Operator] = {
    "causal_conv1d_fn": Operator("short convolution", causal_conv1d, on_cpu=False),
    "mamba2_chunk_scan": Operator("form of Mamba-2", mamba2_scan),
    "mamba_selective_scan": Operator("selective scan", mamba_scan),
    "torch_chunk_gated_delta_rule": Operator("gated delta rule", gated_delta_rule, on_cpu=False),
    "chunk_kimi_delta_attention": Operator("form of Kimi delta attention", gated_delta_rule),
    "rwkv_linear_attention": Operator("form of RWKV-4", rwkv4),
}
"""By the name of transformers' function."""
METHODS: Mapping[tuple[str, str], Operator] = {
    **{
        (f"{family}Block", "forward"): Operator("norm of the residual stream", mamba_block, on_cpu=False)
        for family in ("Mamba", "FalconMamba", "Mamba2")
    },
    ("FalconH1DecoderLayer", "forward"): Operator("sum of a layer's branches", falcon_h1_layer),
    ("MiniMaxLightningAttention", "forward"): Operator("linear attention", lightning_attention),
    ("RecurrentGemmaRglru", "_rnn_scan"): Operator("form of RG-LRU", rg_lru),
    ("xLSTMBackend", "forward"): Operator("form of mLSTM", mlstm, reference=mlstm_in_float32),
}
"""By the class and the method."""
NOT_SCORING = frozenset(
    (
        *("causal_conv1d_update", "mamba_selective_state_update", "mamba2_selective_state_update"),
        *("torch_recurrent_gated_delta_rule", "recurrent_kimi_delta_attention"),
        *("mamba_inner_fn", "mamba2_split_conv1d_scan_combined"),
    )
)
"""Functions of a step after a cache, and of training."""
DISTRIBUTIONS = {"fla": "flash-linear-attention", "mamba_ssm": "mamba-ssm", "causal_conv1d": "causal-conv1d"}
"""What to install for the packages with a faster form."""


def use_operators(model: "PreTrainedModel", ids: torch.Tensor, name: str) -> bool:
    """Let the mixers of ``model`` run argap's operators, each where the probe ``ids [1, T]`` confirms it.

    Returns whether there is an operator for any of them.
    """
    patches = list(_patches(model, on_gpu=ids.is_cuda))
    confirm_each(model, ids, name, patches, reference=partial(run_references, model))
    if ids.is_cuda:
        for function, package in slow_functions(model).items():
            say(f"{name}: {function} runs as plain PyTorch, which is slow; run `pip install {package}`")
    return bool(patches)


def confirm_each(
    model: "PreTrainedModel",
    ids: torch.Tensor,
    name: str,
    patches: Sequence[tuple[str, Callable[[], None]]],
    *,
    reference: Callable[[], Any] = lambda: None,
) -> None:
    """Apply ``patches``, of a name each, if the probe confirms them together; otherwise those that it confirms."""

    def all_at_once() -> None:
        for _, patch in patches:
            patch()

    if len(patches) < 2 or not confirmed(model, ids, all_at_once, None, reference=reference):
        for what, patch in patches:
            confirmed(model, ids, patch, f"{name}: running without argap's {what}", reference=reference)


def _patches(model: "PreTrainedModel", *, on_gpu: bool) -> Iterator[tuple[str, Callable[[], None]]]:
    """Yield the name of each operator that the model could run, and the patch."""
    names, classes = called(model), {type(module).__name__ for module in model.modules()}
    for function, operator in FUNCTIONS.items():
        if function in names and (on_gpu or operator.on_cpu):
            yield operator.name, partial(rebind, model, {function: operator.in_place_of})
    for (owner, method), operator in METHODS.items():
        if owner in classes and (on_gpu or operator.on_cpu):
            yield operator.name, partial(bind, model, owner, method, operator.function)


def run_references(model: "PreTrainedModel") -> None:
    """Let the model run PyTorch forms: the kernels of a package may spend minutes on choosing launch configurations."""
    for name, function in called(model).items():
        choice = choice_of(function) if name in FUNCTIONS and not isinstance(function, partial) else None
        if choice is not None and choice.chosen is not choice.plain:
            rebind(model, {name: lambda _, plain=choice.plain: plain})
    for (owner, method), operator in METHODS.items():
        if operator.reference is not None:
            bind(model, owner, method, operator.reference)


def slow_functions(model: "PreTrainedModel") -> dict[str, str]:
    """Return the functions that the model's mixers run in the PyTorch form, and what has a faster one."""
    found = {}
    for name, function in called(model).items():
        ours = isinstance(function, partial)  # of `Operator.in_place_of`
        choice = None if ours or name in NOT_SCORING else choice_of(function)
        if choice is not None and choice.chosen is choice.plain:
            found[name] = DISTRIBUTIONS.get(choice.package, choice.package)
    return found
