"""Define the base of all records; read and write them as JSON."""

from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from argap.errors import ArgapError, FormatError
from argap.files.atomic import read_json, write_json

Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
"""A count: sums of counts fit in 64 bits, and float64 represents each exactly."""


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """Base of all records. Fields with their default value are not written."""


AnyRecord = TypeVar("AnyRecord", bound=Record)


def read_record(path: Path, record_type: type[AnyRecord], *, newest: int | None = None, remedy: str = "") -> AnyRecord:
    """Read a JSON file into its record.

    ``newest``: the highest format number that this version reads (a file without one has format 1). ``remedy``: what
    the user can do about a bad file. Raises `FormatError`, one line with path, key, found and expected.
    """
    values = read_json(path)
    number = values.setdefault("format", 1) if newest is not None else 1
    if newest is not None and isinstance(number, int) and number > newest:
        raise FormatError(f"{path}: written by a newer argap (format {number}, known up to {newest})")
    return to_record(path, values, record_type, remedy=remedy)


def to_record(where: object, values: Any, record_type: type[AnyRecord], *, remedy: str = "") -> AnyRecord:
    """Convert JSON values to a record. Raises `FormatError` that begins with ``where`` they come from."""
    try:
        return msgspec.convert(values, record_type, strict=True)
    except (msgspec.ValidationError, ArgapError) as error:
        raise FormatError(f"{where}: {error}{remedy and f'; {remedy}'}") from None


def write_record(path: Path, record: Record, *, indent: int | None = 2) -> None:
    """Write a record as JSON, whole or not at all. ``indent`` None: on one line."""
    write_json(path, as_json(record), indent=indent)


def as_json(record: Record) -> dict[str, Any]:
    """Return the record in JSON's plain types, fields in order."""
    return msgspec.to_builtins(record)
