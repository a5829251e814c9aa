"""Named references: a name stands for a checkpoint and the text and index it is compared on.

Kept in ``references.json`` in the folder ``$ARGAP_HOME`` (default ``~/.config/argap``). ``attention`` is
there out of the box: the reference of the demo.
"""

import os
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from argap.atomic import read_json, write_json
from argap.errors import ArgapError, FormatError

if TYPE_CHECKING:
    from argap.evaluation import Packing

DEMO = Path(__file__).parent / "demo"


@dataclass(frozen=True)
class Reference:
    """A checkpoint and, where recorded, what to compare on. None and () mean: not recorded."""

    checkpoint: str
    data: tuple[str, ...] = ()
    index: str | None = None
    seq_len: int | None = None
    packing: "Packing | None" = None
    text_column: str | None = None


BUILT_IN = {
    "attention": Reference(
        checkpoint=str(DEMO / "checkpoints" / "attention"),
        data=("stdlib:heldout",),
        index=str(DEMO / "index"),
        seq_len=1024,
        packing="packed",
    )
}


def absolute(place: str) -> str:
    """A local path made absolute, so that it holds from any folder; hub ids and other forms as they are."""
    return str(Path(place).resolve()) if Path(place).exists() else place


def references() -> dict[str, Reference]:
    """All names, a user's own before the built-in ones."""
    return {**BUILT_IN, **_own()}


def find_reference(name: str) -> Reference | None:
    return references().get(name)


def add_reference(name: str, reference: Reference) -> None:
    """Record ``reference`` under ``name``, replacing what stood there."""
    if not name or "/" in name or name in (".", ".."):
        raise ArgapError(f"reference name {name!r}: expected a plain name without slashes")
    _write({**_own(), name: reference})


def remove_reference(name: str) -> None:
    """Raises `ArgapError` for a name that is not recorded."""
    own = _own()
    if name not in own:
        known = ", ".join(sorted(own)) or "none"
        raise ArgapError(f"{name}: no reference of yours has that name; recorded ones: {known}")
    del own[name]
    _write(own)


def _file() -> Path:
    home = os.environ.get("ARGAP_HOME")
    return (Path(home) if home else Path.home() / ".config" / "argap") / "references.json"


def _own() -> dict[str, Reference]:
    path = _file()
    if not path.is_file():
        return {}
    known = {f.name for f in fields(Reference)}
    found = {}
    for name, entry in read_json(path).items():
        if not isinstance(entry, dict) or set(entry) - known or "checkpoint" not in entry:
            raise FormatError(f"{path}: the entry {name!r} is not one that this version wrote; remove or mend it")
        found[name] = Reference(**{**entry, "data": tuple(entry.get("data", ()))})
    return found


def _write(own: dict[str, Reference]) -> None:
    write_json(_file(), {name: asdict(reference) for name, reference in sorted(own.items())})
