"""Read a suite's result, and rebuild rows, intervals and curves from its files."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd
from msgspec.structs import replace

from argap.errors import FormatError
from argap.files.checksums import check_files
from argap.files.parquet import read_frame
from argap.files.remedies import SUITE
from argap.metric.direction import NO_SHARE
from argap.metric.intervals import unresolved
from argap.metric.share import gap_due_to_ar
from argap.metric.threshold import PAPER_THRESHOLD, resolve_threshold
from argap.records import SLICE, THRESHOLD, Estimate, Gap, Part, Record, read_gap, read_record
from argap.results.restated import thresholds_of
from argap.slices.cells import PREFIX, models_of, read_cells, sum_by, with_models
from argap.slices.figures import Key, SliceScorer
from argap.slices.partitions import hits_and_others
from argap.suite.curve import share_by_threshold
from argap.suite.distances import fit_exponents
from argap.suite.trajectory import COLUMNS, LOG_COLUMNS
from argap.synthetics.pretrained.records import PretrainedScores, read_scores
from argap.train.records import TrainRecord, TrainResult


class Member(Record, frozen=True):
    """A trained model of a suite: an entry of ``members.json``."""

    name: str
    member: str
    """Name without the seed's suffix."""
    size: str
    seed: int
    parameters: int
    flops: int
    """For the forward pass of one window."""
    state_size: int
    """Elements per sequence."""
    checkpoint: str
    """Fingerprint."""
    evaluation: str
    """Fingerprint of the evaluation set."""
    train: TrainRecord
    scoring: dict[str, str | int | float | None]
    """`argap.records.RunResult` of its run."""

    @property
    def trained(self) -> TrainResult:
        """Return the outcome of its training, which must be finished."""
        assert self.train.finished is not None
        return self.train.finished


class Members(Record, frozen=True):
    """``members.json``."""

    members: tuple[Member, ...]


@dataclass(frozen=True)
class SeedScores:
    """One seed of a member trained from several."""

    name: str
    member: str
    nll: dict[str, float | None]
    """On all scored tokens, ``ar_hits`` and ``other`` (`SizeResult.parts`), in nats; None without tokens."""
    over: dict[str, float | None] | None
    """The same minus the reference's at the same seed, or at seed 0 if that is missing; None for the reference."""
    share: float | None
    """Share of that gap on the AR hits; None without a gap and for the reference."""
    unresolved: str | None
    """Reason why the share must not be claimed."""


