"""Indexes of a few documents, what their folders hold, and files of token ids as other tools write them."""

import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from argap.bigram_index.build import build_from_source
from argap.bigram_index.sources.shard import Shard
from argap.bigram_index.store import BigramIndex


def build(out: Path, documents: Iterable[Any], **changes: Any) -> BigramIndex:
    """The index of documents of token ids; ``changes``: to how it was made, and arguments of `build_from_source`."""
    made = {"vocab_size": 5, "tokenizer": "t", "tokenizer_fingerprint": "ab" * 32, "sources": ["s"]} | changes
    vocab_size, name, fingerprint, sources = (made.pop(key) for key in list(made)[:4])
    source: Any = SimpleNamespace(
        tokenizer=SimpleNamespace(vocab_size=vocab_size, name=name, fingerprint=fingerprint, eos=None),
        corpora=[SimpleNamespace(spec=spec) for spec in sources],
        shard=Shard(),
        documents=lambda: (np.asarray(ids, dtype=np.int64) for ids in documents),
        count_token_files=lambda counter: (),
    )
    return build_from_source(source, out, **made)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


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
