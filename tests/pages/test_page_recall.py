"""Tables and sentences on recall on the pages of results are those of the committed files, rounded as shown."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from argap.recall.link import GapLink, LinkPoint, link_to_gap, read_ar_nlls
from argap.recall.result import open_recall
from tests.builders.page_tables import ROOT, Check, on_one_line, table, unlike


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
    theirs = link_to_gap([*attention, *result.rows], nlls, "attention-seed1")
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
