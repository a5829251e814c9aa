"""Figures in tables of the pages on results are those of the committed files, rounded as shown."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from argap.metric.threshold import resolve_threshold
from argap.records import as_json, read_gap
from argap.suite.result import SizeResult, read_size, seed_ranges
from argap.synthetics.sweeps.selection import best_runs
from argap.synthetics.sweeps.store import read_results, read_runs
from argap.synthetics.sweeps.sweep import load_sweep
from tests.builders.page_tables import ROOT, Check, on_one_line, table, tables, unlike

MQAR = ROOT / "results" / "mqar"
PAGES = [ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("*.md"), *ROOT.glob("results/*/README.md")]
MEMBERS = {
    "BaseConv, 2 layers": "base_conv", "BaseConv, 4 layers": "base_conv", "Hyena, 4 layers": "hyena",
    "autocorrelation": "base_conv_autocorrelation", "programmatic": "base_conv_programmatic",
    "2 heads, no convolution": "delta_net", "2 heads, convolution": "delta_net, convolution",
    "DeltaNet, convolution": "delta_net",
}  # fmt: skip
"""Names on the page of MQAR that are not a member's in lower case."""
SEEDS = ("", "-seed1", "-seed2")
"""What the name of a suite's model ends in, by seed."""


def last_losses(folder: Path, steps: int = 300) -> dict[str, float]:
    """The mean training loss of each model over the last ``steps``."""
    lines = pd.read_parquet(folder / "logs.parquet")
    return lines.loc[lines["step"] > lines["step"].max() - steps].groupby("model")["loss"].mean().to_dict()


@pytest.mark.parametrize("name", ["figure2-small", "deltanet-small", "figure2-published", "figure2-filters-small"])
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
    members = (
        "attention",
        "hyena",
        *(f"{name} {size}" for name in ("retnet, chunk", "sliding, window", "blocked, window") for size in (8, 32)),
    )

    def best(name: str, *keys: str) -> dict[Any, float]:
        found = best_runs(read_runs(MQAR / name)).set_index(["name", *keys])
        return (100 * found["accuracy"]).to_dict()

    def checks() -> Iterator[Check]:
        of_pairs, of_width = best("figure6-small", "pairs"), best("deltanet-figure2-small", "width")
        for pairs, *cells in table(MQAR / "README.md", "pairs"):
            yield from ((cell, of_pairs[name, pairs]) for name, cell in zip(members, cells, strict=True))
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
        (len(read_runs(folder)), len(load_sweep(ROOT / "suites/mqar" / f"{folder.name}.yaml").configs()))
        for folder in MQAR.glob("*/")
    }
    wrong = []
    for page in PAGES:
        text = on_one_line(page)
        said = re.findall(r"\b(\d+) of (?:the )?(\d+)(?: runs|\))", text)
        said += [(n, n) for n in re.findall(r"\ball (\d+) runs", text)]
        wrong += [(page.name, *pair) for pair in said if tuple(map(int, pair)) not in counts]
    assert wrong == []


def only_size(place: Path) -> Path:
    """The folder of a suite's one size."""
    (gap,) = place.glob("*/gap.json")
    return gap.parent


def lost(
    place: Path, reference: str = "attention", /, *, hits: bool = False, nearest: int = 1, farthest: int = 10**9
) -> tuple[dict[str, float], int]:
    """The nats that each model loses to ``reference`` and the number of tokens: all, or the AR hits so far back."""
    cells = pd.read_parquet(only_size(place) / "cells.parquet")
    if hits:
        there = cells["repeated"] & (cells["frequency_high"] <= 1250)
        cells = cells.loc[there & (cells["distance_low"] >= nearest) & (cells["distance_high"] <= farthest)]
    columns = [name for name in cells.columns if name.startswith("logprob/")]
    sums = dict(zip(columns, cells[columns].to_numpy().sum(0).tolist(), strict=True))
    behind = {name.removeprefix("logprob/"): sums[f"logprob/{reference}"] - own for name, own in sums.items()}
    return behind, int(cells["n"].to_numpy().sum())


def gaps_on_hits(place: Path, reference: str = "attention", /, **distances: int) -> dict[str, float]:
    """The mean gap of each model to ``reference``, in nats, on the AR hits so far back."""
    sums, n = lost(place, reference, hits=True, **distances)
    return {model: own / n for model, own in sums.items()}


