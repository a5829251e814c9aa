"""A RUN: the folder of one checkpoint's log-probs, written shard by shard and resumable.

``run.json`` records the settings; ``tokens/part-*.parquet`` has one row per token: ``window:int32, pos:int32,
token:int32, logprob:float32, top1:int32``, and of ``rank:int32, kl:float32, entropy:float32`` those asked for. At
position 0 of a window all but the first three are null.

Comparisons of models with different tokenizers (`argap.tokens.aligned`) have a row for each of the reference's tokens.
The last token of a segment holds the segment's log-prob; the others have null.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa

from argap.errors import AbsentError, ArgapError, FormatError, MismatchError
from argap.evaluation.windows import EvaluationSet
from argap.files.checksums import check_file, check_files, read_checksums
from argap.files.parquet import STORED_LOGPROB, check_below, count_rows, read_parquet, write_parquet
from argap.files.regular import found_in, is_folder, is_there
from argap.files.remedies import SCORED, remedy_for
from argap.files.resumable import begin, environment, finish
from argap.records import (
    CheckpointRecord,
    EvaluationRecord,
    EvaluationSpec,
    RunIdentity,
    RunRecord,
    RunResult,
    SourceRecord,
    read_record,
)
from argap.records.columns import ENTROPY, KL, OPTIONAL, RANK
from argap.runtime.progress import say
from argap.text.tokenizer import FILES as TOKENIZER_FILES
from argap.text.tokenizer import Tokenizer, load_tokenizer
from argap.tokens.fingerprint import RowsFingerprint

FORMAT = 1
OWN = "own-tokens"
"""Folder of the runs as scored, next to those whose log-probs are sums over segments (`argap.tokens.segment_runs`)."""
BESIDE = ("labels/**",)
"""Patterns of files beside a run that its comparison and its tokenizer need."""
SHORT = "short-"
"""Prefix of the folders, in a run's, of its passes over a short context."""
SHARD_TOKENS = 2**17
"""Tokens of a part, about, unless the run's record says fewer: parts are what a killed run keeps."""
LARGEST_LOGPROB = 1e-4
"""Highest log-prob accepted from another program: rounding can lift a certain token's above 0."""
SCORES = {
    "logprob": "a number of at most 0, or −∞",
    "top1": "a token id",
    RANK: "a rank",
    KL: "a number",
    ENTROPY: "a number",
}
"""What the columns of a scored row hold."""
FLOATS = ["logprob", KL, ENTROPY]
"""Columns stored with BYTE_STREAM_SPLIT: a tenth smaller."""
SCHEMA = pa.schema(
    [
        pa.field("window", pa.int32(), nullable=False),
        pa.field("pos", pa.int32(), nullable=False),
        pa.field("token", pa.int32(), nullable=False),
        ("logprob", pa.float32()),
        ("top1", pa.int32()),
    ]
)


@dataclass(frozen=True)
class Run:
    """A run folder and its ``run.json``."""

    folder: Path
    record: RunRecord

    @property
    def model(self) -> str:
        return self.record.model

    def is_unchanged(self) -> bool:
        """Return whether the folder still holds this run, finished if it was."""
        now = read_run(self.folder).record
        return now.identity == self.record.identity and (now.finished is None) == (self.finished is None)

    @property
    def finished(self) -> RunResult | None:
        """Return the outcome; None if the run is unfinished."""
        return self.record.finished


def shards_of(data: EvaluationSet, tokens: int | None = None) -> list[range]:
    """Split the windows into shards of consecutive whole windows, about ``tokens`` each, at most `SHARD_TOKENS`."""
    number = data.offsets[:-1] // max(min(tokens or SHARD_TOKENS, SHARD_TOKENS), data.seq_len)
    starts = np.flatnonzero(np.diff(number, prepend=-1)).tolist()
    return [range(a, b) for a, b in zip(starts, [*starts[1:], data.windows], strict=True)]


def shard_path(folder: Path, shard: int) -> Path:
    return folder / "tokens" / f"part-{shard:05d}.parquet"


def new_record(
    model: str,
    checkpoint: str,
    source: SourceRecord,
    evaluation: EvaluationRecord,
    identity: RunIdentity,
    shard_tokens: int | None = None,
) -> RunRecord:
    """Return ``run.json`` for a new run; ``checkpoint``: its name (its fingerprint is in ``identity``)."""
    return RunRecord(
        format=FORMAT,
        model=model,
        checkpoint=CheckpointRecord(checkpoint, identity.checkpoint),
        source=source,
        evaluation=evaluation,
        identity=identity,
        **environment(),
        finished=None,
        shard_tokens=shard_tokens,
    )


