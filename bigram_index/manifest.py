"""``index.json``: what an index says of itself.

Nothing in it depends on when, where or in how many pieces the counting was done, so equal contents are
equal bytes.
"""

import re
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from argap.atomic import read_json, write_json
from argap.errors import FormatError

FORMAT = "argap bigram index"
VERSION = 1
FILE = "index.json"
COUNTED = "counted"


@dataclass(frozen=True)
class Manifest:
    """The contents of ``index.json``."""

    tokenizer: str
    tokenizer_fingerprint: str
    """SHA-256 of what makes the tokenizer (`argap.tokenizer.Tokenizer.fingerprint`)."""
    vocab_size: int
    documents: int
    """Documents with at least one token."""
    empty_documents: int
    """Documents without a token: skipped, counted here alone."""
    tokens: int
    """Tokens of all documents, EOS between documents not among them."""
    bigrams: int
    """Adjacent pairs inside documents: the sum of all counts."""
    distinct: int
    sources: list[str] = field(default_factory=list)
    """What was counted, sorted; a source counted twice stands here twice."""
    parts: list[dict[str, Any]] = field(default_factory=list)
    """Of each Parquet part, in order: file, rows, bytes and the CRC-32 of every mebibyte."""
    origin: str = COUNTED
    """``counted`` from documents, which ``index.json`` does not mention; else where the counts come from:
    ``counts`` (a table), ``arpa`` (a model), or several of these joined by ``+``."""
    stats: dict[str, Any] = field(default_factory=dict)
    """Of ``stats.parquet``: file, bytes and checksums; empty, and not mentioned, where there is none."""


OPTIONAL = {"origin": COUNTED, "stats": {}}
"""Entries that ``index.json`` leaves out where they say no more than this."""


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write ``index.json``: the last file of an index to be written."""
    value = asdict(manifest)
    stated = {name: entry for name, entry in value.items() if OPTIONAL.get(name) != entry}
    write_json(folder / FILE, {"format": FORMAT, "version": VERSION, **stated})


def read_manifest(folder: Path) -> Manifest:
    """Read ``index.json``. Raises `FormatError` where it is missing, corrupt, or of a newer version."""
    path = folder / FILE
    if not path.is_file():
        raise FormatError(f"{folder}: no index there (no {FILE}); build one with `argap index build`")
    value = read_json(path)
    if value.pop("format", None) != FORMAT:
        raise FormatError(f"{path}: not the {FILE} of a bigram index")
    version = value.pop("version", None)
    if version != VERSION:
        newer = isinstance(version, int) and version > VERSION
        raise FormatError(
            f"{path}: index of format version {version}, this argap reads version {VERSION}: "
            + ("install a newer argap" if newer else "build the index again with `argap index build`")
        )
    _check_fields(path, value)
    return Manifest(**value)


def _check_fields(path: Path, value: dict[str, Any]) -> None:
    types = {f.name: f.type for f in fields(Manifest)}
    for name, kind in types.items():
        expected = type(OPTIONAL[name]) if name in OPTIONAL else {str: str, int: int}.get(kind, list)  # type: ignore[arg-type]
        if name in OPTIONAL:
            value.setdefault(name, OPTIONAL[name])
        if not isinstance(value.get(name), expected):
            raise FormatError(f"{path}: {name!r} is missing or no {expected.__name__}; {REBUILD}")
    if unknown := sorted(set(value) - set(types)):
        raise FormatError(f"{path}: unknown entry {unknown[0]!r}; known ones are {', '.join(types)}")
    rows = 0
    for part in value["parts"]:
        if not isinstance(part, dict) or not {"file", "rows", "bytes", "crc32"} <= part.keys():
            raise FormatError(f"{path}: a part without file, rows, bytes or crc32; {REBUILD}")
        if not re.fullmatch(r"part-\d+\.parquet", str(part["file"])):
            raise FormatError(f"{path}: {part['file']!r} is no name of a part; {REBUILD}")
        rows += part["rows"]
    if rows != value["distinct"]:
        raise FormatError(f"{path}: its parts hold {rows} rows, but distinct is {value['distinct']}; {REBUILD}")


REBUILD = "copy the index again or build it with `argap index build`"
