"""Read plain YAML: mappings, sequences and plain scalars, of bounded size, depth and number.

PyYAML parses the text and reads the scalars; values are built from its events, so that anchors, aliases, tags and
duplicate keys are refused before anything is constructed, in one line with file, line and key. An alias can stand for
gigabytes, and a tag names a type to construct. Text, whole numbers, numbers, true and false, and null follow YAML 1.1;
a date is text.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from argap.errors import ArgapError
from argap.files.regular import check_regular

LARGEST = 1_000_000
"""Bytes of a file."""
DEEPEST = 20
"""Levels of nested mappings and sequences."""
MOST = 100_000
"""Parser events: keys, scalars, and starts and ends of mappings and sequences."""
LONGEST_NUMBER = 64
"""Characters of a scalar that may be a number; a longer one is text."""
TYPED = tuple(f"tag:yaml.org,2002:{name}" for name in ("null", "bool", "int", "float"))
"""Types of a plain scalar besides text."""

Events = Iterator[Any]


class _Scalars(yaml.SafeLoader):
    """Reader of scalars: finds the type of one and converts it; the YAML itself is parsed elsewhere."""

    yaml_implicit_resolvers = {  # noqa: RUF012
        sign: [(tag, pattern) for tag, pattern in patterns if tag in TYPED]
        for sign, patterns in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def read(self, text: str, *, plain: bool) -> Any:
        """Return the value of a scalar. ``plain``: not quoted, so that ``12`` is a number."""
        if not plain or len(text) > LONGEST_NUMBER:
            return text
        return self.construct_object(yaml.ScalarNode(self.resolve(yaml.ScalarNode, text, (True, False)), text))


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the mapping in a file. Raises `ArgapError` for one that is missing, not plain YAML, or not a mapping."""
    check_regular(path, LARGEST)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ArgapError(f"{path}: not readable ({error.strerror})") from None
    except UnicodeDecodeError as error:
        raise ArgapError(f"{path}: not readable ({error})") from None
    try:
        values = parse_yaml(text)
    except ArgapError as error:
        raise ArgapError(f"{path}: {error}") from None
    if not isinstance(values, dict):
        found = "nothing" if values is None else type(values).__name__
        raise ArgapError(f"{path}: expected KEY: VALUE lines, found {found}")
    return values


def parse_yaml(text: str) -> Any:
    """Return the value of a YAML text. Raises `ArgapError` with line and key, without the file's name."""
    if len(text) > LARGEST:
        raise ArgapError(f"not readable as YAML ({len(text):,} characters, expected at most {LARGEST:,})")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    events = _bounded(yaml.parse(text, Loader=loader))
    try:
        next(events)  # the stream
        if isinstance(next(events), yaml.StreamEndEvent):
            return None
        value = _Reader(events).value(next(events), ())
        next(events)  # the end of the document
        if not isinstance(extra := next(events), yaml.StreamEndEvent):
            raise _refusal(extra, (), "a second document; expected one")
        return value
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        raise ArgapError(f"not readable as YAML ({' '.join(str(error).split())})") from None


def _bounded(events: Events) -> Events:
    for count, event in enumerate(events):
        if count > MOST:
            raise _refusal(event, (), f"more than {MOST:,} values, expected at most that many")
        yield event


class _Reader:
    """Builder of values from the parser's events that refuses anything not plain."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._scalars = _Scalars("")

    def value(self, event: Any, keys: tuple[str, ...]) -> Any:
        """Return the value that begins with ``event``, at ``keys`` from the root."""
        if isinstance(event, yaml.AliasEvent):
            raise _refusal(event, keys, f"the alias *{event.anchor}; expected the value itself")
        if event.anchor is not None:
            raise _refusal(event, keys, f"the anchor &{event.anchor}; expected a plain value")
        if event.tag is not None:
            raise _refusal(event, keys, f"the tag {event.tag}; expected a plain value")
        if isinstance(event, yaml.ScalarEvent):
            try:
                return self._scalars.read(event.value, plain=event.implicit[0])
            except (ValueError, OverflowError):
                raise _refusal(event, keys, f"{event.value!r}, which is not a number") from None
        if len(keys) >= DEEPEST:
            raise _refusal(event, keys[:3], f"values nested more than {DEEPEST} deep")
        return self._sequence(keys) if isinstance(event, yaml.SequenceStartEvent) else self._mapping(keys)

    def _sequence(self, keys: tuple[str, ...]) -> list[Any]:
        items: list[Any] = []
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            items.append(self.value(event, (*keys, str(len(items)))))
        return items

    def _mapping(self, keys: tuple[str, ...]) -> dict[Any, Any]:
        values: dict[Any, Any] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            if not isinstance(event, yaml.ScalarEvent | yaml.AliasEvent):
                raise _refusal(event, keys, "a key that is a mapping or sequence; expected text")
            key = self.value(event, keys)
            if key in values:
                raise _refusal(event, keys, f"the key {key} is listed twice")
            values[key] = self.value(next(self._events), (*keys, str(key)))
        return values


def _refusal(event: Any, keys: tuple[str, ...], what: str) -> ArgapError:
    where = f"{'.'.join(keys)}: " if keys else ""
    return ArgapError(f"line {event.start_mark.line + 1}: {where}{what}")