def gap_rows(place: Path) -> dict[str, dict[str, Any]]:
    """By model its estimates in a suite's ``gap.json``, and what it closes of the gap."""
    gap = read_gap(only_size(place))
    parts = {"overall": gap.on_all, "ar_hits": gap.on_hits, "other": gap.on_other}
    rows = {model: {name: as_json(part[model]) for name, part in parts.items()} for model in gap.models}
    return {row.model: rows[row.model] | {"closed": row.closed and as_json(row.closed)} for row in gap.rows}


def nll_of_seeds(result: SizeResult) -> dict[str, dict[str, Any]]:
    """The NLL of each member of several seeds, by name and part."""
    return {seed.name: dict(seed.nll) for seed in result.seeds}


def closed(row: dict[str, Any], overall: str, hits: str) -> Iterator[Check]:
    """Cells with the share of the base's gap that a model closes, in perplexity."""
    for cell, part in ((overall, "overall"), (hits, "ar_hits")):
        yield cell, 100 * row["closed"][part]["ppl"]


def shares(cell: str, row: dict[str, Any], seeds: dict[str, list[float]]) -> Check:
    """A cell with a share and, behind it, the range over seeds or the interval; without numbers, none."""
    if not re.search(r"\d%", cell):
        return (cell,)
    due = row["ar_hits"]
    over = seeds.get(due["model"], [])
    ends = (min(over), max(over)) if "seeds" in cell else due["share_ci95"] if "(" in cell else []
    return cell, *(100 * value for value in (due["paper_rule"], *ends))


def scaled_shares(size: Path) -> dict[str, str]:
    """By model the share of ΔNLL at the scaled threshold, in percent with one decimal."""
    result = read_size(size)
    assert result.gap.index is not None
    tau = str(resolve_threshold("scaled", result.gap.index.exposed_tokens))
    (point,) = (part for part in result.curve if part.bin == tau)
    return {name: f"{100 * each.share:.1f}" for name, each in point.estimates.items() if each.share is not None}


@pytest.mark.parametrize(
    ("suite", "size"),
    [("table1-7m", "7m"), ("table1-50m", "50m"), ("table2-mini", "7m"), ("table1-mini", "7m"), ("table1-mini", "50m")],
)
def test_results_of_suites(suite, size):
    """A page's table is the first two of the size's `table.md`, without bold type and footnotes."""

    def plain(cell: str) -> str:
        return re.sub(r"\\|\*\*|[ᵃ-ᶿ]", "", cell)

    place = ROOT / "results" / suite
    totals = table(place / size / "table.md", "Model", "Params", "Overall")
    hits = {model: cells[:4] for model, *cells in table(place / size / "table.md", "Model", "AR hits", "95% interval")}
    rows = [[model, *cells, *hits.get(model, ["—"] * 4)] for model, _, *cells in totals]
    expected = sorted([plain(cell) for cell in row] for row in rows)
    assert sorted(table(place / "README.md", size, "Overall")) == expected


def test_results_on_the_first_page():
    place = ROOT / "results" / "table1-7m"
    rows, scaled = gap_rows(place), scaled_shares(place / "7m")
    names = {
        "base_conv, attention in 3 layers": "hybrid", "base_conv (the paper's)": "base_conv_listing",
        "delta_net, attention in 2 layers": "delta_net_global", "retnet, windows of 128": "retnet_window",
        "hyena, windows of 64": "hyena_window_64", "hyena, windows of 256": "hyena_window_256",
    }  # fmt: skip

    def checks() -> Iterator[Check]:
        for label, *cells, share, at_scaled in table(ROOT / "README.md", "7 M", "ΔNLL"):
            name = names.get(label, label.split()[0])
            if name != "attention":
                parts = [rows[name][part]["contribution"] for part in ("overall", "ar_hits", "other")]
                yield from zip(cells, parts, strict=True)
                due = rows[name]["ar_hits"]
                ends = due["share_ci95"] if "–" in share else []
                yield share, *(100 * value for value in (due["share"], *ends))
                yield at_scaled, float(scaled[name])
        hybrids = "hybrid", "hybrid_programmatic", "hybrid_random", "hybrid_learned"
        lines = table(place / "README.md", "attention in three layers")
        for name, (_, overall, _, hits, _) in zip(hybrids, lines, strict=True):
            yield from closed(rows[name], overall, hits)

    assert unlike(checks()) == []


