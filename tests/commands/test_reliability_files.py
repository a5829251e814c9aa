"""No damaged file is believed: a flipped byte is an error that names the file, or the part is made again."""

import json
import shutil
from collections.abc import Iterator
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from argap.bigram_index.manifest import read_manifest
from argap.bigram_index.sources.external_counts import index_from_counts
from argap.checkpoints.find import find_checkpoint
from argap.corpus import open_corpus
from argap.errors import ArgapError, FormatError
from argap.evaluation.documents import read_documents
from argap.evaluation.windows import EvaluationSet, build_evaluation_set
from argap.files.atomic import read_json, write_json
from argap.files.checksums import FILE
from argap.files.parquet import read_parquet, read_portions, write_parquet
from argap.files.resumable import check_resumable
from argap.metric.threshold import parse_threshold
from argap.records import CheckpointRecord, EvaluationSpec, Gap, SourceRecord, read_gap, to_record
from argap.result import open_result
from argap.results.compare import compare_runs, label_result, record_slices
from argap.results.difference import compare_pair
from argap.results.in_place import NEW
from argap.results.pipeline import score_models
from argap.results.sources import read_documents as read_table_of_documents
from argap.runtime.interrupt import Interrupt
from argap.scoring.config import ScoreConfig
from argap.scoring.local import CheckpointSource
from argap.slices.of_tokens import Slice, score_slices
from argap.tokens import runs
from argap.tokens.runs import open_run, read_logprobs, shard_path, token_parts
from argap.tokens.table import TokenTable
from argap.view.search import find_text
from argap.view.windows import WindowReader
from tests.conftest import flip_bit

DEMO = Path(__file__).parents[2] / "argap" / "demo"
MODEL = DEMO / "checkpoints" / "hybrid"


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A result of two of the demo's models on a little text."""
    out = tmp_path_factory.mktemp("result") / "out"
    spec = EvaluationSpec(data=("stdlib:heldout",), seq_len=64, limit_tokens=600)
    score_models([str(MODEL)], "attention", out, ScoreConfig(text=spec, index=str(DEMO / "index")))
    return out


@pytest.fixture
def copy(result: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(result, tmp_path / "out"))


@pytest.fixture
def data(tokenizer, monkeypatch: pytest.MonkeyPatch) -> EvaluationSet:
    """Text for several shards."""
    monkeypatch.setattr(runs, "SHARD_TOKENS", 100)
    return build_evaluation_set(open_corpus("stdlib:heldout"), tokenizer, seq_len=64, limit_tokens=400)


def scored(data: EvaluationSet, folder: Path) -> runs.Run:
    source = SourceRecord(data=("stdlib:heldout",))
    return CheckpointSource("m", find_checkpoint(MODEL)).score(data, folder, source)


def offsets(path: Path, count: int = 12) -> Iterator[int]:
    """Positions all over a file, its header and footer among them."""
    return iter(np.linspace(0, path.stat().st_size - 1, count).astype(int).tolist())


def compare(out: Path) -> None:
    compare_runs([str(out / "hybrid")], str(out / "attention"), out / "again", threshold=parse_threshold("1250"))


def test_a_relative_path_with_a_colon_is_no_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_parquet(Path("run:1/part.parquet"), pa.table({"pos": [1]}))
    assert read_parquet(Path("run:1/part.parquet"), ["pos"]).column("pos").to_pylist() == [1]
    assert [rows.num_rows for rows in read_portions(Path("run:1/part.parquet"), ["pos"])] == [1]


@pytest.mark.parametrize(
    "name",
    [
        "hybrid/tokens/part-00000.parquet",
        "labels/labels.parquet",
        "labels/windows.parquet",
        "labels/tokenizer.json",
        "labels/tokenizer_config.json",
    ],
)
def test_a_flipped_bit_in_a_run_or_in_labels_is_named(copy: Path, name: str) -> None:
    for at in offsets(copy / name):
        flip_bit(copy / name, at)
        with pytest.raises(FormatError, match=rf"{name}: (damaged between bytes|not a complete Parquet)"):
            compare(copy)
        flip_bit(copy / name, at)
    compare(copy)


