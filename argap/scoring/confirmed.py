"""Keep a patch of a loaded model where a short probe confirms it, and undo it where not."""

import sys
from collections.abc import Callable
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from argap.checkpoints.rebinding import rebind
from argap.runtime.progress import say

if TYPE_CHECKING:
    from transformers import PreTrainedModel

TOLERANCE = {torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}
"""Largest ‖patched − plain‖ / ‖plain‖ of the last hidden states: rounding errors amplified by a deep trunk.

Two forms in bfloat16 differ by up to 6% where both are as close to float32."""


def confirmed(
    model: "PreTrainedModel",
    ids: torch.Tensor,
    patch: Callable[[], Any],
    without: str | None,
    *,
    reference: Callable[[], Any] = lambda: None,
) -> bool:
    """Apply ``patch``, undo it if the probe ``ids [1, T]`` disagrees, and return whether it stays.

    ``without`` begins the message about an undone patch; None: no message. ``reference`` is a patch that the plain
    model needs for the probe. What the patch replaces in the module of the model's family goes back, and the model's
    own layers keep it.
    """
    before = _Unpatched(model)
    reference()
    plain = _hidden_states(model, ids)
    before.restore()
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
    if without is not None:
        say(f"{without} ({reason})")
    return False


def _hidden_states(model: "PreTrainedModel", ids: torch.Tensor) -> torch.Tensor:
    return model.base_model(input_ids=ids, use_cache=False).last_hidden_state.float()


class _Unpatched:
    """A model's instances and its family's module before a patch."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.instances = [(module, dict(vars(module)), dict(module._modules)) for module in model.modules()]
        self.family = sys.modules[type(model).__module__]
        self.names = dict(vars(self.family))

    def keep_to_instance(self) -> None:
        """Restore the family's module, whose functions and classes Liger replaces for the whole process.

        The methods of the model's layers call the new functions; classes serve only models that are made later.
        """
        patched = {name: new for name, own in self.names.items() if (new := getattr(self.family, name)) is not own}
        self._restore_family()
        functions = {name: new for name, new in patched.items() if isinstance(new, FunctionType)}
        rebind(self.model, {name: lambda plain, new=new: new for name, new in functions.items()})

    def restore(self) -> None:
        self._restore_family()
        for module, attributes, children in self.instances:
            vars(module).clear()
            vars(module).update(attributes)
            module._modules.clear()
            module._modules.update(children)

    def _restore_family(self) -> None:
        for name, own in self.names.items():
            setattr(self.family, name, own)
