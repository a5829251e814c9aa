"""Token shards: flat arrays of token ids, documents separated by EOS.

``.bin`` is headerless little-endian (uint16 if the vocabulary fits, else uint32), unless a Megatron index beside it
(`argap.corpus.megatron`) or the header of llm.c says more; ``.npy`` and the arrays of ``.npz`` record their type.
Shards are memory-mapped (from an object store or an archive: a local copy) and documents are copied one at a time.
"""

import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np

from argap.corpus import megatron
from argap.corpus.document import TokenDocument, TokenShard
from argap.corpus.remote import local_file
from argap.errors import ArgapError, FormatError, first_line
from argap.files.arrays import map_integers
from argap.files.regular import check_unpacked

SCAN = 2**22  # tokens searched for EOS at a time
LLM_C = {20240520: "<u2", 20240801: "<u4"}
"""Types of tokens by the first of the 256 int32 that precede them in files of llm.c; the third is their number."""
LLM_C_HEADER = 1024  # bytes
ENCRYPTED = 1
"""Flag of an archive's member."""


def token_dtype(name: str | np.dtype | None) -> np.dtype | None:
    """Return ``uint16`` or ``uint32`` (little-endian) by name, and None for None. Raises `ArgapError` for others."""
    if name is None:
        return None
    if str(name) not in ("uint16", "uint32"):
        raise ArgapError(f"`token_dtype` {name}: expected uint16 or uint32")
    return np.dtype(str(name)).newbyteorder("<")


def smallest_dtype(vocab_size: int) -> Literal["<u2", "<u4"]:
    """Return the default type of a ``.bin``: uint16 if the vocabulary fits, else uint32, little-endian."""
    return "<u2" if vocab_size <= 2**16 else "<u4"


def shards_of(path: Path, dtype: np.dtype | None, domain: str) -> Iterator[TokenShard]:
    """Yield the shard of a file, or that of each array of an ``.npz``. Raises `FormatError` for a damaged archive."""
    size = path.stat().st_size
    if path.suffix.lower() == ".bin":
        yield TokenShard(path, dtype, domain, size)
        return
    try:
        with path.open("rb") as file:
            if file.read(2) != b"PK":
                yield TokenShard(path, dtype, domain, size)
                return
            members = zipfile.ZipFile(file).infolist()
    except (OSError, zipfile.BadZipFile) as error:
        raise FormatError(f"{path}: not a complete .npz archive ({first_line(error)})") from error
    for member in members:
        if member.flag_bits & ENCRYPTED:
            raise FormatError(f"{path}: {member.filename} is encrypted; expected an archive without a password")
        check_unpacked(path, member.file_size, member.compress_size)
        yield TokenShard(path, dtype, domain, member.compress_size, member.filename)


def read(shard: TokenShard, *, eos: int | None, vocab_size: int) -> Iterator[TokenDocument]:
    """Read the documents of ``shard``. Without an EOS id the whole shard, or sequence of a Megatron pair, is one.

    Raises `FormatError` naming file and offset for a size that is not a multiple of the token size and for a token
    outside the vocabulary.
    """
    tokens, bounds = open_tokens(shard, vocab_size)
    number = 0
    for first, last in [(0, len(tokens))] if bounds is None else bounds.tolist():
        start = first
        for end in _document_ends(tokens, first, last, eos, vocab_size, shard):
            if end > start:
                ids = np.asarray(tokens[start:end], dtype=np.int32)
                yield TokenDocument(ids, shard.domain, f"{shard.name}#{number}")
            start = end + 1
            number += 1


def open_tokens(shard: TokenShard, vocab_size: int) -> tuple[np.ndarray, np.ndarray | None]:
    """Open the tokens of ``shard``, `[N]`, memory-mapped, and the bounds of its sequences, `[sequences, 2]` int64.

    Without bounds (None) they are one stream. Raises `FormatError` for a damaged file.
    """
    path = shard.path
    if megatron.is_pair(path):
        return megatron.open_sequences(path)
    if path.suffix.lower() == ".bin":
        return _flat(shard, vocab_size), None
    if path.stat().st_size == 0:
        return np.empty(0, dtype=np.uint16), None
    try:
        with local_file(path, shard.member) as local:
            tokens = map_integers(local, shard.name)
    except (ValueError, OSError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise FormatError(f"{shard.name}: not a complete .npy file ({error})") from error
    return tokens, None


def _flat(shard: TokenShard, vocab_size: int) -> np.ndarray:
    """Open a ``.bin`` without an index, `[N]`."""
    path, size = shard.path, shard.path.stat().st_size
    dtype, start = shard.dtype or np.dtype(smallest_dtype(vocab_size)), 0
    with path.open("rb") as file:
        header = np.frombuffer(file.read(LLM_C_HEADER), "<i4") if size >= LLM_C_HEADER else [0]
    if int(header[0]) in LLM_C and shard.dtype is None:
        dtype, start = np.dtype(LLM_C[int(header[0])]), LLM_C_HEADER
        if size != (expected := start + int(header[2]) * dtype.itemsize):
            raise FormatError(f"{path}: {size} bytes, its header (llm.c's) announces {expected}; is it truncated?")
    if size % dtype.itemsize:
        raise FormatError(
            f"{path}: {size} bytes are not a multiple of {dtype.itemsize} ({dtype.name} tokens); is it truncated, or "
            "is another `token_dtype` meant?"
        )
    if size == start:
        return np.empty(0, dtype)
    with local_file(path) as local:
        return np.memmap(local, dtype, "r", start)


def _document_ends(
    tokens: np.ndarray, start: int, stop: int, eos: int | None, vocab_size: int, shard: TokenShard
) -> Iterator[int]:
    """Yield the positions just after each document from ``start`` to ``stop``: after each EOS, and ``stop``."""
    for offset in range(start, stop, SCAN):
        block = tokens[offset : min(offset + SCAN, stop)]
        outside = (block >= vocab_size) | (block < 0)
        if outside.any():
            at = offset + int(np.argmax(outside))
            raise FormatError(
                f"{shard.name}: token {int(tokens[at])} at offset {at} is outside the vocabulary of "
                f"{vocab_size}; is it another tokenizer's, or is another `token_dtype` meant?"
            )
        if eos is not None:
            yield from (offset + np.flatnonzero(block == eos)).tolist()
    yield stop
