"""Tabulate and draw accuracy against length: models trained on short examples, tested on longer ones."""

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from math import isnan
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator, PercentFormatter

from argap.files.atomic import write_text
from argap.reports.figures.drawing import FAINT, grid, legend_above, looks, panel_rows, plain, save, style
from argap.reports.figures.hover import tell
from argap.reports.tables.formats import Table, csv_of_frame, markdown
from argap.reports.tables.numbers import DASH, percent
from argap.synthetics.sweeps.lengths import FAR, LengthRow, Outcome, accuracy_by_length, separations

ACROSS = 3
NOTE = (
    "Test accuracy in percent at multiples of the length in training, at the largest sizes of each length; mean over "
    "seeds, each at the learning rate that was best on the validation set (which has the training's lengths)."
)
FAMILIES = {
    "attention": "attention only",
    "positive": "recurrences, eigenvalues of 0 to 1",
    "reflections": "delta rule, β up to 2",
}


def write_lengths(out: Path) -> str:
    """Write ``lengths.csv``, ``lengths.md`` and ``lengths.svg`` of a sweep; return the text, "" without such tests."""
    rows = accuracy_by_length(out)
    if not rows:
        return ""
    write_text(out / "lengths.csv", csv_of_frame(pd.DataFrame(rows)))
    text = markdown(length_table(rows))
    if outcomes := separations(rows):
        text += f"\n{markdown(separation_table(outcomes))}"
    write_text(out / "lengths.md", text)
    save(length_figure(rows), out, "lengths")
    return text


def length_table(lengths: Sequence[LengthRow]) -> Table:
    """Return one row per task and model, and one for a guess; a column for each multiple of the length."""
    multiples = sorted({row.tested // row.trained for row in lengths})
    several = any(row.seeds > 1 for row in lengths)
    rows = []
    for task, of_task in _grouped(lengths, lambda row: row.task):
        first = of_task[0]
        head = task.replace("_", " ") + ("" if "length " in task else f", N {first.trained}")
        for model, own in _grouped(of_task, lambda row: row.model):
            at = {row.tested // row.trained: row for row in own}
            rows.append((head, model, *(_cell(at.get(multiple)) for multiple in multiples)))
        chance = DASH if isnan(first.chance) else f"{100 * first.chance:.1f}"
        rows.append((head, "a guess", *[chance] * len(multiples)))
    notes = (NOTE, "In brackets the range over seeds.") if several else (NOTE,)
    return Table(("Task", "Model", *(f"{multiple} N" for multiple in multiples)), rows, notes, left=(0, 1))


def _grouped(rows: Iterable[LengthRow], key: Callable[[LengthRow], str]) -> list[tuple[str, list[LengthRow]]]:
    """Group rows that follow each other."""
    return [(name, list(group)) for name, group in groupby(rows, key)]


def _cell(row: LengthRow | None) -> str:
    if row is None:
        return DASH
    mean, low, high = (f"{100 * value:.1f}" for value in (row.accuracy, row.lowest, row.highest))
    return mean if low == high else f"{mean} ({low}–{high})"


def separation_table(outcomes: list[Outcome]) -> Table:
    """Return the table of `separations`."""
    rows = []
    for each in outcomes:
        expected = f"{'generalise' if each.expected.generalises else 'do not'} ({each.expected.source})"
        found = f"{each.model}: {percent(each.accuracy)}"
        appears = "yes" if each.appears else "no"
        rows.append((each.expected.task, FAMILIES[each.expected.family], expected, found, appears))
    note = (
        f"Known separations at {FAR} N: a model generalises if it is at least half-way from a guess to no error there. "
        "Best is the best model of its kind."
    )
    return Table(("Task", "Models", "Expected", "Best", "Appears"), rows, (note,), left=(0, 1, 2, 3, 4))


@style()
def length_figure(lengths: Sequence[LengthRow]) -> Figure:
    """Draw each model's accuracy against the tested length, one panel per task; the dashed line is a guess."""
    tasks = _grouped(lengths, lambda row: row.task)
    figure, panels = panel_rows(len(tasks), across=ACROSS, head=1.1, row=2.1, sharex=False)
    look = looks(list(dict.fromkeys(row.model for row in lengths)))
    for (task, of_task), axes in zip(tasks, panels, strict=True):
        at = sorted({row.tested for row in of_task})
        series: dict[str, list[tuple[float | None, str]]] = {}
        for model, each in look.items():
            own = {row.tested: row for row in of_task if row.model == model}
            right = [row.accuracy for row in own.values()]
            axes.plot(list(own), right, label=plain(model), markersize=4.5, **each.curve)
            ends = [row.lowest for row in own.values()], [row.highest for row in own.values()]
            axes.vlines(list(own), *ends, color=each.colour, linewidth=0.8, alpha=0.6)
            series[model] = [(own[n].accuracy, percent(own[n].accuracy)) if n in own else (None, "") for n in at]
        if not isnan(chance := of_task[0].chance):
            axes.axhline(chance, color=FAINT, linewidth=0.9, linestyle=(0, (4, 3)))
        tell(axes, at, [f"N {n}" for n in at], series)
        axes.set_title(plain(task.replace("_", " ")))
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_locator(FixedLocator(at))
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0f}")
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_ylim(0, 1.02)
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        grid(axes)
    panels[0].set_ylabel("Test accuracy")
    figure.supxlabel("Tokens of an example; the smallest number is that of the training", fontsize=9)
    legend_above(figure, panels[0].get_legend_handles_labels()[0], 4)
    return figure
