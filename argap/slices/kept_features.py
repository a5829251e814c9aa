"""Turn columns kept from the source into features for discovery."""

import math
from datetime import date
from typing import Any

import numpy as np
import pyarrow as pa

from argap.evaluation.documents import LABELS, TOKENS, Documents
from argap.metric.condition_tree import Feature
from argap.records.columns import TEXT
from argap.slices.conditions import literal, quoted

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
