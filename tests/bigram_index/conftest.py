"""Indexes of a few documents, and what their folders hold."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from argap.bigram_index.build import build_index
from argap.bigram_index.store import BigramIndex


@pytest.fixture(autouse=True)
def same_draws(request: pytest.FixtureRequest) -> None:
    """A test's draws from its module's generator do not depend on the tests before it."""
    if (generator := getattr(request.module, "RNG", None)) is not None:
        generator.bit_generator.state = np.random.default_rng(0).bit_generator.state


def build(out: Path, documents: Iterable[Any], **changes: Any) -> BigramIndex:
    """The index of documents of token ids; ``changes``: other arguments of `build_index`."""
    made: dict[str, Any] = {"vocab_size": 5, "tokenizer": "t", "tokenizer_fingerprint": "ab" * 32, "sources": ["s"]}
    return build_index((np.asarray(ids, dtype=np.int64) for ids in documents), out, **made | changes)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}
