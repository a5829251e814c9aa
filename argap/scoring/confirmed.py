"""Keep a patch of a loaded model where a short probe confirms it, and undo it where not."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from argap.checkpoints.rebinding import rebind
from argap.runtime.progress import say

if TYPE_CHECKING:
    from transformers import PreTrainedModel

TOLERANCE = {torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}
"""Largest ‖patched − plain‖ / ‖plain‖ of the last hidden states: rounding errors amplified by a deep trunk.

Two forms in bfloat16 differ by up to 6% where both are as close to float32."""
AMPLIFIED, AS_EXACT = 1e-2, 1.25
"""Where a trunk amplifies rounding errors beyond `TOLERANCE`: the largest difference with the same weights in float32;
and how many times the plain form's distance from float32 a patched form may have in 16 bits."""


def confirmed(
    model: "PreTrainedModel",
    ids: torch.Tensor,
    patch: Callable[[], Any],
    without: str | None,
    *,
    reference: Callable[[], Any] = lambda: None,
) -> bool:
    """Apply ``patch``, undo it if the probe ``ids [1, T]`` disagrees, and return whether it stays.

    A 16-bit model whose trunk amplifies rounding errors, as Mamba-2 of random weights does, is compared in float32.
    Every pass sends each token to the experts of the first.

    ``without`` begins the message about an undone patch; None: no message. ``reference`` is a patch that the plain
    model needs for the probe. What the patch replaces in the module of the model's family goes back, and the model's
    own layers keep it.
    """
    before, chosen = _Unpatched(model), _FirstChoices()

    def plain_states(states: Callable[..., torch.Tensor]) -> torch.Tensor:
        reference()
        with chosen:
            found = states(model, ids)
        before.restore()
        return found

    def patched_states(states: Callable[..., torch.Tensor]) -> torch.Tensor:
        patch()
        before.keep_to_instance()
        with chosen:
            return states(model, ids)

    plain = plain_states(_hidden_states)
    try:
        patched = patched_states(_hidden_states)
        error = _distance(patched, plain)
        reason = f"its hidden states differ by {error:.1e}"
        if error <= TOLERANCE.get(model.dtype, 0.0):
            return True
        if torch.finfo(model.dtype).bits == 16:
            before.restore()
            exact = plain_states(_in_float32)
            as_exact = _distance(patched, exact) <= AS_EXACT * _distance(plain, exact)
            if as_exact and _distance(patched_states(_in_float32), exact) <= AMPLIFIED:
                return True
    except Exception as problem:  # whatever goes wrong in a patch, the plain model works
        reason = f"{type(problem).__name__}: {problem}".splitlines()[0]
    before.restore()
    if without is not None:
        say(f"{without} ({reason})")
    return False


def _hidden_states(model: "PreTrainedModel", ids: torch.Tensor) -> torch.Tensor:
    return model.base_model(input_ids=ids, use_cache=False).last_hidden_state.float()


def _in_float32(model: "PreTrainedModel", ids: torch.Tensor) -> torch.Tensor:
    with wide_weights(model):
        return _hidden_states(model, ids)


@contextmanager
def wide_weights(model: nn.Module) -> Iterator[None]:
    """Give the model its weights in float32 inside the block."""
    narrow = [x for x in chain(model.parameters(), model.buffers()) if x.is_floating_point()]
    before = [x.data for x in narrow]
    try:
        for x in narrow:
            x.data = x.data.float()
        yield
    finally:
        for x, data in zip(narrow, before, strict=True):
            x.data = data


class _FirstChoices(TorchFunctionMode):
    """Let each later pass take what ``torch.topk`` took in the first: the experts of each token.

    Rounding sends a token that is near a tie to another expert, whose output differs by as much as the token's own.
    """

    def __init__(self) -> None:
        super().__init__()
        self.indices: list[torch.Tensor] = []
        self.calls = 0

    def __enter__(self) -> "_FirstChoices":
        self.first, self.calls = not self.indices, 0
        return super().__enter__()

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        found = func(*args, **kwargs)
        if func not in (torch.topk, torch.Tensor.topk):
            return found
        if self.first:
            self.indices.append(found.indices)
            return found
        same = self.indices[self.calls]
        self.calls += 1
        given = {**dict(zip(("input", "k", "dim"), args, strict=False)), **kwargs}
        return type(found)((given["input"].gather(given.get("dim", -1), same), same))


def _distance(x: torch.Tensor, y: torch.Tensor) -> float:
    return float((x - y).norm() / y.norm())


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
