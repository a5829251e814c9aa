"""Discover conditions that explain where a model is behind or ahead, from a result's tokens or only its cells.

A tree of conditions (`argap.metric.condition_tree`) is grown on one half of the documents, and all figures come from
the other half. Trees grown on other halves say how stable its leaves are. The intervals of the leaves' contributions
hold simultaneously, as a reader looks at the largest (`argap.metric.influence`). A discovered slice is still a
hypothesis: it was chosen among many.
"""

import math
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
from msgspec.structs import replace

from argap.errors import AbsentError, ArgapError
from argap.evaluation.documents import LABELS, TOKENS, Documents
from argap.metric.condition_tree import Feature, Node, grow
from argap.records import COPIES, COPY, INDUCTION, INFINITE, NAMED, Gap, Part, Sample, SliceInfo
from argap.records.columns import COPIED, LOGPROB, TEXT, UNIT
from argap.slices.cells import PREFIX, ar_hits, read_cells, with_models
from argap.slices.conditions import TABLE, connect, literal, quoted
from argap.slices.figures import WHOLE, Key, slices_of_cells
from argap.slices.of_tokens import Slice, open_tokens, score_slices
from argap.slices.queries import query_portions
from argap.tokens.batches import TokenReader
from argap.tokens.table import TokenTable

HYPOTHESIS = "A slice that was found is a hypothesis: it was chosen among many. Test it on other text."
OF_CELLS = "its cells, not its tokens: conditions split at the bounds of bins"
SEED = 1234
SPREAD = (2654435761, 2246822519, 3266489917, 668265263)
"""Large odd numbers, the first ⌊2³² / φ⌋: the multiples of each spread evenly over 32 bits, so that it splits documents
into halves of about equal size, independently of the others."""
LIMIT = 50_000_000
"""Number of tokens above which documents are sampled."""
DRAWN = 2**16
"""Tokens per sampled stretch of documents: long enough that skipping the rest is cheap."""
GROUPS = 2**20
"""Combinations of features collected before they are summed, to bound memory."""
OCCURRENCES = (0, 1, 2, 4, 8, 16, 32)
FLAGS = (Feature("repeated"),)
COPY_FLAGS = (Feature("opportunity"), Feature("induction IS TRUE", negated="induction IS NOT TRUE"))
TEXT_FLAGS = tuple(map(Feature, ("word_start", "regexp_matches(piece, '[0-9]')", "regexp_matches(piece, '\\pL')")))
"""Conditions that the tree splits by: of all results, of those with the labels of `argap.tokens.copies`, and of those
with tokens."""
MATCHES = tuple(low - 1 for low in COPIES.values() if low > 0)
"""Upper bounds of all match lengths but the longest."""
BINNED = {
    "frequency": "train_count",
    "distance": "distance",
    "occurrences": "occurrences",
    "position": "pos",
    "match": "match_length",
}
"""Binned columns of cells, and the column of `argap.tokens.table` behind each."""


class Discovery(NamedTuple):
    """Discovered slices, scored on the half of the documents that the tree was not grown on."""

    whole: Part
    leaves: list[Part]
    """By contribution. They form a partition."""
    wider: list[Part]
    """The conditions above the leaves, by contribution."""
    tokens: bool
    """True if the tree was grown on the tokens; False if on the cells, where it splits only at bin bounds."""
    stability: dict[str, float]
    """By leaf: the mean, over trees grown on other halves, of its overlap with their most similar leaf: the tokens in
    both over those in either."""
    sample: Sample | None = None
    """The sampled documents; None if all were read."""

    @property
    def slices(self) -> list[Part]:
        return [*self.leaves, *self.wider]


