"""Discovery: which conditions explain the gap of a model, from the tokens of a result or from its cells alone.

A tree of conditions (`argap.condition_tree`) is grown on one half of the documents, and all figures come from the other
half. A slice that was found is a hypothesis all the same: it was chosen among many.
"""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd
from msgspec.structs import replace

from argap.cells import PREFIX, ar_hits
from argap.condition_tree import Feature, grow
from argap.errors import ArgapError
from argap.records import Bin, SliceResult
from argap.slice_sql import TABLE, streamed
from argap.slices import slices_of_cells
from argap.token_slices import Slice, score_slices
from argap.tokens import LOGPROB, TokenTable

if TYPE_CHECKING:
    from argap.result import Result

HYPOTHESIS = "A slice that was found is a hypothesis: it was chosen among many. Test it on other text."
SEED = 1234
GOLDEN = 2654435761
"""⌊2³² / φ⌋: its multiples spread evenly over 32 bits, so that both halves get about as many documents."""
OCCURRENCES = (0, 1, 2, 4, 8, 16, 32)
FLAGS = {
    "repeated": "repeated",
    "word_start": "word_start",
    "has_digit": "regexp_matches(piece, '[0-9]')",
    "has_letter": "regexp_matches(piece, '\\pL')",
}
"""Conditions that the tree splits by; cells have the first alone."""
BINNED = {"frequency": "train_count", "distance": "distance", "occurrences": "occurrences", "position": "pos"}
"""Columns of cells, and those of `argap.tokens` that they bin."""


class Discovery(NamedTuple):
    """What was found, in the half of the documents that the tree was not grown on."""

    whole: SliceResult
    leaves: list[SliceResult]
    """By contribution. They are a partition."""
    wider: list[SliceResult]
    """The conditions above the leaves, by contribution."""
    tokens: bool
    """Whether the tree was grown on the tokens; else on the cells, and splits at the bounds of their bins."""

    @property
    def slices(self) -> list[SliceResult]:
        return [*self.leaves, *self.wider]


def discover(result: "Result", model: str, *, depth: int = 3, min_share: float = 0.005, leaves: int = 5) -> Discovery:
    """As `argap.result.Result.discover` says, as records that have the reference and ``model``."""
    compared = [name for name in result.models if name != result.reference]
    if model not in compared:
        raise ArgapError(
            f"`model` {model}: not a model compared with {result.reference}, which are {', '.join(compared)}"
        )
    if not 0 < min_share < 0.5 or depth < 1 or leaves < 2:
        raise ArgapError(
            f"`min_share` {min_share}, `depth` {depth}, `leaves` {leaves}: expected a share above 0 and below 0.5, at "
            "least one condition in a row, and at least two leaves"
        )
    try:
        table = result.token_table
    except ArgapError:
        table = None  # a committed result has cells alone
    bins = {name: _highs(getattr(result.record.bins, name)) for name in ("frequency", "distance", "position")}
    if table is None:
        cells = result.cells[[*_keys(result.cells), "n", *(PREFIX + each for each in (result.reference, model))]]
        fit = fitting(cells["document"].to_numpy())
        codes, features = _features(cells, bins)
        n = cells["n"].to_numpy(dtype=np.float64)
        lost = (cells[PREFIX + result.reference] - cells[PREFIX + model]).to_numpy()
        grown = codes[fit], n[fit], lost[fit]
    else:
        bins["occurrences"] = OCCURRENCES
        sums = _sums(table, table.models.index(model), bins)
        codes, features = _features(sums, bins)
        grown = codes, sums["n"].to_numpy(dtype=np.float64), sums["lost"].to_numpy()
    if not grown[2].sum() > 0:
        raise ArgapError(f"{model}: no gap to {result.reference} in half of the documents, so nothing to explain")
    nodes = grow(*grown, features, depth=depth, min_share=min_share, leaves=leaves)
    if not nodes:
        raise ArgapError(f"{model}: no condition explains its gap better than chance; try a smaller `min_share`")
    named = {f"{'leaf' if node.leaf else 'wider'} {k}": node for k, node in enumerate(nodes)}
    wheres = {name: node.sql(features) for name, node in named.items()}
    if table is None:
        scored = _score_cells(cells[~fit], {name: node.holds(codes[~fit]) for name, node in named.items()}, result)
    else:
        slices = [Slice(*each) for each in wheres.items()]
        scored = score_slices(table, slices, threshold=result.threshold, empty=True, among=lambda d: ~fitting(d))
        del scored[1]  # the AR hits
    whole, *others = [_of(each, result.reference, model) for each in scored]
    return _ordered(whole, [replace(each, where=wheres[each.name]) for each in others], tokens=table is not None)


