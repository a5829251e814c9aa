"""Log the gap of a model in training to a finished run, through the Trainer of transformers.

At regular steps the callback scores the model on the windows of that run and logs `GapFigures` under
``eval_argap_NAME`` through the trainer's own loggers (TensorBoard, Weights & Biases, trackio, …); TensorBoard and
Weights & Biases show them as ``eval/argap_NAME``.
"""

from collections.abc import Mapping
from os import PathLike
from typing import Any, Literal

from transformers import (
    PreTrainedTokenizerBase,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from argap.checkpoints.live import undisturbed
from argap.errors import ArgapError
from argap.integrations.next_token import logprobs_of_logits
from argap.integrations.recall_gap import GapFigures, RecallGap
from argap.metric.threshold import PAPER_THRESHOLD, Threshold

PREFIX = "eval_argap_"


class GapCallback(TrainerCallback):
    """A callback that logs `GapFigures` every ``every`` steps and at the end of training.

    Parameters
    ----------
    trainer
        The trainer that the callback is added to; its ``processing_class`` is the model's tokenizer, if it has one.
    reference
        Folder of a finished run of `argap score`, which is not scored again.
    every
        Optimizer steps between measurements.
    threshold, slices, windows, batch_size, bos, max_length
        As in `RecallGap`; under FSDP a ``batch_size`` of ``"auto"`` is the trainer's for evaluation.

    Several processes share the windows, and the main one logs. Weights that FSDP shards stay sharded: all processes run
    the model together. Those that DeepSpeed shards are refused when training begins.

    Raises
    ------
    ArgapError
        What `RecallGap` raises.

    Examples
    --------
    >>> from argap.integrations.transformers import GapCallback
    >>> trainer = Trainer(model=model, args=args, train_dataset=data)                             # doctest: +SKIP
    >>> trainer.add_callback(GapCallback(trainer, "runs/score/attention", every=500))             # doctest: +SKIP
    """

    def __init__(
        self,
        trainer: Trainer,
        reference: str | PathLike[str],
        *,
        every: int = 500,
        threshold: Threshold = PAPER_THRESHOLD,
        slices: str | PathLike[str] | Mapping[str, str] | None = None,
        windows: int | None = None,
        batch_size: int | Literal["auto"] = "auto",
        bos: str | None = None,
        max_length: int | None = None,
    ) -> None:
        if every < 1:
            raise ArgapError(f"`every` {every}: expected a positive whole number of steps")
        own = trainer.processing_class
        tokenizer = own if isinstance(own, PreTrainedTokenizerBase) else None
        self._trainer = trainer
        self._every = every
        self._batch_size: int | Literal["auto"] = batch_size
        self._gap = RecallGap(
            reference,
            tokenizer=tokenizer,
            threshold=threshold,
            slices=slices,
            windows=windows,
            batch_size=batch_size,
            bos=bos,
            max_length=max_length,
        )
        self._measured: int | None = None
        """The step of the latest measurement."""

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self._trainer.is_deepspeed_enabled:
            raise ArgapError(
                "GapCallback: DeepSpeed shards the weights across processes, but it needs the whole model in each, or "
                "FSDP; score saved checkpoints with `argap score`"
            )

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if state.global_step % self._every == 0:
            self._log(state)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if state.global_step != self._measured:
            self._log(state)

    def _log(self, state: TrainerState) -> None:
        self._measured = state.global_step
        figures = self._figures()
        if state.is_world_process_zero:
            self._trainer.log({PREFIX + name: value for name, value in figures.metrics().items()})

    def _figures(self) -> GapFigures:
        """Measure the model with all processes."""
        import torch.distributed as dist

        group = dist.group.WORLD if self._trainer.args.world_size > 1 else None
        model: Any = self._trainer.model_wrapped
        if not self._trainer.is_fsdp_enabled:
            return self._gap.measure(self._trainer.accelerator.unwrap_model(model), group=group)
        device, batch_size = self._trainer.args.device, self._batch_size
        with undisturbed(model):
            return self._gap.measure_logprobs(
                lambda ids: logprobs_of_logits(model(input_ids=ids, use_cache=False).logits, ids),
                device=device,
                group=group,
                batch_size=self._trainer.args.eval_batch_size if batch_size == "auto" else batch_size,
            )
