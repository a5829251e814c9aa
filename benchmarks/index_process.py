"""Time whole processes from a token shard to its bigram counts on disk: ``argap index build`` against NumPy's sort.

    PYTHONPATH=. python benchmarks/index_process.py SHARD --tokenizer DIR [--rounds 3] [--json FILE]

SHARD is a ``.bin`` of uint16 with EOS between documents. NumPy has the whole shard in memory, drops the pairs with EOS,
sorts the others as uint32, and saves pairs and counts; it imports nothing else. argap has its default limit of 2 GB and
writes Parquet with checksums. Runs alternate; a row has the medians of wall and CPU seconds. Both must find the same
pairs and counts.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from measured import medians, parser, run, save

SORT = """
import sys
import numpy as np
tokens = np.fromfile(sys.argv[1], dtype=np.uint16)
eos = int(sys.argv[2])
pairs = tokens[:-1].astype(np.uint32)
pairs <<= 16
pairs |= tokens[1:]
pairs = pairs[(tokens[:-1] != eos) & (tokens[1:] != eos)]
pairs.sort()
starts = np.flatnonzero(np.append(True, pairs[1:] != pairs[:-1]))
np.savez(sys.argv[3], pairs=pairs[starts], counts=np.diff(starts, append=len(pairs)))
"""


def main() -> None:
    options = parser(__doc__)
    options.add_argument("shard", type=Path)
    options.add_argument("--tokenizer", required=True)
    options.add_argument("--rounds", type=int, default=3)
    arguments = options.parse_args()
    from argap.text.tokenizer import load_tokenizer

    eos = str(load_tokenizer(arguments.tokenizer).eos)
    shard = str(arguments.shard)
    with tempfile.TemporaryDirectory(dir=arguments.shard.parent) as folder:
        saved, index = f"{folder}/counts.npz", f"{folder}/index"
        build = ["-m", "argap", "index", "build", shard, "--tokenizer", arguments.tokenizer, "--out", index]
        commands = {
            "argap": [sys.executable, *build, "--overwrite"],
            "NumPy's sort": [sys.executable, "-c", SORT, shard, eos, saved],
        }
        times = {name: [] for name in commands}
        for _ in range(arguments.rounds):
            for name, command in commands.items():
                times[name].append(run(command)[0])
        distinct = compare(Path(index), Path(saved))
    rows: list[dict[str, Any]] = [{"what": name, **medians(all_took)} for name, all_took in times.items()]
    ratio = {key: round(rows[1][key] / rows[0][key], 2) for key in ("wall_s", "cpu_s")}
    report = {
        "tokens": arguments.shard.stat().st_size // 2,
        "distinct": distinct,
        "rows": rows,
        "sort_over_argap": ratio,
    }
    print(json.dumps(report))
    save(arguments.json, ("argap", "numpy", "numba", "pyarrow"), **report)


def compare(index: Path, saved: Path) -> int:
    """Check that both results are the same, and return the number of distinct bigrams."""
    import numpy as np
    import pyarrow.parquet as pq

    table, found = pq.read_table(sorted(index.glob("part-*.parquet"))), np.load(saved)
    pairs = table["first"].to_numpy().astype(np.uint32) << 16 | table["second"].to_numpy().astype(np.uint32)
    assert np.array_equal(pairs, found["pairs"])
    assert np.array_equal(table["count"].to_numpy(), found["counts"])
    return len(pairs)


if __name__ == "__main__":
    main()
