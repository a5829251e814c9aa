"""Figures on the pages on performance and on recall are those of the committed measurements, rounded as shown."""

import itertools
import json
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from argap.recall.link import GapLink, LinkPoint, link_to_gap, read_ar_nlls
from argap.recall.result import open_recall
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
        for (_, *cells), row in zip(table(DELTA_RULE, "RWKV-7"), rows_of("generalized_delta_rule"), strict=True):
            shared = row.get("shared_card", {})
            times = [row["wider_launches_ms"], row["ms"], *(shared.get(key) for key in ("ms", "fla_ms", "times_fla"))]
            yield from ((cell,) if time is None else (cell, time) for cell, time in zip(cells, times, strict=True))
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


def answers(page: Path, rows: dict[tuple[str, str], Any]) -> Iterator[Check]:
    """The cells of a table of recall; ``rows`` by model and the first three letters of the task."""
    for model, *cells in table(page, "", "SWDE form: contains"):
        for task, contains, nll in zip(("swd", "fda", "squ"), cells[::2], cells[1::2], strict=True):
            if row := rows.get((model, task)):
                values = [row.contains, *(row.ci95 or ())] if "(" in contains else [row.contains]
                yield contains, *(100 * value for value in values)
                yield nll, row.gold_nll
            else:
                assert (contains, nll) == ("—", "—")


def pearson(link: GapLink, *, seeds: bool = True) -> tuple[float, float, float]:
    """`correlated` on the points of a link, with or without attention's own seeds."""
    return correlated([point for point in link.points if seeds or not point.model.startswith("attention")])


def correlated(points: Sequence[LinkPoint]) -> tuple[float, float, float]:
    """Pearson's r of the gaps on the golds with the AR gaps at their distances, and its 95% interval by Fisher."""
    pairs = [(point.ar_gap_at_distances or 0.0, point.gold_gap_nll or 0.0) for point in points]
    r = float(np.corrcoef(np.array(pairs).T)[0, 1])
    z, half = np.arctanh(r), 1.959964 / (len(points) - 3) ** 0.5
    return r, float(np.tanh(z - half)), float(np.tanh(z + half))


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


def test_correlations_on_the_first_page():
    small, large = (open_recall(ROOT / "results" / "recall" / name).link for name in ("table1-7m", "table1-50m"))
    at_7_m, at_50_m = [pearson(link) for link in small], [pearson(link) for link in large]
    assert ({len(link.points) for link in small}, {len(link.points) for link in large}) == ({7}, {5})
    ends = [end for each in at_7_m for end in each], [end for each in at_50_m for end in each]
    said = (
        "Pearson's r is {:.2f} (95% interval {:.2f} to {:.2f}), {:.2f} ({:.2f} to {:.2f}) and {:.2f} ({:.2f} to "
        "{:.2f})".format(*ends[0]),
        "For five of 51 M it is {:.2f} ({:.2f} to {:.2f}), {:.2f} ({:.2f} to {:.2f}) and {:.2f} ({:.2f} to {:.2f}), "
        "and {:.2f} on the form of SWDE".format(*ends[1], pearson(large[0], seeds=False)[0]),
    )
    assert [each for each in said if each not in on_one_line(ROOT / "results" / "README.md").replace("−", "-")] == []
    fisher = "{:.2f} to {:.2f}, {:.2f} to {:.2f} and {:.2f} to {:.2f}"
    for place, links in (("recall/table1-7m", small), ("table1-50m", large)):
        text = on_one_line(ROOT / "results" / place / "README.md").replace("−", "-")
        ends = [end for link in links for end in pearson(link)[1:]]
        others = [pearson(link, seeds=False)[0] for link in links]
        assert fisher.format(*ends).replace("-0.00", "0.00") in text
        assert "{:.2f}, {:.2f} and {:.2f}".format(*others) in text


def test_recall_at_50_m():
    readme = ROOT / "results" / "table1-50m" / "README.md"
    result = open_recall(ROOT / "results" / "recall" / "table1-50m")
    rows = {(row.model, row.task[:3]): row for row in result.rows}
    assert len(table(readme, "", "SWDE form: contains")) == len(rows) / 3 == 6
    assert unlike(answers(readme, rows)) == []
    links = {link.task[:3]: link for link in result.link}
    points = {(point.model, task): point for task, link in links.items() for point in link.points}
    right = [round(row.contains * row.n) for (model, task), row in rows.items() if task == "fda" and model[:3] != "att"]
    text = on_one_line(readme)
    for said in (
        "is {:.2f}, {:.2f} and {:.2f} in the three forms".format(*(link.pearson_gold for link in links.values())),
        "and {:.2f}, {:.2f} and {:.2f} with".format(*(link.at_distances.pearson_gold for link in links.values())),
        "({:.2f} and {:.2f} nats at the distances of the SWDE form, {:.2f} and {:.2f} of the FDA form)".format(
            *(points[model, task].ar_gap_at_distances for task in ("swd", "fda") for model in ("based", "delta_net"))
        ),
        "({:.2f} and {:.2f}; {:.2f} and {:.2f} nats)".format(
            *(points[model, task].gold_gap_nll for task in ("swd", "fda") for model in ("based", "delta_net"))
        ),
        f"17 of 300 right, the other models {min(right)} to {max(right)}",
    ):
        assert said in text


