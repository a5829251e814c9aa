"""A cache of the text's tokens beside an index, because tokenizing takes far longer than counting.

A folder of ``shard-*.bin`` (headerless, little-endian, uint16 if the vocabulary fits, else uint32, an EOS after every
document; `numpy.fromfile` and `argap.corpus` read them) and ``index.json`` with each shard's checksums. A shard is
written whole or not at all, so a killed run resumes after the last one.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from argap.bigram_index.counting.sorted_runs import write_array
from argap.bigram_index.sources.token_source import TokenSource
from argap.corpus.shards import smallest_dtype
from argap.errors import ArgapError, FormatError, MismatchError
from argap.files import checksums
from argap.files.atomic import replacing
from argap.files.regular import is_there
from argap.records import Record, read_record, write_record
from argap.runtime.threads import gathered

FORMAT = "argap token shards"
VERSION = 1
SHARD_TOKENS = 2**25
"""Tokens after which a shard is closed: about ten seconds of tokenizing on two cores."""


class CachedShard(Record, frozen=True):
    """One shard, with its checksums (`argap.files.checksums`)."""

    file: str
    documents: int
    empty_documents: int
    bytes: int
    crc32: tuple[str, ...]


class CacheManifest(Record, frozen=True, kw_only=True):
    """The cache's ``index.json``."""

    format: str
    version: int
    tokenizer: str
    tokenizer_fingerprint: str
    vocab_size: int
    eos: int
    dtype: str
    sources: tuple[str, ...]
    finished: bool
    """Whether all documents of the text are in the shards."""
    shards: tuple[CachedShard, ...]


@dataclass(frozen=True)
class ShardTokens:
    """The tokens of one finished shard."""

    tokens: np.ndarray
    """`[N]`, memory-mapped, an EOS after every document."""
    empty_documents: int


def cached_tokens(source: TokenSource, folder: Path, sources: list[str]) -> Iterator[ShardTokens]:
    """Yield the shards of ``source``'s text: those in ``folder``, then new ones as they are written there.

    Raises `MismatchError` if ``folder`` holds shards of another text or tokenizer, `FormatError` for a damaged shard,
    `ArgapError` for a tokenizer without EOS.
    """
    tokenizer = source.tokenizer
    if tokenizer.eos is None:
        raise ArgapError(f"{tokenizer.name}: has no EOS token, which must separate the documents of kept tokens")
    path = folder / "index.json"
    dtype = np.dtype(smallest_dtype(tokenizer.vocab_size))
    manifest = CacheManifest(
        format=FORMAT,
        version=VERSION,
        tokenizer=tokenizer.name,
        tokenizer_fingerprint=tokenizer.fingerprint,
        vocab_size=tokenizer.vocab_size,
        eos=tokenizer.eos,
        dtype=dtype.name,
        sources=tuple(sources),
        finished=False,
        shards=(),
    )
    if is_there(path):
        manifest = _read_manifest(path, manifest)
    read = 0
    for shard in manifest.shards:
        checksums.check(folder / shard.file, shard, f"delete {folder} and build again")
        read += shard.documents + shard.empty_documents
        yield _open(folder, shard, dtype)
    if manifest.finished:
        source.find_token_files()
        return
    end = np.array([tokenizer.eos], dtype=np.int32)
    # One EOS follows each non-empty document.
    for documents in gathered(source.documents(skip=read), SHARD_TOKENS, lambda ids: len(ids) + bool(len(ids))):
        group = [piece for ids in documents if len(ids) for piece in (ids, end)]
        name = f"shard-{len(manifest.shards):05d}.bin"
        with replacing(folder / name) as temporary:
            write_array(np.concatenate([np.empty(0, dtype), *group], dtype=dtype, casting="unsafe"), temporary)
        sums = checksums.checksums_of(folder / name)
        full = len(group) // 2
        shard = CachedShard(name, full, len(documents) - full, sums.bytes, sums.crc32)
        manifest = msgspec.structs.replace(manifest, shards=(*manifest.shards, shard))
        write_record(path, manifest)
        yield _open(folder, shard, dtype)
    write_record(path, msgspec.structs.replace(manifest, finished=True))


def _open(folder: Path, shard: CachedShard, dtype: np.dtype) -> ShardTokens:
    tokens = np.memmap(folder / shard.file, dtype, "r") if shard.bytes else np.empty(0, dtype)
    return ShardTokens(tokens, shard.empty_documents)


def _read_manifest(path: Path, wanted: CacheManifest) -> CacheManifest:
    """Read the manifest in ``path``. Raises `MismatchError` unless its shards are those of ``wanted``."""
    manifest = read_record(path, CacheManifest)
    if (manifest.format, manifest.version) != (FORMAT, VERSION):
        raise FormatError(f"{path}: not the index.json of token shards of version {VERSION}; delete its folder")
    for key in ("tokenizer_fingerprint", "eos", "dtype", "sources"):
        old, new = getattr(manifest, key), getattr(wanted, key)
        if old != new:
            raise MismatchError(
                f"{path}: tokens kept with {key} {old!r}, now {new!r}; delete {path.parent} or choose another `out`"
            )
    return manifest
