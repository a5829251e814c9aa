"""Reuse members from an existing result when their runs are no longer in the work folder.

The rows of its tables depend only on the evaluation text and the training counts, and each model has its own columns or
rows, so members trained on another machine, or later, fit in next to the others. Results that differ in anything else
are refused.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

from argap.errors import ArgapError, FormatError, MismatchError
from argap.files.regular import is_there
from argap.metric.bins import bins_of
from argap.metric.threshold import Threshold, resolve_threshold
from argap.records import EvaluationRecord, Examples, Gap, read_gap, read_record
from argap.results.in_place import GAP, whole
from argap.slices.cells import PREFIX
from argap.suite.config import Suite
from argap.suite.layout import check_trained, read_recall
from argap.suite.result import Member, Members
from argap.suite.tables import NOT_ALWAYS, TABLES, read_suite_table
from argap.tokens.runs import Run

REMEDY = "choose another `out`, or score all members anew in one work folder"
DROP = "choose another `out`, or take the member out of the suite to drop it from the result"
REBUILT = ("distances.parquet", "distance_sums.parquet", "prevalence.parquet")
"""Tables without models, from which nothing is taken."""


@dataclass(frozen=True)
class Earlier:
    """The members taken from an existing result; without any, nothing of it is read."""

    folder: Path
    taken: Mapping[str, Member] = field(default_factory=dict)
    same: Set[str] = frozenset()
    """Models of the result that are unchanged: those taken, and those whose run has the same checkpoint."""
    examples: Examples | None = None
    """Its example windows, if a member taken has seed 0; only such members are shown in them."""
    changes: tuple[str, ...] = ()
    """One line for each kind of change to its members."""

    def joined(self, name: str, own: pd.DataFrame, models: Sequence[str]) -> pd.DataFrame:
        """Join the runs' sums ``own`` with those of the members taken, from the file ``name``.

        Raises `MismatchError` unless both have the same rows with the same token counts.
        """
        if not self.taken or not is_there(path := self.folder / name):
            return own
        keys = [column for column in own.columns if not column.startswith(PREFIX)]
        found = read_suite_table(self.folder, name)
        if not all(np.array_equal(own[key].to_numpy(), found[key].to_numpy()) for key in keys):
            raise MismatchError(
                f"{path}: its rows are not those of the evaluation text and the training counts here; {REMEDY}"
            )
        sums = {PREFIX + model: (found if model in self.taken else own).get(PREFIX + model) for model in models}
        return own[keys].assign(**{column: values for column, values in sums.items() if values is not None})

    def with_rows(self, name: str, own: pd.DataFrame | None, models: Sequence[str]) -> pd.DataFrame | None:
        """Join the runs' rows ``own`` with those of the members taken, from the file ``name``; None without rows.

        Rows are in the order of ``models``.
        """
        if not self.taken or not is_there(self.folder / name):
            return own
        found = read_suite_table(self.folder, name)
        every = pd.concat([found.loc[found["model"].isin(list(self.taken))], *([] if own is None else [own])])
        order = every["model"].map(models.index).argsort(kind="stable")
        return every.iloc[order] if len(every) else None


def open_earlier(
    suite: Suite,
    size: str,
    runs: Mapping[str, Run | None],
    evaluation: EvaluationRecord,
    threshold: Threshold,
    folder: Path,
) -> Earlier:
    """Open the existing result of ``size`` to take the members without a run from it.

    ``runs``: by member; None for a member still to be trained. Members with a run use the run, and members not in the
    suite are dropped. Raises `ArgapError` if the reference is in neither, `MismatchError` if the text, the threshold,
    the bins, the reference, a member's training or its recall of pairs is not the suite's, and `FormatError` for a
    damaged file.
    """
    entries, folder = {entry.name: entry for entry in suite.entries(size)}, whole(folder)
    found: dict[str, Member] = {}
    if runs.keys() != entries.keys() and is_there(folder / GAP):
        found = {member.name: member for member in read_record(folder / "members.json", Members).members}
    taken = {name: member for name, member in found.items() if name in entries and name not in runs}
    if suite.reference not in {*runs, *taken}:
        raise ArgapError(f"{size}: the reference {suite.reference} is not finished; train it too, or use --no-collect")
    if not taken:
        return Earlier(folder)
    gap = read_gap(folder)
    if gap.index is None:
        raise FormatError(f"{folder / GAP}: `index` is null, and a suite has one; {REMEDY}")
    _check_whole(folder, gap, found, taken)
    again = {name: run.record.checkpoint.fingerprint for name, run in runs.items() if run is not None and name in found}
    trained = found[gap.reference].checkpoint
    changed = [name for name, checkpoint in again.items() if checkpoint != found[name].checkpoint]
    for what, recorded, expected in (
        ("reference", gap.reference, suite.reference),
        ("evaluation set", gap.fingerprint[:12], evaluation.fingerprint[:12]),
        ("threshold", gap.threshold, resolve_threshold(threshold, gap.index.exposed_tokens)),
        ("reference's checkpoint", trained[:12], again.get(gap.reference, trained)[:12]),
    ):
        if recorded != expected:
            raise MismatchError(f"{folder}: its {what} is {recorded}, here {expected}; {REMEDY}")
    if gap.bins != bins_of(gap.threshold, evaluation.seq_len):
        raise MismatchError(f"{folder}: its bins are those of another argap; {REMEDY}")
    for name, member in taken.items():
        check_trained(entries[name].config, member.train, f"{folder / 'members.json'}: {name}", DROP)
    if is_there(path := folder / "mqar.json"):
        read_recall(suite, path)
    changes = (
        (list(taken), "without a run here, taken from the result"),
        (changed, "replaced by the run of another checkpoint"),
        ([name for name in found if name not in entries], "dropped, not in the suite"),
    )
    shown = [name for name in taken if entries[name].seed == 0]
    return Earlier(
        folder,
        taken,
        {*taken, *again} - {*changed},
        _examples(folder / "examples.json", shown) if shown else None,
        tuple(f"{folder}: {', '.join(names)} {what}" for names, what in changes if names),
    )


def _examples(path: Path, shown: Sequence[str]) -> Examples:
    examples = read_record(path, Examples)
    if missing := [name for name in shown if name not in examples.models]:
        raise FormatError(f"{path}: lacks {missing[0]}, which gap.json has; {REMEDY}")
    return examples


def _check_whole(folder: Path, gap: Gap, found: Mapping[str, Member], taken: Mapping[str, Member]) -> None:
    """Raise `FormatError` for a file that is damaged or lacks a member of the result."""
    if missing := [name for name in gap.models if name not in found]:
        raise FormatError(f"{folder / 'members.json'}: lacks {missing[0]}, which gap.json has; {REMEDY}")
    for name in TABLES:
        if name not in REBUILT and (name not in NOT_ALWAYS or is_there(folder / name)):
            read_suite_table(folder, name, list(taken) if name in ("cells.parquet", "curve.parquet") else ())
