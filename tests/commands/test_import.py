"""``argap import``: the same run as ``argap score`` gives, and refusals that name document and position."""

import json
import math
import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel
from typer.testing import CliRunner

from argap.api import open_result
from argap.bigram_index.store import open_index
from argap.cli import app
from argap.corpus import open_corpus
from argap.errors import ArgapError, MismatchError
from argap.evaluation.windows import EvaluationSet, build_evaluation_set
from argap.files import atomic
from argap.files.lock import alone_in
from argap.records import EvaluationSpec, read_gap
from argap.results.compare import compare_runs, label_result
from argap.scoring import importing
from argap.scoring.importing import import_run
from argap.text.tokenizer import load_tokenizer
from argap.tokens.labels import label
from argap.tokens.runs import open_run, read_logprobs
from tests.conftest import exchanging

DEMO = Path(__file__).parents[2] / "argap" / "demo"
DOCUMENTS = ["the cat sat on the mat. " * 9, "a dog saw the cat and the cat saw a dog. " * 5, "the end of the mat"]


@pytest.fixture
def text(tmp_path) -> Path:
    path = tmp_path / "text.jsonl"
    path.write_text("".join(json.dumps({"text": document}) + "\n" for document in DOCUMENTS))
    return path


@pytest.fixture
def folder(tokenizer, tmp_path) -> str:
    tokenizer.save(tmp_path / "t")
    return str(tmp_path / "t")


@pytest.fixture
def data(text, tokenizer) -> EvaluationSet:
    return build_evaluation_set(open_corpus(text), tokenizer, seq_len=32)


def rows_of(data: EvaluationSet, logprob: np.ndarray | None = None) -> list[dict[str, Any]]:
    """A row a token; null at the first position of each window."""
    values = -np.arange(1, len(data.tokens) + 1) / 64 if logprob is None else logprob.astype(float)
    rows = zip(data.document.tolist(), data.tokens.tolist(), values.tolist(), data.position.tolist(), strict=True)
    return [{"document": d, "token": t, "logprob": v if position else None} for d, t, v, position in rows]


def written(path: Path, rows: list[dict[str, Any]]) -> Path:
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def by_document(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    documents: dict[int, dict[str, Any]] = {}
    for row in rows:
        document = documents.setdefault(row["document"], {"tokens": [], "logprobs": []})
        document["tokens"].append(row["token"])
        document["logprobs"].append(row["logprob"])
    return list(documents.values())


def test_a_file_that_is_exchanged_while_it_is_read_is_refused(data, text, folder, tmp_path, monkeypatch) -> None:
    file = written(tmp_path / "server.jsonl", rows_of(data))
    exchanging(importing, "read_logprob_file", file, monkeypatch)
    spec = EvaluationSpec(data=(str(text),), seq_len=32)
    with pytest.raises(
        MismatchError, match=r"server\.jsonl: written again or removed while it was read; run the command"
    ):
        import_run(file, tmp_path / "out", tokenizer=folder, spec=spec)


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
@pytest.mark.parametrize("nested", [False, True])
def test_each_form_gives_the_run(data, text, folder, tmp_path, suffix: str, nested: bool) -> None:
    rows = rows_of(data)
    file = written(tmp_path / f"server{suffix}", by_document(rows) if nested else rows)
    spec = EvaluationSpec(data=(str(text),), seq_len=32)
    run = open_run(import_run(file, tmp_path / "out", tokenizer=folder, spec=spec).folder)
    assert run.model == "server"
    assert run.record.evaluation == data.record.__class__(**{**fields(data.record), "tokenizer": folder})
    logprob, top1 = read_logprobs(run)
    expected = [np.nan if row["logprob"] is None else row["logprob"] for row in rows]
    np.testing.assert_array_equal(logprob, np.array(expected, dtype=np.float32))
    assert (top1 == -1).all()


def fields(record: Any) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__struct_fields__}


