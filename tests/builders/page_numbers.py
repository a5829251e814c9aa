"""The figures of committed suites by name, for the sentences of pages (`tests/pages/claims.txt`).

``{at7.base_conv.gap:3}`` is BaseConv's gap to attention at 7 M parameters with 3 decimals,
``{at7.base_conv.gap.ends:3}`` its interval, ``{at7[hyena].base_conv.gap.ahead:3}`` how far BaseConv is ahead of Hyena.
Shares are in percent.
"""

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from argap.metric.direction import direction
from argap.metric.share import perplexity
from argap.records import Estimate, Interval
from argap.results.sources import read_documents
from argap.slices.cells import PREFIX, with_models
from argap.slices.figures import slices_of_cells
from argap.slices.partitions import hits_and_others
from argap.suite.result import read_size

STEPS = 300
"""The last steps of training whose mean loss pages print."""


def shown(value: float, spec: str) -> str:
    """Format by a number of decimals, ``3``, or with a sign, ``+3``; never as a negative zero."""
    decimals = int(spec)
    return f"{round(value, decimals) + 0.0:{'+' * spec.startswith('+')}.{decimals}f}"


class Ends:
    def __init__(self, ends: Interval, between: str) -> None:
        self.ends, self.between = ends, between

    def __format__(self, spec: str) -> str:
        return self.between.join(shown(end, spec) for end in self.ends)


class Figure:
    """A number with its interval, formatted by its number of decimals."""

    def __init__(self, value: float, ends: Interval = (np.nan, np.nan), between: str = " to ") -> None:
        self.value, self._ends, self.between = value, ends, between
        self.ends, self.span = Ends(ends, between), Ends(ends, "–")

    def __format__(self, spec: str) -> str:
        return shown(self.value, spec)

    low = property(lambda self: Figure(self._ends[0]))
    high = property(lambda self: Figure(self._ends[1]))
    ahead = property(lambda self: Figure(-self.value, (-self._ends[1], -self._ends[0]), self.between))


class Keyed:
    """Values by what stands in brackets."""

    def __init__(self, find: Callable[[str], Any]) -> None:
        self.find = find

    def __getitem__(self, key: object) -> Any:
        return self.find(str(key))


def share_of(each: Estimate) -> Figure:
    assert each.share is not None
    assert each.share_ci95 is not None
    low, high = each.share_ci95
    return Figure(100 * each.share, (100 * low, 100 * high), "–")


class Size:
    """A size of a suite; ``size.MODEL`` is a `Model` against its reference, ``size[REFERENCE].MODEL`` against another.

    ``size[first].MODEL``: the first seeds alone, with intervals over documents.
    """

    def __init__(self, folder: Path, other: str | None = None) -> None:
        self.result = read_size(folder)
        self.gap, cells = self.result.gap, self.result.cells
        self.reference = self.gap.reference if other in (None, "first") else other
        masks, seeds = hits_and_others(cells, self.gap.threshold, self.gap.bins), self.gap.seeds
        if other == "first":
            cells, seeds = with_models(cells, self.gap.models), None
        parts = slices_of_cells(cells, masks, self.reference, seeds=seeds)
        self.parts = {key.bin: part for key, part in parts.items()}
        self.hit = next(mask for key, mask in masks.items() if key.bin == "ar_hits")
        self.n = cells["n"].to_numpy()
        bins = self.gap.bins.distance
        self.farthest = np.array([each.high or 10**9 for each in bins])[cells["distance"].to_numpy()]

    @cached_property
    def others(self) -> dict[str, "Size"]:
        return {}

    def __getitem__(self, other: str) -> "Size":
        if other not in self.others:
            self.others[other] = Size(self.result.folder, other)
        return self.others[other]

    def __getattr__(self, model: str) -> "Model":
        if model not in self.gap.models:
            raise AttributeError(model)
        return Model(self, model)

    @cached_property
    def exponent(self) -> Figure:
        """The power law of the distances."""
        row = self.result.exponents().set_index("domain").loc["all"]
        return Figure(row["exponent"], (row["low"], row["high"]))

    @cached_property
    def source(self) -> np.ndarray:
        documents = read_documents(self.result.folder / "documents.parquet").set_index("document")["source"]
        return documents.loc[self.result.cells["document"]].to_numpy()

    @cached_property
    def losses(self) -> dict[str, float]:
        """The mean training loss at the end of every seed."""
        lines = pd.read_parquet(self.result.folder / "logs.parquet")
        return lines.loc[lines["step"] > lines["step"].max() - STEPS].groupby("model")["loss"].mean().to_dict()


