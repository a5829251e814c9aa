"""Import log-probs computed by another tool as a run that `argap compare` reads: ``argap import``.

The file has the tokens of the evaluation set in order, document by document, with the EOS that ``packed`` puts after
each. It is Parquet (``.parquet``) or JSON lines, in one of two forms:

- one row per token: ``document`` (from 0, in text order), ``token`` (id), ``logprob`` (natural log, or null)
- one row per document: ``tokens: [ids]``, ``logprobs: [natural logs, or null]``

A log-prob of −∞ (``-Infinity`` in JSON lines) marks a token that the model rules out; the perplexity is then infinite.

Every token is checked against the text and the tokenizer before anything is written. Every position except the first of
a window needs a log-prob, conditioned on the preceding tokens of that window. At the first position the file has null;
or, in all windows, a log-prob given a BOS, which is dropped.
"""

import time
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from argap.bigram_index.store import check_tokenizer, open_index
from argap.checkpoints.references import source_of
from argap.corpus import jsonl
from argap.errors import ArgapError, FormatError, MismatchError, first_line
from argap.evaluation.windows import EvaluationSet, check_spec, open_evaluation_set
from argap.files.checksums import sha256_of, unchanged
from argap.files.lock import alone_in
from argap.files.parquet import read_parquet
from argap.files.regular import is_there
from argap.files.resumable import folder_name
from argap.records import EvaluationSpec, RunIdentity, RunRecord, RunResult
from argap.text.tokenizer import Tokenizer, load_tokenizer
from argap.tokens.labels import label_portions, write_labels
from argap.tokens.runs import Run, begin_run, finish_run, is_logprob, new_record, write_shards

BY_TOKEN, BY_DOCUMENT = ("document", "token", "logprob"), ("tokens", "logprobs")
LABELLING = 60.0
"""Seconds to wait for another import that writes the labels of the same result."""


class Imported(NamedTuple):
    """The rows of a file. Legend: N rows."""

    document: np.ndarray
    """int64 ``[N]``."""
    token: np.ndarray
    """int64 ``[N]``."""
    logprob: np.ndarray
    """float64 ``[N]``; NaN for null."""


def import_run(
    file: str | Path,
    out: Path,
    *,
    tokenizer: str,
    spec: EvaluationSpec,
    name: str | None = None,
    index: str | None = None,
    overwrite: bool = False,
) -> Run:
    """Write the log-probs of ``file`` as the run ``out``/``name`` and return it.

    ``spec``: the text and its windows, as in `argap score`; ``name``: by default the file's name without suffix.
    ``index``: also write labels with its counts to ``out``/labels.

    Raises `FormatError` for a file that is not in one of the forms above, `MismatchError` that names document and
    position for a token that differs from the text's, and `ArgapError` for a missing or impossible log-prob.
    """
    started, path = time.monotonic(), Path(file)
    if not spec.data:
        raise ArgapError(f"{path}: no text to check it against; give `data=PATH`")
    check_spec(spec)
    name = name or path.name.partition(".")[0]
    folder = out / folder_name(name)
    if folder.name == "labels":
        raise ArgapError(f"`name` {name}: its run and the labels would share the folder labels; choose another")
    with alone_in(folder):
        with unchanged([path]):
            rows = read_logprob_file(path)
            fingerprint = sha256_of(path)
        chosen = load_tokenizer(tokenizer)
        opened = open_index(index) if index else None
        if opened is not None:
            check_tokenizer(opened, chosen.name, chosen.fingerprint)
        data = open_evaluation_set(spec, chosen)
        check_tokens(path, rows, data, chosen)
        check_logprobs(path, rows, data)
        check_windows(path, rows, data)
        record = _record(path, fingerprint, name, data, spec, tokenizer, index)
        run = begin_run(folder, record, overwrite=overwrite)
        unknown = np.full(len(data.tokens), -1, dtype=np.int32)  # the most likely tokens
        logprob = np.where(data.position > 0, rows.logprob, np.nan)
        write_shards(run.folder, data, logprob.astype(np.float32), unknown)
        if opened is not None:
            with alone_in(out / "labels", wait=LABELLING):  # beside the run, shared by several imports
                write_labels(label_portions(data, opened), chosen, out / "labels")
        return finish_run(run, _result(time.monotonic() - started))


