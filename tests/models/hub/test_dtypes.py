"""Families in bfloat16 and float16: the head sees what the family gives it, and log-probs are the model's own."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from argap.checkpoints.find import find_checkpoint
from argap.checkpoints.load import load_model
from argap.evaluation.windows import EvaluationSet
from argap.models import ArgapForCausalLM
from argap.scoring.batches import Batches
from argap.scoring.heads import logprobs_of_model
from tests.models.hub.families import VOCABULARY, tiny

FAMILIES = [
    "llama",
    "phi3",
    "gemma2",
    "cohere",
    "granite",
    "mamba",
    "mamba2",
    "falcon_mamba",
    "rwkv",
    "recurrent_gemma",
]
ROUNDING = {torch.float32: 1e-4, torch.bfloat16: 0.05, torch.float16: 0.02}
"""Nats between two forms of one softmax over the same logits."""


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request, tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp(request.param)
    tiny(request.param).save_pretrained(place)
    return place


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("backend", ["auto", "hf"])
def test_log_probs_are_those_of_the_models_own_logits(folder, windows, dtype: torch.dtype, backend: Any) -> None:
    model = load_model(find_checkpoint(folder), dtype=dtype, device="cpu", backend=backend)
    if backend == "hf" and isinstance(model, ArgapForCausalLM):
        pytest.fail("not transformers' code")
    assert model.get_output_embeddings().weight.dtype == dtype
    batches = Batches(model, windows, "cpu", 2, "m")
    assert batches.head is not None
    ids = torch.from_numpy(windows.tokens[:16].astype(np.int64))
    with torch.inference_mode():
        expected = logprobs_of_model(model, ids, rank=True)
        assert expected.logprob.std() > 0.1
        for batches.rank in (False, True):
            found = batches.logprobs(ids[None])
            torch.testing.assert_close(found.logprob[0, :15], expected.logprob, rtol=0, atol=ROUNDING[dtype])
            assert (found.rank is not None) == batches.rank
    assert found.rank is not None
    assert (found.rank[0, :15] - expected.rank).abs().max() <= VOCABULARY // 8


@pytest.fixture(scope="module")
def windows() -> EvaluationSet:
    tokens = np.random.default_rng(0).integers(3, VOCABULARY, 48).astype(np.int32)
    offsets = np.array([0, 16, 32, 48])
    return EvaluationSet(
        tokens=tokens,
        offsets=offsets,
        document_ends=np.array([48]),
        domains=[""],
        sources=["t"],
        seq_len=16,
        packing="packed",
        eos=None,
        tokenizer="t",
        tokenizer_fingerprint="t",
    )
