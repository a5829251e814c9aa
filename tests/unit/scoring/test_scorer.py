"""The scorer against a plain transformers forward pass, and the errors of a run."""

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    CohereConfig,
    Gemma2Config,
    GPT2Config,
    GraniteConfig,
    LlamaConfig,
    MambaConfig,
)

from argap.checkpoints.find import find_checkpoint
from argap.corpus import open_corpus
from argap.errors import ArgapError, FormatError, MismatchError
from argap.evaluation.windows import build_evaluation_set
from argap.files import parquet
from argap.files.atomic import read_json
from argap.records import SourceRecord
from argap.runtime.trust import trusting
from argap.scoring import batches, scorer
from argap.scoring.config import ScoreConfig
from argap.scoring.local import CheckpointSource
from argap.tokens import runs
from argap.tokens.runs import open_run, read_logprobs
from tests.builders.processes import begin, said
from tests.conftest import save_model

ROOT = Path(__file__).parents[3]
SMALL: dict[str, Any] = {"vocab_size": 8192, "hidden_size": 32, "num_hidden_layers": 2}
CONFIGS = {
    "gpt2": GPT2Config(vocab_size=8192, n_embd=32, n_layer=2, n_head=2, n_positions=128),
    "llama": LlamaConfig(**SMALL, intermediate_size=64, num_attention_heads=2, max_position_embeddings=128),
    "mamba": MambaConfig(**SMALL, state_size=4),
    # A soft cap that bends the logits visibly, so that leaving it out would show.
    "gemma2": Gemma2Config(
        **SMALL,
        intermediate_size=64,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        final_logit_softcapping=0.5,
        max_position_embeddings=128,
    ),
    # Logits multiplied, and logits divided.
    "cohere": CohereConfig(**SMALL, intermediate_size=64, num_attention_heads=2, logit_scale=0.25),
    "granite": GraniteConfig(**SMALL, intermediate_size=64, num_attention_heads=2, logits_scaling=4.0),
}


@pytest.fixture(scope="module")
def data(tokenizer, tmp_path_factory):
    """Seven windows of 64 tokens and a shorter last one, from two modules of the standard library."""
    return build_evaluation_set(open_corpus("stdlib:heldout"), tokenizer, seq_len=64, limit_tokens=7 * 64 + 30)


@pytest.fixture(scope="module", params=list(CONFIGS))
def checkpoint(request, tokenizer, tmp_path_factory):
    return find_checkpoint(save_model(tmp_path_factory.mktemp(request.param), CONFIGS[request.param], tokenizer))


@pytest.fixture(scope="module")
def gpt2(tokenizer, tmp_path_factory):
    return find_checkpoint(save_model(tmp_path_factory.mktemp("gpt2"), CONFIGS["gpt2"], tokenizer))


def run(checkpoint, data, folder, **options):
    source = CheckpointSource("m", checkpoint, ScoreConfig.of(**options))
    return source.score(data, folder, SourceRecord(data=("stdlib:heldout",)))


def plain_logprobs(checkpoint, data) -> np.ndarray:
    """One window at a time, whole logits, float64 softmax."""
    model = AutoModelForCausalLM.from_pretrained(checkpoint.folder, dtype=torch.float32).eval()
    found = np.full(len(data.tokens), np.nan)
    for start, end in zip(data.offsets[:-1], data.offsets[1:], strict=True):
        ids = torch.from_numpy(data.tokens[start:end].astype(np.int64))
        with torch.no_grad():
            logprobs = model(ids[None]).logits[0].double().log_softmax(-1)
        found[start + 1 : end] = logprobs[torch.arange(len(ids) - 1), ids[1:]].numpy()
    return found


def test_logprobs_equal_a_plain_forward_pass(checkpoint, data, tmp_path):
    finished = run(checkpoint, data, tmp_path)
    logprob, top1 = read_logprobs(finished)
    expected = plain_logprobs(checkpoint, data)
    np.testing.assert_allclose(logprob, expected, atol=1e-4, rtol=0)
    assert np.isnan(logprob[data.position == 0]).all()
    assert (top1[data.position == 0] == -1).all()
    assert top1.max() < 8192
    assert finished.finished.head == "chunked"


def test_batch_size_and_sharding_change_only_rounding(checkpoint, data, tmp_path, monkeypatch):
    whole, _ = read_logprobs(run(checkpoint, data, tmp_path / "a", batch_size=8))
    monkeypatch.setattr(runs, "SHARD_TOKENS", 100)
    one, _ = read_logprobs(run(checkpoint, data, tmp_path / "b", batch_size=3))
    assert len(list((tmp_path / "b" / "tokens").iterdir())) > 1
    np.testing.assert_allclose(whole, one, atol=2e-5, rtol=0)


