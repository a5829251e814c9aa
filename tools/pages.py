"""Rebuild what is computed from committed results: tables, figures and pages. ``python tools/pages.py [NAME…]``.

``make pages`` rebuilds everything; a test compares each with what is committed. Pages written by hand quote these
files, and ``tests/pages/claims.txt`` has the numbers in their sentences.
"""

import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))

SUITES = (
    "table1-mini",
    "table1-7m",
    "table1-50m",
    "table2-mini",
    "recall-along-training",
    "today-7m",
    "today-50m",
    "today-7m-length",
)
RECALL = {"recall": ("demo", "table1-7m", "today-7m"), "link": ("table1-7m", "table1-50m", "today-7m")}
"""The results with each figure of `argap.reports.figures.recall`."""


class Generated(NamedTuple):
    """Files that one function builds from others of the same folder, or from the source."""

    folder: str
    build: Callable[[Path], object]
    """Write the files to a folder that holds the others."""
    files: tuple[str, ...]
    """Patterns of their names below the folder."""

    def committed(self) -> list[str]:
        """Return the names of the files that git tracks; ``README.md`` is written by hand."""
        patterns = [f":(glob){pattern}" for pattern in self.files]
        command, place = ["git", "ls-files", "--", *patterns, ":!README.md"], ROOT / self.folder
        return subprocess.run(command, cwd=place, capture_output=True, text=True, check=True).stdout.split()


def late(module: str, function: str = "write") -> Callable[[Path], object]:
    """Return a function that imports what it calls."""
    return lambda folder: getattr(import_module(module), function)(folder)


def build_suite(folder: Path) -> None:
    """Rebuild gap.json, the tables, the figures and the reports of a suite's result, or its sweep of rates alone."""
    from argap.reports.pages.suite import write_suite
    from argap.reports.tables.suites.suite import write_rates
    from argap.suite.config import load_suite
    from argap.suite.gap import recompute

    suite = load_suite(ROOT / "suites" / f"{folder.name}.yaml", to_run=False)
    finished = [folder / size for size in suite.sizes if (folder / size / "gap.json").is_file()]
    for size in finished:
        recompute(suite, size)
    (write_suite if finished else write_rates)(suite, folder)


def build_sweep(folder: Path) -> None:
    """Rebuild a sweep's tables and figures, beside the AR gaps of `GAPS`."""
    from argap.reports.figures.mqar import write_sweep

    write_sweep(folder, [ROOT / "results" / gap for gap in GAPS.get(folder.name, ())])


def build_recall(folder: Path) -> None:
    """Rebuild the figures of recall benchmarks."""
    from argap.recall.result import open_recall
    from argap.reports.figures.recall import link_figure, recall_figure
    from argap.reports.figures.result import written

    drawn = {"recall": recall_figure, "link": link_figure}
    for figure, names in RECALL.items():
        for name in names:
            if (made := drawn[figure](open_recall(folder / name))) is not None:
                written({figure: made}, folder / name)


def build_probe(folder: Path) -> None:
    """Rebuild the tables and figures of probed models and their layers."""
    from argap.probe.records import read_layers, read_probe
    from argap.reports.figures.probe import write_layers, write_probe

    write_probe(read_probe(folder / "probe.json"), folder)
    write_layers(read_layers(folder / "layers.json"), folder)


def build_listed(folder: Path) -> None:
    """Describe every named architecture at the default size, one per line."""
    from dataclasses import asdict

    from argap.files.atomic import write_json
    from argap.models.describe import describe_architecture
    from argap.models.presets import ARCHITECTURES
    from argap.records.models import Backbone

    rows = [asdict(describe_architecture(name, Backbone())) for name in ARCHITECTURES]
    write_json(folder / "listed.json", {"models": rows}, lines="models")


GAPS = {"today-small": ["today-7m/7m"]}
"""Results whose AR gaps stand beside a sweep's accuracies."""
GENERATED: dict[str, Generated] = {
    **{name: Generated(f"results/{name}", build_suite, ("table.*", "rates.md", "*/figures/*.svg")) for name in SUITES},
    **{
        place.name: Generated(f"results/mqar/{place.name}", build_sweep, ("*.md", "*.csv", "*.svg"))
        for place in sorted(ROOT.glob("results/mqar/*/"))
    },
    "recall": Generated("results/recall", build_recall, ("*/*.svg",)),
    "probe": Generated("results/probe", build_probe, ("*.md", "*.svg")),
    "architecture": Generated("docs", late("architecture"), ("architecture.md", "images/architecture.svg")),
    "journeys": Generated("docs", late("journeys"), ("architecture.md",)),
    "readers": Generated("", late("readers"), ("SECURITY.md",)),
    "functions": Generated("docs", late("readers", "write_functions"), ("slices.md",)),
    "listed": Generated("argap/models", build_listed, ("listed.json",)),
    "families": Generated("docs", late("families"), ("hub.md",)),
}


def main() -> None:
    """Rebuild the named files, or all."""
    if unknown := set(sys.argv[1:]) - GENERATED.keys():
        sys.exit(f"{', '.join(sorted(unknown))}: unknown; known are {', '.join(GENERATED)}")
    for name in sys.argv[1:] or GENERATED:
        each = GENERATED[name]
        print(f"{name}: {each.folder}", flush=True)
        each.build(ROOT / each.folder)


if __name__ == "__main__":
    main()