def test_seeds_of_attention():
    """What the page says of the reference's other seeds: distances in nats, and the shares of the gap to them."""
    place = ROOT / "results" / "table1-7m"

    def against(reference: str) -> tuple[dict[str, float], dict[str, float], dict[str, float]]:
        """Gaps to a seed in nats, also on the AR hits, and the hits' shares of them in percent."""
        (sums, n), (of_hits, hits) = lost(place, reference), lost(place, reference, hits=True)
        due = {model: 100 * of_hits[model] / own for model, own in sums.items() if model != reference}
        return {m: own / n for m, own in sums.items()}, {m: own / hits for m, own in of_hits.items()}, due

    first, second, third = seeds = [against(f"attention{seed}") for seed in SEEDS]
    hardly = "delta_net", "hyena_window_256", "attention", "linear_attention", "hybrid"
    plain = [share for _, _, due in seeds[1:] for model, share in due.items() if not model.startswith(hardly)]
    lower = [
        first[2][model] - second[2][model]
        for model in second[2]
        if not model.startswith(hardly) or model == "linear_attention"
    ]

    def over(model: str, part: int = 0) -> list[float]:
        """The gaps, or the shares, of all seeds of a model to each seed of attention."""
        return [own for each in seeds for name, own in each[part].items() if name.split("-")[0] == model]

    def own_seed(model: str, part: int) -> list[float]:
        return [each[part][model + seed] for seed, each in zip(SEEDS, seeds, strict=True)]

    of_seeds = {
        name: sorted(share for model, share in first[2].items() if model.split("-")[0] == name)
        for name in ("base_conv", "based", "retnet", "hyena")
    }
    of_model = {
        name: [own for model, own in first[0].items() if model.split("-")[0] == name]
        for name in (*of_seeds, "delta_net")
    }
    spread = {name: max(gaps) - min(gaps) for name, gaps in of_model.items()}
    best, worst = min(of_model["delta_net"]), max(of_model["delta_net"])
    text = on_one_line(place / "README.md")
    said = (
        f"are up to {max(second[0]['attention'], third[0]['attention']):.3f} nats apart "
        f"({max(second[1]['attention'], third[1]['attention']):.3f} on AR hits)",
        f"three of BaseConv {spread['base_conv']:.3f}, three of Based {spread['based']:.3f} and of DeltaNet "
        f"{spread['delta_net']:.3f}, two of RetNet {spread['retnet']:.3f} and of Hyena {spread['hyena']:.3f}.",
        "Its three seeds are between {:.3f} and {:.3f} nats behind attention's three, and {:.3f}, {:.3f} and {:.3f} "
        "behind attention of their own seed.".format(
            min(over("delta_net")), max(over("delta_net")), *own_seed("delta_net", 0)
        ),
        "AR hits are {:.0f}, {:.0f} and {:.0f}% of these gaps".format(*own_seed("delta_net", 2)),
        f"by {min(over('delta_net', 1)):.2f} to {max(over('delta_net', 1)):.2f} nats.",
        f"Of the gap to attention's second seed all shares are {min(lower):.0f} to {max(lower):.0f} points lower",
        f"with windows of 64 ({second[2]['hyena_window_64']:.0f}% in place of {first[2]['hyena_window_64']:.0f})",
        f"({first[2]['hyena_window_64']:.0f}%; {second[2]['hyena_window_64']:.0f}% with attention's second seed",
        f"RetNet keeps {first[2]['retnet_window']:.0f}% ({second[2]['retnet_window']:.0f}%)",
        f"{second[0]['attention']:.3f} and {third[0]['attention']:.3f} nats ahead of the first, it is "
        f"{min(plain):.0f} to {max(plain):.0f}% and {second[2]['linear_attention']:.0f}%",
        f"{first[0]['rwkv4_channel'] - first[0]['rwkv4']:.3f} nats behind RWKV-4 in Llama's",
        *(
            f"{first[0][base] - first[0][block]:.3f} nats ahead of {name} in Llama's, and "
            f"{first[1][base] - first[1][block]:.3f} on AR hits"
            for base, block, name in (("mamba", "mamba_block", "Mamba"), ("retnet", "retnet_block", "RetNet"))
        ),
        "({:.3f}, {:.3f} and {:.3f} nats), and level".format(*(-each[0]["hybrid"] for each in seeds)),
        f"({-first[1]['hybrid']:.2f} ahead to {third[1]['hybrid']:.2f} behind)",
        f"{second[0]['hybrid_programmatic']:.3f} and {third[0]['hybrid_programmatic']:.3f} behind the other seeds: "
        f"on AR hits it is {-third[1]['hybrid_programmatic']:.2f} to {-first[1]['hybrid_programmatic']:.2f} ahead",
        f"{-second[0]['delta_net_global']:.3f} ahead of the second seed and {third[0]['delta_net_global']:.3f} behind "
        f"the third: level. It is {best - first[0]['delta_net_global']:.3f} to "
        f"{worst - first[0]['delta_net_global']:.3f} ahead of DeltaNet's three seeds, which are "
        f"{spread['delta_net']:.3f} apart",
        f"({worst - first[0]['delta_net_window']:.3f} ahead to {first[0]['delta_net_window'] - best:.3f} behind)",
        f"{second[0]['hyena_window_256']:.3f} behind its second seed and {third[0]['hyena_window_256']:.3f} behind its "
        "third",
        f"({first[1]['hyena_window_256']:.2f} to {third[1]['hyena_window_256']:.2f} nats)",
        f"BaseConv's three seeds have {of_seeds['base_conv'][0]:.1f} to {of_seeds['base_conv'][-1]:.1f}%, Based's "
        f"{of_seeds['based'][0]:.1f} to {of_seeds['based'][-1]:.1f}%, RetNet's two {of_seeds['retnet'][0]:.1f} and "
        f"{of_seeds['retnet'][-1]:.1f}% and Hyena's {of_seeds['hyena'][0]:.1f} and {of_seeds['hyena'][-1]:.1f}%",
        "shares of BaseConv are {:.1f} to {:.1f}% over three seeds and those of Based {:.1f} to {:.1f}%".format(
            *(end(own_seed(model, 2)) for model in ("base_conv", "based") for end in (min, max))
        ),
    )
    assert [each for each in said if each not in text] == []