def test_the_log_probs_of_a_scored_run_compare_as_the_run_does(data, text, folder, tokenizer, tmp_path) -> None:
    for seed, name in enumerate(("reference", "model")):
        torch.manual_seed(seed)
        config = GPT2Config(vocab_size=8192, n_positions=32, n_embd=16, n_layer=1, n_head=2)
        GPT2LMHeadModel(config).save_pretrained(tmp_path / name)
        tokenizer.save(tmp_path / name)
    at = str(tmp_path)
    run(f"index build {text} --tokenizer {folder} --out {at}/i")
    run(f"score {at}/model --ref {at}/reference --data {text} --index {at}/i --seq-len 32 --device cpu --out {at}/runs")
    logprob, _ = read_logprobs(open_run(tmp_path / "runs" / "model"))
    file = written(tmp_path / "elsewhere.parquet", rows_of(data, logprob))
    run(f"import {file} --data {text} --tokenizer {folder} --seq-len 32 --out {at}/imported --name copy")
    run(f"compare {at}/runs/model {at}/imported/copy --ref {at}/runs/reference --out {at}/gap")
    gap = read_gap(tmp_path / "gap")
    for part in (gap.on_all, gap.on_hits, gap.on_other):
        assert part["copy"].nll == pytest.approx(part["model"].nll, abs=1e-12)
    run(f"import {file} --data {text} --tokenizer {folder} --seq-len 32 --out {at}/alone --index {at}/i --name copy")
    run(f"compare {at}/runs/model --ref {at}/alone/copy --out {at}/gap2")  # its own labels


def test_imports_without_an_index_are_compared(data, text, folder, tmp_path) -> None:
    """Every repeated bigram is a hit, as without an index elsewhere, until `argap label` adds the counts."""
    at, out = str(tmp_path), tmp_path / "gap"
    windows = f"--data {text} --tokenizer {folder} --seq-len 32"
    for name, logprob in (("a", np.full(len(data.tokens), -1.0)), ("b", np.where(data.position % 2, -1.0, -2.0))):
        file = written(tmp_path / f"{name}.jsonl", rows_of(data, logprob))
        run(f"import {file} {windows} --out {at}/imported")
    compared = f"compare {at}/imported/b --ref {at}/imported/a --out {out}"
    run(compared)
    result = open_result(out)
    repeated = label(data).repeated
    hits = result.record.on_hits["b"]
    assert hits.n == repeated.sum() > 0
    assert hits.nll == np.where(data.position % 2, 1.0, 2.0)[repeated].mean()
    even = result.gap({"even": "pos % 2 = 0"}).query("slice == 'even' and model == 'b'")
    assert even["delta"].item() == 1
    with pytest.raises(ArgapError, match="train_count is null, run `argap label RESULT --index DIR`"):
        result.gap({"rare": "train_count < 10"})
    with pytest.raises(ArgapError, match=r"slice none: selects no token \(pos < 0\)$"):
        result.gap({"none": "pos < 0"})
    shipped = set(result.gap()["slice"])
    assert ("repeated" in shipped, "never_seen" in shipped) == (True, False)  # no count says that it was never seen
    run(f"index build {text} --tokenizer {folder} --out {at}/i")
    run(f"label {out} --index {at}/i --threshold 8")
    counted = read_gap(out)
    assert "never_seen" in set(open_result(out).gap()["slice"])
    assert (counted.threshold, counted.evaluation.data) == (8, (str(text),))
    with pytest.raises(ArgapError, match="threshold"):
        label_result(out, f"{at}/i", threshold=-1)
    assert read_gap(out) == counted  # refused before anything was rewritten
    run(f"{compared} --threshold 8")
    assert read_gap(out).estimates == counted.estimates  # the labels kept their counts


def test_a_comparison_reads_its_own_labels(data, text, folder, tmp_path) -> None:
    """Labels without counts that an earlier comparison left in the folder are not those of runs with an index."""
    at, out = str(tmp_path), tmp_path / "gap"
    windows = f"--data {text} --tokenizer {folder} --seq-len 32"
    file = written(tmp_path / "a.jsonl", rows_of(data))
    run(f"index build {text} --tokenizer {folder} --out {at}/i")
    run(f"import {file} {windows} --out {at}/plain")
    run(f"import {file} {windows} --out {at}/counted --index {at}/i")
    for imported in ("plain", "counted"):
        run(f"compare {at}/{imported}/a --ref {at}/{imported}/a --out {out} --threshold 8")
    result = open_result(out)
    assert result.threshold == 8
    counts = label(data, open_index(f"{at}/i")).train_count
    assert counts is not None
    assert len(result.tokens("train_count > 8")) == (counts > 8).sum() > 0
    shutil.rmtree(tmp_path / "counted" / "labels")
    run(f"compare {at}/counted/a --ref {at}/counted/a --out {at}/again --threshold 8")
    assert read_gap(tmp_path / "again").on_hits["a"] == result.record.on_hits["a"]
    shutil.rmtree(tmp_path / "i")
    run(f"compare {at}/counted/a --ref {at}/counted/a --out {at}/without")
    assert read_gap(tmp_path / "without").index is None


