"""Give one model other functions than those its family calls by name, and leave the family as it is.

A method looks up the functions that it calls in the globals of its file. The modules of the model get copies of their
methods with other globals; the file of the family and the other models of the process keep theirs.

On a CPU, the PyTorch form runs of the functions that transformers takes from packages for GPUs: transformers'
linear-attention families (Qwen3-Next, OLMo-Hybrid, Kimi-Linear, …) call Triton functions of flash-linear-attention
wherever it can be imported, and those end in an error on a CPU. Each such function of transformers wraps its own
PyTorch form.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from inspect import unwrap
from types import CodeType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from torch import nn


Function = Callable[..., Any]
FAMILIES = "transformers.models."
"""Where the files of the families are."""


def rebind(model: "nn.Module", replace: Mapping[str, Callable[[Any], Any]]) -> None:
    """Let the methods of the model's modules use other globals, such as functions that they call.

    ``replace`` maps the name of a global to a function that takes the family's own and returns the one to use. A
    method that others have replaced on the instance by something else than a method (as accelerate does) stays.
    """
    known = _Copies(replace)
    for module in model.modules():
        for name, function in _methods(module):
            if (copy := known.of(function)) is not None:
                setattr(module, name, MethodType(copy, module))


def bind(model: "nn.Module", owner: str, method: str, function: Callable[..., Any]) -> None:
    """Replace a method of the model's modules of the class ``owner``.

    ``function`` takes the method that it replaces, bound to the module, then the module and the method's arguments.
    """
    for module in model.modules():
        if type(module).__name__ == owner and type(module).__module__.startswith(FAMILIES):
            setattr(module, method, MethodType(_instead(getattr(module, method).__func__, function), module))


def _instead(plain: Function, function: Callable[..., Any]) -> Function:
    def own(self: "nn.Module", *given: Any, **options: Any) -> Any:
        return function(MethodType(plain, self), self, *given, **options)

    return own


def called(model: "nn.Module") -> dict[str, Function]:
    """Return the global functions that the methods of the model's modules call, by name."""
    functions = dict.fromkeys(function for module in model.modules() for _, function in _methods(module))
    used = (each for function in functions for each in _globals_used(unwrap(function)))
    return {name: value for name, value in used if callable(value)}


def _methods(module: "nn.Module") -> Iterator[tuple[str, FunctionType]]:
    """Yield the methods that the classes of a family define, as the instance has them."""
    found: dict[str, object] = {}
    for family in type(module).__mro__:
        if family.__module__.startswith(FAMILIES):
            found = {**vars(family), **found}
    for name, function in found.items():
        own = vars(module).get(name, function)
        if isinstance(own, MethodType) and own.__self__ is module:
            own = own.__func__
        if isinstance(own, FunctionType):
            yield name, own


def _globals_used(function: FunctionType) -> Iterator[tuple[str, Any]]:
    codes = [function.__code__]
    for code in codes:
        codes += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
        yield from ((name, function.__globals__[name]) for name in code.co_names if name in function.__globals__)


class _Copies:
    """Copies of functions with other globals, one for all modules."""

    def __init__(self, replace: Mapping[str, Callable[[Any], Any]]) -> None:
        self.replace = replace
        self.copies: dict[FunctionType, FunctionType | None] = {}
        self.globals: dict[int, dict[str, object]] = {}
        """By the identity of a file's globals."""

    def of(self, function: FunctionType) -> FunctionType | None:
        """Return the copy of ``function``, without its decorators; None if it uses none of the globals."""
        if function not in self.copies:
            inner: Any = unwrap(function)
            used = any(name in self.replace for name, _ in _globals_used(inner))
            self.copies[function] = self._copy(inner) if used else None
        return self.copies[function]

    def _copy(self, function: FunctionType) -> FunctionType:
        before = function.__globals__
        if id(before) not in self.globals:
            own = {name: make(before[name]) for name, make in self.replace.items() if name in before}
            self.globals[id(before)] = {**before, **own}
        copy = FunctionType(
            function.__code__,
            self.globals[id(before)],
            function.__name__,
            function.__defaults__,
            function.__closure__,
        )
        copy.__kwdefaults__, copy.__qualname__ = function.__kwdefaults__, function.__qualname__
        return copy


class Choice(NamedTuple):
    """What transformers' ``use_kernel_func_from_hub_with_fallback`` keeps of a function."""

    plain: Callable[..., Any]
    """Its PyTorch form."""
    chosen: Callable[..., Any]
    """The form in use."""
    package: str
    """Which has a faster form; its name for ``import``."""


def choice_of(function: Callable[..., Any]) -> Choice | None:
    """Return how transformers chose the form of a function; None for other functions."""
    while (plain := getattr(function, "__wrapped__", None)) is not None:
        cells = inspect.getclosurevars(function).nonlocals if inspect.isfunction(function) else {}
        if {"implementation", "package"} <= cells.keys():
            return Choice(plain, cells["implementation"], cells["package"])
        function = plain
    return None


def use_torch_on_cpu(model: "nn.Module") -> None:
    """Let the model's modules choose the form of such functions by the device of the tensors."""
    choices = {name: choice for name, function in called(model).items() if (choice := choice_of(function))}
    replaced = {name: choice.plain for name, choice in choices.items() if choice.chosen is not choice.plain}
    rebind(model, {name: lambda fast, plain=plain: _by_device(fast, plain) for name, plain in replaced.items()})


def _by_device(fast: Callable[..., Any], plain: Callable[..., Any]) -> Callable[..., Any]:
    import torch

    known = inspect.signature(plain).parameters

    @wraps(fast)
    def choose(*given: Any, **named: Any) -> Any:
        first = next(value for value in (*given, *named.values()) if isinstance(value, torch.Tensor))
        if first.device.type != "cpu":
            return fast(*given, **named)
        return plain(*given, **{name: value for name, value in named.items() if name in known})

    return choose
