"""A result as metrics of an experiment tracker."""

from collections.abc import Sequence
from pathlib import Path

from argap.records import Gap
from argap.runtime.trackers import Trackers


def metrics_of(gap: Gap) -> dict[str, float | None]:
    """The table of a result as metrics: for each model its NLLs, gap and share of the gap (a fraction; left out where
    it must not be claimed)."""
    metrics: dict[str, float | None] = {"share_ar_hits": gap.rows[0].share_ar_hits}
    for row in gap.rows:
        metrics |= {f"{row.model}/nll_{name}": getattr(row, name).nll for name in ("overall", "ar_hits", "other")}
        if row.delta is not None:
            metrics[f"{row.model}/gap"] = row.delta.nll
        due = row.gap_due_to_ar
        if due is not None and not due.unresolved:
            metrics[f"{row.model}/gap_due_to_ar"] = due.value
    return metrics


def log_result(gap: Gap, names: Sequence[str], folder: Path) -> None:
    """Log a result's `metrics_of` as a run of its own, at step 0."""
    if names:
        with Trackers(names, folder, {"reference": gap.reference, "fingerprint": gap.fingerprint}) as trackers:
            trackers.log(metrics_of(gap), 0)
