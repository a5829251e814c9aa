"""The training loop: steps, with log lines, checkpoints and evaluations between them.

The CPU waits for the GPU only at log lines, checkpoints and evaluations. Losses stay on the device until then; all are
checked before anything is written, so a NaN is reported with its step and never reaches a checkpoint.

The order of training windows is a pure function of (data, seq_len, seed). Window ``w`` has tokens ``w · seq_len … (w +
1) · seq_len``, one more than ``seq_len``: the last is only a target, and the first input of the next window. Each epoch
is a permutation of all windows. Step ``s`` takes positions ``s · B … (s + 1) · B − 1`` of the concatenated epochs,
whatever the architecture and the number of devices.
"""

import math
import time
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from argap.errors import ArgapError, DivergedError
from argap.models.block import compile_layers
from argap.runtime.device import DTYPES, resolve_dtype
from argap.runtime.signals import Stopped, StopRequest
from argap.runtime.torchrun import Parallel
from argap.train.checkpoint import Position
from argap.train.config import TrainConfig
from argap.train.optimizer import build_optimizer, learning_rate
from argap.train.records import EvaluationLine, StepLine


class Windows:
    """Windows of a token array in training order. Legend: B windows, T = ``seq_len``."""

    def __init__(self, ids: np.ndarray, seq_len: int, seed: int) -> None:
        """Divide ``ids [N]`` into windows. Raises `ArgapError` if they are shorter than one window."""
        self.ids = ids
        self.seq_len = seq_len
        self.seed = seed
        self.count = (len(ids) - 1) // seq_len
        if self.count < 1:
            raise ArgapError(
                f"the data have {len(ids)} tokens; expected more than `seq_len`, {seq_len}: "
                "use more data or a smaller `seq_len`"
            )

    def in_training_order(self, start: int, count: int) -> np.ndarray:
        """Return positions ``start … start + count − 1`` of the endless order: int64 ``[B, T + 1]``."""
        positions = range(start, start + count)
        numbers = [epoch_order(self.count, self.seed, p // self.count)[p % self.count] for p in positions]
        return self.numbered(numbers)

    def numbered(self, numbers: list[int]) -> np.ndarray:
        """Return the windows with these numbers, in file order: int64 ``[B, T + 1]``."""
        batch = np.empty((len(numbers), self.seq_len + 1), dtype=np.int64)
        for row, number in enumerate(numbers):
            batch[row] = self.ids[number * self.seq_len : (number + 1) * self.seq_len + 1]
        return batch


@lru_cache(maxsize=2)  # a batch may span two epochs
def epoch_order(windows: int, seed: int, epoch: int) -> np.ndarray:
    """Return the permutation of ``range(windows)`` for one epoch, int64 ``[windows]``.

    Sorts the raw output of the counter-based generator Philox, whose stream NumPy guarantees never to change;
    `numpy.random.Generator.permutation` gives no such guarantee.
    """
    keys = np.random.Philox(key=np.array([seed, epoch], dtype=np.uint64)).random_raw(windows)
    return np.argsort(keys, kind="stable")


IGNORED = -100  # marks targets that are not scored; cross_entropy's default


def summed_nll(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Sum the NLL of all targets except `IGNORED`, in nats, from ``logits [B, T, V]`` and ids ``[B, T]``."""
    return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="sum")


class Objective(nn.Module):
    """A language model and its loss. Legend: B windows, T tokens, V vocabulary."""

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.model = model
        self.dtype = dtype
        self.summed_nll = summed_nll

    def compile_parts(self) -> None:
        """Compile each layer and the loss.

        The compiled loss never stores float32 logits: the conversion from bfloat16 is fused into the softmax.
        """
        compile_layers(self.model)
        self.summed_nll = torch.compile(summed_nll)

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the summed NLL of all targets except `IGNORED`, in nats, and in training the mixers' auxiliary loss.

        Ids are int64 ``[B, T]``. The auxiliary loss, None if there is none, is added to the mean loss per token (see
        `argap.models.mixer.Mixer.auxiliary_loss`).
        """
        with torch.autocast(inputs.device.type, self.dtype, enabled=self.dtype != torch.float32):
            output = self.model(input_ids=inputs, use_cache=False)
        return self.summed_nll(output.logits, targets), output.auxiliary_loss


class Trainer:
    """A model with its optimizer on one device. Legend: B windows, T = ``seq_len``."""

    def __init__(self, model: nn.Module, config: TrainConfig, parallel: Parallel) -> None:
        """Prepare to train; raises `ArgapError` if the batch cannot be split over the devices and micro-batches."""
        self.config, self.parallel = config, parallel
        self.share = _divide(config.batch_size, parallel.world, "batch_size", "the number of processes")
        self.micro = config.micro_batch_size or self.share
        _divide(self.share, self.micro, "batch_size of one device", "micro_batch_size")
        on_cuda = parallel.device.type == "cuda"
        dtype = DTYPES[resolve_dtype(config.dtype, str(parallel.device))]
        if on_cuda:
            torch.set_float32_matmul_precision("high")  # TF32 for the matrix products that autocast leaves in float32
        self.model = model.to(parallel.device).train()
        self.objective = Objective(self.model, dtype)
        if config.compile == "true" or (config.compile == "auto" and on_cuda):
            self.objective.compile_parts()
        self.optimizer = build_optimizer(self.model, config, parallel.device)
        self.distributed = None
        if parallel.world > 1:
            devices = [parallel.device] if on_cuda else None
            self.distributed = DistributedDataParallel(self.objective, device_ids=devices, gradient_as_bucket_view=True)

    def step(self, windows: Windows, step: int) -> torch.Tensor:
        """Run one optimizer step (counted from 0) on this process's share of its windows.

        Returns ``[2]`` float32 on the device: the mean NLL of the share before the update, and the norm of the whole
        gradient before clipping; with an auxiliary loss ``[3]``, the auxiliary loss last.
        """
        config = self.config
        # A mixer may draw random numbers; seeding by step makes a resumed run draw the same ones.
        torch.manual_seed(((config.seed * 1_000_003 + step) * 4096 + self.parallel.rank) % 2**64)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(step, config)
        start = step * config.batch_size + self.parallel.rank * self.share
        loss, auxiliary = torch.zeros((), device=self.parallel.device), None
        for offset in range(0, self.share, self.micro):
            batch = self._to_device(windows.in_training_order(start + offset, self.micro))
            # Gradients are averaged over the processes once, in the last micro-batch.
            partial = self.distributed is not None and offset + self.micro < self.share
            with self.distributed.no_sync() if partial and self.distributed else nullcontext():
                module = self.distributed or self.objective
                nll, extra = module(batch[:, :-1], batch[:, 1:])
                part = nll / (self.share * config.seq_len)
                if extra is None:
                    part.backward()
                else:
                    extra = extra * self.micro / self.share  # a mean over windows, like the loss
                    (part + extra).backward()
                    auxiliary = extra.detach() + (0 if auxiliary is None else auxiliary)
            loss += part.detach()
        limit = math.inf if config.grad_clip is None else config.grad_clip
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), limit)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return torch.stack([loss, norm] if auxiliary is None else [loss, norm, auxiliary.float()])

    @torch.no_grad()
    def evaluate(self, windows: Windows) -> float:
        """Return the mean NLL in nats over all ``windows``, in order."""
        self.model.eval()
        nll = torch.zeros((), dtype=torch.float64, device=self.parallel.device)
        for start in range(self.parallel.rank * self.micro, windows.count, self.parallel.world * self.micro):
            numbers = list(range(start, min(start + self.micro, windows.count)))
            batch = self._to_device(windows.numbered(numbers + [0] * (self.micro - len(numbers))))
            targets = batch[:, 1:].clone()
            targets[len(numbers) :] = IGNORED  # the last batch is padded to avoid recompiling for another shape
            nll += self.objective(batch[:, :-1], targets)[0]
        self.model.train()
        return self.parallel.sum(nll).item() / (windows.count * windows.seq_len)

    def run(
        self, windows: Windows, position: Position, interrupt: StopRequest, evaluation: Windows | None = None
    ) -> Iterator[StepLine | EvaluationLine | Position]:
        """Train from ``position`` to the end, yielding log lines, positions to save and finally the last position.

        Every process yields the same. Raises `DivergedError` naming the first step with a non-finite loss or gradient,
        and `Stopped`, after a position, on ``interrupt``.
        """
        config, step, total = self.config, position.step, self.config.last_step
        tokens_per_step = config.batch_size * config.seq_len
        pending: list[torch.Tensor] = []
        losses, seconds = list(position.losses), position.seconds
        interval_steps, interval_seconds = 0, 0.0
        mark = time.monotonic()
        while step < total:
            pending.append(self.step(windows, step))
            step += 1
            last = step == total
            log_due = last or step % config.log_every == 0
            save_due = not last and config.checkpoint_every > 0 and step % config.checkpoint_every == 0
            eval_due = evaluation is not None and (last or (config.eval_every > 0 and step % config.eval_every == 0))
            stop_due = interrupt.requested and self.parallel.world == 1
            if not (log_due or save_due or eval_due or stop_due):
                continue
            measured = (self.parallel.sum(torch.stack(pending)) / self.parallel.world).tolist()
            _check_finite(measured, first_step=step - len(pending) + 1)
            now = time.monotonic()
            seconds += now - mark
            interval_seconds += now - mark
            interval_steps += len(pending)
            losses += [loss for loss, *_ in measured]
            pending.clear()
            if log_due:
                _, norm, *auxiliary = measured[-1]
                yield StepLine(
                    step=step,
                    tokens=step * tokens_per_step,
                    loss=math.fsum(losses) / len(losses),
                    lr=learning_rate(step - 1, config),
                    grad_norm=norm,
                    tokens_per_s=interval_steps * tokens_per_step / interval_seconds,
                    auxiliary_loss=auxiliary[0] if auxiliary else None,
                )
                losses, interval_steps, interval_seconds = [], 0, 0.0
            if eval_due and evaluation is not None:
                yield EvaluationLine(step, step * tokens_per_step, self.evaluate(evaluation))
            # With several processes, all must stop at the same step.
            stop = self.parallel.sum(torch.tensor(float(interrupt.requested), device=self.parallel.device))
            stop_here = bool(stop.item()) and not last
            if save_due or stop_here:
                yield Position(step, tuple(losses), seconds)
            if stop_here:
                raise Stopped
            mark = time.monotonic()
        yield Position(step, tuple(losses), seconds)

    def _to_device(self, batch: Any) -> torch.Tensor:
        tensor = torch.from_numpy(batch)
        if self.parallel.device.type == "cuda":
            return tensor.pin_memory().to(self.parallel.device, non_blocking=True)
        return tensor.to(self.parallel.device)


def _check_finite(measured: Iterable[list[float]], first_step: int) -> None:
    for step, (loss, norm, *_) in enumerate(measured, start=first_step):  # the norm is the whole gradient's
        for name, value in (("loss", loss), ("norm of the gradient", norm)):
            if not math.isfinite(value):
                raise DivergedError(
                    f"step {step}: the {name} is {value}; expected a finite number. Nothing was saved after "
                    "the last checkpoint; try a smaller lr, a longer warm-up or a smaller grad_clip"
                )


def _divide(total: int, divisor: int, total_name: str, divisor_name: str) -> int:
    if total % divisor:
        raise ArgapError(f"{total_name}: {total} is not a multiple of {divisor_name}, {divisor}")
    return total // divisor
