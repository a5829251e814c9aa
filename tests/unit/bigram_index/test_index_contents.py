"""An index whose files are whole and hold what no index holds, and counts that were cut off, are refused."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from argap.bigram_index.sources.external_counts import index_from_arpa, index_from_counts
from argap.bigram_index.store import open_index
from argap.errors import FormatError
from argap.files.checksums import checksums_of
from argap.text.tokenizer import load_tokenizer

TOKENIZER = Path(__file__).parents[3] / "argap" / "demo" / "tokenizer"


@pytest.fixture
def index(tmp_path: Path) -> Path:
    rows = "".join(f"{k},{k + step},{k + step}\n" for k in range(1, 40) for step in (1, 2, 3))
    (tmp_path / "counts.csv").write_text(f"first,second,count\n{rows}")
    index_from_counts(tmp_path / "counts.csv", tmp_path / "index", load_tokenizer(str(TOKENIZER)))
    return tmp_path / "index"


def rewrite(index: Path, change: Any, **options: Any) -> None:
    """Write the part with ``change(first, second, count)`` made, and checksums that fit it."""
    (path,) = index.glob("part-*.parquet")
    table = pq.read_table(path)
    columns = [table[name].to_pylist() for name in table.column_names]
    change(*columns)
    types = (pa.int32(), pa.int32(), pa.int64())
    arrays = [pa.array(values, of_type) for values, of_type in zip(columns, types, strict=True)]
    pq.write_table(pa.Table.from_arrays(arrays, schema=table.schema), path, **options)
    manifest = json.loads((index / "index.json").read_text())
    del manifest["checksum"]
    sums = checksums_of(path)
    manifest["parts"][0] |= {"bytes": sums.bytes, "crc32": list(sums.crc32), "rows": len(columns[0])}
    manifest["distinct"] = len(columns[0])
    (index / "index.json").write_text(json.dumps(manifest))


def put(column: int, value: Any, at: int = 50) -> Any:
    return lambda *columns: columns[column].__setitem__(at, value)


def swap(column: int, one: int, other: int) -> Any:
    def swapped(*columns: list[Any]) -> None:
        values = columns[column]
        values[one], values[other] = values[other], values[one]

    return swapped


def repeat(*columns: list[Any]) -> None:
    for values in columns:
        values.insert(50, values[50])


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (put(0, 10_000), "tokens outside"),
        (put(0, -4), "tokens outside"),
        (put(1, 10_000), "tokens outside"),
        (put(1, 2**31 - 1), "tokens outside"),
        (put(1, -1), "tokens outside"),
        (put(0, None), "null"),
        (put(1, None), "null"),
        (put(2, None), "null"),
        (put(2, 0), "a count of 0"),
        (put(2, -5), "a count of -5"),
        (put(2, 2**62), "more than"),
        (swap(0, 10, 80), "out of order"),
        (swap(1, 60, 61), "out of order"),
        (repeat, "out of order"),
    ],
)
def test_rows_that_no_index_holds_are_refused(index: Path, change: Any, found: str) -> None:
    rewrite(index, change)
    with pytest.raises(FormatError, match=found):
        open_index(index).count([3, 4], [4, 5])


def test_a_part_has_the_rows_that_are_recorded(index: Path) -> None:
    rewrite(index, lambda *columns: [values.pop() for values in columns])
    manifest = json.loads((index / "index.json").read_text())
    manifest["parts"][0]["rows"] = manifest["distinct"] = 117
    (index / "index.json").write_text(json.dumps(manifest))
    for read in (lambda: open_index(index).count([3], [4]), lambda: open_index(index).verify()):
        with pytest.raises(FormatError, match=r"part-00000\.parquet: 116 rows, where index\.json records 117; copy"):
            read()


def test_a_column_of_another_type_is_named(index: Path) -> None:
    (path,) = index.glob("part-*.parquet")
    pq.write_table(pq.read_table(path).cast(pa.schema(dict.fromkeys(("first", "second", "count"), pa.int64()))), path)
    manifest = json.loads((index / "index.json").read_text())
    del manifest["checksum"]
    sums = checksums_of(path)
    manifest["parts"][0] |= {"bytes": sums.bytes, "crc32": list(sums.crc32)}
    (index / "index.json").write_text(json.dumps(manifest))
    with pytest.raises(FormatError, match="first int64, second int64, count int64; expected first int32, second int32"):
        open_index(index).verify()


def test_an_index_without_statistics_is_read(index: Path) -> None:
    rewrite(index, lambda *_: None, write_statistics=False)
    assert open_index(index).count([3, 4, 4], [4, 7, 8]).tolist() == [4, 7, 0]


def test_more_exposures_than_labels_hold_are_refused(index: Path) -> None:
    opened = open_index(index)
    opened.passes = 1e19
    with pytest.raises(FormatError, match="exposures"):
        opened.exposures([3], [4])


def test_an_arpa_file_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    head = (
        "\\data\\\nngram 1=3\nngram 2=2\n\n\\1-grams:\n-1\t1\t-0.3\n-1\t2\t-0.3\n-1\t3\t-0.3\n\n\\2-grams:\n-0.5\t1 2\n"
    )
    tokenizer = load_tokenizer(str(TOKENIZER))
    (tmp_path / "whole.arpa").write_text(f"{head}-0.5\t2 3\n\n\\end\\\n")
    (tmp_path / "cut.arpa").write_text(head)
    assert index_from_arpa(tmp_path / "whole.arpa", tmp_path / "whole", tokenizer, tokens=1000).distinct == 2
    with pytest.raises(FormatError, match="1 2-grams; its head says 2"):
        index_from_arpa(tmp_path / "cut.arpa", tmp_path / "cut", tokenizer, tokens=1000)
