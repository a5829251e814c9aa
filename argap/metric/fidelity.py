"""Measure how closely one model follows another, token by token: |Δ log p|, agreement of the most likely token, and KL.

The mean of Δ log p hides what a quantisation does: SmolLM2 135M in bfloat16 has the NLL of float32, while a fifth of
the tokens move by more than 0.05 nats. Everything here is computed from stored columns of two runs.

Legend: N tokens, U units of documents (`argap.metric.documents.group_of`).
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from argap.metric.influence import Estimates, estimates, ratio
from argap.records.difference import FRACTIONS, MOVED, Fidelity, Interval, Quantiles

SUMMED = ("delta", "absolute", "square", "moved", "same")
"""What is summed of each token besides the stored columns (`measures`)."""
STORED = ("kl", "entropy", "reference_entropy")
"""What is summed of runs with KL."""
DROPPED = 13
"""Lowest bits of a float32 that the histogram of `Spread` ignores: its bins are at most 0.1% wide."""


def differences(model: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """Return Δ log p, the model's log-probs minus the reference's, float64; 0 where both are −∞."""
    with np.errstate(invalid="ignore"):
        found = model.astype(np.float64) - reference
    return np.where(model == reference, 0.0, found)


def measures(delta: np.ndarray, same: np.ndarray) -> dict[str, np.ndarray]:
    """Return each of `SUMMED` for tokens with Δ log p ``delta [N]``; ``same``: whether the top-1 ids are equal."""
    absolute = np.abs(delta)
    return {"delta": -delta, "absolute": absolute, "square": delta**2, "moved": absolute > MOVED, "same": same}


class Spread:
    """The distribution of |Δ log p|, added up portion by portion: quantiles to 0.1%, the largest exactly."""

    def __init__(self) -> None:
        self.counts = np.zeros(2 ** (31 - DROPPED), dtype=np.int64)
        self.largest = 0.0

    def add(self, absolute: np.ndarray) -> None:
        """Add tokens with |Δ log p| ``absolute [N]``."""
        bits = absolute.astype(np.float32).view(np.int32) >> DROPPED  # floats that are not negative sort as integers
        self.counts += np.bincount(bits, minlength=len(self.counts))
        self.largest = max(self.largest, float(absolute.max(initial=0.0)))

    def quantiles(self) -> Quantiles | None:
        """Return the quantiles; None without tokens."""
        below = np.cumsum(self.counts)
        if not below[-1]:
            return None
        bits = np.searchsorted(below, np.ceil(np.array(FRACTIONS) * below[-1])) << DROPPED
        bits += (bits > 0) * 2 ** (DROPPED - 1)  # the middle of a bin, but for 0
        middle = np.minimum(bits, np.float32(np.inf).view(np.int32)).astype(np.int32).view(np.float32)
        return Quantiles(
            *(finite(each) for each in (*np.minimum(middle.astype(np.float64), self.largest), self.largest))
        )


def fidelity(
    model: str,
    name: str,
    n: np.ndarray,
    sums: Mapping[str, np.ndarray],
    *,
    of_all: Mapping[str, float],
    quantiles: Quantiles | None = None,
) -> Fidelity:
    """Return the figures of a model on a slice ``name`` from its sums by unit.

    ``n [U]``: scored tokens; ``sums``: each of `SUMMED` and of `STORED` that is known, ``[U]``. ``of_all``: the number
    of tokens ``n`` and, if known, the sum ``kl`` over all scored tokens. Intervals are Student-t over documents.
    """
    means = {key: estimates(ratio(each, n)) for key, each in sums.items()}
    count = float(n.sum())
    square = _value(means["square"])
    kl = sums.get("kl")
    return Fidelity(
        model=model,
        name=name,
        n=round(count),
        share_of_tokens=count / float(of_all["n"]),
        delta=_value(means["delta"]),
        absolute=_value(means["absolute"]),
        absolute_ci95=_ends(means["absolute"]),
        rms=None if square is None else math.sqrt(square),
        quantiles=quantiles,
        moved=_value(means["moved"]),
        agreement=_value(means["same"]),
        agreement_ci95=_ends(means["same"]),
        kl=_value(means.get("kl")),
        kl_ci95=_ends(means.get("kl")),
        share_of_kl=None if kl is None or not 0 < of_all["kl"] < math.inf else finite(kl.sum() / of_all["kl"]),
        entropy=_value(means.get("entropy")),
        reference_entropy=_value(means.get("reference_entropy")),
    )


def finite(value: Any) -> float | None:
    """Return a number as a float; None for NaN and ±∞, which JSON has not."""
    return float(value) if np.isfinite(value) else None


def _value(of: Estimates | None) -> float | None:
    return None if of is None else finite(float(of.value))


def _ends(of: Estimates | None) -> Interval | None:
    return None if of is None or np.isnan(of.low) else (float(of.low), float(of.high))
