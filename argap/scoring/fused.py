"""Replace slow parts of a loaded Hugging Face model by fused kernels.

argap's operators replace those of mixers that are not attention (`argap.scoring.operators`). On CUDA, liger-kernel
patches norms, rotary positions and activations of the attention models it knows, as far as it has them; elsewhere
argap's kernels replace the norms, the gated MLPs and the rotary function, and in all families the experts of mixtures.
A short probe confirms each patch (`argap.scoring.confirmed`). Forward passes only.

Sliding-window attention runs by a kernel that skips what lies outside the window. transformers gives PyTorch's
attention a mask of T × T, and all of its products are computed. Without padding the mask is one for the whole batch,
which `torch.Tensor.expand` shows by a stride of 0; only such a mask is left out.
"""

import importlib
import sys
from collections.abc import Callable, Iterable
from functools import partial
from importlib.util import find_spec
from inspect import signature
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from argap.checkpoints.rebinding import FAMILIES, rebind
from argap.kernels.attention.sliding_attention import sliding_attention
from argap.kernels.fused.gated_product import gated_product
from argap.kernels.fused.rotary import rotate_in_place
from argap.kernels.launch import triton
from argap.scoring.confirmed import confirmed
from argap.scoring.operators.families import confirm_each, use_operators
from argap.scoring.operators.layers import fused_layers

if TYPE_CHECKING:
    from transformers import PreTrainedModel


LIGER = ("rope", "rms_norm", "layer_norm", "swiglu", "geglu")
"""Liger's parts for the trunk. `argap.scoring.heads` handles the head."""
LIGER_HEAD = ("cross_entropy", "fused_linear_cross_entropy")
PROBE_TOKENS = 80
"""More than the chunk of 64 positions after which a recurrence carries its state."""
ROTARY = "apply_rotary_pos_emb"
"""The name of transformers' rotary functions."""


def fuse(model: "PreTrainedModel", ids: torch.Tensor, name: str) -> None:
    """Patch ``model`` in place.

    ``ids [1, T]``: tokens for the probes, on the model's device, as many as in the longest window. ``name``: for
    messages.
    """
    fuse_activations(model)
    if not type(model).__module__.startswith(FAMILIES):
        return
    text, ids = ids, ids[:, :PROBE_TOKENS]
    own_mixers = use_operators(model, ids, name)
    if not ids.is_cuda:
        return
    fuse_windows(model, text, name)
    # Importing Liger's patches takes seconds: done only for models that need them.
    parts = ("rope",) if own_mixers else LIGER
    by_liger = fuse_by_liger(model, ids, name, parts) if find_spec("liger_kernel") else set()
    if "rope" not in by_liger:
        fuse_rotary(model, ids, name)
    fuse_layers(model, ids, name, only_experts=bool(by_liger) and not own_mixers)


def fuse_activations(model: nn.Module) -> None:
    """Replace activations that take several passes over memory in transformers by a single kernel.

    They are GPT-2's GELU and the squared ReLU of Nemotron.
    """
    from transformers.activations import NewGELUActivation, ReLUSquaredActivation

    for module in model.modules():
        for name, child in module.named_children():
            if isinstance(child, NewGELUActivation):
                setattr(module, name, nn.GELU(approximate="tanh"))
            elif isinstance(child, ReLUSquaredActivation):
                setattr(module, name, _SquaredReLU())


