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

from argap.errors import ArgapError, FormatError, MismatchError
from argap.files.checksums import check_files
from argap.files.parquet import check_columns, read_frame, read_schema
from argap.files.staged import GAP, whole
from argap.metric.bins import bins_of
from argap.metric.threshold import Threshold, resolve_threshold
from argap.records import Estimate, EvaluationRecord, Examples, Gap, Part, read_gap, read_record
from argap.slices.cells import KEYS, PREFIX, models_of
from argap.slices.partitions import partition
from argap.suite.config import Suite
from argap.suite.layout import check_trained, read_recall
from argap.suite.result import Member, Members
from argap.suite.trajectory import COLUMNS, LOG_COLUMNS
from argap.tokens.runs import Run

REMEDY = "choose another `out`, or score all members anew in one work folder"
DROP = "choose another `out`, or take the member out of the suite to drop it from the result"
KEPT = {
    "cells.parquet": [key for key in KEYS if key not in ("window", "position")],
    "positions.parquet": ["document", "position"],
}
"""Keys of the committed sums: intervals are over documents, and positions apart from the other keys take far less."""
TABLES: Mapping[str, Sequence[str]] = {
    **{name: [*keys, "n"] for name, keys in KEPT.items()},
    "curve.parquet": ["document", "high", "n"],
    "logs.parquet": LOG_COLUMNS,
    "trajectory.parquet": COLUMNS,
}
"""Files that members are taken from, with the columns that they need beside the sums."""
NOT_ALWAYS = ("positions.parquet", "trajectory.parquet")
"""Those that an older result lacks, and one of finished models alone."""


@dataclass(frozen=True)
class Earlier:
    """The members of a result that are taken from it; without any, nothing of it is read."""

    folder: Path
    taken: Mapping[str, Member] = field(default_factory=dict)
    same: Set[str] = frozenset()
    """The models of the result that are what they were: those taken, and those whose run is of the same checkpoint."""
    position: Sequence[Part] = ()
    """The partition by position in its ``gap.json``."""
    examples: Examples | None = None
    """Its windows, where a member taken is among those that they are chosen for: the ones from seed 0."""
    changes: tuple[str, ...] = ()
    """What becomes of its members, a line each."""

    def joined(self, name: str, own: pd.DataFrame, models: Sequence[str]) -> pd.DataFrame:
        """The sums ``own`` of the runs with those that the file ``name`` has of the members taken.

        Raises `MismatchError` unless both have the same rows, and the same number of tokens in each.
        """
        if not self.taken or not (path := self.folder / name).is_file():
            return own
        keys = [column for column in own.columns if not column.startswith(PREFIX)]
        found = read_frame(path)
        if not all(np.array_equal(own[key].to_numpy(), found[key].to_numpy()) for key in keys):
            raise MismatchError(
                f"{path}: its rows are not those of the evaluation text and the training counts here; {REMEDY}"
            )
        sums = {PREFIX + model: (found if model in self.taken else own).get(PREFIX + model) for model in models}
        return own[keys].assign(**{column: values for column, values in sums.items() if values is not None})

    def by_position(self, sums: pd.DataFrame, gap: Gap) -> list[Part]:
        """The partition by position of the models of ``gap``.

        Older files of ``sums`` lack models. Those keep the estimates that they have, and against a reference without
        sums a further model has no interval.
        """
        measured, reference = models_of(sums), gap.reference
        if not measured:
            return list(self.position)
        against = reference if reference in measured else measured[0]
        parts = partition(sums, gap.bins, "position", reference=against, threshold=gap.threshold)
        if set(measured) >= set(gap.models):
            return [Part(part[model] for model in gap.models) for part in parts]

        def estimate(model: str, old: Part, new: Part) -> Estimate:
            if model not in measured:
                return old[model]
            return new[model] if against == reference else _against(new[model], old[reference])

        pairs = list(zip(self.position, parts, strict=True))
        return [Part(estimate(model, old, new) for model in gap.models) for old, new in pairs]

    def with_rows(self, name: str, own: pd.DataFrame | None, models: Sequence[str]) -> pd.DataFrame | None:
        """Return the rows ``own`` of the runs with those that the file ``name`` has of the members taken, in the order
        of ``models``; None without rows."""
        path = self.folder / name
        if not self.taken or not path.is_file():
            return own
        found = read_frame(path)
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
    """What a result of ``size`` has besides the members with a run.

    ``runs``: of each member that has one; None for a member that is yet to be trained. A member that the result has,
    too, comes from its run, and one that is not in the suite is dropped. Raises `ArgapError` where the reference is in
    neither, `MismatchError` where the text, the threshold, the bins, the reference, the training of a member or its
    recall of pairs is not the suite's, and `FormatError` for a damaged file.
    """
    entries, folder = {entry.name: entry for entry in suite.entries(size)}, whole(folder)
    found: dict[str, Member] = {}
    if runs.keys() != entries.keys() and (folder / GAP).is_file():
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
        check_trained(entries[name], member.train, f"{folder / 'members.json'}: {name}", DROP)
    if (path := folder / "mqar.json").is_file():
        read_recall(suite, path)
    changes = (
        (list(taken), "without a run here, taken from the result"),
        (changed, "replaced by the run of another checkpoint"),
        ([name for name in found if name not in entries], "dropped, not in the suite"),
    )
    shown = any(entries[name].seed == 0 for name in taken)
    return Earlier(
        folder,
        taken,
        {*taken, *again} - {*changed},
        gap.parts("position"),
        read_record(folder / "examples.json", Examples) if shown else None,
        tuple(f"{folder}: {', '.join(names)} {what}" for names, what in changes if names),
    )


def _check_whole(folder: Path, gap: Gap, found: Mapping[str, Member], taken: Mapping[str, Member]) -> None:
    """Raise `FormatError` for a file that is damaged, or that lacks a member of the result."""
    if missing := [name for name in gap.models if name not in found]:
        raise FormatError(f"{folder / 'members.json'}: lacks {missing[0]}, which gap.json has; {REMEDY}")
    check_files(folder, [folder / name for name in TABLES])
    for name, columns in TABLES.items():
        sums = [PREFIX + model for model in taken] if name in ("cells.parquet", "curve.parquet") else []
        if name not in NOT_ALWAYS or (folder / name).is_file():
            schema = read_schema(folder / name)
            check_columns(folder / name, schema, [*columns, *sums])


def _against(each: Estimate, reference: Estimate) -> Estimate:
    """Return an estimate's differences to another reference, without intervals."""
    assert each.nll is not None  # bins hold tokens
    assert reference.nll is not None
    delta = each.nll - reference.nll
    bare = Estimate(each.model, each.partition, each.bin, each.n, each.share_of_tokens, each.nll, each.ppl)
    return msgspec.structs.replace(bare, delta=delta, contribution=delta * each.share_of_tokens)
