"""Alter files: by structure if the format has one, by bytes in any format.

Every function takes a `random.Random`, so that seed and number repeat a mutation, and Hypothesis, which draws such
generators, can shrink one.
"""

import copy
import json
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

SEAL = "checksum"
UNSEALED = "without its checksum"
"""In the description of a change to JSON whose checksum was removed first, which is read unchecked."""
VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 2, 0.5, 10**12, 10**30, 1e308, "", "x", "NaN", "../../x", "=1+1", "a\nb", "\ud800", [], [1], {},
    {"x": None},
)  # fmt: skip
"""What a value of JSON or YAML is replaced by: other types, sizes, and names, and half a character."""


def mutate(rng: Random, path: Path) -> str:
    """Rewrite ``path`` altered, and say how. The new file replaces the old one and writes through no link."""
    content = path.read_bytes()
    kind = path.suffix if rng.random() < 0.6 else ""
    if kind in (".json", ".yaml", ".jsonl"):
        changed = _mutate_text(rng, kind, content)
    elif kind == ".parquet":
        changed = mutate_table(rng, path)
    else:
        changed = mutate_bytes(rng, content)
    path.unlink()
    path.write_bytes(changed[1])
    return changed[0]


def _mutate_text(rng: Random, kind: str, content: bytes) -> tuple[str, bytes]:
    if kind == ".jsonl":
        lines = content.decode().splitlines()
        at = rng.randrange(len(lines))
        how, value = mutate_value(rng, json.loads(lines[at]))
        lines[at] = json.dumps(value)
        return f"line {at + 1}: {how}", "\n".join([*lines, ""]).encode()
    if kind == ".json":
        value = json.loads(content)
        seal = value.pop(SEAL, None) if isinstance(value, dict) else None
        how, value = mutate_value(rng, value)
        if seal is None or rng.random() < 0.5:
            return f"{how}, {UNSEALED}" if seal else how, json.dumps(value).encode()
        return how, json.dumps(value | {SEAL: seal}).encode()
    how, value = mutate_value(rng, yaml.safe_load(content))
    return how, yaml.safe_dump(value).encode()


def mutate_value(rng: Random, value: Any) -> tuple[str, Any]:
    """Remove, replace, or double one part of a JSON value."""
    value = copy.deepcopy(value)
    paths = list(_positions(value, ()))
    if not paths:
        return "replaced", copy.deepcopy(rng.choice(VALUES))
    container, keys = rng.choice(paths)
    where, key = ".".join(map(str, keys)), keys[-1]
    action = rng.random()
    if action < 0.25:
        del container[key]
        return f"{where} removed", value
    if action < 0.3 and isinstance(container, dict):
        container[f"{key}x"] = container[key]
        return f"{where} added again", value
    old = container[key]
    container[key] = copy.deepcopy(rng.choice(_near(old) if rng.random() < 0.3 else VALUES))
    return f"{where}: {str(old)[:20]!r} to {container[key]!r}", value


def _near(value: Any) -> tuple[Any, ...]:
    """Values of the same type, which a check of types lets through."""
    if isinstance(value, bool):
        return (not value,)
    if isinstance(value, int | float):
        return (value + 1, -value, value * 1000, value * 10**9, value / 3)
    if isinstance(value, str):
        return (value + "x", value[:-1], value.upper(), "\x00" + value, value * 300)
    return VALUES


def _positions(value: Any, keys: tuple[Any, ...]) -> Any:
    """Every container of a JSON value with the keys from the root to each of its items."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield value, (*keys, key)
        yield from _positions(item, (*keys, key))


def mutate_bytes(rng: Random, content: bytes) -> tuple[str, bytes]:
    """Change a byte, remove, double or zero a stretch, open very many brackets, or cut off the end."""
    if not content:
        return "a byte added", b"x"
    at, length = rng.randrange(len(content)), rng.randint(1, 40)
    action = rng.randrange(6)
    if action == 0:
        return f"byte {at} changed", content[:at] + bytes([content[at] ^ rng.randint(1, 255)]) + content[at + 1 :]
    if action == 1:
        return f"bytes from {at} removed", content[:at] + content[at + length :]
    if action == 2:
        return f"bytes from {at} doubled", content[: at + length] + content[at:]
    if action == 3:
        return f"bytes from {at} zeroed", content[:at] + bytes(len(content[at : at + length])) + content[at + length :]
    if action == 4:
        return f"brackets at {at}", content[:at] + b"[" * 10**5 + content[at:]
    return f"cut at {at}", content[:at]


def mutate_table(rng: Random, path: Path) -> tuple[str, bytes]:
    """Rewrite a table with one change to a column or to its rows.

    A column is removed, renamed, given another type or an impossible value; rows are removed, doubled or reordered.
    """
    table = pq.read_table(path)
    column = rng.randrange(table.num_columns)
    name, rows = table.column_names[column], table.num_rows
    action = rng.randrange(8)
    if action == 0:
        how, table = f"{name} removed", table.drop_columns([name])
    elif action == 1:
        how, table = f"{name} renamed", table.rename_columns([f"{n}x" if n == name else n for n in table.column_names])
    elif action == 2:
        values = pa.array([str(value) for value in table[name].to_pylist()], pa.string())
        how, table = f"{name} as text", table.set_column(column, name, values)
    elif action == 3:
        how, table = "a row removed", table.slice(1)
    elif action == 4:
        how, table = "rows doubled", pa.concat_tables([table, table])
    elif action == 5:
        order = list(range(rows))
        rng.shuffle(order)
        how, table = "rows shuffled", table.take(order)
    elif action == 6:
        how, table = f"{name} without values", table.set_column(column, name, pa.nulls(rows, table[name].type))
    else:
        how, table = _with_odd_value(rng, table, column)
    out = pa.BufferOutputStream()
    pq.write_table(table, out)
    return how, out.getvalue().to_pybytes()


def _with_odd_value(rng: Random, table: pa.Table, column: int) -> tuple[str, pa.Table]:
    """Replace one value by an extreme of its type."""
    name, kind, row = table.column_names[column], table.schema.types[column], rng.randrange(max(1, table.num_rows))
    if pa.types.is_floating(kind):
        odd: Any = rng.choice([float("nan"), float("inf"), -float("inf"), 1e30, 0.5, None])
    elif pa.types.is_integer(kind):
        odd = rng.choice([-1, 0, 2 ** (kind.bit_width - 1) - 1, None])
    else:
        odd = None
    if not table.num_rows:
        return f"{name}: no rows", table
    items = table[name].to_pylist()
    items[row] = odd
    values = pa.array(items, kind)
    return f"{name}[{row}] to {odd}", table.set_column(column, name, values)
