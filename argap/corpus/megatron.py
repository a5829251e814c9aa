"""Token files of Megatron and GPT-NeoX: a ``.bin`` of tokens and an ``.idx`` with the sequences' bounds.

The Pile and Pythia's training data are published in this form: tokenized, cut into samples of 2,049 tokens, each
overlapping the next by one token, and shuffled. Every sequence counts as a document, as it does where Megatron trains
GPT, and an EOS inside it ends one, so every pair of a sample counts once; the token that two samples share is counted
in both.
"""

import struct
from pathlib import Path

import numpy as np

from argap.corpus.remote import local_file
from argap.errors import FormatError
from argap.files.regular import is_there

MAGIC = b"MMIDIDX\x00\x00"
HEADER = struct.Struct("<9sQBQQ")  # magic, version, type code, sequences, documents
TYPES = {1: np.uint8, 2: np.int8, 3: np.int16, 4: np.int32, 5: np.int64, 8: np.uint16}


def is_pair(path: Path) -> bool:
    """Return whether ``path`` is a ``.bin`` with a Megatron ``.idx`` beside it."""
    index = path.with_suffix(".idx")
    if path.suffix != ".bin" or not is_there(index):
        return False
    with index.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def read_header(path: Path) -> tuple[np.dtype, int]:
    """Return the type of the tokens of ``path`` and the number of its sequences.

    Raises `FormatError` naming the index for an inconsistent header or length.
    """
    index = path.with_suffix(".idx")
    with index.open("rb") as file:
        header = file.read(HEADER.size)
    if len(header) < HEADER.size:
        raise FormatError(f"{index}: truncated at byte {len(header)}, inside its header")
    _, version, code, sequences, documents = HEADER.unpack(header)
    if version != 1 or code not in TYPES:
        raise FormatError(f"{index}: version {version}, type code {code}; expected version 1 and integers")
    expected = HEADER.size + 12 * sequences + 8 * documents
    if (size := index.stat().st_size) not in (expected, expected + sequences):  # a byte more of each, its mode
        raise FormatError(f"{index}: {size} bytes, its header announces {expected}; is it truncated?")
    return np.dtype(TYPES[code]).newbyteorder("<"), sequences


def open_sequences(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Open the tokens of ``path``, `[N]`, memory-mapped, and each sequence's bounds, `[sequences, 2]` int64.

    Raises `FormatError` as `read_header` does, and for a bound outside the tokens.
    """
    dtype, sequences = read_header(path)
    index = path.with_suffix(".idx")
    with index.open("rb") as file:
        file.seek(HEADER.size)
        sizes = np.frombuffer(file.read(4 * sequences), "<i4").astype(np.int64)
        pointers = np.frombuffer(file.read(8 * sequences), "<i8")
    if not path.stat().st_size:
        return np.empty(0, dtype), np.empty((0, 2), np.int64)
    with local_file(path) as local:
        tokens = np.memmap(local, dtype, "r", shape=path.stat().st_size // dtype.itemsize)
    starts = pointers // dtype.itemsize
    bounds = np.stack([starts, starts + sizes], axis=1)
    if len(bounds) and (bounds.min() < 0 or bounds.max() > len(tokens) or sizes.min() < 0):
        raise FormatError(
            f"{path}: {len(tokens)} tokens, but {index.name} points to token {bounds.max()}; is it truncated?"
        )
    return tokens, bounds
