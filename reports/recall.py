"""Recall as a table and as a page: scores, breakdowns, flips, and examples with the gold marked."""

import csv
import re
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from markupsafe import Markup, escape

from argap.atomic import write_text
from argap.errors import ArgapError
from argap.recall.result import GapLink, RecallResult, open_recall
from argap.recall.samples import Sample, read_samples, task_folder
from argap.reports.numbers import DASH, percent
from argap.reports.page import template

SHOWN = 6
"""Examples shown per task, those on which the models differ first."""
AROUND = 220
"""Characters shown on either side of the gold and before the query."""


@dataclass(frozen=True)
class ShownExample:
    """An example on the page."""

    task: str
    sample: Sample
    """Of the reference, or of the first model."""
    text: Markup
    answers: list[tuple[str, Sample]]
    """Every model with its own sample."""


def recall_table(result: RecallResult) -> str:
    """The table for a terminal: one line per model and task, then protocol, data and flips."""
    width = max(len(row.model) for row in result.rows) + 2
    wide = max([len(row.task) for row in result.rows] + [4]) + 2
    lines = [
        f"{'model':<{width}}{'task':<{wide}}{'contains':>10}{'± s.e.':>8}{'95%':>15}{'word':>8}{'chance':>8}"
        f"{'gold NLL':>10}{'n':>6}"
    ]
    for row in result.rows:
        ends = DASH if row.ci95 is None else "–".join(f"{100 * end:.1f}" for end in row.ci95)
        lines.append(
            f"{row.model:<{width}}{row.task:<{wide}}{_score(row.contains):>10}{_score(row.stderr):>8}"
            f"{ends:>15}{_score(row.whole_word):>8}{_score(row.chance):>8}{nats(row.gold_nll):>10}{row.n:>6}"
        )
    return "\n".join([*lines, *_scope(result)])


def upstream_table(by_model: dict[str, dict[str, Any]]) -> str:
    """lm-eval's values on its own tasks, one line per model, task and metric."""
    lines = []
    for model, results in by_model.items():
        for task, values in results["results"].items():
            version = results["versions"].get(task, DASH)
            for key, value in values.items():
                metric, sign, _ = key.partition(",")
                if sign and not metric.endswith("_stderr") and isinstance(value, float):
                    stderr = values.get(key.replace(metric, f"{metric}_stderr", 1))
                    spread = f" ± {stderr:.4f}" if isinstance(stderr, float) else ""
                    lines.append(f"{model}  {task} (version {version})  {metric} {value:.4f}{spread}")
    return "\n".join(lines)


def published(path: Path) -> str:
    """A CSV of published figures in aligned columns. Raises `ArgapError` for a missing file."""
    if not path.is_file():
        raise ArgapError(f"`paper` {path}: no such file; expected a CSV of published figures with a header")
    with open(path, encoding="utf-8", newline="") as file:
        columns = list(zip_longest(*csv.reader(file), fillvalue=""))
    widths = [max(map(len, column)) for column in columns]
    rows = zip(*columns, strict=True)
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(["", f"Published ({path.name}):", *lines])


def write_recall_page(folder: Path) -> Path:
    """Write ``recall.html`` beside ``recall.json`` and return its path."""
    result = open_recall(folder)
    page = template("recall.html.j2", score=_score, percent=percent, nats=nats).render(
        result=result, scope=_scope(result), shown=_shown(folder, result)
    )
    path = folder / "recall.html"
    write_text(path, page)
    return path


def nats(value: float | None) -> str:
    return DASH if value is None else f"{value:.2f}"


def _score(value: float | None) -> str:
    """A fraction in percent: ``16.7``."""
    return DASH if value is None else f"{100 * value:.1f}"


def _scope(result: RecallResult) -> list[str]:
    """Printed below every score: protocol, data, truncation, and the flips against the reference."""
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
            f"{task.label}: {task.source}{revision}, {task.examples} examples ({task.fingerprint[:12]}), "
            f"gold absent in {task.gold_absent}, prompts truncated {truncated}."
        )
    lines += [
        f"{flip.model} against {result.reference} on {flip.task}: {flip.gained} gained, "
        f"{flip.lost} lost (McNemar's exact p = {flip.p_value:.3g})."
        for flip in result.flips
    ]
    return [*lines, *map(link_text, result.link)]


def link_text(link: GapLink) -> str:
    """How the models' AR gaps go with their gaps on a task."""
    both = ((link.pearson, link.spearman, "recall gap"), (link.pearson_gold, link.spearman_gold, "gap of the gold NLL"))
    parts = [
        f"{gap}: too few models, or gaps that do not vary"
        if pearson is None or spearman is None
        else f"{gap}: Pearson {pearson:.2f}, Spearman {spearman:.2f}".replace("-", "−")
        for pearson, spearman, gap in both
    ]
    return f"{link.task}, AR gap across {len(link.points)} models against {'; '.join(parts)}."


def _shown(folder: Path, result: RecallResult) -> list[ShownExample]:
    """A few examples of each task, with the answer of every model."""
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
    """The prompt with every gold and the query marked; parts far from both are left out."""
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
