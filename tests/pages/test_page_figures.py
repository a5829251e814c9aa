"""Figures in tables of the pages on results are those of the committed files, rounded as shown.

The figures of committed suites by name, for the sentences of pages (``claims.txt``): ``{at7.base_conv.gap:3}`` is
BaseConv's gap to attention at 7 M parameters with 3 decimals, ``{at7.base_conv.gap.ends:3}`` its interval,
``{at7[hyena].base_conv.gap.ahead:3}`` how far BaseConv is ahead of Hyena. Shares are in percent.
"""

import json
import re
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from argap.files.configs import build
from argap.files.plain_yaml import read_yaml
from argap.metric.share import direction, perplexity
from argap.records import Estimate, Interval
from argap.results.sources import read_documents
from argap.slices.cells import PREFIX, models_of, with_models
from argap.slices.figures import Key, slices_of_cells
from argap.slices.partitions import hits_and_others
from argap.suite.result import read_size
from argap.synthetics.sweeps.selection import best_runs
from argap.synthetics.sweeps.store import read_results, read_runs
from argap.synthetics.sweeps.sweep import Sweep
from argap.synthetics.training.supervision import supervision
from tests.builders.page_tables import ROOT, Check, on_one_line, table, tables, unlike

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
    def other_than_repeated(self) -> Any:
        (part,) = (part for part in self.gap.parts("distance") if part.bin == "not repeated")
        return part

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
    def of_sources(self) -> dict[str, Any]:
        """The figures of all, repeated and other bigrams and AR hits with sources as units."""
        cells, (_, source) = self.result.cells, np.unique(self.source, return_inverse=True)
        repeated = cells["repeated"].to_numpy()
        masks = {Key("slice", "ar_hits"): self.hit, Key("slice", "repeated"): repeated, Key("slice", "new"): ~repeated}
        parts = slices_of_cells(cells.assign(document=source), masks, self.reference, seeds=self.gap.seeds)
        return {key.bin: part for key, part in parts.items()}

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
        self.over_sources = Keyed(lambda part: self._contribution(size.of_sources[part][name]))
        """The contribution of ``all``, ``ar_hits``, ``repeated`` or ``new`` tokens, with sources as units."""
        self.pairs = Keyed(self._pairs)
        """The range of such a contribution over all pairs of a seed with one of the reference's."""
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
    repeated = property(lambda self: self._contribution(self._at("all")))
    new = property(lambda self: self._contribution(self.size.other_than_repeated[self.name]))
    """The contributions of repeated bigrams of any frequency, and of all others."""
    ppl = property(lambda self: Figure(perplexity(self.on["all"].nll) or np.nan))
    worth = property(lambda self: Figure(self.on["all"].worth or np.nan))
    loss = property(lambda self: Figure(self._loss(self.name)))
    loss_behind = property(lambda self: Figure(self._loss(self.name) - self._loss(self.size.reference)))
    loss_ahead = property(lambda self: Figure(-self.loss_behind.value))

    @property
    def range(self) -> Ends:
        """The range of the share over all pairs of seeds."""
        ends = self.size.result.share_range(self.name)
        assert ends is not None
        return Ends((100 * ends[0], 100 * ends[1]), " to ")

    def _contribution(self, each: Estimate) -> Figure:
        return Figure(each.contribution or np.nan, each.contribution_ci95 or (np.nan, np.nan))

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

    def _pairs(self, part: str) -> Ends:
        rows = self.size.hit if part == "ar_hits" else self.size.n > 0
        sums = self.size.result.cells.loc[rows].sum(numeric_only=True) / self.size.n.sum()
        own, theirs = (self.size.gap.seeds[name] for name in (self.name, self.size.reference))
        found = [sums[PREFIX + b] - sums[PREFIX + a] for a in own for b in theirs]
        return Ends((min(found), max(found)), " to ")

    def _apart(self, part: str) -> Figure:
        nll = [seed.nll[part] or np.nan for seed in self.size.result.seeds if seed.member == self.name]
        return Figure(max(nll) - min(nll))


