"""Let transformers read the configuration and weights of a GGUF file through argap's reader of headers.

transformers maps llama.cpp's names and layouts to its own for each architecture, but reads the whole file with the
package ``gguf`` for every question, three times for one model. Inside `reading` it gets a reader that has parsed the
header once, dequantisation over larger groups of rows in threads, and argap's progress instead of a bar of its own.
docs/real-models.md has the times; they leave nothing for a cache to save.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from math import prod
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np

from argap.checkpoints.gguf.header import NUMBERS, Header, check_gguf, read_header
from argap.errors import ArgapError, first_line
from argap.runtime.progress import progress, say

AT_ONCE = 2**18
"""Weights dequantised together: some arrays of this size fit a processor's cache."""
PATCHED = Lock()
"""Held while transformers has argap's reader, which is the whole process's."""


@cache
def gguf_config(path: Path) -> dict[str, Any]:
    """Return the configuration of the file as in transformers' ``config.json``.

    Raises `ArgapError` for an architecture that transformers does not read from GGUF.
    """
    check_gguf(path)
    say(f"{path.name}: reading {_summary(read_header(path))}")
    from transformers import AutoConfig  # takes seconds

    try:
        with reading(path):
            return AutoConfig.from_pretrained(path.parent, gguf_file=path.name).to_dict()
    except Exception as error:  # the reader raises whatever the bytes lead to
        raise ArgapError(f"{path}: transformers cannot read its configuration ({first_line(error)})") from None


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Give transformers argap's reader for ``path`` inside the block."""
    import gguf
    from transformers import modeling_gguf_pytorch_utils as theirs

    names = cache(gguf.get_tensor_name_map)  # asked for by every module of the model
    done = _Done(path.name)
    by_parts = partial(dequantized, done=done.part)
    with (
        PATCHED,
        patch.multiple("gguf", GGUFReader=_Reader, dequantize=by_parts, get_tensor_name_map=names),
        patch.object(theirs, "tqdm", lambda tensors, **_: done.each(tensors)),
    ):
        yield


def dequantized(data: np.ndarray, kind: Any, done: Callable[[int], None] = lambda _: None) -> np.ndarray:
    """Return the weights ``[…, n]``, float32, of ``data [R, bytes]``, the blocks of ``R`` rows.

    ``done``: called with the bytes of each part that is finished. Blocks do not depend on their row, so that of
    ``gguf``, which takes sixteen rows at a time, is called with one long row of many.
    """
    from gguf import GGML_QUANT_SIZES
    from gguf.quants import dequantize

    block, size = GGML_QUANT_SIZES[kind]
    columns = data.shape[-1] // size * block
    rows, found = data.reshape(-1, data.shape[-1]), np.empty((data.size // data.shape[-1], columns), dtype=np.float32)
    together = max(1, AT_ONCE // columns)

    def convert(first: int) -> int:
        part = rows[first : first + together]
        found[first : first + together] = dequantize(part.reshape(1, -1), kind).reshape(len(part), columns)
        return part.nbytes

    import torch

    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        for nbytes in pool.map(convert, range(0, len(rows), together)):
            done(nbytes)
    return found.reshape(*data.shape[:-1], columns)


def _summary(header: Header) -> str:
    """Describe the model: ``llama, 134,515,008 weights, most as Q4_1``."""
    from gguf import GGMLQuantizationType

    names, sizes = {kind.value: kind.name for kind in GGMLQuantizationType}, Counter[str]()
    for tensor in header.tensors:
        sizes[names.get(tensor.kind, f"type {tensor.kind}")] += prod(tensor.shape)
    most = f", most as {sizes.most_common(1)[0][0]}" if sizes else ""
    return f"{header.architecture}, {sizes.total():,} weights{most}"


class _Field(NamedTuple):
    """A value of the metadata as ``gguf.GGUFReader`` shows it, of a type that transformers leaves as it is."""

    parts: list[Any]
    types: tuple[None] = (None,)
    data: tuple[int] = (0,)


@dataclass(frozen=True)
class _Tensor:
    """A tensor as ``gguf.GGUFReader`` shows it."""

    path: Path
    name: str
    tensor_type: Any
    rows: tuple[int, ...]
    """All axes but the last."""
    offset: int
    """Bytes from the start of the file."""
    nbytes: int

    @property
    def data(self) -> np.ndarray:
        """Return the tensor's bytes, uint8, the last axis those of a row."""
        return np.memmap(self.path, np.uint8, "r", self.offset, (self.nbytes,)).reshape(*self.rows, -1)


class _Reader:
    """The part of ``gguf.GGUFReader`` that transformers uses. Of the vocabulary it shows the size."""

    def __init__(self, path: str | Path) -> None:
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

        header = read_header(Path(path))
        self.fields = {key: _Field([value]) for key, value in header.values.items()}
        for key, listed in header.lists.items():
            if key.startswith("tokenizer."):
                self.fields[key] = _Field([range(listed.length)])
            elif listed.kind in NUMBERS:
                numbers = header.read(key) or []
                self.fields[key] = _Field(numbers if len(numbers) == 1 else [numbers])
        self.tensors: list[_Tensor] = []
        for name, shape, number, offset in header.tensors:
            kind = GGMLQuantizationType(number)
            block, size = GGML_QUANT_SIZES[kind]
            nbytes = prod(shape) // block * size
            self.tensors.append(_Tensor(header.path, name, kind, shape[:-1], header.start + offset, nbytes))


class _Done:
    """Show how many bytes of the tensors are read, also within one."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.advance: Callable[[int], None] = lambda _: None
        self.within = 0
        """Bytes of the current tensor."""

    def each(self, tensors: Sequence[_Tensor]) -> Iterator[_Tensor]:
        total = sum(tensor.nbytes for tensor in tensors)
        with progress(f"reading {self.name}", total, unit="bytes") as self.advance:
            for tensor in tensors:
                self.within = 0
                yield tensor
                self.advance(tensor.nbytes - self.within)

    def part(self, nbytes: int) -> None:
        self.within += nbytes
        self.advance(nbytes)
