"""Read a suite's result, and rebuild rows, intervals and curves from its files."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd

from argap.errors import FormatError
from argap.files.parquet import check_below
from argap.files.regular import is_there
from argap.files.remedies import SUITE
from argap.metric.seeds import seed_range
from argap.metric.threshold import PAPER_THRESHOLD, resolve_threshold
from argap.records import THRESHOLD, Examples, Gap, Part, Record, read_gap, read_record
from argap.slices.cells import PREFIX, check_bins, mean_over_seeds, models_of, sum_by
from argap.slices.figures import Key, SliceScorer
from argap.slices.partitions import hits_and_others
from argap.suite.rates import read_rates
from argap.suite.repeats import fit_exponents
from argap.suite.tables import DISTANCES, read_suite_table
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

    def share(self, hits: float) -> float | None:
        """Return the share of its gap or lead on the AR hits, a share ``hits`` of the tokens; None for the reference.

        It is signed and not capped.
        """
        delta = None if self.over is None else self.over["overall"]
        return None if self.over is None or not delta else (self.over["ar_hits"] or 0.0) * hits / delta


@dataclass(frozen=True)
class SizeResult:
    """The result of one size, written by `argap.suite.collect`."""

    folder: Path
    gap: Gap
    """``gap.json``."""
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
    def means(self) -> pd.DataFrame:
        """Return the cells with the mean over seeds of each model's sums."""
        return mean_over_seeds(self.cells, self.gap.seeds)

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
        """Return the AR hits at every threshold of `_sums`, with intervals."""
        sums, columns = self._sums, models_of(self.cells)
        documents = np.unique(self.cells["document"].to_numpy())
        highs, point = np.unique(sums["high"].to_numpy(), return_inverse=True)
        row = np.searchsorted(documents, sums["document"].to_numpy())
        names = ["n", *(PREFIX + name for name in columns)]
        shape = len(highs), len(documents)
        up_to = [
            np.bincount(point * shape[1] + row, sums[name].to_numpy(), minlength=shape[0] * shape[1])
            .reshape(shape)
            .cumsum(axis=0)
            for name in names
        ]
        of_document = np.searchsorted(documents, self.cells["document"].to_numpy())
        whole = [np.bincount(of_document, self.cells[name].to_numpy()) for name in names]
        scorer = SliceScorer(columns, self.reference, whole[0], np.column_stack(whole[1:]), seeds=self.gap.seeds)
        for k, high in enumerate(highs.tolist()):
            scorer.add(Key(THRESHOLD, str(high)), up_to[0][k], np.column_stack([each[k] for each in up_to[1:]]))
        return scorer.results()[1:]

    @cached_property
    def _sums(self) -> pd.DataFrame:
        """Read ``curve.parquet``; without one, as in older results, the cells and their coarser bins are used."""
        models = models_of(self.cells)
        if is_there(self.folder / "curve.parquet"):
            return read_suite_table(self.folder, "curve.parquet", models)
        ends = np.array([-1 if each.high is None else each.high for each in self.gap.bins.frequency])
        repeated = self.cells.loc[self.cells["repeated"]].assign(high=lambda cells: ends[cells["frequency"]])
        return repeated.loc[repeated["high"] >= 0, ["document", "high", "n", *(PREFIX + name for name in models)]]

    def distances(self) -> pd.DataFrame:
        """Read the histogram of the AR hits, ``domain, distance, n``; no rows without hits.

        Raises `FormatError` for distances that no window has, and unless `exponents` has the same hits.
        """
        found, path, longest = read_suite_table(self.folder, DISTANCES), self.folder / DISTANCES, self.seq_len - 2
        check_below(path, found["distance"].to_numpy() - 1, longest, f"a distance that is not from 1 to {longest}")
        exponents = self.exponents()
        hits = [int(found.loc[found["domain"] == name, "n"].sum()) for name in exponents["domain"].iloc[1:]]
        if hits != exponents["n"].iloc[1:].tolist() or sum(hits) != found["n"].sum():
            raise FormatError(f"{path}: its hits are not those of distance_sums.parquet; {SUITE}")
        return found

    def exponents(self) -> pd.DataFrame:
        """Fit a power law to each domain's distances (`argap.suite.repeats.fit_exponents`)."""
        return fit_exponents(read_suite_table(self.folder, "distance_sums.parquet"), self.seq_len - 2)

    def prevalence(self) -> pd.DataFrame:
        """Read ``domain, position, content, n, repeated``."""
        found = read_suite_table(self.folder, "prevalence.parquet")
        check_bins(self.folder / "prevalence.parquet", found, self.gap.bins)
        return found

    def heat(self) -> pd.DataFrame:
        """Return ``distance, frequency, n`` and each model's sum of log p, over repeated tokens."""
        columns = [c for c in self.means.columns if c not in ("document", "domain", "repeated")]
        repeated = self.means.loc[self.means["repeated"], columns]
        return sum_by(repeated, ["distance", "frequency"])

    def check(self) -> None:
        """Read every other file of the result. Raises `FormatError` for a broken one."""
        for read in (self.distances, self.prevalence, self.mqar, self.trajectory):
            read()
        for member in self.members:
            self.log(member.name)
        _ = self._sums  # of curve.parquet
        if is_there(path := self.folder / "rates.json"):
            read_rates(path)
        if is_there(path := self.folder / "examples.json"):
            read_record(path, Examples)

    def mqar(self) -> PretrainedScores | None:
        """Read the MQAR scores; None if no model was tested."""
        path = self.folder / "mqar.json"
        return read_scores(path) if is_there(path) else None

    def trajectory(self) -> pd.DataFrame | None:
        """Read NLL during training (`argap.suite.trajectory.COLUMNS`); None without scored intermediate checkpoints."""
        name = "trajectory.parquet"
        return read_suite_table(self.folder, name) if is_there(self.folder / name) else None

    @cached_property
    def _logs(self) -> pd.DataFrame:
        """Read ``logs.parquet``."""
        return read_suite_table(self.folder, "logs.parquet")

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
        names: dict[str, dict[int, str]] = {}
        for member in self.members:
            names.setdefault(member.member, {})[member.seed] = member.name
        found = []
        for member, of_seed in names.items():
            for seed, name in of_seed.items() if len(of_seed) > 1 else ():
                logprob, over = self.cells[PREFIX + name].to_numpy(), None
                if member != self.reference:
                    against = self.cells[PREFIX + names[self.reference].get(seed, self.reference)].to_numpy()
                    over = self._means(against - logprob)
                found.append(SeedScores(name, member, self._means(-logprob), over))
        return found

    def share_range(self, member: str) -> tuple[float, float] | None:
        """Return the smallest and largest share on the AR hits over all pairs of a member's and the reference's seeds.

        None for members with one seed, if the reference has one as well. This is not an interval
        (`argap.metric.seeds.SeedRange`).
        """
        own, theirs = self.gap.seeds[member], self.gap.seeds[self.reference]
        if len(own) * len(theirs) == 1:
            return None
        rows = [np.ones(len(self.cells), bool), self.parts["ar_hits"]]
        n, model, reference = (
            np.stack([self.cells.loc[each, names].to_numpy().sum(axis=0)[:, None] for each in rows])
            for names in (["n"], [PREFIX + name for name in own], [PREFIX + name for name in theirs])
        )
        low, high = seed_range(n[:, 0], model, reference).share
        return None if np.isnan(low[1]) else (float(low[1]), float(high[1]))

    def _means(self, sums: np.ndarray) -> dict[str, float | None]:
        """Divide the ``sums`` of each of `parts` by its tokens; None without tokens."""
        n = self.cells["n"].to_numpy()
        return {
            part: float(sums[rows].sum() / n[rows].sum()) if n[rows].any() else None
            for part, rows in self.parts.items()
        }


