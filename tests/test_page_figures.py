"""Figures in tables of the pages are those of the committed files, rounded to the decimals that are shown."""

import itertools
import json
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from argap.synthetics.selection import best_runs
from argap.synthetics.sweep import load_sweep

ROOT = Path(__file__).parent.parent
MQAR = ROOT / "results" / "mqar"
PERFORMANCE = ROOT / "docs" / "performance.md"
CONVOLUTIONS = ROOT / "docs" / "performance-notes" / "long_convolution.md"
PAGES = [ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("*.md"), *ROOT.glob("results/*/README.md")]
MEMBERS = {
    "BaseConv, 2 layers": "base_conv", "BaseConv, 4 layers": "base_conv", "Hyena, 4 layers": "hyena",
    "autocorrelation": "base_conv_autocorrelation", "programmatic": "base_conv_programmatic",
    "2 heads, no convolution": "delta_net", "2 heads, convolution": "delta_net, convolution",
    "DeltaNet, convolution": "delta_net",
}  # fmt: skip
"""Names on the page of MQAR that are not a member's in lower case."""


def tables(text: str) -> Iterator[list[list[str]]]:
    """The cells of every table, its header first; an empty first cell repeats the one above."""
    for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        rows = [[cell.strip() for cell in line[1:-1].split(" | ")] for line in block.splitlines()]
        rows = [row for row in rows if not set("".join(row)) <= set("-:| ")]
        for above, row in itertools.pairwise(rows):
            row[0] = row[0] or above[0]
        yield rows


def table(page: Path, *header: str) -> list[list[str]]:
    """The rows of the one table whose header starts with these cells."""
    (rows,) = (rows for rows in tables(page.read_text()) if rows[0][: len(header)] == list(header))
    return rows[1:]


def shown(cell: str, *values: float) -> bool:
    """Whether a cell's numbers are these values, each rounded to its own decimals; half may go either way."""
    numbers = re.findall(r"\d[\d,]*(?:\.\d+)?", cell)
    return len(numbers) == len(values) and all(
        abs(float(number.replace(",", "")) - value) <= 0.5000001 * 10 ** -len(number.partition(".")[2])
        for number, value in zip(numbers, values, strict=True)
    )


Check = tuple[str, *tuple[float, ...]]
"""A cell and what it should show."""


def unlike(checks: Iterable[Check]) -> list[Check]:
    return [(cell, *values) for cell, *values in checks if not shown(cell, *values)]


def last_loss(log: Path, steps: int = 300) -> float:
    """The mean training loss of the last ``steps``."""
    lines = pd.read_json(log, lines=True)
    return float(lines.loc[lines["step"] > lines["step"].max() - steps, "loss"].mean())


@cache
def rows_of(name: str) -> list[dict[str, Any]]:
    """The rows of a file of ``benchmarks/results``."""
    return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())["rows"]


def of_model(name: str, model: str, *others: str) -> dict[str, Any]:
    """The row of ``model`` in the first of the files that has one."""
    return next(row for file in (name, *others) for row in rows_of(file) if row["model"] == model)


@pytest.mark.parametrize("name", ["figure2-small", "deltanet-small", "figure2-published", "figure2-filters-small"])
def test_accuracy_against_width(name):
    section = (MQAR / "README.md").read_text().split(f"\n## {name}:")[1].split("\n## ")[0]
    header, *rows = next(tables(section))
    widths = [int(cell.removeprefix("width ")) for cell in header[2:]]
    best = best_runs(pd.read_parquet(MQAR / name / "runs.parquet")).set_index(["length", "name", "width"])
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


def test_counts_of_finished_runs():
    counts = {
        (len(list(runs.glob("*.json"))), len(load_sweep(ROOT / "suites/mqar" / f"{runs.parent.name}.yaml").configs()))
        for runs in MQAR.glob("*/runs")
    }
    wrong = []
    for page in PAGES:
        text = " ".join(page.read_text().split())
        said = re.findall(r"\b(\d+) of (?:the )?(\d+)(?: runs|\))", text)
        said += [(n, n) for n in re.findall(r"\ball (\d+) runs", text)]
        wrong += [(page.name, *pair) for pair in said if tuple(map(int, pair)) not in counts]
    assert wrong == []


