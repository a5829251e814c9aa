"""Build indexes from counts made by another tool, for models whose training data is not available.

Counts of (first, second) pairs come from CSV or Parquet, or from n-gram models in KenLM's ARPA format. ``index.json``
records where they come from (``origin``), and such an index is marked as a proxy wherever its counts are used.
"""

import math
import re
import shutil
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from argap.bigram_index.counting.count import merge_runs
from argap.bigram_index.counting.sorted_runs import MemoryRun, Run, spill
from argap.bigram_index.manifest import refuse_existing
from argap.bigram_index.store import BigramIndex, open_index, write_index
from argap.errors import ArgapError, FormatError
from argap.files.atomic import replacing_folder
from argap.files.parquet import check_once
from argap.files.regular import check_regular, for_pyarrow, lines_of
from argap.text.tokenizer import Tokenizer

BATCH = 2**20  # bigrams of an ARPA file handled at a time
COLUMNS = ("first", "second", "count")
LARGEST = 2.0**63
LONGEST = 2**20
"""Bytes of a line of an ARPA file."""
ORDERS = {"\\1-grams:": 1, "\\2-grams:": 2}
STATED = re.compile(r"ngram (\d{1,2}) *= *(\d{1,18})\s*$")
"""A line of the head of an ARPA file: how many n-grams of an order follow."""
MARKS = {"<s>", "</s>", "<unk>"}
Batch = tuple[np.ndarray, np.ndarray, np.ndarray]
"""First tokens, second tokens and counts, each `[N]` int64."""


def index_from_counts(path: Path, out: Path, tokenizer: Tokenizer, *, overwrite: bool = False) -> BigramIndex:
    """Make an index from a CSV or Parquet file with columns first, second (token ids) and count.

    Rows may come in any order; equal pairs are added up. The number of documents and their first tokens are unknown:
    ``documents`` is 0 and ``tokens`` the sum of the counts. Raises `FormatError` naming the file for missing columns,
    ids outside the vocabulary and counts below 1.
    """
    return _write(_read_counts(path), path, out, tokenizer, "counts", overwrite)


def index_from_arpa(
    path: Path, out: Path, tokenizer: Tokenizer, *, tokens: int, overwrite: bool = False
) -> BigramIndex:
    """Make an index from the 1-grams and 2-grams of an ARPA file whose words are ``tokenizer``'s tokens.

    A word is a token as spelt in the vocabulary, or its id. ``tokens``: the number the model was trained on. A bigram
    in the file gets ``tokens * P(first) * P(second | first)`` occurrences, rounded, and at least one. Sentence marks
    and ``<unk>`` are skipped. Raises `FormatError` naming file and line.
    """
    return _write(_batched(_read_arpa(path, tokenizer, tokens)), path, out, tokenizer, "arpa", overwrite)


def _write(
    batches: Iterator[Batch],
    path: Path,
    out: Path,
    tokenizer: Tokenizer,
    origin: str,
    overwrite: bool,
) -> BigramIndex:
    out = Path(out)
    refuse_existing(out, overwrite=overwrite)
    with replacing_folder(out) as folder:
        runs: list[Run] = []
        total, scratch = 0, folder / "runs"
        for first, second, count in batches:
            if total + count.sum(dtype=np.float64) >= LARGEST:
                raise FormatError(f"{path}: its counts add up to 2⁶³ or more, too many for an index")
            runs.append(
                spill(_sorted_run(path, first, second, count, tokenizer.vocab_size), scratch / f"run-{len(runs)}")
            )
            total += int(count.sum())
        if not total:
            raise ArgapError(f"{path}: contains no bigram; expected first, second, count or an ARPA file's 2-grams")
        write_index(
            folder,
            merge_runs(runs),
            tokenizer=tokenizer.name,
            tokenizer_fingerprint=tokenizer.fingerprint,
            vocab_size=tokenizer.vocab_size,
            documents=0,
            empty_documents=0,
            tokens=total,
            sources=[str(path)],
            origin=origin,
        )
        shutil.rmtree(scratch, ignore_errors=True)
    return open_index(out)


