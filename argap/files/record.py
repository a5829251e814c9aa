"""The base of all records, and how they are read and written."""

from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from argap.errors import ArgapError, FormatError
from argap.files.atomic import read_json, write_json

Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
"""How many there are of something: sums of such numbers fit 64 bits, and float64 holds each exactly."""


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """Base of all records. Fields that have their default value are not written."""


AnyRecord = TypeVar("AnyRecord", bound=Record)


def read_record(
    path: Path, record_type: type[AnyRecord], *, oldest: int = 1, newest: int | None = None, remedy: str = ""
) -> AnyRecord:
    """Read a JSON file into its record.

    ``oldest``, ``newest``: the format numbers that this version reads (a file without one has format 1). ``remedy``:
    what to do about a file that is older or incomplete. Raises `FormatError`, one line with path, key, found and
    expected.
    """
    values = read_json(path)
    number = values.setdefault("format", 1) if newest is not None else 1
    if newest is not None and isinstance(number, int) and number > newest:
        raise FormatError(f"{path}: written by a newer argap (format {number}, known up to {newest})")
    if isinstance(number, int) and number < oldest:
        raise FormatError(f"{path}: written by an older argap (format {number}, expected {oldest}); {remedy}")
    return to_record(path, values, record_type, remedy=remedy)


def to_record(where: object, values: Any, record_type: type[AnyRecord], *, remedy: str = "") -> AnyRecord:
    """The record of JSON values. Raises `FormatError` that begins with ``where`` they are."""
    try:
        return msgspec.convert(values, record_type, strict=True)
    except (msgspec.ValidationError, ArgapError) as error:
        raise FormatError(f"{where}: {error}{remedy and f'; {remedy}'}") from None


def write_record(path: Path, record: Record, *, indent: int | None = 2, lines: str | None = None) -> None:
    """Write a record as JSON, whole or not at all. ``indent``, ``lines``: as in `write_json`."""
    write_json(path, as_json(record), indent=indent, lines=lines)


def as_json(record: Record) -> dict[str, Any]:
    """The record as JSON's plain types, in the order of its fields."""
    return msgspec.to_builtins(record)
