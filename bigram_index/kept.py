"""Token shards, written once beside an index: tokenizing is the real cost of counting.

A folder of ``shard-*.bin`` (headerless, little-endian, uint16 where the vocabulary fits, else uint32, an
EOS behind every document; `numpy.fromfile` reads them, and so does `argap.corpus`) and ``index.json``
with each shard's checksum. A shard is written whole or not at all, so a run that was killed goes on
behind the last one.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from argap.atomic import read_json, replacing, write_json
from argap.bigram_index import checksum
from argap.bigram_index.source import Source
from argap.errors import ArgapError, FormatError, MismatchError

FORMAT = "argap token shards"
SHARD_TOKENS = 2**25
"""Tokens after which a shard is closed: some ten seconds of tokenizing on two cores."""


@dataclass(frozen=True)
class KeptShard:
    """One finished shard."""

    tokens: np.ndarray
    """`[N]`, memory-mapped, an EOS behind every document."""
    empty_documents: int


def keep_tokens(source: Source, folder: Path, sources: list[str]) -> Iterator[KeptShard]:
    """Yield the shards of ``source``'s text: first those that are there already, then new ones.

    Raises `MismatchError` where ``folder`` holds the shards of other text or another tokenizer,
    `FormatError` for a damaged one, `ArgapError` for a tokenizer without EOS.
    """
    tokenizer = source.tokenizer
    if tokenizer.eos is None:
        raise ArgapError(f"{tokenizer.name}: has no EOS token, which must separate the documents of kept tokens")
    path = folder / "index.json"
    kind = np.dtype("<u2" if tokenizer.vocab_size <= 2**16 else "<u4")
    state: dict[str, Any] = {
        "format": FORMAT,
        "version": 1,
        "tokenizer": tokenizer.name,
        "tokenizer_fingerprint": tokenizer.fingerprint,
        "vocab_size": tokenizer.vocab_size,
        "eos": tokenizer.eos,
        "dtype": kind.name,
        "sources": sources,
        "finished": False,
        "shards": [],
    }
    if path.exists():
        found = read_json(path)
        _require_same(path, found, state)
        state = found
    read = 0
    for shard in state["shards"]:
        checksum.check(folder / shard["file"], shard, f"delete {folder} and build again")
        read += shard["documents"] + shard["empty_documents"]
        yield _open(folder, shard, kind)
    if state["finished"]:
        source.find_token_files()
        return
    for group, empty in _groups(source.documents(skip=read), tokenizer.eos):
        name = f"shard-{len(state['shards']):05d}.bin"
        with replacing(folder / name) as temporary:
            np.concatenate([np.empty(0, kind), *group], dtype=kind, casting="unsafe").tofile(temporary)
        described = checksum.describe(folder / name)
        shard = {"file": name, "documents": len(group) // 2, "empty_documents": empty, **described}
        state["shards"].append(shard)
        write_json(path, state)
        yield _open(folder, shard, kind)
    write_json(path, state | {"finished": True})


def _groups(documents: Iterable[np.ndarray], eos: int) -> Iterator[tuple[list[np.ndarray], int]]:
    """Documents, each with EOS behind it, for about `SHARD_TOKENS` tokens; and how many were empty."""
    end = np.array([eos], dtype=np.int32)
    group: list[np.ndarray] = []
    empty = tokens = 0
    for document in documents:
        if len(document):
            group += [document, end]
            tokens += len(document) + 1
        else:
            empty += 1
        if tokens >= SHARD_TOKENS:
            yield group, empty
            group, empty, tokens = [], 0, 0
    if group or empty:
        yield group, empty


def _open(folder: Path, shard: dict[str, Any], kind: np.dtype) -> KeptShard:
    path = folder / shard["file"]
    tokens = np.memmap(path, kind, "r") if shard["bytes"] else np.empty(0, kind)
    return KeptShard(tokens, shard["empty_documents"])


def _require_same(path: Path, found: dict[str, Any], wanted: dict[str, Any]) -> None:
    if found.get("format") != FORMAT or found.get("version") != 1 or "shards" not in found:
        raise FormatError(f"{path}: not the index.json of token shards of version 1; delete its folder")
    for key in ("tokenizer_fingerprint", "eos", "dtype", "sources"):
        if found.get(key) != wanted[key]:
            raise MismatchError(
                f"{path}: tokens kept with {key} {found.get(key)!r}, now {wanted[key]!r}; "
                f"delete {path.parent} or choose another --out"
            )
