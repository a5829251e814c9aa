"""Define the commands that the campaign runs, the files it alters for each, and the comparison of their results."""

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forked import Ended, run
from visits import ANSWERS, visit

from argap.files.atomic import read_json, write_json

VOLATILE = {
    "date", "seconds", "seconds per step", "tokens per second", "tokens_per_s", "wall_time_s", "git", "versions",
    "device", "checksum", "group",
}  # fmt: skip
"""Keys of JSON files that differ between two undisturbed runs, or that say how often a run was resumed: ``group`` of a
sweep's runs counts those trained side by side."""


def nothing(folder: Path) -> None:
    """Leave the material as it is."""


@dataclass(frozen=True)
class Case:
    """A command on a copy of the material; paths and patterns are given in one string, separated by spaces."""

    name: str
    command: str
    needs: str
    """Files and folders of the material that it reads or continues."""
    altered: str = ""
    """Patterns of files to alter, beside those of ``sealed``."""
    sealed: str = ""
    """Patterns of files with a checksum: altered, they are refused or made again, and never change the result."""
    outputs: str = ""
    """Patterns of files that hold the result, beside JSON on stdout."""
    prepare: Callable[[Path], None] = nothing
    run: Callable[[str, Path], Ended] = run

    def copy(self, material: Path, folder: Path) -> None:
        """Copy the files that the command needs, and prepare them."""
        for name in self.needs.split():
            source = material / name
            if source.is_dir():
                shutil.copytree(source, folder / name)
            else:
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, folder / name)
        self.prepare(folder)

    def files(self, folder: Path) -> list[Path]:
        """Return the files of a copy to alter."""
        patterns = f"{self.altered} {self.sealed}".split()
        return sorted({path for pattern in patterns for path in folder.glob(pattern) if path.is_file()})

    def result(self, folder: Path, stdout: str) -> dict[str, Any]:
        """Return the result without parts that differ between undisturbed runs."""
        found = {
            str(path.relative_to(folder)): contents(path, folder)
            for pattern in self.outputs.split()
            for path in sorted(folder.glob(pattern))
        }
        if "--json" in self.command:
            found["stdout"] = plain(json.loads(stdout.replace(str(folder), "")))
        return found


def contents(path: Path, folder: Path) -> Any:
    """Return the contents of a file for comparison.

    JSON without its volatile keys and without ``folder`` in its paths; a checksum of anything else.
    """
    if path.suffix == ".json":
        return plain(json.loads(path.read_text().replace(str(folder), "")))
    if path.suffix == ".jsonl":
        return [plain(json.loads(line)) for line in path.read_text().splitlines()]
    return hashlib.sha256(path.read_bytes()).hexdigest()


def plain(value: Any) -> Any:
    """Return a JSON value without its volatile keys, floats to ten digits: DuckDB's threads sum in any order."""
    if isinstance(value, float):
        return float(f"{value:.10g}")
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items() if key not in VOLATILE}
    return [plain(item) for item in value] if isinstance(value, list) else value


def unfinish(path: Path) -> None:
    """Turn the record of a run into that of an unfinished one."""
    write_json(path, read_json(path) | {"finished": None})


def cut_short(folder: Path) -> None:
    """Leave training as if killed after the last checkpoint."""
    unfinish(folder / "model" / "train.json")
    for name in ("model.safetensors", "config.json", "generation_config.json"):
        (folder / "model" / name).unlink(missing_ok=True)


def half_scored(folder: Path) -> None:
    """Leave a score as if killed before its end."""
    (folder / "out" / "gap.json").unlink()
    unfinish(folder / "out" / "model" / "run.json")


def half_swept(folder: Path) -> None:
    """Remove one run of a sweep."""
    table = folder / "sweep" / "runs.jsonl"
    table.write_text("".join(table.read_text().splitlines(keepends=True)[1:]))


def rows_alone(folder: Path) -> None:
    """Reduce a result to its committed form, without the log-probs and labels of its tokens."""
    for path in (folder / "out" / "model" / "tokens", folder / "out" / "ref" / "tokens", folder / "out" / "labels"):
        shutil.rmtree(path)


def as_series(folder: Path) -> None:
    """Lay out the checkpoints that ``series.yaml`` names by step."""
    for step in (3, 6):
        shutil.copytree(folder / "model", folder / f"model{step}")