def test_how_many_seeds():
    place = ROOT / "results" / "table1-7m" / "7m"
    result, larger = read_size(place), read_size(ROOT / "results" / "table1-50m" / "50m")
    apart = [max(seed_ranges(each.cells, each.members).values()) for each in (result, larger)]
    based = result.spread()["based"]
    low, high = gap_rows(place.parent)["based"]["ar_hits"]["share_ci95"]
    text = on_one_line(ROOT / "docs" / "faq.md")
    for said in (
        f"seeds of one model are up to {apart[0]:.3f} nats apart",
        f"(../results/table1-50m/README.md#results) up to {apart[1]:.3f}.",
        f"by {100 * (max(based) - min(based)):.1f} points over three seeds",
        f"its first is {100 * (high - low):.1f} points wide",
    ):
        assert said in text


def test_order_of_models_on_random_pairs():
    place = ROOT / "results" / "table1-7m"
    answers = pd.DataFrame(json.loads((place / "7m" / "mqar.json").read_text())["rows"]).query("slice == 'ar'")
    nll = answers.pivot(index="model", columns="pairs", values="nll")
    ranks = nll.corrwith(pd.Series(gaps_on_hits(place)), method="spearman")
    said = f"rank correlation {ranks[4]:.2f} with 4 pairs and {ranks[256]:.2f} with 256, over {len(nll)} models"
    assert said in on_one_line(place / "README.md")


def test_table_2_of_the_paper():
    place = ROOT / "results" / "table2-mini"
    names = dict.fromkeys(("programmatic", "learned", "random"), "hybrid_{}") | {
        "full": "hybrid",
        "BaseConv": "base_conv",
    }
    rows = gap_rows(place)
    losses = last_losses(place / "7m")
    on_hits = gaps_on_hits(place)

    def checks() -> Iterator[Check]:
        for label, overall, hits, *_ in table(place / "README.md", "gap, nats"):
            model = names[label.split()[0]].format(label.split()[0])
            gap = rows[model]["overall"]
            yield from ((overall, gap["delta"], *gap["delta_ci95"]), (hits.split(" (")[0], on_hits[model]))
        for label, overall, hits, *_ in table(place / "README.md", "gap closed"):
            model = names[label.split()[0]].format(label.split()[0])
            yield from closed(rows[model], overall, hits)
        for label, loss, behind, evaluated in table(place / "README.md", "model", "training loss"):
            model = label.split("`")[1] if "`" in label else "base_conv" if "BaseConv" in label else label
            yield loss, losses[model]
            if model != "attention":
                yield from ((behind, losses[model] - losses["attention"]), (evaluated, rows[model]["overall"]["delta"]))

    assert unlike(checks()) == []