class _SquaredReLU(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return gated_product(x, x, "relu")


def fuse_windows(model: "PreTrainedModel", text: torch.Tensor, name: str) -> bool:
    """Skip what lies outside the windows of sliding attention, if they are shorter than ``text [1, T]``."""
    config = model.config.get_text_config()
    window = getattr(config, "sliding_window", None)
    if not isinstance(window, int) or window >= text.shape[1] or config._attn_implementation != "sdpa":
        return False
    ids = text[:, : window + PROBE_TOKENS].repeat(2, 1)  # a mask is known to be for all sequences where there are two
    return confirmed(model, ids, partial(skip_outside_windows, model), f"{name}: running without windowed attention")


def fuse_layers(model: "PreTrainedModel", ids: torch.Tensor, name: str, *, only_experts: bool = False) -> None:
    """Replace norms, gated MLPs and experts by argap's kernels where the layers and the probe agree."""
    layers = [(owner, patch) for owner, patch in fused_layers(model) if owner.endswith("Experts") or not only_experts]
    confirm_each(model, ids, name, [(f"fused {owner}", patch) for owner, patch in layers])


def fuse_by_liger(model: "PreTrainedModel", ids: torch.Tensor, name: str, parts: Iterable[str] = LIGER) -> set[str]:
    """Patch ``parts`` of ``model`` with liger-kernel; return those that it has for the family and the probe confirms.

    A part that a family's patch leaves out by default is one that it has not: some then raise NotImplementedError.
    """
    patches = liger_patches()
    if (apply := patches.MODEL_TYPE_TO_APPLY_LIGER_FN.get(model.config.model_type)) is None:
        return set()
    offered = {part for part in parts if (each := signature(apply).parameters.get(part)) and each.default}
    if not offered:
        return set()
    options = {part: part in offered for part in (*LIGER, *LIGER_HEAD)}
    patch = partial(patches._apply_liger_kernel_to_instance, model=model, **options)
    return offered if confirmed(model, ids, patch, f"{name}: running without liger-kernel's fused layers") else set()


def fuse_rotary(model: "PreTrainedModel", ids: torch.Tensor, name: str) -> bool:
    """Replace the rotary function of ``model``'s family by argap's kernel if the probe agrees; return whether so."""
    family = sys.modules[type(model).__module__]
    if not hasattr(family, ROTARY) or triton is None:
        return False
    patch = partial(rebind, model, {ROTARY: _rotated_by_kernel})
    return confirmed(model, ids, patch, f"{name}: running without the fused rotary positions")


def _rotated_by_kernel(plain: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that rotates by argap's kernel, and by ``plain``, the family's own, where options are given."""

    def apply_rotary_pos_emb(q: torch.Tensor, k: torch.Tensor, cos: Any, sin: Any, **options: Any) -> Any:
        return plain(q, k, cos, sin, **options) if options else rotate_in_place(q, k, cos, sin)

    return apply_rotary_pos_emb


def liger_patches() -> Any:
    """Import ``liger_kernel.transformers.monkey_patch`` without side effects on transformers' own model types.

    Liger imports flash-linear-attention if installed, which registers a ``mamba`` of its own.
    """
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    registered = CONFIG_MAPPING._extra_content
    before = dict(registered)
    patches = importlib.import_module("liger_kernel.transformers.monkey_patch")
    for name in set(registered) & set(CONFIG_MAPPING._mapping):
        if name in before:
            registered[name] = before[name]
        else:
            del registered[name]
    return patches


INTERFACES = "ALL_ATTENTION_FUNCTIONS"
"""The global by which attention layers look up a function by the name of their implementation."""
OTHERS = ("softcap", "s_aux", "position_bias", "cu_seq_lens_q", "cu_seq_lens_k")
"""Options that change a result."""


def skip_outside_windows(model: nn.Module) -> None:
    """Let the attention layers of ``model`` run `sliding_attention` where their window is shorter than the text."""
    rebind(model, {INTERFACES: _with_windows})


def _with_windows(interfaces: Any) -> Any:
    """Return the functions of ``interfaces`` with another one in the place of PyTorch's."""
    own = type(interfaces)()
    for name in interfaces:
        own[name] = interfaces[name]
    own["sdpa"] = partial(_attend, interfaces["sdpa"])
    return own


def _attend(
    plain: Callable[..., Any],
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Attend with ``query [B, H, T, K]`` and ``key`` and ``value [B, G, T, K]``; return ``[B, T, H, K]``."""
    (B, _, T, K), G = query.shape, key.shape[1]
    fits = key.shape == value.shape == (B, G, T, K) and not any(options.get(name) is not None for name in OTHERS)
    if not (sliding_window and sliding_window < T and fits and _of_all(attention_mask)):
        given = {"scaling": scaling, "sliding_window": sliding_window, **options}
        return plain(module, query, key, value, attention_mask, **given)
    return sliding_attention(query, key, value, sliding_window, scale=scaling).transpose(1, 2), None


def _of_all(mask: torch.Tensor | None) -> bool:
    """Return whether ``mask [B, 1, T, T]`` is one for all B > 1 sequences."""
    return mask is not None and mask.dim() == 4 and len(mask) > 1 == mask.shape[1] and mask.stride(0) == 0
