"""Log a result to an experiment tracker."""

from collections.abc import Sequence
from pathlib import Path

from argap.records import Gap
from argap.runtime.trackers import Trackers


def metrics_of(gap: Gap) -> dict[str, float | None]:
    """Return the table of a result as metrics.

    For each model: its NLLs, ΔNLL (negative if it leads), the AR hits' contribution to ΔNLL, and their share of it (a
    fraction; left out if it must not be claimed).
    """
    metrics: dict[str, float | None] = {"share_of_tokens_ar_hits": gap.on_hits.share_of_tokens}
    slices = {"overall": gap.on_all, "ar_hits": gap.on_hits, "other": gap.on_other}
    for model in gap.models:
        metrics |= {f"{model}/nll_{name}": part[model].nll for name, part in slices.items()}
        if model in gap.deltas:
            metrics[f"{model}/delta"] = gap.deltas[model]
            metrics[f"{model}/delta_ar_hits"] = gap.on_hits[model].contribution
        due = gap.on_hits[model]
        if due.share is not None and due.reason is None:
            metrics[f"{model}/share_ar_hits"] = due.share
    return metrics


def log_result(gap: Gap, names: Sequence[str], folder: Path) -> None:
    """Log a result's `metrics_of` as a separate run, at step 0."""
    if names:
        with Trackers(names, folder, {"reference": gap.reference, "fingerprint": gap.fingerprint}) as trackers:
            trackers.log(metrics_of(gap), 0)
