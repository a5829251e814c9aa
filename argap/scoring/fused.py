"""Replace norms, rotary positions and activations of a loaded Hugging Face model by fused kernels.

On CUDA, liger-kernel patches the instance for every family it knows; for other families, argap's kernel replaces the
rotary function. A short probe compares the last hidden states before and after; if they differ, the model runs
unpatched. Forward passes only.
"""

import importlib
import sys
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from argap.kernels.fused.rotary import rotate_in_place
from argap.kernels.launch import triton
from argap.runtime.progress import say

if TYPE_CHECKING:
    from transformers import PreTrainedModel

TOLERANCE = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
"""Largest ‖fused − plain‖ / ‖plain‖ of the last hidden states: rounding errors amplified by a deep trunk."""
LIGER = {"rope": True, "rms_norm": True, "layer_norm": True, "swiglu": True, "geglu": True} | dict.fromkeys(
    ("cross_entropy", "fused_linear_cross_entropy"), False
)
"""Liger's parts for the trunk. `argap.scoring.heads` handles the head."""
ROTARY = "apply_rotary_pos_emb"
"""The name of transformers' rotary functions."""


def fuse(model: "PreTrainedModel", ids: torch.Tensor, name: str) -> None:
    """Patch ``model`` in place. ``ids [1, T]``: the probe, on the model's device. ``name``: for messages."""
    fuse_activations(model)
    if not type(model).__module__.startswith("transformers.models.") or not ids.is_cuda:
        return
    # Importing Liger's patches takes seconds: done last, only for models that need them.
    if find_spec("liger_kernel") is None or not fuse_by_liger(model, ids, name):
        fuse_rotary(model, ids, name)


def fuse_activations(model: nn.Module) -> None:
    """Replace GPT-2's GELU, which takes several passes over memory in transformers, by torch's single kernel."""
    from transformers.activations import NewGELUActivation

    for module in model.modules():
        for name, child in module.named_children():
            if isinstance(child, NewGELUActivation):
                setattr(module, name, nn.GELU(approximate="tanh"))


def fuse_by_liger(model: "PreTrainedModel", ids: torch.Tensor, name: str) -> bool:
    """Patch ``model`` with liger-kernel if it knows the family and the probe agrees; return whether so."""
    patches = liger_patches()
    if model.config.model_type not in patches.MODEL_TYPE_TO_APPLY_LIGER_FN:
        return False
    patch = partial(patches._apply_liger_kernel_to_instance, model=model, **LIGER)
    return _confirmed(model, ids, patch, f"{name}: running without liger-kernel's fused layers")


def fuse_rotary(model: "PreTrainedModel", ids: torch.Tensor, name: str) -> bool:
    """Replace the rotary function of ``model``'s family by argap's kernel if the probe agrees; return whether so."""
    family = sys.modules[type(model).__module__]
    if not hasattr(family, ROTARY) or triton is None:
        return False
    patch = partial(setattr, family, ROTARY, rotate_in_place)
    return _confirmed(model, ids, patch, f"{name}: running without the fused rotary positions")


def _confirmed(model: "PreTrainedModel", ids: torch.Tensor, patch: Callable[[], Any], without: str) -> bool:
    """Apply ``patch``, undo it if the probe ``ids`` disagrees, and return whether it stays.

    ``without`` begins the message about an undone patch.
    """
    plain = _hidden_states(model, ids)
    before = _Unpatched(model)
    try:
        patch()
        before.keep_to_instance()
        error = float((_hidden_states(model, ids) - plain).norm() / plain.norm())
        reason = f"its hidden states differ by {error:.1e}"
    except Exception as problem:  # whatever goes wrong in a patch, the plain model works
        error, reason = float("inf"), f"{type(problem).__name__}: {problem}".splitlines()[0]
    if error <= TOLERANCE.get(model.dtype, 0.0):
        return True
    before.restore()
    say(f"{without} ({reason})")
    return False


def liger_patches() -> Any:
    """Import ``liger_kernel.transformers.monkey_patch`` without side effects on transformers' own model types.

    Liger imports flash-linear-attention if installed, which registers a ``mamba`` of its own.
    """
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    registered: dict[str, Any] = CONFIG_MAPPING._extra_content
    before = dict(registered)
    patches = importlib.import_module("liger_kernel.transformers.monkey_patch")
    for name in set(registered) & set(CONFIG_MAPPING._mapping):
        if name in before:
            registered[name] = before[name]
        else:
            del registered[name]
    return patches


def _hidden_states(model: "PreTrainedModel", ids: torch.Tensor) -> torch.Tensor:
    return model.base_model(input_ids=ids, use_cache=False).last_hidden_state.float()


class _Unpatched:
    """A model's instances and its family's module before a patch.

    Liger replaces the family's rotary function and classes for the whole process. The classes are restored; the rotary
    function, which attention looks up by name, becomes one that leaves other devices and training unaffected.
    """

    def __init__(self, model: nn.Module) -> None:
        self.instances = [(module, dict(vars(module)), dict(module._modules)) for module in model.modules()]
        self.family = sys.modules[type(model).__module__]
        self.names = dict(vars(self.family))

    def keep_to_instance(self) -> None:
        for name, own in self.names.items():
            patched = getattr(self.family, name)
            if patched is own:
                continue
            setattr(self.family, name, _fused_on_cuda(patched, own) if name == ROTARY else own)

    def restore(self) -> None:
        for name, own in self.names.items():
            setattr(self.family, name, own)
        for module, attributes, children in self.instances:
            vars(module).clear()
            vars(module).update(attributes)
            module._modules.clear()
            module._modules.update(children)


def _fused_on_cuda(fused: Callable[..., Any], own: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls ``fused`` for CUDA tensors without gradients, else ``own``, the family's rotary."""
    plain = getattr(own, "plain", own)  # for a second model of the family, ``own`` is the function of the first

    def apply_rotary_pos_emb(q: torch.Tensor, k: torch.Tensor, cos: Any, sin: Any, **options: Any) -> Any:
        if options or not q.is_cuda or torch.is_grad_enabled():
            return plain(q, k, cos, sin, **options)
        return fused(q, k, cos, sin)

    apply_rotary_pos_emb.plain = plain  # pyright: ignore[reportFunctionMemberAccess]
    return apply_rotary_pos_emb
