"""A model in memory against a finished run: alone, by `argap.score`, by several processes, and through trainers."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers.processors import TemplateProcessing
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    LlamaConfig,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
    default_data_collator,
)

import argap
from argap.errors import ArgapError
from argap.integrations.next_token import logprobs_of_hidden, logprobs_of_logits
from argap.integrations.recall_gap import RecallGap
from argap.integrations.transformers import GapCallback
from argap.records import EvaluationSpec
from argap.results.pipeline import score_models
from argap.scoring.config import ScoreConfig
from argap.scoring.per_model import PerModel
from tests.builders.processes import said, torchrun
from tests.builders.sharded_models import SLICES
from tests.builders.tokenizers import byte_fallback, byte_level
from tests.conftest import drawn_model, index_of

TEXT = "the cat sat on the mat. hello world, the cat sat on the hat; return 12345 the cat "


def make(seed: int, vocab: int) -> Any:
    config = GPT2Config(vocab_size=vocab, n_embd=16, n_layer=1, n_head=2, n_positions=64, resid_pdrop=0.2)
    return drawn_model(config, seed)


def fast(tokenizer) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer._backend, eos_token="<e>")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A reference scored on four documents, with an index of its tokens; the tokenizer of all models."""
    place = tmp_path_factory.mktemp("place")
    tokenizer = byte_level(0, 40)
    make(0, tokenizer.vocab_size).save_pretrained(place / "reference")
    tokenizer.save(place / "reference")
    (place / "text").mkdir()
    for k in range(4):
        (place / "text" / f"{k}.txt").write_text(TEXT[7 * k :] + TEXT[: 9 * k + 20])
    index_of(tokenizer.encode(["the cat sat on the mat " * 3]), place / "index", tokenizer)
    spec = EvaluationSpec(data=(str(place / "text"),), seq_len=32)
    score_models(
        [], str(place / "reference"), place / "out", ScoreConfig(text=spec, index=str(place / "index"), threshold=2)
    )
    return place, tokenizer


def test_a_model_in_memory_is_scored_as_its_checkpoint(place, tmp_path):
    folder, tokenizer = place
    model = make(3, tokenizer.vocab_size)
    model.save_pretrained(tmp_path / "saved")
    tokenizer.save(tmp_path / "saved")
    options = {"data": folder / "text", "seq_len": 32, "index": folder / "index", "threshold": 2}
    saved = argap.score(tmp_path / "saved", folder / "reference", out=tmp_path / "a", **options)
    model.train()
    live = argap.score(
        model, folder / "reference", tokenizer=fast(tokenizer), out=tmp_path / "b", dtype="float32", **options
    )
    assert live.models == ["reference", "GPT2LMHeadModel"]
    expected, found = (
        [part[result.models[1]] for part in (result.record.on_all, result.record.on_hits, result.record.on_other)]
        for result in (saved, live)
    )
    for one, other in zip(found, expected, strict=True):
        assert (one.n, one.nll) == (other.n, pytest.approx(other.nll, abs=1e-5))
    whole, hits, rest = expected
    assert model.training

    figures = RecallGap(folder / "out" / "reference", threshold=2).measure(model)
    assert figures.nll == pytest.approx(whole.nll, abs=1e-5)
    assert figures.nll_ar_hits == pytest.approx(hits.nll, abs=1e-5)
    assert figures.nll_other == pytest.approx(rest.nll, abs=1e-5)
    assert figures.delta == pytest.approx(whole.delta, abs=1e-5)
    assert figures.contribution_ar_hits == pytest.approx(hits.contribution, abs=1e-5)
    assert figures.share_ar_hits == pytest.approx(hits.contribution / whole.delta, abs=1e-4)


def llama(vocab: int) -> Any:
    sizes: dict[str, Any] = {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
    }
    return drawn_model(LlamaConfig(vocab_size=vocab, max_position_embeddings=64, **sizes), 4).eval()


