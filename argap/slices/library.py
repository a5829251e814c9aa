"""Read named slices from a YAML file; ``library.yaml`` holds the bundled ones."""

import re
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path

from argap.errors import ArgapError, within
from argap.files.configs import build
from argap.files.plain_yaml import read_yaml
from argap.records import EvaluationRecord, Record
from argap.slices.conditions import check_syntax, quoted

LIBRARY = Path(__file__).parent / "library.yaml"
BUILT_IN = ("all", "overall", "ar_hits", "other")
"""Names reserved in every result."""
NAME = re.compile(r"\w[\w +-]*")
LONGEST_NAME = 200
FILLED = re.compile(r"""'[^']*'|"[^"]*"|\{reference\}|\{seq_len\}""")
"""What `filled` fills in, and text and names in quotes, in which it does not."""


class SliceSpec(Record, frozen=True):
    """A slice as defined in a file."""

    name: str
    where: str
    """Condition on the columns of `argap.tokens.table`, with the placeholders of `filled`."""
    title: str = ""
    note: str = ""


def library() -> list[SliceSpec]:
    """Return the bundled slices."""
    return read_slices(LIBRARY)


def slice_specs(given: str | PathLike[str] | Mapping[str, str]) -> list[SliceSpec]:
    """Return slices from a YAML file or from a mapping of names to conditions. Raises `ArgapError` for a bad one."""
    return as_specs(given) if isinstance(given, Mapping) else read_slices(Path(given))


def read_slices(path: Path) -> list[SliceSpec]:
    """Read a YAML file: ``slices:`` with a list of ``name``, ``where`` and optionally ``title`` and ``note``.

    Raises `ArgapError`, one line that names the file, for unknown keys and for names that `check_names` refuses.
    """
    values = read_yaml(path)
    listed = values.get("slices")
    if list(values) != ["slices"] or not isinstance(listed, list) or not listed:
        raise ArgapError(
            f"{path}: expected the one key slices with a list of slices, found {', '.join(map(str, values))}"
        )
    with within(path):
        slices = []
        for k, each in enumerate(listed, start=1):
            if not isinstance(each, dict):
                raise ArgapError(f"slice {k}: expected name and where, found {type(each).__name__}")
            slices.append(build(SliceSpec, each))
        _check(slices)
    return slices


def as_specs(conditions: Mapping[str, str]) -> list[SliceSpec]:
    """Build a slice for each name and condition. Raises `ArgapError` for a bad name or a condition that is not SQL."""
    for name, where in conditions.items():
        if not isinstance(where, str):
            raise ArgapError(
                f"slice {name}: a condition that is recorded is SQL, found {type(where).__name__}; functions go to "
                "Result.gap"
            )
    slices = [SliceSpec(name, where) for name, where in conditions.items()]
    _check(slices)
    return slices


def _check(slices: Sequence[SliceSpec]) -> None:
    check_names(each.name for each in slices)
    for each in slices:
        check_syntax(each.where)


def check_names(names: Iterable[str], beside: Iterable[str] = ()) -> None:
    """Raise `ArgapError` for a name that is duplicate, built in, or not made of letters, digits, spaces, _, - and +.

    ``beside``: names that are taken, of any form.
    """
    seen = {*BUILT_IN, *beside}
    for name in names:
        if len(name) > LONGEST_NAME or not NAME.fullmatch(name):
            raise ArgapError(f"slice {name[:80]!r}: expected a name of letters, digits, spaces, _, - and +, not a path")
        if name in seen:
            what = "is built in" if name in BUILT_IN else "is the name of two slices"
            raise ArgapError(f"slice {name}: the name {what}; choose another")
        seen.add(name)


def filled(where: str, models: Sequence[str], evaluation: EvaluationRecord) -> str:
    """Fill in ``{reference}`` and ``{seq_len}`` in a condition, outside quotes. ``models``: the reference first."""
    values = {"{reference}": quoted(models[0]), "{seq_len}": str(evaluation.seq_len)}
    return FILLED.sub(lambda found: values.get(found[0], found[0]), where)
