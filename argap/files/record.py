"""Define the base of all records; read and write them as JSON."""

from math import isfinite
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from argap.errors import ArgapError, FormatError
from argap.files.atomic import read_json, write_json
from argap.files.remedies import remedy_for

Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
"""A count: sums of counts fit in 64 bits, and float64 represents each exactly."""


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """Base of all records. Fields with their default value are not written."""


AnyRecord = TypeVar("AnyRecord", bound=Record)


def read_record(path: Path, record_type: type[AnyRecord], *, oldest: int = 1, newest: int | None = None) -> AnyRecord:
    """Read a JSON file into its record.

    ``oldest``, ``newest``: the format numbers that this version reads (a file without one has format 1). Raises
    `FormatError`, one line with path, key, found and expected.
    """
    values = read_json(path)
    number = values.setdefault("format", 1) if newest is not None else 1
    if newest is not None and isinstance(number, int) and number > newest:
        raise FormatError(f"{path}: written by a newer argap (format {number}, known up to {newest})")
    if isinstance(number, int) and number < oldest:
        raise FormatError(f"{path}: written by an older argap (format {number}, expected {oldest}){remedy_for(path)}")
    return to_record(path, values, record_type)


def to_record(path: Path, values: Any, record_type: type[AnyRecord], *, part: str = "") -> AnyRecord:
    """Convert JSON values, read from ``path`` or a ``part`` of it, to their record.

    Raises `FormatError`, also for a number that is not finite: Python reads ``Infinity``, ``NaN`` and 1e999, and argap
    writes none of them.
    """
    try:
        _check_finite(values)
        return msgspec.convert(values, record_type, strict=True)
    except (msgspec.ValidationError, ArgapError) as error:
        where = f"{path}: {part}: " if part else f"{path}: "
        raise FormatError(f"{where}{error}{remedy_for(path)}") from None


def _check_finite(values: Any) -> None:
    waiting = [("$", values)]  # no recursion: a parser may take deeper nesting than Python's stack
    while waiting:
        at, value = waiting.pop()
        if isinstance(value, float) and not isfinite(value):
            raise ArgapError(f"Expected a finite number, got {value} - at `{at}`")
        if isinstance(value, dict):
            waiting += [(f"{at}.{key}", each) for key, each in value.items()]
        elif isinstance(value, list):
            waiting += [(f"{at}[{k}]", each) for k, each in enumerate(value)]


def write_record(path: Path, record: Record, *, indent: int | None = 2, lines: str | None = None) -> None:
    """Write a record as JSON, whole or not at all. ``indent``, ``lines``: as in `write_json`."""
    write_json(path, as_json(record), indent=indent, lines=lines)


def as_json(record: Record) -> dict[str, Any]:
    """Return the record in JSON's plain types, fields in order."""
    return msgspec.to_builtins(record)