def test_runs_without_labels_that_are_not_compared(data, text, folder, tmp_path) -> None:
    at = str(tmp_path)
    for seq_len in (32, 16):
        cut = build_evaluation_set(open_corpus(text), load_tokenizer(folder), seq_len=seq_len)
        file = written(tmp_path / f"a{seq_len}.jsonl", rows_of(cut))
        run(f"import {file} --data {text} --tokenizer {folder} --seq-len {seq_len} --out {at}/imported")
    long, short = f"{at}/imported/a32", f"{at}/imported/a16"
    with pytest.raises(MismatchError, match=r"a16 holds evaluation set .*`seq_len` 16 against 32"):
        compare_runs([short], long, tmp_path / "none")
    compare_runs([long], long, tmp_path / "gap")
    with pytest.raises(MismatchError, match="gap/labels: labels of another comparison; choose another `out`"):
        compare_runs([short], short, tmp_path / "gap")
    text.write_text(json.dumps({"text": DOCUMENTS[0]}))
    with pytest.raises(
        MismatchError, match=r"a32 holds evaluation set .* the text is now .*; expected the text and windo"
    ):
        compare_runs([long], long, tmp_path / "none")
    assert not (tmp_path / "none").exists()


def run(command: str) -> None:
    done = CliRunner().invoke(app, command.split())
    assert done.exit_code == 0, (command, done.output, done.exception)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda rows: rows[40].update(token=7), r"document 0, position 40: expected token .*, found token 7 \("),
        (lambda rows: rows[-1].update(token=10**6), "document 2, .* found token 1000000; is"),
        (lambda rows: rows.pop(), "document 2, .* found the end"),
        (lambda rows: rows.append(dict(rows[-1])), "expected the end of the text, found token"),
        (
            lambda rows: rows[5].update(logprob=None),
            "position 5: log-prob null or NaN.*; was it made with `seq_len=32`",
        ),
        (lambda rows: rows[5].update(logprob=math.nan), "position 5: log-prob null or NaN"),
        (lambda rows: rows[5].update(logprob=0.3), "document 0, position 5: log-prob 0.3; expected a natural log"),
        (lambda rows: rows[5].update(logprob=float("inf")), "position 5: log-prob inf"),
        (lambda rows: rows[5].update(logprob=-1e308), r"position 5: log-prob -1e\+308; .* that float32 holds"),
        (lambda rows: rows[0].update(document=1), "document 0 follows document 1; expected the order of the text"),
        (lambda rows: [row.update(token=str(row["token"])) for row in rows], "token holds string; expected whole"),
        (lambda rows: rows[3].update(token=None), "token is null in 1 rows"),
        (lambda rows: [row.pop("logprob") for row in rows], "has document, token; expected document, token, logprob"),
        (lambda rows: rows.clear(), "no rows there"),
        (lambda rows: [row.update(logprob=-(2**60) - 1) for row in rows], "logprob: Integer value .* not in range"),
    ],
)
def test_a_file_that_does_not_fit_is_refused_in_one_line(data, text, folder, tmp_path, change: Any, said: str) -> None:
    rows = rows_of(data)
    change(rows)
    file = written(tmp_path / "bad.parquet", rows)
    with pytest.raises(ArgapError, match=f"bad.parquet: .*{said}") as refused:
        import_run(file, tmp_path / "out", tokenizer=folder, spec=EvaluationSpec(data=(str(text),), seq_len=32))
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "out").exists()


