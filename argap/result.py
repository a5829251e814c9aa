"""Open a result from its files, as tables and breakdowns in data frames; torch is never imported.

`argap.score` and `argap.compare` write the files; `open_result` reads them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import pandas as pd
from msgspec.structs import replace

from argap.errors import AbsentError, ArgapError
from argap.metric.threshold import Threshold
from argap.records import COPY, INDUCTION, NAMED, EvaluationRecord, Fidelity, Gap, IndexRecord, Part, read_gap
from argap.results.frames import fidelity_frame, part_rows, slice_frame
from argap.results.restated import threshold_in
from argap.slices.cells import read_cells
from argap.slices.partitions import By

if TYPE_CHECKING:
    import pyarrow as pa

    from argap.tokens.batches import Mask
    from argap.tokens.table import TokenTable


@dataclass(frozen=True)
class Provenance:
    """The origin of a result."""

    index: IndexRecord | None
    runs: dict[str, str]
    """The run folder of each model."""
    versions: dict[str, str]
    date: str
    """ISO 8601, UTC."""


@dataclass(frozen=True)
class Result:
    """A comparison of models with a reference.

    Examples
    --------
    >>> import argap
    >>> result = argap.open_result("results/table1-7m/7m")
    >>> table = result.table().set_index(["model", "slice"])
    >>> print(table.loc[("base_conv", "ar_hits"), ["contribution", "share"]].astype(float).round(3).to_dict())
    {'contribution': 0.165, 'share': 0.703}
    """

    folder: Path
    record: Gap = field(repr=False)
    """``gap.json``."""

    @property
    def models(self) -> list[str]:
        """Return the names of the models, the reference first."""
        return self.record.models

    @property
    def reference(self) -> str:
        """Return the name of the model that the others are compared with."""
        return self.record.reference

    @property
    def threshold(self) -> int | None:
        """Return the maximum exposures of an AR hit's bigram; None without an index: all repeated bigrams are hits."""
        return self.record.threshold

    @property
    def evaluation(self) -> EvaluationRecord:
        """Return the record of the scored text: tokens, windows, documents, tokenizer, fingerprint."""
        return self.record.evaluation

    @property
    def provenance(self) -> Provenance:
        """Return index, runs, versions and date."""
        runs = {row.model: row.run for row in self.record.rows}
        return Provenance(self.record.index, runs, self.record.versions, self.record.date)

    @cached_property
    def cells(self) -> pd.DataFrame:
        """Read ``cells.parquet``: one row for each combination of document, window, domain and bins.

        Columns ``n``, the number of tokens, and ``logprob/MODEL``, the sum of log p in nats. (The cells of a suite have
        no window or position, and a column for each further seed of a model.) They are read into memory, at about 50
        bytes per row plus 8 per model; `table` and `gap` do not need that.
        """
        return read_cells(self.folder / "cells.parquet", self.record)

    def table(self) -> pd.DataFrame:
        """Return one row per model and slice: all tokens, AR hits, other tokens, and the slices of `argap score`.

        Columns: ``model``; ``slice``; ``n`` tokens; ``share_of_tokens``, of all scored tokens; ``nll`` (nats) and
        ``ppl``; ``delta``, the NLL minus the reference's; ``contribution``, share_of_tokens × delta, in nats per token;
        ``share``, the contribution over the whole gap or lead, signed and not capped; ``paper_rule``, the paper's "% of
        gap due to" the slice; ``reason``, why there is no share or why it must not be claimed; and ``_low`` and
        ``_high``, the ends of the 95% intervals of delta, contribution and share, over documents and, in a suite, over
        seeds. The reference has no differences (NaN). If a token has probability 0, ``nll`` and ``ppl`` are infinite
        and the differences NaN.
        """
        gap = self.record
        return slice_frame([gap.on_all, gap.on_hits, gap.on_other, *gap.parts(NAMED)])

    def gap(
        self, slices: "Mapping[str, str | Mask] | None" = None, *, threshold: Threshold | None = None
    ) -> pd.DataFrame:
        """Compute all tokens, the AR hits and your own slices from the tokens, in one pass.

        ``slices``: conditions by name, either SQL over the columns in `argap.records.columns`, or a function from a
        `pyarrow.RecordBatch` of them to one boolean per token; NULL counts as false. None: the bundled slices
        (``argap slice --list``); without an index, those that need no training counts. ``threshold``: maximum exposures
        of an AR hit's bigram, or ``"scaled"``; default: the result's.

        Columns: those of `table`, then ``ar_hits``, the share of the slice's tokens that are AR hits, and ``where``.

        Raises `ArgapError` for a condition that does not parse, names an unknown column, is not boolean, reads another
        table or a file, or selects no token; for a function that returns the wrong number of values; if the result's
        tokens are missing; and for a threshold without training counts.

        Examples
        --------
        >>> import argap
        >>> result = argap.open_result("runs/demo")                              # doctest: +SKIP
        >>> result.gap({"rare": "repeated AND train_count < 10"})                # doctest: +SKIP
        """
        return slice_frame(list(self.slices(slices, threshold=threshold)), more=True)

    def slices(
        self, slices: "Mapping[str, str | Mask] | None" = None, *, threshold: Threshold | None = None
    ) -> tuple[Part, ...]:
        """Return the rows of `gap` as records."""
        from argap.slices.of_tokens import Slice, score_slices, shipped_slices

        if not isinstance(slices, Mapping | None):
            raise ArgapError(f"`slices` {slices!r}: expected a name for each condition, as {{'far': 'distance > 9'}}")
        wanted = shipped_slices(self.token_table) if slices is None else [Slice(*each) for each in slices.items()]
        tau = threshold_in(self.record, threshold)
        return tuple(score_slices(self.token_table, wanted, threshold=tau, empty=slices is None))

    def context_use(self) -> pd.DataFrame:
        """Return the context-use curves: each model's loss on the same tokens with more and more context.

        Rows: a model and a context, of the models scored with ``short_context``; the whole window last. The tokens are
        those with at least the longest short context before them in their window.

        Columns: ``model``; ``context``, the tokens of the windows in which tokens are read, with half of them as the
        stride, so that each has at least half of that before it (NA: the whole window); ``n``; ``nll``; ``gain``, by
        how much the whole window lowers it (NaN for the whole window); ``delta``, to the reference with the same
        context; in nats per token; and ``_low`` and ``_high``, the ends of their 95% intervals over documents, of the
        paired difference for gain and delta.

        Raises `ArgapError` for a result without passes over a short context.

        Examples
        --------
        >>> import argap
        >>> argap.open_result("runs/score").context_use()                        # doctest: +SKIP
        """
        from argap.results.frames import context_frame

        if not self.record.context:
            raise ArgapError(
                f"{self.folder}: no model was scored with a short context; use `argap score --short-context N`"
            )
        return context_frame(self.record.context)

    def fidelity(self, slices: "Mapping[str, str | Mask] | None" = None, *, by: str | None = None) -> pd.DataFrame:
        """Return how closely each model follows the reference, token by token: one row per model and slice.

        A quantisation may leave the NLL as it was and yet move every distribution. ``slices``: as in `gap`; None: none
        but all tokens and the AR hits. ``by``: a partition, as in `breakdown`; its bins are further rows.

        Columns, with Δ log p the model's log-prob of a token minus the reference's: ``model``; ``slice``; ``n``;
        ``share_of_tokens``; ``delta``, the mean NLL minus the reference's, in nats; ``absolute``, the mean of
        |Δ log p|, and ``rms``, its root mean square; ``moved``, the share of the tokens with |Δ log p| > 0.05;
        ``agreement``, the share of the tokens with the same most likely token; of runs with ``kl``, ``kl``, the mean of
        KL(reference ‖ model), ``share_of_kl``, the slice's part of its sum, ``entropy`` and ``reference_entropy``; on
        all tokens ``median``, ``q90``, ``q99``, ``q999`` and ``largest`` of |Δ log p|; and ``_low`` and ``_high``, the
        ends of the 95% intervals of absolute, agreement and kl over documents. What is not known or infinite is NaN.

        Raises `ArgapError` as `gap` and `breakdown` do, and if the models' tokenizers differ.

        Examples
        --------
        >>> import argap
        >>> result = argap.open_result("runs/q4")                                # doctest: +SKIP
        >>> result.fidelity({"far": "kl > 1 AND repeated"}, by="position")       # doctest: +SKIP
        """
        return fidelity_frame(self.closely(slices, by=by))

    def closely(self, slices: "Mapping[str, str | Mask] | None" = None, *, by: str | None = None) -> list[Fidelity]:
        """Return the rows of `fidelity` as records."""
        from argap.slices.fidelity import bin_slices, score_fidelity
        from argap.slices.library import check_names
        from argap.slices.of_tokens import Slice, grouped

        bins = [] if by is None else bin_slices(self.record, by)
        if by is not None and not bins and by not in (known := grouped(self.token_table)):
            raise ArgapError(f"`by` {by}: expected {', '.join(dict.fromkeys((*get_args(By), *known)))}")
        check_names(slices or {}, beside=(each.name for each in bins))
        chosen = [*(Slice(*each) for each in (slices or {}).items()), *bins]
        found = score_fidelity(self.token_table, chosen, threshold=self.threshold, by=None if bins else by)
        spread = {(each.model, each.name): each.quantiles for each in self.record.fidelity}
        empty = {each.name for each in bins}
        shown = [each for each in found if each.n or each.name not in empty]
        return [replace(each, quantiles=spread.get((each.model, each.name))) for each in shown]

    def tokens(
        self,
        where: "str | Mask | None" = None,
        *,
        models: Sequence[str] | None = None,
        columns: Sequence[str] | None = None,
        limit: int | None = None,
    ) -> "pa.Table":
        """Return the scored tokens that a condition selects, in order, with the columns in `argap.records.columns`.

        ``where``: as in `gap`; None: all. ``models``: those with a field in ``nll`` and ``top1``. ``columns``: which to
        return. ``limit``: maximum number of rows. Raises `ArgapError` as `gap` does.

        Examples
        --------
        >>> import argap
        >>> result = argap.open_result("runs/demo")                              # doctest: +SKIP
        >>> result.tokens("word = 'self'", columns=["piece", "nll"], limit=10)   # doctest: +SKIP
        """
        from argap.slices.of_tokens import select

        return select(self.token_table, where, models=models, columns=columns, limit=limit)

    def discover(
        self,
        model: str,
        *,
        depth: int = 3,
        min_share: float = 0.005,
        leaves: int = 5,
        limit_tokens: int | None = 50_000_000,
    ) -> pd.DataFrame:
        """Find conditions that explain the gap of ``model``: grow a tree on half the documents, score it on the rest.

        ``depth``: maximum number of conditions in a row; ``min_share``: minimum share of the tokens in a leaf;
        ``leaves``: maximum number of leaves. A discovered slice is a hypothesis: it was chosen among many. Without the
        result's tokens the tree splits at the bin bounds of its cells. If the text has more than ``limit_tokens``
        tokens, a random sample of documents with about that many is read; None: all are read.

        Columns: those of `gap`, for ``model``. The leaves come first, by contribution (they add up to the gap of that
        half), then the wider conditions above them; ``where`` can be pasted into `gap`. The intervals of the leaves'
        contributions hold simultaneously. ``stability`` of a leaf is its overlap with the most similar leaf of trees
        grown on other halves, the tokens in both over those in either, on average. The frame's ``attrs["sample"]``
        describes the sampled documents (`argap.records.Sample`; None: all), ``attrs["tokens"]`` is False if only the
        cells were there.

        Raises `ArgapError` for a model that is not compared, and if half of the documents show no gap.

        Examples
        --------
        >>> import argap
        >>> argap.open_result("results/table1-mini/7m").discover("base_conv")    # doctest: +SKIP
        """
        from argap.slices.discover import discover

        found = discover(
            self.folder, self.record, model, depth=depth, min_share=min_share, leaves=leaves, limit_tokens=limit_tokens
        )
        frame = slice_frame([found.whole, *found.slices], more=True)
        frame = frame.loc[frame["model"] == model].reset_index(drop=True)
        frame["stability"] = frame["slice"].map(found.stability)
        frame.attrs.update(sample=found.sample, tokens=found.tokens)
        return frame

    @cached_property
    def token_table(self) -> "TokenTable":
        """Open the files that `gap` and `tokens` read. Raises `AbsentError` if they are missing."""
        from argap.slices.of_tokens import open_tokens

        return open_tokens(self.folder, self.record)

    def breakdown(self, by: By | str) -> pd.DataFrame:
        """Break down the gap by a partition of the tokens: one row per bin and model.

        ``by``: ``slice``, ``frequency``, ``distance``, ``position``, ``domain``, ``copy`` (new keys, misses, hits by
        match length), ``induction`` (whether it predicts the token); or a token column whose values are the bins: one
        kept from the source (``argap score --keep``), ``source``, or a boolean column (`argap.records.columns`). In a
        column of spans, each combination of labels is a bin.

        Columns: ``bin``; ``low`` and ``high``, its bounds (by frequency, distance and position; NA: none);
        ``repeated`` (by frequency); ``n`` tokens; ``share_of_tokens``; ``model``; ``nll`` (nats); ``contribution``,
        in nats per scored token: over the bins of a model they add up to its gap; ``share``, the contribution over
        the gap; and ``_low`` and ``_high``, the ends of the 95% intervals of both. A model with an infinite NLL has
        none of these figures (NaN).

        Raises `ArgapError` for an unknown partition, and for a column of more than 100 values.

        Examples
        --------
        >>> import argap
        >>> parts = argap.open_result("results/table1-7m/7m").breakdown("domain")
        >>> float(parts.loc[parts["model"] == "base_conv", "contribution"].sum().round(3))  # the gap
        0.235
        """
        bounds = {each.label: each for each in getattr(self.record.bins, by, ())}
        frame = pd.DataFrame([row for part in self.parts(by) for row in part_rows(part, bounds.get(part.bin))])
        if bounds:
            frame[["low", "high"]] = frame[["low", "high"]].astype("Int64")
        return frame

    def parts(self, by: By | str) -> list[Part]:
        """Return the bins of `breakdown` as records, from ``gap.json`` or computed from the tokens by a column."""
        known = get_args(By)
        if by in known:
            if recorded := [part for part in self.record.parts(by) if part.n]:
                return recorded
            if by == "position" and self.evaluation.left_out is not None:
                left = f"restated without {len(self.evaluation.left_out.documents):,} documents"
                why = f"was {left}, and its sums by position do not name documents; repeat its `argap suite run`"
            else:
                lacking = "labels of what can be copied" if by in (COPY, INDUCTION) else "training counts"
                why = f"has no {lacking}; add them with `argap label`"
            raise ArgapError(f"`by` {by}: {self.folder} {why}")
        try:
            table = self.token_table
        except AbsentError as error:
            expected = ", ".join(known)
            raise ArgapError(f"`by` {by}: expected {expected}, or a column of the tokens; {error}") from None
        from argap.slices.of_tokens import grouped, score_by

        if by not in grouped(table):
            raise ArgapError(f"`by` {by}: expected {', '.join(dict.fromkeys((*known, *grouped(table))))}")
        return score_by(table, by, threshold=self.threshold)[2:]

    def __repr__(self) -> str:
        others = [model for model in self.models if model != self.reference]
        return f"<Result {self.folder}: {', '.join(others) or 'no model'} against {self.reference}>"

    def _repr_html_(self) -> str:
        """Return the terminal's table as HTML, for notebooks."""
        from argap.reports.tables.result import tables_of

        parts = []
        for table in tables_of(self.record):
            head = "".join(f"<th>{escape(title)}</th>" for title in table.columns)
            body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in table.rows)
            notes = "<br>".join(escape(note) for note in table.notes)
            parts.append(f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table><p>{notes}</p>")
        return "".join(parts)


def open_result(folder: str | PathLike[str]) -> Result:
    """Open the folder that `argap.score` or `argap.compare` wrote, or one size of a suite's result.

    Parameters
    ----------
    folder
        The folder of the result, which holds ``gap.json``.

    Raises
    ------
    ArgapError
        If ``gap.json`` is missing, broken, or of another format.

    Examples
    --------
    >>> import argap
    >>> argap.open_result("results/table1-mini/7m").reference
    'attention'
    """
    return Result(Path(folder), read_gap(Path(folder)))
