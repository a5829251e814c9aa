"""A result restated: at another threshold τ, or against another reference. From its cells alone; no token is read.

The cells hold training counts in bins, so that τ can be the upper end of any bin: 0, 1, 2, 5, 10 … and the result's
own.
"""

import pandas as pd
from msgspec.structs import replace

from argap.errors import ArgapError
from argap.metric.bins import bins_of, frequency_bins
from argap.metric.threshold import Threshold, resolve_threshold
from argap.records import Gap, estimates_of
from argap.results.summary import gap_rows
from argap.slices.cells import PREFIX, sum_by
from argap.slices.figures import slices_of_cells
from argap.slices.partitions import hits_and_others


def thresholds_of(gap: Gap) -> tuple[int, ...]:
    """Every τ that the cells of a result allow, ascending; empty without training counts."""
    return tuple(each.high for each in gap.bins.frequency if each.high is not None)


def check_setting(gap: Gap, threshold: int | None, reference: str) -> None:
    """Raise `ArgapError` for a threshold between the bounds of the bins, or an unknown reference."""
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
    """τ for ``threshold``, any that tokens allow; None: the result's own. Raises `ArgapError` for one below 0, and for
    any where the result has no training counts."""
    if threshold is None:
        return gap.threshold
    if gap.index is None:
        raise _without_counts(threshold)
    return resolve_threshold(threshold, gap.index.exposed_tokens)


def _without_counts(threshold: Threshold | None) -> ArgapError:
    return ArgapError(f"`threshold` {threshold}: the result has no training counts; add them with `argap label`")


def cells_at(cells: pd.DataFrame, gap: Gap, threshold: int | None) -> pd.DataFrame:
    """The cells as they would be had the result been made at ``threshold``: with the bins that τ brings.

    The result's own τ is a bound of its bins, which another τ need not have; then two bins become one.
    """
    if threshold == gap.threshold or threshold is None or "frequency" not in cells:
        return cells
    beyond = gap.bins.frequency[-1].low
    highs = [beyond if each.high is None else each.high for each in gap.bins.frequency]
    number = frequency_bins(threshold).index(pd.Series(highs).to_numpy())
    cells = cells.assign(frequency=number[cells["frequency"].to_numpy()])
    return sum_by(cells, [name for name in cells.columns if name != "n" and not name.startswith(PREFIX)])


def restate(gap: Gap, cells: pd.DataFrame, *, threshold: int | None, reference: str) -> Gap:
    """Return a result at ``threshold`` (exposures) against ``reference``, with its intervals.

    The partitions but that by slice are left out: `argap.slices.partitions.partition` makes each from `cells_at`. So
    are the slices that were computed from tokens, and the curve against another reference. Raises as `check_setting`.
    """
    check_setting(gap, threshold, reference)
    if (threshold, reference) == (gap.threshold, gap.reference):
        return gap
    base = next((row.closed.base for row in gap.rows if row.closed), None)
    cells = cells_at(cells, gap, threshold)
    scored = slices_of_cells(cells, hits_and_others(cells, threshold), reference)
    points = [point for point in gap.curve if point.bin != str(threshold)] if reference == gap.reference else []
    return replace(
        gap,
        rows=gap_rows(
            scored,
            reference,
            base=None if base == reference else base,
            parameters={row.model: row.parameters for row in gap.rows if row.parameters is not None},
            runs={row.model: row.run for row in gap.rows},
        ),
        reference=reference,
        threshold=threshold,
        bins=bins_of(threshold, gap.evaluation.seq_len),
        slices=(),
        estimates=estimates_of([scored.values(), points]),
    )
