"""Figures in tables of the pages on results are those of the committed files, rounded as shown."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pandas as pd
import pytest

from argap.slices.cells import models_of
from argap.synthetics.sweeps.selection import best_runs
from argap.synthetics.sweeps.store import read_results, read_runs
from argap.synthetics.sweeps.sweep import load_sweep
from tests.builders.page_numbers import Size
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
SIZES = {
    "at7": "table1-7m/7m",
    "today": "today-7m/7m",
    "at50": "table1-50m/50m",
    "mini7": "table1-mini/7m",
    "mini50": "table1-mini/50m",
    "table2": "table2-mini/7m",
    "along": "recall-along-training/7m",
}
"""Names of committed results in `claims`."""
PRECISE = re.compile(r"(?<![\d.,])\d+\.\d{3}(?!\d)|[\d.]+–[\d.]+")
"""Nats, and intervals in percent."""


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


def claims() -> dict[str, list[str]]:
    """By page what it says of committed results, with figures as format fields (`tests.builders.page_numbers`)."""
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
        ("table1-50m", "50m"),
        ("table2-mini", "7m"),
        ("table1-mini", "7m"),
        ("table1-mini", "50m"),
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
