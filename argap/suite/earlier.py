"""The result that a folder has already: where members come from whose runs are not in the work folder.

The rows of its tables depend on the evaluation text and the training counts alone, and each model has columns or rows
of its own, so that members trained elsewhere, or later, stand beside the others. Results that differ in anything else
are refused.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
import pandas as pd

from argap.bins import bins_of
from argap.breakdowns import partition
from argap.cells import PREFIX, models_of
from argap.checksums import check_files
from argap.errors import FormatError, MismatchError
from argap.parquet import check_columns, read_frame, read_schema
from argap.progress import say
from argap.records import EvaluationRecord, Examples, Gap, Part, read_gap, read_record
from argap.runs import Run
from argap.suite.config import Suite
from argap.suite.layout import check_trained
from argap.suite.result import Member, Members
from argap.suite.trajectory import COLUMNS

REMEDY = "choose another `out`, or score all members anew in one work folder"
DROP = "choose another `out`, or take the member out of the suite to drop it from the result"


@dataclass(frozen=True)
class Earlier:
    """The members of a result that are taken from it; without any, nothing of it is read."""

    folder: Path
    taken: Mapping[str, Member] = field(default_factory=dict)
    same: Set[str] = frozenset()
    """The models of the result that are what they were: those taken, and those whose run is of the same checkpoint."""
    position: tuple[Part, ...] = ()
    """The partition by position in its ``gap.json``."""

    def joined(self, name: str, own: pd.DataFrame, models: Sequence[str]) -> pd.DataFrame:
        """The sums ``own`` of the runs with those that the file ``name`` has of the members taken.

        Raises `MismatchError` unless both have the same rows, and the same number of tokens in each.
        """
        if not self.taken or not (path := self.folder / name).is_file():
            return own
        keys = [column for column in own.columns if not column.startswith(PREFIX)]
        found = self._read(path, keys)
        if not all(np.array_equal(own[key].to_numpy(), found[key].to_numpy()) for key in keys):
            raise MismatchError(
                f"{path}: its rows are not those of the evaluation text and the training counts here; {REMEDY}"
            )
        sums = {PREFIX + model: (found if model in self.taken else own).get(PREFIX + model) for model in models}
        return own[keys].assign(**{column: values for column, values in sums.items() if values is not None})

    def by_position(self, sums: pd.DataFrame, gap: Gap) -> tuple[Part, ...]:
        """The partition by position of the models of ``gap``.

        An older result has no ``positions.parquet``. Its models then keep the figures that they have; against a
        reference without sums, a further model has no interval.
        """
        measured = models_of(sums)
        if not measured:
            return self.position
        against = gap.reference if gap.reference in measured else measured[0]
        parts = partition(sums, gap.bins, "position", reference=against, threshold=gap.threshold)
        if len(measured) == len(gap.models):
            return parts
        return tuple(_beside(old, new, gap, against) for old, new in zip(self.position, parts, strict=True))

    def examples(self) -> Examples:
        return read_record(self.folder / "examples.json", Examples, remedy=REMEDY)

    def trajectory(self, own: pd.DataFrame | None, models: Sequence[str]) -> pd.DataFrame | None:
        """The rows ``own`` of the runs with those of the members taken, in the order of ``models``."""
        path = self.folder / "trajectory.parquet"
        if not self.taken or not path.is_file():
            return own
        found = self._read(path, COLUMNS)
        every = pd.concat([found.loc[found["model"].isin(list(self.taken))], *([] if own is None else [own])])
        order = every["model"].map(models.index).argsort(kind="stable")
        return every.iloc[order].reset_index(drop=True) if len(every) else None

    def _read(self, path: Path, needed: Sequence[str]) -> pd.DataFrame:
        check_files(self.folder, [path], remedy=REMEDY)
        return read_frame(path, needed=needed, remedy=REMEDY)


def open_earlier(
    suite: Suite, size: str, runs: Mapping[str, Run], evaluation: EvaluationRecord, threshold: int, folder: Path
) -> Earlier:
    """What a result of ``size`` has besides the members with a run.

    A member that has both comes from its run, and one that is not in the suite is dropped. Raises `MismatchError` where
    the text, the threshold, the bins, the reference or the training of a member is not the suite's.
    """
    entries = {entry.name: entry for entry in suite.entries(size)}
    if runs.keys() == entries.keys() or not (folder / "gap.json").is_file():
        return Earlier(folder)
    found = {member.name: member for member in read_record(folder / "members.json", Members, remedy=REMEDY).members}
    taken = {name: member for name, member in found.items() if name in entries and name not in runs}
    if not taken:
        return Earlier(folder)
    gap = read_gap(folder, remedy=REMEDY)
    checkpoints = {name: run.record.checkpoint.fingerprint for name, run in runs.items() if name in found}
    if missing := [name for name in gap.models if name not in found]:
        raise FormatError(f"{folder / 'members.json'}: lacks {missing[0]}, which gap.json has; {REMEDY}")
    trained = found[gap.reference].checkpoint
    changed = [name for name, checkpoint in checkpoints.items() if checkpoint != found[name].checkpoint]
    for what, own, expected in (
        ("reference", gap.reference, suite.reference),
        ("evaluation set", gap.fingerprint[:12], evaluation.fingerprint[:12]),
        ("threshold", gap.threshold, threshold),
        ("reference's checkpoint", trained[:12], checkpoints.get(gap.reference, trained)[:12]),
    ):
        if own != expected:
            raise MismatchError(f"{folder}: its {what} is {own}, here {expected}; {REMEDY}")
    if gap.bins != bins_of(threshold, evaluation.seq_len):
        raise MismatchError(f"{folder}: its bins are those of another argap; {REMEDY}")
    for name, member in taken.items():
        check_trained(entries[name], member.train, f"{folder / 'members.json'}: {name}", DROP)
    for name in ("cells.parquet", "curve.parquet"):
        path = folder / name
        check_columns(path, read_schema(path), [PREFIX + model for model in taken], remedy=REMEDY)
    say(f"{folder}: {', '.join(taken)} without a run here, taken from the result")
    if changed:
        say(f"{folder}: {', '.join(changed)} replaced by the run of another checkpoint")
    if dropped := [name for name in found if name not in entries]:
        say(f"{folder}: {', '.join(dropped)} dropped, not in the suite")
    return Earlier(folder, taken, {*taken, *checkpoints} - {*changed}, gap.breakdowns.position)


def _beside(old: Part, new: Part, gap: Gap, against: str) -> Part:
    """A part of an older result with the models that are in ``new``, which are compared with ``against`` there."""
    nll = old.nll | new.nll
    contribution, ci95 = new.contribution, new.ci95
    if against != gap.reference:
        contribution = {m: new.share * (nll[m] - nll[gap.reference]) for m in new.nll if gap.reference in nll}
        ci95 = dict.fromkeys(contribution)
    merged = {"nll": nll, "contribution": old.contribution | contribution, "ci95": old.ci95 | ci95}
    ordered = {name: {m: values[m] for m in gap.models if m in values} for name, values in merged.items()}
    return msgspec.structs.replace(new, **ordered)
