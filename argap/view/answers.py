"""Compute answers for the page, as records, without any HTTP.

A setting is τ (exposures) and a reference; the page may choose another reference than the result's own.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from functools import cached_property
from threading import Lock
from typing import Any, NamedTuple, TypeVar, cast, get_args

import pandas as pd

from argap import __version__
from argap.errors import ArgapError
from argap.metric.threshold import PAPER_THRESHOLD, resolve_threshold
from argap.records import AR_HITS, COPY, INDUCTION, NAMED, OTHER, Gap, Part, Record
from argap.records.columns import BY_MODEL, schema_of
from argap.reports.tables.overview import colour_order
from argap.reports.tables.result import interval_notes
from argap.result import Result
from argap.results.by_source import NEEDED, BySource, by_source, sources_of
from argap.results.compare import record_slices
from argap.results.restated import cells_at, check_setting, restate, thresholds_of
from argap.runtime.interrupt import Interrupt, interruptible
from argap.slices.cells import PREFIX, keys_of, sum_cells
from argap.slices.conditions import hits_of
from argap.slices.figures import WHOLE, Key, slices_of_cells
from argap.slices.library import check_names, library
from argap.slices.of_tokens import Slice, grouped, prepare, score_by, score_slices, with_columns
from argap.slices.partitions import By, hits_by_threshold, partition
from argap.tokens.labels import check_documents
from argap.tokens.table import TokenTable
from argap.view.columns import condition_of, describe
from argap.view.records import Bar, Breakdown, Discovered, Mark, Matches, Overview, Shown, WindowScore
from argap.view.search import find_text, lost_most
from argap.view.windows import Window, WindowReader


class AtThreshold(Record, frozen=True):
    """The two parts of the scored tokens at one τ."""

    threshold: int | None
    """Exposures; None without training counts, where every repeated bigram is a hit."""
    ar_hits: Part
    other: Part


class Thresholds(Record, frozen=True):
    """A result at every τ against one reference."""

    reference: str
    intervals: bool
    whole: Part
    """All scored tokens."""
    at: tuple[AtThreshold, ...]
    """Ascending in τ."""


def at_every_threshold(gap: Gap, cells: pd.DataFrame, reference: str, *, intervals: bool) -> Thresholds:
    """Return the estimates on AR hits and other tokens at each τ of `thresholds_of`.

    ``cells`` have at least ``document``, ``repeated`` and, with training counts, ``frequency``. Without ``intervals``
    all documents count as one, which takes milliseconds. Raises the errors of `check_setting`.
    """
    check_setting(gap, gap.threshold, reference)
    thresholds: tuple[int | None, ...] = thresholds_of(gap) or (None,)
    sums = cells if intervals else cells.assign(document=0)
    of_hits = list(hits_by_threshold(sums, gap.bins).values()) or [sums["repeated"].to_numpy()]
    pairs = [(tau, key, hits) for tau, hits in zip(thresholds, of_hits, strict=True) for key in (AR_HITS, OTHER)]
    masks = {Key(key, str(tau)): hits if key == AR_HITS else ~hits for tau, key, hits in pairs}
    scored = slices_of_cells(sums, masks, reference, seeds=gap.seeds)
    at = (AtThreshold(tau, *(scored[Key(key, str(tau))] for key in (AR_HITS, OTHER))) for tau in thresholds)
    return Thresholds(reference, intervals, scored[WHOLE], tuple(at))


Answer = TypeVar("Answer")
KEPT = 64


class Once:
    """The last `KEPT` answers. Thread-safe: while one thread computes an answer, others that need it wait."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._answers: OrderedDict[Hashable, Any] = OrderedDict()
        self._locks: dict[Hashable, Lock] = {}

    def get(self, key: Hashable, compute: Callable[[], Answer]) -> Answer:
        """Return the answer kept under ``key``, or compute it now. Errors of ``compute`` are not kept."""
        with self._lock:
            if key in self._answers:
                self._answers.move_to_end(key)
                return self._answers[key]
            own = self._locks.setdefault(key, Lock())
        with own:
            with self._lock:
                if key in self._answers:
                    return self._answers[key]
            answer = compute()
            with self._lock:
                self._answers[key] = answer
                self._locks.pop(key, None)
                if len(self._answers) > KEPT:
                    self._answers.popitem(last=False)
        return answer


LISTED = 200
"""Most tokens or windows in one list."""


