"""Show recall as tables and as a page: scores, breakdowns, flips, and examples with the gold marked."""

import csv
import re
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from markupsafe import Markup, escape

from argap.errors import ArgapError
from argap.files.atomic import write_text
from argap.files.regular import check_regular
from argap.recall.examples import COPY
from argap.recall.link import LEAST, Correlations, GapLink
from argap.recall.result import RecallResult, open_recall
from argap.recall.samples import Sample, read_samples, task_folder
from argap.recall.scores import Failures, Score
from argap.reports.pages.interactive import PageData
from argap.reports.pages.page import inline_svg, render_page
from argap.reports.tables.formats import Table, best_in
from argap.reports.tables.numbers import DASH, mean_nll, percent
from argap.reports.tables.provenance import for_others

if TYPE_CHECKING:
    from collections.abc import Mapping

    from argap.recall.lm_eval_tasks import Results
    from argap.reports.figures.result import Drawn

SHOWN = 6
"""Examples shown per task, starting with those on which the models differ."""
ALPHA, NAMED = 0.05, 4
"""Significance level of the test of differences; most differences to list by name."""
LARGEST_PUBLISHED = 2**20
"""Bytes of a table of published figures."""
MOST_PUBLISHED = 10_000
"""Cells of such a table, which the longest row makes as wide as all."""
AROUND = 220
"""Characters shown on either side of the gold and before the query."""


@dataclass(frozen=True)
class ShownExample:
    """An example on the page."""

    task: str
    sample: Sample
    """The reference's sample, or the first model's."""
    text: Markup
    answers: list[tuple[str, Sample]]
    """Every model with its own sample."""


def recall_table(result: RecallResult, *, survived: bool = False) -> Table:
    """Return one row per model and task; the notes give protocol, data and flips.

    The best of each task is in bold, apart from the reference. ``survived``: add the share of prompts that contain the
    gold.
    """
    titles = ["Model", "Task", "Contains", "± s.e.", "95% interval", "Whole word", "Chance", "Gold NLL", "Examples"]
    rows = []
    for row in result.rows:
        ends = DASH if row.ci95 is None else "–".join(map(_score, row.ci95))
        numbers = [_score(row.contains), _score(row.stderr), ends, _score(row.whole_word), _score(row.chance)]
        rows.append([row.model, row.task, *numbers, mean_nll(row.gold_nll), f"{row.n:,}"])
        rows[-1] += [percent(row.gold_survived)] * survived
    compared = [row if row.model != result.reference else None for row in result.rows]
    tasks = [row.task for row in result.rows]
    best = best_in(rows, {2: [row and row.contains for row in compared]}, highest=True, groups=tasks)
    best |= best_in(rows, {7: [row and row.gold_nll for row in compared]}, groups=tasks)
    titles += ["Gold in prompt"] * survived
    return Table(titles, tuple(map(tuple, rows)), tuple(_scope(result)), best, left=(0, 1))


def tasks_table(result: RecallResult) -> Table:
    """Return one row per model and one column per task: percent of answers with the gold, and its standard error."""
    scores = {(row.model, row.task): row for row in result.rows}
    tasks = [task.label for task in result.tasks]
    models = sorted(result.models, key=lambda model: model != result.reference)
    rows = [(model, *(_with_error(scores.get((model, task))) for task in tasks)) for model in models]
    compared = {key: None if key[0] == result.reference else row.contains for key, row in scores.items()}
    columns = {k: [compared.get((model, task)) for model in models] for k, task in enumerate(tasks, 1)}
    note = "Percent of the answers that contain the gold, and its standard error over examples."
    best = best_in(rows, columns, highest=True)
    return Table(("Model", *tasks), rows, (note,), best)


def failures_table(result: RecallResult) -> Table:
    """Return one row per model and task: wrong answers, counted by the first reason of `Failures` that applies."""
    rows = tuple((row.model, row.task, *_counts(row.failures)) for row in result.rows)
    note = (
        "Wrong answers, each under the first reason that applies. Left: the gold's first token was the model's most "
        "likely one, and the answer went on differently; copied: the answer is another part of the prompt; invented: "
        "it is not in the prompt."
    )
    titles = ("Model", "Task", "Gold not in prompt", "Left", "Empty", "Copied", "Invented")
    return Table(titles, rows, (note,), left=(0, 1))


def _counts(failures: Failures | None) -> list[str]:
    counts = (getattr(failures, name, None) for name in Failures.__struct_fields__)
    return [DASH if count is None else f"{count:,}" for count in counts]


def _with_error(row: Score | None) -> str:
    if row is None:
        return DASH
    return _score(row.contains) + ("" if row.stderr is None else f" ± {_score(row.stderr)}")


