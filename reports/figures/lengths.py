"""Tabulate and draw accuracy against length: models trained on short examples, tested on longer ones."""

from collections.abc import Hashable
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator, PercentFormatter

from argap.files.atomic import write_text
from argap.reports.figures.drawing import FAINT, grid, legend_above, looks, panel_rows, plain, save, style
from argap.reports.figures.hover import tell
from argap.reports.tables.formats import Table, csv_of_frame, markdown
from argap.reports.tables.numbers import DASH, percent
from argap.synthetics.sweeps.lengths import FAR, Outcome, accuracy_by_length, separations

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
    lengths = accuracy_by_length(out)
    if lengths.empty:
        return ""
    write_text(out / "lengths.csv", csv_of_frame(lengths))
    text = markdown(length_table(lengths))
    if outcomes := separations(lengths):
        text += f"\n{markdown(separation_table(outcomes))}"
    write_text(out / "lengths.md", text)
    save(length_figure(lengths), out, "lengths")
    return text


def length_table(lengths: pd.DataFrame) -> Table:
    """Return one row per task and model, and one for a guess; a column for each multiple of the length."""
    multiples = sorted(set(lengths["tested"] // lengths["trained"]))
    several = int(lengths["seeds"].max()) > 1
    rows = []
    for (task, trained), of_task in lengths.groupby(["task", "trained"], sort=False):
        head = str(task).replace("_", " ") + ("" if "length " in str(task) else f", N {trained}")
        for model, own in of_task.groupby("model", sort=False):
            at = {row["tested"] // row["trained"]: row for row in own.to_dict("records")}
            rows.append((head, str(model), *(_cell(at.get(multiple), several) for multiple in multiples)))
        chance = of_task["chance"].iloc[0]
        rows.append((head, "a guess", *([DASH if pd.isna(chance) else f"{100 * chance:.1f}"] * len(multiples))))
    notes = (NOTE, "In brackets the range over seeds.") if several else (NOTE,)
    return Table(("Task", "Model", *(f"{multiple} N" for multiple in multiples)), rows, notes, left=(0, 1))


def _cell(row: dict[Hashable, float] | None, several: bool) -> str:
    if row is None:
        return DASH
    mean, low, high = (f"{100 * row[key]:.1f}" for key in ("accuracy", "lowest", "highest"))
    return mean if not several or low == high else f"{mean} ({low}–{high})"


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
def length_figure(lengths: pd.DataFrame) -> Figure:
    """Draw each model's accuracy against the tested length, one panel per task; the dashed line is a guess."""
    tasks = list(dict.fromkeys(zip(lengths["task"], lengths["trained"], strict=True)))
    figure, panels = panel_rows(len(tasks), across=ACROSS, head=1.1, row=2.1, sharex=False)
    look = looks(list(dict.fromkeys(lengths["model"])))
    for (task, trained), axes in zip(tasks, panels, strict=True):
        of_task = lengths[(lengths["task"] == task) & (lengths["trained"] == trained)]
        at = sorted(set(of_task["tested"]))
        series: dict[str, list[tuple[float | None, str]]] = {}
        for model, each in look.items():
            own = of_task[of_task["model"] == model].sort_values(by="tested")
            axes.plot(own["tested"], own["accuracy"], label=plain(model), markersize=4.5, **each.curve)
            if int(own["seeds"].max() if len(own) else 0) > 1:
                axes.vlines(own["tested"], own["lowest"], own["highest"], color=each.colour, linewidth=0.8, alpha=0.6)
            values = dict(zip(own["tested"], own["accuracy"], strict=True))
            series[model] = [(values[n], percent(values[n])) if n in values else (None, "") for n in at]
        if not pd.isna(chance := of_task["chance"].iloc[0]):
            axes.axhline(chance, color=FAINT, linewidth=0.9, linestyle=(0, (4, 3)))
        tell(axes, at, [f"N {n}" for n in at], series)
        axes.set_title(plain(str(task).replace("_", " ")))
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
