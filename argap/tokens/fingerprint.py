"""Compare rows as they are read with the fingerprint of their evaluation set, which no checksum replaces."""

import hashlib
from pathlib import Path

import numpy as np

from argap.errors import FormatError
from argap.files.remedies import SCORED
from argap.records import EvaluationRecord


class RowsFingerprint:
    """The `argap.evaluation.windows.fingerprint_of` a set whose rows come in portions, in order."""

    def __init__(self) -> None:
        self._digest, self._count = hashlib.sha256(), 0
        self._starts: list[np.ndarray] = []

    def add(self, tokens: np.ndarray, position: np.ndarray) -> None:
        """Add the token ids and the positions in their windows of the next rows, each ``[N]``."""
        self._digest.update(np.ascontiguousarray(tokens, dtype="<i4").data)
        self._starts.append(self._count + np.flatnonzero(position == 0))
        self._count += len(tokens)

    def hexdigest(self) -> str:
        """Return the fingerprint of the rows added."""
        digest = self._digest.copy()
        digest.update(np.concatenate([*self._starts, [self._count]]).astype("<i8").data)
        return digest.hexdigest()

    def check(self, folder: Path, evaluation: EvaluationRecord) -> None:
        """Raise `FormatError` unless the rows added, all of ``folder``, are the tokens and windows of its record.

        Where segments are compared, their ends are a part of the fingerprint, and nothing is checked.
        """
        if evaluation.unit == "byte":
            return
        if self.hexdigest() != evaluation.fingerprint:
            what = f"other tokens or windows than evaluation set {evaluation.fingerprint[:12]}, which its record names"
            raise FormatError(f"{folder}: holds {what}; {SCORED}")
