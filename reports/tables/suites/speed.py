"""Write throughput and memory of training and generation, from ``argap models bench``, as JSON and a figure."""

from pathlib import Path

import torch
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from msgspec.structs import replace

from argap.files.atomic import write_json
from argap.files.regular import is_there
from argap.files.resumable import environment
from argap.models.speed import Speed, SpeedCase
from argap.records import Record, as_json, read_record
from argap.reports.figures.drawing import WIDTH, decades, grid, legend_above, looks, plain, style

TITLES = {"training": "Training", "generation": "Generation"}
MIB, GIB = 2**20, 2**30
FILE = "speed.json"


class SpeedResult(Record, frozen=True):
    """``speed.json``."""

    format: int
    hidden_size: int
    num_hidden_layers: int
    vocab_size: int
    device: str
    """Name of the GPU, or the CPU and its threads."""
    dtype: str
    compile: bool
    backend: str
    """The requested backend; each row says whose operators ran."""
    versions: dict[str, str]
    git: str | None
    rows: list[Speed]


def read_speed(case: SpeedCase, out: Path) -> list[Speed]:
    """Read the rows of ``speed.json`` in ``out`` that are comparable with ``case``; none without a file.

    Rows are comparable if they have its size and dtype and were measured by the same versions on the same device.
    Raises `FormatError` for a damaged file.
    """
    path = out / FILE
    if not is_there(path):
        return []
    found = read_record(path, SpeedResult, newest=1)
    return found.rows if replace(found, rows=[]) == _result(case, []) else []


def write_speed(rows: list[Speed], out: Path) -> SpeedResult:
    """Write ``speed.json`` to ``out``. All ``rows`` have the same size, device and dtype."""
    result = _result(rows[0], rows)
    write_json(out / FILE, as_json(result), seal=False)
    return result


def _result(case: SpeedCase, rows: list[Speed]) -> SpeedResult:
    """Return ``rows`` with the settings of ``case`` and the environment of this run."""
    threads = torch.get_num_threads()
    on_cpu = f"CPU, {threads} thread{'s' if threads > 1 else ''}"
    name = on_cpu if case.device == "cpu" else torch.cuda.get_device_name(case.device)
    size = (case.hidden_size, case.num_hidden_layers, case.vocab_size)
    return SpeedResult(1, *size, name, case.dtype, case.compile, case.backend, **environment(), rows=rows)


@style()
def speed(bench: SpeedResult) -> Figure:
    """Draw tokens per second (top) and peak memory (bottom), with one column each for training and generation.

    The x axis lists the shapes, length × batch, in the given order; with equal tokens per step this is figure 4 of
    arXiv 2406.06484. Cases that ran out of memory are omitted.
    """
    rows = bench.rows
    modes = [mode for mode in TITLES if any(row.mode == mode for row in rows)]
    names = list(dict.fromkeys(row.architecture for row in rows))
    look = looks(names)
    unit, size = ("GiB", GIB) if max((row.peak_bytes for row in rows), default=0) >= GIB else ("MiB", MIB)
    figure = Figure(figsize=(WIDTH, 4.8), layout="constrained")
    panels = figure.subplots(2, len(modes), sharex="col", squeeze=False, height_ratios=(3, 2))
    for mode, (above, below) in zip(modes, panels.T, strict=True):
        chosen = [row for row in rows if row.mode == mode]
        shapes = list(dict.fromkeys((row.length, row.batch) for row in chosen))
        for name in names:
            fits = [row for row in chosen if row.architecture == name and row.tokens_per_s is not None]
            x = [shapes.index((row.length, row.batch)) for row in fits]
            drawn = look[name].curve | {"markersize": 4.5, "linewidth": 1.6}
            above.plot(x, [row.tokens_per_s for row in fits], label=plain(name), **drawn)
            below.plot(x, [row.peak_bytes / size for row in fits], **drawn)
        above.set_title(TITLES[mode])
        if mode == "training":
            above.margins(y=0.1)
            above.set_ylim(bottom=0)
            above.yaxis.set_major_locator(MaxNLocator(5))
        else:  # throughput grows by orders of magnitude with the batch
            above.set_yscale("log")
        decades(above, "y", subs=(1, 2, 5))
        below.margins(y=0.15)
        below.set_ylim(bottom=0)
        below.yaxis.set_major_locator(MaxNLocator(4))
        below.set_xticks(range(len(shapes)), [f"{length:,}\n× {batch}" for length, batch in shapes])
        below.set_xlim(-0.4, len(shapes) - 0.6)
        for axes in (above, below):
            grid(axes)
    panels[0, 0].set_ylabel("Tokens per second")
    panels[1, 0].set_ylabel(f"Peak memory ({unit})")
    about = f"{plain(bench.device)}, {bench.dtype}, width {bench.hidden_size:,}, {bench.num_hidden_layers} layers"
    figure.supxlabel(f"Length × batch ({about})", fontsize=9)
    legend_above(figure, panels[0, 0].get_legend_handles_labels()[0])
    return figure
