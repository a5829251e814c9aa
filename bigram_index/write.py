"""Everything an index folder holds, in the order in which it is written."""

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path

from argap.bigram_index import csr, manifest
from argap.bigram_index.parts import write_parts
from argap.bigram_index.runs import Rows
from argap.bigram_index.stats import TokenStats, write_stats


def write_index(
    folder: Path,
    rows: Iterable[Rows],
    *,
    tokenizer: str,
    tokenizer_fingerprint: str,
    vocab_size: int,
    documents: int,
    empty_documents: int,
    tokens: int,
    sources: list[str],
    origin: str = manifest.COUNTED,
    stats: Callable[[], TokenStats] | None = None,
) -> None:
    """Write parts, ``index.json`` and, for an index too large for memory, its rows for lookups.

    ``stats``: the counts of tokens, asked for when ``rows`` have all been read. Raises `OSError` where the disk
    refuses, of which `argap.bigram_index.folder.replacing_folder` makes one line.
    """
    parts, bigrams = write_parts(folder, rows)
    contents = manifest.Manifest(
        tokenizer=tokenizer,
        tokenizer_fingerprint=tokenizer_fingerprint,
        vocab_size=vocab_size,
        documents=documents,
        empty_documents=empty_documents,
        tokens=tokens,
        bigrams=bigrams,
        distinct=sum(part["rows"] for part in parts),
        sources=sorted(sources),
        parts=parts,
        origin=origin,
        stats=write_stats(folder, stats()) if stats else {},
    )
    manifest.write_manifest(folder, contents)
    if contents.distinct > csr.IN_MEMORY:
        identity = hashlib.sha256((folder / manifest.FILE).read_bytes()).hexdigest()
        csr.write(folder, contents, folder / csr.FOLDER, identity)