def test_a_head_that_is_not_a_plain_linear_map_is_left_to_the_model(gpt2, data, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(batches, "find_head", lambda model, ids: None)
    finished = run(gpt2, data, tmp_path, batch_size=3)
    assert finished.finished.head == "model"
    assert "its logits are not a linear map of its last hidden states" in capsys.readouterr().err
    np.testing.assert_allclose(read_logprobs(finished)[0], plain_logprobs(gpt2, data), atol=1e-4, rtol=0)


def test_the_probe_notices_logits_that_are_scaled(gpt2, data, tmp_path, monkeypatch):
    from transformers import GPT2LMHeadModel

    forward = GPT2LMHeadModel.forward

    def scaled(self, *args, **kwargs):
        output: Any = forward(self, *args, **kwargs)
        output.logits = output.logits * 0.5
        return output

    monkeypatch.setattr(GPT2LMHeadModel, "forward", scaled)
    finished = run(gpt2, data, tmp_path)
    assert finished.finished.head == "model"
    np.testing.assert_allclose(read_logprobs(finished)[0], plain_logprobs(gpt2, data), atol=1e-4, rtol=0)


def test_stored_rows_have_the_documented_schema(gpt2, data, tmp_path):
    run(gpt2, data, tmp_path)
    table = pq.read_table(tmp_path / "tokens")
    assert table.schema.equals(runs.SCHEMA)
    np.testing.assert_array_equal(table["token"].to_numpy(), data.tokens)
    first = table.filter(np.equal(table["pos"].to_numpy(), 0))
    assert first["logprob"].null_count == len(first) == data.windows
    assert first["top1"].null_count == data.windows
    record = read_json(tmp_path / "run.json")
    assert record["evaluation"]["fingerprint"] == data.fingerprint
    assert record["evaluation"]["tokenizer_fingerprint"] == data.tokenizer_fingerprint
    assert {"torch", "transformers", "argap"} <= set(record["versions"])


def contents(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted((folder / "tokens").iterdir())}


def test_a_rerun_skips_finished_shards_and_rewrites_lost_ones(gpt2, data, tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "SHARD_TOKENS", 100)
    run(gpt2, data, tmp_path)
    before = contents(tmp_path)
    untouched = (tmp_path / "tokens" / "part-00001.parquet").stat().st_mtime_ns
    (tmp_path / "tokens" / "part-00002.parquet").unlink()
    (tmp_path / "tokens" / "part-00000.parquet").write_bytes(b"PAR1 cut off")
    run(gpt2, data, tmp_path)
    assert contents(tmp_path) == before
    assert (tmp_path / "tokens" / "part-00001.parquet").stat().st_mtime_ns == untouched


KILLED = """
import os, signal, sys
from pathlib import Path
from argap.checkpoints.find import find_checkpoint
from argap.corpus import open_corpus
from argap.evaluation.windows import build_evaluation_set
from argap.records import SourceRecord
from argap.scoring import scorer
from argap.scoring.local import CheckpointSource
from argap.text.tokenizer import load_tokenizer
from argap.tokens import runs
runs.SHARD_TOKENS = 100
write, count = runs.write_shard, [0]
def write_then_die(*arguments):
    write(*arguments)
    count[0] += 1
    if count[0] == 2:
        Path(arguments[0]).with_name(".half.tmp").write_bytes(b"half")
        os.kill(os.getpid(), signal.SIGKILL)
scorer.write_shard = write_then_die
tokenizer = load_tokenizer(sys.argv[1])
data = build_evaluation_set(open_corpus("stdlib:heldout"), tokenizer, seq_len=64, limit_tokens=7 * 64 + 30)
source = CheckpointSource("m", find_checkpoint(sys.argv[1]))
scorer.score(source, data, Path(sys.argv[2]), SourceRecord(data=("stdlib:heldout",)))
"""


def test_a_killed_run_finishes_with_the_same_bytes(gpt2, data, tmp_path, monkeypatch):
    process = begin(KILLED, str(gpt2.folder), str(tmp_path / "killed"), folder=tmp_path)
    process.join()
    assert process.exitcode == -signal.SIGKILL, said(tmp_path)
    with pytest.raises(ArgapError, match="not finished; repeat its `argap score` command"):
        open_run(tmp_path / "killed")
    monkeypatch.setattr(runs, "SHARD_TOKENS", 100)
    run(gpt2, data, tmp_path / "killed")
    run(gpt2, data, tmp_path / "whole")
    (tmp_path / "killed" / "tokens" / ".half.tmp").unlink()
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")


def test_a_changed_configuration_is_refused_unless_overwritten(gpt2, data, tmp_path):
    run(gpt2, data, tmp_path, batch_size=2)
    with pytest.raises(MismatchError, match=r"holds a run with batch size 2, asked for 4.*`overwrite=True`"):
        run(gpt2, data, tmp_path, batch_size=4)
    assert run(gpt2, data, tmp_path, batch_size=4, overwrite=True).record.identity.batch_size == 4


def test_a_folder_without_a_run_is_left_alone(gpt2, data, tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ArgapError, match="not empty, and not a run"):
        run(gpt2, data, tmp_path)
    run(gpt2, data, tmp_path, overwrite=True)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_a_non_causal_mixer_is_refused_by_name(data, tmp_path, monkeypatch):
    from argap.models import ArgapConfig, ArgapForCausalLM
    from argap.models.mixers.attention import Attention

    model = ArgapForCausalLM(ArgapConfig(vocab_size=8192, hidden_size=32, num_hidden_layers=1))
    model.save_pretrained(tmp_path / "m")
    monkeypatch.setattr(Attention, "causal", False)
    with pytest.raises(ArgapError, match="mixer Attention: not causal"):
        run(find_checkpoint(tmp_path / "m"), data, tmp_path / "run")


def test_windows_longer_than_the_model_are_refused_with_the_flag(gpt2, tokenizer, tmp_path):
    data = build_evaluation_set(open_corpus("stdlib:heldout"), tokenizer, seq_len=256, limit_tokens=300)
    with pytest.raises(ArgapError, match="takes at most 128 tokens, the windows have 256; use `seq_len=128`"):
        run(gpt2, data, tmp_path)


def test_a_vocabulary_too_small_is_named(data, tmp_path):
    model = AutoModelForCausalLM.from_config(GPT2Config(vocab_size=100, n_embd=32, n_layer=1, n_head=2))
    model.save_pretrained(tmp_path / "m")
    with pytest.raises(ArgapError, match=r"vocabulary has 100 entries, the text has token id \d+"):
        run(find_checkpoint(tmp_path / "m"), data, tmp_path / "run")


def test_nan_names_window_and_position(gpt2, data, tmp_path, monkeypatch):
    original = batches.Shard.arrays

    def spoiled(self):
        logprob, top1 = original(self)
        logprob[64 + 5] = np.nan
        return logprob, top1

    monkeypatch.setattr(batches.Shard, "arrays", spoiled)
    with pytest.raises(ArgapError, match="log-prob nan at window 1, position 5"):
        run(gpt2, data, tmp_path)
    assert not (tmp_path / "tokens").exists()


def test_out_of_memory_backs_off_by_halves(gpt2, data, tmp_path, monkeypatch):
    original = batches.Batches._score

    def hungry(self, windows, advance):
        if self.batch > 4:
            raise torch.OutOfMemoryError
        return original(self, windows, advance)

    monkeypatch.setattr(batches.Batches, "_score", hungry)
    monkeypatch.setitem(batches.AUTO_BATCH_TOKENS, "cpu", 64 * 16)
    assert run(gpt2, data, tmp_path / "auto").finished.windows_per_batch == 4
    with pytest.raises(ArgapError, match="out of memory at 8 windows of 64 tokens; reduce `batch_size`"):
        run(gpt2, data, tmp_path / "fixed", batch_size=8)


def test_broken_and_pickled_checkpoints_are_refused(gpt2, tmp_path):
    broken = tmp_path / "broken"
    shutil.copytree(gpt2.folder, broken)
    weights = broken / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(FormatError, match=r"model\.safetensors: not a whole safetensors file"):
        find_checkpoint(broken)
    weights.unlink()
    (broken / "pytorch_model.bin").write_bytes(b"pickle")
    with pytest.raises(ArgapError, match=r"only pickled weights \(pytorch_model\.bin\), which can run code"):
        find_checkpoint(broken)
    (broken / "pytorch_model.bin").unlink()
    with pytest.raises(ArgapError, match=r"no weights there; expected model\.safetensors"):
        find_checkpoint(broken)


def test_missing_left_over_and_misshapen_weights_are_named(gpt2, data, tmp_path, capsys):
    from safetensors.torch import load_file, save_file

    shutil.copytree(gpt2.folder, tmp_path / "m")
    file, up = tmp_path / "m" / "model.safetensors", "transformer.h.1.mlp.c_fc.weight"
    weights = load_file(file)
    save_file({name: weights[name] for name in weights if name != up}, file, metadata={"format": "pt"})
    with pytest.raises(ArgapError, match=r"1 weights are missing .* transformer\.h\.1\.mlp\.c_fc\.weight"):
        run(find_checkpoint(tmp_path / "m"), data, tmp_path / "run")
    weights["lm_head.extra"] = torch.ones(2)
    save_file(weights, file, metadata={"format": "pt"})
    run(find_checkpoint(tmp_path / "m"), data, tmp_path / "with more")
    assert "1 weights are not part of the model; skipped, the first is lm_head.extra" in capsys.readouterr().err
    weights["transformer.ln_f.weight"] = torch.ones(3)
    save_file(weights, file, metadata={"format": "pt"})
    with pytest.raises(ArgapError, match=r"transformer\.ln_f\.weight has shape \[3\], its config.json says \[\d+\]"):
        run(find_checkpoint(tmp_path / "m"), data, tmp_path / "other")


def test_a_part_for_text_that_the_model_does_not_have_is_refused(gpt2, data, tmp_path):
    shutil.copytree(gpt2.folder, tmp_path / "m")
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    (tmp_path / "m" / "config.json").write_text(json.dumps(config | {"text_encoder": {"vocab_size": 3}}))
    with pytest.raises(ArgapError, match=r"m: its config\.json has a part for text, which GPT2LMHeadModel lacks"):
        run(find_checkpoint(tmp_path / "m"), data, tmp_path / "run")


def test_remote_code_needs_the_flag(gpt2, data, tmp_path):
    shutil.copytree(gpt2.folder, tmp_path / "m")
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    config |= {"auto_map": {"AutoModelForCausalLM": "modeling.Model"}, "model_type": "own"}
    (tmp_path / "m" / "config.json").write_text(json.dumps(config))
    with pytest.raises(ArgapError, match="`trust_remote_code=True`"):
        run(find_checkpoint(tmp_path / "m"), data, tmp_path / "run")


@pytest.mark.parametrize("trusted", [False, True])
def test_the_class_of_the_library_is_preferred_to_the_checkpoints_code(gpt2, data, tmp_path, capsys, trusted: bool):
    """Which needs no trust then, and does not run where there is trust."""
    shutil.copytree(gpt2.folder, tmp_path / "m")
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    config["auto_map"] = {"AutoConfig": "planted.Config", "AutoModelForCausalLM": "planted.Model"}
    (tmp_path / "m" / "config.json").write_text(json.dumps(config))
    (tmp_path / "m" / "planted.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    with trusting(trusted):
        own = run(find_checkpoint(tmp_path / "m"), data, tmp_path / "run")
    assert "m: not running its own code, as gpt2 has a class in the library" in capsys.readouterr().err
    assert not (tmp_path / "ran").exists()
    np.testing.assert_array_equal(read_logprobs(own)[0], read_logprobs(run(gpt2, data, tmp_path / "plain"))[0])


def test_a_newer_or_broken_run_is_named(gpt2, data, tmp_path):
    finished = run(gpt2, data, tmp_path)
    part = tmp_path / "tokens" / "part-00000.parquet"
    part.write_bytes(part.read_bytes()[:200])
    with pytest.raises(FormatError, match=r"part-00000\.parquet: not a complete Parquet file"):
        read_logprobs(finished)
    part.unlink()
    with pytest.raises(FormatError, match="0 rows in 0 parts, expected 478"):
        read_logprobs(finished)
    record = read_json(tmp_path / "run.json")
    (tmp_path / "run.json").write_text(json.dumps({**record, "format": 99}))
    with pytest.raises(FormatError, match="written by a newer argap"):
        open_run(tmp_path)


def test_a_full_disk_is_one_line(gpt2, data, tmp_path, monkeypatch):
    def full(*arguments, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(parquet.pq.ParquetWriter, "write_table", full)
    with pytest.raises(ArgapError, match=r"could not be written \(No space left on device\); nothing was left"):
        run(gpt2, data, tmp_path)
    monkeypatch.undo()
    assert list((tmp_path / "tokens").iterdir()) == []
    assert run(gpt2, data, tmp_path).finished


def test_on_a_processor_shards_are_half_a_minutes_work_of_the_model(gpt2, data, tmp_path, monkeypatch):
    whole = run(gpt2, data, tmp_path / "whole")
    assert whole.record.shard_tokens is None  # so small a model has shards of the usual size
    monkeypatch.setattr(scorer, "SHARD_WORK", 130 * gpt2.weights)
    small = run(gpt2, data, tmp_path / "small")
    assert small.record.shard_tokens == 130
    assert len(list((tmp_path / "small" / "tokens").iterdir())) == 4
    monkeypatch.setattr(scorer, "SHARD_WORK", 10**12)  # as another version of argap might plan
    before = contents(tmp_path / "small")
    assert run(gpt2, data, tmp_path / "small").record.shard_tokens == 130
    assert contents(tmp_path / "small") == before
    np.testing.assert_allclose(read_logprobs(small)[0], read_logprobs(whole)[0], atol=2e-5)
