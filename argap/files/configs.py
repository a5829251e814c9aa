"""Build configurations, frozen dataclasses and records, from mappings; msgspec converts and checks the values.

msgspec ignores unknown keys of a dataclass and names its own types in errors. This module refuses unknown keys, words
the errors for users, and accepts two shorthands in files: one value for a list, and true or false for those words.
"""

import re
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from argap.errors import ArgapError

Built = TypeVar("Built")

# A field declares its range, ``seed: Seed = 0``; ranges are checked before memory is allocated.
Whole = Annotated[int, msgspec.Meta(ge=0, le=10**9)]
Count = Annotated[int, msgspec.Meta(ge=1, le=10**9)]
Tokens = Annotated[int, msgspec.Meta(ge=1, le=10**16)]
Batch = Annotated[int, msgspec.Meta(ge=1, le=2**20)]
"""Windows or examples per batch."""
Length = Annotated[int, msgspec.Meta(ge=1, le=2**24)]
"""Tokens per window."""
Width = Annotated[int, msgspec.Meta(ge=1, le=2**17)]
Layers = Annotated[int, msgspec.Meta(ge=1, le=10_000)]
Vocabulary = Annotated[int, msgspec.Meta(ge=1, le=2**24)]
Seed = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Positive = Annotated[float, msgspec.Meta(gt=0, le=1e30)]
NotNegative = Annotated[float, msgspec.Meta(ge=0, le=1e30)]

WRONG_TYPE = re.compile(r"Expected `(\w+)[^`]*`(.*), got ")
"""How msgspec reports a value of the wrong type."""
WORDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "object": "KEY: VALUE lines",
    "array": "a list",
}


def build(kind: type[Built], values: Mapping[str, Any]) -> Built:
    """Build a dataclass or record from a mapping: name unknown and missing keys, convert values by type.

    Numbers may be given as text, because YAML reads ``1e-3`` as text. A field whose type is such a class takes a
    mapping, or text if the class has ``from_text``. Raises `ArgapError`, one line without the file's name.
    """
    known = _required(kind)
    if unknown := [str(key) for key in values if key not in known]:
        raise ArgapError(f"unknown key {', '.join(unknown)}; known are {', '.join(known)}")
    if missing := [name for name, required in known.items() if required and values.get(name) is None]:
        raise ArgapError(f"{', '.join(missing)}: missing")
    hints = _hints(kind)
    return kind(**{key: _convert(key, value, hints[key]) for key, value in values.items()})


def check_ranges(config: Any) -> None:
    """Raise `ArgapError`, one line, for a field of ``config`` whose value is outside its declared range or type.

    NaN is outside every range.
    """
    for name, hint in _hints(type(config)).items():
        check_value(name, getattr(config, name), hint)


def check_field(kind: type[Any], name: str, value: Any, option: str) -> None:
    """Raise `ArgapError`, one line that starts with ``option``, for a value that `build` would refuse for a field."""
    hint = _hints(kind).get(name)
    if hint is None:
        raise ArgapError(f"{option}: unknown key; known are {', '.join(_required(kind))}")
    _convert(option, value, hint)


def whole_number(text: str) -> int | None:
    """Return the number that decimal digits spell; None for other text, and for digits of more than a 64-bit number."""
    return int(text) if text.isdecimal() and len(text) < 19 else None


def parse_numbers(option: str, text: str) -> tuple[int, ...]:
    """Parse whole numbers with commas between them. Raises `ArgapError` for anything else."""
    numbers = [whole_number(each.strip()) for each in text.split(",")]
    found = tuple(number for number in numbers if number is not None and number < 10**9)
    if len(found) < len(numbers):
        raise ArgapError(f"`{option}` {text}: expected whole numbers with commas, such as 4,16,64")
    return found


def check_value(name: str, value: Any, hint: Any) -> None:
    """Raise `ArgapError`, one line, for a value that is not of type ``hint`` or outside its range."""
    if expected := unmet(value, hint):
        raise ArgapError(f"{name}: expected {expected}, found {_short(value)}")


def unmet(value: Any, hint: Any) -> str | None:
    """Return the values that ``hint`` allows, in words; None if ``value`` is one of them."""
    try:
        msgspec.convert(value, hint, strict=True)
    except msgspec.ValidationError as error:
        return _expected(str(error), hint)
    return None


@cache
def _hints(kind: type[Any]) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


def _convert(name: str, value: Any, hint: Any) -> Any:
    try:
        return msgspec.convert(_prepared(value, hint), hint, strict=False)
    except msgspec.ValidationError as error:
        raise ArgapError(f"{name}: expected {_expected(str(error), hint)}, found {_short(value)}") from None


def _prepared(value: Any, hint: Any) -> Any:
    """Return ``value`` with shorthands expanded and nested dataclasses built."""
    options = get_args(hint)
    if type(None) in options:
        return value if value is None else _prepared(value, options[0])
    if get_origin(hint) is tuple:
        return [_prepared(item, options[0]) for item in (value if isinstance(value, list | tuple) else [value])]
    if get_origin(hint) is Literal and isinstance(value, bool):
        return str(value).lower()
    if is_dataclass(hint) or (isinstance(hint, type) and issubclass(hint, msgspec.Struct)):
        if isinstance(value, Mapping):
            return build(hint, value)  # pyright: ignore[reportArgumentType]
        if isinstance(value, str) and hasattr(hint, "from_text"):
            return hint.from_text(value)  # pyright: ignore[reportAttributeAccessIssue]
    return value


def _expected(message: str, hint: Any) -> str:
    """Return in words what msgspec's ``message`` expected."""
    if match := WRONG_TYPE.match(message):
        return WORDS.get(match[1], match[1]) + match[2]
    for part in (hint, *get_args(hint)):
        if get_origin(part) is Literal:
            return " or ".join(map(str, get_args(part)))
        for bounds in getattr(part, "__metadata__", ()):
            return _range(bounds)
    return message


def _range(bounds: msgspec.Meta) -> str:
    if bounds.ge is not None and bounds.le is not None:
        return f"{bounds.ge:,} to {bounds.le:,}"
    words = {"at least": bounds.ge, "above": bounds.gt, "at most": bounds.le, "below": bounds.lt}
    return ", ".join(f"{word} {bound:,}" for word, bound in words.items() if bound is not None)


def _required(kind: type[Any]) -> dict[str, bool]:
    """Return for each field whether it is required."""
    if issubclass(kind, msgspec.Struct):
        return {field.name: field.required for field in msgspec.structs.fields(kind)}
    return {f.name: f.default is MISSING and f.default_factory is MISSING for f in fields(kind)}


def _short(value: Any) -> str:
    return repr(value)[:60]
