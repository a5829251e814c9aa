"""A checkpoint of a known family: by which code it is scored, and that flash-linear-attention changes no other's."""

from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers import MambaConfig, MambaForCausalLM

from argap.checkpoints.find import find_checkpoint
from argap.corpus import open_corpus
from argap.errors import MismatchError
from argap.evaluation.windows import build_evaluation_set
from argap.models.hub.registry import find_family, original_class, register_fla, taken_over
from argap.records import SourceRecord
from argap.scoring.config import ScoreConfig
from argap.scoring.local import CheckpointSource
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


@pytest.mark.filterwarnings("ignore")
def test_other_checkpoints_load_as_before_fla_was_imported() -> None:
    pytest.importorskip("fla")
    gla = find_family({"model_type": "gla"})
    assert gla is not None
    assert {"bitnet", "mamba", "mamba2"} <= taken_over().keys()
    for take_over in (lambda: register_fla("x"), lambda: original_class("x", gla)):
        take_over()
        for model_type, name in taken_over().items():
            config = transformers.AutoConfig.for_model(model_type)
            assert type(config) is getattr(transformers, name)
    model = transformers.AutoModelForCausalLM.from_config(
        transformers.MambaConfig(vocab_size=8, hidden_size=8, num_hidden_layers=1, state_size=2)
    )
    assert type(model).__module__.startswith("transformers.")
