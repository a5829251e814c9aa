"""Tables and files that no command of argap makes: one line, and nothing is lost."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from argap.checkpoints.find import read_config
from argap.errors import ArgapError, FormatError
from argap.evaluation.documents import TOKEN_SPANS, TOKENS
from argap.evaluation.documents import read_documents as read_kept
from argap.files.checksums import write_checksums
from argap.files.configs import parse_numbers
from argap.files.parquet import check_columns, check_whole, count_rows, read_frame, read_parquet, write_parquet
from argap.models.speed import _shape
from argap.recall import samples
from argap.recall.examples import NEEDLES, _lengths
from argap.recall.link import read_ar_nlls
from argap.recall.samples import SCHEMA
from argap.records import read_gap
from argap.records.gap import save_gap
from argap.result import open_result
from argap.results.by_source import read_by_source
from argap.scoring.config import parse_batch_size
from argap.slices.cells import CellFile, keys_of, read_cells, sum_cells
from argap.suite.config import load_suite
from argap.suite.gap import build_curve, read_sums, recompute
from argap.suite.result import read_size
from argap.suite.tables import read_suite_table
from argap.text.tokenizer import load_tokenizer
from argap.tokens.labels import read_document_of_window

ROOT = Path(__file__).parents[2]
RESULT = ROOT / "results" / "today-7m" / "7m"


@pytest.mark.parametrize(
    ("name", "value"),
    [("top1", [1]), ("logprob", "x"), ("induction", 1), ("train_count", 1.5), ("token", None), ("logprob/a", "x")],
)
def test_a_column_of_another_type_is_refused(tmp_path: Path, name: str, value: Any) -> None:
    table = pa.table({name: pa.array([value])})
    with pytest.raises(FormatError, match=f"{name} is "):
        check_columns(tmp_path / "x.parquet", table.schema, [name])
    pq.write_table(table, tmp_path / "x.parquet")
    with pytest.raises(FormatError, match=f"{name} is "):
        read_frame(tmp_path / "x.parquet")


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("document", "0", "document is string; expected integers"),
        ("document", np.uint64(0), r"document is uint64; expected integers below 2\^63"),
        ("n", None, "n is null; expected integers"),
        ("position", 0.5, "position is double; expected integers"),
        ("distance_low", "1", "distance_low is string; expected integers"),
        ("repeated", 1, "repeated is int64; expected booleans"),
        ("content", 1, "content is int64; expected booleans"),
        ("domain", ["a"], "domain is list<.*; expected strings"),
        ("lr", "1", "lr is string; expected numbers"),
        ("logprob/a", True, "logprob/a is bool; expected numbers"),
    ],
)
def test_columns_of_sums_and_logs_have_a_type_and_no_nulls(tmp_path: Path, name: str, value: Any, said: str) -> None:
    pq.write_table(pa.table({name: [value]}), tmp_path / "x.parquet")
    with pytest.raises(FormatError, match=said):
        read_frame(tmp_path / "x.parquet")
    pq.write_table(pa.table({"n": [1, None]}), tmp_path / "x.parquet")
    with pytest.raises(FormatError, match="n is null in 1 rows"):
        read_frame(tmp_path / "x.parquet")
    pq.write_table(pa.table({"content": [True], "repeated": [0.5]}), tmp_path / "x.parquet")
    with pytest.raises(FormatError, match="repeated is double; expected integers"):
        read_frame(tmp_path / "x.parquet")


CELLS = {"document": [0], "domain": ["a"], "repeated": [True], "distance": [1], "n": [1], "logprob/a": [-1.0]}


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({name: pa.array(values).slice(1) for name, values in CELLS.items()}, "no rows"),
        (CELLS | {"n": [True]}, "n is bool; expected integers"),
        (CELLS | {"document": pa.array([0], pa.uint64())}, "document is uint64; expected integers below"),
        (CELLS | {"logprob/a": [None]}, "logprob/a is null"),
        (CELLS | {"logprob/a": [1.0]}, "logprob/a is 1.0 in 1 rows; expected at most 0"),
        (CELLS | {"logprob/a": [float("nan")]}, "logprob/a is nan in 1 rows"),
        (CELLS | {"document": [-1]}, "document is -1 in a row"),
        ({name: values for name, values in CELLS.items() if name != "n"}, "no column n"),
    ],
)
def test_cells_are_refused_alike_by_each_reader(tmp_path: Path, columns: dict[str, Any], said: str) -> None:
    path = tmp_path / "cells.parquet"
    pq.write_table(pa.table(columns), path)
    readers = (read_cells, lambda path: sum_cells(path, ["document"], ["a"]))
    for read in readers:
        with pytest.raises(FormatError, match=rf"cells\.parquet: ({said})"):
            read(path)


def test_a_cell_without_its_sum_is_refused_where_cells_are_added(tmp_path: Path) -> None:
    both = {name: values * 2 for name, values in CELLS.items()} | {"logprob/a": [-1.0, None]}
    pq.write_table(pa.table(both), tmp_path / "cells.parquet")
    with pytest.raises(FormatError, match="logprob/a is null in 1 rows"):
        sum_cells(tmp_path / "cells.parquet", ["document"], ["a"])


@pytest.mark.parametrize("what", ["rows twice", "another sum"])
def test_cells_are_those_of_their_result(token_result: Path, tmp_path: Path, what: str) -> None:
    out = Path(shutil.copytree(token_result, tmp_path / "out"))
    path, said = out / "cells.parquet", r"m2 has NLL \d\.\d+, where gap\.json has"
    table = pq.read_table(path)
    if what == "rows twice":
        table, said = pa.concat_tables([table, table.slice(0, 3)]), r"[\d,]+ tokens, where gap\.json has"
    else:
        at = table.schema.get_field_index("logprob/m2")
        table = table.set_column(at, "logprob/m2", pa.array([sum_ - 1 for sum_ in table["logprob/m2"].to_pylist()]))
    pq.write_table(table, path)
    write_checksums(out, [path])
    reads = [
        lambda: open_result(out).cells,
        lambda: read_by_source(out, read_gap(out)),
        lambda: read_ar_nlls(out, "ref"),
    ]
    for read in reads:
        with pytest.raises(FormatError, match=rf"cells\.parquet: {said}"):
            read()


@pytest.mark.parametrize("name", ["cells.parquet", "positions.parquet", "prevalence.parquet"])
def test_a_bin_that_the_result_does_not_have_is_refused(tmp_path: Path, name: str) -> None:
    for each in RESULT.iterdir():
        if each.is_file():
            (tmp_path / each.name).symlink_to(each)
    column = "distance" if name == "cells.parquet" else "position"
    table = pq.read_table(RESULT / name)
    beyond = pa.array([99, *table[column].to_pylist()[1:]], pa.int16())
    (tmp_path / name).unlink()
    pq.write_table(table.set_column(table.column_names.index(column), column, beyond), tmp_path / name)
    (tmp_path / "checksums.json").unlink()
    reads = {
        "cells.parquet": read_size,
        "positions.parquet": lambda folder: read_sums(read_size(folder)),
        "prevalence.parquet": lambda folder: read_size(folder).prevalence(),
    }
    with pytest.raises(FormatError, match=rf"{name}: {column} is 99; the last bin of gap.json is "):
        reads[name](tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        *("mqar.json", "rates.json", "examples.json", "prevalence.parquet", "logs.parquet", "curve.parquet"),
        *("distance_sums.parquet", "documents.parquet"),
    ],
)
def test_a_result_is_read_whole_before_it_is_computed_again(tmp_path: Path, name: str) -> None:
    for each in RESULT.iterdir():
        if each.is_file():
            (tmp_path / each.name).symlink_to(each)
    (tmp_path / "checksums.json").unlink()
    (tmp_path / "gap.json").unlink()
    gap = read_gap(RESULT)
    assert gap.index is not None
    save_gap(
        tmp_path / "gap.json", msgspec.structs.replace(gap, index=msgspec.structs.replace(gap.index, folder="old"))
    )
    before = (tmp_path / "gap.json").read_bytes()
    (tmp_path / name).unlink()
    if name == "documents.parquet":  # which lacks one
        pq.write_table(pq.read_table(RESULT / name).slice(1), tmp_path / name)
    else:
        (tmp_path / name).mkdir()
    with pytest.raises(ArgapError, match=rf"{name}: "):
        recompute(load_suite(ROOT / "suites" / "today-7m.yaml", to_run=False), tmp_path)
    assert (tmp_path / "gap.json").read_bytes() == before


def test_cells_of_a_result_have_its_models_and_counts(tmp_path: Path) -> None:
    path, gap = tmp_path / "cells.parquet", read_gap(RESULT)
    pq.write_table(pa.table(CELLS), path)
    for read in (read_cells, keys_of):
        with pytest.raises(FormatError, match=r"no column frequency; expected .*logprob/attention"):
            read(path, gap)


def test_the_last_bin_has_no_upper_bound(tmp_path: Path) -> None:
    pq.write_table(pa.table({"frequency_low": [1], "frequency_high": pa.array([None], pa.int64())}), tmp_path / "x")
    assert len(read_frame(tmp_path / "x")) == 1


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("distances.parquet", {"n": 0}, "n is 0 in a row"),
        ("distances.parquet", {"distance": 10**6}, "a distance that is not from 1 to"),
        ("distances.parquet", {"n": 10**6}, "its hits are not those of distance_sums"),
        ("distances.parquet", None, "its hits are not those of distance_sums"),
        ("distance_sums.parquet", {"log_distance": None}, "log_distance is null"),
        ("curve.parquet", None, "no rows"),
        ("logs.parquet", {"tokens": 0}, "tokens is 0 in a row"),
        ("prevalence.parquet", None, "no rows"),
    ],
)
def test_a_table_of_a_suite_is_refused(tmp_path: Path, name: str, change: dict[str, Any] | None, said: str) -> None:
    for file in RESULT.glob("*.*"):
        if file.name != "checksums.json":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    table = pq.read_table(tmp_path / name)
    for column, value in (change or {}).items():
        place = table.column_names.index(column)
        values = pa.array([value, *table[column].to_pylist()[1:]], table.schema.field(column).type)
        table = table.set_column(place, column, values)
    pq.write_table(table if change else table.slice(0, 0), tmp_path / name)
    result = read_size(tmp_path)
    with pytest.raises(FormatError, match=said):
        _ = result.distances(), result.curve, result.log("attention"), result.prevalence()


def test_a_text_without_hits_has_no_distances(tmp_path: Path) -> None:
    """As pandas writes them: a column of texts without rows has no type."""
    write_parquet(
        tmp_path / "distances.parquet",
        pd.DataFrame({"domain": [], "distance": [], "n": []}).astype(
            {"domain": object, "distance": "int32", "n": "int64"}
        ),
    )
    assert read_suite_table(tmp_path, "distances.parquet").empty


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"row": None}, "Expected `int`, got `null`"),
        ({"gold": None}, "Expected `str`, got `null`"),
        ({"gold_logprobs": None}, "gold_logprobs is null in a row"),
        ({"gold_ar_hit": [True]}, "gold_ar_hit is not null in a row of a run without it"),
    ],
)
def test_broken_answers_are_refused(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    row = {
        name: {pa.string(): "stop", pa.bool_(): True, pa.int32(): 0}.get(of_type, [0])
        for name, of_type in zip(SCHEMA.names, SCHEMA.types, strict=True)
    } | {"gold_repeated": [True], "gold_ar_hit": None, "stop": "eos"}
    run: Any = SimpleNamespace(identity=SimpleNamespace(checkpoint="0", index=None))
    (tmp_path / "samples").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(samples, "read_record", lambda *_: run)
        for altered in ({}, change):
            table = pa.Table.from_pylist([row | altered], schema=SCHEMA)
            write_parquet(tmp_path / "samples" / "part-00000.parquet", table)
            if altered:
                with pytest.raises(FormatError, match=rf"part-00000\.parquet: .*{said}"):
                    samples.read_samples(tmp_path)
            else:
                assert len(samples.read_samples(tmp_path)) == 1


@pytest.mark.parametrize(
    ("value", "of_type", "said"),
    [
        (True, pa.string(), "is bool; expected strings"),
        (pd.Timestamp(0), pa.string(), "is timestamp.*; expected strings"),
        (1.0, pa.int32(), "is double; expected integers"),
        ([True], pa.list_(pa.int32()), "is list<.*bool>; expected lists of integers"),
        (0, pa.list_(pa.bool_()), "is int64; expected lists of booleans"),
    ],
)
def test_what_arrow_would_convert_is_refused(tmp_path: Path, value: Any, of_type: pa.DataType, said: str) -> None:
    path = tmp_path / "part-00000.parquet"
    pq.write_table(pa.table({"key": pa.array([value])}), path)
    with pytest.raises(FormatError, match=f"key {said}"):
        read_parquet(path, schema=pa.schema([("key", of_type)]))


def test_strings_of_other_widths_and_dictionaries_are_read(tmp_path: Path) -> None:
    texts = pa.array(["a", "a"])
    for values in (texts, texts.cast(pa.large_string()), texts.dictionary_encode()):
        pq.write_table(pa.table({"key": values}), tmp_path / "x.parquet")
        found = read_parquet(tmp_path / "x.parquet", schema=pa.schema([("key", pa.string())]))
        assert found["key"].to_pylist() == ["a", "a"]


@pytest.mark.parametrize("value", [np.float16(1), [1], {"a": 1}, b"x"])
def test_columns_kept_are_of_types_that_are_written(tmp_path: Path, value: Any) -> None:
    pq.write_table(pa.table({TOKENS: [3], "year": [value]}), tmp_path / "documents.parquet")
    with pytest.raises(FormatError, match=r"documents\.parquet: year is .*, as no column kept is"):
        read_kept(tmp_path, 3)


def test_documents_of_windows_are_integers(tmp_path: Path) -> None:
    pq.write_table(pa.table({"window": [0, 1], "document": [[0], [1]]}), tmp_path / "windows.parquet")
    with pytest.raises(FormatError, match="document is list<"):
        read_document_of_window(tmp_path, SimpleNamespace(sources=("a", "b")))  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(("window", "document"), [([0, 1], [1, 0]), ([1, 0], [0, 1]), ([0, None], [0, 1])])
def test_windows_are_in_the_order_of_the_text(tmp_path: Path, window: list, document: list) -> None:
    pq.write_table(pa.table({"window": window, "document": document}), tmp_path / "windows.parquet")
    record: Any = SimpleNamespace(sources=("a", "b"), evaluation=SimpleNamespace(windows=2))
    with pytest.raises(
        FormatError, match=r"windows\.parquet: its windows, or their documents, are not in the order of"
    ):
        read_document_of_window(tmp_path, record)


def test_a_tokenizer_has_a_size(tmp_path: Path) -> None:
    with (tmp_path / "tokens.npy").open("wb") as file:
        file.truncate(2**32)  # takes no space
    with pytest.raises(FormatError, match="4,294,967,296 bytes; expected at most"):
        load_tokenizer(str(tmp_path / "tokens.npy"))


def test_a_column_that_is_not_of_pandas_type_is_refused(tmp_path: Path) -> None:
    table = pa.table({"level": pa.array([1, None])}).to_pandas(types_mapper={pa.int64(): pd.Int64Dtype()}.get)
    written = pa.Table.from_pandas(table)
    other = pa.table({"level": pa.array(["1", None])}).replace_schema_metadata(written.schema.metadata)
    pq.write_table(other, tmp_path / "x.parquet")
    with pytest.raises(FormatError, match=r"x\.parquet: not a complete Parquet file \(Expected array of Int64"):
        read_frame(tmp_path / "x.parquet")


def test_a_column_twice_is_refused(tmp_path: Path) -> None:
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["pos", "pos"])
    with pytest.raises(FormatError, match="two columns pos"):
        check_columns(tmp_path / "x.parquet", table.schema, ["pos"])
    pq.write_table(table, tmp_path / "x.parquet")
    with pytest.raises(FormatError, match="two columns pos"):  # before a row is read, and anything is written
        count_rows(tmp_path / "x.parquet")


@pytest.mark.parametrize("part", [5, {"model_type": ["llama"]}])
def test_the_text_part_of_a_configuration_is_checked(tmp_path: Path, part: Any) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "text_config": part}))
    checkpoint = SimpleNamespace(gguf=None, folder=tmp_path, name="x")
    with pytest.raises(FormatError, match=r"config\.json: (text_config|model_type): expected"):
        read_config(checkpoint)  # pyright: ignore[reportArgumentType]


def test_the_first_document_may_be_left_out() -> None:
    labels: Any = SimpleNamespace(
        repeated=np.array([True, False, True]),
        scored=np.array([True, True, True]),
        train_count=np.array([0, 0, 3]),
        window=np.array([1, 1, 2]),  # none of window 0, which is document 0
        document_of_window=np.array([0, 1, 2]),
    )
    assert set(build_curve(labels, {}, [1250])["document"]) == {1, 2}


@pytest.mark.parametrize(
    ("name", "values", "said"),
    [
        ("distance", [1, None], "distance is null in 1 rows"),
        ("match_length", [None, 1], "match_length is null in 1 rows"),
        ("train_count", [1, None], "train_count is null in 1 rows of 2"),
        ("domain", ["a", None], "domain is null in 1 rows"),
        ("domain", [1.5, 2.5], "domain is double; expected strings"),
    ],
)
def test_labels_have_no_nulls(tmp_path: Path, name: str, values: list[Any], said: str) -> None:
    with pytest.raises(FormatError, match=said):
        check_whole(tmp_path / "labels.parquet", pa.table({name: values}))


@pytest.mark.parametrize(("induction", "opportunity"), [(None, True), (False, False)])
def test_an_induction_is_known_where_there_is_an_opportunity(
    tmp_path: Path, induction: bool | None, opportunity: bool
) -> None:
    columns = {"induction": [True, None, induction], "opportunity": [True, False, opportunity]}
    with pytest.raises(FormatError, match="induction is null with an opportunity, or not null without one, in 1 rows"):
        check_whole(tmp_path / "labels.parquet", pa.table(columns))
    check_whole(tmp_path / "labels.parquet", pa.table(columns).slice(0, 2))


def test_spans_of_a_document_are_not_null(tmp_path: Path) -> None:
    pq.write_table(pa.table({TOKENS: [3], "spans": pa.array([None], TOKEN_SPANS)}), tmp_path / "documents.parquet")
    with pytest.raises(FormatError, match="spans is null in a row"):
        read_kept(tmp_path, 3)


def test_cells_in_portions_are_of_their_types(tmp_path: Path) -> None:
    pq.write_table(pa.table({"document": ["0"], "n": [1]}), tmp_path / "cells.parquet")
    with pytest.raises(FormatError, match="document is string; expected integers"):
        list(CellFile(tmp_path / "cells.parquet").parts())


def test_windows_without_rows_are_refused(tmp_path: Path) -> None:
    none = pa.array([], pa.int32())
    pq.write_table(pa.table({"window": none, "document": none}), tmp_path / "windows.parquet")
    with pytest.raises(FormatError, match=r"windows\.parquet: no rows"):
        read_document_of_window(tmp_path, SimpleNamespace(sources=("a",)))  # pyright: ignore[reportArgumentType]


def test_a_part_has_all_columns_of_a_run(tmp_path: Path) -> None:
    pq.write_table(pa.table({"window": [0]}), tmp_path / "x.parquet")
    with pytest.raises(FormatError, match="no column top1; expected window, top1"):
        count_rows(tmp_path / "x.parquet", ["window", "top1"])


@pytest.mark.parametrize("text", ["", "x", "-1", "1.5", "9" * 5000])
def test_numbers_that_are_none_are_refused_by_name(text: str) -> None:
    """Python itself refuses to read more than 4,300 digits."""
    for read in (
        parse_batch_size,
        _shape,
        lambda text: parse_numbers("pairs", text),
        lambda text: _lengths(NEEDLES + text),
    ):
        with pytest.raises(ArgapError, match=rf"{text}(`|:).*expected"):
            read(text)
