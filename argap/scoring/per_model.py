"""Parse what is given for all models of a command or for one by name: ``--dtype NAME=float32``, ``NAME=CKPT``."""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from argap.errors import ArgapError

NAMED = re.compile(r"([^/=:]+)=(.+)", re.DOTALL)
"""``NAME=CKPT``."""


class PerModel(NamedTuple):
    """A setting for all models, with exceptions by name.

    >>> per_model("dtype", ["bfloat16", "small=float32"])
    PerModel(default='bfloat16', named={'small': 'float32'})
    """

    default: str | None = None
    named: Mapping[str, str] = {}

    def of(self, name: str) -> str | None:
        return self.named.get(name, self.default)

    def check(self, what: str, names: Iterable[str]) -> None:
        """Raise `ArgapError` for a setting of an unknown model; ``what``: the setting's name."""
        known = sorted(names)
        for name in self.named:
            if name not in known:
                raise ArgapError(f"`{what}` {name}={self.named[name]}: no model {name}; expected {', '.join(known)}")


NO_SETTING = PerModel()
OWN_BOS = "own"
"""The tokenizer's own BOS."""
NO_BOS = "none"
"""No BOS, whatever the tokenizer does."""


def per_model(what: str, given: str | Mapping[str, str] | Sequence[str] | None) -> PerModel:
    """Parse ``VALUE`` and ``NAME=VALUE``, or a mapping by name. Raises `ArgapError` if a name is given twice.

    Names and paths may have a ``=``, as ``lr=0.1``: the longest ending that is a path is the value, else what is behind
    the last one.
    """
    if isinstance(given, Mapping):
        return PerModel(None, dict(given))
    default, named = None, {}
    for text in [given] if isinstance(given, str) else given or ():
        starts = [0, *(found.end() for found in re.finditer("=", text))]
        start = next((at for at in starts if _is_path(text[at:])), starts[-1])
        name, value = text[: max(0, start - 1)], text[start:]
        if (name in named) if start else default is not None:
            raise ArgapError(f"`{what}` {text}: given twice for {name or 'all models'}")
        if start:
            named[name] = value
        else:
            default = value
    return PerModel(default, named)


def _is_path(text: str) -> bool:
    try:
        return Path(text).exists()
    except OSError:  # too long for a name
        return False


def split_name(source: str) -> tuple[str | None, str]:
    """Split ``NAME=CKPT`` or ``NAME=RUN``; the name is None where there is none. A path that exists may have a ``=``.

    >>> split_name("bf16=org/model"), split_name("runs/lr=0.1/final")
    (('bf16', 'org/model'), (None, 'runs/lr=0.1/final'))
    """
    match = NAMED.fullmatch(source)
    return (None, source) if match is None or _is_path(source) else (match[1], match[2])


def with_name(name: str, source: object) -> str:
    """Return ``NAME=CKPT``. Raises `ArgapError` for a name that `split_name` would not find again."""
    if split_name(both := f"{name}={source}") != (name, str(source)):
        raise ArgapError(f"model name {name!r}: expected a plain name without /, = and :")
    return both