def begin_run(folder: Path, record: RunRecord, *, overwrite: bool) -> Run:
    """Start or resume a run.

    Raises as `argap.files.resumable.begin`, and `FormatError` for a broken ``run.json``.
    """
    begin(folder, record, record.identity, overwrite=overwrite)
    return read_run(folder)


def finish_run(run: Run, result: RunResult) -> Run:
    """Record the outcome of a run: wall time, tokens per second, and settings resolved along the way."""
    return Run(run.folder, finish(run.folder, run.record, result))


def read_run(folder: Path) -> Run:
    """Read a run, finished or not. Raises `FormatError` if ``run.json`` is missing or invalid."""
    return Run(folder, read_record(folder / "run.json", RunRecord, newest=FORMAT))


def named(run: Run, name: str | None) -> Run:
    """Return the run under another name, unless that is None."""
    return run if name is None else Run(run.folder, msgspec.structs.replace(run.record, model=name))


def short_path(folder: Path, context: int) -> Path:
    """Return the folder of a run's pass over a short context, in the run's own."""
    return folder / f"{SHORT}{context}"


def pass_folders(folder: Path) -> list[Path]:
    """Return the folders in a run's that hold passes over short contexts, finished or not.

    Raises `FormatError` if something else has a pass's name.
    """
    return [path for path in sorted(folder.glob(f"{SHORT}[0-9]*")) if is_folder(path) and is_there(path / "run.json")]


def short_passes(folder: Path, identity: RunIdentity) -> dict[int, Run]:
    """Return the finished passes over short contexts of the run in ``folder``, by their tokens, ascending.

    ``identity``: of the run. A pass of another checkpoint, text or dtype, left over from a run that was overwritten, is
    not one of them. Raises `FormatError` as `pass_folders`.
    """
    found: dict[int, Run] = {}
    for path in pass_folders(folder):
        short = read_run(path)
        context = short.record.identity.context
        if short.finished and context and short.record.identity == short_identity(identity, context):
            found[context] = short
    return dict(sorted(found.items()))


def short_identity(identity: RunIdentity, context: int) -> RunIdentity:
    """Return the identity of the pass over a short context of the run of ``identity``."""
    return msgspec.structs.replace(identity, context=context, rank=False, entropy=False, kl=None)


def open_run(folder: str | Path) -> Run:
    """Open a finished run. Raises `FormatError` if ``folder`` is not a run, `ArgapError` if it is unfinished."""
    folder = Path(folder)
    if not (folder / "run.json").is_file():
        raise FormatError(f"{folder}: no run.json there; expected a run folder as `argap score` writes it")
    run = read_run(folder)
    if run.finished is None:
        raise ArgapError(f"{folder}: the run is not finished; repeat its `argap score` command to complete it")
    return run


def write_shard(
    path: Path,
    data: EvaluationSet,
    windows: range,
    logprob: np.ndarray,
    top1: np.ndarray,
    further: Mapping[str, np.ndarray] | None = None,
) -> None:
    """Write the rows of ``windows``.

    ``logprob``, ``top1`` and each of ``further``, the columns of `argap.records.columns.OPTIONAL` of the run, have one
    entry per token; at position 0 they are not read and stored as null.
    """
    position = data.position_of(windows)
    table = pa.table(
        [
            data.window_of(windows),
            position,
            data.tokens[data.rows(windows)],
            pa.array(logprob, mask=np.isnan(logprob)),
            pa.array(top1, mask=position == 0),
        ],
        schema=SCHEMA,
    )
    for name, values in (further or {}).items():
        table = table.append_column(pa.field(name, OPTIONAL[name]), pa.array(values, mask=position == 0))
    write_parquet(path, table, split_by_byte=[name for name in FLOATS if name in table.column_names])


def write_shards(folder: Path, data: EvaluationSet, logprob: np.ndarray, top1: np.ndarray) -> None:
    """Write all shards of a run from the log-prob and top-1 id of every token, each ``[N]`` (`write_shard`)."""
    for number, windows in enumerate(shards_of(data)):
        rows = data.rows(windows)
        write_shard(shard_path(folder, number), data, windows, logprob[rows], top1[rows])


def missing_shards(folder: Path, data: EvaluationSet, shards: Mapping[int, range]) -> dict[int, range]:
    """Return the ``shards`` (windows by number) that the run in ``folder`` still has to score (`whole_parts`)."""
    paths = {number: shard_path(folder, number) for number in shards}
    whole = whole_parts(folder, {paths[number]: data.count_in(windows) for number, windows in shards.items()})
    return {number: windows for number, windows in shards.items() if paths[number] not in whole}


