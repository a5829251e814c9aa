"""Mixers by name. A name stands for ``"module:Class"``, imported when it is first used."""

import importlib
import inspect
from typing import Any

from argap.errors import ArgapError
from argap.models.mixer import Mixer

MIXERS: dict[str, str] = {
    "attention": "argap.models.attention:Attention",
    "base_conv": "argap.models.base_conv:BaseConv",
}


def resolve_mixer(name: str) -> type[Mixer]:
    """The class of a registered name or of a user's own ``module:Class``.

    Raises `ArgapError` listing the known names, or saying why the class does not serve.
    """
    place = MIXERS.get(name, name)
    module, _, attribute = place.partition(":")
    if not attribute:
        raise ArgapError(f"mixer {name!r}: unknown; known are {', '.join(sorted(MIXERS))}, or your own as module:Class")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ArgapError(f"mixer {name!r}: cannot be imported ({error})") from error
    if not (isinstance(found, type) and issubclass(found, Mixer)):
        raise ArgapError(f"mixer {name!r}: expected a subclass of argap.models.mixer.Mixer")
    return found


def build_mixer(spec: dict[str, Any], width: int, max_positions: int | None) -> Mixer:
    """A mixer from ``{"name": ..., option: ...}``. Raises `ArgapError` listing the known options."""
    options = dict(spec)
    name = options.pop("name")
    kind = resolve_mixer(name)
    known = [p for p in inspect.signature(kind).parameters if p not in ("width", "max_positions")]
    unknown = sorted(set(options) - set(known))
    if unknown:
        listed = ", ".join(known) or "none"
        raise ArgapError(f"mixer {name!r}: unknown option {unknown[0]!r}; its options are {listed}")
    return kind(width, max_positions, **options)