def test_slices_are_those_of_a_result(place, tmp_path):
    """Of the whole text, from log-probs of logits and of hidden states with the head, in batches of any shape."""
    folder, tokenizer = place
    model = llama(tokenizer.vocab_size)
    options = {"data": folder / "text", "seq_len": 32, "index": folder / "index", "threshold": 2}
    result = argap.score({"m": model}, folder / "reference", tokenizer=fast(tokenizer), out=tmp_path, **options)
    table = result.gap(SLICES).set_index(["slice", "model"])
    gap = RecallGap(folder / "out" / "reference", threshold=2, slices=SLICES)
    figures = gap.measure(model)
    assert [*figures.slices] == [*SLICES]
    for name, found in figures.slices.items():
        row = table.loc[name, "m"]
        assert (found.n, found.nll) == (row["n"], pytest.approx(row["nll"], abs=1e-5))
        assert (found.delta, found.contribution) == pytest.approx((row["delta"], row["contribution"]), abs=1e-5)
    metrics = figures.metrics()
    assert metrics["contribution_later"] == figures.slices["later"].contribution

    def by_logits(ids):
        return logprobs_of_logits(model(input_ids=ids).logits, ids)

    def by_hidden(ids):
        return logprobs_of_hidden(model.model(input_ids=ids).last_hidden_state, model.lm_head.weight, ids)

    def with_a_last_entry(ids):
        return torch.cat([by_logits(ids), torch.full((len(ids), 1), torch.nan)], dim=1)

    assert gap.measure_logprobs(by_logits, batch_size=2).metrics() == pytest.approx(metrics, abs=1e-5)
    assert gap.measure_logprobs(by_hidden, length=40).metrics() == pytest.approx(metrics, abs=1e-5)
    assert gap.measure_logprobs(with_a_last_entry, batch_size=64).metrics() == pytest.approx(metrics, abs=1e-5)


def test_functions_and_slices_that_cannot_be_measured_are_refused(place):
    folder, _ = place
    run = folder / "out" / "reference"
    gap = RecallGap(run)
    with pytest.raises(ArgapError, match=r"its function gave \(8, 5\) for ids of \(8, 32\); expected \(8, 31\)"):
        gap.measure_logprobs(lambda ids: torch.zeros(8, 5))
    with pytest.raises(ArgapError, match="the model: log-prob nan at window 0, position 1"):
        gap.measure_logprobs(lambda ids: torch.full((8, 31), torch.nan))
    with pytest.raises(ArgapError, match="`length` 8: the longest window has 32 tokens"):
        gap.measure_logprobs(lambda ids: ids, length=8)
    for condition, message in {
        "pos > 1000": "slice s: selects no token of the windows that are measured",
        "nll.m > 1": "slice s: .*nll.m",
    }.items():
        with pytest.raises(ArgapError, match=message):
            RecallGap(run, slices={"s": condition})
    own = PreTrainedTokenizerFast(tokenizer_object=byte_fallback(2, 30)._backend, eos_token="</s>")
    with pytest.raises(ArgapError, match="`slices`: conditions are on tokens of reference; expected its tokenizer"):
        RecallGap(run, tokenizer=own, slices={"s": "repeated"})


@pytest.mark.slow
def test_copies_shards_and_halves_of_a_model_have_its_figures(place, tmp_path):
    """On two processes: every one gets all figures, and all are told where one finds a log-prob of NaN."""
    folder, tokenizer = place
    model = llama(tokenizer.vocab_size)
    model.save_pretrained(tmp_path / "llama")
    run = folder / "out" / "reference"
    expected = RecallGap(run, threshold=2, slices=SLICES).measure(model).metrics()
    code = "from tests.builders.sharded_models import main; main()"
    assert torchrun(code, str(run), str(tmp_path / "llama"), folder=tmp_path) == [0, 0], said(tmp_path)[1]
    found = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    for each in found:
        for form, figures in each["figures"].items():
            assert figures == pytest.approx(expected, abs=1e-5), form
    assert "in another process" in found[0]["error"]
    assert "log-prob nan at window" in found[1]["error"]


@pytest.mark.slow
def test_the_trainers_processes_share_the_windows(place, tmp_path):
    folder, tokenizer = place
    llama(tokenizer.vocab_size).save_pretrained(tmp_path / "llama")
    arguments = [str(folder / "out" / "reference"), str(tmp_path / "llama")]
    found = []
    for fsdp in ([], ["by FSDP2"]):
        code = "from tests.builders.sharded_models import train; train()"
        assert torchrun(code, *arguments, *fsdp, folder=tmp_path) == [0, 0], said(tmp_path)[1]
        logged, nothing = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
        assert ([row["step"] for row in logged], nothing) == ([1, 2], [])
        assert logged[0]["eval_argap_nll"] != logged[1]["eval_argap_nll"]
        assert logged[0]["eval_argap_contribution_later"] != 0
        found.append(logged)
    for one, other in zip(*found, strict=True):
        assert one == pytest.approx(other, abs=1e-5)


@pytest.mark.filterwarnings("ignore")  # Lightning's own
def test_lightning_logs_the_figures(place, tmp_path):
    lightning = pytest.importorskip("lightning")
    folder, tokenizer = place
    gap = RecallGap(folder / "out" / "reference", threshold=2, slices=SLICES)

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = llama(tokenizer.vocab_size)

        def training_step(self, batch, _):
            return self.model(input_ids=batch["input_ids"], labels=batch["labels"]).loss

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

        def on_train_epoch_end(self) -> None:
            self.log_dict(gap.measure(self.model).metrics())

    module = Module()
    (ids,) = tokenizer.encode([TEXT * 8])
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    trainer = lightning.Trainer(max_epochs=1, accelerator="cpu", default_root_dir=tmp_path, **quiet)
    trainer.fit(module, torch.utils.data.DataLoader(Rows(ids), batch_size=2))
    logged = {name: float(value) for name, value in trainer.logged_metrics.items()}
    assert logged == pytest.approx(gap.measure(module.model).metrics(), abs=1e-5)