def test_recall_of_trained_models():
    """The models asked all three sets are in one result, all of those asked one of two sets in another."""
    place = ROOT / "results" / "recall" / "table1-7m"
    readme, of_set = place / "README.md", {"swde": "table1-7m-swde", "fda": "table1-7m-fda", "squad": "table1-7m"}
    rows, links = {}, []
    for task, name in of_set.items():
        result = open_recall(place.with_name(name))
        rows |= {(row.model, task): row for row in result.rows if row.task.startswith(task)}
        links += [link for link in result.link if link.task.startswith(task)]

    def checks() -> Iterator[Check]:
        yield from answers(readme, {(model, task[:3]): row for (model, task), row in rows.items()})
        for label, hits, *cells in table(readme, "", "AR hits"):
            pairs = zip(links, cells[::2], cells[1::2], strict=True)
            if label.startswith("Pearson"):
                for link, _, cell in pairs:
                    yield cell, (link.at_distances if "at distances" in label else link).pearson_gold
                continue
            for link, at_distances, golds in pairs:
                point = next((point for point in link.points if point.model == label), None)
                if point is None:
                    assert (at_distances, golds) == ("—", "—")
                else:
                    yield hits, point.ar_gap_nll
                    yield from ((at_distances, point.ar_gap_at_distances), (golds, point.gold_gap_nll))
        for model, *cells in table(readme, "tokens from the gold to the answer"):
            groups = rows["attention-seed1" if model == "examples" else model, "squad"].by_distance[1:5]
            for cell, group in zip(cells, groups, strict=True):
                yield cell, group.n if model == "examples" else group.gold_nll

    def within_and_beyond(model: str, base: str) -> list[float]:
        """The percentage of a base's gap on the golds that a model closes: two groups up to 128 tokens, two beyond."""
        nll = {
            name: [group.gold_nll for group in rows[name, "squad"].by_distance[1:5]]
            for name in (model, base, "attention-seed1")
        }
        return [100 * (b - m) / (b - a) for m, b, a in zip(*nll.values(), strict=True)]

    retnet = within_and_beyond("retnet_window", "retnet-seed1")
    delta_net = within_and_beyond("delta_net_window", "base_conv-seed1")
    based = within_and_beyond("based-seed1", "base_conv-seed1")
    text = on_one_line(readme)
    for said in (
        "closes {:.0f} and {:.0f}% of RetNet's gap, beyond it {:.0f} and {:.0f}%".format(*retnet),
        "closes {:.0f} and {:.0f}% of BaseConv's gap within, {:.0f} and {:.0f}% beyond it".format(*delta_net),
        "in one layer of six, {:.0f} and {:.0f}% within and none beyond".format(*based),
    ):
        assert said in text
    assert max(based[2:]) < 0
    assert unlike(checks()) == []
    assert {task: len([model for model, of in rows if of == task]) for task in of_set} == {
        "swde": 10,
        "fda": 9,
        "squad": 8,
    }


def test_recall_of_todays_mixers():
    """Attention's rows are those of Table 1's page; with its first seed as reference, the points of both are pooled."""
    readme = ROOT / "results" / "recall" / "today-7m" / "README.md"
    result, earlier = open_recall(readme.parent), open_recall(readme.parent.with_name("table1-7m"))
    assert (result.protocol, result.tasks) == (earlier.protocol, earlier.tasks)
    attention = [row for row in earlier.rows if row.model.startswith("attention")]
    rows = {(row.model, row.task[:3]): row for row in [*attention, *result.rows]}
    gaps = {(flip.model, flip.task[:3]): flip for flip in result.flips}

    def checks() -> Iterator[Check]:
        yield from answers(readme, rows)
        for label, hits, *cells in table(readme, "", "AR hits"):
            for link, at_distances, golds in zip(result.link, cells[::2], cells[1::2], strict=True):
                if label.startswith("Pearson"):
                    yield golds, (link.at_distances if "at distances" in label else link).pearson_gold or 0.0
                    continue
                (point,) = (point for point in link.points if point.model == label)
                flip = gaps[label, link.task[:3]]
                assert point.gold_gap_nll == flip.gold_gap
                yield hits, point.ar_gap_nll
                yield at_distances, point.ar_gap_at_distances or 0.0
                yield golds, flip.gold_gap or 0.0, *(flip.gold_gap_ci95 or ())

    assert unlike(checks()) == []
    assert len(table(readme, "", "SWDE form: contains")) == len(result.models) - 1 + 2  # without copy, with attention
    assert len(table(readme, "", "AR hits")) == len(result.models) - 2 + 2  # without copy and the reference; Pearson's
    nlls = read_ar_nlls(ROOT / "results" / "today-7m" / "7m", "attention")
    # Table 1's attention trained at half the rate that today's mixers are compared at.
    halved = [
        msgspec.structs.replace(row, model=row.model.replace("attention", "attention_half_rate")) for row in attention
    ]
    theirs = link_to_gap([*halved, *result.rows], nlls, "attention_half_rate-seed1")
    pooled = [
        correlated([*old.points, *(each for each in new.points if each.gold_gap_nll and each.model in result.models)])
        for old, new in zip(earlier.link, theirs, strict=True)
    ]
    copied = [100 * row.contains for row in result.rows if row.model == "copy"]
    for said in (
        "answers {:.0f}, {:.0f} and {:.1f}%".format(*copied),
        "r is {:.2f} ({:.2f} to {:.2f}), {:.2f} ({:.2f} to {:.2f}) and {:.2f} ({:.2f} to {:.2f})".format(
            *(end for each in pooled for end in each)
        ),
    ):
        assert said in on_one_line(readme)
