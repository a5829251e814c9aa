"""The additive decomposition: the gap of each model, broken down by several partitions of the tokens.

For any partition into slices s with shares p_s, the contributions p_s·Δnll_s add up to the gap Δnll.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, get_args

import numpy as np
import pandas as pd

from argap.records import (
    AR_HITS,
    COPIES,
    COPY,
    INDUCTION,
    NO_PREDICTION,
    OTHER,
    RIGHT,
    SLICE,
    THRESHOLD,
    WRONG,
    Bins,
    Part,
)
from argap.slices.cells import CellFile, ar_hits
from argap.slices.figures import Key, Seeds, slices_of_cells

By = Literal["slice", "frequency", "distance", "position", "domain", "copy", "induction"]
HITS, OTHERS = Key(SLICE, AR_HITS), Key(SLICE, OTHER)


def hits_and_others(cells: pd.DataFrame, threshold: int | None, bins: Bins) -> dict[Key, np.ndarray]:
    """Return the cells (bool ``[C]``) of the AR hits and of all other tokens.

    ``bins``: those that the cells refer to. Returns nothing for a margin without the keys that tell them apart
    (`argap.slices.margins`).
    """
    if "repeated" not in cells:
        return {}
    hits = ar_hits(cells, threshold, bins)
    return {HITS: hits, OTHERS: ~hits}


def groups(
    cells: pd.DataFrame, bins: Bins, threshold: int | None, chosen: Sequence[By] = get_args(By)
) -> dict[Key, np.ndarray]:
    """Return the cells (bool ``[C]``) of each bin of the ``chosen`` partitions; partitions without a key are skipped.

    ``bins``: those that the cells refer to. Frequency bins separate repeated tokens from others.
    """
    found: dict[Key, np.ndarray] = {}
    for by in chosen:
        if by == "slice":
            found |= hits_and_others(cells, threshold, bins)
        elif by == "domain" and by in cells:
            code, names = pd.factorize(cells["domain"].astype(object))
            found |= {Key(by, str(name)): code == k for k, name in enumerate(names)}
        elif by == COPY and by in cells:
            found |= {Key(by, name): cells[by].to_numpy() == low for name, low in COPIES.items()}
        elif by == INDUCTION and {COPY, by} <= {*cells.columns}:
            right, some = cells[by].to_numpy(), cells[COPY].to_numpy() >= 0
            found |= {Key(by, RIGHT): right, Key(by, WRONG): some & ~right, Key(by, NO_PREDICTION): ~some}
        elif by in cells:
            number, labels = cells[by].to_numpy(), [each.label for each in getattr(bins, by)]
            if by != "frequency":
                found |= {Key(by, label): number == k for k, label in enumerate(labels)}
                continue
            repeated = cells["repeated"].to_numpy()
            for again in (False, True):
                found |= {Key(by, label, again): (number == k) & (repeated == again) for k, label in enumerate(labels)}
    return found


def in_order(by: By, scored: Mapping[Key, Part]) -> list[Part]:
    """Return the non-empty bins of a partition, domains by name. AR hits and other tokens stay even if empty."""
    keys = [key for key, part in scored.items() if key.partition == by and (part.n or by == "slice")]
    return [scored[key] for key in (sorted(keys) if by == "domain" else keys)]


def partition(
    cells: pd.DataFrame | CellFile,
    bins: Bins,
    by: By,
    *,
    reference: str,
    threshold: int | None,
    seeds: Seeds | None = None,
) -> list[Part]:
    """Score one of the partitions of `groups`: one part per non-empty bin."""
    scored = slices_of_cells(cells, lambda part: groups(part, bins, threshold, [by]), reference, seeds=seeds)
    return in_order(by, scored)


def hits_by_threshold(cells: pd.DataFrame, bins: Bins) -> dict[Key, np.ndarray]:
    """Return the cells of the AR hits (bool ``[C]``) with τ at the upper bound of each frequency bin."""
    if not bins.frequency or "frequency" not in cells:
        return {}
    repeated, number = cells["repeated"].to_numpy(), cells["frequency"].to_numpy()
    ends = [(k, each.high) for k, each in enumerate(bins.frequency) if each.high is not None]
    return {Key(THRESHOLD, str(high)): repeated & (number <= k) for k, high in ends}


def curve(scored: Mapping[Key, Part], threshold: int | None) -> list[Part]:
    """Return the slices of `hits_by_threshold`, up to the first that holds all repeated bigrams.

    The slice at ``threshold`` is left out: it is the AR hits of the partition by slice.
    """
    points = [part for key, part in scored.items() if key.partition == THRESHOLD]
    most = max((part.n for part in points), default=0)
    last = next((k for k, part in enumerate(points) if part.n == most), 0)
    return [part for part in points[: last + 1] if part.bin != str(threshold)]
