"""Open the tokens of a result and score slices defined by conditions on them."""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from argap.errors import AbsentError, ArgapError, MismatchError, within
from argap.evaluation.documents import FILE as DOCUMENTS
from argap.files.checksums import check_files
from argap.files.regular import is_there
from argap.files.resumable import folder_name
from argap.metric.documents import Units, units_among
from argap.records import AR_HITS, NAMED, EvaluationRecord, Gap, Part, SliceInfo
from argap.records.columns import BY_MODEL, MASK, OF_MODELS, SEGMENTED, TYPES, WHOLE, schema_of
from argap.slices.conditions import (
    TABLE,
    Condition,
    FailsOnToken,
    check_condition,
    hits_of,
    literal,
    quoted,
    shortened,
    streamed,
)
from argap.slices.figures import Key, SliceScorer
from argap.slices.library import BUILT_IN, SliceSpec, check_names, filled, library
from argap.slices.partitions import HITS
from argap.slices.queries import as_text
from argap.slices.sums import Sums, sums
from argap.tokens.batches import Mask
from argap.tokens.labels import WINDOWS
from argap.tokens.runs import Run, named, open_run, token_parts
from argap.tokens.table import TokenTable

GROUPED = ("domain", "source", *(name for name, of in TYPES.items() if of == pa.bool_()))
"""Columns to break down by, besides those kept from the source."""
SEGMENT, SEGMENT_BYTES = SEGMENTED
INTERNAL = "internal "
"""Prefix of columns that are read for others and not returned."""
NONE = "none"
"""Bin of the tokens without a value or label."""


class Slice(NamedTuple):
    """A slice to compute."""

    name: str
    where: str | Mask
    """SQL, or a function of a batch."""
    title: str = ""
    note: str = ""


def open_tokens(folder: Path, record: Gap) -> TokenTable:
    """Open the runs and labels of a result, in its folder or at the paths in ``gap.json``.

    Raises `AbsentError` if they are missing, `MismatchError` for those of another text, index or model, and
    `FormatError` for a damaged file.
    """
    runs = tuple(_run(folder, row.model, row.run, record.scores.get(row.model)) for row in record.rows)
    beside = [folder / "labels", *(run.folder.parent / "labels" for run in runs)]
    tables = [TokenTable(runs, each) for each in beside if is_there(each / "labels.json")]
    if not tables:
        raise AbsentError(f"{folder}: the tokens of this result are not here; expected its labels in {beside[0]}")
    made_with = record.fingerprint, record.index  # an earlier comparison may have left other labels
    own = (each for each in tables if (each.record.evaluation.fingerprint, each.record.index) == made_with)
    table = next(own, tables[0])
    labels = table.labels
    if table.record.index != record.index:
        raise MismatchError(
            f"{labels}: labels with other training counts than {folder} was made with; run `argap score` or "
            "`argap compare` again"
        )
    for name, evaluation in [(labels, table.record.evaluation), *((run.folder, run.record.evaluation) for run in runs)]:
        if evaluation.fingerprint != record.fingerprint:
            raise MismatchError(
                f"{name} holds evaluation set {evaluation.fingerprint[:12]}, {folder} {record.fingerprint[:12]}; "
                "run `argap score` or `argap compare` again"
            )
    check_files(labels, [labels / name for name in (WINDOWS, DOCUMENTS)])  # the other files are checked when read
    return table


def _run(folder: Path, model: str, recorded: str, scores: str | None) -> Run:
    """Return the run of a model: in the result's folder, else at the ``recorded`` path, where it may have another name.

    ``scores``: of its identity; None: any.
    """
    own, other = folder / folder_name(model), None
    for run in _runs(own, model, recorded):
        if scores in (None, run.record.identity.scores):
            return run
        other = other or run
    if other:
        raise MismatchError(
            f"{other.folder}: scored since {folder} was made, by another model or in another way; run `argap score` "
            "or `argap compare` again"
        )
    raise AbsentError(
        f"{folder}: the tokens of this result are not here; expected the run of {model} in {own}; "
        "its tables and breakdowns need only the files that are here"
    )


