"""Parse settings for all models of a command or for one: ``--dtype float32``, ``--dtype NAME=float32``."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from argap.errors import ArgapError


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
    """Parse ``VALUE`` and ``NAME=VALUE``, or a mapping by name. Raises `ArgapError` if a name is given twice."""
    if isinstance(given, Mapping):
        return PerModel(None, dict(given))
    default, named = None, {}
    for text in [given] if isinstance(given, str) else given or ():
        name, equals, value = text.rpartition("=")
        if (name in named) if equals else default is not None:
            raise ArgapError(f"`{what}` {text}: given twice for {name or 'all models'}")
        if equals:
            named[name] = value
        else:
            default = value
    return PerModel(default, named)