def test_whole_models():
    def checks() -> Iterator[Check]:
        for model, path, trunk, ours, speedup, errors in table(PERFORMANCE, "Hugging Face models"):
            row = of_model("score", model)
            hf, argap = row["HF path"], row["argap"]
            yield from ((path, hf["ms"]), (trunk, row["trunk of HF"]["ms"]), (ours, argap["ms"]))
            yield from ((speedup, hf["ms"] / argap["ms"]), (errors, hf["error_nats"], argap["error_nats"]))
        for model, plain, ours, device, errors in table(PERFORMANCE, "native models, 360m"):
            row = of_model("score", model.split(",")[0])
            unfused, argap = row["unfused"], row["argap"]
            yield from ((plain, unfused["ms"]), (ours, argap["ms"]))
            yield (device, argap["device_ms"]) if "device_ms" in argap else (device,)
            yield errors, unfused["error_nats"], argap["error_nats"]

    assert unlike(checks()) == []


def test_peers_are_of_the_same_run():
    def checks() -> Iterator[Check]:
        for label, peer, trunk, ours, speedup, errors in table(PERFORMANCE, "model", "the peer's log-probs, ms"):
            model, _, tool = label.partition(", ")
            fla = tool == "flash-linear-attention"
            row = of_model("score-peers-fla", f"FLA {model}" if fla else model, "score-peers")
            path = row["FLA path" if fla else "torch.compile"]
            whole = path["ms"]
            yield from ((peer, whole), (trunk, row["trunk of FLA" if fla else "trunk under torch.compile"]["ms"]))
            yield from ((ours, row["argap"]["ms"]), (speedup, whole / row["argap"]["ms"]))
            yield errors, *(each["error_nats"] for each in (path, row["argap"]) if "error_nats" in each)

    assert unlike(checks()) == []


def test_training_over_lengths_and_generation():
    def checks() -> Iterator[Check]:
        rates = {(row["row"].split()[0], row["shape"]): row for row in rows_of("train-lengths")}
        for shape, *cells in table(PERFORMANCE, "windows × length"):
            windows, length = shape.replace(",", "").split(" × ")
            for model, cell in zip(("attention", "delta_net", "gla", "retnet"), cells, strict=True):
                row = rates[model, f"B {windows}, T {length}"]
                yield cell, *((row["tokens_per_s"], row["ratio"])[: 1 + cell.count("(")])
        speeds = {
            (row["architecture"], row["graph"], row["batch"], row["length"]): row["tokens_per_s"]
            for row in rows_of("generation")
        }
        for header, graph in (("sequences", True), ("sequences, no graph", False)):
            for sequences, *cells in table(PERFORMANCE, header, "attention"):
                batch, length = map(int, re.findall(r"\d+", sequences.replace(",", "") + " 256")[:2])
                for model, cell in zip(("attention", "based", "based_post", "mamba"), cells, strict=True):
                    if cell != "—":
                        found, of_attention = (
                            speeds[model, graph, batch, length],
                            speeds["attention", graph, batch, length],
                        )
                        yield cell, *((found, found / of_attention)[: 1 + cell.count("(")])

    assert unlike(checks()) == []


def test_first_steps_wide_keys_and_sweeps():
    def checks() -> Iterator[Check]:
        rates = {row["row"].split()[0]: row for row in rows_of("train") if "tokens_per_s" in row}
        for label, rate, share, first, memory in table(PERFORMANCE, "Model, operators"):
            row = rates[{"DeltaNet": "delta_net", "GLA": "gla"}.get(name := label.split(",")[0], name)]
            yield from ((rate, row["tokens_per_s"]), (first, row["first_step_s"]), (memory, row["peak_gb"]))
            yield (share, 100 * row["ratio"]) if share != "—" else (share,)
        wide = {row["T"]: row for row in rows_of("delta_rule_256")}
        for (_, *cells), key in zip(table(PERFORMANCE, "heads of 256"), ("earlier_ms", "ms", "ratio"), strict=True):
            yield from ((cell, wide[length][key]) for cell, length in zip(cells, sorted(wide), strict=True))
        layers = "transforms", "products", "products, compiled"
        steps = {(row["model"], row["layers"]): row["step_ms"] for row in rows_of("sweeps")}
        for label, *cells in table(PERFORMANCE, "runs", "long convolutions by transforms"):
            model = {"Hyena": "hyena", "BaseConv": "base_conv"}[label.split(",")[0]]
            yield from ((cell, steps[model, each]) for cell, each in zip(cells, layers, strict=True))

    assert unlike(checks()) == []


