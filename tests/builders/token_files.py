"""Files of token ids as other tools write them."""

import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np


def megatron_pair(
    path: Path, sequences: Sequence[np.ndarray], dtype: type[np.generic] = np.uint16, code: int = 8
) -> None:
    """Write ``path``, a ``.bin``, and its ``.idx``: magic, version, type code, counts, sizes, pointers, documents."""
    np.concatenate([np.empty(0, dtype), *sequences]).astype(dtype).tofile(path)
    sizes = np.array([len(s) for s in sequences], "<i4")
    pointers = (np.cumsum([0, *sizes[:-1]]) * np.dtype(dtype).itemsize).astype("<i8")
    header = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, code, len(sizes), len(sizes) + 1)
    documents = np.arange(len(sizes) + 1, dtype="<i8")
    path.with_suffix(".idx").write_bytes(header + sizes.tobytes() + pointers.tobytes() + documents.tobytes())
