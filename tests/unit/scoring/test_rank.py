"""Ranks of the true tokens against a full softmax, their column in the files, and runs with and without it."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from transformers import AutoModelForCausalLM

import argap
from argap.checkpoints.find import find_checkpoint
from argap.corpus import open_corpus
from argap.errors import ArgapError, MismatchError
from argap.evaluation.windows import build_evaluation_set
from argap.scoring import batches, heads
from argap.scoring.heads import of_targets
from argap.tokens import runs
from argap.tokens.runs import SCHEMA
from tests.conftest import save_model
from tests.unit.scoring.test_scorer import CONFIGS, run


@pytest.fixture(scope="module")
def data(tokenizer):
    return build_evaluation_set(open_corpus("stdlib:heldout"), tokenizer, seq_len=64, limit_tokens=2 * 64 + 30)


@pytest.fixture(scope="module")
def folders(tmp_path_factory, tokenizer) -> dict[str, Path]:
    kinds = ("gpt2", "gemma2", "granite")
    return {kind: save_model(tmp_path_factory.mktemp(kind), CONFIGS[kind], tokenizer) for kind in kinds}


def test_equal_logits_rank_by_id_as_top1_takes_the_lowest():
    logits = torch.tensor([[1.0, 3.0, 3.0, 2.0]]).expand(4, 4)
    found = of_targets(logits, torch.arange(4), rank=True)
    assert found.rank is not None
    assert found.rank.tolist() == [4, 1, 2, 3]
    assert found.top1.tolist() == [1, 1, 1, 1]
    ruled_out = of_targets(torch.tensor([[0.0, -torch.inf, -torch.inf]]), torch.tensor([2]), rank=True)
    assert (ruled_out.logprob.tolist(), ruled_out.rank.tolist()) == ([-np.inf], [3])  # pyright: ignore[reportOptionalMemberAccess]


def columns(folder: Path) -> dict[str, np.ndarray]:
    table = pq.read_table(folder / "tokens")
    return {name: table[name].to_numpy() for name in table.column_names}


def bounds(folder: Path, data, width: float) -> tuple[np.ndarray, np.ndarray]:
    """The lowest and the highest rank of each token, by a float64 softmax over the whole vocabulary: tokens whose
    log-probs differ from its own by less than ``width`` may come before it or after it."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    low, high = np.full((2, len(data.tokens)), -1)
    for start, end in zip(data.offsets[:-1], data.offsets[1:], strict=True):
        ids = torch.from_numpy(data.tokens[start:end].astype(np.int64))
        with torch.no_grad():
            logprobs = model(ids[None]).logits[0, :-1].double().log_softmax(-1)
        own = logprobs.gather(1, ids[1:, None])
        low[start + 1 : end] = 1 + (logprobs > own + width).sum(1).numpy()
        high[start + 1 : end] = (logprobs > own - width).sum(1).numpy()  # itself among them
    return low, high


@pytest.mark.parametrize(("kind", "head"), [("gpt2", True), ("gemma2", True), ("granite", True), ("gpt2", False)])
def test_ranks_are_those_of_a_full_softmax(folders, data, tmp_path, monkeypatch, kind, head):
    """Also where rows and vocabulary take several parts, and where the model gives its own logits."""
    monkeypatch.setattr(heads, "LOGITS", 5 * 8192)
    if not head:
        monkeypatch.setattr(batches, "find_head", lambda model, ids: None)
    checkpoint = find_checkpoint(folders[kind])
    finished = run(checkpoint, data, tmp_path / "ranked", rank=True)
    assert finished.finished.head == ("chunked" if head else "model")
    found, plain = columns(tmp_path / "ranked"), columns(run(checkpoint, data, tmp_path / "plain").folder)
    scored = data.position > 0
    low, high = bounds(folders[kind], data, 2e-5)
    assert (low[scored] <= found["rank"][scored]).all()
    assert (found["rank"][scored] <= high[scored]).all()
    if kind != "gemma2":  # whose cap makes many logits nearly equal
        assert (high - low).max() < 40  # of 8,192
    np.testing.assert_array_equal(found["rank"][scored] == 1, (found["top1"] == found["token"])[scored])
    np.testing.assert_allclose(found["logprob"], plain["logprob"], atol=1e-5, rtol=0)
    assert np.isnan(found["rank"][~scored]).all()


