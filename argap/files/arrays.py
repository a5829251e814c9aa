"""Map arrays of ``.npy`` files, whose header is an expression in Python that anyone may have written."""

import tokenize
import warnings
from pathlib import Path

import numpy as np

from argap.errors import FormatError, first_line

LONGEST_HEADER = 2**13
"""Bytes of a header, which are 118 of a flat array. The format allows 4 GB, and NumPy reads all before it refuses."""
REFUSALS = (
    *(OSError, EOFError, ValueError, TypeError, LookupError, ArithmeticError, AttributeError),
    *(tokenize.TokenError, SyntaxError, RecursionError, MemoryError),
)
"""What NumPy raises for a header, whose size bounds the memory that it can ask for."""


def map_integers(path: Path, name: object) -> np.ndarray:
    """Map the flat array of integers in a ``.npy`` file, called ``name`` in errors.

    Raises `FormatError` for anything else: elements without a size would end the process with SIGFPE.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # on a header of Python 2
            version = np.lib.format.read_magic(file)
            length = int.from_bytes(file.peek(4)[: 2 if version == (1, 0) else 4], "little")
            if version not in ((1, 0), (2, 0)) or length > LONGEST_HEADER:
                raise ValueError(f"version {version[0]}, a header of {length:,} bytes")
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, _, dtype = read(file)
            start = file.tell()
        flat = dtype.kind in "ui" and len(shape) == 1
        if flat and not 0 <= shape[0] <= (size - start) // dtype.itemsize:
            raise ValueError(f"{size - start:,} bytes for {shape[0]:,} elements")
    except REFUSALS as error:
        raise FormatError(f"{name}: not a complete .npy file ({first_line(error)[:200]})") from error
    if not flat:
        raise FormatError(f"{name}: expected a flat array of integers, found {f'{dtype} {shape}'[:200]}")
    return np.memmap(path, dtype, "r", start, (int(shape[0]),))