def discover(
    folder: Path,
    record: Gap,
    model: str,
    *,
    depth: int = 3,
    min_share: float = 0.005,
    leaves: int = 5,
    limit_tokens: int | None = LIMIT,
) -> Discovery:
    """Find conditions that explain the gap of ``model``, as `argap.result.Result.discover` describes.

    ``record``: the ``gap.json`` of the result in ``folder``. The parts returned hold the reference and ``model``.
    """
    _check_arguments(record, model, depth, min_share, leaves, limit_tokens)
    table = _tokens(folder, record)
    sample = None
    if table is None:
        data = _of_cells(folder, record, model)
    else:
        n = table.scored_of_document
        drawn = draw(n, limit_tokens)
        data = _of_tokens(folder, record, table, model, drawn)
        if not drawn.all():
            sample = Sample(int((n[drawn] > 0).sum()), int((n > 0).sum()), float(n[drawn].sum() / n.sum()), SEED)
    _check_differences(data, record.reference, model)
    limits = {"depth": depth, "min_share": min_share, "leaves": leaves}
    trees = [grow(data.codes[rows], data.n[rows], data.lost[rows], data.features, **limits) for rows in data.fits.T]
    nodes = trees[0]
    if not nodes:
        raise ArgapError(f"{model}: no condition explains its ΔNLL better than chance; try a smaller `min_share`")
    named = {f"{'leaf' if node.leaf else 'wider'} {k}": node for k, node in enumerate(nodes)}
    whole, *others = [each.among((record.reference, model)) for each in data.score(named)]
    others = [
        Part(each.estimates.values(), replace(each.about, where=named[each.bin].sql(data.features))) for each in others
    ]
    leaves_, wider = (
        _ordered(kind, model, [each for each in others if each.bin.startswith(kind)]) for kind in ("leaf", "wider")
    )
    by_condition = {node.sql(data.features): _stability(node, trees[1:], data) for node in nodes if node.leaf}
    stability = {part.bin: by_condition[str(part.about.where)] for part in leaves_}
    return Discovery(whole, leaves_, wider, table is not None, stability, sample)


def _stability(leaf: Node, trees: Sequence[Sequence[Node]], data: "_Data") -> float:
    """Return `Discovery.stability` of a leaf."""
    own = leaf.holds(data.codes)

    def overlap(other: Node) -> float:
        theirs = other.holds(data.codes)
        return float(data.n[own & theirs].sum() / data.n[own | theirs].sum())

    return float(np.mean([max((overlap(node) for node in tree if node.leaf), default=0.0) for tree in trees]))


def _check_arguments(
    record: Gap, model: str, depth: int, min_share: float, leaves: int, limit_tokens: int | None
) -> None:
    """Raise `ArgapError` for arguments that `discover` cannot use."""
    reference = record.reference
    compared = [name for name in record.models if name != reference]
    if model not in compared:
        raise ArgapError(f"`model` {model}: expected one of those compared with {reference}: {', '.join(compared)}")
    if not 0 < min_share < 0.5 or depth < 1 or leaves < 2:
        raise ArgapError(
            f"`min_share` {min_share}, `depth` {depth}, `leaves` {leaves}: expected a share above 0 and below 0.5, at "
            "least one condition in a row, and at least two leaves"
        )
    if limit_tokens is not None and limit_tokens < 1:
        raise ArgapError(f"`limit_tokens` {limit_tokens}: expected a number of tokens, or None for all")


def _tokens(folder: Path, record: Gap) -> TokenTable | None:
    """Open the tokens of a result; None if only its cells can be used. Raises as `open_tokens` for others."""
    try:
        table = open_tokens(folder, record)
    except AbsentError:
        return None  # a committed result has only cells
    # A tree splits tokens, and a segment may have several; cells have one row for each segment.
    return None if record.unit == "byte" else table


def _check_differences(data: "_Data", reference: str, model: str) -> None:
    """Raise `ArgapError` if the model's differences to the reference leave nothing to explain."""
    if not np.isfinite(data.lost).all():
        raise ArgapError(f"{model}: no finite ΔNLL to {reference} ({INFINITE}), so nothing to explain")
    if not data.lost[data.fits[:, 0]].any():
        raise ArgapError(
            f"{model}: equal to {reference} on every token of half of the documents, so nothing to explain"
        )


