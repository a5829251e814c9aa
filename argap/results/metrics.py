"""A result as metrics of an experiment tracker."""

from collections.abc import Sequence
from pathlib import Path

from argap.metric.share import unresolved_of
from argap.records import Gap
from argap.runtime.trackers import Trackers


def metrics_of(gap: Gap) -> dict[str, float | None]:
    """The table of a result as metrics: for each model its NLLs, gap and share of the gap (a fraction; left out where
    it must not be claimed)."""
    metrics: dict[str, float | None] = {"share_ar_hits": gap.on_hits.share_of_tokens}
    slices = {"overall": gap.on_all, "ar_hits": gap.on_hits, "other": gap.on_other}
    for model in gap.models:
        metrics |= {f"{model}/nll_{name}": part[model].nll for name, part in slices.items()}
        if model in gap.deltas:
            metrics[f"{model}/gap"] = gap.deltas[model]
        due = gap.on_hits[model]
        if model != gap.reference and unresolved_of(due) is None:
            metrics[f"{model}/gap_due_to_ar"] = due.paper_rule
    return metrics


def log_result(gap: Gap, names: Sequence[str], folder: Path) -> None:
    """Log a result's `metrics_of` as a run of its own, at step 0."""
    if names:
        with Trackers(names, folder, {"reference": gap.reference, "fingerprint": gap.fingerprint}) as trackers:
            trackers.log(metrics_of(gap), 0)