def read_size(folder: Path) -> SizeResult:
    """Read the folder of one size. Raises `FormatError` if a file is missing or invalid."""
    gap = read_gap(folder)
    if gap.index is None:
        raise FormatError(f"{folder / 'gap.json'}: `index` is null, and a suite has one; {SUITE}")
    cells = read_suite_table(folder, "cells.parquet")
    check_bins(folder / "cells.parquet", cells, gap.bins)
    members = read_record(folder / "members.json", Members).members
    _check_members(folder / "members.json", members, models_of(cells), gap.models)
    return SizeResult(folder, gap, cells, members)


def _check_members(path: Path, members: Sequence[Member], cells: Sequence[str], rows: Sequence[str]) -> None:
    """Raise `FormatError` unless the members match the cells, include the models of ``gap.json``, and are trained."""
    names = [member.name for member in members]
    if sorted(names) != sorted(cells) or not set(rows) <= set(names):
        others = ", ".join(dict.fromkeys([*cells, *rows]))
        raise FormatError(f"{path}: has {', '.join(names)}; cells.parquet and gap.json have {others}; {SUITE}")
    if unfinished := [member.name for member in members if member.train.finished is None]:
        raise FormatError(f"{path}: {unfinished[0]}: `train.finished` is null; {SUITE}")


def read_sizes(out: Path, sizes: list[str]) -> list[SizeResult]:
    """Read those of ``sizes`` that have a result, in order. Raises `FormatError` if none has."""
    results = [read_size(out / size) for size in sizes if is_there(out / size / "gap.json")]
    if not results:
        raise FormatError(f"{out}: no result there; `argap suite run` writes one for each size")
    return results
