"""Token shards: flat files of token ids, documents separated by EOS.

``.bin`` is headerless little-endian (uint16 if the vocabulary fits, else uint32), ``.npy`` records its type. Shards are
memory-mapped (from an object store: a local copy) and documents are copied one at a time.
"""

from collections.abc import Iterator
from typing import Literal

import numpy as np

from argap.corpus.document import TokenDocument, TokenShard
from argap.corpus.remote import local_file
from argap.errors import ArgapError, FormatError

SUFFIXES = (".bin", ".npy")
SCAN = 2**22  # tokens searched for EOS at a time


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


def read(shard: TokenShard, *, eos: int | None, vocab_size: int) -> Iterator[TokenDocument]:
    """Read the documents of ``shard``. Without an EOS id the whole shard is one document.

    Raises `FormatError` naming file and offset for a size that is not a multiple of the token size and for a token
    outside the vocabulary.
    """
    tokens = open_tokens(shard, vocab_size)
    start = 0
    for number, end in enumerate(_document_ends(tokens, eos, vocab_size, shard)):
        if end > start:
            yield TokenDocument(np.asarray(tokens[start:end], dtype=np.int32), shard.domain, f"{shard.path}#{number}")
        start = end + 1


def open_tokens(shard: TokenShard, vocab_size: int) -> np.ndarray:
    """Open the tokens of ``shard``, `[N]`, memory-mapped. Raises `FormatError` for a file without tokens."""
    path = shard.path
    if path.stat().st_size == 0:
        return np.empty(0, dtype=np.uint16)
    if path.suffix == ".npy":
        try:
            with local_file(path) as local:
                tokens = np.lib.format.open_memmap(local, mode="r")
        except (ValueError, OSError, EOFError) as error:
            raise FormatError(f"{path}: not a complete .npy file ({error})") from error
        if tokens.ndim != 1 or tokens.dtype.kind not in "ui":
            raise FormatError(f"{path}: expected a flat array of integers, found {tokens.dtype} {tokens.shape}")
        return tokens
    dtype = shard.dtype or np.dtype(smallest_dtype(vocab_size))
    size = path.stat().st_size
    if size % dtype.itemsize:
        raise FormatError(
            f"{path}: {size} bytes are not a multiple of {dtype.itemsize} ({dtype.name} tokens); is it truncated, or "
            "is another `token_dtype` meant?"
        )
    with local_file(path) as local:
        return np.memmap(local, dtype=dtype, mode="r")


def _document_ends(tokens: np.ndarray, eos: int | None, vocab_size: int, shard: TokenShard) -> Iterator[int]:
    """Yield the positions just after each document: after each EOS, and the end of the shard."""
    for offset in range(0, len(tokens), SCAN):
        block = tokens[offset : offset + SCAN]
        outside = (block >= vocab_size) | (block < 0)
        if outside.any():
            at = offset + int(np.argmax(outside))
            raise FormatError(
                f"{shard.path}: token {int(tokens[at])} at offset {at} is outside the vocabulary of "
                f"{vocab_size}; is it another tokenizer's, or is another `token_dtype` meant?"
            )
        if eos is not None:
            yield from (offset + np.flatnonzero(block == eos)).tolist()
    yield len(tokens)