MQAR = ROOT / "results" / "mqar"
PAGES = [ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("*.md"), *ROOT.glob("results/*/README.md")]
MEMBERS = {
    "BaseConv, 2 layers": "base_conv", "BaseConv, 4 layers": "base_conv", "Hyena, 4 layers": "hyena",
    "multi-head Hyena": "multihead_hyena",
    "autocorrelation": "base_conv_autocorrelation", "programmatic": "base_conv_programmatic",
    "2 heads, no convolution": "delta_net", "2 heads, convolution": "delta_net, convolution",
    "DeltaNet, convolution": "delta_net",
}  # fmt: skip
"""Names on the page of MQAR that are not a member's in lower case."""
SIZES = {
    "at7": "table1-7m/7m",
    "today": "today-7m/7m",
    "today50": "today-50m/50m",
    "at50": "table1-50m/50m",
    "small": "small-attention/7m-50m",
    "packages": "packages-73m/73m",
    "mini7": "table1-mini/7m",
    "mini50": "table1-mini/50m",
    "table2": "table2-mini/7m",
    "along": "recall-along-training/7m",
}
"""Names of committed results in `claims`."""
PRECISE = re.compile(r"(?<![\d.,])\d+\.\d{3}(?!\d)|[\d.]+–[\d.]+")
"""Nats, and intervals in percent."""


@pytest.mark.parametrize(
    "name", ["figure2-small", "deltanet-small", "figure2-published", "multihead-hyena", "figure2-filters-small"]
)
def test_accuracy_against_width(name):
    section = (MQAR / "README.md").read_text().split(f"\n## {name}:")[1].split("\n## ")[0]
    header, *rows = next(tables(section))
    widths = [int(cell.removeprefix("width ")) for cell in header[2:]]
    best = best_runs(read_runs(MQAR / name)).set_index(["length", "name", "width"])
    cells = {
        (int(size.split(",")[0]), MEMBERS.get(label, label.lower()), width): cell
        for size, label, *accuracies in rows
        for width, cell in zip(widths, accuracies, strict=True)
        if cell != "—"
    }
    assert cells.keys() == set(best.index)
    values = dict(zip(best.index, best[["accuracy", "steps"]].to_numpy().tolist(), strict=True))
    shares = {key: (100 * accuracy, steps) for key, (accuracy, steps) in values.items()}
    assert unlike((cell, *shares[key][: 1 + cell.count("(")]) for key, cell in cells.items()) == []


