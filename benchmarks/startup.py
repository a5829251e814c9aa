"""Start-up: whole processes of short commands, as ratios to ``python -c "import torch"`` in the same run.

    PYTHONPATH=. python benchmarks/startup.py [--runs 5] [--device cpu] [--json benchmarks/results/startup.json]

Each command is a fresh process on a text of a few words, with the demo's checkpoints and tokenizer. Runs alternate
between the commands, after one of each that warms the file cache. A row has the median wall and CPU seconds (user and
system, with children), and the ratio of CPU seconds to those of importing torch: wall seconds also measure what else
the machine does. ``--imports`` lists the slowest imports of ``argap score`` instead.
"""

import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from measured import DEMO, Took, medians, parser, run, save

PACKAGES = ("torch", "transformers", "numpy", "pyarrow", "typer")
TEXT = "The trees grow where the river turns. The trees grow."


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--runs", type=int, default=5, help="runs of each command [5]")
    options.add_argument("--device", default="cpu", help="of argap score [cpu]")
    options.add_argument("--imports", action="store_true", help="list the slowest imports of argap score by package")
    arguments = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        commands = processes(Path(folder), arguments.device)
        if arguments.imports:
            print_imports(commands["argap score"])
            return
        times: dict[str, list[Took]] = {name: [] for name in commands}
        for number in range(arguments.runs + 1):
            for name, command in commands.items():
                shutil.rmtree(Path(folder) / "out", ignore_errors=True)
                took, _ = run(command)
                if number:
                    times[name].append(took)
    rows = []
    base = statistics.median(took.cpu for took in times["import torch"])
    for name, all_took in times.items():
        ratio = statistics.median(took.cpu for took in all_took) / base
        rows.append({"command": name, **medians(all_took), "ratio": round(ratio, 2)})
        print(rows[-1])
    save(arguments.json, PACKAGES, rows=rows)


def processes(folder: Path, device: str) -> dict[str, list[str]]:
    """Return the commands by name. Those of argap write to ``folder/out``."""
    text, out = folder / "tiny.txt", str(folder / "out")
    text.write_text(TEXT)
    python, argap = [sys.executable], [sys.executable, "-m", "argap"]
    checkpoints = [str(DEMO / "checkpoints" / name) for name in ("hybrid", "attention")]
    return {
        "import torch": [*python, "-c", "import torch"],
        "import transformers' models": [*python, "-c", "import transformers.modeling_utils"],
        "argap --help": [*argap, "--help"],
        "argap index build": [*argap, "index", "build", str(text), "--tokenizer", f"{DEMO}/tokenizer", "--out", out],
        "argap score": [
            *(*argap, "score", checkpoints[0], "--ref", checkpoints[1], "--data", str(text)),
            *("--device", device, "--out", out),
        ],
    }


def print_imports(command: list[str]) -> None:
    """Print milliseconds of the modules of each top-level package, without their own imports."""
    done = subprocess.run([command[0], "-X", "importtime", *command[1:]], capture_output=True, text=True)
    found: Counter[str] = Counter()
    for own, package in re.findall(r"^import time:\s+(\d+) \|\s+\d+ \|\s+([^.\s]+)", done.stderr, re.MULTILINE):
        found[package] += int(own)
    for package, microseconds in found.most_common(15):
        print(f"{package:24} {microseconds / 1000:8.0f} ms")


if __name__ == "__main__":
    main()