def test_files_of_an_earlier_argap_are_read_without_checksums(copy: Path) -> None:
    compare(copy)
    before = open_result(copy / "again")
    for path in copy.rglob(FILE):
        path.unlink()
    for path in [*token_parts(copy / "hybrid"), copy / "labels" / "labels.parquet"]:
        pq.write_table(pq.read_table(path), path)
    compare(copy)
    after = open_result(copy / "again")
    assert replace(after.record, date="") == replace(before.record, date="")


@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize(
    ("table", "column", "said"),
    [
        ("labels.parquet", "window", "(a window that windows.parquet, which has 10, lacks|window is -1 in a row)"),
        ("windows.parquet", "document", r"a document that the \d+ sources of labels.json lack"),
    ],
)
@pytest.mark.parametrize("value", [-1, 2**31 - 1])
def test_a_number_out_of_range_is_named(
    copy: Path, table: str, column: str, said: str, value: int, recorded: bool
) -> None:
    path = copy / "labels" / table
    rows = pq.read_table(path)
    values = pa.array([*rows[column].to_pylist()[:-1], value], rows.schema.field(column).type)
    pq.write_table(rows.set_column(rows.column_names.index(column), rows.schema.field(column), values), path)
    if not recorded:
        (path.parent / FILE).unlink()
    with pytest.raises(FormatError, match=rf"labels/{table}: {'damaged between bytes' if recorded else said}"):
        open_result(copy).token_table.scored_of_document  # noqa: B018


@pytest.mark.parametrize("value", [2**31 - 1, -1])
def test_a_token_that_the_tokenizer_lacks_is_named(copy: Path, value: int) -> None:
    said = "a token that its tokenizer of 8,192 tokens lacks" + "|token is -1 in a row" * (value < 0)
    path = copy / "attention" / "tokens" / "part-00000.parquet"
    rows = pq.read_table(path)
    ids = pa.array([value] * len(rows), pa.int32())
    pq.write_table(rows.set_column(rows.column_names.index("token"), rows.schema.field("token"), ids), path)
    (copy / "attention" / FILE).unlink()
    table = TokenTable((open_run(copy / "attention"), open_run(copy / "hybrid")), copy / "labels")
    for where in (
        "length(piece) > 2",
        "length(previous) > 2",
        "piece > previous",
        "word > piece",
        "content_word",
        "content",
    ):
        with pytest.raises(FormatError, match=said):
            score_slices(table, [Slice("x", where)], threshold=1250)
    with pytest.raises(FormatError, match=said):
        find_text(table, "a", limit=1, interrupt=Interrupt())
    with pytest.raises(FormatError, match=said):
        WindowReader(table).read(0, ["attention", "hybrid"])
    with pytest.raises(FormatError, match=said):
        compare(copy)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"counts": [300, 300]}, "no column tokens; expected tokens"),
        *(
            ({"tokens": counts}, "tokens do not add up to the 600 tokens of the labels")
            for counts in ([300, 299], [300, None], [-1, 601], [300.0, 300.0], ["300", "300"], [])
        ),
    ],
)
def test_documents_of_other_tokens_than_the_labels_are_refused(
    tmp_path: Path, columns: dict[str, list[Any]], said: str
) -> None:
    write_parquet(tmp_path / "documents.parquet", pa.table(columns))
    with pytest.raises(FormatError, match=f"documents.parquet: {said}"):
        read_documents(tmp_path, 600)


def test_every_page_of_a_table_has_a_checksum(tmp_path: Path) -> None:
    """Without ``checksums.json``, as in a run that was cut short: any flip in the values is seen, if not in headers."""
    path = tmp_path / "table.parquet"
    table = pa.table({"x": np.random.default_rng(0).normal(size=1000).astype(np.float32)})
    write_parquet(path, table)
    column = pq.read_metadata(path).row_group(0).column(0)  # a page with the distinct values, then one with their ids
    for at in np.linspace(column.dictionary_page_offset + 60, column.data_page_offset - 1, 50).astype(int).tolist():
        flip_bit(path, at)
        with pytest.raises(FormatError, match=r"table\.parquet: not a complete Parquet file"):
            read_parquet(path)
        flip_bit(path, at)
    assert read_parquet(path).equals(table)


