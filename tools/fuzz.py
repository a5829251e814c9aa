"""Draw hostile input without end for every reader that parses a language: ``python tools/fuzz.py --minutes 60``.

    PYTHONPATH=. python tools/fuzz.py --minutes 60 [--only conditions] [--seed 1]

Hypothesis draws JSON records, YAML, conditions, tokenizers, GGUF headers and texts. Each may be read or refused with an
`ArgapError` of one line of at most `LONGEST` characters, within `SECONDS`; anything else is a finding. A batch runs in
a forked process, since an example may abort it; the example is written before it is read, and printed if the process
dies. Findings become rows of ``tests/commands/test_refusals.py`` or of the test beside the reader.
"""

import argparse
import faulthandler
import json
import os
import signal
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from argap.errors import ArgapError

BATCH = 200
SECONDS = 20
"""Of processor time for one example."""
WAIT = 600
"""Seconds for one example, on a busy machine."""
LONGEST = 2000
PAGES_LIMIT = 3 * 2**30
"""Bytes of memory of a batch."""

SIGNS = st.text(st.characters(codec="utf-8"), max_size=12) | st.sampled_from(["", "a" * 40, "\x1b[31m", "\u202e", "=1"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | SIGNS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(SIGNS, inner, max_size=4),
    max_leaves=12,
)


class Target(NamedTuple):
    """A reader and what is drawn for it."""

    drawn: st.SearchStrategy[Any]
    read: Callable[[Any, Path], object]
    """Read an example; the folder is empty."""


def _record(value: Any, folder: Path) -> object:
    from argap.files.record import read_record
    from argap.records import Gap, LabelsRecord, RunRecord

    path = folder / "run.json"
    path.write_text(json.dumps(value), encoding="utf-8", errors="surrogatepass")
    for record_type in (RunRecord, LabelsRecord, Gap):
        try:
            read_record(path, record_type)
        except ArgapError as refused:
            _check(refused)
    return None


def _records() -> st.SearchStrategy[Any]:
    keys = st.sampled_from(
        ("format", "model", "checkpoint", "source", "evaluation", "identity", "versions", "finished")
    )
    return st.dictionaries(keys | SIGNS, VALUES, max_size=8) | VALUES


def _yaml(text: str, folder: Path) -> object:
    from argap.files.plain_yaml import parse_yaml

    return parse_yaml(text)


MARKS = st.sampled_from(
    (*"-:?[]{},&*!|>%@`#'\"\n \t", "- ", ": ", "<<: ", "&a ", "*a ", "!!int ", "---\n", "...\n", "~")
)
YAML = st.lists(MARKS | SIGNS | st.integers().map(str), max_size=40).map("".join)


def _condition(where: str, folder: Path) -> object:
    import pyarrow as pa

    from argap.records.columns import schema_of
    from argap.runtime.interrupt import Interrupt
    from argap.slices.conditions import check_condition
    from argap.slices.queries import queried

    schema = schema_of(["ref", "m"])
    condition = check_condition(where, schema)
    rows = [{"piece": "a" * k, "word": "ab" * k, "previous": "%", "pos": k, "repeated": bool(k % 2)} for k in range(50)]
    known = [name for name in ("piece", "word", "previous", "pos", "repeated") if name in schema.names]
    if not set(condition.columns) <= set(known):
        return None
    table = pa.Table.from_pylist([{name: row[name] for name in known} for row in rows])
    unit = pa.array(range(len(rows)), pa.int64())
    batch = table.append_column("unit", unit).to_batches()
    return queried(batch, Interrupt(), f"SELECT count(*) FROM tokens WHERE (\n{where}\n)", {})


def _conditions() -> st.SearchStrategy[str]:
    import duckdb

    from argap.slices.allowed import ALLOWED

    query = "SELECT DISTINCT function_name FROM duckdb_functions()"
    every = sorted({name for (name,) in duckdb.execute(query).fetchall()} | {"unnest", "getvariable"})
    words = sorted(name for name in ALLOWED if name.isidentifier())
    atoms = st.sampled_from(
        ("piece", "word", "previous", "pos", "repeated", "nll.ref", "NULL", "1", "2e9", "'%a_*'", "''")
    )

    def larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        arguments = st.lists(inner, max_size=3).map(", ".join)
        called = st.tuples(st.sampled_from(words) | st.sampled_from(every), arguments).map(lambda x: f"{x[0]}({x[1]})")
        signs = (
            "+",
            "-",
            "*",
            "/",
            "%",
            "||",
            "=",
            "<>",
            "<",
            "AND",
            "OR",
            "LIKE",
            "ILIKE",
            "GLOB",
            "~",
            "^",
            "**",
            "<<",
        )
        joined = st.tuples(inner, st.sampled_from(signs), inner).map(lambda x: f"({x[0]} {x[1]} {x[2]})")
        cast = st.tuples(inner, st.sampled_from(("INT", "VARCHAR", "INT[9]", "DATE", "BIT", "DOUBLE", "MAP(INT, INT)")))
        return called | joined | cast.map(lambda x: f"{x[0]}::{x[1]}") | inner.map("NOT ({})".format)

    return st.recursive(atoms | SIGNS.map(lambda text: "'" + text.replace("'", "''") + "'"), larger, max_leaves=8)


def _tokenizer(parts: dict[str, Any], folder: Path) -> object:
    from argap.text.tokenizer import load_tokenizer

    (folder / "tokenizer.json").write_text(json.dumps(parts))
    loaded = load_tokenizer(folder)
    texts = ["", "a" * 60 + "!", "the cat\n\n  sat 12,345", "é中😀\u0301"]
    loaded.encode(texts)
    return [loaded.encode_spans(text) for text in texts]


def _tokenizers() -> st.SearchStrategy[dict[str, Any]]:
    atoms = st.sampled_from(("a", "b", ".", r"\s", r"\p{L}", "[ab]", r"\d", "^", "$", "(?=a)", "(?<=a)", r"\b"))
    regex = st.recursive(
        atoms,
        lambda inner: (
            st.lists(inner, min_size=1, max_size=3).map("".join)
            | inner.map("({})+".format)
            | inner.map("({})*".format)
            | inner.map("(?:{}){{2,9}}".format)
            | st.lists(inner, min_size=2, max_size=3).map("|".join)
        ),
        max_leaves=6,
    )
    pattern = regex.map(lambda each: {"Regex": each}) | SIGNS.map(lambda each: {"String": each})
    replace = st.builds(lambda p, c: {"type": "Replace", "pattern": p, "content": c}, pattern, SIGNS)
    simple = st.sampled_from(("NFC", "NFKD", "Lowercase", "StripAccents", "Nmt")).map(lambda name: {"type": name})
    prepend = SIGNS.map(lambda text: {"type": "Prepend", "prepend": text})
    normalizers = st.lists(replace | simple | prepend, max_size=6)
    behaviour = st.sampled_from(("Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"))
    split = st.builds(lambda p, b: {"type": "Split", "pattern": p, "behavior": b, "invert": False}, pattern, behaviour)
    vocab = st.dictionaries(SIGNS, st.integers(0, 40), max_size=12).map(
        lambda given: {"a": 41, "b": 42, "ab": 43} | given
    )
    model = st.builds(
        lambda words, prefix, suffix: {
            "type": "BPE", "vocab": words, "merges": [["a", "b"]],
            "continuing_subword_prefix": prefix, "end_of_word_suffix": suffix,
        },
        vocab, st.none() | SIGNS, st.none() | SIGNS,
    )  # fmt: skip
    return st.builds(
        lambda n, p, m: {
            "version": "1.0", "added_tokens": [], "model": m,
            "normalizer": {"type": "Sequence", "normalizers": n} if n else None, "pre_tokenizer": p,
        },
        normalizers, st.none() | split, model | VALUES,
    )  # fmt: skip


def _gguf(content: bytes, folder: Path) -> object:
    from argap.checkpoints.gguf.header import read_header

    path = folder / f"{time.monotonic_ns()}.gguf"  # headers are kept by path
    path.write_bytes(content)
    return read_header(path)


def _headers() -> st.SearchStrategy[bytes]:
    sizes = st.integers(0, 9) | st.sampled_from((2**31, 2**40, 2**62, 2**64 - 1))
    text = st.tuples(sizes, st.binary(max_size=9)).map(lambda x: struct.pack("<Q", x[0]) + x[1])
    whole = st.binary(max_size=9).map(lambda x: struct.pack("<Q", len(x)) + x)
    scalar = st.tuples(st.integers(0, 13), st.binary(max_size=8)).map(lambda x: struct.pack("<I", x[0]) + x[1])
    listed = st.tuples(st.integers(0, 13), sizes, st.binary(max_size=20)).map(
        lambda x: struct.pack("<IIQ", 9, x[0], x[1]) + x[2]
    )
    nested = st.integers(1, 2000).map(lambda n: struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * n)
    body = st.lists(whole | text | scalar | listed | nested, max_size=8).map(b"".join)
    start = st.tuples(st.sampled_from((1, 2, 3, 2**31)), sizes, sizes).map(lambda x: struct.pack("<4sIQQ", b"GGUF", *x))
    return st.tuples(start, body).map(b"".join)


def _text(drawn: tuple[str, bytes], folder: Path) -> object:
    from argap.corpus import open_corpus

    suffix, content = drawn
    (folder / f"text{suffix}").write_bytes(content)
    return list(open_corpus(str(folder / f"text{suffix}")))


def _texts() -> st.SearchStrategy[tuple[str, bytes]]:
    marks = st.sampled_from(
        (b"{", b"}", b"[", b"]", b'"text":', b'"', b",", b"\n", b"\x1f\x8b\x08\0", b"BZh91AY&SY", b"PAR1")
    )
    lines = VALUES.map(lambda value: json.dumps({"text": value}).encode() + b"\n")
    content = st.lists(marks | lines | st.binary(max_size=20), max_size=20).map(b"".join)
    return st.tuples(
        st.sampled_from((".txt", ".jsonl", ".json", ".csv", ".parquet", ".arrow", ".npy", ".npz")), content
    )


TARGETS: dict[str, Callable[[], Target]] = {
    "records": lambda: Target(_records(), _record),
    "yaml": lambda: Target(YAML, _yaml),
    "conditions": lambda: Target(_conditions(), _condition),
    "tokenizers": lambda: Target(_tokenizers(), _tokenizer),
    "gguf": lambda: Target(_headers(), _gguf),
    "texts": lambda: Target(_texts(), _text),
}


def _check(refused: ArgapError) -> None:
    line = str(refused)
    if "\n" in line or len(line) > LONGEST:
        raise AssertionError(f"a refusal of {len(line):,} characters: {line[:200]!r}")


def run_batch(name: str, number: int, current: Path) -> None:
    """Draw and read `BATCH` examples; raises what an example raises but a refusal in one line."""
    import resource

    target = TARGETS[name]()
    resource.setrlimit(resource.RLIMIT_DATA, (PAGES_LIMIT, PAGES_LIMIT))

    @seed(number)
    @settings(
        max_examples=BATCH,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
    )
    @given(target.drawn)
    def tried(example: Any) -> None:
        current.write_text(repr(example)[:10_000], encoding="utf-8", errors="backslashreplace")
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        faulthandler.dump_traceback_later(WAIT, exit=True)
        with tempfile.TemporaryDirectory() as folder:
            try:
                target.read(example, Path(folder))
            except ArgapError as refused:
                _check(refused)
        faulthandler.cancel_dump_traceback_later()
        signal.setitimer(signal.ITIMER_PROF, 0)

    faulthandler.register(signal.SIGPROF, chain=True)  # and then the signal ends the process
    tried()


def main() -> None:
    """Try batches of each target in turn until the time is over; exit with 1 if there are findings."""
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--minutes", type=float, default=60)
    flags.add_argument("--only", choices=[*TARGETS])
    flags.add_argument("--seed", type=int, default=time.time_ns() % 10**6)
    options = flags.parse_args()
    print(f"seed {options.seed}", flush=True)
    end, number, found = time.monotonic() + 60 * options.minutes, options.seed, 0
    done = dict.fromkeys([options.only] if options.only else TARGETS, 0)
    with tempfile.TemporaryDirectory() as folder:
        current = Path(folder) / "example"
        while time.monotonic() < end:
            for name in done:
                child = os.fork()
                if child == 0:
                    try:
                        run_batch(name, number, current)
                        os._exit(0)
                    except BaseException as error:
                        line = " ".join(f"{type(error).__name__}: {error}".split())[:300]
                        print(f"{name}, seed {number}: {line}", flush=True)
                        os._exit(1)
                _, status = os.waitpid(child, 0)
                done[name] += BATCH
                if status:
                    found += 1
                    example = current.read_text(encoding="utf-8")[:500] if current.exists() else ""
                    print(f"{name}, seed {number}: ended with {status}: {example}", flush=True)
            number += 1
    print(", ".join(f"{count:,} {name}" for name, count in done.items()) + f"; {found} findings")
    sys.exit(found > 0)


if __name__ == "__main__":
    main()