def test_windows_longer_than_the_run_s_are_refused(data, text, folder, tmp_path) -> None:
    """Of a window of 32 tokens, the second 16 were given up to 31 tokens of context, which a window of 16 lacks."""
    file = written(tmp_path / "long.jsonl", rows_of(data))
    said = (
        r"long\.jsonl: document 0, position 16: a log-prob at the first position of a window, where other windows have "
        "none; the file's own windows have up to 32 tokens, longer than `seq_len=16`: give the `seq_len` that it was"
    )
    for seq_len, expected in ((16, said), (24, r"document 0, position 32: log-prob null or NaN.*`seq_len=24`\?$")):
        spec = EvaluationSpec(data=(str(text),), seq_len=seq_len)
        with pytest.raises(ArgapError, match=expected):
            import_run(file, tmp_path / "out", tokenizer=folder, spec=spec)
    assert not (tmp_path / "out").exists()


def test_log_probs_given_a_bos_are_not_kept_at_the_first_position(data, text, folder, tmp_path) -> None:
    rows = [row | {"logprob": -1.0} for row in rows_of(data)]
    file = written(tmp_path / "bos.jsonl", rows)
    spec = EvaluationSpec(data=(str(text),), seq_len=32)
    logprob, _ = read_logprobs(import_run(file, tmp_path / "out", tokenizer=folder, spec=spec))
    np.testing.assert_array_equal(np.isnan(logprob), data.position == 0)


def test_an_import_waits_for_the_labels_of_another(data, text, folder, tmp_path) -> None:
    file, held, free = written(tmp_path / "server.jsonl", rows_of(data)), threading.Event(), threading.Event()

    def hold() -> None:
        with alone_in(tmp_path / "out" / "labels"):
            held.set()
            free.wait(10)

    other = threading.Thread(target=hold)
    other.start()
    held.wait(10)
    threading.Timer(0.5, free.set).start()
    spec = EvaluationSpec(data=(str(text),), seq_len=32)
    run = import_run(file, tmp_path / "out", tokenizer=folder, spec=spec, index=str(DEMO / "index"))
    other.join()
    assert run.finished is not None
    assert (tmp_path / "out" / "labels" / "labels.json").is_file()


def test_what_a_killed_import_left_of_the_labels_is_removed(data, text, folder, tmp_path) -> None:
    gone = 999_999_999  # no process has the number
    left = tmp_path / "out" / "labels" / f".labels.parquet.{gone}-{atomic._machine()}00000000.tmp"
    left.parent.mkdir(parents=True)
    left.touch()
    file = written(tmp_path / "server.jsonl", rows_of(data))
    spec = EvaluationSpec(data=(str(text),), seq_len=32)
    import_run(file, tmp_path / "out", tokenizer=folder, spec=spec, index=str(DEMO / "index"))
    assert (left.parent / "labels.json").is_file()
    assert not list(left.parent.glob(".*"))


def test_a_run_does_not_take_the_folder_of_the_labels(text, folder, tmp_path) -> None:
    for name in ("labels", "/labels"):
        with pytest.raises(ArgapError, match="its run and the labels would share the folder labels; choose another"):
            import_run(
                tmp_path / "x.jsonl",
                tmp_path / "out",
                tokenizer=folder,
                spec=EvaluationSpec(data=(str(text),)),
                name=name,
            )


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("PK\x03\x04", r"bad\.jsonl, line 1: not JSON .*; expected JSON lines, or Parquet in a file called \.parquet$"),
        ("[1, 2]\n", "item 1: expected an object, found int"),
        ('{"tokens": [1, 2], "logprobs": [null]}\n', "document 0 has 2 tokens and 1 logprobs"),
        ('{"tokens": 1, "logprobs": 2}\n', "tokens is not a list in every row"),
        (f'{{"tokens": [1, {10**30}], "logprobs": [null, -1]}}\n', r"bad\.jsonl: not readable .*too large"),
    ],
)
def test_json_lines_that_do_not_fit_are_refused(text, folder, tmp_path, content: str, said: str) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text(content)
    with pytest.raises(ArgapError, match=said):
        import_run(file, tmp_path / "out", tokenizer=folder, spec=EvaluationSpec(data=(str(text),), seq_len=32))
