"""Complete runs at toy size on a CPU: they learn, resume bit for bit, and reject invalid input."""

import json
import re
import resource
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from argap.errors import ArgapError, FormatError, MismatchError
from argap.files.atomic import read_json
from argap.records import as_json
from argap.runtime.device import deterministic_algorithms
from argap.train import TrainConfig, load_config, read_log, train
from argap.train.loop import Trainer, Windows
from argap.train.records import StepLine
from tests.builders.processes import begin
from tests.conftest import flip_bit


def toy(values: dict, **changes) -> TrainConfig:
    return load_config(None, values | changes)


def curve(folder: Path) -> list[tuple]:
    """Everything in the log that a resumed run must reproduce: all but the times."""
    return [
        tuple(v for k, v in as_json(line).items() if k != "tokens_per_s") for line in read_log(folder / "log.jsonl")
    ]


def assert_same_run(one: Path, other: Path) -> None:
    assert curve(one) == curve(other)
    a, b = load_file(one / "model.safetensors"), load_file(other / "model.safetensors")
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)


@pytest.fixture(scope="module")
def undisturbed(toy_tokenizer: Path, toy_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run, to compare interrupted ones with."""
    out = tmp_path_factory.mktemp("runs") / "undisturbed"
    train(toy(long_values(toy_tokenizer, toy_corpus)), out, device="cpu")
    return out


def long_values(tokenizer: Path, corpus: Path) -> dict:
    return {
        "tokenizer": str(tokenizer),
        "data": [{"path": str(corpus), "repeat": 2}],
        "eval_data": [str(corpus)],
        "eval_every": 50,
        "architecture": "attention",
        "hidden_size": 32,
        "num_layers": 2,
        "seq_len": 16,
        "batch_size": 8,
        "micro_batch_size": 4,
        "steps": 80,
        "warmup_steps": 5,
        "log_every": 7,
        "checkpoint_every": 20,
    }


def test_loss_falls_and_the_folder_is_a_model(toy_values: dict, toy_tokenizer: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    import argap.models  # noqa: F401

    config = toy(toy_values, save_dtype="bfloat16", eval_data=toy_values["data"])
    record = train(config, tmp_path, device="cpu")
    steps = [line for line in read_log(tmp_path / "log.jsonl") if isinstance(line, StepLine)]
    assert [line.step for line in steps] == list(range(4, 41, 4))
    assert list(as_json(steps[0])) == ["step", "tokens", "loss", "lr", "grad_norm", "tokens_per_s"]
    assert steps[-1].tokens == 40 * 8 * 16
    assert steps[0].loss > 3.8  # ln 64 = 4.16 at the start
    assert steps[-1].loss < steps[0].loss - 1
    assert record.finished is not None
    assert record.finished.loss == steps[-1].loss
    assert record.finished.eval_loss is not None
    assert record.finished.eval_loss < steps[0].loss - 1

    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    assert sum(p.numel() for p in model.parameters()) == record.parameters
    assert load_file(tmp_path / "model.safetensors").popitem()[1].dtype == torch.bfloat16
    assert (tmp_path / "tokenizer.json").read_bytes() == (toy_tokenizer / "tokenizer.json").read_bytes()
    # The logged evaluation is the plain mean over the file, recomputed here from the saved weights.
    (bin_file,) = (tmp_path / "tokens").glob("*/tokens.bin")
    ids = np.fromfile(bin_file, "<u2")
    batch = torch.from_numpy(Windows(ids, 16, 0).numbered(list(range((len(ids) - 1) // 16))))
    with torch.no_grad():
        logits = model(input_ids=batch[:, :-1]).logits.double()
    nll = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
    assert record.finished.eval_loss == pytest.approx(nll.item(), abs=5e-3)  # bfloat16 weights


def test_checkpoints_are_kept_and_are_models(toy_values: dict, tmp_path: Path) -> None:
    from argap.checkpoints.find import find_checkpoint
    from argap.checkpoints.load import load_model

    train(toy(toy_values), tmp_path, device="cpu")
    folders = sorted(p.name for p in (tmp_path / "checkpoints").iterdir())
    assert folders == ["step-20", "step-30"]
    checkpoint = find_checkpoint(tmp_path / "checkpoints" / "step-30")
    assert load_model(checkpoint, dtype=torch.float32, device="cpu").config.vocab_size == 64


def test_a_finished_run_is_not_repeated(toy_values: dict, tmp_path: Path) -> None:
    record = train(toy(toy_values), tmp_path, device="cpu")
    before = (tmp_path / "model.safetensors").stat().st_mtime_ns
    assert train(toy(toy_values), tmp_path, device="cpu") == record
    assert (tmp_path / "model.safetensors").stat().st_mtime_ns == before
    flip_bit(tmp_path / "model.safetensors", 3000)
    with pytest.raises(ArgapError, match=r"the run is finished, but model\.safetensors is not what it saved; train it"):
        train(toy(toy_values), tmp_path, device="cpu")
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ArgapError, match=r"the run is finished, but model\.safetensors is not there; train it again"):
        train(toy(toy_values), tmp_path, device="cpu")


def test_deterministic_operations_run_during_training_only(
    toy_values: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, seen = Trainer.step, []

    def noted(self: Trainer, windows: Windows, number: int) -> torch.Tensor:
        seen.append(torch.are_deterministic_algorithms_enabled())
        return step(self, windows, number)

    monkeypatch.setattr(Trainer, "step", noted)
    for deterministic in (True, False):
        train(
            toy(toy_values, steps=2, warmup_steps=0, deterministic=deterministic),
            tmp_path / str(deterministic),
            device="cpu",
        )
    assert seen == [True, True, False, False]
    assert not torch.are_deterministic_algorithms_enabled()
    lacking = "op does not have a deterministic implementation"
    with pytest.raises(ArgapError, match=f"`deterministic=True`: {lacking}; use"), deterministic_algorithms():
        raise RuntimeError(f"{lacking}\nmore")
    with pytest.raises(RuntimeError, match="out of memory"), deterministic_algorithms():
        raise RuntimeError("out of memory")


def test_a_record_older_than_the_setting_is_resumed(toy_values: dict, tmp_path: Path) -> None:
    record = train(toy(toy_values, steps=2, warmup_steps=0), tmp_path, device="cpu")
    values = json.loads((tmp_path / "train.json").read_text())
    del values["config"]["deterministic"], values["checksum"]
    (tmp_path / "train.json").write_text(json.dumps(values))
    assert train(toy(toy_values, steps=2, warmup_steps=0), tmp_path, device="cpu").finished == record.finished
    with pytest.raises(MismatchError, match="holds a run with deterministic False, asked for True"):
        train(toy(toy_values, steps=2, warmup_steps=0, deterministic=True), tmp_path, device="cpu")


HELD_IN_STEP_45 = """
import signal
from argap.cli import main
from argap.train.loop import Trainer
from tests.builders.processes import begin
from tests.conftest import flip_bit
step = Trainer.step
Trainer.step = lambda self, windows, number: signal.pause() if number == 44 else step(self, windows, number)
main()
"""


def test_a_killed_run_resumes_bit_for_bit(
    toy_tokenizer: Path, toy_corpus: Path, tmp_path: Path, undisturbed: Path
) -> None:
    values = long_values(toy_tokenizer, toy_corpus)
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(values))
    out = tmp_path / "out"
    process = begin(HELD_IN_STEP_45, "train", "run.yaml", "--out", str(out), "--device", "cpu", folder=tmp_path)
    while not list((out / "checkpoints").glob("step-*")) and process.is_alive():
        time.sleep(0.002)
    process.kill()
    process.join()
    assert json.loads((out / "train.json").read_text())["finished"] is None
    steps = [int(p.name.removeprefix("step-")) for p in (out / "checkpoints").glob("step-*")]
    assert max(steps) in (20, 40)
    # Lines after the checkpoint, and a line cut short by the kill, must go.
    with open(out / "log.jsonl", "a") as file:
        late = {"step": 79, "tokens": 0, "loss": 0.0, "lr": 0.1, "grad_norm": 0.0, "tokens_per_s": 1.0}
        file.write(json.dumps(late) + '\n{"step": 80, "to')
    train(load_config(None, values), out, device="cpu")
    assert_same_run(out, undisturbed)


def interrupt(
    config: TrainConfig, out: Path, stop: int, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Train until a signal arrives in the step ``stop``."""
    step = Trainer.step

    def interrupted(self: Trainer, windows: Windows, index: int) -> torch.Tensor:
        if index == stop - 1:
            signal.raise_signal(number)
        return step(self, windows, index)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            train(config, out, device="cpu")


def test_an_interrupted_run_resumes_bit_for_bit(
    toy_tokenizer: Path, toy_corpus: Path, tmp_path: Path, undisturbed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handler = signal.getsignal(signal.SIGINT)  # a shell's background job ignores the signal; the trainer does not
    config = load_config(None, long_values(toy_tokenizer, toy_corpus))
    interrupt(config, tmp_path, 33, signal.SIGINT, monkeypatch)
    assert (tmp_path / "checkpoints" / "step-33").is_dir()  # the step in hand was finished
    assert signal.getsignal(signal.SIGINT) is handler
    train(config, tmp_path, device="cpu")
    assert_same_run(tmp_path, undisturbed)


@pytest.mark.parametrize("keep", [0, 2])
def test_an_interrupt_leaves_the_checkpoints_of_an_undisturbed_run(
    toy_tokenizer: Path, toy_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep: int
) -> None:
    config = toy(long_values(toy_tokenizer, toy_corpus), keep_checkpoints=keep)
    for stop in (33, 77):  # between checkpoints, and after the last
        interrupt(config, tmp_path, stop, signal.SIGTERM, monkeypatch)
        assert (tmp_path / "checkpoints" / f"step-{stop}").is_dir()
    train(config, tmp_path, device="cpu")
    left = {path.name for path in (tmp_path / "checkpoints").iterdir()}
    assert left == ({"step-40", "step-60"} if keep else {"step-20", "step-40", "step-60"})


def test_half_a_removed_checkpoint_does_not_stay(
    toy_tokenizer: Path, toy_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = toy(long_values(toy_tokenizer, toy_corpus))

    remove = shutil.rmtree

    def killed(folder: Path, **options: Any) -> None:
        if folder.name == "step-20":
            (folder / "state.json").unlink()
            raise SystemExit
        remove(folder, **options)

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", killed)
        with pytest.raises(SystemExit):
            train(config, tmp_path, device="cpu")
    assert not (tmp_path / "checkpoints/step-20/state.json").exists()
    train(config, tmp_path, device="cpu")  # no checkpoint is written any more, which removed it
    assert {path.name for path in (tmp_path / "checkpoints").iterdir()} == {"step-40", "step-60"}


def test_two_architectures_see_the_same_windows(
    toy_values: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, list[np.ndarray]] = {"attention": [], "base_conv": []}
    take = Windows.in_training_order
    for name, batches in seen.items():

        def recorded(self: Windows, start: int, count: int, batches: list = batches) -> np.ndarray:
            batches.append(take(self, start, count))
            return batches[-1]

        monkeypatch.setattr(Windows, "in_training_order", recorded)
        config = toy(toy_values, architecture=name, steps=6)
        train(config, tmp_path / name, device="cpu", tokens=tmp_path / "shared")
    assert len(seen["attention"]) == 6
    assert np.array_equal(np.stack(seen["attention"]), np.stack(seen["base_conv"]))
    assert len(list((tmp_path / "shared").iterdir())) == 1


def test_micro_batches_change_rounding_only(toy_values: dict, tmp_path: Path) -> None:
    train(toy(toy_values), tmp_path / "whole", device="cpu")
    train(toy(toy_values, micro_batch_size=2), tmp_path / "parts", device="cpu")
    for one, other in zip(curve(tmp_path / "whole"), curve(tmp_path / "parts"), strict=True):
        assert other == pytest.approx(one, rel=1e-3)


def test_the_largest_seed_trains(toy_values: dict, tmp_path: Path) -> None:
    record = train(toy(toy_values | {"seed": 2**63 - 1, "steps": 2, "warmup_steps": 1}), tmp_path, device="cpu")
    assert record.finished is not None


def test_a_loss_in_a_log_that_is_not_finite_is_refused(toy_values: dict, tmp_path: Path) -> None:
    train(toy(toy_values), tmp_path, device="cpu")
    log = tmp_path / "log.jsonl"
    first = json.loads(log.read_text().splitlines()[0])
    log.write_text(json.dumps(first | {"loss": inf}))
    with pytest.raises(FormatError, match=r"log\.jsonl: line 1: Expected a finite number, got inf - at `\$\.loss`"):
        read_log(log)


def test_a_non_causal_mixer_is_refused(toy_values: dict, tmp_path: Path) -> None:
    values = {key: value for key, value in toy_values.items() if key not in ("architecture", "num_layers")}
    with pytest.raises(ArgapError, match="AutocorrelationConv: not causal, so its loss would see the future"):
        train(load_config(None, {**values, "mixers": ["attention", "base_conv_autocorrelation"]}), tmp_path)


def test_a_changed_configuration_is_refused(toy_values: dict, tmp_path: Path) -> None:
    train(toy(toy_values), tmp_path, device="cpu")
    with pytest.raises(MismatchError, match=r"holds a run with lr 0\.01, asked for 0\.02; .*`overwrite=True`"):
        train(toy(toy_values, lr=0.02), tmp_path, device="cpu")
    record = train(toy(toy_values, lr=0.02, steps=5), tmp_path, device="cpu", overwrite=True)
    assert record.config["lr"] == 0.02
    assert [line.step for line in read_log(tmp_path / "log.jsonl")] == [4, 5]
    assert not (tmp_path / "checkpoints").exists()


@pytest.mark.parametrize(("changed", "what"), [("data", "trained"), ("eval_data", "evaluated")])
def test_changed_data_are_refused(changed: str, what: str, toy_values: dict, tmp_path: Path) -> None:
    texts = {key: tmp_path / f"{key}.txt" for key in ("data", "eval_data")}
    for text in texts.values():
        text.write_text("w1 w2 w3 " * 100)
    values = toy_values | {"steps": 5, "eval_every": 5} | {key: [str(text)] for key, text in texts.items()}
    record = train(toy(values), tmp_path / "out", device="cpu")
    texts[changed].rename(tmp_path / "elsewhere")  # a finished run does not need it
    assert train(toy(values), tmp_path / "out", device="cpu") == record
    for words, change in (("w1 w2 w4 w5", "had 900 bytes and has 1,100 now"), ("w1 w3 w2 ", "has other contents now")):
        texts[changed].write_text(words * 100)
        with pytest.raises(MismatchError, match=rf"was trained on .*{changed}\.txt, which {change}; choose another"):
            train(toy(values), tmp_path / "out", device="cpu")
    path = tmp_path / "out" / "train.json"
    path.write_text(json.dumps(read_json(path) | {"finished": None}))  # as a killed run leaves it
    with pytest.raises(MismatchError, match=f"was {what} on tokens .* the data are now"):
        train(toy(values), tmp_path / "out", device="cpu")


def test_a_foreign_model_is_not_overwritten(toy_values: dict, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"someone's")
    with pytest.raises(ArgapError, match=r"holds a model but no train\.json"):
        train(toy(toy_values), tmp_path, device="cpu")
    assert (tmp_path / "model.safetensors").read_bytes() == b"someone's"


def test_nan_names_its_step_and_is_never_saved(
    toy_values: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = Trainer.step

    def broken_after_step_9(self: Trainer, windows: Windows, number: int) -> torch.Tensor:
        measured = step(self, windows, number)
        if number == 8:
            next(self.model.parameters()).data.fill_(float("nan"))
        return measured

    monkeypatch.setattr(Trainer, "step", broken_after_step_9)
    with pytest.raises(ArgapError, match="step 10: the loss is nan"):
        train(toy(toy_values, log_every=100), tmp_path, device="cpu")
    assert not (tmp_path / "checkpoints").exists()  # one was due after step 10


def test_a_broken_checkpoint_is_named(toy_values: dict, tmp_path: Path) -> None:
    train(toy(toy_values), tmp_path, device="cpu")
    record = read_json(tmp_path / "train.json")
    (tmp_path / "train.json").write_text(json.dumps(record | {"finished": None}))
    path = tmp_path / "checkpoints" / "step-30" / "optimizer.safetensors"
    saved = load_file(path)
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(FormatError, match="step-30: not a complete checkpoint"):
        train(toy(toy_values), tmp_path, device="cpu")
    path.with_name("checksums.json").unlink()  # read unchecked
    state = read_json(path.with_name("state.json"))
    for change, said in (({"step": "30"}, "Expected `int`"), ({"losses": [None]}, "losses"), ({"step": -1}, ">= 0")):
        path.with_name("state.json").write_text(json.dumps(state | change))
        with pytest.raises(FormatError, match=rf"step-30: not a complete checkpoint of this model \(.*{said}"):
            train(toy(toy_values), tmp_path, device="cpu")
    path.with_name("state.json").write_text(json.dumps(state))
    name = next(iter(saved))
    for changed, said in ((saved[name].int(), "type torch.int32"), (saved[name][:1], r"shape \[1, ")):
        save_file(saved | {name: changed}, path)
        with pytest.raises(FormatError, match=rf"step-30: not a complete checkpoint .*\({re.escape(name)} has {said}"):
            train(toy(toy_values), tmp_path, device="cpu")


def test_an_indivisible_batch_is_refused(toy_values: dict, tmp_path: Path) -> None:
    with pytest.raises(ArgapError, match="8 is not a multiple of micro_batch_size, 3"):
        train(toy(toy_values, micro_batch_size=3), tmp_path, device="cpu")


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Writes beyond ``size`` bytes of a file fail, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize(
    ("size", "stopped"),
    [
        (150_000, "checkpoints/step-10"),  # the weights fit (140 kB), the optimizer's moments do not
        (100_000, "checkpoints/step-10"),
    ],
)
def test_a_full_disk_in_the_writer_of_safetensors_is_one_line(
    toy_values: dict, tmp_path: Path, size: int, stopped: str
) -> None:
    config = load_config(None, toy_values)
    train(config, tmp_path / "whole", device="cpu")
    out = tmp_path / "out"
    with largest_file(size), pytest.raises(ArgapError, match=r"could not be written \(File too large\)") as raised:
        train(config, out, device="cpu")
    assert str(raised.value).startswith(str(out / stopped))
    assert "\n" not in str(raised.value)
    assert not list(out.rglob("*.tmp"))
    train(config, out, device="cpu")
    whole, again = (load_file(folder / "model.safetensors") for folder in (tmp_path / "whole", out))
    assert all(torch.equal(whole[name], again[name]) for name in whole)
    assert [line.step for line in read_log(out / "log.jsonl")] == list(range(4, 41, 4))