class Setting(NamedTuple):
    """τ (None without training counts) and the reference."""

    threshold: int | None
    reference: str


class Answers:
    """Answers about one result, for any number of pages."""

    def __init__(self, result: Result) -> None:
        self.result = result
        self._once = Once()
        self._recording = Lock()

    @cached_property
    def overview(self) -> Overview:
        gap = self.result.record
        marks = ()
        if gap.index is not None:
            scaled = resolve_threshold("scaled", gap.index.exposed_tokens)
            marks = (Mark(PAPER_THRESHOLD, "the paper's τ"), Mark(scaled, "scaled to the training tokens"))
        schema = schema_of(gap.models) if self._no_tokens() else self.result.token_table.schema()
        return Overview(
            name="/".join(self.result.folder.resolve().parts[-2:]).lstrip("/"),
            gap=Shown.of(gap),
            hits=gap.hits,
            thresholds=thresholds_of(gap),
            counted=self._counted(),
            marks=marks,
            notes=tuple(interval_notes(gap)),
            no_tokens=self._no_tokens(),
            own_reference=self._own_reference(),
            library=tuple(library() if self._no_tokens() else with_columns(self.result.token_table)),
            columns=tuple(describe(schema, self.result.models)),
            partitions=tuple(by for by in get_args(By) if by == "slice" or len(gap.parts(by)) > 1),
            grouped=self.grouped,
            colours=tuple(colour_order(gap)),
            version=__version__,
        )

    def _counted(self) -> int | None:
        gap = self.result.record
        ends = {each.label: each.high for each in gap.bins.frequency}
        found = [ends[part.bin] for part in gap.parts("frequency") if part.repeated]
        known = [high for high in found if high is not None]
        return max(known) if known and len(known) == len(found) else None

    def warm(self, interrupt: Interrupt) -> None:
        """Prepare for slices before the first is requested; errors are left to the answer that needs it."""
        with suppress(ArgapError), interruptible(interrupt):
            prepare(self.result.token_table)

    def _no_tokens(self) -> str | None:
        try:
            _ = self.result.token_table
        except ArgapError as error:
            return str(error)
        return None

    def _own_reference(self) -> str | None:
        if self.result.record.unit != "token":
            return "compared by bytes: the labels are in the reference's tokenizer"
        return None

    def check(self, setting: Setting, models: Sequence[str] = ()) -> None:
        """Raise `ArgapError` for a setting or models that the result does not allow."""
        check_setting(self.result.record, setting.threshold, setting.reference)
        if setting.reference != self.result.reference and (reason := self._own_reference()):
            raise ArgapError(f"`reference` {setting.reference}: {reason}")
        if unknown := [model for model in models if model not in self.result.models]:
            known = ", ".join(self.result.models)
            raise ArgapError(f"`models` {', '.join(unknown)}: not compared here; known are {known}")

    def thresholds(self, reference: str, *, intervals: bool) -> Thresholds:
        """Return the table at every τ."""
        self.check(Setting(self.result.threshold, reference))
        return self._once.get(
            ("thresholds", reference, intervals),
            lambda: at_every_threshold(self.result.record, self._cells(*self._of_hits), reference, intervals=intervals),
        )

    def _cells(self, *by: str, models: Sequence[str] | None = None) -> pd.DataFrame:
        """Return the cells summed over all keys except ``by``."""
        seeds = self.result.record.seeds
        chosen = [name for model in self.result.models if models is None or model in models for name in seeds[model]]
        path = self.result.folder / "cells.parquet"
        return self._once.get(("cells", by, tuple(chosen)), lambda: sum_cells(path, by, chosen, self.result.record))

    @cached_property
    def _keys(self) -> tuple[str, ...]:
        """Return the keys of the cells; a suite's cells lack some."""
        return keys_of(self.result.folder / "cells.parquet", self.result.record)

    @property
    def _of_hits(self) -> list[str]:
        """Return the keys that identify the AR hits."""
        return [name for name in ("document", "repeated", "frequency") if name in self._keys]

    def gap(self, setting: Setting) -> Gap:
        """Return ``gap.json`` at a setting."""
        self.check(setting)
        own = self.result.record
        if setting == (own.threshold, own.reference):
            return own
        cells = self._cells(*self._of_hits)
        return self._once.get(("gap", setting), lambda: restate(own, cells, **setting._asdict()))

    @cached_property
    def partitions(self) -> list[str]:
        """Return the partitions that the cells support."""
        return [by for by in get_args(By) if by == "slice" or by in self._keys]

    @cached_property
    def grouped(self) -> tuple[str, ...]:
        """Return the token columns that can break the gap down, apart from the partitions of every result."""
        if self._no_tokens():
            return ()
        same = {*get_args(By), *(("repeated",) if self.result.threshold is None else ())}
        return tuple(name for name in grouped(self.result.token_table) if name not in same)

    def _by_column(self, column: str, setting: Setting, interrupt: Interrupt) -> Breakdown:
        self.check(setting)
        others = [model for model in self.result.models if model != setting.reference]
        with interruptible(interrupt):
            table = self.result.token_table.among([setting.reference, *others])
            _, _, *scored = score_by(table, column, threshold=setting.threshold)
        return Breakdown(column, tuple(Bar(part, part.about.where or "") for part in scored))

    def breakdown(self, by: str, setting: Setting, interrupt: Interrupt) -> Breakdown:
        """Return the partition ``by`` at a setting; a token column takes a pass over the tokens."""
        if by in self.grouped:
            return self._once.get(("by", by, setting), lambda: self._by_column(by, setting, interrupt))
        parts = self.parts(by, setting)
        return Breakdown(by, tuple(Bar(each, condition_of(each, by, self.gap(setting))) for each in parts))

    def parts(self, by: str, setting: Setting) -> list[Part]:
        """Return `argap.result.Result.parts` at a setting."""
        self.check(setting)
        if by not in get_args(By):
            raise ArgapError(f"`by` {by}: expected {', '.join(get_args(By))}")
        gap = self.result.record
        if setting == (gap.threshold, gap.reference):
            return self.result.parts(by)
        if by not in self.partitions:
            raise ArgapError(f"`by` {by}: not in the cells of this result; it has its own τ and reference only")

        def compute() -> list[Part]:
            keys = self._of_hits if by in ("slice", "frequency") else ["document", by]
            keys = ["document", COPY, INDUCTION] if by in (COPY, INDUCTION) else keys
            cells = cells_at(self._cells(*keys), gap, setting.threshold)
            return partition(
                cells,
                self.gap(setting).bins,
                cast(By, by),
                reference=setting.reference,
                threshold=setting.threshold,
                seeds=gap.seeds,
            )

        return self._once.get(("parts", by, setting), compute)

    def sources(self, setting: Setting) -> BySource:
        """Return the gaps and leads without each source of the text, at a setting."""
        gap, own = self.gap(setting), self.result.record

        def compute() -> BySource:
            cells = self._cells(*(name for name in NEEDED if name in self._keys))
            names = sources_of(self.result.folder, own, cells["document"].to_numpy())
            return by_source(gap, cells_at(cells, own, setting.threshold), names)

        return self._once.get(("sources", setting), compute)

    def slices(
        self,
        named: Sequence[tuple[str, str]],
        setting: Setting,
        models: Sequence[str],
        interrupt: Interrupt,
        *,
        empty: bool = False,
    ) -> tuple[Part, ...]:
        """Score named conditions on the reference and ``models``, in one pass over the tokens.

        Raises the errors of `argap.slices.of_tokens.score_slices`, and `Interrupted`.
        """
        self.check(setting, models)
        chosen = [setting.reference, *(each for each in self.result.models if each in {*models} - {setting.reference})]

        def compute() -> tuple[Part, ...]:
            table = self._table_for([where for _, where in named], chosen)
            wanted = [Slice(*each) for each in named]
            with interruptible(interrupt):
                scored = score_slices(table, wanted, threshold=setting.threshold, empty=empty)
            return tuple(each.among(chosen) for each in scored[2:])

        return self._once.get(("slices", tuple(named), setting, tuple(chosen), empty), compute)

    def discover(self, model: str, reference: str, interrupt: Interrupt) -> Discovered:
        """Return the conditions that explain the gap of ``model`` to the result's own reference."""
        from argap.slices.discover import HYPOTHESIS, discover

        self.check(Setting(self.result.threshold, reference), [model])
        if reference != self.result.reference:
            raise ArgapError(f"`reference` {reference}: discovered is what explains a gap to {self.result.reference}")

        def compute() -> Discovered:
            with interruptible(interrupt):
                found = discover(self.result.folder, self.result.record, model)
            return Discovered(tuple(found.slices), found.stability, HYPOTHESIS)

        return self._once.get(("discover", model), compute)

    def record(self, name: str, where: str, interrupt: Interrupt) -> tuple[Part, ...]:
        """Store a slice in ``gap.json`` beside those recorded, and return all of them; an earlier report is removed.

        Raises `ArgapError` for a name that is taken or is none, and for a condition that is refused or selects nothing.
        """
        check_names([name], beside=(part.about.name for part in self.result.record.parts(NAMED)))
        own = Setting(self.result.threshold, self.result.reference)
        added = self.slices([(name, where)], own, self.result.models, interrupt)
        with self._recording:
            gap = record_slices(self.result.folder, added, self.result.record, beside=True)
            changed = Result(self.result.folder, gap)
            vars(changed)["token_table"] = self.result.token_table
            self.result = changed
            vars(self).pop("overview", None)
            return self.overview.gap.slices

    def restated(self, setting: Setting) -> Result:
        """Return the result at a setting, with its tables and breakdowns computed from the cells."""
        gap = self.gap(setting)
        if gap is self.result.record:
            return self.result
        parts = {by: self.parts(by, setting) for by in self.partitions}
        restated = Result(self.result.folder, gap.replaced(parts))
        vars(restated)["cells"] = cells_at(self._cells(*self._of_hits), self.result.record, setting.threshold)
        return restated

    def window(self, window: int, models: Sequence[str]) -> Window:
        """Return a window with the losses and predictions of ``models``, without duplicates."""
        self.check(Setting(self.result.threshold, self.result.reference), models)
        return self._windows.read(window, list(dict.fromkeys(models)))

    @cached_property
    def _windows(self) -> WindowReader:
        return WindowReader(self.result.token_table)

    def worst_windows(self, model: str, reference: str) -> tuple[WindowScore, ...]:
        """Return the windows in which ``model`` loses most to ``reference`` per token, worst first."""
        self.check(Setting(self.result.threshold, reference), [model])
        if "window" not in self._keys:
            raise ArgapError("the cells of this result do not name windows")
        return self._once.get(("windows", model, reference), lambda: self._scored_windows(model, reference))

    def _scored_windows(self, model: str, reference: str) -> tuple[WindowScore, ...]:
        path, labels = self.result.folder / "cells.parquet", self.result.token_table.record
        models = list(dict.fromkeys([model, reference]))
        sums = sum_cells(path, ["window", "document", "domain"], models, self.result.record)
        check_documents(path, sums["document"].to_numpy(), labels)
        delta = (sums[PREFIX + reference] - sums[PREFIX + model]) / sums["n"]
        worst = sums.assign(delta=delta).sort_values(["delta", "window"], ascending=[False, True])[:LISTED]
        names = ["window", "document", "domain", "n", "delta"]
        rows = zip(*(worst[name].tolist() for name in names), strict=True)
        return tuple(WindowScore(w, d, domain, labels.sources[d], n, lost) for w, d, domain, n, lost in rows)

    def largest_losses(
        self, where: str | None, setting: Setting, model: str, interrupt: Interrupt, *, in_order: bool = False
    ) -> Matches:
        """Return the tokens of a condition on which ``model`` loses most, largest loss first, or in text order."""
        self.check(setting, [model])

        def compute() -> Matches:
            condition = hits_of(setting.threshold) if where == "ar_hits" else where or "true"
            table = self._table_for([condition], [setting.reference, model])
            with interruptible(interrupt):
                found = lost_most(table, condition, model, setting.reference, limit=LISTED + 1, in_order=in_order)
            return Matches(tuple(found[:LISTED]), len(found) > LISTED)

        return self._once.get(("losses", where, setting, model, in_order), compute)

    def search(self, text: str, interrupt: Interrupt) -> Matches:
        """Find ``text``, in order; case matters only if ``text`` has capitals."""
        found = find_text(self.result.token_table, text, limit=LISTED + 1, interrupt=interrupt)
        return Matches(tuple(found[:LISTED]), len(found) > LISTED)

    def _table_for(self, conditions: Sequence[str], models: Sequence[str]) -> TokenTable:
        """Return the tokens with the columns of ``models``; of all models if a condition may name any."""
        table = self.result.token_table
        others = [each for each in table.models if each not in models]
        named = any(name in where.lower() for where in conditions for name in BY_MODEL)
        return table.among([*dict.fromkeys(models), *(others if named else ())])
