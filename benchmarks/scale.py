"""Time and peak memory of scoring at n, 2n and 4n: do they grow in proportion?

    PYTHONPATH=. python benchmarks/scale.py [--size 0.1] [--json benchmarks/results/scale.json]

Seven inputs, each in a separate process: ``documents``, JSON lines of one short line each (100,000 at 4n); ``one
document``, a single text (50 MB at 4n), indexed, tokenized and labelled against its own index; ``scored``, everything
that `argap score` does with packed tokens except running the model: windows, a run of stored log-probs, labels;
``tokens``, stored log-probs that `argap compare` joins, labels and breaks down; ``view``, the requests of the page of
`argap view` about a result of two models, also timed one by one; ``clients``, its server with twenty browsers at once,
each asking for other things (these four have 10⁸ scored tokens at 4n with ``--size 10``); ``models``, stored runs of
16,384 tokens in 4,096 documents that are compared (60 at 4n). No model runs: its cost grows with the number of equal
batches. ``--size`` scales all seven: ``--only documents --size 10`` has 10⁶ documents, and ``--only "one document"
--size 4`` 200 MB. A ratio of 4 from n to 4n is linear; docs/reliability.md says which memory grows with it. In the file
of ``--json`` a row is replaced when its input and amount are measured again; others stay.
"""

import json
import os
import statistics
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from measured import DEMO, Took, apart, parser, peak_memory, save, timed

from argap.files.atomic import read_json

LARGEST = {"documents": 10**5, "one document": 5 * 10**7, "models": 60} | dict.fromkeys(
    ("scored", "tokens", "view", "clients"), 10**7
)
"""Documents, bytes, scored tokens and models at 4n with ``--size 1``."""
FRACTIONS = (0.25, 0.5, 1.0)
Answers = dict[str, Took]
Run = Callable[[], tuple[int, Answers]]
"""What is measured: gives the scored tokens, and of several answers the seconds and CPU seconds of each."""
CLIENTS = 20


def main() -> None:
    flags = parser(__doc__)
    flags.add_argument("--size", type=float, default=1.0, help="factor of the largest inputs")
    flags.add_argument("--only", default="", help=", ".join(LARGEST))
    options = flags.parse_args()
    rows = []
    for name, largest in LARGEST.items():
        if options.only and name != options.only:
            continue
        for fraction in FRACTIONS:
            rows.append(apart(measure, name, int(largest * options.size * fraction)))
            show(rows[-1], next(row for row in rows if row["input"] == name))
    known = read_json(options.json)["rows"] if options.json and options.json.is_file() else []
    again = {(row["input"], row["amount"]) for row in rows}
    rows += [row for row in known if (row["input"], row["amount"]) not in again]
    order = list(LARGEST)
    rows.sort(key=lambda row: (order.index(row["input"]), row["amount"]))
    save(options.json, ("numpy", "pyarrow", "duckdb"), rows=rows)


def show(row: dict[str, Any], first: dict[str, Any]) -> None:
    ratio = row["amount"] / first["amount"]
    print(
        f"{row['input']:<13} {row['amount']:>12,}  {row['seconds']:>7.1f} s, {row['cpu_seconds']:>7.1f} s of CPU  "
        f"{row['bytes'] / 2**20:>7,.0f} MiB   {ratio:.0f} times the input: "
        f"{row['cpu_seconds'] / first['cpu_seconds']:.1f} times the CPU time, "
        f"{row['bytes'] / first['bytes']:.1f} times the memory",
        flush=True,
    )
    for name, (seconds, cpu) in row["answers"].items():
        print(f"{'':<13} {name:<24}  {seconds:>7.2f} s, {cpu:>7.2f} s of CPU", flush=True)


def measure(name: str, amount: int) -> dict[str, Any]:
    """Measure seconds, and bytes of memory beyond those of the imports.

    CPU seconds count all threads: compare these on a busy machine.
    """
    with tempfile.TemporaryDirectory() as folder:
        run = INPUTS[name](Path(folder), amount)
        before = peak_memory()
        (seconds, cpu), (scored, answers) = timed(run)
    grown = max(1, peak_memory() - before)
    row = {"input": name, "amount": amount, "scored": scored, "seconds": seconds, "cpu_seconds": cpu, "bytes": grown}
    row |= {"date": datetime.now(UTC).date().isoformat(), "load_average": os.getloadavg()[0]}
    return row | {"answers": answers}