SCORE = "--data text/val.jsonl --seq-len 32 --device cpu --index index --json"
RUNS = "out/*/checksums.json out/*/run.json out/*/tokens/*.parquet"
LABELS = "out/labels/*.json out/labels/*.parquet"
INDEX = "index/index.json index/*.parquet"
CHECKPOINT = "model/config.json model/model.safetensors model/tokenizer*.json"
SEALED_RESULT = f"{RUNS} {LABELS} out/gap.json out/cells.parquet out/examples.json"
SEGMENTS = "segments/*/checksums.json segments/*/run.json segments/*/*/*.parquet segments/labels/*"
RECORDED = "out/gap.json"
FRESH = "fresh/gap.json fresh/*/tokens/*.parquet"

CASES = [
    Case(
        "score",
        f"score model --ref ref {SCORE} --out fresh --slices slices.yaml",
        "model ref text index slices.yaml",
        altered=f"{CHECKPOINT} text/val.jsonl slices.yaml model/generation_config.json",
        sealed=INDEX,
        outputs=FRESH,
    ),
    Case(
        "score hf",
        f"score gpt2 --ref ref {SCORE} --out fresh --backend hf",
        "gpt2 ref text index",
        altered="gpt2/*.json gpt2/model.safetensors",
        outputs=FRESH,
    ),
    Case(
        "score again",
        f"score model --ref ref {SCORE} --out out",
        "model ref text index out",
        sealed=f"{RUNS} out/labels/labels.json",
        outputs=f"{RECORDED} out/*/tokens/*.parquet",
        prepare=half_scored,
    ),
    Case(
        "compare", "compare out/model --ref out/ref --out fresh --json", "out", sealed=f"{RUNS} {LABELS}", outputs=FRESH
    ),
    Case(
        "report", "report out", "out", sealed="out/gap.json out/examples.json out/cells.parquet", outputs="out/table.*"
    ),
    Case(
        "slice", "slice out --slices slices.yaml --json", "out slices.yaml", altered="slices.yaml", sealed=SEALED_RESULT
    ),
    Case("discover", "discover out --model model --min-share 0.05 --json", "out", sealed=SEALED_RESULT),
    Case(
        "discover cells",
        "discover out --model model --min-share 0.05 --json",
        "out",
        sealed="out/gap.json out/cells.parquet",
        prepare=rows_alone,
    ),
    Case("view", "view out --no-browser --port 0", "out", sealed=SEALED_RESULT, outputs=ANSWERS, run=visit),
    Case(
        "segments",
        "compare segments/other --ref segments/ref --out fresh --json",
        "segments",
        sealed=SEGMENTS,
        outputs=FRESH,
    ),
    Case(
        "segments slice",
        "slice segments --slices slices.yaml --json",
        "segments slices.yaml",
        altered="slices.yaml",
        sealed=f"{SEGMENTS} segments/gap.json",
    ),
    Case(
        "label", "label out --index index2 --json", "out index2", sealed=f"{SEALED_RESULT} index2/*", outputs=RECORDED
    ),
    Case(
        "index build",
        "index build text --tokenizer tokenizer --out fresh",
        "text tokenizer",
        altered="text/*.jsonl tokenizer/*",
        outputs="fresh/*",
    ),
    Case(
        "index merge",
        "index merge index index2 --out fresh",
        "index index2",
        sealed=f"{INDEX} index2/*",
        outputs="fresh/*",
    ),
    Case(
        "index count",
        "index count index 'w1 w2 w3 w1 w2' --tokenizer tokenizer --json",
        "index tokenizer",
        altered="tokenizer/*",
        sealed=INDEX,
    ),
    Case(
        "index from-counts",
        "index from-counts counts.csv --tokenizer tokenizer --out fresh",
        "counts.csv tokenizer",
        altered="counts.csv tokenizer/*",
        outputs="fresh/*",
    ),
    Case(
        "index from-arpa",
        "index from-arpa model.arpa --tokenizer tokenizer --tokens 900 --out fresh",
        "model.arpa tokenizer",
        altered="model.arpa",
        outputs="fresh/*",
    ),
    Case(
        "index of packed files",
        "index build packed --tokenizer tokenizer --out fresh",
        "packed tokenizer",
        altered="packed/*",
        outputs="fresh/*",
    ),
    Case("index info", "index info index --verify --json", "index", sealed=INDEX),
    Case(
        "index profile",
        "index profile index text/val.jsonl --tokenizer tokenizer --json",
        "index text tokenizer",
        altered="text/val.jsonl",
        sealed=INDEX,
    ),
    Case(
        "convert",
        "convert pickled fresh --tokenizer tokenizer",
        "pickled tokenizer",
        altered="pickled/* tokenizer/*",
        outputs="fresh/*",
    ),
    Case("convert published", "convert published fresh", "published", altered="published/*", outputs="fresh/*"),
    Case("references", "ref list --json", "home", altered="home/references.json"),
    Case(
        "score a reference",
        "score model --ref mine --device cpu --out fresh --json",
        "home model",
        altered="home/references.json",
        outputs=FRESH,
    ),
    Case(
        "import",
        "import logprobs.jsonl --tokenizer tokenizer --data text/val.jsonl --packing document",
        "logprobs.jsonl tokenizer text",
        altered="logprobs.jsonl tokenizer/* text/val.jsonl",
        outputs="runs/import/*/tokens/*.parquet",
    ),
    Case(
        "import a table",
        "import logprobs.parquet --tokenizer tokenizer --data text/val.jsonl --packing document",
        "logprobs.parquet tokenizer text",
        altered="logprobs.parquet",
        outputs="runs/import/*/tokens/*.parquet",
    ),
    Case(
        "train",
        "train train.yaml --out fresh --device cpu",
        "train.yaml text tokenizer",
        altered="train.yaml text/train.jsonl tokenizer/*",
        outputs="fresh/model.safetensors fresh/log.jsonl",
    ),
    Case(
        "train again",
        "train train.yaml --out model --device cpu",
        "train.yaml text tokenizer model",
        altered="model/log.jsonl",
        sealed="model/train.json model/checkpoints/*/* model/tokens/*/*",
        outputs="model/model.safetensors",
        prepare=cut_short,
    ),
    Case(
        "sweep",
        "synthetics sweep sweep.yaml --out fresh --device cpu",
        "sweep.yaml",
        altered="sweep.yaml",
        outputs="fresh/runs.jsonl",
    ),
    Case(
        "sweep again",
        "synthetics sweep sweep.yaml --out sweep --device cpu",
        "sweep.yaml sweep",
        sealed="sweep/sweep.json sweep/runs.jsonl",
        outputs="sweep/runs.jsonl",
        prepare=half_swept,
    ),
    Case("sweep plot", "synthetics plot sweep --json", "sweep", sealed="sweep/sweep.json sweep/runs.jsonl"),
    Case(
        "suite",
        "suite run suite.yaml --work work --out result --device cpu",
        "suite.yaml text tokenizer work",
        altered="suite.yaml work/tiny/*/train.json",
        sealed="work/tiny/runs/*/run.json work/tiny/runs/*/tokens/*.parquet",
        outputs="result/tiny/gap.json",
    ),
    Case(
        "suite table",
        "suite table suite.yaml --out result --json",
        "suite.yaml result",
        altered="suite.yaml result/tiny/*.json",
        sealed="result/tiny/gap.json result/tiny/members.json result/tiny/*.parquet",
        outputs="result/table.*",
    ),
    Case(
        "suite status",
        "suite status suite.yaml --work work --json",
        "suite.yaml work",
        altered="suite.yaml work/tiny/*/train.json work/tiny/*/log.jsonl work/tiny/runs/*/run.json",
    ),
    Case(
        "suite page",
        "report result/tiny",
        "result",
        altered="result/tiny/*.json",
        sealed="result/tiny/gap.json result/tiny/*.parquet",
        outputs="result/tiny/table.*",
    ),
    Case(
        "suite trajectory",
        "suite trajectory series.yaml --out fresh --device cpu --json",
        "series.yaml model ref text index",
        altered="series.yaml",
        outputs="fresh/trajectory.parquet",
        prepare=as_series,
    ),
    Case(
        "synthetics score",
        "synthetics score model --pairs 2 --examples 2 --length 32 --device cpu --out fresh --json",
        "model",
        altered=CHECKPOINT,
        outputs="fresh/scores.json",
    ),
    Case(
        "recall beside a gap",
        "recall model --ref ref --tasks swde --data questions.jsonl --out fresh --gap out --index index "
        "--paper paper.csv --json",
        "model ref questions.jsonl out index paper.csv",
        altered="paper.csv",
        sealed=f"out/gap.json {INDEX}",
        outputs="fresh/recall.json",
    ),
    Case(
        "recall",
        "recall model --ref ref --tasks swde --data questions.jsonl --out recall",
        "model ref questions.jsonl recall",
        altered="questions.jsonl",
        sealed="recall/*/*/run.json recall/*/*/samples/* recall/*/*/checksums.json",
        outputs="recall/recall.json",
    ),
    Case("models show", "models show model --json", "model", altered="model/config.json model/model.safetensors"),
]