def whole_parts(folder: Path, rows: Mapping[Path, int]) -> set[Path]:
    """Return the parts that exist with every byte as written, so that a rerun in ``folder`` can skip them.

    ``rows``: expected rows by part. Reports each part that exists but is damaged.
    """
    there, whole = [path for path in rows if path.is_file()], set[Path]()
    try:
        recorded = read_checksums(folder) if there else {}
    except FormatError as error:
        say(f"{error}; its {len(there)} parts are made again")
        return whole
    for path in there:
        try:
            check_file(path, recorded.get(path.relative_to(folder).as_posix()))
            if (count := len(read_parquet(path))) != rows[path]:
                raise FormatError(f"{path}: {count} rows, expected {rows[path]}")
        except FormatError as error:
            say(f"{str(error).removesuffix(remedy_for(path))}; it is made again")
        else:
            whole.add(path)
    return whole


def read_logprobs(run: Run) -> tuple[np.ndarray, np.ndarray]:
    """Read log-probs (float32 ``[N]``, NaN at position 0) and top-1 ids (int32 ``[N]``, -1 at position 0) of a run.

    Raises `FormatError`, naming a part that is missing or damaged, for other tokens or windows than the record's, and
    as `check_scores`.
    """
    table = _read_columns(run, ["token", "pos", "logprob", "top1"])
    _check_rows(run, table)
    scored = table["pos"].to_numpy() > 0
    if run.record.evaluation.unit == "byte":  # only a segment's last token has a log-prob
        scored &= table["logprob"].is_valid().to_numpy()
    check_scores(run.folder, table, scored)
    logprob = table["logprob"].to_numpy().astype(np.float32, copy=False)
    top1 = table["top1"].combine_chunks().fill_null(-1).to_numpy().astype(np.int32, copy=False)
    return logprob, top1


def read_token_ids(run: Run) -> np.ndarray:
    """Read the token ids that the run scored, int32 ``[N]``.

    Raises `FormatError` as `read_logprobs`.
    """
    table = _read_columns(run, ["token", "pos"])
    _check_rows(run, table)
    return table["token"].to_numpy()


def _check_rows(run: Run, table: pa.Table) -> None:
    """Raise `FormatError` for tokens or windows other than the record's."""
    rows = RowsFingerprint()
    rows.add(table["token"].to_numpy(), table["pos"].to_numpy())
    rows.check(run.folder, run.record.evaluation)


def check_ids(run: Run, ids: np.ndarray, tokenizer: Tokenizer) -> np.ndarray:
    """Return the token ids of a run. Raises `FormatError` if the tokenizer lacks one: a file may hold any number."""
    count = len(tokenizer.pieces)
    check_below(run.folder, ids, count, f"a token that its tokenizer of {count:,} tokens lacks")
    return ids


def read_window_offsets(run: Run) -> np.ndarray:
    """Read the window bounds of the run, int64 ``[W + 1]``. Raises `FormatError` as `read_logprobs`."""
    position = _read_columns(run, ["pos"])["pos"].to_numpy()
    return np.append(np.flatnonzero(position == 0), len(position))


def check_saved_tokenizer(folder: Path) -> None:
    """Raise `FormatError` if the files of the tokenizer in a run's or labels' folder are damaged."""
    check_files(folder, [folder / name for name in TOKENIZER_FILES])


def tokenizer_of(run: Run) -> Tokenizer:
    """Load the tokenizer of a run: saved with it or with the labels next to it, else from its recorded location.

    Raises `FormatError` if the files of a saved one are damaged, and `AbsentError` if none of these is the run's.
    """
    evaluation = run.record.evaluation
    saved = [folder for folder in (run.folder, run.folder.parent / "labels") if is_there(folder / "tokenizer.json")]
    for folder in saved:
        check_saved_tokenizer(folder)
    for source in (*map(str, saved), run.record.source.tokenizer, evaluation.tokenizer):
        with suppress(ArgapError):
            tokenizer = load_tokenizer(source, name=evaluation.tokenizer) if source else None
            if tokenizer is not None and tokenizer.fingerprint == evaluation.tokenizer_fingerprint:
                return tokenizer
    raise AbsentError(
        f"{run.folder}: its tokenizer is not here ({evaluation.tokenizer}, {evaluation.tokenizer_fingerprint[:12]}); "
        f"expected it in {run.folder.parent / 'labels'}, or where its name says"
    )