def test_fewer_windows_and_the_reference_itself(place):
    folder, _ = place
    run = folder / "out" / "reference"
    reference = AutoModelForCausalLM.from_pretrained(folder / "reference")
    figures = RecallGap(run, windows=3).measure(reference)
    assert figures.delta == pytest.approx(0, abs=1e-5)
    assert figures.nll != pytest.approx(RecallGap(run).measure(reference).nll, abs=1e-3)
    with pytest.raises(ArgapError, match="`windows` 0: expected a positive"):
        RecallGap(run, windows=0)
    small = make(0, 100)
    with pytest.raises(ArgapError, match="its vocabulary has 100 entries"):
        RecallGap(run).measure(small)


def test_a_reference_with_a_bos_gives_the_model_one(place, tmp_path):
    folder, _ = place
    spec = EvaluationSpec(data=(str(folder / "text"),), seq_len=32)
    score_models([], str(folder / "reference"), tmp_path / "bos", ScoreConfig(text=spec, bos=PerModel("<e>")))
    reference = AutoModelForCausalLM.from_pretrained(folder / "reference")
    without = RecallGap(folder / "out" / "reference").measure(reference)
    figures = RecallGap(tmp_path / "bos" / "reference").measure(reference)
    assert figures.delta == pytest.approx(0, abs=1e-5)
    assert figures.nll != pytest.approx(without.nll, abs=1e-4)


@pytest.mark.parametrize("adds_bos", [False, True])
def test_a_model_with_another_tokenizer(place, tmp_path, adds_bos):
    """Against the run of own tokens that a comparison by segments left, with the BOS of the tokenizer's rule."""
    folder, _ = place
    other = byte_fallback(2, 30)
    if adds_bos:
        template = TemplateProcessing(single="</s> $A", special_tokens=[("</s>", other.vocabulary["</s>"])])
        other._backend.post_processor = template
    own = PreTrainedTokenizerFast(tokenizer_object=other._backend, eos_token="</s>")
    model = make(5, other.vocab_size)
    result = argap.score(
        model,
        folder / "reference",
        tokenizer=own,
        data=folder / "text",
        seq_len=32,
        index=folder / "index",
        threshold=2,
        out=tmp_path,
    )
    gap = RecallGap(tmp_path / "own-tokens" / "reference", tokenizer=own, threshold=2)
    model_name = result.models[1]
    assert gap.unit == result.record.unit == "byte"
    figures = gap.measure(model)
    assert figures.nll == pytest.approx(result.record.on_all[model_name].nll, abs=1e-5)
    assert figures.nll_ar_hits == pytest.approx(result.record.on_hits[model_name].nll, abs=1e-5)
    without = RecallGap(tmp_path / "own-tokens" / "reference", tokenizer=own, threshold=2, bos="none").measure(model)
    assert (without.nll == pytest.approx(figures.nll, abs=1e-5)) is not adds_bos


def test_max_length_is_taken_at_its_word(place):
    folder, tokenizer = place
    model = make(3, tokenizer.vocab_size)
    model.config.n_positions = 16  # its weights have more
    with pytest.raises(ArgapError, match=r"takes at most 16 tokens, the windows have 32; use .* or `max_length=32`"):
        RecallGap(folder / "out" / "reference").measure(model)
    assert RecallGap(folder / "out" / "reference", max_length=32).measure(model).nll > 0
    short = drawn_model(GPT2Config(vocab_size=tokenizer.vocab_size, n_positions=16, n_embd=8, n_layer=1, n_head=1), 0)
    with pytest.raises(ArgapError, match=r"GPT2LMHeadModel of .* fails on 32 tokens .*; reduce `max_length`, or"):
        RecallGap(folder / "out" / "reference", max_length=32).measure(short)
    with pytest.raises(ArgapError, match="`max_length` 0: expected a positive whole number"):
        RecallGap(folder / "out" / "reference", max_length=0)