def _runs(own: Path, model: str, recorded: str) -> Iterator[Run]:
    """Yield the run in ``own`` if it is the model's, then that at the ``recorded`` path, which may be amiss."""
    if is_there(own / "run.json") and (run := open_run(own)).model == model:
        yield run
    if recorded and is_there(Path(recorded) / "run.json"):
        yield named(open_run(recorded), model)


def as_slices(specs: Iterable[SliceSpec]) -> list[Slice]:
    """Convert slices read from a file."""
    return [Slice(each.name, each.where, each.title, each.note) for each in specs]


def with_columns(table: TokenTable) -> list[SliceSpec]:
    """Return the bundled slices that need no labels or runs' columns that the table lacks."""
    lacking = table.lacking | {name for name, having in table.having.items() if table.models[0] not in having}
    return [each for each in library() if not lacking & {*re.findall(r"\w+", each.where)}]


def shipped_slices(table: TokenTable) -> list[Slice]:
    """Return the bundled slices that need no training counts, labels or runs' columns that the table lacks."""
    return [each for each in as_slices(with_columns(table)) if not _uncounted(table, checked(table, each.where))]


def check_slices(
    specs: Sequence[SliceSpec], models: Sequence[str], evaluation: EvaluationRecord, kept: Mapping[str, pa.DataType]
) -> None:
    """Raise `ArgapError`, naming the slice, for names and conditions that `score_slices` would refuse.

    ``models``: names, the reference first. ``kept``: columns kept from the source, by name.
    """
    check_names(each.name for each in specs)
    for each in specs:
        check_where(each, models, evaluation, kept)


def check_where(
    spec: SliceSpec, models: Sequence[str], evaluation: EvaluationRecord, kept: Mapping[str, pa.DataType]
) -> None:
    """Check the condition of one slice, as `check_slices` does."""
    with within(f"slice {spec.name}"):
        check_condition(filled(spec.where, models, evaluation), schema_of(models, kept))


def prepare(table: TokenTable) -> None:
    """Check the files, once for all slices. Raises `FormatError` for a damaged file."""
    check_files(table.labels, [table.labels / "labels.parquet"])
    for run in table.runs:
        check_files(run.folder, token_parts(run.folder))


def score_slices(
    table: TokenTable,
    slices: Sequence[Slice],
    *,
    threshold: int | None,
    empty: bool = False,
    bins: bool = False,
    among: Callable[[np.ndarray], np.ndarray] | None = None,
    together: str | None = None,
) -> list[Part]:
    """Score all tokens, the AR hits at ``threshold`` (None: all repeated bigrams), and ``slices``, in one pass.

    ``among``: a function that selects documents (bool) from an array of them; None: all. ``bins``: allow any name, as
    `score_by` needs. ``together``: as in `argap.slices.figures.SliceScorer.results`. Raises `ArgapError` for a bad name
    or condition and, unless ``empty``, for a slice without tokens.
    """
    if not bins:
        check_names(each.name for each in slices)
    conditions = {each.name: checked(table, each.where) for each in (Slice(AR_HITS, hits_of(threshold)), *slices)}
    units = _units(table, among)
    whole, (hits, *others), _ = sums(table, conditions, units.of_document, units.number)
    chosen: list[tuple[Slice, Sums]] = []
    for each, of_slice in zip(slices, others, strict=True):
        text = _text(each.where, conditions[each.name])
        if not empty and not of_slice.n.any():
            raise ArgapError(
                f"slice {each.name}: selects no token ({shortened(text)}){_uncounted(table, conditions[each.name])}"
            )
        chosen.append((each._replace(where=text), of_slice))
    return _score(table, whole, hits, chosen, NAMED, together)


