"""What a model has learned when: NLL on AR hits and on all other tokens along its training."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from argap.gap import gap_due_to_ar
from argap.labels import Labels
from argap.runs import Run, read_logprobs

COLUMNS = ("model", "step", "tokens", "n_ar_hits", "nll_ar_hits", "n_other", "nll_other")


def build_trajectory(
    labels: Labels, trajectories: Mapping[str, Mapping[int, Run]], tokens_a_step: int, threshold: float
) -> pd.DataFrame:
    """One row a checkpoint: `COLUMNS`, ``tokens`` trained on until then, NLL in nats.

    ``trajectories``: by model the run of each step.
    """
    hits = labels.ar_hit(threshold) & labels.scored
    slices = {"ar_hits": np.flatnonzero(hits), "other": np.flatnonzero(labels.scored & ~hits)}
    rows = []
    for model, runs in trajectories.items():
        for step, run in runs.items():
            logprob = read_logprobs(run)[0]
            row: dict[str, Any] = {"model": model, "step": step, "tokens": step * tokens_a_step}
            for name, chosen in slices.items():
                row[f"n_{name}"] = len(chosen)
                row[f"nll_{name}"] = -float(logprob[chosen].mean(dtype=np.float64)) if len(chosen) else np.nan
            rows.append(row)
    return pd.DataFrame(rows, columns=list(COLUMNS))


def share_along(trajectory: pd.DataFrame, model: str, reference: str) -> tuple[np.ndarray, np.ndarray]:
    """At the steps that both have: tokens trained on, and the raw share of the gap that is AR (NaN where the model
    has no gap)."""
    own, other = (trajectory.loc[trajectory["model"] == name].set_index("step") for name in (model, reference))
    both = own.join(other, rsuffix="_reference", how="inner")
    shares = [_share(row) for row in both.to_dict("records")]
    return both["tokens"].to_numpy(), np.array(shares, dtype=np.float64)


def _share(row: Mapping[Any, Any]) -> float | None:
    hits, others = row["n_ar_hits"], row["n_other"]
    share = hits / (hits + others)
    on_hits = row["nll_ar_hits_reference"] - row["nll_ar_hits"] if hits else 0.0
    on_others = row["nll_other_reference"] - row["nll_other"] if others else 0.0
    overall = share * on_hits + (1 - share) * on_others
    return gap_due_to_ar(on_hits, overall, share).raw if overall < 0 else None