def upstream_table(by_model: "Mapping[str, Results]") -> Table:
    """Return lm-eval's values on its own tasks, one row per model, task and metric."""
    rows = []
    for model, results in by_model.items():
        for task, values in results["results"].items():
            version = results["versions"].get(task, DASH)
            for key, value in values.items():
                metric, sign, _ = key.partition(",")
                if sign and not metric.endswith("_stderr") and isinstance(value, float):
                    stderr = values.get(key.replace(metric, f"{metric}_stderr", 1))
                    spread = f"{stderr:.4f}" if isinstance(stderr, float) else DASH
                    rows.append((model, task, str(version), metric, f"{value:.4f}", spread))
    return Table(("Model", "Task", "Version", "Metric", "Value", "± s.e."), rows, left=range(4))


def golds_table(by_model: "Mapping[str, Results]") -> Table | None:
    """Return the golds of tasks in RULER's form by length and depth; None without any."""
    rows = [
        (
            model,
            row["task"],
            str(row["length"]),
            row["depth"],
            f"{row['n']:,}",
            percent(row["contained"]),
            mean_nll(row["nll"]),
            mean_nll(row.get("stderr")),
        )
        for model, results in by_model.items()
        for row in results.get("golds", {}).get("rows", [])
    ]
    if not rows:
        return None
    hashes = {
        f"{task} {sha[:12]}" for each in by_model.values() for task, sha in each.get("golds", {})["sha256"].items()
    }
    note = f"Nats per gold, under teacher forcing. SHA-256 of prompts and golds: {', '.join(sorted(hashes))}."
    titles = ("Model", "Task", "Length", "Depth", "Examples", "Contained", "Gold NLL", "± s.e.")
    return Table(titles, rows, (note,), left=(0, 1, 3))


def published(path: Path) -> Table:
    """Read a CSV of published results as a table.

    Raises `ArgapError` for a file that is missing, empty, too large or not CSV.
    """
    if not path.is_file():
        raise ArgapError(f"`paper` {path}: no such file; expected a CSV of published figures with a header")
    check_regular(path, LARGEST_PUBLISHED)
    try:
        with open(path, encoding="utf-8", newline="") as file:
            found = list(csv.reader(file))
    except (UnicodeDecodeError, csv.Error) as error:
        raise ArgapError(f"`paper` {path}: not readable as CSV in UTF-8 ({error})") from None
    width = max(map(len, found), default=0)
    if not width:
        raise ArgapError(f"`paper` {path}: empty; expected a CSV of published figures with a header")
    if (cells := len(found) * width) > MOST_PUBLISHED:
        raise ArgapError(f"`paper` {path}: {cells:,} cells; expected a table of at most {MOST_PUBLISHED:,}")
    head, *rows = ((*row, *[""] * (width - len(row))) for row in found)
    return Table(head, rows, title=f"Published ({path.name})")


def write_recall_page(folder: Path) -> Path:
    """Write ``recall.html`` and its figures beside ``recall.json``; return the path of the page.

    The figures are ``recall.svg`` and, if there are AR gaps, ``link.svg``.
    """
    from argap.reports.figures.recall import recall_figure
    from argap.reports.figures.result import written

    result = open_recall(folder)
    drawn = written({"recall": recall_figure(result)}, folder) | draw_link(folder, result)
    title, sentences = recall_headline(result)
    page = render_page(
        "recall.html.j2",
        PageData("", "", 0, (), {name: each.panels for name, each in drawn.items()}),
        {"score": _score, "nll": mean_nll},
        result=result,
        reference=result.reference,
        title=title,
        sentences=sentences,
        tasks=tasks_table(result),
        scores=recall_table(result, survived=True),
        failures=failures_table(result),
        figures={name: inline_svg(each.path, name) for name, each in drawn.items()},
        shown=_shown(folder, result),
    )
    path = folder / "recall.html"
    write_text(path, page)
    return path


def draw_link(folder: Path, result: RecallResult) -> "dict[str, Drawn]":
    """Write ``link.svg``, or remove it if there are no AR gaps; samples are not read."""
    from argap.reports.figures.recall import link_figure
    from argap.reports.figures.result import written

    (folder / "link.svg").unlink(missing_ok=True)
    figure = link_figure(result)
    return {} if figure is None else written({"link": figure}, folder)


def recall_headline(result: RecallResult) -> tuple[str, list[str]]:
    """Return the finding in one sentence, and the sentences that support it."""
    means = {model: fmean(row.contains for row in result.rows if row.model == model) for model in result.models}
    tasks = [task.label for task in result.tasks]
    over = tasks[0] if len(tasks) == 1 else f"the {len(tasks)} tasks, on average"
    reference = result.reference if result.reference in means else None
    others = [model for model in means if model not in (reference, COPY)] or [m for m in means if m != reference]
    others.sort(key=lambda model: -means[model])
    best = (others or list(means))[0]
    beside = reference or others[-1]
    most = f"the most of {len(others)} models: " if len(others) > 1 else ""
    title = f"{best} recalls {most}{_score(means[best])}% of {over}"
    if beside != best:
        title += f"; {beside} {_score(means[beside])}%"
    sentences = []
    if result.flips:
        clear = [f"{flip.model} on {flip.task}" for flip in result.flips if flip.p_value < ALPHA]
        words = (
            f"{len(clear)} of {len(result.flips)} differences from {result.reference} are resolved "
            "(McNemar's exact test, 5%)"
        )
        sentences.append(f"{words}: {', '.join(clear)}." if 0 < len(clear) <= NAMED else f"{words}.")
    chances = [row.chance for row in result.rows if row.chance is not None]
    if chances:
        sentences.append(
            f"By chance, an answer contains another example's gold in at most {percent(max(chances))} of cases."
        )
    return title, sentences