def test_a_damaged_shard_is_named_and_made_again(data: EvaluationSet, tmp_path: Path, capsys) -> None:
    scored(data, tmp_path)
    parts = token_parts(tmp_path)
    whole = {path: path.read_bytes() for path in parts}
    assert len(whole) > 2
    flip_bit(parts[1], len(whole[parts[1]]) // 2)
    parts[2].write_bytes(whole[parts[2]][:-20])
    run = scored(data, tmp_path)
    said = capsys.readouterr().err
    assert f"{parts[1]}: damaged between bytes 0 and {parts[1].stat().st_size}; it is made again" in said
    assert f"{parts[2]}: damaged" in said
    assert str(parts[0]) not in said
    assert {path: path.read_bytes() for path in token_parts(tmp_path)} == whole
    read_logprobs(run)


def test_broken_checksums_are_read_once_and_all_parts_made_again(data: EvaluationSet, tmp_path: Path, capsys) -> None:
    scored(data, tmp_path)
    whole = {path: path.read_bytes() for path in (*token_parts(tmp_path), tmp_path / FILE)}
    (tmp_path / FILE).write_text("{")
    scored(data, tmp_path)
    said = capsys.readouterr().err
    assert said.count(f"{FILE}: not readable as JSON") == 1
    assert f"its {len(whole) - 1} parts are made again" in said
    assert {path: path.read_bytes() for path in whole} == whole


def test_a_damaged_shard_of_an_unfinished_run_is_made_again(data: EvaluationSet, tmp_path: Path, capsys) -> None:
    scored(data, tmp_path)
    (tmp_path / FILE).unlink()
    record = read_json(tmp_path / "run.json")
    (tmp_path / "run.json").write_text(json.dumps(record | {"finished": None}))
    part = shard_path(tmp_path, 1)
    whole = part.read_bytes()
    column = pq.read_metadata(part).row_group(0).column(3)
    flip_bit(part, column.data_page_offset + column.total_compressed_size - 3)
    scored(data, tmp_path)
    assert f"{part}: not a complete Parquet file" in capsys.readouterr().err
    assert part.read_bytes() == whole


@pytest.mark.parametrize("value", [float("nan"), float("inf"), None])
def test_a_missing_logprob_is_named(data: EvaluationSet, tmp_path: Path, value: float | None) -> None:
    scored(data, tmp_path)
    part = shard_path(tmp_path, 1)
    table = pq.read_table(part)
    values = table["logprob"].to_pylist()
    row = 5
    values[row] = value
    column = table.schema.get_field_index("logprob")
    pq.write_table(table.set_column(column, "logprob", pa.array(values, pa.float32())), part)
    (tmp_path / FILE).unlink()
    window, position = table["window"][row].as_py(), table["pos"][row].as_py()
    expected = rf"part-00001\.parquet: log-prob {value} at window {window}, position {position}; expected a num"
    with pytest.raises(FormatError, match=expected):
        read_logprobs(open_run(tmp_path))


def change(path: Path, name: str, values: Any) -> None:
    """Put ``values(old)`` into a column of a file, and remove the checksums that would tell."""
    table = pq.read_table(path)
    column = table.schema.get_field_index(name)
    array = pa.array(values(table[name].to_pylist()), table[name].type)
    pq.write_table(table.set_column(column, name, array), path)
    next(folder for folder in path.parents if (folder / FILE).is_file()).joinpath(FILE).unlink()


def put(at: int, value: Any) -> Any:
    return lambda values: [*values[:at], value, *values[at + 1 :]]


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("logprob", None, "log-prob None at window 1, position 6; expected a number of at most 0, or −∞"),
        ("logprob", 3.0, "log-prob 3.0 at window 1, position 6; expected a number of at most 0"),
        ("top1", None, "top1 None at window 1, position 6; expected a token id"),
    ],
)
def test_a_scored_token_has_what_its_run_stores(copy: Path, name: str, value: Any, said: str) -> None:
    """Whatever reads it: the cells of a result, a condition, or a model beside another."""
    part = shard_path(copy / "hybrid", 0)
    change(part, name, put(70, value))
    condition = "nll.hybrid > 1" if name == "logprob" else "top1.hybrid = 5"
    table = TokenTable((open_run(copy / "attention"), open_run(copy / "hybrid")), copy / "labels")
    reads = [
        lambda: compare_runs([str(copy / "hybrid")], str(copy / "attention"), copy / "again"),
        lambda: score_slices(table, [Slice("x", condition)], threshold=1250),
        lambda: read_logprobs(open_run(copy / "hybrid")),
    ]
    for read in reads:
        with pytest.raises(FormatError, match=rf"hybrid/tokens/part-00000\.parquet: {said}"):
            read()