def _sorted_run(path: Path, first: np.ndarray, second: np.ndarray, count: np.ndarray, vocab_size: int) -> MemoryRun:
    for ids in (first, second):
        if len(ids) and not 0 <= ids.min() <= ids.max() < vocab_size:
            bad = ids[(ids < 0) | (ids >= vocab_size)][0]
            raise FormatError(f"{path}: token {bad} is outside the vocabulary of {vocab_size}: another tokenizer's?")
    if len(count) and count.min() < 1:
        raise FormatError(f"{path}: a count of {count.min()}, expected at least 1")
    keys, inverse = np.unique(first * vocab_size + second, return_inverse=True)
    summed = np.zeros(len(keys), dtype=np.int64)
    np.add.at(summed, inverse, count)
    indptr = np.zeros(vocab_size + 1, dtype=np.int64)
    np.cumsum(np.bincount(keys // vocab_size, minlength=vocab_size), out=indptr[1:])
    return MemoryRun(indptr, (keys % vocab_size).astype(np.uint32), summed)


def _read_counts(path: Path) -> Iterator[Batch]:
    check_regular(path)
    try:
        if path.suffix == ".parquet":
            batches = pq.ParquetFile(for_pyarrow(path)).iter_batches(batch_size=2**22)
        else:
            reading = pyarrow.csv.ReadOptions(block_size=2**26)
            batches = pyarrow.csv.open_csv(for_pyarrow(path), read_options=reading)
        for batch in batches:
            if missing := [name for name in COLUMNS if name not in batch.schema.names]:
                raise FormatError(f"{path}: no column {missing[0]!r}; its columns are {', '.join(batch.schema.names)}")
            check_once(path, batch.schema, COLUMNS)
            for name in COLUMNS:
                if batch.column(name).null_count:
                    raise FormatError(f"{path}: {name}: a row without a value; expected a whole number in every row")
                of_type = batch.schema.field(name).type
                if pa.types.is_boolean(of_type) or pa.types.is_temporal(of_type):  # which would be cast too
                    raise FormatError(f"{path}: {name} is {of_type}; expected whole numbers")
            first, second, count = (batch.column(name).cast(pa.int64()).to_numpy(False) for name in COLUMNS)
            yield first, second, count
    except (OSError, UnicodeDecodeError, pa.ArrowException) as error:
        raise FormatError(f"{path}: not readable as CSV or Parquet of integers ({error})") from error


def _read_arpa(path: Path, tokenizer: Tokenizer, tokens: int) -> Iterator[tuple[int, int, int]]:
    """Yield each bigram of the file as its tokens' ids and its count."""
    unigrams: dict[str, float] = {}
    ids: dict[str, int] = {}
    number = unknown = 0
    try:
        for number, order, fields in _arpa_lines(path):  # noqa: B007  (named in the error)
            if order == 1:
                unigrams[fields[1]] = float(fields[0])
                continue
            if order != 2:
                continue
            ids = ids or _ids_of(unigrams, tokenizer)
            first, second = fields[1].split(" ")
            if MARKS & {first, second}:
                continue
            if first not in ids or second not in ids:
                unknown += 1
                continue
            expected = tokens * 10 ** (unigrams[first] + float(fields[0]))
            if expected >= LARGEST:
                raise ValueError(f"{expected:g} occurrences")
            yield ids[first], ids[second], max(1, math.floor(expected + 0.5))
    except (OSError, ValueError, KeyError, OverflowError) as error:
        raise FormatError(f"{path}, line {number}: not a line of an ARPA file ({error})") from error
    if unknown:
        raise FormatError(
            f"{path}: {unknown} bigrams with words outside the vocabulary of {tokenizer.name}; "
            "expected a model of its tokens"
        )


def _arpa_lines(path: Path) -> Iterator[tuple[int, int, list[str]]]:
    """Yield each line of the file: its number, the order of its n-gram, and its fields.

    The order is 0 for lines that are not counted; the fields are log10 of the probability and the words. Raises
    `FormatError` at the end of a file that holds fewer n-grams than it says, so that one cut off is none.
    """
    order = 0
    stated: dict[int, int] = {}
    found = dict.fromkeys(ORDERS.values(), 0)
    check_regular(path)
    with open(path, "rb") as file:
        for number, line in enumerate(lines_of(file, path, LONGEST), start=1):
            fields = line.decode().rstrip("\r\n").split("\t")
            if len(fields) < 2:
                order = ORDERS.get(fields[0], 0 if fields[0].startswith("\\") else order)
                if match := STATED.match(fields[0]):
                    stated[int(match[1])] = int(match[2])
            elif order:
                found[order] += 1
            yield number, order if len(fields) > 1 else 0, fields
    for order, count in found.items():
        if count < (expected := stated.get(order, count)):
            raise FormatError(f"{path}: {count:,} {order}-grams; its head says {expected:,}")


def _ids_of(unigrams: dict[str, float], tokenizer: Tokenizer) -> dict[str, int]:
    """Map words to ids: a model whose words are all numbers was trained on ids, any other on spellings."""
    words = unigrams.keys() - MARKS
    if all(word.isascii() and word.isdigit() for word in words):
        ids = {word: int(word) for word in words}
        if (largest := max(ids.values(), default=0)) > np.iinfo(np.int64).max:
            raise ValueError(f"token {largest} is not a token id")
        return ids
    return tokenizer.vocabulary


def _batched(bigrams: Iterator[tuple[int, int, int]]) -> Iterator[Batch]:
    while rows := list(islice(bigrams, BATCH)):
        first, second, count = np.array(rows, dtype=np.int64).T
        yield first, second, count