def test_measuring_leaves_no_trace(place):
    folder, tokenizer = place
    gap = RecallGap(folder / "out" / "reference")
    model = make(1, tokenizer.vocab_size)
    model.train()
    model.transformer.h[0].eval()  # a part that is frozen, say
    ids = torch.arange(40)[None]
    model(input_ids=ids, labels=ids).loss.backward()
    modes = [module.training for module in model.modules()]
    weights, gradients = ([x.detach().clone() for x in given] for given in (model.parameters(), grads(model)))
    state = torch.get_rng_state()
    types = [type(module) for module in model.modules()]
    draws = []  # as a model does that samples its features
    hook = model.base_model.register_forward_hook(lambda *_: draws.append(torch.rand(1)))
    gap.measure(model)
    hook.remove()
    assert draws
    assert [module.training for module in model.modules()] == modes
    assert [type(module) for module in model.modules()] == types
    assert all(map(torch.equal, model.parameters(), weights))
    assert all(map(torch.equal, grads(model), gradients))
    assert torch.equal(torch.get_rng_state(), state)
    model(input_ids=ids, labels=ids).loss.backward()  # nothing was left behind that autograd refuses
    assert all(parameter.requires_grad and not parameter.is_inference() for parameter in model.parameters())


def grads(model) -> list[torch.Tensor]:
    return [parameter.grad for parameter in model.parameters()]


class Rows(torch.utils.data.Dataset):
    def __init__(self, ids: np.ndarray) -> None:
        self.rows = [ids[k : k + 24] for k in range(0, len(ids) - 24, 24)]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, k: int) -> dict[str, torch.Tensor]:
        row = torch.from_numpy(self.rows[k].astype(np.int64))
        return {"input_ids": row, "labels": row}


def train(tokenizer, folder: Path, reference: Path | None) -> tuple[Any, Trainer]:
    model = make(7, tokenizer.vocab_size)
    args = TrainingArguments(
        output_dir=str(folder),
        max_steps=5,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        learning_rate=1e-2,
        logging_steps=1,
        report_to=["tensorboard"],
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
        dataloader_pin_memory=False,
        seed=3,
    )
    (ids,) = tokenizer.encode([TEXT * 8])
    trainer = Trainer(
        model=model,
        args=args,
        train_dataset=Rows(ids),
        processing_class=fast(tokenizer),
        data_collator=default_data_collator,
    )
    if reference is not None:
        trainer.add_callback(GapCallback(trainer, reference, every=2, threshold=2))
    trainer.train()
    return model, trainer


@pytest.fixture
def tensorboard(monkeypatch, tmp_path):
    """The values of each tag by step, read back from the files of a folder."""
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "logs"))

    def read() -> dict[str, dict[int, float]]:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        values: dict[str, dict[int, float]] = {}
        for file in (tmp_path / "logs").rglob("events.out.tfevents.*"):
            events = EventAccumulator(str(file))
            events.Reload()
            for tag in events.Tags()["scalars"]:
                values.setdefault(tag, {}).update({event.step: event.value for event in events.Scalars(tag)})
        return values

    return read


def test_the_trainer_logs_the_gap(place, tmp_path, tensorboard):
    folder, tokenizer = place
    run = folder / "out" / "reference"
    model, trainer = train(tokenizer, tmp_path / "with", run)
    logged = tensorboard()
    assert set(logged["eval/argap_nll_ar_hits"]) == {2, 4, 5}  # every second step and the last
    figures = RecallGap(run, threshold=2).measure(model)
    for name, value in figures.metrics().items():
        assert logged[f"eval/argap_{name}"][5] == pytest.approx(value, abs=1e-5), name
    assert logged["eval/argap_nll"][5] < logged["eval/argap_nll"][2]  # it has learnt
    history = [row for row in trainer.state.log_history if "eval_argap_delta" in row]
    assert [row["step"] for row in history] == [2, 4, 5]
    assert all(math.isfinite(row["eval_argap_delta"]) for row in history)

    plain, _ = train(tokenizer, tmp_path / "without", None)  # with dropout: the same draws, the same weights
    for own, other in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(own, other)


def test_weights_that_deepspeed_shards_are_refused_as_training_begins(place, tmp_path):
    folder, tokenizer = place
    args = TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to=[])
    trainer = Trainer(model=make(0, tokenizer.vocab_size), args=args)
    callback = GapCallback(trainer, folder / "out" / "reference")
    trainer.is_deepspeed_enabled = True
    with pytest.raises(ArgapError, match=r"^GapCallback: DeepSpeed shards .* saved checkpoints with `argap score`"):
        callback.on_train_begin(args, trainer.state, trainer.control)


def test_what_cannot_be_measured_is_refused(place, tmp_path):
    folder, tokenizer = place
    model = make(0, tokenizer.vocab_size)
    trainer = Trainer(model=model, args=TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to=[]))
    with pytest.raises(ArgapError, match="`every` 0: expected a positive"):
        GapCallback(trainer, folder / "out" / "reference", every=0)
    with pytest.raises(ArgapError):
        GapCallback(trainer, folder / "reference")  # a checkpoint, not a run
    with pytest.raises(ArgapError, match="a model in memory has no tokenizer; give `tokenizer=T`"):
        argap.score(model, folder / "reference", data=folder / "text", out=tmp_path / "o")
