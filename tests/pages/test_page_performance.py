"""Figures in tables of the pages on performance are those of the committed measurements, rounded as shown."""

import itertools
import json
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

from tests.builders.page_tables import ROOT, Check, on_one_line, table, unlike

PERFORMANCE = ROOT / "docs" / "performance.md"
CONVOLUTIONS = ROOT / "docs" / "performance-notes" / "long_convolution.md"
DELTA_RULE = CONVOLUTIONS.with_name("delta_rule_and_convolutions.md")


@cache
def rows_of(name: str) -> list[dict[str, Any]]:
    """The rows of a file of ``benchmarks/results``."""
    return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())["rows"]


def of_model(name: str, model: str) -> dict[str, Any]:
    """The row of ``model``."""
    return next(row for row in rows_of(name) if row["model"] == model)


def test_whole_models():
    def checks() -> Iterator[Check]:
        for model, *cells in table(PERFORMANCE, "Hugging Face models"):
            row = of_model("score", model)
            ways = ("HF path", "Liger path", "torch.compile", "argap")
            *peers, argap = times = [row[way]["ms"] if way in row else None for way in ways]
            yield from ((cell,) if time is None else (cell, time) for cell, time in zip(cells, times, strict=False))
            yield cells[-2], min(time for time in peers if time is not None) / argap
            yield cells[-1], row["HF path"]["error_nats"], row["argap"]["error_nats"]
        for model, path, trunk, ours, speedup, errors in table(PERFORMANCE, "flash-linear-attention's models"):
            row = of_model("score", f"FLA {model}")
            fla, argap = row["FLA path"], row["argap"]
            yield from ((path, fla["ms"]), (trunk, row["trunk of FLA"]["ms"]), (ours, argap["ms"]))
            yield from ((speedup, fla["ms"] / argap["ms"]), (errors, fla["error_nats"], argap["error_nats"]))
        for model, plain, ours, device, errors in table(PERFORMANCE, "native models, 360m"):
            row = of_model("score", model)
            unfused, argap = row["unfused"], row["argap"]
            yield from ((plain, unfused["ms"]), (ours, argap["ms"]), (device, argap["device_ms"]))
            yield errors, unfused["error_nats"], argap["error_nats"]
        for model, plain, ours, device, memory, errors in table(PERFORMANCE, "native models, 1 × 131,072"):
            row = of_model("score-long", model)
            unfused, argap = row["unfused"], row["argap"]
            yield from ((plain, unfused["ms"]), (ours, argap["ms"]), (device, argap["device_ms"]))
            yield from ((memory, argap["peak_gb"]), (errors, unfused["error_nats"], argap["error_nats"]))

    assert unlike(checks()) == []


def test_hybrids():
    def checks() -> Iterator[Check]:
        for label, plain, packaged, ours, _, share, memory, least, error in table(PERFORMANCE, "family, parameters"):
            row = of_model("hybrids", label.split(",")[0])
            argap, own = row["argap"], row["transformers"]
            yield from ((ours, argap["ms"]), (share, 100 * row["limit_ms"] / argap["ms"]), (least, argap["peak_gb"]))
            if plain != "fails":
                ratio = argap["error_nats"] / own["error_nats"]
                yield from ((plain, own["ms"]), (memory, own["peak_gb"]), (error, ratio))
            if packaged[0].isdigit():
                time, package = packaged.split(", ")
                yield time, row["with " + {"mamba-ssm": "mamba_ssm", "FLA": "fla"}[package]]["ms"]

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
        for (_, *cells), key in zip(table(DELTA_RULE, "heads of 256"), ("earlier_ms", "ms", "ratio"), strict=True):
            yield from ((cell, wide[length][key]) for cell, length in zip(cells, sorted(wide), strict=True))
        layers = "transforms", "products", "products, compiled", "kernels, compiled"
        steps = {(r["model"], r["width"], r["length"], r["layers"]): r["step_ms"] for r in rows_of("sweeps")}
        for label, *cells in table(PERFORMANCE, "runs", "transforms"):
            model = {"Hyena": "hyena", "BaseConv": "base_conv"}[label.split(",")[0]]
            width, length = (int(number) for number in re.findall(r"\d+", label))
            for cell, each in zip(cells, layers, strict=True):
                step = steps.get((model, width, length, each))
                yield (cell,) if step is None else (cell, step)

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


def test_answers_of_the_viewer():
    answers = next(row for row in rows_of("view") if row["amount"] == 10**8)["answers"]
    times = [time for name, time in answers.items() if name not in ("overview", "in the background")]
    rows = zip(table(PERFORMANCE, "", "CPU, s", "seconds"), times, strict=True)
    assert unlike(check for (_, *cells), (wall, cpu) in rows for check in zip(cells, (cpu, wall), strict=True)) == []


def test_time_and_memory_under_load():
    inputs = {"documents": "documents", "bytes": "one document", "packed": "scored", "scored": "tokens"}
    inputs |= {"tokens": "clients", "models": "models"}

    def checks() -> Iterator[Check]:
        for label, amount, cpu, memory in table(ROOT / "docs" / "reliability.md", "input", "amount"):
            key = "view" if "argap view" in label else inputs[label.split()[0]]
            n = int(amount.replace(",", ""))
            row = next(row for row in rows_of("scale") if (row["input"], row["amount"]) == (key, n))
            yield cpu, row["cpu_seconds"]
            yield (memory, row["bytes"] / 2**20) if "bytes" in row else (memory,)

    assert unlike(checks()) == []


def test_trainings_from_one_seed_on_a_cpu():
    """Equal with as many threads, whatever `deterministic` is, and not with others; the page has the largest gaps."""
    rows = rows_of("train-seeds")
    others = [row for row in rows if row["pair"][0].split(", ")[1] != row["pair"][1].split(", ")[1]]
    assert (len(rows), len(others)) == (16, 4)
    assert [row["equal"] for row in rows] == [row not in others for row in rows]
    weights = {row["row"]: f"{1e6 * row['largest_weight_difference']:.0f}" for row in others}
    loss = max(row["largest_loss_difference"] for row in others)
    said = (
        "after {} steps by up to {}·10⁻⁶ in attention's weights, {}·10⁻⁶ in gated DeltaNet's, and {:.0f}·10⁻⁷ nats"
    ).format(rows[0]["shape"].split()[-2], weights["seeds attention"], weights["seeds gated_delta_net"], 1e7 * loss)
    assert said in on_one_line(ROOT / "docs" / "training.md")
