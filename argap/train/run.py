"""Run or resume one training run in its folder.

The folder has ``config.json``, ``model.safetensors`` and the tokenizer (the finished model), ``train.json``
(configuration, data and outcome), ``log.jsonl``, ``checkpoints/step-N/`` and, unless a shared folder is given,
``tokens/``.
"""

import os
import statistics
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

import msgspec
import torch
from transformers import PreTrainedModel

from argap.errors import ArgapError, MismatchError
from argap.files.atomic import replacing_folder
from argap.files.checksums import sha256_of
from argap.files.lock import alone_in
from argap.files.regular import is_there
from argap.files.resumable import discard_parts, environment
from argap.models.fla.operators import Backend, choose_backend, use_fla
from argap.records import write_record
from argap.runtime.device import DTYPES, deterministic_algorithms, resolve_dtype
from argap.runtime.progress import say
from argap.runtime.signals import listening
from argap.runtime.torchrun import Parallel, join
from argap.runtime.trackers import Trackers, check_trackers
from argap.text.tokenizer import load_tokenizer, save_tokenizer
from argap.train.checkpoint import REMEDY, Position, checkpoints, load_checkpoint, save_checkpoint, tidy
from argap.train.config import TrainConfig
from argap.train.log import TrainLog, read_log
from argap.train.loop import Trainer, Windows
from argap.train.model import build_model, save_model
from argap.train.records import FORMAT, EvaluationLine, StepLine, TrainRecord, TrainResult, read_train
from argap.train.tokens import TokenFile, check_text, pack_tokens

ANOTHER = "choose another `out`, or `overwrite=True` to discard it"
MODEL_FILES = ("config.json", "generation_config.json", "model.safetensors")


def train(
    config: TrainConfig,
    out: Path,
    *,
    device: str = "auto",
    tokens: Path | None = None,
    overwrite: bool = False,
    parallel: Parallel | None = None,
    log_to: Sequence[str] = (),
) -> TrainRecord:
    """Train a model, or resume an interrupted run, and return the content of ``train.json``.

    Call it in every process that ``torchrun`` starts; the first one writes. A finished run is not repeated. ``tokens``:
    a folder of packed tokens to share with other runs; by default ``out/tokens``. ``device``: as in
    `argap.runtime.torchrun.join`. ``parallel``: the process group, if already joined. ``log_to``: trackers that also
    receive the log (`argap.runtime.trackers`).

    Raises `MismatchError` if ``out`` has a run with another configuration or other data (``overwrite`` discards it),
    `ArgapError` for invalid data, an invalid configuration or a non-finite loss, and KeyboardInterrupt, after a
    checkpoint, on SIGINT or SIGTERM.
    """
    check_trackers(log_to)
    with nullcontext(parallel) if parallel else join(device) as parallel, alone_in(out, main=parallel.is_main):
        before = None if overwrite else _earlier_record(out, config)
        parallel.wait()  # every process must have read the folder before any changes it
        if before and before.finished:
            _check_saved(out, before.finished)
            check_text(before, out, ANOTHER)
            if parallel.is_main:
                say(f"{out}: the run is finished; nothing to do")
                tidy_finished(out, config)
            return before
        if overwrite and parallel.is_main:
            _discard(out)
        model = build_model(config, load_tokenizer(config.tokenizer))
        backend = _set_backend(config, before, model, parallel.device)
        data, evaluation = _pack(config, tokens or out / "tokens", parallel)
        if before:
            _check_tokens(before, data, evaluation, out)
        with deterministic_algorithms(config.deterministic):
            return _train(config, backend, model, out, parallel, data, evaluation, log_to)


def _set_backend(
    config: TrainConfig, before: TrainRecord | None, model: PreTrainedModel, device: torch.device
) -> Backend:
    """Choose the operators that train ``model``; a resumed run keeps the ones it started with.

    Raises `ArgapError` if they cannot run here.
    """
    asked = (before.backend or "native") if before else config.backend
    backend = choose_backend(asked, model, device, DTYPES[resolve_dtype(config.dtype, str(device))])
    if backend == "fla":
        use_fla(model)
    return backend


def _train(
    config: TrainConfig,
    backend: Backend,
    model: PreTrainedModel,
    out: Path,
    parallel: Parallel,
    data: TokenFile,
    evaluation: TokenFile | None,
    log_to: Sequence[str],
) -> TrainRecord:
    """Train from the latest checkpoint to the end and save the model; the main process writes."""
    windows = Windows(data.ids, config.seq_len, config.seed)
    held_out = Windows(evaluation.ids, config.seq_len, config.seed) if evaluation else None
    trainer, device = Trainer(model, config, parallel), parallel.device
    on_cpu = f"{device.type}, {torch.get_num_threads()} threads"
    record = TrainRecord(
        format=FORMAT,
        config=config.as_json(),
        data=data.about,
        eval_data=evaluation.about if evaluation else None,
        parameters=sum(p.numel() for p in model.parameters()),
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else on_cpu,
        processes=parallel.world,
        **environment(),
        finished=None,
        backend=backend,
    )
    folder, keep, every = out / "checkpoints", config.keep_checkpoints, config.checkpoint_every
    saved = checkpoints(folder)
    position = load_checkpoint(saved[-1], model, trainer.optimizer) if saved else Position(0)
    parallel.wait()
    log = None
    if parallel.is_main:
        write_record(out / "train.json", record)
        save_tokenizer(config.tokenizer, out)
        trackers = Trackers(log_to, out, record.config, first_step=position.step)
        log = TrainLog(out / "log.jsonl", total_steps=config.last_step, step=position.step, trackers=trackers)
        epochs = config.last_step * config.batch_size / windows.count
        say(_in_words(record, config, epochs, position))
    with log or nullcontext(), listening() as interrupt:
        for event in trainer.run(windows, position, interrupt, held_out):
            if isinstance(event, Position):
                position = event
                if position.step < config.last_step:
                    if parallel.is_main:
                        save_checkpoint(folder, model, trainer.optimizer, position, beside=out, keep=keep, every=every)
                    parallel.wait()
            elif log:
                log.write(event)
    if log:
        log.note(f"saving the model in {out}")
        _save_model(model, out, config)
        record = msgspec.structs.replace(record, finished=_result(out, config, position, parallel))
        write_record(out / "train.json", record)
        tidy_finished(out, config)  # after the record: until then a kill resumes from the latest
    parallel.wait()
    return record