class Model:
    """The figures of a model against a reference: nats, and shares in percent."""

    def __init__(self, size: Size, name: str) -> None:
        self.size, self.name = size, name
        self.on = {part: of[name] for part, of in size.parts.items()}
        self.closed = Keyed(self._closed)
        """Of the base's gap: ``closed[ar_hits ppl]``."""
        self.within = Keyed(lambda key: Figure(self._within(key)))
        """The mean gap on AR hits so many tokens back: ``within[1-128]``."""
        self.closes = Keyed(lambda key: self._closes(f"base_conv {key}"))
        self.closes_of = Keyed(self._closes)
        """Of a model's mean gap on AR hits so many tokens back: ``closes_of[hyena 1-128]``."""
        self.at = Keyed(lambda tau: share_of(self._at(tau)))
        """The share at a threshold: ``at[24]``, ``at[all]``."""
        self.domain = Keyed(lambda key: "{:3} ({:0})".format(*self._among(size.result.cells["domain"] == key)))
        self.share_on = Keyed(lambda key: self._among(size.result.cells["domain"] == key)[1])
        """The share on a domain."""
        self.without = Keyed(lambda source: self._among(size.source != source)[1])
        """The share without a source."""
        self.never = Keyed(self._never)
        """The mean gap on bigrams that training never saw, ``repeated`` or ``other``."""
        self.apart = Keyed(self._apart)
        """How far apart the seeds' NLLs are, ``overall`` or on ``ar_hits``."""

        self.along = Keyed(self._along)
        """Contributions along training: ``along[98 ar_hits]`` after 98 M tokens, ``along[98- ar_hits].ends`` since."""

    def _figure(self, part: str, field: str) -> Figure:
        each = self.on[part]
        return Figure(getattr(each, field), getattr(each, f"{field}_ci95") or (np.nan, np.nan))

    direction = property(lambda self: direction(self.on["all"].delta, self.on["all"].delta_ci95))
    gap = property(lambda self: self._figure("all", "delta"))
    hits = property(lambda self: self._figure("ar_hits", "contribution"))
    other = property(lambda self: self._figure("other", "contribution"))
    on_hits = property(lambda self: self._figure("ar_hits", "delta"))
    share = property(lambda self: share_of(self.on["ar_hits"]))
    ppl = property(lambda self: Figure(perplexity(self.on["all"].nll) or np.nan))
    worth = property(lambda self: Figure(self.on["all"].worth or np.nan))
    loss = property(lambda self: Figure(self._loss(self.name)))
    loss_behind = property(lambda self: Figure(self._loss(self.name) - self._loss(self.size.reference)))

    @property
    def range(self) -> Ends:
        """The range of the share over all pairs of seeds."""
        ends = self.size.result.share_range(self.name)
        assert ends is not None
        return Ends((100 * ends[0], 100 * ends[1]), " to ")

    def _loss(self, model: str) -> float:
        """The training loss at the end, the mean over seeds."""
        return float(np.mean([self.size.losses[seed] for seed in self.size.gap.seeds[model]]))

    def _closed(self, key: str) -> Figure:
        part, unit = key.split()
        (row,) = (row for row in self.size.gap.rows if row.model == self.name)
        return Figure(100 * getattr(getattr(row.closed, part), unit))

    def _behind(self, rows: Any) -> float:
        """The nats lost on some cells."""
        means = self.size.result.means
        lost = means[PREFIX + self.size.reference] - means[PREFIX + self.name]
        return float(lost.to_numpy()[np.asarray(rows)].sum())

    def _within(self, key: str) -> float:
        low, high = map(int, key.split("-"))
        rows = self.size.hit & (self.size.farthest >= low) & (self.size.farthest <= high)
        return self._behind(rows) / self.size.n[rows].sum()

    def _closes(self, key: str) -> Figure:
        base, distances = key.split()
        return Figure(100 - 100 * self._within(distances) / Model(self.size, base)._within(distances))

    def _at(self, tau: str) -> Estimate:
        points = {point.bin: point for point in self.size.result.curve}
        return points[max(points, key=int) if tau == "all" else tau][self.name]

    def _among(self, rows: Any) -> tuple[Figure, Figure]:
        """The mean gap on some cells, and the percentage of it on their hits."""
        lost = self._behind(rows)
        return Figure(lost / self.size.n[rows].sum()), Figure(100 * self._behind(rows & self.size.hit) / lost)

    def _never(self, key: str) -> Figure:
        cells = self.size.result.cells
        unseen = [k for k, each in enumerate(self.size.gap.bins.frequency) if each.high == 0]
        rows = cells["frequency"].isin(unseen) & (cells["repeated"] == (key == "repeated"))
        return Figure(self._behind(rows) / self.size.n[rows].sum())

    def _along(self, key: str) -> Figure:
        since, part = key.split()
        found = self.size.result.trajectory()
        assert found is not None
        own, theirs = (found[found["model"] == name].set_index("tokens") for name in (self.name, self.size.reference))
        tokens = own["n_ar_hits"] + own["n_other"]
        lost = (own[f"nll_{part}"] - theirs[f"nll_{part}"]) * own[f"n_{part}"] / tokens
        lost.index = (lost.index / 1e6).round().astype(int)
        later = lost.loc[int(since.strip("-")) :]
        return Figure(later.iloc[0], (later.min(), later.max()))

    def _apart(self, part: str) -> Figure:
        nll = [seed.nll[part] or np.nan for seed in self.size.result.seeds if seed.member == self.name]
        return Figure(max(nll) - min(nll))
