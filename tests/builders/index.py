"""Indexes of a few documents, and what their folders hold."""

from collections.abc import Iterable
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
