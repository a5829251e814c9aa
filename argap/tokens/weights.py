"""Weigh each token: 1, or the bytes of the segment that it ends if models were compared by segments.

Code that computes from tokens reads this one column and does not ask for the unit.
"""

import numpy as np
import pyarrow as pa

from argap.records import EvaluationRecord

SEGMENT_BYTES = "segment_bytes"


def stored_weights(evaluation: EvaluationRecord) -> list[str]:
    """Return the columns of ``labels.parquet`` that weights are read from, beside ``pos``."""
    return [SEGMENT_BYTES] if evaluation.unit == "byte" else []


def weights(position: np.ndarray, segment_bytes: np.ndarray | None) -> np.ndarray:
    """Return the weight of each row, int32 ``[N]``.

    It is positive if the row has a log-prob of its own, 0 inside a segment, and -1 if the row is not scored: at the
    first position of a window and outside all segments.
    """
    return np.where(position > 0, np.int32(1), np.int32(-1)) if segment_bytes is None else segment_bytes


def weights_of(labels: pa.Table) -> np.ndarray:
    """Return the `weights` of rows of ``labels.parquet``."""
    stored = labels[SEGMENT_BYTES].fill_null(-1).to_numpy() if SEGMENT_BYTES in labels.column_names else None
    return weights(labels["pos"].to_numpy(), stored)


def last_rows(weight: np.ndarray) -> np.ndarray:
    """Return the row that holds each row's log-prob, int64 ``[N]``: itself, or the last of its segment.

    A row that is not scored gets an arbitrary one.
    """
    ends = np.flatnonzero(weight > 0)
    return np.append(ends, 0)[np.searchsorted(ends, np.arange(len(weight)))]