def text(length: int) -> str:
    """Return ``length`` characters of a module of the standard library, repeated."""
    import argparse as module

    whole = Path(module.__file__).read_text(encoding="utf-8")
    return (whole * (length // len(whole) + 1))[:length]


def documents(folder: Path, amount: int) -> Run:
    """Index and label ``amount`` documents of one line each."""
    path = folder / "lines.jsonl"
    lines = [line for line in text(400_000).splitlines() if line.strip()]
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps({"text": lines[k % len(lines)]}) + "\n" for k in range(amount))
    return labelled(folder, path)


def one_document(folder: Path, amount: int) -> Run:
    """Index and label a single document of ``amount`` characters."""
    path = folder / "long.txt"
    path.write_text(text(amount), encoding="utf-8")
    return labelled(folder, path)


def labelled(folder: Path, path: Path) -> Run:
    """Count the text's bigrams, build the evaluation set, label it with the counts, and write the labels."""
    from argap.bigram_index.build import build_from_source
    from argap.bigram_index.sources.token_source import TokenSource
    from argap.corpus import open_corpus
    from argap.evaluation.windows import build_evaluation_set
    from argap.text.tokenizer import load_tokenizer
    from argap.tokens.labels import label_portions, write_labels

    tokenizer = load_tokenizer(DEMO / "tokenizer")

    def run() -> tuple[int, Answers]:
        index = build_from_source(TokenSource([open_corpus(str(path))], tokenizer), folder / "index")
        data = build_evaluation_set(open_corpus(str(path)), tokenizer, seq_len=1024)
        write_labels(label_portions(data, index), tokenizer, folder / "labels")
        return data.scored, {}

    return run


def scored(folder: Path, amount: int) -> Run:
    """Make windows, shards and labels of ``amount`` packed tokens in documents of 10,000."""
    import numpy as np

    from argap.corpus import open_corpus
    from argap.evaluation.windows import build_evaluation_set
    from argap.text.tokenizer import load_tokenizer
    from argap.tokens import runs
    from argap.tokens.labels import label_portions, write_labels

    tokenizer, rng = load_tokenizer(DEMO / "tokenizer"), np.random.default_rng(0)
    with (folder / "text.bin").open("wb") as file:
        for start in range(0, amount, 10_000):
            ids = (rng.zipf(1.3, min(10_000, amount - start)) % tokenizer.vocab_size).astype("<u2")
            ids[ids == tokenizer.eos] = 1
            ids[-1] = tokenizer.eos
            file.write(ids.tobytes())

    def run() -> tuple[int, Answers]:
        data = build_evaluation_set(open_corpus(str(folder / "text.bin")), tokenizer, seq_len=1024)
        for shard, windows in enumerate(runs.shards_of(data)):
            logprob = np.full(len(data.window_of(windows)), -1.0, dtype=np.float32)
            top1 = np.zeros(len(logprob), dtype=np.int32)
            runs.write_shard(runs.shard_path(folder / "run", shard), data, windows, logprob, top1)
        write_labels(label_portions(data, None), tokenizer, folder / "labels")
        return data.scored, {}

    return run


def tokens(folder: Path, amount: int) -> Run:
    """Compare two runs of ``amount`` tokens."""
    from synthetic_result import write_result

    from argap.results.compare import compare_runs
    from argap.text.tokenizer import load_tokenizer

    write_result(folder, amount, ["reference", "model"], load_tokenizer(DEMO / "tokenizer"))

    def run() -> tuple[int, Answers]:
        gap = compare_runs([str(folder / "model")], str(folder / "reference"), folder / "out", threshold=1250)
        return gap.evaluation.scored, {}

    return run


def models(folder: Path, amount: int) -> Run:
    """Compare ``amount`` runs of short documents, whose sums by document are kept for every slice and model."""
    import synthetic_result

    from argap.results.compare import compare_runs
    from argap.text.tokenizer import load_tokenizer

    synthetic_result.SEQ_LEN, synthetic_result.WINDOWS, synthetic_result.DOCUMENT = 4, 4096, 1
    names = ["reference", *(f"model {k}" for k in range(1, amount))]
    synthetic_result.write_result(folder, 4 * 4096, names, load_tokenizer(DEMO / "tokenizer"))

    def run() -> tuple[int, Answers]:
        others = [str(folder / name) for name in names[1:]]
        gap = compare_runs(others, str(folder / "reference"), folder / "out", threshold=1250)
        return gap.evaluation.scored, {}

    return run


def view(folder: Path, amount: int) -> Run:
    """Time the answers of `argap view` to opening the page, and to a user who moves τ, slices, reads and searches."""
    from synthetic_result import write_result

    from argap.result import open_result
    from argap.results.compare import compare_runs
    from argap.runtime.interrupt import Interrupt
    from argap.text.tokenizer import load_tokenizer
    from argap.view.answers import Answers as OfView
    from argap.view.answers import Setting

    write_result(folder, amount, ["reference", "model"], load_tokenizer(DEMO / "tokenizer"))
    compare_runs([str(folder / "model")], str(folder / "reference"), folder / "out")
    page, stop = OfView(open_result(folder / "out")), Interrupt()
    own, moved = Setting(1250, "reference"), Setting(100, "reference")
    middle = page.result.evaluation.windows // 2

    def slice_of(where: str) -> Callable[[], object]:
        return lambda: page.slices([("slice", where)], own, ["model"], stop)

    asked: dict[str, Callable[[], object]] = {
        "overview": lambda: page.overview,
        "in the background": lambda: page.warm(stop),
        "curve": lambda: page.thresholds("reference", intervals=False),
        "intervals of the curve": lambda: page.thresholds("reference", intervals=True),
        "another τ": lambda: page.gap(moved),
        "breakdown at another τ": lambda: page.breakdown("distance", moved, stop),
        "window": lambda: page.window(middle, ["model", "reference"]),
        "worst windows": lambda: page.worst_windows("model", "reference"),
        "first slice": slice_of("repeated AND train_count < 10"),
        "slice of counts": slice_of("train_count BETWEEN 3 AND 300"),
        "slice of texts": slice_of("regexp_matches(piece, '[0-9]')"),
        "largest losses": lambda: page.largest_losses("ar_hits", own, "model", stop),
        "search": lambda: page.search("not in the text", stop),
    }

    def run() -> tuple[int, Answers]:
        return page.result.evaluation.scored, {name: timed(answer)[0] for name, answer in asked.items()}

    return run


def clients(folder: Path, amount: int) -> Run:
    """Serve the page to `CLIENTS` browsers, each with its own τ, window, slices and texts, so that little is kept."""
    import uvicorn
    from synthetic_result import write_result

    from argap.result import open_result
    from argap.results.compare import compare_runs
    from argap.text.tokenizer import load_tokenizer
    from argap.view.answers import Answers as OfView
    from argap.view.app import view_app
    from argap.view.serve import listen

    write_result(folder, amount, ["reference", "model"], load_tokenizer(DEMO / "tokenizer"))
    compare_runs([str(folder / "model")], str(folder / "reference"), folder / "out")
    page, listening = OfView(open_result(folder / "out")), listen(0)
    port = listening.getsockname()[1]
    config = uvicorn.Config(view_app(page, token="token", port=port), log_level="critical", lifespan="off")
    server = uvicorn.Server(config)
    serving = threading.Thread(target=server.run, args=([listening],))
    windows, took = page.result.evaluation.windows, dict[str, list[float]]()

    def browse(k: int) -> None:
        asked: dict[str, dict[str, Any]] = {
            "overview": {},
            "thresholds": {"intervals": 1},
            "breakdown": {"by": "distance", "threshold": (1, 2, 5)[k % 3] * 10 ** (k // 3)},
            "window": {"window": k * windows // CLIENTS, "model": "model"},
            "slices": {"name": "a", "where": f"repeated AND train_count < {10 + k}", "model": "model"},
            "losses": {"where": f"repeated AND distance > {k}", "model": "model"},
            "search": {"text": f"not in the text {k}"},
        }
        for name, parameters in asked.items():
            address = f"http://127.0.0.1:{port}/api/{name}?{urlencode(parameters)}"
            request = urllib.request.Request(address, headers={"Cookie": f"argap-{port}=token"})
            begun = time.perf_counter()
            with urllib.request.urlopen(request) as answer:
                found = json.load(answer)
            took.setdefault(name, []).append(time.perf_counter() - begun)
            if "error" in found:
                raise RuntimeError(f"{name}: {found['error']}")

    def run() -> tuple[int, Answers]:
        serving.start()
        try:
            with ThreadPoolExecutor(CLIENTS) as pool:
                list(pool.map(browse, range(CLIENTS)))
        finally:
            server.should_exit = True
            serving.join()
        of = (("median", statistics.median), ("longest", max))
        answers = {f"{name}, {title}": Took(each(walls), 0.0) for name, walls in took.items() for title, each in of}
        return page.result.evaluation.scored, answers

    return run


INPUTS = {
    "documents": documents,
    "one document": one_document,
    "scored": scored,
    "tokens": tokens,
    "view": view,
    "clients": clients,
    "models": models,
}


if __name__ == "__main__":
    main()
