"""What each token counts: 1, or the bytes of the segment that it ends where models were compared by segments.

What is computed from tokens reads this one column and does not ask which unit it is in.
"""

import numpy as np
import pyarrow as pa

from argap.records import EvaluationRecord

SEGMENT_BYTES = "segment_bytes"


def stored_weights(evaluation: EvaluationRecord) -> list[str]:
    """Return the columns of ``labels.parquet`` that weights are read from, beside ``pos``."""
    return [SEGMENT_BYTES] if evaluation.unit == "byte" else []


def weights(position: np.ndarray, segment_bytes: np.ndarray | None) -> np.ndarray:
    """Return what each row counts, int32 ``[N]``: a positive number where it has a log-prob of its own, 0 inside a
    segment, and -1 where nothing is scored: at the first position of a window, and outside all segments."""
    return np.where(position > 0, np.int32(1), np.int32(-1)) if segment_bytes is None else segment_bytes


def weights_of(labels: pa.Table) -> np.ndarray:
    """Return the `weights` of rows of ``labels.parquet``."""
    stored = labels[SEGMENT_BYTES].fill_null(-1).to_numpy() if SEGMENT_BYTES in labels.column_names else None
    return weights(labels["pos"].to_numpy(), stored)


def last_rows(weight: np.ndarray) -> np.ndarray:
    """Return for each row the one that has its log-prob, int64 ``[N]``: itself, or the last of its segment; any row
    where nothing is scored."""
    ends = np.flatnonzero(weight > 0)
    return np.append(ends, 0)[np.searchsorted(ends, np.arange(len(weight)))]