def test_position_0_needs_no_value(copy: Path) -> None:
    compared = [str(copy / "hybrid")], str(copy / "attention")
    expected = compare_runs(*compared, copy / "before").on_all
    change(shard_path(copy / "hybrid", 0), "logprob", put(64, None))
    assert compare_runs(*compared, copy / "again").on_all == expected


@pytest.mark.parametrize(
    ("file", "name", "values", "said"),
    [
        ("labels.parquet", "pos", put(70, 0), r"labels\.parquet: \d+ scored tokens, where labels\.json records \d+"),
        ("windows.parquet", "document", None, r"windows\.parquet: 12 windows, where labels\.json records 10"),
    ],
)
def test_labels_are_those_that_were_recorded(copy: Path, file: str, name: str, values: Any, said: str) -> None:
    path = copy / "labels" / file
    if values is None:
        table = pq.read_table(path)
        pq.write_table(pa.concat_tables([table, table.slice(0, 2)]), path)
        (copy / "labels" / FILE).unlink()
    else:
        change(path, name, values)
    with pytest.raises(FormatError, match=said):
        score_slices(open_result(copy).token_table, [Slice("x", "nll.hybrid > 1")], threshold=1250)


def test_other_tokens_than_the_fingerprint_covers_are_refused(copy: Path) -> None:
    change(shard_path(copy / "attention", 0), "token", put(70, 5))
    before = (copy / "gap.json").read_bytes()
    runs_of = [str(copy / "hybrid")], str(copy / "attention")
    reads = [
        lambda: compare_runs(*runs_of, copy / "again"),
        lambda: compare_runs(*runs_of, copy),
        lambda: compare_pair(str(copy / "attention"), str(copy / "hybrid")),
    ]
    for read in reads:
        with pytest.raises(FormatError, match="attention: holds other tokens or windows than evaluation set"):
            read()
    assert (copy / "gap.json").read_bytes() == before


def test_other_windows_than_the_fingerprint_covers_are_refused(copy: Path) -> None:
    """The second window begins a token later."""
    change(shard_path(copy / "attention", 0), "pos", lambda values: [*values[:64], 64, *range(63), *values[128:]])
    with pytest.raises(FormatError, match="attention: holds other tokens or windows than evaluation set"):
        compare_pair(str(copy / "attention"), str(copy / "hybrid"))


def test_the_viewer_checks_what_it_reads_of_a_window(copy: Path) -> None:
    reader = WindowReader(TokenTable((open_run(copy / "attention"), open_run(copy / "hybrid")), copy / "labels"))
    change(shard_path(copy / "hybrid", 0), "logprob", put(70, None))
    with pytest.raises(FormatError, match="log-prob None at window 1, position 6"):
        reader.read(1, ["attention", "hybrid"])
    table = pq.read_table(copy / "labels" / "labels.parquet")
    domain = table.schema.get_field_index("domain")
    pq.write_table(
        table.set_column(domain, "domain", pa.array([True] * len(table))), copy / "labels" / "labels.parquet"
    )
    (copy / "labels" / FILE).unlink()
    with pytest.raises(FormatError, match="domain is bool; expected strings"):
        reader.read(1, ["attention"])


@pytest.mark.parametrize("at", ["fill_labels", "summarize", "write_record", "save_gap"])
def test_a_label_that_was_interrupted_is_repeated(copy: Path, monkeypatch: pytest.MonkeyPatch, at: str) -> None:
    table = open_result(copy).token_table
    near = score_slices(table, [Slice("near", "repeated AND distance < 9")], threshold=1250)
    record_slices(copy, near[2:], read_gap(copy))
    undisturbed = label_result(copy, str(DEMO / "index"))
    assert [each.name for each in undisturbed.slices] == ["near"]
    (copy / "trajectory.parquet").write_bytes(b"of argap suite trajectory")
    kept = ("gap.json", "cells.parquet", "labels/labels.json", "trajectory.parquet")
    before = {name: (copy / name).read_bytes() for name in kept}
    with monkeypatch.context() as patched:
        patched.setattr(f"argap.results.compare.{at}", interrupted)
        with pytest.raises(KeyboardInterrupt):
            label_result(copy, str(DEMO / "index"))
    assert before == {name: (copy / name).read_bytes() for name in before}
    again = label_result(copy, str(DEMO / "index"))
    assert replace(again, date="") == replace(undisturbed, date="")
    assert not (copy / NEW).exists()
    assert (copy / "trajectory.parquet").read_bytes() == before["trajectory.parquet"]