def recorded_text(run: Run) -> EvaluationSpec:
    """Return the text and windows recorded in a run. Raises `ArgapError` if it does not record them."""
    spec = EvaluationSpec().over(run.record.source)
    if not spec.data:
        raise ArgapError(f"{run.folder}: does not record its text; expected a run of `argap score`")
    return spec


def check_same_set(
    run: Run,
    evaluation: EvaluationRecord,
    what: str,
    remedy: str = "score both with the same `data`, `seq_len` and `packing`",
) -> None:
    """Raise `MismatchError` unless ``run`` scored the set ``evaluation``; ``what`` says where the set is from."""
    own = run.record.evaluation
    if own.fingerprint == evaluation.fingerprint:
        return
    differing = [
        f"`{name}` {getattr(own, name)} against {getattr(evaluation, name)}"
        for name in ("tokenizer", "seq_len", "packing", "tokens")
        if getattr(own, name) != getattr(evaluation, name)
    ]
    raise MismatchError(
        f"{run.folder} holds evaluation set {own.fingerprint[:12]}, {what} {evaluation.fingerprint[:12]} "
        f"({', '.join(differing) or 'the text itself differs'}); {remedy}"
    )


def check_text(run: Run, now: EvaluationRecord) -> None:
    """Raise `MismatchError` unless ``run`` scored the text as it is ``now``."""
    remedy = "expected the text and windows of the run; where they have changed, score the models again, together"
    check_same_set(run, now, "the text is now", remedy)


def token_parts(folder: Path) -> list[Path]:
    """Return the Parquet parts of a run, in order. Raises `FormatError` if anything but a folder holds them."""
    return found_in(folder / "tokens", "part-*.parquet")


def _read_columns(run: Run, columns: list[str]) -> pa.Table:
    """Concatenate columns of all parts."""
    return pa.concat_tables([read_parquet(path, columns, schema=SCHEMA) for path in check_parts(run)])


def check_parts(run: Run) -> list[Path]:
    """Check and return the parts of a run. Raises `FormatError` if one is damaged or missing."""
    parts = token_parts(run.folder)
    rows = sum(count_rows(path, SCHEMA.names) for path in parts)
    check_files(run.folder, parts)
    expected = run.record.evaluation.tokens
    if rows != expected:
        raise FormatError(
            f"{run.folder}: {rows} rows in {len(parts)} parts, expected {expected}; repeat its `argap score` command"
        )
    return parts


def is_logprob(values: np.ndarray) -> np.ndarray:
    """Return which values (bool) of another program are log-probs that a run can store: finite in float32, or −∞."""
    return (values <= LARGEST_LOGPROB) & ((values >= np.finfo(np.float32).min) | (values == -np.inf))


def no_logprob(values: np.ndarray) -> np.ndarray:
    """Return which values (bool) are not log-probs: NaN and those above 0. A token that the model rules out has −∞."""
    return ~(values <= STORED_LOGPROB)


def check_scores(folder: Path, table: pa.Table, scored: np.ndarray, start: int = 0) -> None:
    """Raise `FormatError`, naming part, window and position, for a scored row that lacks a value of its run.

    ``table``: some columns of consecutive rows of the run in ``folder``, from row ``start`` on; ``scored [N]``: which
    of them are scored.
    """
    for name in table.column_names:
        if name not in SCORES:
            continue
        column = table[name]
        rows = np.flatnonzero(_lacks(name, column))
        if len(wrong := rows[scored[rows]]):
            found = f"{'log-prob' if name == 'logprob' else name} {column[int(wrong[0])].as_py()}"
            path, place = _place(folder, start + int(wrong[0]))
            raise FormatError(f"{path}: {found} at {place}; expected {SCORES[name]}; remove it and {SCORED}")


def _lacks(name: str, column: pa.ChunkedArray) -> np.ndarray:
    """Return which rows (bool) do not have what a scored one has; nulls of numbers are NaN."""
    if name == "logprob":
        return no_logprob(column.to_numpy())
    return np.isnan(column.to_numpy()) if name in FLOATS else column.is_null().to_numpy()


def _place(folder: Path, row: int) -> tuple[Path, str]:
    """Return the part, and in words the window and position, of a row of a run."""
    for path in token_parts(folder):
        keys = read_parquet(path, ["window", "pos"], schema=SCHEMA)
        if row < len(keys):
            return path, f"window {keys['window'][row].as_py()}, position {keys['pos'][row].as_py()}"
        row -= len(keys)
    raise FormatError(f"{folder}: fewer rows than were read of it before; expected files that do not change")
