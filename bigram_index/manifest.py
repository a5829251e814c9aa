"""``index.json``: an index's record of itself.

Its contents do not depend on when, where or in how many pieces the bigrams were counted: equal counts give equal bytes.
"""

import re
from pathlib import Path

from argap.errors import ArgapError, FormatError
from argap.files.atomic import read_json, write_json
from argap.files.configs import Vocabulary
from argap.records import Count, Record, as_json, to_record

FORMAT = "argap bigram index"
VERSION = 1
FILE = "index.json"
COUNTED = "counted"
REBUILD = "copy the index again or build it with `argap index build`"


class Part(Record, frozen=True, forbid_unknown_fields=True):
    """One Parquet part, with its checksums (`argap.files.checksums`)."""

    file: str
    rows: Count
    bytes: Count
    crc32: tuple[str, ...]


class Weight(Record, frozen=True, forbid_unknown_fields=True):
    """How often the training run read some of an index's sources."""

    weight: float
    sources: tuple[str, ...]


class Manifest(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The contents of ``index.json``. An entry with its default value is not written."""

    tokenizer: str
    tokenizer_fingerprint: str
    """SHA-256 over the tokenizer's parts (`argap.text.tokenizer.Tokenizer.fingerprint`)."""
    vocab_size: Vocabulary
    documents: Count
    """Documents with at least one token."""
    empty_documents: Count
    """Documents without a token, which are skipped."""
    tokens: Count
    """Tokens of all documents, without the EOS between them."""
    bigrams: Count
    """Adjacent pairs inside documents: the sum of all counts."""
    distinct: Count
    sources: tuple[str, ...]
    """The counted sources, sorted; a source that was counted twice is listed twice."""
    parts: tuple[Part, ...]
    """The Parquet parts, in order."""
    origin: str = COUNTED
    """Origin of the counts: ``counted`` (documents), ``counts`` (a table), ``arpa`` (a model), or several joined by
    ``+``."""
    passes: float = 1.0
    """How often the training run read the corpus: a bigram's exposures are ``count * passes``."""
    weights: tuple[Weight, ...] = ()
    """For counts that are exposures, merged from indexes of sources read unequally often. ``tokens`` and ``bigrams``
    are weighted too; ``documents`` and ``empty_documents`` are not."""

    def __post_init__(self) -> None:
        check_multiplier("passes", self.passes)
        for weight in self.weights:
            check_multiplier("weight", weight.weight)


UNWRITTEN = {"origin": COUNTED, "passes": 1.0}
"""Defaults that msgspec, which compares by identity, may not recognise."""


def check_multiplier(name: str, value: float) -> None:
    """Raise `ArgapError` unless ``value`` can say how often a corpus was read."""
    if not 0 < value < float("inf"):
        raise ArgapError(f"`{name}` {value:g}: expected a finite number above 0")


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write ``index.json``, the last file of an index to be written."""
    stated = {name: value for name, value in as_json(manifest).items() if UNWRITTEN.get(name) != value}
    write_json(folder / FILE, {"format": FORMAT, "version": VERSION, **stated})


def read_manifest(folder: Path) -> Manifest:
    """Read ``index.json``. Raises `FormatError` if it is missing, corrupt, or of a newer version."""
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
    value.pop("stats", None)  # a table of single tokens' counts, which indexes no longer have
    manifest = to_record(path, value, Manifest, remedy=REBUILD)
    for number, part in enumerate(manifest.parts):
        if not re.fullmatch(r"part-\d+\.parquet", part.file):
            raise FormatError(f"{path}: `$.parts[{number}].file` is {part.file!r}, expected part-N.parquet; {REBUILD}")
    rows = sum(part.rows for part in manifest.parts)
    if rows != manifest.distinct:
        raise FormatError(f"{path}: its parts hold {rows} rows, but distinct is {manifest.distinct}; {REBUILD}")
    return manifest


def refuse_existing(out: Path, *, overwrite: bool, marker: str = FILE) -> None:
    """Raise `ArgapError` if ``out`` must not be replaced: before the work is done, not after.

    An index, recognised by the file ``marker``, is replaced only with ``overwrite``; any other folder never.
    """
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    if not (out / marker).is_file():
        raise ArgapError(f"{out}: exists and is not an index; choose another `out`")
    if not overwrite:
        raise ArgapError(f"{out}: an index is already there; use `overwrite=True` to replace it")
