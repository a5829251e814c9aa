"""Store named references: a short name for a checkpoint and the text and index used for comparisons.

Stored in ``$ARGAP_HOME/references.json`` (default ``~/.config/argap``). The demo's checkpoints ``attention``,
``base_conv`` and ``hybrid`` are built in.
"""

import os
from pathlib import Path

import msgspec

from argap.errors import ArgapError
from argap.files.atomic import read_json, write_json
from argap.files.regular import is_local, is_there
from argap.records import EvaluationSpec, SourceRecord, as_json, to_record

DEMO = Path(__file__).parents[1] / "demo"


class Reference(SourceRecord, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A checkpoint and, optionally, the text and index to compare on."""

    checkpoint: str

    @property
    def evaluation(self) -> EvaluationSpec:
        """The recorded evaluation settings, without the index."""
        return EvaluationSpec().over(self)


BUILT_IN = {
    name: Reference(
        checkpoint=str(DEMO / "checkpoints" / name),
        data=("stdlib:heldout",),
        index=str(DEMO / "index"),
        seq_len=1024,
        packing="packed",
    )
    for name in ("attention", "base_conv", "hybrid")
}


def absolute(source: str) -> str:
    """Make a local path absolute, so that it works from any directory; leave hub ids and other forms unchanged."""
    return str(Path(source).resolve()) if is_local(source) else source


def source_of(spec: EvaluationSpec, index: str | None) -> SourceRecord:
    """Return text and index as runs record them, with absolute paths."""
    located = msgspec.structs.replace(spec, data=tuple(map(absolute, spec.data)))
    return SourceRecord(**msgspec.structs.asdict(located), index=index and absolute(index))


def references() -> dict[str, Reference]:
    """Return all references by name. The user's take precedence over built-in ones."""
    return {**BUILT_IN, **_own()}


def find_reference(name: str) -> Reference | None:
    return references().get(name)


def add_reference(name: str, reference: Reference) -> None:
    """Record ``reference`` as ``name``, replacing any earlier one. Raises `ArgapError` for an invalid name."""
    from argap.corpus.remote import check_recordable  # imports numpy, which a list of names does not need
    from argap.files.lock import alone_in

    if not name or "/" in name or name in (".", ".."):
        raise ArgapError(f"reference name {name!r}: expected a plain name without slashes")
    for source in (reference.checkpoint, *reference.data):
        check_recordable(source)
    with alone_in(_file().parent):
        _write({**_own(), name: reference})


def remove_reference(name: str) -> None:
    """Forget a recorded reference. Raises `ArgapError` for an unknown name."""
    from argap.files.lock import alone_in

    with alone_in(_file().parent):
        own = _own()
        if name not in own:
            known = ", ".join(sorted(own)) or "none"
            raise ArgapError(f"{name}: no reference of that name is recorded; recorded: {known}")
        del own[name]
        _write(own)


def _file() -> Path:
    home = os.environ.get("ARGAP_HOME")
    return (Path(home) if home else Path.home() / ".config" / "argap") / "references.json"


def _own() -> dict[str, Reference]:
    path = _file()
    if not is_there(path):
        return {}
    return {name: to_record(path, entry, Reference, part=f"entry {name!r}") for name, entry in read_json(path).items()}


def _write(own: dict[str, Reference]) -> None:
    write_json(_file(), {name: as_json(reference) for name, reference in sorted(own.items())}, seal=False)
