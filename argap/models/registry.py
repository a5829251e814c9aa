"""Mixers by name. Each name maps to a class, or to a ``"module:Class"`` that is imported on first use."""

import importlib
import inspect
from contextlib import suppress
from typing import Any

from argap.errors import ArgapError, first_line
from argap.files.configs import unmet
from argap.models.configuration import Spec
from argap.models.mixer import Mixer
from argap.runtime.trust import is_trusted, own_files

MIXERS: dict[str, type[Mixer] | str] = {
    "attention": "argap.models.mixers.attention:Attention",
    "base_conv": "argap.models.mixers.base_conv:BaseConv",
    "base_conv_programmatic": "argap.models.mixers.input_dependent_conv:ProgrammaticConv",
    "base_conv_autocorrelation": "argap.models.mixers.input_dependent_conv:AutocorrelationConv",
    "based_conv": "argap.models.mixers.based:BasedConv",
    "delta_net": "argap.models.mixers.delta_net:DeltaNet",
    "gated_attention": "argap.models.mixers.gated_attention:GatedAttention",
    "gated_delta_net": "argap.models.mixers.gated_delta_net:GatedDeltaNet",
    "gla": "argap.models.mixers.gla:GLA",
    "gsa": "argap.models.mixers.gsa:GSA",
    "hgrn2": "argap.models.mixers.hgrn2:HGRN2",
    "kda": "argap.models.mixers.kda:KDA",
    "lightning_attention": "argap.models.mixers.lightning_attention:LightningAttention",
    "linear_attention": "argap.models.mixers.linear_attention:LinearAttention",
    "short_long_conv": "argap.models.mixers.based:ShortLongConv",
    "selected_attention": "argap.models.mixers.selected_attention:SelectedAttention",
    "multihead_hyena": "argap.models.mixers.multihead_hyena:MultiheadHyena",
    "retnet": "argap.models.mixers.retnet:RetNet",
    "long_conv": "argap.models.mixers.long_conv:LongConv",
    "hyena": "argap.models.mixers.hyena:Hyena",
    "h3": "argap.models.mixers.h3:H3",
    "mamba": "argap.models.mixers.mamba:Mamba",
    "mamba2": "argap.models.mixers.mamba2:Mamba2",
    "mla": "argap.models.mixers.mla:MLA",
    "mlstm": "argap.models.mixers.mlstm:MLSTM",
    "nsa": "argap.models.mixers.nsa:NSA",
    "rg_lru": "argap.models.mixers.rg_lru:RGLRU",
    "rwkv4": "argap.models.mixers.rwkv4:RWKV4",
    "rwkv7": "argap.models.mixers.rwkv7:RWKV7",
    "rwkv4_channel": "argap.models.mixers.rwkv4:RWKV4Channel",
    "liquid_s4": "argap.models.mixers.liquid_s4:LiquidS4",
}
SHIPPED = frozenset(MIXERS.values())
"""Classes that a file may name without `trust_remote_code`."""
BUILT_WITH = ("width", "max_positions")
"""Arguments that every mixer takes; the others are its options."""


def register_mixer(name: str, mixer: type[Mixer] | str) -> None:
    """Make ``mixer``, a class or its ``"module:Class"``, known as ``name`` in this process.

    A checkpoint may name its mixer as ``module:Class``. Registering the class under exactly that name lets the
    checkpoint load without `trust_remote_code`: ``register_mixer("my_module:MyMixer", MyMixer)``.

    Raises `ArgapError` if the name is already registered for another class, or for a string without a class.
    """
    known = MIXERS.get(name, mixer)
    if known != mixer:
        raise ArgapError(f"mixer {name!r}: already registered as {_path_of(known)}; choose another name")
    if isinstance(mixer, str) and ":" not in mixer:
        raise ArgapError(f"mixer {name!r}: {mixer!r} names no class; expected module:Class")
    MIXERS[name] = mixer


def resolve(name: str) -> type[Mixer]:
    """Return the class of a registered name, or of a ``module:Class`` that the caller trusts.

    See `argap.runtime.trust`. Raises `ArgapError` for an unknown name (listing the known ones), for a module that is
    not trusted (before it is imported), and for a class that is not a `Mixer`.
    """
    mixer = MIXERS.get(name, name)
    if isinstance(mixer, str):
        mixer = _import(name, mixer)
    if not (isinstance(mixer, type) and issubclass(mixer, Mixer)):
        raise ArgapError(f"mixer {name!r}: {_path_of(mixer)} is not a subclass of argap.models.mixer.Mixer")
    return mixer


def _import(name: str, path: str) -> Any:
    module, _, attribute = path.partition(":")
    if not attribute:
        known = ", ".join(sorted(MIXERS))
        raise ArgapError(f"mixer {name!r}: unknown; known are {known}, or your own class as module:Class")
    if name not in MIXERS and path not in SHIPPED and not is_trusted():
        raise ArgapError(
            f"mixer {name!r}: would import the module {module!r}, which is not part of argap; "
            "if you trust it, use `trust_remote_code=True`"
        )
    try:
        imported = importlib.import_module(module)
    except ImportError as error:
        raise ArgapError(f"mixer {name!r}: {error}; put the folder of your module on PYTHONPATH") from error
    except Exception as error:
        raise ArgapError(f"mixer {name!r}: importing {module!r} fails ({type(error).__name__}: {error})") from error
    if path not in SHIPPED and imported.__file__ is not None:
        own_files.add(imported.__file__)
    try:
        return getattr(imported, attribute)
    except AttributeError as error:
        raise ArgapError(f"mixer {name!r}: {error}; expected a class of that module") from error


def _path_of(mixer: Any) -> str:
    return mixer if isinstance(mixer, str) else f"{mixer.__module__}:{mixer.__qualname__}"


def options_of(mixer_class: type[Mixer]) -> dict[str, inspect.Parameter]:
    """Return the options of a mixer, with their defaults and annotations."""
    parameters = inspect.signature(mixer_class).parameters
    return {name: parameter for name, parameter in parameters.items() if name not in BUILT_WITH}


def build_mixer(spec: Spec, width: int, max_positions: int | None) -> Mixer:
    """Build a mixer from ``{"name": ..., option: ...}``.

    Raises `ArgapError` for an unknown option (listing the known ones), for a value that the option's annotation
    excludes or that the mixer refuses, and for a class that lacks a method.
    """
    options = dict(spec)
    name = options.pop("name")
    mixer_class = resolve(name)
    if missing := mixer_class.missing():
        raise ArgapError(f"mixer {name!r}: the class does not define {missing}")
    known = options_of(mixer_class)
    unknown = [option for option in options if option not in known]
    if unknown:
        listed = ", ".join(known) or "none"
        raise ArgapError(f"mixer {name!r}: unknown option {', '.join(unknown)}; its options are {listed}")
    try:
        for option, value in options.items():
            annotation = known[option].annotation
            with suppress(TypeError):  # an annotation of your own mixer that cannot be checked
                if annotation is not inspect.Parameter.empty and (expected := unmet(value, annotation)):
                    raise ArgapError(f"{name}: {option} {value!r}; expected {expected}")
        return mixer_class(width, max_positions, **options)
    except (TypeError, ValueError, AttributeError, ZeroDivisionError, RuntimeError) as error:
        given = ", ".join(f"{option}={str(value)[:40]}" for option, value in options.items()) or "its defaults"
        raise ArgapError(f"mixer {name!r}: cannot be built with {given} ({first_line(error)})") from error