def _units(table: TokenTable, among: Callable[[np.ndarray], np.ndarray] | None = None) -> Units:
    """Assign units to the documents with scored tokens, or to those that ``among`` selects."""
    scored = table.scored_of_document > 0
    if among is not None:
        scored[scored] = among(np.flatnonzero(scored))
    return units_among(scored)


def grouped(table: TokenTable) -> tuple[str, ...]:
    """Return the columns that `score_by` accepts."""
    return (*(name for name in GROUPED if name in table.columns), *table.kept)


def score_by(table: TokenTable, column: str, *, threshold: int | None) -> list[Part]:
    """Score all tokens, the AR hits, and one slice per value of a column; these slices form a partition.

    ``column``: one of `grouped`; in a column of spans, each combination of labels is a value. Text values are sorted by
    decreasing number of tokens, other values in their natural order, null last.

    Raises `ArgapError` for another column, and for a column of more than `MOST_BINS` values.
    """
    if column not in (known := grouped(table)):
        raise ArgapError(f"`by` {column}: expected one of {', '.join(known)}")
    units = _units(table)
    of_hits = {AR_HITS: checked(table, hits_of(threshold))}
    all_of = sums(table, of_hits, units.of_document, units.number, by=column)
    of_type = table.schema().field(column).type
    bins = [(bin_of(table, column, value), each) for value, each in all_of.values.items()]
    whole, hits, *scored = _score(table, all_of.whole, all_of.slices[0], bins, column)

    def order(each: Part) -> tuple[bool, float | str]:
        if pa.types.is_dictionary(of_type) or pa.types.is_list(of_type):
            return each.bin == NONE, -each.n
        number = (pa.types.is_integer(of_type) or pa.types.is_floating(of_type)) and each.bin != NONE
        return each.bin == NONE, float(each.bin) if number else each.bin

    return [whole, hits, *sorted(scored, key=order)]


def bin_of(table: TokenTable, column: str, value: str | None) -> Slice:
    """Return the slice of the tokens with a value; ``value``: its text, as from `argap.slices.queries.as_text`.

    A value that is called as a built-in slice is named in quotes.
    """
    if value is None:
        return Slice(NONE, f"{quoted(column)} IS NULL")
    of_type, text = table.schema().field(column).type, literal(value)
    name = text if value in (NONE, *BUILT_IN) else value
    if pa.types.is_list(of_type):
        return Slice(name or NONE, f"{as_text(column, table)} = {text}")
    if pa.types.is_boolean(of_type):
        return Slice(value, quoted(column) if value == "true" else f"NOT {quoted(column)}")
    plain = pa.types.is_integer(of_type) or (pa.types.is_floating(of_type) and math.isfinite(float(value)))
    return Slice(name or text, f"{quoted(column)} = {value if plain else text}")


def _score(
    table: TokenTable,
    whole: Sums,
    hits: Sums,
    slices: Iterable[tuple[Slice, Sums]],
    partition: str,
    together: str | None = None,
) -> list[Part]:
    """Score all tokens, the AR hits, and ``slices``, the bins of ``partition``."""
    scorer = SliceScorer(table.models, table.models[0], whole.n, whole.logprob)
    scorer.add(HITS, hits.n, hits.logprob, about=SliceInfo(AR_HITS, ar_hits=_hits_in(hits)))
    for each, of_slice in slices:
        about = SliceInfo(each.name, str(each.where), each.title, each.note, _hits_in(of_slice))
        scorer.add(Key(partition, each.name), of_slice.n, of_slice.logprob, about=about)
    return scorer.results(together=together)


def _hits_in(of_slice: Sums) -> float | None:
    """Return the share of a slice's tokens that are AR hits; None without tokens."""
    n = float(of_slice.n.sum())
    return of_slice.ar_hits / n if n else None


def _text(where: str | Mask, condition: Condition | Mask) -> str:
    """Return a readable form of a condition."""
    if isinstance(condition, Condition):
        return condition.sql
    return f"Python: {getattr(where, '__name__', type(where).__name__)}"


