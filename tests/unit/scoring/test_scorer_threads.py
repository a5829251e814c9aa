"""On a CPU the windows of a batch are shared among threads, each with its share of torch's threads."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig

from argap.corpus import open_corpus
from argap.evaluation.windows import EvaluationSet, build_evaluation_set
from argap.models import ArgapForCausalLM
from argap.models.presets import build_config
from argap.scoring.batches import Batches
from argap.text.tokenizer import load_tokenizer

SMALL: dict[str, Any] = {"vocab_size": 8192, "hidden_size": 16}
LLAMA = LlamaConfig(**SMALL, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)
GPT2 = GPT2Config(vocab_size=8192, n_positions=64, n_embd=16, n_layer=1, n_head=2)
MODELS: dict[str, Callable[[], Any]] = {
    "gpt2": lambda: AutoModelForCausalLM.from_config(GPT2),
    "llama": lambda: AutoModelForCausalLM.from_config(LLAMA),
    "hybrid": lambda: ArgapForCausalLM(build_config("hybrid", **SMALL, num_hidden_layers=2, seq_len=64)),
}


@pytest.fixture(scope="module")
def data() -> EvaluationSet:
    """Windows of up to 48 tokens, some shorter."""
    corpus, tokenizer = open_corpus("stdlib:heldout"), load_tokenizer("argap/demo/tokenizer")
    return build_evaluation_set(corpus, tokenizer, seq_len=48, packing="document", limit_tokens=900)


@pytest.fixture
def threads() -> Iterator[int]:
    """Five threads of torch, restored afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(5)
    yield 5
    torch.set_num_threads(before)


@pytest.mark.parametrize("kind", MODELS)
def test_threads_give_the_results_of_one(kind: str, data: EvaluationSet, threads: int) -> None:
    torch.manual_seed(0)
    model = MODELS[kind]().eval()
    seen: list[tuple[str, int]] = []
    scorer = Batches(model, data, "cpu", 2, kind)
    both = threading.Barrier(2)

    def record(*_: Any) -> None:
        seen.append((threading.current_thread().name, torch.get_num_threads()))
        if len(seen) <= 2:
            both.wait(60)  # a thread that had ended its window would be given the next one, too

    model.base_model.register_forward_hook(record)
    advanced: list[int] = []
    logprob, top1 = scorer.score(range(data.windows), advanced.append).arrays()
    assert len({name for name, _ in seen}) == 2  # no more threads than windows of a batch
    assert {count for _, count in seen} == {threads // 2}
    assert torch.get_num_threads() == threads
    assert sum(advanced) == int(np.diff(data.offsets)[np.diff(data.offsets) > 1].sum())

    scorer.threads = 1
    expected, expected_top1 = scorer.score(range(data.windows)).arrays()
    np.testing.assert_allclose(logprob, expected, atol=2e-5)
    assert (top1 == expected_top1).mean() > 0.99


def test_an_error_in_a_thread_is_raised_and_the_threads_are_given_back(data: EvaluationSet, threads: int) -> None:
    model = MODELS["gpt2"]().eval()
    scorer = Batches(model, data, "cpu", "auto", "gpt2")

    def fail(*_: Any) -> None:
        raise RuntimeError("no memory")

    model.base_model.register_forward_hook(fail)
    with pytest.raises(RuntimeError, match="no memory"):
        scorer.score(range(data.windows))
    assert torch.get_num_threads() == threads


def test_a_model_in_memory_is_called_from_one_thread(data: EvaluationSet, threads: int) -> None:
    model = MODELS["gpt2"]().eval()
    assert Batches(model, data, "cpu", "auto", "gpt2", live=True).threads == 1
