"""Configurations: frozen dataclasses and records from mappings; an unknown key or a wrong type is one clear line."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from argap.errors import ArgapError

Built = TypeVar("Built")

# Ranges are declared with a field, ``seed: Seed = 0``, and checked before memory is asked for: in files by msgspec, in
# configurations by `check_ranges`.
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


def build(kind: type[Built], values: Mapping[str, Any]) -> Built:
    """A dataclass or record from a mapping: unknown and missing keys are named, values are converted by type.

    A field that holds such a dataclass takes a mapping, or what the class's ``from_text`` takes. Raises
    `ArgapError`, one line without a file's name.
    """
    known = _required(kind)
    if unknown := [str(key) for key in values if key not in known]:
        raise ArgapError(f"unknown key {', '.join(unknown)}; known are {', '.join(known)}")
    if missing := [name for name, required in known.items() if required and values.get(name) is None]:
        raise ArgapError(f"{', '.join(missing)}: missing")
    hints = get_type_hints(kind, include_extras=True)
    return kind(**{key: _convert(key, value, hints[key]) for key, value in values.items()})


def check_ranges(config: Any) -> None:
    """Raise `ArgapError`, one line, for a field of ``config`` outside the range that it is declared with.

    NaN is outside of every range.
    """
    for name, hint in get_type_hints(type(config), include_extras=True).items():
        value: Any = getattr(config, name)
        if value is not None and (expected := unmet(value, hint)):
            raise ArgapError(f"{name}: expected {expected}, found {value}")


def check_field(kind: type[Any], name: str, value: Any, option: str) -> None:
    """Raise `ArgapError`, one line that starts with ``option``, for a value that `build` would not take for a field."""
    hint = get_type_hints(kind, include_extras=True).get(name)
    if hint is None:
        raise ArgapError(f"{option}: unknown key; known are {', '.join(_required(kind))}")
    if expected := unmet(_convert(option, value, hint), hint):
        raise ArgapError(f"{option}: expected {expected}, found {value}")


def unmet(value: Any, hint: Any) -> str | None:
    """The values that ``hint`` allows, in words; None where ``value`` is one of them.

    Checks the values of a `Literal`, declared ranges, and booleans; other types are checked elsewhere.
    """
    options = get_args(hint)
    if value is None and type(None) in options:
        return None
    if hint is bool and not isinstance(value, bool):
        return "true or false"
    for part in (hint, *options):
        if get_origin(part) is Literal and value not in get_args(part):
            return " or ".join(map(str, get_args(part)))
        for bounds in getattr(part, "__metadata__", ()):
            if not _is_within(value, bounds):
                return _range(bounds)
    return None


def check_value(name: str, value: Any, hint: Any) -> None:
    """Raise `ArgapError`, one line, for a value of another type or outside the range of ``hint``."""
    try:
        msgspec.convert(value, hint, strict=True)
    except msgspec.ValidationError as error:
        raise ArgapError(f"{name}: {str(error).partition(' - at')[0]}, found {str(value)[:40]}") from None


def _is_within(value: Any, bounds: msgspec.Meta) -> bool:
    return (
        (bounds.ge is None or value >= bounds.ge)
        and (bounds.gt is None or value > bounds.gt)
        and (bounds.le is None or value <= bounds.le)
        and (bounds.lt is None or value < bounds.lt)
    )


def _range(bounds: msgspec.Meta) -> str:
    if bounds.ge is not None and bounds.le is not None:
        return f"{bounds.ge:,} to {bounds.le:,}"
    words = {"at least": bounds.ge, "above": bounds.gt, "at most": bounds.le, "below": bounds.lt}
    return ", ".join(f"{word} {bound:,}" for word, bound in words.items() if bound is not None)


def _required(kind: type[Any]) -> dict[str, bool]:
    """The fields, and whether each must be given."""
    if issubclass(kind, msgspec.Struct):
        return {field.name: field.required for field in msgspec.structs.fields(kind)}
    return {f.name: f.default is MISSING and f.default_factory is MISSING for f in fields(kind)}


def _convert(name: str, value: Any, hint: Any) -> Any:
    """``value`` as ``hint`` says, or an `ArgapError`. YAML reads ``1e-3`` as text and ``on`` as true."""
    if get_origin(hint) is Annotated:
        return _convert(name, value, get_args(hint)[0])  # the class checks the range (`check_ranges`)
    options = get_args(hint)
    if type(None) in options:
        return None if value is None else _convert(name, value, options[0])
    if hint is Any or (get_origin(hint) is get_origin(Mapping[str, Any]) and isinstance(value, dict)):
        return value
    if get_origin(hint) is Literal:
        text = str(value).lower() if isinstance(value, bool) else value
        if text in options:
            return text
        raise ArgapError(f"{name}: expected {', '.join(options)}, found {value!r}")
    if get_origin(hint) is tuple:
        items = list(value) if isinstance(value, list | tuple) else [value]
        if options[-1] is not Ellipsis and len(items) != len(options):
            raise ArgapError(f"{name}: expected {len(options)} values, found {value!r}")
        return tuple(_convert(name, item, options[0]) for item in items)
    is_record = isinstance(hint, type) and (is_dataclass(hint) or issubclass(hint, msgspec.Struct))
    if is_record and isinstance(value, Mapping):
        return build(hint, value)
    if is_dataclass(hint) and isinstance(value, str) and hasattr(hint, "from_text"):
        return hint.from_text(value)  # pyright: ignore[reportAttributeAccessIssue]
    if hint in (int, float) and not isinstance(value, bool):
        with suppress(TypeError, ValueError, OverflowError):
            number = float(value)
            if hint is float:
                return number
            if number.is_integer():
                return int(number if isinstance(value, str) else value)
    if hint in (str, bool) and isinstance(value, hint):
        return value
    expected = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
    raise ArgapError(f"{name}: expected {expected.get(hint, 'KEY: VALUE lines')}, found {value!r}")