def test_accuracy_against_pairs_and_state():
    windows = [(kind, size) for kind in ("retnet, chunk", "sliding, window", "blocked, window") for size in (8, 32)]
    members = "attention", *(f"{kind} {size}" for kind, size in windows)
    suite = build(Sweep, read_yaml(ROOT / "suites" / "mqar" / "figure6-published.yaml"))
    tests = {config.pairs[0]: supervision(config, "test") for config in suite.configs()}

    def within_reach(pairs: int) -> list[float]:
        """In percent of the queries, for each of ``members``."""
        query, distance = tests[pairs].positions.numpy(), np.asarray(tests[pairs].slices["distance"])
        key = query - distance
        return [100.0] + [
            100
            * float(np.mean(distance <= 2 * (size - 1) if kind.startswith("sliding") else query // size == key // size))
            for kind, size in windows
        ]

    def best(name: str, *keys: str) -> dict[Any, float]:
        found = best_runs(read_runs(MQAR / name)).set_index(["name", *keys])
        return (100 * found["accuracy"]).to_dict()

    def checks() -> Iterator[Check]:
        of_pairs, of_width = best("figure6-published", "pairs"), best("deltanet-figure2-small", "width")
        for pairs, *cells in table(MQAR / "README.md", "pairs"):
            known = zip(members, within_reach(int(pairs)), cells, strict=True)
            yield from ((cell, of_pairs[name, pairs], share) for name, share, cell in known)
        names = "delta_net", "gla", "hyena", "attention", "retnet", "mamba"
        for label, *cells in table(MQAR / "README.md", "", "DeltaNet")[:2]:
            keys = [(name, int(label.split()[1])) for name in names]
            yield from (
                (cell, *([of_width[key]] if key in of_width else [])) for key, cell in zip(keys, cells, strict=True)
            )
        results = read_results(MQAR / "based-mamba-small")
        runs = best_runs(read_runs(MQAR / "based-mamba-small")).to_dict("records")
        for run, (_, *cells) in zip(runs, table(MQAR / "README.md", "", "width", "state (elements)"), strict=True):
            accuracies = run["accuracy"], *(part.accuracy for part in results[run["key"]].slices["pairs"])
            yield from zip(cells, (run["width"], run["state_size"], *(100 * each for each in accuracies)), strict=True)

    assert unlike(checks()) == []


def test_counts_of_finished_runs():
    counts = {
        (len(read_runs(folder)), len(build(Sweep, read_yaml(ROOT / f"suites/mqar/{folder.name}.yaml")).configs()))
        for folder in MQAR.glob("*/")
    }
    wrong = []
    for page in PAGES:
        text = on_one_line(page)
        said = re.findall(r"\b(\d+) of (?:the )?(\d+)(?: runs|\))", text)
        said += [(n, n) for n in re.findall(r"\ball (\d+) runs", text)]
        wrong += [(page.name, *pair) for pair in said if tuple(map(int, pair)) not in counts]
    assert wrong == []


def claims() -> dict[str, list[str]]:
    """By page what it says of committed results, with figures as format fields (see above)."""
    pages = re.split(r"^# ", (ROOT / "tests" / "pages" / "claims.txt").read_text(), flags=re.MULTILINE)[1:]
    return {page: lines for page, *lines in (list(filter(None, each.splitlines())) for each in pages)}


@pytest.fixture(scope="module")
def sizes() -> dict[str, Size]:
    return {name: Size(ROOT / "results" / folder) for name, folder in SIZES.items()}


def said(claim: str, sizes: dict[str, Size]) -> str:
    return claim.format_map(sizes).replace("-", "−")


@pytest.mark.parametrize("page", claims())
def test_what_pages_say_of_results(page, sizes):
    text = on_one_line(ROOT / page).replace("-", "−")
    assert [each for claim in claims()[page] if (each := said(claim, sizes)) not in text] == []


@pytest.mark.parametrize("page", claims())
def test_no_precise_number_is_unchecked(page, sizes):
    """Every number of three decimals and every interval in percent outside tables and code is one of a claim."""
    lines = re.sub(r"^```.*?^```$", "", (ROOT / page).read_text(), flags=re.MULTILINE | re.DOTALL).splitlines()
    prose = " ".join(" ".join(line for line in lines if not line.startswith("|")).split()).replace("-", "−")
    if page == "docs/fidelity.md":
        prose = on_one_line(ROOT / page).replace("-", "−")
    for claim in claims()[page]:
        prose = prose.replace(said(claim, sizes), "")
    assert PRECISE.findall(prose) == []


@pytest.mark.parametrize(
    ("suite", "size"),
    [
        ("table1-7m", "7m"),
        ("today-7m", "7m"),
        ("today-50m", "50m"),
        ("table1-50m", "50m"),
        ("table2-mini", "7m"),
        ("table1-mini", "7m"),
        ("table1-mini", "50m"),
        ("packages-73m", "73m"),
    ],
)
def test_results_of_suites(suite, size):
    """A page's table is the first two of the size in `table.md`, without bold type and footnotes."""

    def plain(cell: str) -> str:
        return re.sub(r"\\|\*\*|[ᵃ-ᶿ]", "", cell)

    place = ROOT / "results" / suite
    section = (place / "table.md").read_text().split(f"## {size}\n")[1].split("\n## ")[0]
    (_, *totals), (_, *of_hits), *_ = tables(section)
    hits = {model: cells[:4] for model, *cells in of_hits}
    rows = [[model, *cells, *hits.get(model, ["—"] * 4)] for model, _, *cells in totals]
    expected = sorted([plain(cell) for cell in row] for row in rows)
    assert sorted(table(place / "README.md", size, "Overall")) == expected


def test_losses_beyond_the_training_length():
    place = ROOT / "results"
    text = (place / "today-7m-length" / "table.md").read_text()
    (expected,) = (rows[1:] for rows in tables(text) if rows[0][1].startswith("Position"))
    plain = [[cell.replace("\\", "").replace("**", "") for cell in row] for row in expected]
    assert table(place / "today-7m" / "README.md", "7m, by position") == plain


def test_order_of_models_on_random_pairs(sizes):
    place, at7 = ROOT / "results" / "table1-7m", sizes["at7"]
    cells = at7.result.cells.loc[at7.hit]
    nll_of_hits = {model: -cells[f"logprob/{model}"].to_numpy().sum() for model in models_of(cells)}
    answers = pd.DataFrame(json.loads((place / "7m" / "mqar.json").read_text())["rows"]).query("slice == 'ar'")
    nll = answers.pivot(index="model", columns="pairs", values="nll")
    ranks = nll.corrwith(pd.Series(nll_of_hits), method="spearman")
    said = f"rank correlation {ranks[4]:.2f} with 4 pairs and {ranks[256]:.2f} with 256, over {len(nll)} models"
    assert said in on_one_line(place / "README.md")