def test_recurrent_and_chunkwise_forms_of_the_delta_rule():
    measured = {row["shape"]: row for row in rows_of("kernels") if row["op"] == "delta rule, figure 1"}

    def checks() -> Iterator[Check]:
        lines = table(PERFORMANCE, "recurrent over chunkwise")
        ratios = ("recurrent", "chunkwise"), ("recurrent", "argap"), ("chunkwise", "argap")
        for (size, (above, below)), (_, *cells) in zip(itertools.product((64, 128, 256), ratios), lines, strict=True):
            for power, cell in enumerate(cells, start=9):
                row = measured[f"B {2 ** (15 - power)}, T {2**power}, H {2048 // size}, D {size}"]
                ms = {form: row["peers"][f"FLA {form}"]["ms"] for form in ("recurrent", "chunkwise")}
                yield cell, ms[above] / (ms | {"argap": row["ours"]["ms"]})[below]

    assert unlike(checks()) == []


def test_products_with_toeplitz_blocks():
    measured = json.loads((ROOT / "benchmarks/results/toeplitz_convolution.json").read_text())["launches"]
    times = {(each["of"], *each["launch"], each["T"], each["taps"]): each["ms"] for each in measured}
    used, wider = (128, 64, 64, 4, 3), (64, 128, 64, 4, 3)
    launches = ("as it was", *used), ("tried", *wider), ("launches of the tried tree", *used)
    shapes = (512, 512), (1024, 1024), (2048, 2048), (2048, 64)

    def checks() -> Iterator[Check]:
        for launch, (_, _, *cells) in zip(launches, table(CONVOLUTIONS, "blocks"), strict=True):
            for shape, cell in zip(shapes, cells, strict=True):
                yield (cell,) if cell == "—" else (cell, times[*launch, *shape])
        for label, *cells in table(CONVOLUTIONS, "model", "before, ms"):
            row = of_model("toeplitz_convolution", label.split(",")[0])
            found = [row[tree][key] for tree in ("as it was", "tried") for key in ("ms", "device_ms")]
            yield from zip(cells, found, strict=True)

    assert unlike(checks()) == []


def gaps_on_hits(place: Path, farthest: int = 10**9, nearest: int = 1) -> dict[str, float]:
    """The mean gap to attention of each model, in nats, on the AR hits so far back."""
    cells = pd.read_parquet(place / "7m" / "cells.parquet")
    there = cells["repeated"] & (cells["frequency_high"] <= 1250) & (cells["distance_low"] >= nearest)
    cells = cells.loc[there & (cells["distance_high"] <= farthest)]
    columns = [name for name in cells.columns if name.startswith("logprob/")]
    means = cells[columns].to_numpy().sum(0) / cells["n"].to_numpy().sum()
    by_model = dict(zip(columns, means.tolist(), strict=True))
    return {name.removeprefix("logprob/"): by_model["logprob/attention"] - mean for name, mean in by_model.items()}


def test_table_2_of_the_paper():
    place = ROOT / "results" / "table2-mini"
    names = dict.fromkeys(("programmatic", "learned", "random"), "hybrid_{}") | {
        "full": "hybrid",
        "BaseConv": "base_conv",
    }
    rows = {row["model"]: row for row in json.loads((place / "7m" / "gap.json").read_text())["rows"]}
    losses = {path.stem: last_loss(path) for path in place.glob("7m/logs/*.jsonl")}
    on_hits = gaps_on_hits(place)

    def closed(model: str, part: str) -> float:
        ppl = {name: rows[name][part]["ppl"] for name in ("attention", "base_conv", model)}
        return 100 * (ppl["base_conv"] - ppl[model]) / (ppl["base_conv"] - ppl["attention"])

    def checks() -> Iterator[Check]:
        for label, overall, hits, *_ in table(place / "README.md", "gap, nats"):
            model = names[label.split()[0]].format(label.split()[0])
            delta = rows[model]["delta"]
            yield from ((overall, delta["nll"], *delta["ci95"]), (hits.split(" (")[0], on_hits[model]))
        for label, overall, hits, *_ in table(place / "README.md", "gap closed"):
            model = names[label.split()[0]].format(label.split()[0])
            yield from ((overall, closed(model, "overall")), (hits, closed(model, "ar_hits")))
        for label, loss, behind, evaluated in table(place / "README.md", "model", "training loss"):
            model = label.split("`")[1] if "`" in label else "base_conv" if "BaseConv" in label else label
            yield loss, losses[model]
            if model != "attention":
                yield from ((behind, losses[model] - losses["attention"]), (evaluated, rows[model]["delta"]["nll"]))

    assert unlike(checks()) == []


