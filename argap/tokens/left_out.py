"""Leave documents out of an evaluation set by dropping whole windows, so that the others stay intact.

A window belongs to the document that holds most of it. With packing, its other tokens are dropped or kept with it.
"""

from dataclasses import fields, replace
from typing import NamedTuple

import msgspec
import numpy as np

from argap.evaluation.windows import fingerprint_of
from argap.records import EvaluationRecord, LeftOut
from argap.tokens.labels import Labels


class Kept(NamedTuple):
    """The windows that stay. Legend: N tokens of the whole set."""

    rows: np.ndarray
    """bool ``[N]``: the tokens of these windows."""
    record: EvaluationRecord
    """The record of these windows, with the fingerprint of a set that has no others."""


def keep_others(
    record: EvaluationRecord, tokens: np.ndarray, window: np.ndarray, document_of_window: np.ndarray, left_out: LeftOut
) -> Kept:
    """Return the windows that belong to none of the documents ``left_out``.

    ``tokens``, ``window``: int32 ``[N]``, token ids and the window of each. ``document_of_window``: int32 ``[W]``.
    The result does not depend on whether documents left out at the end of the text are still there.
    """
    stays = ~np.isin(document_of_window, left_out.documents)
    rows = stays[window]
    lengths = np.bincount(window, minlength=len(stays))[stays]
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    others = ~np.isin(np.arange(record.documents), left_out.documents)
    described = msgspec.structs.replace(
        record,
        fingerprint=fingerprint_of(tokens[rows], offsets),
        tokens=int(lengths.sum()),
        scored=int(lengths.sum()) - len(lengths),
        windows=len(lengths),
        documents=int(others.sum()),
        left_out=left_out,
    )
    return Kept(rows, described)


def labels_of(labels: Labels, kept: Kept) -> Labels:
    """Return the labels of the tokens that stay; windows and documents keep their numbers."""
    columns = {
        field.name: getattr(labels, field.name) for field in fields(labels) if field.name != "document_of_window"
    }
    return replace(labels, **{name: each[kept.rows] for name, each in columns.items() if isinstance(each, np.ndarray)})