def _score(value: float | None) -> str:
    """Format a fraction in percent: ``16.7``."""
    return DASH if value is None else f"{100 * value:.1f}"


def _scope(result: RecallResult) -> list[str]:
    """Return the notes below every score: protocol, data, truncation, and the flips against the reference."""
    p = result.protocol
    cut = "nothing cut" if p.context is None else f"cut to {p.context} tokens with the answer ({p.truncate})"
    read = ", read twice" if p.twice else ""
    lines = [
        f"Protocol {p.version}: zero-shot, greedy, {p.new_tokens} tokens or to the end of the line, {cut}{read}; "
        "contains: the gold is in the answer; word: as whole words; chance: golds of other examples; gold NLL: nats a "
        "token of the gold after the prompt."
    ]
    for task in result.tasks:
        shares = {row.truncated for row in result.rows if row.task == task.label}
        truncated = "–".join(percent(share) for share in sorted(shares))
        revision = f" at {task.revision[:12]}" if task.revision else ""
        lines.append(
            f"{task.label}: {for_others(task.source)}{revision}, {task.examples} examples ({task.fingerprint[:12]}), "
            f"gold absent in {task.gold_absent}, prompts truncated {truncated}."
        )
    lines += [
        f"{flip.model} against {result.reference} on {flip.task}: {flip.gained} gained, "
        f"{flip.lost} lost (McNemar's exact p = {flip.p_value:.3g})."
        for flip in result.flips
    ]
    if result.link and max(len(link.points) for link in result.link) < LEAST:
        return [*lines, f"AR gaps are correlated with recall where at least {LEAST} models are compared."]
    return [*lines, *map(link_text, result.link)]


def link_text(link: GapLink) -> str:
    """Say how AR gaps correlate with recall gaps on a task, across models."""
    plain = Correlations(link.pearson, link.spearman, link.pearson_gold, link.spearman_gold)
    said = [f"AR gap across {len(link.points)} models against {_said(plain)}"]
    if there := sum(point.ar_gap_at_distances is not None for point in link.points):
        said.append(f"AR gap at the golds' distances across {there} models against {_said(link.at_distances)}")
    return f"{link.task}: {'. '.join(said)}."


def _said(of: Correlations) -> str:
    both = ((of.pearson, of.spearman, "recall gap"), (of.pearson_gold, of.spearman_gold, "gap of the gold NLL"))
    return "; ".join(
        f"{gap}: too few models, or gaps that do not vary"
        if pearson is None or spearman is None
        else f"{gap}: Pearson {pearson:.2f}, Spearman {spearman:.2f}".replace("-", "−")
        for pearson, spearman, gap in both
    )


def _shown(folder: Path, result: RecallResult) -> list[ShownExample]:
    """Pick a few examples of each task, with the answer of every model."""
    models = result.models
    shown = []
    for task in result.tasks:
        samples = {model: read_samples(task_folder(folder, model, task.label)) for model in models}
        first = samples[result.reference or models[0]]
        rows = range(len(first))
        differ = [k for k in rows if len({samples[model][k].contains for model in models}) > 1]
        for k in [*differ, *(k for k in rows if k not in differ)][:SHOWN]:
            answers = [(model, samples[model][k]) for model in models]
            shown.append(ShownExample(task.label, first[k], _marked(first[k]), answers))
    return shown


def _marked(sample: Sample) -> Markup:
    """Return the prompt with every gold and the query marked; text far from both is left out."""
    text = sample.prompt
    query = text.rfind("\n") + 1
    golds = [match.span() for match in re.finditer(re.escape(sample.gold), text[:query], re.IGNORECASE)]
    near = [(query - AROUND, len(text)), *((a - AROUND, b + AROUND) for a, b in golds[-3:])]
    pieces, at, left_out = [], 0, False
    for start, end, mark in sorted([*((a, b, "gold") for a, b in golds), (query, len(text), "query")]):
        for k in range(at, start):
            if any(a <= k < b for a, b in near):
                pieces.append(str(escape(text[k])))
                left_out = False
            elif not left_out:
                pieces.append(" … ")
                left_out = True
        pieces.append(f'<mark class="{mark}">{escape(text[start:end])}</mark>')
        at, left_out = end, False
    return Markup("".join(pieces))