def tidy_finished(out: Path, config: TrainConfig) -> None:
    """Remove the checkpoints of interrupts from the folder of a finished run."""
    tidy(out / "checkpoints", keep=config.keep_checkpoints, every=config.checkpoint_every, finished=True)


def _in_words(record: TrainRecord, config: TrainConfig, epochs: float, position: Position) -> str:
    return (
        f"{record.parameters:,} parameters, {record.data.tokens:,} tokens, "
        f"{config.last_step:,} steps ({epochs:.2f} epochs) on {record.device}"
        + (", operators of flash-linear-attention" if record.backend == "fla" else "")
        + (f"; resumed from step {position.step:,}" if position.step else "")
    )


def _pack(config: TrainConfig, cache: Path, parallel: Parallel) -> tuple[TokenFile, TokenFile | None]:
    """Return the training and evaluation tokens, written by the first process while the others wait."""
    tokenizer = load_tokenizer(config.tokenizer)
    if not parallel.is_main:
        parallel.wait()
    # The shorter text first: if it is refused, little work is lost.
    evaluation = pack_tokens(config.eval_data, tokenizer, cache) if config.eval_data else None
    data = pack_tokens(config.data, tokenizer, cache)
    if parallel.is_main:
        parallel.wait()
    return data, evaluation


def _earlier_record(out: Path, config: TrainConfig) -> TrainRecord | None:
    """Return the ``train.json`` of an earlier attempt at this run, or None for a new folder."""
    if not is_there(out / "train.json"):
        _check_model(out)
        return None
    record = read_train(out)
    # The operators that ran, if auto chose, and the value of fields that are newer than the record.
    old = {"deterministic": False, "stop_after": None} | record.config | {"backend": record.backend or "native"}
    for key, value in config.as_json().items():
        if old.get(key) != value and (key, value) != ("backend", "auto"):
            raise MismatchError(f"{out}: holds a run with {key} {old.get(key)}, asked for {value}; {ANOTHER}")
    return record


def _check_tokens(before: TrainRecord, data: TokenFile, evaluation: TokenFile | None, out: Path) -> None:
    """Raise `MismatchError` if an unfinished run was trained, or evaluated, on other tokens than these."""
    pairs = [("trained", before.data, data)]
    if before.eval_data and evaluation:
        pairs.append(("evaluated", before.eval_data, evaluation))
    for what, was, now in pairs:
        if was.fingerprint != now.fingerprint:
            raise MismatchError(
                f"{out}: was {what} on tokens {was.fingerprint[:12]}, the data are now "
                f"{now.fingerprint[:12]}; {ANOTHER}"
            )


def _check_model(out: Path) -> None:
    others = (out / "model.safetensors").exists() or (out / "checkpoints").exists()
    if others and not is_there(out / "train.json"):
        raise ArgapError(f"{out}: holds a model but no train.json; choose another `out`")


def _check_saved(out: Path, finished: TrainResult) -> None:
    """Raise `ArgapError` if the model of a finished run is no longer there, or has other weights."""
    again = "train it again with `overwrite`"
    for name in ("config.json", "model.safetensors"):
        if not is_there(out / name):
            raise ArgapError(f"{out}: the run is finished, but {name} is not there; {again}")
    if finished.weights not in (None, sha256_of(out / "model.safetensors")):
        raise ArgapError(f"{out}: the run is finished, but model.safetensors is not what it saved; {again}")


def _discard(out: Path) -> None:
    """Remove an earlier run from ``out``. Packed tokens stay: their name identifies their content.

    Raises `ArgapError` for a model that no argap run wrote.
    """
    _check_model(out)
    discard_parts(out / "checkpoints", "step-*")
    for name in ("log.jsonl", *MODEL_FILES, "train.json"):  # train.json last: it marks the files as argap's
        (out / name).unlink(missing_ok=True)


def _save_model(model: PreTrainedModel, out: Path, config: TrainConfig) -> None:
    """Save the finished model in ``save_dtype``, replacing each file atomically."""
    model.to(getattr(torch, config.save_dtype))
    with replacing_folder(out / "model", remedy=REMEDY, sole_writer=True) as temporary:
        save_model(model, temporary)
    for path in (out / "model").iterdir():
        os.replace(path, out / path.name)
    (out / "model").rmdir()


def _result(out: Path, config: TrainConfig, end: Position, parallel: Parallel) -> TrainResult:
    lines = read_log(out / "log.jsonl")
    steps = [line for line in lines if isinstance(line, StepLine)]
    evaluations = [line for line in lines if isinstance(line, EvaluationLine)]
    on_cuda = parallel.device.type == "cuda"
    return TrainResult(
        steps=end.step,
        tokens=end.step * config.batch_size * config.seq_len,
        loss=steps[-1].loss,
        eval_loss=evaluations[-1].eval_loss if evaluations else None,
        tokens_per_s=statistics.median(line.tokens_per_s for line in steps),
        wall_time_s=end.seconds,
        peak_memory_bytes=torch.cuda.max_memory_allocated(parallel.device) if on_cuda else None,
        weights=sha256_of(out / "model.safetensors"),
    )