class _Data(NamedTuple):
    """The tokens by combination of features and half, and a function that scores nodes on the first split's other half.

    Legend: C combinations of features and halves, F features, K splits.
    """

    codes: np.ndarray
    """int64 ``[C, F]``."""
    features: list[Feature]
    n: np.ndarray
    """``[C]``: tokens."""
    lost: np.ndarray
    """``[C]``: summed NLL difference to the reference, in nats."""
    fits: np.ndarray
    """bool ``[C, K]``: whether a split's tree is grown on them; scores are of the first split."""
    score: Callable[[dict[str, Node]], list[Part]]
    """Score all tokens of the other half, then those in each node, by name."""


def _of_cells(folder: Path, record: Gap, model: str) -> _Data:
    seeds = {name: record.seeds[name] for name in (record.reference, model)}
    cells = with_models(
        read_cells(folder / "cells.parquet", record), [name for names in seeds.values() for name in names]
    )
    fits = halves(cells["document"].to_numpy())
    fit = fits[:, 0]
    _check_halves(fit, folder)
    binned = {name: highs for name, highs in _bins(record).items() if name in cells}
    features = [*FLAGS, *_binned(binned)]
    values = [cells["repeated"], *(cells[name] for name in binned)]
    if COPY in cells:
        features += [*COPY_FLAGS, *_binned({"match": MATCHES})]
        values += [cells[COPY] >= 0, cells[INDUCTION], np.searchsorted(MATCHES, cells[COPY])]
    codes, features = _coded(values, features, cells["domain"])
    theirs, own = (cells[[PREFIX + name for name in names]].to_numpy().mean(axis=1) for names in seeds.values())
    lost = theirs - own

    def score(nodes: dict[str, Node]) -> list[Part]:
        masks = {Key(NAMED, name): node.holds(codes[~fit]) for name, node in nodes.items()}
        rest = cells.iloc[np.flatnonzero(~fit)]
        scored = slices_of_cells(rest, masks, record.reference, seeds=seeds, together="leaf")
        n, hits = rest["n"].to_numpy(), ar_hits(rest, record.threshold, record.bins)
        parts = [scored[WHOLE]]
        for key, m in masks.items():
            share = float(n[m & hits].sum() / n[m].sum()) if m.any() else None
            about = SliceInfo(key.bin, ar_hits=share)
            parts.append(Part(scored[key].estimates.values(), about))
        return parts

    return _Data(codes, features, cells["n"].to_numpy(dtype=np.float64), lost, fits, score)


def _of_tokens(folder: Path, record: Gap, table: TokenTable, model: str, drawn: np.ndarray) -> _Data:
    bins, copied = _bins(record) | {"occurrences": OCCURRENCES}, "opportunity" in table.columns
    if copied:
        bins["match"] = MATCHES
    fits = halves(np.arange(len(drawn)))
    fit = fits[:, 0]
    _check_halves(fit[drawn & (table.scored_of_document > 0)], folder)
    flags = [*FLAGS, *(COPY_FLAGS if copied else ()), *TEXT_FLAGS]
    features = [*flags, *_binned(bins), *kept_features(table.documents)]
    units = np.where(drawn, fits @ (1 << np.arange(fits.shape[1])), -1).astype(np.int32)
    sums = _sums(table, table.models.index(model), features, units)
    codes, features = _coded([sums[str(k)] for k in range(len(features))], features, sums["domain"])

    def score(nodes: dict[str, Node]) -> list[Part]:
        slices = [Slice(name, node.sql(features)) for name, node in nodes.items()]
        whole, _hits, *scored = score_slices(
            table,
            slices,
            threshold=record.threshold,
            empty=True,
            among=lambda documents: (drawn & ~fit)[documents],
            together="leaf",
        )
        return [whole, *scored]

    of_row = (sums[UNIT].to_numpy()[:, None] >> np.arange(fits.shape[1])) & 1 == 1
    return _Data(codes, features, sums["n"].to_numpy(dtype=np.float64), sums["lost"].to_numpy(), of_row, score)


