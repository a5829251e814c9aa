"""Build tables of training: NLL on AR hits and other tokens at checkpoints, and the logs of all models."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from argap.errors import FormatError
from argap.records import as_json
from argap.slices.tally import tally
from argap.tokens.labels import Labels
from argap.tokens.runs import Run, read_logprobs
from argap.train.log import read_steps
from argap.train.records import StepLine

COLUMNS = ("model", "step", "tokens", "n_ar_hits", "nll_ar_hits", "n_other", "nll_other")
LOG_COLUMNS = ("model", *StepLine.__struct_fields__)


def build_trajectory(
    labels: Labels, trajectories: Mapping[str, Mapping[int, Run]], tokens_per_step: Mapping[str, int], threshold: int
) -> pd.DataFrame:
    """Return one row per checkpoint with `COLUMNS`: ``tokens`` seen in training so far, NLL in nats.

    ``trajectories``: runs by step, by model. ``tokens_per_step``: training tokens per step, by model.
    """
    scored = np.flatnonzero(labels.scored)
    hits = labels.ar_hit(threshold)[scored]
    rows = []
    for model, runs in trajectories.items():
        for step, run in runs.items():
            (of_hits,), n, (logprob,) = tally([hits], [read_logprobs(run)[0][scored]])
            counts = [int(n[chosen].sum()) for chosen in (of_hits, ~of_hits)]
            sums = [-float(logprob[chosen].sum()) for chosen in (of_hits, ~of_hits)]
            means = [total / count if count else np.nan for total, count in zip(sums, counts, strict=True)]
            rows.append((model, step, step * tokens_per_step[model], counts[0], means[0], counts[1], means[1]))
    return pd.DataFrame(rows, columns=list(COLUMNS))


def build_logs(logs: Mapping[str, Path]) -> pd.DataFrame:
    """Return the training logs of all models as one table with `LOG_COLUMNS`, without evaluation lines.

    ``auxiliary_loss`` is NaN for a model without one. Raises `FormatError` for a log without a step, and as `read_log`.
    """
    steps = {model: read_steps(path) for model, path in logs.items()}
    if without := [path for model, path in logs.items() if not steps[model]]:
        raise FormatError(f"{without[0]}: no step of a finished training; remove its folder to train it again")
    rows = [{"model": model, **as_json(line)} for model, lines in steps.items() for line in lines]
    types = {name: "int64" if name in ("step", "tokens") else "float64" for name in StepLine.__struct_fields__}
    return pd.DataFrame(rows, columns=list(LOG_COLUMNS)).astype(types)


def share_along(trajectory: pd.DataFrame, model: str, reference: str) -> tuple[np.ndarray, np.ndarray]:
    """Return training tokens and the share of the gap or lead on the AR hits at each step that both models have.

    The share is signed and not capped; NaN if the models are equal.
    """
    own, ref = (trajectory.loc[trajectory["model"] == name].set_index("tokens") for name in (model, reference))
    tokens = own.index.intersection(ref.index)
    own, ref = own.loc[tokens], ref.loc[tokens]
    hits, others = own["n_ar_hits"].to_numpy(), own["n_other"].to_numpy()
    delta_hits = np.where(hits > 0, (ref["nll_ar_hits"] - own["nll_ar_hits"]).to_numpy(), 0.0)
    delta_other = np.where(others > 0, (ref["nll_other"] - own["nll_other"]).to_numpy(), 0.0)
    share = hits / (hits + others)
    delta = share * delta_hits + (1 - share) * delta_other
    with np.errstate(divide="ignore", invalid="ignore"):
        raw = share * delta_hits / delta
    return tokens.to_numpy(), np.where(np.isfinite(raw), raw, np.nan)
