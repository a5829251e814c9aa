"""Change every part of a JSON, YAML or JSON lines file in turn, without a checksum; `mutations` draws only a few."""

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from mutations import SEAL

Keys = tuple[Any, ...]
REMOVED = object()


def changes(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield a description of each change, and the altered file.

    The first and last item of a list, and line of a file, stand for all; a key that occurs in both is changed once.
    """
    if path.suffix == ".jsonl":
        lines = path.read_text().splitlines()
        for at in sorted({0, len(lines) - 1}):
            old = json.loads(lines[at])
            old.pop(SEAL, None)
            for how, value in _of_value(old):
                yield (
                    f"line {at + 1}: {how}",
                    "\n".join([*lines[:at], json.dumps(value), *lines[at + 1 :], ""]).encode(),
                )
    elif path.suffix == ".json":
        value = json.loads(path.read_text())
        if isinstance(value, dict):
            value.pop(SEAL, None)
        yield from ((how, json.dumps(changed).encode()) for how, changed in _of_value(value))
    elif path.suffix == ".yaml":
        value = yaml.safe_load(path.read_text())
        yield from ((how, yaml.safe_dump(changed).encode()) for how, changed in _of_value(value))


def _of_value(value: Any) -> Iterator[tuple[str, Any]]:
    for keys, old in list(_parts(value, (), (), set())):
        for new in _instead(old):
            changed = copy.deepcopy(value)
            container = changed
            for key in keys[:-1]:
                container = container[key]
            if new is REMOVED:
                del container[keys[-1]]
            else:
                container[keys[-1]] = new
            where, what = ".".join(map(str, keys)), "removed" if new is REMOVED else f"to {new!r}"
            yield f"{where}: {str(old)[:20]!r} {what}", changed


def _parts(value: Any, keys: Keys, like: Keys, seen: set[Keys]) -> Iterator[tuple[Keys, Any]]:
    """Yield the keys and value of each part. ``like``: the keys with a star for a list index; each occurs once."""
    items = list(value.items()) if isinstance(value, dict) else []
    if isinstance(value, list) and value:
        items = [(at, value[at]) for at in sorted({0, len(value) - 1})]
    for key, item in items:
        pattern = (*like, "*" if isinstance(value, list) else key)
        if pattern not in seen:
            seen.add(pattern)
            yield (*keys, key), item
        yield from _parts(item, (*keys, key), pattern, seen)


def _instead(old: Any) -> tuple[Any, ...]:
    """Values of the same type, of another one, and none."""
    if isinstance(old, bool):
        return REMOVED, not old, 3, None
    if isinstance(old, str):
        return REMOVED, f"{old}x", "", None
    if isinstance(old, int | float):
        return REMOVED, old + 1, -1, 10**30, "x", None
    if isinstance(old, list | dict):
        return REMOVED, type(old)(), None
    return REMOVED, 1, "x"
