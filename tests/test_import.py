"""``argap import``: the same run as ``argap score`` gives, and refusals that name document and position."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel
from typer.testing import CliRunner

from argap import atomic
from argap.cli import app
from argap.comparison import compare_runs
from argap.corpus import open_corpus
from argap.errors import ArgapError
from argap.evaluation import EvaluationSet, build_evaluation_set
from argap.importing import import_run
from argap.records import EvaluationSpec
from argap.runs import open_run, read_logprobs

DEMO = Path(__file__).parent.parent / "argap" / "demo"
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
    _, scored, imported = json.loads((tmp_path / "gap" / "gap.json").read_text())["rows"]
    assert imported["model"] == "copy"
    for part in ("overall", "ar_hits", "other"):
        assert imported[part]["n"] == scored[part]["n"]
        assert imported[part]["nll"] == pytest.approx(scored[part]["nll"], abs=1e-12)
    with pytest.raises(ArgapError, match=r"no labels beside a run; expected .*`argap import --index DIR`"):
        compare_runs([f"{at}/imported/copy"], f"{at}/imported/copy", tmp_path / "none")
    run(f"import {file} --data {text} --tokenizer {folder} --seq-len 32 --out {at}/alone --index {at}/i --name copy")
    run(f"compare {at}/runs/model --ref {at}/alone/copy --out {at}/gap2")  # its own labels


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
        (lambda rows: rows[5].update(logprob=None), "document 0, position 5: log-prob missing"),
        (lambda rows: rows[5].update(logprob=0.3), "document 0, position 5: log-prob 0.3; expected a natural log"),
        (lambda rows: rows[5].update(logprob=float("inf")), "position 5: log-prob inf"),
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
        ("<html>", r"bad\.jsonl, line 1: not JSON"),
        ("[1, 2]\n", "line 1: expected an object, found list"),
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