@dataclass(frozen=True)
class SizeResult:
    """The result of one size, written by `argap.suite.collect`."""

    folder: Path
    gap: Gap
    """``gap.json``, with shares marked unresolved if seeds differ more than models."""
    cells: pd.DataFrame
    members: tuple[Member, ...]

    @property
    def size(self) -> str:
        return self.folder.name

    @property
    def reference(self) -> str:
        return self.gap.reference

    @property
    def seq_len(self) -> int:
        return self.gap.evaluation.seq_len

    @property
    def passes(self) -> float:
        """Return how often training read the text of an index of occurrences; 1 if its counts are already exposures."""
        reference = self.member(self.reference)
        exposed = self.gap.index is not None and self.gap.index.passes != 1
        return 1.0 if exposed else reference.trained.tokens / reference.train.data.tokens

    @cached_property
    def totals(self) -> dict[str, float]:
        """Return ``n`` and each model's sum of log p over all scored tokens."""
        columns = ["n", *(PREFIX + model for model in models_of(self.cells))]
        return {name: float(self.cells[name].to_numpy().sum()) for name in columns}

    def member(self, name: str) -> Member:
        """Return the member called ``name``. Raises `KeyError` for an unknown name."""
        return {member.name: member for member in self.members}[name]

    @cached_property
    def exposed(self) -> int:
        """Return the curve's bin end whose exposures are closest, in ratio, to the paper's 1,250."""
        bounds = np.unique(self._sums["high"].to_numpy())
        distance = np.abs(np.log(np.maximum(bounds, 0.5) * self.passes / PAPER_THRESHOLD))
        return int(bounds[distance.argmin()])

    @cached_property
    def marks(self) -> list[int]:
        """Return the thresholds to name, if they are bin ends of the curve.

        The result's, `exposed`, and those scaled to the training tokens of one pass and of all passes.
        """
        index = self.gap.index
        assert index is not None  # a suite always has one
        assert self.gap.threshold is not None
        scaled = (resolve_threshold("scaled", tokens) for tokens in (index.tokens, index.exposed_tokens))
        bounds = set(self._sums["high"].tolist())
        return [tau for tau in dict.fromkeys([self.gap.threshold, self.exposed, *scaled]) if tau in bounds]

    @cached_property
    def curve(self) -> list[Part]:
        """Return the AR hits at every threshold, with intervals at the ends of the cells' bins and at `marks`.

        Without documents, as in an older ``curve.parquet``, `marks` have no intervals of their own.
        """
        sums = self._sums
        highs, last = thresholds_of(self.gap), float(sums["high"].to_numpy().max())
        ends = np.array([np.inf if each.high is None else each.high for each in self.gap.bins.frequency])
        repeated = self.cells.loc[self.cells["repeated"]]
        binned = repeated.assign(high=ends[repeated["frequency"]])
        known = self._at([tau for tau in highs if tau <= last], binned)
        if "document" in sums:
            known |= self._at([tau for tau in self.marks if tau not in known], sums)
        others = share_by_threshold(with_models(sums, self.gap.models), self.totals, self.reference)
        points = {int(point.bin): self._judged(point) for point in others} | known
        doubts = seed_doubts(self.gap, seed_ranges(self.cells, self.members))
        return [doubted(points[tau], doubts) for tau in sorted(points)]

    @cached_property
    def _sums(self) -> pd.DataFrame:
        """Read ``curve.parquet``."""
        return self._table("curve", "high", "n", *(PREFIX + model for model in self.gap.models))

    def _at(self, thresholds: Sequence[int], sums: pd.DataFrame) -> dict[int, Part]:
        """Score the points at ``thresholds`` with intervals, from sums by document and ``high``."""
        columns = ["n", *(PREFIX + model for model in self.gap.models)]
        documents, row = np.unique(self.cells["document"].to_numpy(), return_inverse=True)

        def by_document(row: np.ndarray, table: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
            added = [np.bincount(row, table[name].to_numpy(), minlength=len(documents)) for name in columns]
            return added[0], np.column_stack(added[1:])

        scorer = SliceScorer(self.gap.models, self.reference, *by_document(row, self.cells))
        for tau in thresholds:
            hits = sums.loc[sums["high"] <= tau]
            rows = np.searchsorted(documents, hits["document"].to_numpy())
            scorer.add(Key(THRESHOLD, str(tau)), *by_document(rows, hits))
        return dict(zip(thresholds, scorer.results()[1:], strict=True))

    def _judged(self, point: Part) -> Part:
        """Add to a point without intervals the reason why its shares must not be claimed."""
        worth = self.gap.documents or 0, self.gap.effective_documents or 0

        def reason(each: Estimate) -> str | None:
            gap = self.gap.on_all[each.model].delta_ci95
            return unresolved(*worth, gap, None) if each.share is not None else None

        def judged(each: Estimate) -> Estimate:
            share = None if directions.get(each.model) == "level" else each.share
            return replace(each, share=share, reason=NO_SHARE if share is None else reason(each))

        directions = self.gap.directions
        return Part(each if each.model == self.reference else judged(each) for each in point.estimates.values())

    def distances(self) -> pd.DataFrame:
        """Read the histogram of the AR hits: ``domain, distance, n``."""
        return self._table("distances", "domain", "distance", "n")

    def exponents(self) -> pd.DataFrame:
        """Fit a power law to each domain's distances (`argap.suite.distances.fit_exponents`)."""
        return fit_exponents(self._table("distance_sums", "document", "domain"), self.seq_len - 2)

    def prevalence(self) -> pd.DataFrame:
        """Read ``domain, position, content, n, repeated``."""
        return self._table("prevalence", "domain", "position", "content", "n", "repeated")

    def heat(self) -> pd.DataFrame:
        """Return ``distance, frequency, n`` and each model's sum of log p, over repeated tokens."""
        columns = [c for c in self.cells.columns if c not in ("document", "domain", "repeated")]
        repeated = self.cells.loc[self.cells["repeated"], columns]
        return sum_by(repeated, ["distance", "frequency"])

    def mqar(self) -> PretrainedScores | None:
        """Read the MQAR scores; None if no model was tested."""
        path = self.folder / "mqar.json"
        return read_scores(path) if path.is_file() else None

    def trajectory(self) -> pd.DataFrame | None:
        """Read NLL during training (`argap.suite.trajectory.COLUMNS`); None without scored intermediate checkpoints."""
        return self._table("trajectory", *COLUMNS) if (self.folder / "trajectory.parquet").is_file() else None

    @cached_property
    def _logs(self) -> pd.DataFrame:
        """Read ``logs.parquet``."""
        return self._table("logs", *LOG_COLUMNS)

    def log(self, name: str) -> pd.DataFrame:
        """Return the training log of a member (`argap.suite.trajectory.LOG_COLUMNS`), one row per line.

        Raises `FormatError` if it has none.
        """
        found = self._logs.loc[self._logs["model"] == name]
        if found.empty:
            raise FormatError(f"{self.folder / 'logs.parquet'}: no rows of {name}, expected its training log; {SUITE}")
        return found

    @cached_property
    def parts(self) -> dict[str, np.ndarray]:
        """Return the cells (bool) of all scored tokens (``overall``) and of the slices ``ar_hits`` and ``other``."""
        everything = np.ones(len(self.cells), bool)
        of_slice = hits_and_others(self.cells, self.gap.threshold, self.gap.bins)
        return {"overall": everything} | {key.bin: mask for key, mask in of_slice.items()}

    @cached_property
    def seeds(self) -> list[SeedScores]:
        """Return every seed of the members trained from several seeds, by member."""
        ranges, few = seed_ranges(self.cells, self.members), few_documents(self.gap)
        names: dict[str, dict[int, str]] = {}
        for member in self.members:
            names.setdefault(member.member, {})[member.seed] = member.name
        found = []
        for member, of_seed in names.items():
            for seed, name in of_seed.items() if len(of_seed) > 1 else ():
                logprob, over, share, reason = self.cells[PREFIX + name].to_numpy(), None, None, None
                if member != self.reference:
                    against = self.cells[PREFIX + names[self.reference].get(seed, self.reference)].to_numpy()
                    over = self._means(against - logprob)
                    hits = float(self.cells["n"].to_numpy()[self.parts["ar_hits"]].sum()) / self.totals["n"]
                    gap = over["overall"] or 0.0
                    share = gap_due_to_ar(-(over["ar_hits"] or 0.0), -gap, hits).value
                    if share is not None:
                        reason = few or _seed_doubt(gap, ranges, member, self.reference)
                found.append(SeedScores(name, member, self._means(-logprob), over, share, reason))
        return found

    def spread(self) -> dict[str, list[float]]:
        """Return the share of the gap for each seed with a gap, of members trained from several seeds."""
        shares: dict[str, list[float]] = {}
        for seed in self.seeds:
            if seed.over is not None:
                shares.setdefault(seed.member, []).extend([] if seed.share is None else [seed.share])
        return shares

    def interval_over_seeds(self, member: str) -> tuple[float, float] | None:
        """Return the range of a member's share of the gap over seeds, if it is wider than the interval over documents.

        That is the 95% interval of the first seed; without one, the range is returned too. Otherwise None.
        """
        known = self.spread().get(member, [])
        if len(known) < 2 or member not in self.gap.models:
            return None
        low, high, ends = min(known), max(known), self.gap.on_hits[member].share_ci95
        return (low, high) if ends is None or high - low > ends[1] - ends[0] else None

    def _means(self, sums: np.ndarray) -> dict[str, float | None]:
        """Divide the ``sums`` of each of `parts` by its tokens; None without tokens."""
        n = self.cells["n"].to_numpy()
        return {
            part: float(sums[rows].sum() / n[rows].sum()) if n[rows].any() else None
            for part, rows in self.parts.items()
        }

    def _table(self, name: str, *columns: str) -> pd.DataFrame:
        path = self.folder / f"{name}.parquet"
        check_files(self.folder, [path])
        return read_frame(path, needed=columns)


def read_size(folder: Path) -> SizeResult:
    """Read the folder of one size. Raises `FormatError` if a file is missing or invalid."""
    gap = read_gap(folder)
    if gap.index is None:
        raise FormatError(f"{folder / 'gap.json'}: `index` is null, and a suite has one; {SUITE}")
    cells = read_cells(folder / "cells.parquet")
    members = read_record(folder / "members.json", Members).members
    _check_members(folder / "members.json", members, models_of(cells), gap.models)
    return SizeResult(folder, below_seeds(gap, seed_ranges(cells, members)), cells, members)


def _check_members(path: Path, members: Sequence[Member], cells: Sequence[str], rows: Sequence[str]) -> None:
    """Raise `FormatError` unless the members match the cells, include the models of ``gap.json``, and are trained."""
    names = [member.name for member in members]
    if sorted(names) != sorted(cells) or not set(rows) <= set(names):
        others = ", ".join(dict.fromkeys([*cells, *rows]))
        raise FormatError(f"{path}: has {', '.join(names)}; cells.parquet and gap.json have {others}; {SUITE}")
    if unfinished := [member.name for member in members if member.train.finished is None]:
        raise FormatError(f"{path}: {unfinished[0]}: `train.finished` is null; {SUITE}")


def seed_ranges(cells: pd.DataFrame, members: Sequence[Member]) -> dict[str, float]:
    """Return the range of NLL over seeds, in nats on all scored tokens, of members trained from several seeds."""
    n = cells["n"].to_numpy().sum()
    nll: dict[str, list[float]] = {}
    for member in members:
        nll.setdefault(member.member, []).append(-float(cells[PREFIX + member.name].to_numpy().sum()) / n)
    return {member: max(values) - min(values) for member, values in nll.items() if len(values) > 1}


def seed_doubts(gap: Gap, ranges: Mapping[str, float]) -> dict[str, str]:
    """Return why the gap of a model must not be broken down, for models whose gap is smaller than seed noise.

    That is the range over seeds of the reference or of the model itself.
    """
    found = {model: _seed_doubt(delta, ranges, model, gap.reference) for model, delta in gap.deltas.items()}
    return {model: reason for model, reason in found.items() if reason}


def _seed_doubt(gap: float, ranges: Mapping[str, float], member: str, reference: str) -> str | None:
    """Explain why a gap in nats must not be broken down; None if it may be. ``ranges``: `seed_ranges`."""
    spread = max(ranges.get(reference, 0.0), ranges.get(member, 0.0))
    if abs(gap) >= spread:
        return None
    return f"the gap of {abs(gap):.3f} nats is smaller than the {spread:.3f} between seeds"


def few_documents(gap: Gap) -> str | None:
    """Explain why no share may be claimed if there are too few documents; None if there are enough."""
    return None if gap.documents is None else unresolved(gap.documents, gap.effective_documents or 0, None, None)


def doubted(part: Part, doubts: Mapping[str, str]) -> Part:
    """Add to the estimates of a part a reason, by model, why their shares must not be claimed."""

    def changed(each: Estimate) -> Estimate:
        more = doubts.get(each.model)
        if each.share is None or more is None:
            return each
        return replace(each, reason="; ".join(filter(None, (each.reason, more))))

    return Part((changed(each) for each in part.estimates.values()), part.about)


def below_seeds(gap: Gap, ranges: Mapping[str, float]) -> Gap:
    """Add `seed_doubts` to the reasons why shares of the AR hits are unresolved."""
    return gap.replaced({SLICE: [doubted(gap.on_hits, seed_doubts(gap, ranges)), gap.on_other]})


def read_sizes(out: Path, sizes: list[str]) -> list[SizeResult]:
    """Read those of ``sizes`` that have a result, in order. Raises `FormatError` if none has."""
    results = [read_size(out / size) for size in sizes if (out / size / "gap.json").is_file()]
    if not results:
        raise FormatError(f"{out}: no result there; `argap suite run` writes one for each size")
    return results
