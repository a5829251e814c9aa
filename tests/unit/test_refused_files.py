"""What is no file where one is optional or replaced, and what cannot be written: one line, and nothing is lost."""

import ast
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from argap.checkpoints.convert import convert
from argap.checkpoints.find import find_checkpoint
from argap.checkpoints.references import Reference, add_reference, find_reference, remove_reference
from argap.errors import ArgapError, FormatError, MismatchError
from argap.evaluation.windows import open_evaluation_set
from argap.files.atomic import append_text
from argap.files.checksums import read_checksums
from argap.files.lock import alone_in
from argap.files.regular import is_there
from argap.recall import samples
from argap.records import EvaluationSpec, LabelsRecord, read_gap, write_record
from argap.records.gap import save_gap
from argap.result import open_result
from argap.results.compare import label_result, record_slices
from argap.runtime.interrupt import Interrupt
from argap.scoring.find import find_source
from argap.slices.of_tokens import Slice, open_tokens, score_slices
from argap.synthetics.sweeps.store import read_runs
from argap.text.tokenizer import load_tokenizer
from argap.tokens import labels
from argap.tokens.labels import label_portions, write_labels
from argap.tokens.portions import read_portions
from argap.tokens.runs import read_logprobs, read_run, token_parts
from argap.train.checkpoint import checkpoints
from argap.view.search import find_text
from argap.view.windows import WindowReader

ROOT = Path(__file__).parents[2]
RESULT = ROOT / "results" / "today-7m" / "7m"
TOKENIZER = ROOT / "argap" / "demo" / "tokenizer"


def test_what_is_no_file_is_not_absent(tmp_path: Path) -> None:
    assert not is_there(tmp_path / "checksums.json")
    os.mkfifo(tmp_path / "checksums.json")
    for read in (lambda: is_there(tmp_path / "checksums.json"), lambda: read_checksums(tmp_path)):
        with pytest.raises(FormatError, match="a pipe"):
            read()
    (tmp_path / "gone.json").symlink_to(tmp_path / "nothing")
    with pytest.raises(FormatError, match=r"gone\.json: a link to nothing"):
        is_there(tmp_path / "gone.json")
    (tmp_path / "loop.json").symlink_to("loop.json")
    with pytest.raises(FormatError, match=r"loop\.json: a link to itself"):
        is_there(tmp_path / "loop.json")
    with pytest.raises(FormatError, match=r"checksums\.json: expected a folder, with inside/log\.jsonl in it"):
        is_there(tmp_path / "checksums.json" / "inside" / "log.jsonl")
    with pytest.raises(OSError, match="name too long"):
        is_there(tmp_path / ("x" * 300))
    with pytest.raises(ArgapError, match=r"/dev/full: could not be written .No space left on device"):
        append_text(Path("/dev/full"), "a line")


@pytest.mark.parametrize(
    "read",
    [
        lambda folder: token_parts(folder),
        lambda folder: checkpoints(folder / "tokens"),
        lambda folder: samples.read_samples(folder),
        lambda folder: read_runs(folder),
    ],
)
def test_what_is_no_folder_holds_not_nothing(tmp_path: Path, read: Callable[[Path], Any]) -> None:
    for name in ("tokens", "samples", "runs"):
        os.mkfifo(tmp_path / name)
    with pytest.raises(FormatError, match="a pipe; expected a folder"):
        read(tmp_path)


BARE = {
    "a refusal follows": {
        "argap/checkpoints/convert.py",
        "argap/checkpoints/distributed.py",
        "argap/checkpoints/find.py",
        "argap/demo/__init__.py",
        "argap/files/resumable.py",
        "argap/files/weight_files.py",
        "argap/recall/answered.py",
        "argap/records/gap.py",
        "argap/scoring/find.py",
        "argap/synthetics/sweeps/store.py",
        "argap/text/tokenizer.py",
        "argap/tokens/runs.py",
        "argap/train/run.py",
        "bigram_index/manifest.py",
    },
    "what another run of the command left is replaced": {
        "argap/results/in_place.py",
        "argap/tokens/labels.py",
        "argap/view/bundle.py",
    },
    "only results are listed": {"argap/cli/complete.py", "argap/cli/recall.py", "argap/view/folder.py"},
}
"""Modules that ask ``(folder / name).is_file()`` or ``exists()``, and why that is no silent absence there."""