def _record(
    path: Path,
    fingerprint: str,
    name: str,
    data: EvaluationSet,
    spec: EvaluationSpec,
    tokenizer: str,
    index: str | None,
) -> RunRecord:
    """Return the contents of ``run.json``; two imports are the same run if file and evaluation set agree."""
    identity = RunIdentity(
        checkpoint=fingerprint,
        evaluation_set=data.fingerprint,
        dtype="unknown",
        device="elsewhere",
        batch_size="auto",
        backend="import",
    )
    source = source_of(msgspec.structs.replace(spec, tokenizer=tokenizer), index)
    return new_record(name, str(path), source, data.record, identity)


def _result(seconds: float) -> RunResult:
    return RunResult(
        parameters=None,
        head="import",
        windows_per_batch=0,
        device_name="elsewhere",
        processes=1,
        seconds=round(seconds, 3),
        tokens_per_second=None,
    )


def read_logprob_file(path: Path) -> Imported:
    """Read the rows of a Parquet file (``.parquet``) or of JSON lines. Raises `FormatError` in one line."""
    if not is_there(path):
        raise FormatError(f"{path}: no such file")
    table = read_parquet(path) if path.suffix == ".parquet" else _read_json_lines(path)
    if not len(table):
        raise FormatError(f"{path}: no rows there")
    names = set(table.column_names)
    if names >= set(BY_TOKEN):
        columns = [_numbers(path, name, table[name]) for name in BY_TOKEN]
        return _imported(path, *columns)
    if names >= set(BY_DOCUMENT):
        return _by_document(path, table)
    raise FormatError(
        f"{path}: has {', '.join(table.column_names)}; expected {', '.join(BY_TOKEN)}, or {' and '.join(BY_DOCUMENT)} "
        "per document"
    )


def _read_json_lines(path: Path) -> pa.Table:
    try:
        return pa.Table.from_pylist(jsonl.valid_rows(path))
    except FormatError as error:
        raise FormatError(f"{error}; expected JSON lines, or Parquet in a file called .parquet") from None
    except (pa.ArrowException, OverflowError) as error:  # either one for a number beyond 64 bits
        raise FormatError(f"{path}: not readable as JSON lines ({first_line(error)})") from None


def _by_document(path: Path, table: pa.Table) -> Imported:
    tokens, logprobs = (table[name].combine_chunks() for name in BY_DOCUMENT)
    for name, column in zip(BY_DOCUMENT, (tokens, logprobs), strict=True):
        if not (pa.types.is_list(column.type) or pa.types.is_large_list(column.type)) or column.null_count:
            raise FormatError(f"{path}: {name} is not a list in every row")
    lengths, others = (column.value_lengths().to_numpy() for column in (tokens, logprobs))
    if (differing := np.flatnonzero(lengths != others)).size:
        at = differing[0]
        raise FormatError(f"{path}: document {at} has {lengths[at]} tokens and {others[at]} logprobs")
    document = pa.chunked_array([pa.array(np.repeat(np.arange(len(lengths)), lengths))])
    flat = [pa.chunked_array([column.flatten()]) for column in (tokens, logprobs)]
    parts = zip(BY_TOKEN, (document, *flat), strict=True)
    return _imported(path, *(_numbers(path, name, column) for name, column in parts))