def test_only_runs_that_ask_for_ranks_have_the_column(folders, data, tmp_path):
    checkpoint = find_checkpoint(folders["gpt2"])
    assert pq.read_table(run(checkpoint, data, tmp_path / "plain").folder / "tokens").schema.equals(SCHEMA)
    ranked = run(checkpoint, data, tmp_path / "ranked", rank=True)
    assert pq.read_table(ranked.folder / "tokens").schema.equals(SCHEMA.append(pa.field("rank", pa.int32())))
    assert ranked.record.identity.rank


def test_a_run_resumes_with_the_same_choice_only(folders, data, tokenizer, tmp_path, monkeypatch):
    checkpoint = find_checkpoint(folders["gpt2"])
    monkeypatch.setattr(runs, "SHARD_TOKENS", 64)
    run(checkpoint, data, tmp_path / "ranked", rank=True)
    parts = sorted((tmp_path / "ranked" / "tokens").iterdir())
    before = [part.read_bytes() for part in parts]
    parts[1].unlink()
    run(checkpoint, data, tmp_path / "ranked", rank=True)
    assert [part.read_bytes() for part in parts] == before
    with pytest.raises(MismatchError, match="holds a run with rank True, asked for False"):
        run(checkpoint, data, tmp_path / "ranked")
    run(checkpoint, data, tmp_path / "plain")
    with pytest.raises(MismatchError, match="holds a run with rank False, asked for True"):
        run(checkpoint, data, tmp_path / "plain", rank=True)
    run(checkpoint, data, tmp_path / "plain", bos=tokenizer.token_text(3), overwrite=True)
    with pytest.raises(MismatchError, match="holds a run with bos 3, asked for None"):
        run(checkpoint, data, tmp_path / "plain")


def test_ranks_are_a_column_of_the_tokens(token_result, result):
    """``ref`` and ``m2`` have ranks there, ``m-1`` has none."""
    rows = {
        name: pq.read_table(token_result / name / "tokens")["rank"].drop_null().to_numpy() for name in ("ref", "m2")
    }
    where = {"deep": "rank.m2 > 3", "apart": "rank.ref <= 2 AND rank.m2 >= 4 OR abs(rank.ref - rank.m2) > 5"}
    found = result.gap(where).drop_duplicates("slice").set_index("slice")["n"]
    assert found["deep"] == (rows["m2"] > 3).sum() > 0
    apart = (rows["ref"] <= 2) & (rows["m2"] >= 4) | (abs(rows["ref"] - rows["m2"]) > 5)
    assert found["apart"] == apart.sum() > 0
    tokens = result.tokens("rank.m2 > 3", models=["m-1", "m2"])
    assert [field.name for field in tokens.schema.field("rank").type] == ["m2"]
    assert tokens["rank"].combine_chunks().field("m2").to_numpy().tolist() == rows["m2"][rows["m2"] > 3].tolist()
    assert "rank" not in result.tokens(models=["m-1"], limit=1).column_names
    with pytest.raises(
        ArgapError, match=r'condition "rank\."m-1" > 3": .*"m-1".*; `argap score --rank` keeps rank, .*; kn'
    ):
        result.gap({"none": 'rank."m-1" > 3'})


def test_slices_by_rank_are_checked_before_any_model_runs(folders, tmp_path):
    plain, out = str(folders["gpt2"]), tmp_path / "out"
    asked = {"data": "stdlib:heldout", "seq_len": 64, "limit_tokens": 200, "out": out}
    with pytest.raises(
        ArgapError, match=r"slice deep: condition .* not found.*; `argap score --rank` keeps rank, .*; kn"
    ):
        argap.score({"m": plain}, plain, slices={"deep": "rank.m > 3"}, **asked)
    assert not (out / "m").exists()
    result = argap.score({"m": plain}, plain, slices={"deep": "rank.m > 3"}, rank=True, **asked)
    assert [part.bin for part in result.record.named] == ["ar_hits", "deep"]


def test_a_server_has_no_logits_to_rank(folders, tmp_path):
    with pytest.raises(ArgapError, match="tiny: `rank`: a server returns no logits; leave `rank` out"):
        argap.score(
            "http://127.0.0.1:1/v1",
            str(folders["gpt2"]),
            model_name="tiny",
            tokenizer=str(folders["gpt2"]),
            data="stdlib:heldout",
            seq_len=64,
            limit_tokens=100,
            out=tmp_path / "out",
            rank=True,
        )
    assert not (tmp_path / "out" / "tiny").exists()