def test_windows_by_distance():
    place = ROOT / "results" / "table1-7m"
    rows = {row["model"]: row for row in json.loads((place / "7m" / "gap.json").read_text())["rows"]}
    parts = gaps_on_hits(place), gaps_on_hits(place, farthest=128), gaps_on_hits(place, nearest=129)
    models = "hyena", "hyena_window_64", "retnet", "retnet_window"

    def checks() -> Iterator[Check]:
        for model, (_, overall, *hits) in zip(models, table(place / "README.md", "", "overall"), strict=True):
            yield overall, rows[model]["delta"]["nll"]
            yield from ((cell, part[model]) for cell, part in zip(hits, parts, strict=True))

    assert unlike(checks()) == []


def test_recall_of_trained_models():
    place = ROOT / "results" / "recall" / "table1-7m"
    rows = {
        (row["model"], row["task"].split(".")[0]): row
        for row in json.loads((place / "recall.json").read_text())["rows"]
    }

    def checks() -> Iterator[Check]:
        for model, *cells in table(place / "README.md", "", "SWDE form: contains"):
            found = [rows[model, task] for task in ("swde_like", "fda", "squad_qa")]
            for contains, nll, row in zip(cells[::2], cells[1::2], found, strict=True):
                values = [row["contains"], *row["ci95"]] if "(" in contains else [row["contains"]]
                yield contains, *(100 * value for value in values)
                yield nll, row["gold_nll"]
        for model, *cells in table(place / "README.md", "tokens from the gold to the answer"):
            groups = rows["attention-seed1" if model == "examples" else model, "squad_qa"]["by_distance"][1:5]
            for cell, group in zip(cells, groups, strict=True):
                yield cell, group["n" if model == "examples" else "gold_nll"]

    assert unlike(checks()) == []


def test_training_loss_of_mambas_own_block():
    place = ROOT / "results" / "table1-7m"
    logs = [place / "training/mamba_block.jsonl", *(place / f"7m/logs/{name}.jsonl" for name in ("mamba", "attention"))]
    block, llama, attention = map(last_loss, logs)
    text = " ".join((place / "README.md").read_text().split())
    assert f"its loss is {block:.3f}, Mamba's in Llama's block {llama:.3f} and attention's {attention:.3f}," in text
    assert f"Mamba's own block is {llama - block:.3f} nats ahead" in (ROOT / "docs" / "fidelity.md").read_text()


def test_answers_of_the_viewer():
    answers = next(row for row in rows_of("view") if row["amount"] == 10**8)["answers"]
    times = [time for name, time in answers.items() if name not in ("overview", "in the background")]
    rows = zip(table(PERFORMANCE, "", "CPU, s", "seconds"), times, strict=True)
    assert unlike(check for (_, *cells), (wall, cpu) in rows for check in zip(cells, (cpu, wall), strict=True)) == []


def test_time_and_memory_under_load():
    inputs = {"documents": "documents", "bytes": "one document", "packed": "scored", "scored": "tokens"}

    def checks() -> Iterator[Check]:
        for label, amount, cpu, memory in table(ROOT / "docs" / "reliability.md", "input", "amount"):
            key = "view" if "argap view" in label else inputs[label.split()[0]]
            n = int(amount.replace(",", ""))
            row = next(row for row in rows_of("scale") if (row["input"], row["amount"]) == (key, n))
            yield cpu, row["cpu_seconds"]
            yield (memory, row["bytes"] / 2**20) if "bytes" in row else (memory,)

    assert unlike(checks()) == []
