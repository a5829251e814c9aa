"""Configurations: frozen dataclasses and records from mappings, converted and checked by msgspec.

msgspec ignores unknown keys of a dataclass, and says what it expects in the words of its own types. Both are added
here, with the two shorthands that a file may use: one value for a list, and true or false for those words.
"""

import re
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from argap.errors import ArgapError

Built = TypeVar("Built")

# Ranges are declared with a field, ``seed: Seed = 0``, and checked before memory is asked for.
Whole = Annotated[int, msgspec.Meta(ge=0, le=10**9)]
Count = Annotated[int, msgspec.Meta(ge=1, le=10**9)]
Tokens = Annotated[int, msgspec.Meta(ge=1, le=10**16)]
Batch = Annotated[int, msgspec.Meta(ge=1, le=2**20)]
"""Windows or examples at once."""
Length = Annotated[int, msgspec.Meta(ge=1, le=2**24)]
"""Tokens of a window."""
Width = Annotated[int, msgspec.Meta(ge=1, le=2**17)]
Layers = Annotated[int, msgspec.Meta(ge=1, le=10_000)]
Vocabulary = Annotated[int, msgspec.Meta(ge=1, le=2**24)]
Seed = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Positive = Annotated[float, msgspec.Meta(gt=0, le=1e30)]
NotNegative = Annotated[float, msgspec.Meta(ge=0, le=1e30)]

WRONG_TYPE = re.compile(r"Expected `(\w+)[^`]*`(.*), got ")
"""What msgspec says of a value of another type."""
WORDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "object": "KEY: VALUE lines",
    "array": "a list",
}


def build(kind: type[Built], values: Mapping[str, Any]) -> Built:
    """Return the dataclass or record of a mapping: unknown and missing keys are named, values converted by type.

    Numbers may be given as text, because YAML reads ``1e-3`` as text. A field that holds such a dataclass takes a
    mapping, or what the class's ``from_text`` takes. Raises `ArgapError`, one line without a file's name.
    """
    known = _required(kind)
    if unknown := [str(key) for key in values if key not in known]:
        raise ArgapError(f"unknown key {', '.join(unknown)}; known are {', '.join(known)}")
    if missing := [name for name, required in known.items() if required and values.get(name) is None]:
        raise ArgapError(f"{', '.join(missing)}: missing")
    hints = get_type_hints(kind, include_extras=True)
    return kind(**{key: _convert(key, value, hints[key]) for key, value in values.items()})


def check_ranges(config: Any) -> None:
    """Raise `ArgapError`, one line, for a field of ``config`` whose value its declaration does not allow.

    NaN is outside every range.
    """
    for name, hint in get_type_hints(type(config), include_extras=True).items():
        check_value(name, getattr(config, name), hint)


def check_field(kind: type[Any], name: str, value: Any, option: str) -> None:
    """Raise `ArgapError`, one line that starts with ``option``, for a value that `build` would not take for a field."""
    hint = get_type_hints(kind, include_extras=True).get(name)
    if hint is None:
        raise ArgapError(f"{option}: unknown key; known are {', '.join(_required(kind))}")
    _convert(option, value, hint)


def check_value(name: str, value: Any, hint: Any) -> None:
    """Raise `ArgapError`, one line, for a value of another type than ``hint`` or outside its range."""
    if expected := unmet(value, hint):
        raise ArgapError(f"{name}: expected {expected}, found {_short(value)}")


def unmet(value: Any, hint: Any) -> str | None:
    """Return in words the values that ``hint`` allows; None if ``value`` is one of them."""
    try:
        msgspec.convert(value, hint, strict=True)
    except msgspec.ValidationError as error:
        return _expected(str(error), hint)
    return None


def _convert(name: str, value: Any, hint: Any) -> Any:
    try:
        return msgspec.convert(_prepared(value, hint), hint, strict=False)
    except msgspec.ValidationError as error:
        raise ArgapError(f"{name}: expected {_expected(str(error), hint)}, found {_short(value)}") from None


def _prepared(value: Any, hint: Any) -> Any:
    """Return ``value`` with its shorthands written out and the dataclasses in it built."""
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
    """Return what msgspec's ``message`` says was expected, in words."""
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
    """Return the fields, and whether each must be given."""
    if issubclass(kind, msgspec.Struct):
        return {field.name: field.required for field in msgspec.structs.fields(kind)}
    return {f.name: f.default is MISSING and f.default_factory is MISSING for f in fields(kind)}


def _short(value: Any) -> str:
    return repr(value)[:60]
