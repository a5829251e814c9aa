"""Estimates of the time and space to count a corpus, from measured rates.

Rates are those of ``benchmarks/results/index.json``, per core, unless others are given.
"""

from dataclasses import dataclass

from argap.bigram_index.counting.count import chunk_tokens, token_type
from argap.errors import ArgapError

TOKENIZE_RATE = 1.1e6
"""Tokens per second and core: GPT-2's tokenizer, Rust, on English."""
COUNT_RATE = 1.3e8
"""Tokens per second and core, sustained with spilling and merging."""
DISK_RATE = 5e8
"""Bytes per second of a node's disk or network."""
PART_BYTES = 1.7
"""Bytes of a bigram in the Parquet parts."""
RUN_BYTES = 6
"""Bytes of a bigram in a spilled run: second token and 32-bit count."""

# Distinct bigrams of English web text under a vocabulary of 50 k grow as HEAPS_FACTOR * tokens ** HEAPS:
# fitted to 0.54 M at 3.04 M tokens and 3.41 M at 49.4 M tokens of the benchmark's text.
HEAPS = 0.6624
HEAPS_FACTOR = 27.33


@dataclass(frozen=True)
class Plan:
    """Estimates for one corpus; times in seconds, sizes in bytes."""

    tokenize: float
    count: float
    merge: float
    token_bytes: float
    """Kept tokens of all nodes."""
    spill_bytes: float
    """Spilled runs of one node."""
    shuffle_bytes: float
    """Shards' indexes sent to the merging node."""
    index_bytes: float
    distinct: float
    memory: int
    """Memory of one process."""


def estimate(tokens: float, *, nodes: int, cores: int, vocab_size: int, memory: int) -> Plan:
    """Estimate a build of ``nodes`` shards, each on a node with ``cores`` cores, and their merge.

    Raises `ArgapError` for fewer than one token, node or core.
    """
    if tokens < 1 or nodes < 1 or cores < 1:
        raise ArgapError(f"{tokens:g} tokens on {nodes} nodes of {cores} cores: expected at least one of each")
    shard = tokens / nodes
    chunk = chunk_tokens(memory, vocab_size)
    chunks = -(-shard // chunk)
    spilled = chunks * distinct_bigrams(min(chunk, shard), vocab_size) if chunks > 1 else 0.0
    one, whole = distinct_bigrams(shard, vocab_size), distinct_bigrams(tokens, vocab_size)
    shuffle = nodes * one * PART_BYTES if nodes > 1 else 0.0
    return Plan(
        tokenize=shard / (TOKENIZE_RATE * cores),
        count=shard / (COUNT_RATE * cores) + 2 * spilled * RUN_BYTES / DISK_RATE,
        merge=shuffle / DISK_RATE + (nodes * one / (COUNT_RATE / 10) if nodes > 1 else 0.0),
        token_bytes=tokens * token_type(vocab_size).itemsize,
        spill_bytes=spilled * RUN_BYTES,
        shuffle_bytes=shuffle,
        index_bytes=whole * PART_BYTES,
        distinct=whole,
        memory=memory,
    )


def distinct_bigrams(tokens: float, vocab_size: int) -> float:
    """Return the expected number of distinct bigrams by Heaps' law, at most the possible ones."""
    return min(HEAPS_FACTOR * tokens**HEAPS, tokens, float(vocab_size) ** 2)
