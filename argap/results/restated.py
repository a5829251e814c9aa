"""Restate a result at another threshold τ or against another reference, from its cells; no token is read.

The cells hold binned training counts, so τ can be the upper bound of any bin: 0, 1, 2, 5, 10 … and the result's own τ.
"""

import pandas as pd
from msgspec.structs import replace

from argap.errors import ArgapError
from argap.metric.bins import bins_of, ladder_bounds, recorded_bins
from argap.metric.threshold import Threshold, resolve_threshold
from argap.records import Bins, Gap, estimates_of
from argap.results.summary import gap_rows
from argap.slices.cells import PREFIX, sum_by
from argap.slices.figures import slices_of_cells
from argap.slices.partitions import hits_and_others


def thresholds_of(gap: Gap) -> tuple[int, ...]:
    """Return every τ that the cells of a result allow, ascending; empty without training counts."""
    return tuple(each.high for each in gap.bins.frequency if each.high is not None)


def check_setting(gap: Gap, threshold: int | None, reference: str) -> None:
    """Raise `ArgapError` for a threshold that is not a bin bound, or an unknown reference."""
    if reference not in gap.models:
        raise ArgapError(f"`reference` {reference}: not one of the models compared, which are {', '.join(gap.models)}")
    if threshold == gap.threshold:
        return
    if not (known := thresholds_of(gap)):
        raise _without_counts(threshold)
    if threshold not in known:
        raise ArgapError(
            f"`threshold` {threshold}: expected the upper end of a bin of its cells, one of "
            f"{', '.join(map(str, known))}; any other takes the tokens: `argap slice --threshold N`"
        )


def threshold_in(gap: Gap, threshold: Threshold | None) -> int | None:
    """Return τ for ``threshold`` when tokens are at hand, which allow any; None: the result's own.

    Raises `ArgapError` for a negative one, and for any if the result has no training counts.
    """
    if threshold is None:
        return gap.threshold
    if gap.index is None:
        raise _without_counts(threshold)
    return resolve_threshold(threshold, gap.index.exposed_tokens)


def _without_counts(threshold: Threshold | None) -> ArgapError:
    return ArgapError(f"`threshold` {threshold}: the result has no training counts; add them with `argap label`")


def cells_at(cells: pd.DataFrame, gap: Gap, threshold: int | None) -> pd.DataFrame:
    """Rebin the cells as if the result had been computed at ``threshold``.

    The result's own τ is a bin bound, which another τ may not need; two bins are then merged.
    """
    if threshold == gap.threshold or threshold is None or "frequency" not in cells:
        return cells
    beyond = gap.bins.frequency[-1].low
    highs = [beyond if each.high is None else each.high for each in gap.bins.frequency]
    number = recorded_bins(_bins_at(gap, threshold).frequency).index(pd.Series(highs).to_numpy())
    cells = cells.assign(frequency=number[cells["frequency"].to_numpy()])
    return sum_by(cells, [name for name in cells.columns if name != "n" and not name.startswith(PREFIX)])


def _bins_at(gap: Gap, threshold: int | None) -> Bins:
    """Return the bins of a result restated at ``threshold``."""
    bounded = {*ladder_bounds(gap.index)} <= {*thresholds_of(gap)}  # not in older results
    return bins_of(threshold, gap.evaluation.seq_len, gap.index if bounded else None)


def restate(gap: Gap, cells: pd.DataFrame, *, threshold: int | None, reference: str) -> Gap:
    """Restate a result at ``threshold`` (exposures) against ``reference``, with intervals.

    Only the partition by slice is kept: `argap.slices.partitions.partition` computes the others from `cells_at`. Slices
    computed from tokens are dropped, and so are the curves, over τ and of context use, if the reference changes. Raises
    as `check_setting`.
    """
    check_setting(gap, threshold, reference)
    if (threshold, reference) == (gap.threshold, gap.reference):
        return gap
    base = next((row.closed.base for row in gap.rows if row.closed), None)
    cells = cells_at(cells, gap, threshold)
    bins = _bins_at(gap, threshold)
    scored = slices_of_cells(cells, hits_and_others(cells, threshold, bins), reference, seeds=gap.seeds)
    points = [point for point in gap.curve if point.bin != str(threshold)] if reference == gap.reference else []
    return replace(
        gap,
        rows=gap_rows(
            scored,
            reference,
            base=None if base == reference else base,
            parameters={row.model: row.parameters for row in gap.rows if row.parameters is not None},
            runs={row.model: row.run for row in gap.rows},
            seeds=gap.seeds,
        ),
        reference=reference,
        threshold=threshold,
        bins=bins,
        slices=(),
        context=gap.context if reference == gap.reference else (),
        estimates=estimates_of([scored.values(), points]),
    )