def test_attention_in_a_few_layers_on_the_first_page():
    rows = gap_rows(ROOT / "results" / "table2-mini")
    programmatic, random, full = (
        {unit: 100 * share for unit, share in rows[f"hybrid{own}"]["closed"]["ar_hits"].items()}
        for own in ("_programmatic", "_random", "")
    )
    for page in (ROOT / "README.md", ROOT / "results" / "table2-mini" / "README.md"):
        text = on_one_line(page)
        for said in (
            "closes {nll:.0f}% of BaseConv's gap on AR hits in nats ({ppl:.0f}% in perplexity)".format(**programmatic),
            "close {nll:.0f}% ({ppl:.0f}%), and full attention".format(**random),
            "in the same layers {nll:.0f}% ({ppl:.0f}%).".format(**full),
        ):
            assert said in text


def test_shares_at_the_scaled_threshold_on_the_first_page():
    said = []
    for suite in ("table1-7m", "table1-50m"):
        place = ROOT / "results" / suite
        row, scaled = gap_rows(place)["base_conv"], scaled_shares(only_size(place))["base_conv"]
        gap, hits = row["overall"], row["ar_hits"]
        said.append((gap["delta"], *gap["delta_ci95"], hits["contribution"], 100 * hits["share"], float(scaled)))
    (gap, low, high, part, share, scaled), (larger, *_, of_larger, scaled_larger) = said
    text = on_one_line(ROOT / "README.md")
    for each in (
        f"BaseConv is {gap:.3f} nats per token behind attention (95% interval {low:.3f} to {high:.3f}), and {part:.3f} "
        f"of that falls on AR hits: {share:.0f}% at 1,250 exposures, {scaled:.0f}% at the",
        f"At 51 M it is {larger:.3f} behind, with {of_larger:.0f}% at 1,250 and {scaled_larger:.0f}% at τ = 18.",
    ):
        assert each in text
    faq = on_one_line(ROOT / "docs" / "faq.md")
    at = f"{share:.0f}% at 1,250 and {scaled:.0f}% scaled (7 M parameters), or {of_larger:.0f} and {scaled_larger:.0f}%"
    assert at in faq


def test_windows_by_distance():
    place = ROOT / "results" / "table1-7m"
    rows = gap_rows(place)
    parts = gaps_on_hits(place), gaps_on_hits(place, farthest=128), gaps_on_hits(place, nearest=129)
    models = "hyena", "hyena_window_64", "hyena_window_256", "retnet", "retnet_window"

    def checks() -> Iterator[Check]:
        for model, (_, overall, *hits) in zip(models, table(place / "README.md", "", "overall"), strict=True):
            yield overall, rows[model]["overall"]["delta"]
            yield from ((cell, part[model]) for cell, part in zip(hits, parts, strict=True))

    assert unlike(checks()) == []


def test_gaps_by_distance_and_domain_at_50_m():
    place = ROOT / "results" / "table1-50m"
    readme = place / "README.md"
    cells = pd.read_parquet(place / "50m" / "cells.parquet")
    n, hit = cells["n"].to_numpy(), (cells["repeated"] & (cells["frequency_high"] <= 1250)).to_numpy()
    domains = {
        "novels": "books", "FDA summaries": "fda_510k", "mathematics": "latex_math", "Stack Exchange": "stackexchange",
        "web documentation": "web", "World Factbook": "wiki",
    }  # fmt: skip
    ends = (1, 10**9), (1, 8), (9, 32), (33, 128), (129, 256), (257, 10**9)
    parts = {seed: [gaps_on_hits(place, f"attention{seed}", nearest=a, farthest=b) for a, b in ends] for seed in SEEDS}
    counts = [lost(place, hits=True, nearest=low, farthest=high)[1] for low, high in ends]

    def checks() -> Iterator[Check]:
        for label, *gaps in table(readme, "", "all AR hits"):
            own = [100 * count / counts[0] for count in counts]
            if not label.startswith("%"):
                own = [part[label] for part in parts[label.removeprefix(label.split("-")[0])]]
            yield from zip(gaps, own, strict=True)
        for label, tokens, hits, *gaps in table(readme, "", "tokens"):
            of = (cells["domain"] == domains[label]).to_numpy()
            yield from ((tokens, 100 * n[of].sum() / n.sum()), (hits, 100 * n[of & hit].sum() / n[of].sum()))
            for model, cell in zip(("base_conv", "based", "delta_net"), gaps, strict=True):
                behind = [(cells[f"logprob/attention{s}"] - cells[f"logprob/{model}{s}"]).to_numpy() for s in SEEDS]
                gap = [nats[of].sum() / n[of].sum() for nats in behind]
                share = [100 * nats[of & hit].sum() / nats[of].sum() for nats in behind]
                yield cell, min(gap), max(gap), min(share), max(share)

    assert unlike(checks()) == []