def _numbers(path: Path, name: str, column: pa.ChunkedArray) -> np.ndarray:
    """Return a column as int64, or log-probs as float64 with NaN for null."""
    fits, expected, dtype = pa.types.is_integer(column.type), "whole numbers", pa.int64()
    if name == "logprob":
        fits = fits or pa.types.is_floating(column.type) or pa.types.is_null(column.type)
        expected, dtype = "numbers or null", pa.float64()
    elif fits and column.null_count:
        raise FormatError(f"{path}: {name} is null in {column.null_count} rows; expected whole numbers")
    if not fits:
        raise FormatError(f"{path}: {name} holds {column.type}; expected {expected}")
    try:
        return column.cast(dtype).to_numpy().astype(dtype.to_pandas_dtype())
    except pa.ArrowException as error:
        raise FormatError(f"{path}: {name}: {first_line(error)}") from None


def _imported(path: Path, document: np.ndarray, token: np.ndarray, logprob: np.ndarray) -> Imported:
    if (back := np.flatnonzero(np.diff(document) < 0)).size:
        before, after = document[back[0] : back[0] + 2]
        raise FormatError(f"{path}: document {after} follows document {before}; expected the order of the text")
    return Imported(document, token, logprob)


def check_tokens(path: Path, rows: Imported, data: EvaluationSet, tokenizer: Tokenizer) -> None:
    """Raise `MismatchError` at the first row that differs from the evaluation set."""
    common = min(len(rows.token), len(data.tokens))
    differing = (rows.token[:common] != data.tokens[:common]) | (rows.document[:common] != data.document[:common])
    if not differing.any() and len(rows.token) == len(data.tokens):
        return
    at = int(np.argmax(differing)) if differing.any() else common
    expected = "the end" if at >= len(data.tokens) else _token(data.document[at], data.tokens[at], tokenizer)
    found = "the end" if at >= len(rows.token) else _token(rows.document[at], rows.token[at], tokenizer)
    raise MismatchError(
        f"{path}: {_place(data, at)}: expected {expected} of the text, found {found}; "
        f"is {tokenizer.name} its tokenizer, and was it made with `packing` {data.packing} and the same "
        "`limit_tokens` and `limit_document_tokens`?"
    )


def _place(data: EvaluationSet, at: int) -> str:
    """Return where the token ``at`` is, or would be if it is one past the last."""
    document = int(data.document[min(at, len(data.tokens) - 1)])
    return f"document {document}, position {at - int(np.searchsorted(data.document, document))}"


def _token(document: int, token: int, tokenizer: Tokenizer) -> str:
    known = 0 <= token < tokenizer.vocab_size
    return f"token {token} ({tokenizer.decode([token])!r}, document {document})" if known else f"token {token}"


def check_logprobs(path: Path, rows: Imported, data: EvaluationSet) -> None:
    """Raise `ArgapError` at the first scored token whose log-prob is null, NaN, above 0 or too low to be stored."""
    wrong = (data.position > 0) & ~is_logprob(rows.logprob)
    if not wrong.any():
        return
    at = int(np.argmax(wrong))
    value = rows.logprob[at]
    made_with = f"; was it made with `seq_len={data.seq_len}`?" if np.isnan(value) else ""
    raise ArgapError(
        f"{path}: {_place(data, at)}: log-prob {'null or NaN' if np.isnan(value) else f'{value:g}'}; expected a "
        "natural logarithm of at most 0, or −∞, that float32 holds at all positions of a window but its first "
        f"(window {data.window[at]}, position {data.position[at]}){made_with}"
    )


def check_windows(path: Path, rows: Imported, data: EvaluationSet) -> None:
    """Raise `ArgapError` for a file with longer windows than ``data``, whose log-probs saw context outside a window.

    Then some windows of ``data`` start with a log-prob in the file and others do not.
    """
    starts = data.offsets[:-1]
    given = starts[~np.isnan(rows.logprob[starts])]
    if 0 < len(given) < len(starts):
        longest = int(np.diff(np.flatnonzero(np.isnan(rows.logprob)), append=len(rows.logprob)).max())
        raise ArgapError(
            f"{path}: {_place(data, int(given[0]))}: a log-prob at the first position of a window, where other windows "
            f"have none; the file's own windows have up to {longest} tokens, longer than `seq_len={data.seq_len}`: "
            "give the `seq_len` that it was made with"
        )