def checked(table: TokenTable, where: str | Mask) -> Condition | Mask:
    """Parse a condition; return a function unchanged. Raises `ArgapError` for anything else."""
    if isinstance(where, str):
        return check_condition(filled(where, table.models, table.record.evaluation), table.schema())
    if callable(where):
        return where
    raise ArgapError(f"slice condition {where!r}: expected SQL or a function of a pyarrow.RecordBatch")


def _uncounted(table: TokenTable, condition: Condition | Mask) -> str:
    """Explain why a condition on training counts selects nothing without an index; else return an empty string."""
    if table.record.index is not None or not isinstance(condition, Condition) or "train_count" not in condition.columns:
        return ""
    return "; without an index train_count is null, run `argap label RESULT --index DIR`"


def select(
    table: TokenTable,
    where: str | Mask | None,
    *,
    models: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    limit: int | None = None,
) -> pa.Table:
    """Return the tokens of a slice, in order, as `argap.result.Result.tokens` describes."""
    models = table.models if models is None else list(models)
    for name, given, known in (("models", models, table.models), ("columns", columns or (), table.columns)):
        if unknown := [each for each in given if each not in known]:
            raise ArgapError(f"`{name}` {', '.join(unknown)}: unknown; known are {', '.join(known)}")
    columns = table.columns if columns is None else columns
    condition = checked(table, "true" if where is None else where)
    if isinstance(condition, Condition):
        sql, named, masks = condition.sql, condition.columns, {}
    else:
        sql, named, masks = quoted(MASK + "where"), (), {"where": condition}
    # A condition may name a model that is not in `models`: then read all models' fields and drop the extra ones.
    fields = table.models if set(BY_MODEL) & set(named) else models
    of_each = dict.fromkeys(OF_MODELS, models)
    of_each |= {name: [model for model in models if model in having] for name, having in table.having.items()}
    parts = {name: ", ".join(f"{quoted(m)} := {name}.{quoted(m)}" for m in each) for name, each in of_each.items()}
    columns = [name for name in columns if parts.get(name) != ""]  # a struct needs at least one field
    chosen = [f"struct_pack({parts[name]}) AS {name}" if name in parts else quoted(name) for name in columns]
    segmented = table.record.evaluation.unit == "byte" and not {"nll", SEGMENT_BYTES}.isdisjoint(columns)
    further = [SEGMENT, WHOLE] if segmented else []
    chosen += [f"{quoted(name)} AS {quoted(INTERNAL + name)}" for name in further]
    query = f"SELECT {', '.join(chosen)} FROM {TABLE} WHERE (\n{sql}\n)"
    if limit is not None:
        query += f" LIMIT {int(limit)}"
    try:
        with streamed(table, list(dict.fromkeys([*columns, *named, *further])), masks, fields) as connection:
            found = connection.sql(query).to_arrow_table()
    except FailsOnToken as error:
        raise ArgapError(f"{error} ({' '.join(sql.split())})") from None
    return _once_per_segment(found) if segmented else found


def _once_per_segment(found: pa.Table) -> pa.Table:
    """Leave NLL and bytes of a segment at the last of its tokens in the table, and drop the `INTERNAL` columns."""
    segment, whole = (found[INTERNAL + name].to_numpy() for name in (SEGMENT, WHOLE))
    last = np.append(segment[1:] != segment[:-1], True)[: len(segment)]
    for k, name in enumerate(found.column_names):
        if name == "nll":
            fields = found[name].combine_chunks().flatten()
            once = [pa.array(each.to_numpy(zero_copy_only=False), each.type, mask=~last) for each in fields]
            names = [field.name for field in found.schema.field(name).type]
            found = found.set_column(k, name, pa.StructArray.from_arrays(once, names=names))
        elif name == SEGMENT_BYTES:
            found = found.set_column(k, name, pa.array(np.where(last, whole, 0), pa.int32()))
    return found.drop_columns([INTERNAL + name for name in (SEGMENT, WHOLE)])
