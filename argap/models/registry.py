"""Mixers by name. A name stands for ``"module:Class"``, imported when it is first used."""

import importlib
import inspect
from typing import Any

from argap.errors import ArgapError
from argap.models.mixer import Mixer

MIXERS: dict[str, str] = {
    "attention": "argap.models.attention:Attention",
    "base_conv": "argap.models.base_conv:BaseConv",
    "base_conv_programmatic": "argap.models.input_dependent_conv:ProgrammaticConv",
    "base_conv_autocorrelation": "argap.models.input_dependent_conv:AutocorrelationConv",
    "based_conv": "argap.models.based:BasedConv",
    "delta_net": "argap.models.delta_net:DeltaNet",
    "gla": "argap.models.gla:GLA",
    "linear_attention": "argap.models.linear_attention:LinearAttention",
    "selected_attention": "argap.models.selected_attention:SelectedAttention",
    "retnet": "argap.models.retnet:RetNet",
    "long_conv": "argap.models.long_conv:LongConv",
    "hyena": "argap.models.hyena:Hyena",
    "h3": "argap.models.h3:H3",
    "mamba": "argap.models.mamba:Mamba",
    "rwkv4": "argap.models.rwkv4:RWKV4",
    "rwkv4_channel": "argap.models.rwkv4:RWKV4Channel",
    "liquid_s4": "argap.models.liquid_s4:LiquidS4",
}
BUILT_WITH = ("width", "max_positions")
"""What every mixer is built with; its other arguments are its options."""


def register(name: str, place: str) -> None:
    """Make ``place``, a ``"module:Class"``, known as ``name``.

    Raises `ArgapError` where the name stands for another class already.
    """
    if MIXERS.get(name, place) != place:
        raise ArgapError(f"mixer {name!r}: stands for {MIXERS[name]} already; choose another name than for {place}")
    if ":" not in place:
        raise ArgapError(f"mixer {name!r}: {place!r} names no class; expected module:Class")
    MIXERS[name] = place


def available() -> list[str]:
    """The registered names, sorted."""
    return sorted(MIXERS)


def resolve(name: str) -> type[Mixer]:
    """The class of a registered name or of a user's own ``module:Class``.

    Raises `ArgapError` listing the known names, or saying why the class does not serve.
    """
    place = MIXERS.get(name, name)
    module, _, attribute = place.partition(":")
    if not attribute:
        raise ArgapError(f"mixer {name!r}: unknown; known are {', '.join(available())}, or your own as module:Class")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ArgapError(f"mixer {name!r}: {error}; put the folder of your module on PYTHONPATH") from error
    if not (isinstance(found, type) and issubclass(found, Mixer)):
        raise ArgapError(f"mixer {name!r}: {attribute} is no subclass of argap.models.mixer.Mixer")
    return found


def options_of(kind: type[Mixer]) -> dict[str, Any]:
    """The options of a mixer and their defaults."""
    parameters = inspect.signature(kind).parameters
    return {name: p.default for name, p in parameters.items() if name not in BUILT_WITH}


def build_mixer(spec: dict[str, Any], width: int, max_positions: int | None) -> Mixer:
    """A mixer from ``{"name": ..., option: ...}``. Raises `ArgapError` listing the known options."""
    options = dict(spec)
    name = options.pop("name")
    kind = resolve(name)
    known = options_of(kind)
    unknown = [option for option in options if option not in known]
    if unknown:
        listed = ", ".join(known) or "none"
        raise ArgapError(f"mixer {name!r}: unknown option {', '.join(unknown)}; its options are {listed}")
    return kind(width, max_positions, **options)
