"""Compare the bigram index with its peers: counting, lookup, and building from raw text.

    python benchmarks/index.py --scratch /tmp/index-benchmark

One stream is real text from ARGAP_DATA, tokenised with its GPT-2 tokenizer and repeated with shuffled documents; the
other is iid Zipf. Each measurement runs in a separate process and reports the best of ``--repeats`` runs after a
warm-up, the CPU time of all threads, and the peak memory including the stream. The load average is recorded; on a busy
machine use ``--rounds``. Peers that are not installed (duckdb, polars, tokengrams) are listed as skipped.
"""

import argparse
import json
import os
import tempfile
import time
from pathlib import Path

import numpy as np
from index_peers import COUNTERS, EOS, LOOKUPS, SLOW, VOCAB
from measured import Took, apart, parser, peak_memory, save, timed

ROOT = Path(__file__).resolve().parent.parent
DATA = Path(os.environ.get("ARGAP_DATA", ROOT / "../shared/data"))


def measure_counting(name: str, stream: str, scratch: Path, repeats: int) -> dict:
    tokens = np.load(scratch / f"{stream}.npy")
    tokens = tokens[: len(tokens) // SLOW.get(name, 1)]
    COUNTERS[name](tokens[:1_000_000])
    best, distinct = best_of(lambda: COUNTERS[name](tokens), 1 if name in SLOW else repeats)
    return {"tokens": len(tokens), **rates(best, "tokens", len(tokens)), "distinct": distinct}


def measure_lookup(name: str, stream: str, scratch: Path, repeats: int) -> dict:
    loaded = [np.load(scratch / f"{stream}-{part}.npy") for part in ("keys", "counts", "first", "second")]
    best, total = best_of(LOOKUPS[name](*loaded), repeats)
    pairs = len(loaded[2])
    return {"entries": len(loaded[0]), "pairs": pairs, **rates(best, "pairs", pairs), "sum": total}


def measure_sustained(name: str, stream: str, scratch: Path, repeats: int) -> dict:
    """Count a stream read from disk in blocks with `BigramCounter`, as with ``--memory 2GB``."""
    from argap.bigram_index.counting.count import BigramCounter, chunk_tokens
    from argap.bigram_index.parquet_parts import write_parts

    COUNTERS["argap"](np.load(scratch / "real.npy", mmap_mode="r")[:1_000_000].copy())
    path = scratch / f"{stream}.bin"
    begun = time.perf_counter()

    def count() -> tuple[BigramCounter, list]:
        counter = BigramCounter(VOCAB, chunk=chunk_tokens(2 * 10**9, VOCAB), scratch=scratch / "runs")
        block = np.empty(2**22, np.uint16)  # reused: allocating for every read would cost as much as counting
        with open(path, "rb", buffering=0) as file:
            while read := file.readinto(block):
                counter.add_stream(block[: read // 2], EOS)
        return counter, list(counter.rows())

    best, (counter, rows) = timed(count)
    counter.close()
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        parts, _ = write_parts(Path(folder), rows)
    return {
        "tokens": counter.tokens,
        **rates(best, "tokens", counter.tokens),
        "seconds with the index written": time.perf_counter() - begun,
        "distinct": sum(part.rows for part in parts),
    }


def measure_text(name: str, stream: str, scratch: Path, repeats: int) -> dict:
    """Build an index from raw text, and time the tokenizer alone on the same text with its own batching."""
    from argap.bigram_index.build import build_from_source
    from argap.bigram_index.sources.token_source import TokenSource
    from argap.corpus import open_corpus
    from argap.text.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(DATA / "gpt2")
    corpus = DATA / "corpus" / "train-00001-of-00004.parquet"
    texts = [document.text for document in open_corpus(corpus)]
    tokenizer.encode(texts[:50])

    def tokenize() -> int:
        return sum(len(ids) for at in range(0, len(texts), 256) for ids in tokenizer.encode(texts[at : at + 256]))

    def build() -> int:
        source = TokenSource([open_corpus(corpus)], tokenizer)
        return build_from_source(source, scratch / "text-index", overwrite=True).tokens

    alone = built = Took(float("inf"), float("inf"))
    for _ in range(repeats):  # alternate, because the load of the machine may change
        alone = Took(*map(min, alone, timed(tokenize)[0]))
        built = Took(*map(min, built, timed(build)[0]))
    tokens = tokenize()
    return {
        "tokens": tokens,
        "tokenizer M tokens/s": tokens / alone.wall / 1e6,
        "build M tokens/s": tokens / built.wall / 1e6,
        "tokenizer M tokens per CPU second": tokens / alone.cpu / 1e6,
        "build M tokens per CPU second": tokens / built.cpu / 1e6,
        "seconds": built.wall,
        "share": alone.wall / built.wall,
        "share by CPU time": alone.cpu / built.cpu,
    }


MEASUREMENTS = {
    "counting": measure_counting,
    "lookup": measure_lookup,
    "sustained": measure_sustained,
    "text": measure_text,
}


def best_of(work, repeats: int):
    """Return minimum wall and CPU seconds (all threads) over ``repeats`` runs, and the last result."""
    best, result = timed(work)
    for _ in range(repeats - 1):  # holds no result but the last: memory is measured, too
        took, result = timed(work)
        best = Took(*map(min, best, took))
    return best, result


def rates(took: Took, what: str, number: int) -> dict:
    """Compute rates per wall second and per CPU second."""
    return {
        "seconds": took.wall,
        "CPU seconds": took.cpu,
        f"M {what}/s": number / took.wall / 1e6,
        f"M {what} per CPU second": number / took.cpu / 1e6,
    }


def copy_bandwidth() -> float:
    """Measure GB/s read and written when copying arrays much larger than the caches, with one thread per core."""
    from concurrent.futures import ThreadPoolExecutor

    cores = len(os.sched_getaffinity(0))
    source = np.ones((cores, 2**25), dtype=np.uint64)
    target = np.zeros_like(source)
    with ThreadPoolExecutor(cores) as pool:
        best, _ = best_of(lambda: list(pool.map(lambda i: np.copyto(target[i], source[i]), range(cores))), 5)
    return 2 * source.nbytes / best.wall / 1e9


# The streams.


def prepare(scratch: Path, tokens: int, sustained: int, entries: int) -> None:
    from argap.corpus import open_corpus
    from argap.corpus.tokenize import token_documents
    from argap.text.tokenizer import load_tokenizer

    scratch.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    tokenizer = load_tokenizer(DATA / "gpt2")
    corpora = [open_corpus(path) for path in sorted((DATA / "corpus").glob("train-*.parquet"))]
    documents = [np.append(d.ids, EOS).astype(np.uint16) for d in token_documents(corpora, tokenizer)]

    def shuffled(length: int) -> np.ndarray:
        pieces, filled = [], 0
        while filled < length:
            for i in rng.permutation(len(documents)):
                pieces.append(documents[i])
                filled += len(documents[i])
                if filled >= length:
                    break
        return np.concatenate(pieces)[:length]

    np.save(scratch / "real.npy", shuffled(tokens))
    np.save(scratch / "zipf.npy", zipf(rng, tokens, 1.0))
    with open(scratch / "sustained.bin", "wb") as file:
        for _ in range(0, sustained, tokens):
            shuffled(tokens).tofile(file)

    def entries_of(name: str, stream: np.ndarray) -> None:
        from argap.bigram_index.counting.count_numba import count_stream

        run = count_stream(stream, VOCAB)
        first = np.repeat(np.arange(VOCAB, dtype=np.uint64), np.diff(run.indptr))
        keys = (first << np.uint64(32)) | run.second
        chosen = keys[rng.integers(0, len(keys), 5_000_000)]
        random = rng.integers(0, VOCAB, (2, 5_000_000))
        order = rng.permutation(10_000_000)
        for part, there, absent in (
            ("first", chosen >> np.uint64(32), random[0]),
            ("second", chosen & np.uint64(0xFFFF), random[1]),
        ):
            np.save(
                scratch / f"{name}-{part}.npy", np.concatenate([there.astype(np.int32), absent.astype(np.int32)])[order]
            )
        np.save(scratch / f"{name}-keys.npy", keys)
        np.save(scratch / f"{name}-counts.npy", run.count)

    entries_of("small", np.load(scratch / "zipf.npy")[:12_000_000])  # 5.3 M distinct
    entries_of("large", zipf(rng, entries + entries // 2, 0.4))


def zipf(rng: np.random.Generator, length: int, exponent: float) -> np.ndarray:
    weights = np.cumsum(np.arange(1, VOCAB + 1) ** -exponent)
    weights /= weights[-1]
    pieces = [rng.random(min(2**22, length - at)) for at in range(0, length, 2**22)]
    return np.concatenate([np.searchsorted(weights, piece).astype(np.uint16) for piece in pieces])


def main() -> None:
    flags = parser(__doc__)
    flags.set_defaults(json=ROOT / "benchmarks" / "results" / "index.json")
    flags.add_argument("--tokens", type=int, default=100_000_000)
    flags.add_argument("--sustained", type=int, default=1_000_000_000)
    flags.add_argument("--entries", type=int, default=100_000_000)
    flags.add_argument("--repeats", type=int, default=3, help="runs per process; the best counts")
    flags.add_argument("--rounds", type=int, default=1, help="repetitions of the whole benchmark; the best counts")
    flags.add_argument("--scratch", type=Path, default=Path(tempfile.gettempdir()) / "argap-index-benchmark")
    args = flags.parse_args()
    if not (args.scratch / "large-keys.npy").exists():
        prepare(args.scratch, args.tokens, args.sustained, args.entries)
    plan = [("counting", name, stream) for stream in ("real", "zipf") for name in COUNTERS]
    plan += [("sustained", "argap", "sustained"), ("text", "argap", "text")]
    plan += [("lookup", name, stream) for stream in ("small", "large") for name in LOOKUPS]
    best: dict[tuple[str, str, str], dict] = {}
    for _ in range(args.rounds):
        for kind, name, stream in plan:
            entry = measure_apart(kind, name, stream, args.scratch, args.repeats)
            print(json.dumps(entry), flush=True)
            known = best.setdefault((kind, name, stream), entry)
            if "skipped" not in entry:
                best[kind, name, stream] = min(known, entry, key=lambda e: e.get("seconds", float("inf")))
        write(args.json, list(best.values()), args)


def measure_apart(kind: str, name: str, stream: str, scratch: Path, repeats: int) -> dict:
    """Run one measurement in a separate process. A failed one is recorded as skipped, with the reason."""
    entry = {"measurement": kind, "what": name, "stream": stream}
    load = os.getloadavg()[0]
    try:
        entry |= apart(measure, kind, name, stream, scratch, repeats) | {"load average before": load}
    except Exception as error:  # such as a library that is not installed
        return entry | {"skipped": f"{type(error).__name__}: {error}"}
    return {k: round(v, 4) if isinstance(v, float) else v for k, v in entry.items()}


def measure(kind: str, name: str, stream: str, scratch: Path, repeats: int) -> dict:
    os.environ["SCRATCH"] = str(scratch)
    found = MEASUREMENTS[kind](name, stream, scratch, repeats)
    return found | {"peak GB": peak_memory() / 1e9}


def write(out: Path, results: list[dict], args: argparse.Namespace) -> None:
    bandwidth = copy_bandwidth()
    for entry in results:
        if entry["measurement"] == "counting" and "M tokens/s" in entry:
            # Minimum traffic: each token is read once, and written and read once as a second token.
            entry["share of copy bandwidth"] = round(entry["M tokens/s"] * 1e6 * 6 / (bandwidth * 1e9), 4)
    packages = ("numpy", "numba", "scipy", "pyarrow", "tokenizers", "polars", "duckdb", "tokengrams")
    about = {"rounds": args.rounds, "repeats": args.repeats, "copy bandwidth GB/s": round(bandwidth, 1)}
    save(out, packages, **about, results=results)


if __name__ == "__main__":
    main()
