"""Functions that count and look up bigrams, ours and the peers'.

Each peer imports its library inside its function, so that a missing library disables only that peer.
"""

import os
import tempfile

import numpy as np

VOCAB, EOS = 50_257, 50_256
SLOW = {"tokengrams": 10}  # divide the input by this; favours the peer, which is n log n


# Counting: tokens (uint16, EOS a token like any other) to the number of distinct bigrams.


def packed(tokens: np.ndarray) -> np.ndarray:
    keys = tokens[:-1].astype(np.uint32)
    keys <<= 16
    keys |= tokens[1:]
    return keys


def count_argap(tokens: np.ndarray) -> int:
    from argap.bigram_index.counting.count_numba import count_stream

    return len(count_stream(tokens, VOCAB).second)


def count_argap_one_thread(tokens: np.ndarray) -> int:
    from argap.bigram_index.counting.count_numba import count_stream

    return len(count_stream(tokens, VOCAB, threads=1).second)


def count_scipy(tokens: np.ndarray) -> int:
    from scipy.sparse import coo_array

    pairs = (tokens[:-1].astype(np.int32), tokens[1:].astype(np.int32))
    return coo_array((np.ones(len(tokens) - 1, dtype=np.uint32), pairs), shape=(VOCAB, VOCAB)).tocsr().nnz


def count_numpy(tokens: np.ndarray) -> int:
    return len(np.unique(packed(tokens), return_counts=True)[0])


def count_polars(tokens: np.ndarray) -> int:
    import polars

    frame = polars.LazyFrame({"pair": packed(tokens)})
    return len(frame.group_by("pair").agg(polars.len()).collect(engine="streaming"))


def count_duckdb(tokens: np.ndarray) -> int:
    import duckdb
    import pyarrow

    pairs = pyarrow.table({"pair": packed(tokens)})
    query = "CREATE TABLE counts AS SELECT pair, count(*) AS n FROM pairs GROUP BY pair"
    connection = duckdb.connect()
    connection.register("pairs", pairs)
    connection.execute(query).fetchall()
    ((found,),) = connection.execute("SELECT count(*) FROM counts").fetchall()
    return found


def count_tokengrams(tokens: np.ndarray) -> int:
    """Build the suffix array that tokengrams counts from. It cannot list bigrams, so nothing is compared."""
    import tokengrams

    with tempfile.TemporaryDirectory(dir=os.environ["SCRATCH"]) as folder:
        tokens.tofile(f"{folder}/tokens.bin")
        tokengrams.MemmapIndex.build(f"{folder}/tokens.bin", f"{folder}/index.idx", vocab=VOCAB)
    return 0


COUNTERS = {
    "argap": count_argap,
    "argap, one thread": count_argap_one_thread,
    "SciPy COO": count_scipy,
    "NumPy unique": count_numpy,
    "Polars streaming": count_polars,
    "DuckDB": count_duckdb,
    "tokengrams": count_tokengrams,
}


# Looking up: an index and 10 M pairs, half of them in it, to the sum of their counts.


def lookup_argap(keys, counts, first, second):
    from argap.bigram_index.counting import csr
    from argap.bigram_index.counting.lookup_numba import count_pairs
    from argap.bigram_index.counting.sorted_runs import MemoryRun

    indptr = np.searchsorted(keys, np.arange(VOCAB + 1, dtype=np.uint64) << np.uint64(32))
    run = MemoryRun(indptr, (keys & np.uint64(0xFFFF)).astype(np.uint16), counts)
    made = csr.from_run(run, int(counts.max()))
    return lambda: int(count_pairs(made, first, second).sum())


def keys_of(first, second):
    return (first.astype(np.uint64) << np.uint64(32)) | second.astype(np.uint64)


def lookup_numpy(keys, counts, first, second):
    def look_up() -> int:
        wanted = keys_of(first, second)
        at = np.searchsorted(keys, wanted).clip(max=len(keys) - 1)
        return int(counts[at][keys[at] == wanted].sum())

    return look_up


def lookup_polars(keys, counts, first, second):
    import polars

    index = polars.DataFrame({"pair": keys, "n": counts}).lazy()

    def look_up() -> int:
        wanted = keys_of(first, second)
        joined = polars.LazyFrame({"pair": wanted}).join(index, on="pair", how="inner")
        return joined.select(polars.col("n").cast(polars.Int64).sum()).collect(engine="streaming").item()

    return look_up


def lookup_duckdb(keys, counts, first, second):
    import duckdb
    import pyarrow

    connection = duckdb.connect()
    connection.register("arrow_index", pyarrow.table({"pair": keys, "n": counts}))
    connection.execute("CREATE TABLE counts AS SELECT * FROM arrow_index").fetchall()

    def look_up() -> int:
        wanted = keys_of(first, second)
        connection.register("wanted", pyarrow.table({"pair": wanted}))
        ((total,),) = connection.execute("SELECT sum(n) FROM wanted JOIN counts USING (pair)").fetchall()
        return int(total)

    return look_up


LOOKUPS = {
    "argap": lookup_argap,
    "np.searchsorted": lookup_numpy,
    "Polars join": lookup_polars,
    "DuckDB join": lookup_duckdb,
}