def _check_halves(fit: np.ndarray, folder: Path) -> None:
    if fit.all() or not fit.any():
        raise ArgapError(f"{folder}: too few documents; discovery needs some in each of two halves")


def _bins(record: Gap) -> dict[str, tuple[int, ...]]:
    """Return the upper bounds of all bins except the last, for each binned column that has several bins."""
    bins = {name: getattr(record.bins, name) for name in ("frequency", "distance", "position")}
    highs = {name: tuple(each.high for each in of if each.high is not None) for name, of in bins.items()}
    return {name: each for name, each in highs.items() if each}


def _binned(bins: dict[str, tuple[int, ...]]) -> list[Feature]:
    return [Feature(column, bins[name]) for name, column in BINNED.items() if name in bins]


def halves(documents: np.ndarray) -> np.ndarray:
    """Return whether each split grows its tree on each document, bool ``[D, K]``; the first is the one scored."""
    return (documents.astype(np.int64)[:, None] * np.array(SPREAD) + SEED) % 2**32 < 2**31


def draw(n: np.ndarray, limit: int | None) -> np.ndarray:
    """Sample documents with about ``limit`` of the ``n [D]`` tokens in total, bool ``[D]``; None: all documents.

    Stretches of consecutive documents (`DRAWN` tokens, or one longer document) are sampled with equal probability, so
    shares and means over the sampled tokens need no weights.
    """
    if limit is None or n.sum() <= limit:
        return np.ones(len(n), dtype=bool)
    stretch = (np.cumsum(n) - n) // DRAWN
    return (np.random.default_rng(SEED).random(stretch[-1] + 1) < limit / n.sum())[stretch]


def _sums(table: TokenTable, model: int, features: list[Feature], units: np.ndarray) -> pd.DataFrame:
    """Count tokens and sum NLL differences to the reference, by unit, domain and the bins of all features.

    The bins are the columns ``0``, ``1`` …; documents whose unit is -1 are left out.
    """
    bins = [f'{each.bin} AS "{k}"' for k, each in enumerate(features)]
    lost = f'sum("{LOGPROB}0"::DOUBLE - "{LOGPROB}{model}"::DOUBLE) AS lost'
    parts = ", ".join([f'"{UNIT}"', "domain::VARCHAR AS domain", *bins, "count(*) AS n", lost])
    query = f'SELECT {parts} FROM {TABLE} WHERE "{UNIT}" >= 0 GROUP BY ALL ORDER BY ALL'
    named = ("domain", "piece", "word_start", "repeated", *BINNED.values(), *COPIED)
    columns = [UNIT, *dict.fromkeys(name for name in named if name in table.columns), *table.kept]
    reader = TokenReader(table, [*columns, f"{LOGPROB}0", f"{LOGPROB}{model}"], units=units)
    found: list[pa.Table] = []
    for portion in query_portions(reader, query):
        found.append(portion)
        if sum(map(len, found)) > GROUPS:
            found = [_added(found)]
    return _added(found).to_pandas()


def _added(tables: list[pa.Table]) -> pa.Table:
    """Merge the sums of several portions."""
    keys = ", ".join(quoted(name) for name in tables[0].column_names if name not in ("n", "lost"))
    query = f"SELECT {keys}, sum(n)::BIGINT AS n, sum(lost) AS lost FROM {TABLE} GROUP BY ALL ORDER BY ALL"
    with connect(threads=1) as connection:
        connection.register(TABLE, pa.concat_tables(tables))
        return connection.sql(query).to_arrow_table()


