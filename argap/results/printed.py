"""Build the JSON of ``--json``, format 3, and the metrics that trackers take: the figures of every model.

The JSON holds the estimates of ``gap.json``, grouped by slice.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from argap.records import ContextUse, Estimate, Fidelity, Gap, Part
from argap.results.ladder import ladder
from argap.runtime.trackers import Trackers
from argap.slices.conditions import COPIED_AS

FIGURES = [
    name
    for name in Estimate.__struct_fields__
    if name not in ("partition", "bin", "n", "share_of_tokens", "repeated", "worth")
]

CONTEXT = ContextUse.__struct_fields__


def part_json(part: Any) -> dict[str, Any]:
    """Return everything known about a part as JSON values, including nulls; the ``enc_hook`` of `msgspec`."""
    if not isinstance(part, Part):
        raise NotImplementedError
    more = {"partition": part.partition, "bin": part.bin, "repeated": part.repeated, "title": part.about.title}
    return slice_json(part) | more | {"note": part.about.note, "ar_hits": part.about.ar_hits}


def slice_json(part: Part) -> dict[str, Any]:
    """Return a part as an element of ``slices``."""
    return {
        "name": part.about.name,
        "where": part.about.where,
        "n": part.n,
        "share_of_tokens": part.share_of_tokens,
        "models": [{name: getattr(each, name) for name in FIGURES} for each in part.estimates.values()],
    }


def result_json(gap: Gap, slices: Sequence[Part] | None = None) -> dict[str, Any]:
    """Return a result as one object; ``slices``: those to show instead of the default and recorded ones.

    By default ``partitions`` has those by what can be copied from the window; empty lists if the labels lack that.
    ``context`` has the points of the context-use curves, if models were also scored with a short context.
    """
    more = {}
    if slices is None:
        slices = [gap.on_all, gap.on_hits, gap.on_other, *ladder(gap).values(), *gap.parts("named")]
        partitions = {
            by: [slice_json(part) | {"where": conditions[part.bin]} for part in gap.parts(by)]
            for by, conditions in COPIED_AS.items()
        }
        more: dict[str, object] = {"partitions": partitions}
        if gap.context:
            more["context"] = [{name: getattr(each, name) for name in CONTEXT} for each in gap.context]
    models = [
        {"model": row.model, "direction": row.direction, "delta": each.delta, "delta_ci95": each.delta_ci95}
        for row in gap.rows
        for each in (gap.on_all[row.model],)
    ]
    return {
        "reference": gap.reference,
        "threshold": gap.threshold,
        "unit": gap.unit,
        "fingerprint": gap.fingerprint,
        "models": models,
        "slices": [slice_json(part) for part in slices],
        **more,
        **({"fidelity": [fidelity_json(each) for each in gap.fidelity]} if gap.fidelity else {}),
    }


def fidelity_json(each: Fidelity) -> dict[str, Any]:
    """Return how closely a model follows the reference as JSON values, including nulls."""
    values = {name: getattr(each, name) for name in Fidelity.__struct_fields__}
    return values | {"quantiles": None if each.quantiles is None else each.quantiles._asdict()}


def encoded(value: Any) -> bytes:
    """Encode records, parts and plain values as JSON."""
    return msgspec.json.encode(value, enc_hook=part_json)


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