def interrupted(*arguments: object, **options: object) -> None:
    raise KeyboardInterrupt


def test_broken_checksums_are_named(copy: Path) -> None:
    for text in ("{", "[]", '{"files": 3}'):
        (copy / "hybrid" / FILE).write_text(text)
        with pytest.raises(ArgapError, match=r"hybrid/checksums\.json: "):
            compare(copy)


def test_an_identity_that_is_no_object_is_named(tmp_path: Path) -> None:
    write_json(tmp_path / "run.json", {"identity": 10**12}, seal=False)
    with pytest.raises(FormatError, match=r"run\.json: identity: expected an object, found 1000000000000"):
        check_resumable(tmp_path, CheckpointRecord("x", "x"), overwrite=False)


GONE = object()


@pytest.mark.parametrize(
    ("path", "changed", "said"),
    [
        (("estimates", 0), GONE, "estimates: all all: expected the models ref, m-1, m2; run"),
        (("estimates",), [], "estimates: none of all"),
        (("models", 2, "model"), "REF", "models: two are called ref, case aside; DuckDB tells them not apart"),
        (("models", 2, "model"), "m3", "estimates: all all: expected the models ref, m-1, m3"),
        (("index",), None, "`index` and `threshold`: expected both or neither"),
        (("threshold",), None, "`index` and `threshold`: expected both or neither"),
        (("estimates", 0, "nll"), inf, r"Expected a finite number, got inf - at `\$\.estimates\[0\]\.nll`"),
        (("evaluation", "seq_len"), -1, r"Expected `int` >= 2 - at `\$\.evaluation\.seq_len`"),
        (("evaluation", "seq_len"), 10**30, r"Expected `int` <= 16777216 - at `\$\.evaluation\.seq_len`"),
    ],
)
def test_a_result_that_contradicts_itself_is_refused(
    token_result: Path, tmp_path: Path, path: tuple, changed: Any, said: str
) -> None:
    gap = part = read_json(token_result / "gap.json")
    *above, last = path
    for key in above:
        part = part[key]
    if changed is GONE:
        del part[last]
    else:
        part[last] = changed
    (tmp_path / "gap.json").write_text(json.dumps(gap))
    with pytest.raises(FormatError, match=rf"gap\.json: {said}"):
        read_gap(tmp_path)


def test_values_nested_deeper_than_the_stack_are_refused() -> None:
    """From Python 3.12 the parser takes them."""
    values: list = []
    for _ in range(5000):
        values = [values]
    with pytest.raises(FormatError, match=r"gap\.json: Expected `str`, got `array` - at `\$\.reference`"):
        to_record(Path("gap.json"), {"format": 3, "reference": values}, Gap)


def test_counts_of_an_index_have_a_bound(tmp_path: Path) -> None:
    write_json(tmp_path / "index.json", read_json(DEMO / "index" / "index.json") | {"tokens": 10**30})
    with pytest.raises(FormatError, match=r"index\.json: Expected `int` <= 9007199254740992 - at `\$\.tokens`"):
        read_manifest(tmp_path)


def test_a_relative_folder_called_tilde_is_no_home(tmp_path, monkeypatch, tokenizer):
    """Arrow takes a text for a path below the user's home."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    here = Path("~")
    here.mkdir()
    (here / "documents.csv").write_text("document,domain,source\n3,a,b\n")
    (here / "counts.csv").write_text("first,second,count\n0,1,5\n")
    table = pa.table({"text": ["a b", "c"]})
    pq.write_table(table, tmp_path / "~" / "rows.parquet")
    with pa.ipc.new_file(str(tmp_path / "~" / "rows.arrow"), table.schema) as writer:
        writer.write_table(table)
    assert read_table_of_documents(here / "documents.csv")["document"].tolist() == [3]
    assert index_from_counts(here / "counts.csv", here / "index", tokenizer).count([0], [1]).tolist() == [5]
    for name in ("rows.parquet", "rows.arrow"):
        assert [getattr(document, "text", None) for document in open_corpus(here / name)] == ["a b", "c"]
    assert not (tmp_path / "home").exists()
