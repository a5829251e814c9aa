"""Scoring a checkpoint of a known family: by which code, and that a run does not mix two."""

from typing import Any

import numpy as np
import pytest
import torch
from transformers import MambaConfig, MambaForCausalLM

from argap.checkpoints.find import find_checkpoint
from argap.corpus import open_corpus
from argap.errors import MismatchError
from argap.evaluation.windows import build_evaluation_set
from argap.records import SourceRecord
from argap.scoring.checkpoint import CheckpointSource
from argap.scoring.config import ScoreConfig
from argap.tokens.runs import read_logprobs


def test_both_backends_score_alike_and_are_not_mixed(tokenizer, shaken, tmp_path) -> None:
    torch.manual_seed(0)
    config = MambaConfig(vocab_size=8192, hidden_size=32, num_hidden_layers=2, state_size=4)
    shaken(MambaForCausalLM(config)).save_pretrained(tmp_path / "mamba")
    checkpoint = find_checkpoint(tmp_path / "mamba")
    data = build_evaluation_set(open_corpus("stdlib:heldout"), tokenizer, seq_len=64, limit_tokens=200)

    def run(folder: str, **options: Any) -> Any:
        source = CheckpointSource("m", checkpoint, ScoreConfig.of(dtype="float32", **options))
        return source.score(data, tmp_path / folder, SourceRecord())

    native, original = run("native"), run("hf", backend="hf")
    assert native.record.identity.backend == "native"
    assert original.record.identity.backend == "hf"
    ours, theirs = (read_logprobs(found)[0] for found in (native, original))
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4)
    with pytest.raises(MismatchError, match="backend"):
        run("native", backend="hf")