def test_seeds_at_50_m():
    """What the page says of three seeds of each model: distances in nats, and what a model closes of BaseConv's gap."""
    place, models = ROOT / "results" / "table1-50m", ("base_conv", "based", "delta_net")
    result = read_size(place / "50m")
    apart, nll = seed_ranges(result.cells, result.members), nll_of_seeds(result)
    every = {
        model: [nll[model + own]["overall"] - nll[f"attention{theirs}"]["overall"] for own in SEEDS for theirs in SEEDS]
        for model in models
    }
    ahead = {
        part: [nll[f"delta_net{seed}"][part] - nll[f"based{seed}"][part] for seed in SEEDS]
        for part in ("overall", "ar_hits", "other")
    }
    over = {
        model: [nll[model + seed]["overall"] - nll[f"attention{seed}"]["overall"] for seed in SEEDS] for model in models
    }

    def closed_by(model: str, **distances: int) -> list[float]:
        """The percentage of BaseConv's gap on the AR hits so far back, for each seed."""
        gaps = [(seed, gaps_on_hits(place, f"attention{seed}", **distances)) for seed in SEEDS]
        return [100 - 100 * of[model + seed] / of[f"base_conv{seed}"] for seed, of in gaps]

    near, far = ({m: closed_by(m, **reach) for m in models[1:]} for reach in ({"farthest": 128}, {"nearest": 129}))
    logs = last_losses(place / "50m")
    trained = {model: [logs[model + seed] - logs[f"attention{seed}"] for seed in SEEDS] for model in models}
    of_hits = [nll[f"attention{seed}"]["ar_hits"] for seed in SEEDS]
    text = on_one_line(place / "README.md").replace("−", "-")
    for said in (
        f"Attention's three are up to {apart['attention']:.3f} nats apart ({max(of_hits) - min(of_hits):.3f} on AR "
        f"hits), BaseConv's {apart['base_conv']:.3f}, Based's {apart['based']:.3f} and DeltaNet's "
        f"{apart['delta_net']:.3f}.",
        "BaseConv is {:.2f} to {:.2f} nats behind attention, Based {:.2f} to {:.2f} and DeltaNet {:.2f} to {:.2f}."
        "".format(*(end(every[model]) for model in models for end in (min, max))),
        "Overall Based is {:.3f}, {:.3f} and {:.3f} nats ahead of DeltaNet of the same seed.".format(*ahead["overall"]),
        "it is behind each time ({:.3f}, {:.3f} and {:.3f})".format(*(-own for own in ahead["ar_hits"])),
        "on all other tokens ahead ({:.3f}, {:.3f} and {:.3f})".format(*ahead["other"]),
        "Based closes {:.0f}, {:.0f} and {:.0f}% of BaseConv's gap".format(*near["based"]),
        "DeltaNet {:.0f}, {:.0f} and {:.0f}%. Further back".format(*near["delta_net"]),
        "Based closes {:.0f}, {:.0f} and {:.0f}% and DeltaNet".format(*far["based"]),
        "DeltaNet {:.0f}, {:.0f} and {:.0f}%. ![Gap by distance]".format(*far["delta_net"]),
        "It is {:.3f}, {:.3f} and {:.3f} nats behind attention of its seed".format(*over["delta_net"]),
        "it is {:.3f} to {:.3f} nats above attention's for BaseConv, {:.3f} to {:.3f} for Based and {:.3f} to {:.3f} "
        "for DeltaNet".format(*(end(trained[model]) for model in models for end in (min, max))),
        "On other text they are {:.3f} to {:.3f}, {:.3f} to {:.3f} and {:.3f} to {:.3f} behind".format(
            *(end(over[model]) for model in models for end in (min, max))
        ),
    ):
        assert said in text
    shares = {model: [] for model in models}
    for seed in SEEDS:
        (own, _), (of_hits, _) = (lost(place, f"attention{seed}", hits=hits) for hits in (False, True))
        for model in models:
            shares[model].append(100 * of_hits[model + seed] / own[model + seed])
    first_page = on_one_line(ROOT / "README.md")
    for said in (
        "in all three seeds ({:.3f}, {:.3f} and {:.3f} nats behind; DeltaNet {:.3f}, {:.3f} and {:.3f})".format(
            *over["based"], *over["delta_net"]
        ),
        f"AR hits are {min(shares['based']):.0f} to {max(shares['based']):.0f}% of Based's gap and "
        f"{min(shares['delta_net']):.0f} to {max(shares['delta_net']):.0f}% of DeltaNet's.",
        f"Based closes {min(near['based']):.0f} to {max(near['based']):.0f}% of BaseConv's gap on AR hits, and at most "
        f"{max(far['based']):.0f}% beyond; DeltaNet {min(near['delta_net']):.0f} to {max(near['delta_net']):.0f}%, and "
        f"{min(far['delta_net']):.0f} to {max(far['delta_net']):.0f}% beyond",
    ):
        assert said in first_page


