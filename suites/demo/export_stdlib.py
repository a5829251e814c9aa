"""Write ``stdlib:train``, the demo's training code from this Python's standard library, to one Parquet file.

    python suites/demo/export_stdlib.py corpora/stdlib-train.parquet

Machines with another version of Python then train on, and count, exactly this text.
"""

import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from argap.corpus import open_corpus
from argap.corpus.document import TextDocument
from argap.files.atomic import replacing


def main(out: Path) -> None:
    documents = [item for item in open_corpus("stdlib:train") if isinstance(item, TextDocument)]
    columns = {name: [getattr(d, name) for d in documents] for name in ("text", "domain", "source")}
    with replacing(out) as temporary:
        pq.write_table(pa.table(columns), temporary, compression="zstd", compression_level=19)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