def _coded(bins: Sequence[Any], features: Sequence[Feature], domain: Any) -> tuple[np.ndarray, list[Feature]]:
    """Return each row's bin for each feature, int64 ``[C, F]``, and the features.

    Adds a flag per domain if there are several; leaves out features with nulls.
    """
    distinct, code = np.unique(np.asarray(domain.astype(object)), return_inverse=True)
    names = distinct.tolist() if len(distinct) > 1 else []
    flags = [Feature(f"domain = {text}", (), f"domain <> {text}") for text in map(literal, map(str, names))]
    found = zip([*bins, *(code == k for k in range(len(names)))], [*features, *flags], strict=True)
    known = [(np.asarray(each, dtype=np.int64), feature) for each, feature in found if not pd.isna(each).any()]
    return np.column_stack([each for each, _ in known]), [feature for _, feature in known]


def _ordered(kind: str, model: str, found: list[Part]) -> list[Part]:
    """Sort the slices of a kind by absolute contribution, largest first, and number them in that order."""
    ranked = sorted(found, key=lambda part: abs(part[model].contribution or 0.0), reverse=True)
    return [part.moved(NAMED, f"{kind} {k}") for k, part in enumerate(ranked, start=1)]


MOST_VALUES = 20
"""Most frequent values or labels of a column that become features, counted in tokens."""
BOUNDS = 15
"""Maximum number of bin bounds for numbers and dates, at quantiles of the documents."""


def kept_features(documents: Documents | None) -> list[Feature]:
    """Return the features of kept columns: a flag per common value or label, bins for numbers and dates.

    Columns of numbers or dates with a null are left out, as a token without a value falls in no bin.
    """
    if documents is None:
        return []
    features: list[Feature] = []
    for name, of_type in documents.types.items():
        column = documents.table[name]
        sql = quoted(name)
        if of_type == LABELS:
            labels = documents.labels(name)[:MOST_VALUES]
            features += [Feature(f"list_contains({sql}, {_literal(each)})") for each in labels]
        elif of_type == TEXT or pa.types.is_boolean(of_type):
            values = map(_literal, _common(column, documents.table[TOKENS]))
            equal, other = ("IS NOT DISTINCT FROM", "IS DISTINCT FROM") if column.null_count else ("=", "<>")
            features += [Feature(f"{sql} {equal} {value}", (), f"{sql} {other} {value}") for value in values]
        elif not column.null_count and (highs := tuple(map(_literal, _bounds(column.to_pylist())))):
            features.append(Feature(sql, highs, whole=False))
    return features


def _common(column: pa.ChunkedArray, tokens: pa.ChunkedArray) -> list[Any]:
    """Return the values with the most tokens; of two values, one, as the other is its negation."""
    sums = pa.table({"value": column, "n": tokens}).group_by("value").aggregate([("n", "sum")])
    counts = {v: n for v, n in zip(sums["value"].to_pylist(), sums["n_sum"].to_pylist(), strict=True) if v is not None}
    values = sorted(counts, key=lambda value: (-counts[value], value))
    return values[:1] if len(values) == 2 and not column.null_count else values[:MOST_VALUES]


def _bounds(values: list[Any]) -> list[Any]:
    """Return the upper bounds of all bins except the last. As in SQL, NaN counts as greater than every number."""
    ordered = sorted((math.nan if value != value else value for value in values), key=lambda each: (each != each, each))
    distinct = list(dict.fromkeys(ordered))
    if len(distinct) > BOUNDS + 1:
        at = np.arange(1, BOUNDS + 1) * len(ordered) // (BOUNDS + 1)
        distinct = list(dict.fromkeys([*(ordered[k] for k in at.tolist()), ordered[-1]]))
    return distinct[:-1]


def _literal(value: Any) -> str:
    """Return a value as an SQL literal."""
    if isinstance(value, str | date):
        kind = "" if isinstance(value, str) else "TIMESTAMP " if hasattr(value, "hour") else "DATE "
        return kind + literal(str(value))
    if isinstance(value, float) and not math.isfinite(value):
        return literal(str(value))
    return str(value).lower() if isinstance(value, bool) else repr(value)