def test_variants_of_delta_net():
    place = ROOT / "results" / "table1-7m"
    nll = nll_of_seeds(read_size(place / "7m"))
    nll |= {name: {part: row[part]["nll"] for part in ("overall", "ar_hits")} for name, row in gap_rows(place).items()}
    printed = {  # perplexity on WikiText and accuracy on FDA at 340M, arXiv 2406.06484, table 2
        "delta_net": (28.24, 12.8),
        "delta_net_l2_elu": (28.03, 13.1),
        "delta_net_l2_relu": (28.75, 9.0),
        "delta_net_l1_elu": (31.12, 6.2),
        "delta_net_no_conv": (29.08, 4.5),
    }
    seeds = {name: [seed for seed in SEEDS if name + seed in nll] for name in printed}
    behind = {
        (name, part): [nll[name + seed][part] - nll[f"delta_net{seed}"][part] for seed in seeds[name]]
        for name in printed
        for part in ("overall", "ar_hits")
    }

    def checks() -> Iterator[Check]:
        rows = table(place / "README.md", "norm and activation of q and k")
        for name, (_, overall, hits, all_behind, hits_behind, *paper) in zip(printed, rows, strict=True):
            for cell, part in ((overall, "overall"), (hits, "ar_hits")):
                yield cell, *(nll[name + seed][part] for seed in seeds[name])
            if name != "delta_net":
                yield from ((all_behind, *behind[name, "overall"]), (hits_behind, *behind[name, "ar_hits"]))
            yield from zip(paper, printed[name], strict=True)

    assert unlike(checks()) == []
    due: dict[str, list[int]] = {"delta_net_l1_elu": [], "delta_net_no_conv": []}
    for seed in SEEDS[:2]:
        (own, _), (of_hits, _) = (lost(place, f"delta_net{seed}", hits=hits) for hits in (False, True))
        for name, percents in due.items():
            percents.append(round(100 * of_hits[name + seed] / own[name + seed]))
    norm = [nll[f"delta_net_l1_elu{seed}"]["overall"] - nll[f"delta_net_l2_elu{seed}"]["overall"] for seed in SEEDS[:2]]
    text = on_one_line(place / "README.md")
    for said in (
        "with either norm {:.3f} and {:.3f} nats".format(*norm),
        "gains {:.3f} and {:.3f} nats here".format(*behind["delta_net_no_conv", "overall"]),
        "{} and {}% of what the L1 norm costs".format(*due["delta_net_l1_elu"]),
        "{} and {}% of the convolution's part".format(*due["delta_net_no_conv"]),
    ):
        assert said in text
    first_page = on_one_line(ROOT / "README.md")
    assert (
        "is {:.2f} and {:.2f} nats behind DeltaNet (two seeds), and AR hits are {} and {}% of that".format(
            *behind["delta_net_no_conv", "overall"], *due["delta_net_no_conv"]
        )
        in first_page
    )
