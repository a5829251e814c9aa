"""Measure time and peak memory of ten slices of four models' tokens: argap, pandas and Polars in separate processes.

    python benchmarks/slices.py [--tokens 1e6 1e7] [--work DIR] [--skip STEP…] [--rounds N] [--json FILE]

The tokens are random (`synthetic_result`). All read the same Parquet files and compute the same sums: for each slice
and model, tokens and log-probs by document; only argap then adds intervals over documents, which its time
includes. pandas and Polars are used as their users would: the needed columns in one table, masks, then a group-by of
documents; pandas has 10 M tokens in memory at a time, Polars reads lazily and streams. Without Polars its rows are
omitted. `compare`, `discover` and `report` are the other steps from runs to a page; pandas has no counterpart for them.
Ratios are to argap's time in the same run.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from measured import DEMO, apart, parser, peak_memory, save, timed

if TYPE_CHECKING:
    import numpy as np

MODELS = ("ref", "m1", "m2", "m3")
PORTION = 80
"""Parts of a run that pandas has in memory at once, 10 M tokens."""
CONDITIONS = {
    "rare": "repeated AND train_count < 10",
    "seen once": "train_count = 1",
    "far": "distance > 500",
    "often": "occurrences >= 4",
    "late": "pos > 1024",
    "code": "domain = 'code' AND repeated",
    "digits": "regexp_matches(piece, '[0-9]')",
    "capitals": "regexp_matches(piece, '^ ?[A-Z]')",
    "after a comma": "previous = ','",
    "hard": "nll.ref > 5",
}


def masks_of(column: Callable[[str], Any]) -> dict[str, Any]:
    """Return the conditions in pandas or Polars; ``column``: returns a series or an expression by its name."""
    return {
        "rare": column("repeated") & (column("train_count") < 10),
        "seen once": column("train_count") == 1,
        "far": column("distance") > 500,
        "often": column("occurrences") >= 4,
        "late": column("pos") > 1024,
        "code": (column("domain") == "code") & column("repeated"),
        "digits": column("piece").str.contains("[0-9]"),
        "capitals": column("piece").str.contains("^ ?[A-Z]"),
        "after a comma": column("previous") == ",",
        "hard": -column("ref") > 5,
    }


def argap_compare(folder: Path) -> None:
    from argap.results.compare import compare_runs

    compare_runs([str(folder / name) for name in MODELS[1:]], str(folder / MODELS[0]), folder / "out")


def argap_slices(folder: Path) -> dict[str, list[float]]:
    import argap

    table = argap.open_result(folder / "out").gap(CONDITIONS)
    parts = {name: table.loc[table["slice"] == name] for name in CONDITIONS}
    return {name: [float(part["n"].iloc[0]), *map(float, part["nll"])] for name, part in parts.items()}


def argap_discover(folder: Path) -> None:
    import argap

    argap.open_result(folder / "out").discover("m1")


def argap_report(folder: Path) -> None:
    from argap.reports.pages.write import write_report

    write_report(folder / "out")


def with_pandas(folder: Path) -> dict[str, list[float]]:
    import numpy as np
    from synthetic_result import WINDOWS

    parts = {name: sorted((folder / name / "tokens").iterdir()) for name in MODELS}
    pieces = np.array(_pieces(folder), dtype=object)
    sums = dict.fromkeys(CONDITIONS, np.zeros(1 + len(MODELS)))
    for start in range(0, len(parts[MODELS[0]]), PORTION):
        portion = {name: files[start : start + PORTION] for name, files in parts.items()}
        windows = range(start * WINDOWS, (start + PORTION) * WINDOWS)
        for name, found in pandas_portion(folder, portion, windows, pieces).items():
            sums[name] = sums[name] + found
    return {name: [float(found[0]), *(-found[1:] / found[0]).tolist()] for name, found in sums.items()}


def pandas_portion(
    folder: Path, runs: dict[str, list[Path]], windows: range, pieces: np.ndarray
) -> dict[str, np.ndarray]:
    """Compute tokens and sums of log p by model for each slice, in the parts of the runs that hold ``windows``."""
    import pandas as pd

    several = windows.start > 0 or len(runs[MODELS[0]]) == PORTION  # a filter costs time
    bounds = [("window", ">=", windows.start), ("window", "<", windows.stop)]
    frame = pd.read_parquet(folder / "labels" / "labels.parquet", filters=bounds if several else None)
    for name in MODELS:
        columns = ["logprob", *(["token"] if name == MODELS[0] else [])]
        run = pd.read_parquet(runs[name], columns=columns)  # pyright: ignore[reportArgumentType]
        frame[name] = run["logprob"].to_numpy()
        if name == MODELS[0]:
            frame["token"] = run["token"].to_numpy()
    document = pd.read_parquet(folder / "labels" / "windows.parquet")["document"].to_numpy()
    frame["document"] = document[frame["window"]]
    frame["piece"] = pd.Series(pieces[frame["token"]], dtype="str")
    frame["previous"] = frame["piece"].shift()
    frame = frame.loc[frame["pos"] > 0]
    found = {}
    for name, mask in masks_of(frame.__getitem__).items():
        part = frame.loc[mask, ["document", *MODELS]]
        sums = part.astype(dict.fromkeys(MODELS, "float64")).groupby("document").agg(["sum", "count"])
        totals = sums.sum()
        found[name] = totals[[(MODELS[0], "count"), *((model, "sum") for model in MODELS)]].to_numpy()
    return found


def with_polars(folder: Path) -> dict[str, list[float]]:
    import polars as pl

    frames = [pl.scan_parquet(folder / "labels" / "labels.parquet")]
    for name in MODELS:
        run = pl.scan_parquet(folder / name / "tokens" / "*.parquet")
        columns = [pl.col("logprob").alias(name), *([pl.col("token")] if name == MODELS[0] else [])]
        frames.append(run.select(columns))
    windows = pl.scan_parquet(folder / "labels" / "windows.parquet")
    pieces = pl.LazyFrame({"piece": _pieces(folder)}).with_row_index("token").cast({"token": pl.Int32})
    tokens = pl.concat(frames, how="horizontal").with_columns(before=pl.col("token").shift())
    tokens = tokens.filter(pl.col("pos") > 0).join(windows, on="window", how="left", maintain_order="left")
    tokens = tokens.join(pieces, on="token", how="left")
    tokens = tokens.join(pieces.rename({"token": "before", "piece": "previous"}), on="before", how="left")
    col = pl.col
    masks = masks_of(lambda name: col(name).cast(pl.String) if name == "domain" else col(name))
    wanted = [
        each
        for name, mask in masks.items()
        for each in (
            mask.sum().alias(f"{name} n"),
            *(col(m).cast(pl.Float64).filter(mask).sum().alias(f"{name} {m}") for m in MODELS),
        )
    ]
    sums = tokens.group_by("document").agg(wanted).collect(engine="streaming").sum().to_dicts()[0]
    return {
        name: [float(sums[f"{name} n"]), *(-sums[f"{name} {model}"] / sums[f"{name} n"] for model in MODELS)]
        for name in masks
    }


def _pieces(folder: Path) -> list[str]:
    from argap.text.tokenizer import load_tokenizer

    return load_tokenizer(folder / "labels").pieces


STEPS = {
    "compare": argap_compare,
    "slices": argap_slices,
    "discover": argap_discover,
    "report": argap_report,
    "slices, pandas": with_pandas,
    "slices, Polars": with_polars,
}


def run_step(name: str, folder: Path) -> dict[str, Any]:
    """Run one step in this process; return its seconds, peak memory and figures."""
    (seconds, _), found = timed(lambda: STEPS[name](folder))
    return {
        "seconds": round(seconds, 2),
        "cpu_seconds": round(time.process_time(), 2),
        "peak_gb": round(peak_memory() / 1e9, 3),
        "found": found,
    }


def measure(folder: Path, steps: list[str], rounds: int) -> dict[str, dict[str, float]]:
    """Measure each step in a separate process, slices in the best of ``rounds``; all must find the same figures."""
    results: dict[str, dict[str, float]] = {}
    figures: dict[str, dict[str, list[float]]] = {}
    for _ in range(rounds):
        for name in steps:
            got = apart(run_step, name, folder)
            figures[name] = got.pop("found")
            if name not in results or got["seconds"] < results[name]["seconds"]:
                results[name] = got
    for name, found in figures.items():
        if name.startswith("slices") and found != figures["slices"]:
            for each, values in figures["slices"].items():
                assert all(abs(a - b) <= 1e-6 * abs(a) for a, b in zip(values, found[each], strict=True)), (name, each)
    for name, got in results.items():
        if name.startswith("slices,"):
            got["times_argap"] = round(got["seconds"] / results["slices"]["seconds"], 2)
    return results


def main() -> None:
    flags = parser(__doc__)
    flags.add_argument("--tokens", nargs="+", default=["1e6", "1e7"])
    flags.add_argument("--work", type=Path, default=Path("runs/bench-slices"))
    flags.add_argument("--rounds", type=int, default=2)
    flags.add_argument("--skip", nargs="*", default=[], help="steps to leave out, say for their memory")
    options = flags.parse_args()
    from synthetic_result import write_result

    from argap.text.tokenizer import load_tokenizer

    skipped = {*options.skip, *(() if find_spec("polars") else ["slices, Polars"])}
    steps = [name for name in STEPS if name not in skipped]
    results = {}
    for tokens in options.tokens:
        folder = options.work / tokens
        if not (folder / "labels" / "labels.json").is_file():
            write_result(folder, int(float(tokens)), list(MODELS), load_tokenizer(DEMO / "tokenizer"))
        results[tokens] = measure(folder, steps, options.rounds)
        for name, got in results[tokens].items():
            print(tokens, name, got, flush=True)
    save(
        options.json,
        ("argap", "duckdb", "numpy", "pandas", "polars", "pyarrow"),
        models=len(MODELS),
        conditions=CONDITIONS,
        tokens=results,
    )


if __name__ == "__main__":
    main()
