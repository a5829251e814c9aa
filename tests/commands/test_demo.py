"""The shipped files are consistent, and the demo reproduces the paper's finding on part of its text."""

import json
from pathlib import Path

import pytest

from argap import demo
from argap.bigram_index.store import open_index
from argap.checkpoints.references import BUILT_IN
from argap.files.atomic import read_json
from argap.records import EvaluationSpec
from argap.results.pipeline import score_models
from argap.scoring.config import ScoreConfig
from argap.text.tokenizer import load_tokenizer

CHECKPOINTS = sorted((demo.HERE / "checkpoints").iterdir())


def test_the_reference_and_a_gated_convolution_are_shipped():
    assert {p.name for p in CHECKPOINTS} >= {"attention", "base_conv"}
    assert [Path(p).name for p in demo.checkpoints()] == ["base_conv", "hybrid"]
    assert BUILT_IN["attention"].data == ("stdlib:heldout",)


@pytest.mark.parametrize("folder", CHECKPOINTS, ids=lambda p: p.name)
def test_checkpoints_are_small_and_share_one_tokenizer(folder, tokenizer):
    assert (folder / "model.safetensors").stat().st_size <= 14_000_000
    assert load_tokenizer(folder).fingerprint == tokenizer.fingerprint
    record = read_json(folder / "train.json")
    assert record["data"]["tokenizer_fingerprint"] == tokenizer.fingerprint
    assert record["finished"]["steps"] == record["config"]["steps"]
    assert record["config"]["architecture"] == folder.name
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "loss" in line][-1] == record["finished"]["steps"]


def test_all_checkpoints_saw_the_same_tokens():
    assert len({read_json(p / "train.json")["data"]["fingerprint"] for p in CHECKPOINTS}) == 1


def test_the_index_counts_one_pass_and_knows_how_many_there_were(tokenizer):
    index = open_index(demo.HERE / "index")
    assert index.tokenizer_fingerprint == tokenizer.fingerprint
    # A pass reads a source `repeat` times; the trainer adds one EOS a document.
    trained = read_json(demo.HERE / "checkpoints" / "attention" / "train.json")
    sources = trained["data"]["sources"]
    assert [s["repeat"] for s in sources] == [3, 1, 1, 1, 1]
    assert index.sources.count("corpora/stdlib-train.parquet") == 2  # besides `corpora`, which holds it once
    assert index.tokens == sum(s["tokens"] - s["documents"] for s in sources)
    assert index.documents == sum(s["documents"] for s in sources)
    assert index.passes == trained["finished"]["tokens"] / trained["data"]["tokens"]
    index.verify()


def test_attention_recalls_better_than_the_convolution(tmp_path):
    gap = score_models(
        [str(demo.HERE / "checkpoints" / "base_conv")],
        "attention",
        tmp_path,
        ScoreConfig(
            text=EvaluationSpec(limit_tokens=2 * 2048), threshold=5492
        ),  # 1,250 occurrences in text that was read 4.39 times
    )
    assert gap.models == ["attention", "base_conv"]
    hits = gap.on_hits["base_conv"]
    assert gap.deltas["base_conv"] > 0.4
    assert hits.delta > 1.0
    assert hits.share > 0.5