def test_whether_an_optional_file_is_there_is_asked_in_one_way() -> None:
    found = set[str]()
    for path in (path for top in ("argap", "bigram_index", "reports") for path in (ROOT / top).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(ast.Attribute(ast.BinOp() | ast.NamedExpr(value=ast.BinOp()), "is_file" | "exists")):
                    found.add(path.relative_to(ROOT).as_posix())
    assert found - set[str]().union(*BARE.values()) == set(), "use is_there, which refuses anything but a file"
    assert set[str]().union(*BARE.values()) - found == set()


def test_labels_that_could_not_be_written_leave_the_earlier_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = open_evaluation_set(
        EvaluationSpec(data=(str(ROOT / "README.md"),)), tokenizer := load_tokenizer(str(TOKENIZER))
    )
    write_labels(label_portions(data, None), tokenizer, tmp_path / "labels")
    before = {path.name: path.read_bytes() for path in (tmp_path / "labels").iterdir()}
    monkeypatch.setattr(labels, "write_checksums", refuse_for_space)
    with pytest.raises(ArgapError, match="No space left"):
        write_labels(label_portions(data, None), tokenizer, tmp_path / "labels")
    assert {path.name: path.read_bytes() for path in (tmp_path / "labels").iterdir()} == before


def test_a_result_that_could_not_be_read_is_not_written(tmp_path: Path) -> None:
    gap = read_gap(RESULT)
    save_gap(tmp_path / "gap.json", gap)
    before = (tmp_path / "gap.json").read_bytes()
    with pytest.raises(FormatError, match="estimates: domain"):
        save_gap(tmp_path / "gap.json", gap.replaced({"domain": gap.parts("domain")[1:]}))
    assert (tmp_path / "gap.json").read_bytes() == before


def test_a_comparison_on_a_full_disk_leaves_the_earlier_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import argap
    from argap.scoring.importing import import_run
    from argap.slices.cells import CellWriter

    texts = [f"text {k} of some words, and words again" for k in range(4)]
    tokenizer = load_tokenizer(str(TOKENIZER))
    (tmp_path / "text.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    spec = argap.EvaluationSpec(data=(str(tmp_path / "text.jsonl"),), packing="document")
    for name, logprob in (("a", -2.0), ("b", -3.0)):
        rows = [tokenizer.encode_spans(text)[0] for text in texts]
        lines = [{"tokens": ids, "logprobs": [None, *[logprob - k % 3 for k in ids[1:]]]} for ids in rows]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        import_run(tmp_path / f"{name}.jsonl", tmp_path / "runs", tokenizer=str(TOKENIZER), spec=spec)
    runs, out = tmp_path / "runs", tmp_path / "result"
    argap.compare(runs / "b", runs / "a", out=out)
    before = {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()}
    monkeypatch.setattr(CellWriter, "_write", refuse_for_space)
    with pytest.raises(ArgapError, match="No space left"):
        argap.compare(runs / "b", runs / "a", out=out)
    assert {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()} == before


@pytest.mark.parametrize("name", ["gap.json", "cells.parquet", "examples.json", "checksums.json", "table.md"])
def test_a_folder_with_the_name_of_a_file_of_a_result_costs_nothing(
    token_result: Path, tmp_path: Path, name: str
) -> None:
    import argap

    out = Path(shutil.copytree(token_result, tmp_path / "out"))
    (out / name).unlink(missing_ok=True)
    (out / name).mkdir()
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}
    for change in (lambda: argap.compare(out / "m2", out / "ref", out=out), lambda: label_result(out, threshold=3)):
        with pytest.raises(FormatError, match=rf"{name}: a folder; expected a file|no gap\.json there"):
            change()
        assert {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()} == before


def refuse_for_space(*_: object) -> None:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("to", ["loop", "nowhere"])
def test_a_link_that_leads_nowhere_is_no_name_on_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("argap.files.hub.snapshot", lambda *_, **__: pytest.fail("asked the hub"))
    for name in ("loop", "loop.gguf"):
        os.symlink(to.replace("loop", name), name)
        for find in (find_checkpoint, find_source, lambda name: convert(name, tmp_path / "out")):
            with pytest.raises(FormatError, match=rf"{name}: a link to nothing; expected a file or folder, or no link"):
                find(name)


@pytest.mark.parametrize("change", ["checkpoint", "dtype"])
def test_tokens_of_a_run_that_was_scored_again_are_not_the_results(
    token_result: Path, tmp_path: Path, change: str
) -> None:
    out = Path(shutil.copytree(token_result, tmp_path / "out"))
    gap = read_gap(out)
    assert {run.folder.parent for run in open_tokens(out, gap).runs} == {out}  # of the copy, not of the original
    away = [msgspec.structs.replace(row, run=str(tmp_path / "half")) for row in gap.rows]
    (tmp_path / "half").mkdir()
    unfinished = msgspec.structs.replace(read_run(out / "ref").record, finished=None)
    write_record(tmp_path / "half" / "run.json", unfinished)  # the original is being scored again
    assert {run.folder.parent for run in open_tokens(out, msgspec.structs.replace(gap, rows=away)).runs} == {out}
    run = read_run(out / "m-1").record
    identity = msgspec.structs.replace(run.identity, **{change: "bfloat16"})
    write_record(out / "m-1" / "run.json", msgspec.structs.replace(run, identity=identity))
    assert {run.folder.parent for run in open_tokens(out, gap).runs} == {out, token_result}
    gap = msgspec.structs.replace(gap, rows=[msgspec.structs.replace(row, run="") for row in gap.rows])
    with pytest.raises(MismatchError, match=r"m-1: scored since .* was made, by another model or in another way"):
        open_tokens(out, gap)
    assert open_tokens(out, msgspec.structs.replace(gap, scores={})).models  # of an earlier version
    more = msgspec.structs.replace(run.identity, rank=not run.identity.rank)  # other columns, the same log-probs
    write_record(out / "m-1" / "run.json", msgspec.structs.replace(run, identity=more))
    assert open_tokens(out, gap).models


@pytest.mark.parametrize("changed", ["labels", "m-1"])
def test_a_result_that_is_written_again_while_it_is_read_is_refused(
    token_result: Path, tmp_path: Path, changed: str
) -> None:
    out = Path(shutil.copytree(token_result, tmp_path / "out"))
    result = open_result(out)
    table, other = result.token_table, open_tokens(out, result.record)
    windows = WindowReader(table)
    record = table.record if changed == "labels" else read_run(out / changed).record
    path = out / changed / ("labels.json" if changed == "labels" else "run.json")
    write_record(path, record)  # as a command that finds nothing to do
    windows.read(0, table.models)
    result.gap({"late": "pos > 30"})
    if isinstance(record, LabelsRecord):
        again = msgspec.structs.replace(record, sources=record.sources[::-1])
    else:
        again = msgspec.structs.replace(record, identity=msgspec.structs.replace(record.identity, dtype="bfloat16"))
    for change in (lambda: write_record(path, again), path.unlink):
        change()
        for read in (
            lambda: result.gap({"later": "pos > 31"}),
            lambda: windows.read(0, table.models),
            lambda: list(read_portions(other)),
            lambda: find_text(table, "be", limit=3, interrupt=Interrupt()),
        ):
            with pytest.raises(MismatchError, match=rf"{changed}: written again while it was read; run the command"):
                read()


def test_a_part_that_became_a_link_to_nothing_is_one_line_where_text_is_searched(
    token_result: Path, tmp_path: Path
) -> None:
    out = Path(shutil.copytree(token_result, tmp_path / "out"))
    table = open_result(out).token_table
    part = token_parts(table.runs[0].folder)[0]
    part.unlink()
    part.symlink_to("nothing")
    with pytest.raises(FormatError, match=rf"{part.name}: no such file"):
        find_text(table, "be", limit=3, interrupt=Interrupt())


def test_rows_of_a_run_in_another_order_are_refused_wherever_log_probs_are_read(
    token_result: Path, tmp_path: Path
) -> None:
    run = read_run(Path(shutil.copytree(token_result / "m-1", tmp_path / "m-1")))
    read_logprobs(run)
    path = token_parts(run.folder)[0]
    rows = pq.read_table(path)
    pq.write_table(pa.concat_tables([rows.slice(0, 5), rows.slice(6, 1), rows.slice(5, 1), rows.slice(7)]), path)
    (run.folder / "checksums.json").unlink()
    with pytest.raises(FormatError, match="m-1: "):
        read_logprobs(run)


def test_labels_with_other_counts_are_not_the_results(token_result: Path, tmp_path: Path) -> None:
    """A score that was killed between writing the labels and the result leaves such."""
    out = Path(shutil.copytree(token_result, tmp_path / "out"))
    gap = read_gap(out)
    with pytest.raises(MismatchError, match=r"labels with other training counts than .*; run `argap score` or"):
        open_tokens(out, msgspec.structs.replace(gap, index=None))


def test_slices_of_a_result_that_was_replaced_are_not_recorded(token_result: Path, tmp_path: Path) -> None:
    out = Path(shutil.copytree(token_result, tmp_path / "out"))
    gap = read_gap(out)
    table = open_tokens(out, gap)
    near = score_slices(table, [Slice("near", "repeated AND distance < 9")], threshold=gap.threshold)[2:]
    save_gap(out / "gap.json", msgspec.structs.replace(gap, date="2001-01-01T00:00:00+00:00"))
    before = (out / "gap.json").read_bytes()
    with pytest.raises(ArgapError, match="the result was replaced while its slices were computed"):
        record_slices(out, near, gap)
    assert (out / "gap.json").read_bytes() == before
    with alone_in(out), pytest.raises(ArgapError, match="in use by process"):
        record_slices(out, near, read_gap(out))


def test_a_reference_is_added_by_one_process_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two that read the list at once would each write it without the other's."""
    monkeypatch.setenv("ARGAP_HOME", str(tmp_path))
    add_reference("first", Reference(checkpoint="here"))
    with alone_in(tmp_path):
        for change in (lambda: add_reference("x", Reference(checkpoint="y")), lambda: remove_reference("first")):
            with pytest.raises(ArgapError, match="in use by process"):
                change()
    assert find_reference("first") is not None


def test_a_run_whose_record_is_no_file_does_not_count_as_absent(tmp_path: Path) -> None:
    """`argap discover` would take the cells of a result without tokens for it, which give other conditions."""
    (tmp_path / "base_conv" / "run.json").mkdir(parents=True)
    gap = read_gap(RESULT)
    rows = [msgspec.structs.replace(row, run=str(tmp_path / row.model)) for row in gap.rows]
    with pytest.raises(FormatError, match=r"base_conv/run\.json: a folder"):
        open_tokens(tmp_path, SimpleNamespace(scores={}, rows=[row for row in rows if row.model == "base_conv"]))  # pyright: ignore[reportArgumentType]