def fitting(documents: np.ndarray) -> np.ndarray:
    """bool: whether the tree is grown on a document. `FITTING` says the same in SQL."""
    return (documents.astype(np.int64) * GOLDEN + SEED) % 2**32 < 2**31


FITTING = f"(document::BIGINT * {GOLDEN} + {SEED}) % {2**32} < {2**31}"


def _highs(bins: tuple[Bin, ...]) -> tuple[int, ...]:
    return tuple(each.high for each in bins if each.high is not None)


def _keys(cells: pd.DataFrame) -> list[str]:
    return [name for name in ("document", "domain", "repeated", "frequency", "distance", "position") if name in cells]


def _sums(table: TokenTable, model: int, bins: dict[str, tuple[int, ...]]) -> pd.DataFrame:
    """Tokens and what the model loses, by combination of all features, in the half that the tree is grown on."""
    parts = [f"{sql} AS {name}" for name, sql in FLAGS.items()]
    for name, highs in bins.items():
        if not highs:
            continue
        above = " + ".join(f"({BINNED[name]} > {high})::INT" for high in highs)
        parts.append(f"{above} AS {name}")
    lost = f'sum("{LOGPROB}0"::DOUBLE - "{LOGPROB}{model}"::DOUBLE) AS lost'
    parts = ["domain::VARCHAR AS domain", *parts, "count(*) AS n", lost]
    query = f"SELECT {', '.join(parts)} FROM {TABLE} WHERE {FITTING} GROUP BY ALL ORDER BY ALL"
    columns = ["document", "domain", "piece", "word_start", "repeated", *BINNED.values()]
    with streamed(table, [*columns, f"{LOGPROB}0", f"{LOGPROB}{model}"], {}) as connection:
        return connection.execute(query).df()


def _features(sums: pd.DataFrame, bins: dict[str, tuple[int, ...]]) -> tuple[np.ndarray, list[Feature]]:
    """Of each row its bin of each feature, int64 ``[C, F]``, and the features; columns with nulls are left out."""
    codes: list[np.ndarray] = []
    features: list[Feature] = []

    def add(values: "pd.Series | np.ndarray", feature: Feature) -> None:
        if not pd.isna(values).any():
            codes.append(np.asarray(values, dtype=np.int64))
            features.append(feature)

    for name, where in FLAGS.items():
        if name in sums:
            add(sums[name], Feature(where, (), f"NOT {where}"))
    for name, column in BINNED.items():
        if name in sums and bins.get(name):
            add(sums[name], Feature(column, bins[name]))
    domain = sums["domain"].astype(object)
    names = sorted(domain.unique())
    for name in names if len(names) > 1 else ():
        text = "'" + str(name).replace("'", "''") + "'"
        add(domain == name, Feature(f"domain = {text}", (), f"domain <> {text}"))
    return np.column_stack(codes), features


def _score_cells(cells: pd.DataFrame, masks: dict[str, np.ndarray], result: "Result") -> list[SliceResult]:
    if not len(cells):
        raise ArgapError(f"{result.folder}: too few documents; discovery needs some in each of two halves")
    whole, *scored = slices_of_cells(cells, masks, result.reference)
    n, hits = cells["n"].to_numpy(), ar_hits(cells, result.threshold)
    shares = {name: float(n[mask & hits].sum() / n[mask].sum()) if mask.any() else None for name, mask in masks.items()}
    return [whole, *(replace(each, ar_hits=shares[each.name]) for each in scored)]


def _of(each: SliceResult, reference: str, model: str) -> SliceResult:
    return replace(each, models=tuple(m for m in each.models if m.model in (reference, model)))


def _ordered(whole: SliceResult, found: list[SliceResult], *, tokens: bool) -> Discovery:
    """By falling contribution, and numbered so."""

    def contribution(each: SliceResult) -> float:
        return sum(model.contribution.nll for model in each.models if model.contribution is not None)

    def numbered(kind: str) -> list[SliceResult]:
        chosen = sorted((each for each in found if each.name.startswith(kind)), key=contribution, reverse=True)
        return [replace(each, name=f"{kind} {k}") for k, each in enumerate(chosen, start=1)]

    return Discovery(whole, numbered("leaf"), numbered("wider"), tokens)
