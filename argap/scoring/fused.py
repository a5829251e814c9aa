"""A loaded Hugging Face model's norms, rotary positions and activations as fused kernels.

On CUDA, liger-kernel patches the instance for every family that it knows; of other families argap's kernel replaces
the rotary function. A short probe compares the last hidden states before and after: a family whose states differ runs
as transformers has it. Forward passes only.
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
"""Largest ‖fused − plain‖ / ‖plain‖ of the last hidden states: rounding that a deep trunk has amplified."""
LIGER = {"rope": True, "rms_norm": True, "layer_norm": True, "swiglu": True, "geglu": True} | dict.fromkeys(
    ("cross_entropy", "fused_linear_cross_entropy"), False
)
"""Liger's parts: those of the trunk. The head is `argap.scoring.heads`'s."""
ROTARY = "apply_rotary_pos_emb"
"""The name of transformers' rotary functions."""


def fuse(model: "PreTrainedModel", ids: torch.Tensor, name: str) -> None:
    """Patch ``model`` in place; ``ids [1, T]`` are the probe, on the model's device. ``name`` is for messages."""
    fuse_activations(model)
    if not type(model).__module__.startswith("transformers.models.") or not ids.is_cuda:
        return
    # Importing Liger's patches takes seconds, which no other model needs to spend.
    if find_spec("liger_kernel") is None or not fuse_by_liger(model, ids, name):
        fuse_rotary(model, ids, name)


def fuse_activations(model: nn.Module) -> None:
    """Replace GPT-2's GELU, several passes over memory in transformers, by torch's single kernel."""
    from transformers.activations import NewGELUActivation

    for module in model.modules():
        for name, child in module.named_children():
            if isinstance(child, NewGELUActivation):
                setattr(module, name, nn.GELU(approximate="tanh"))


def fuse_by_liger(model: "PreTrainedModel", ids: torch.Tensor, name: str) -> bool:
    """Patch ``model`` with liger-kernel where it knows the family and the probe confirms it; returns whether it did."""
    patches = liger_patches()
    if model.config.model_type not in patches.MODEL_TYPE_TO_APPLY_LIGER_FN:
        return False
    patch = partial(patches._apply_liger_kernel_to_instance, model=model, **LIGER)
    return _confirmed(model, ids, patch, f"{name}: running without liger-kernel's fused layers")


def fuse_rotary(model: "PreTrainedModel", ids: torch.Tensor, name: str) -> bool:
    """Replace the rotary function of ``model``'s family by argap's kernel where the probe confirms it; returns whether
    it did."""
    family = sys.modules[type(model).__module__]
    if not hasattr(family, ROTARY) or triton is None:
        return False
    patch = partial(setattr, family, ROTARY, rotate_in_place)
    return _confirmed(model, ids, patch, f"{name}: running without the fused rotary positions")


def _confirmed(model: "PreTrainedModel", ids: torch.Tensor, patch: Callable[[], Any], without: str) -> bool:
    """Apply ``patch`` and undo it unless the probe ``ids`` confirms it; returns whether it did. ``without`` begins the
    line that says so."""
    plain = _hidden_states(model, ids)
    before = _Unpatched(model)
    try:
        patch()
        before.keep_to_instance()
        error = float((_hidden_states(model, ids) - plain).norm() / plain.norm())
        reason = f"its hidden states differ by {error:.1e}"
    except Exception as problem:  # whatever a family's patch runs into, the plain model works
        error, reason = float("inf"), f"{type(problem).__name__}: {problem}".splitlines()[0]
    if error <= TOLERANCE.get(model.dtype, 0.0):
        return True
    before.restore()
    say(f"{without} ({reason})")
    return False


def liger_patches() -> Any:
    """The module ``liger_kernel.transformers.monkey_patch``, imported without effect on transformers' own model types.

    Liger imports flash-linear-attention where that is installed, which registers a ``mamba`` of its own.
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
    """A model's instances and its family's module as they were before a patch.

    Liger replaces the family's rotary function and its classes for the whole process. The classes are put back; the
    rotary function, which attention looks up by name, becomes one that leaves other devices and training as they were.
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
    """``fused`` for CUDA tensors without gradients, else ``own``, the family's rotary function."""
    plain = getattr(own, "plain", own)  # a second model of the family meets the function made for the first

    def apply_rotary_pos_emb(q: torch.Tensor, k: torch.Tensor, cos: Any, sin: Any, **options: Any) -> Any:
        if options or not q.is_cuda or torch.is_grad_enabled():
            return plain(q, k, cos, sin, **options)
        return fused(q, k, cos, sin)

    apply_rotary_pos_emb.plain = plain  # pyright: ignore[reportFunctionMemberAccess]
    return apply_rotary_pos_emb
