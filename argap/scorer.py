"""The scorer: run a checkpoint over an evaluation set and keep the log-prob of every token.

Windows are batched, shorter ones padded on the right (a causal model's earlier positions do not see
it). The head is applied in chunks; a shard of windows is written when it is done, so a killed run goes
on where it stopped.
"""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch

from argap.checkpoint import Checkpoint, load_model, max_positions
from argap.errors import ArgapError
from argap.evaluation import EvaluationSet
from argap.kernels.linear_logprob import LogProb, linear_logprob
from argap.progress import progress, say
from argap.runs import (
    Run,
    begin_run,
    environment,
    finish_run,
    shard_path,
    shards_of,
    whole_shard,
    write_shard,
)

if TYPE_CHECKING:
    from transformers import PreTrainedModel

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
# Where --batch-size auto starts: on a CPU what a cache holds, on a GPU what fills it.
AUTO_BATCH_TOKENS = {"cpu": 2**12, "cuda": 2**17}
PROBE_TOKENS = 16


class ScoreOptions(NamedTuple):
    """How to run a model; ``auto`` dtype is float32 on a CPU, bfloat16 elsewhere."""

    dtype: str = "auto"
    device: str = "auto"
    batch_size: int | Literal["auto"] = "auto"
    trust_remote_code: bool = False


def score(
    checkpoint: Checkpoint,
    data: EvaluationSet,
    folder: Path,
    *,
    model_name: str,
    source: dict[str, Any],
    options: ScoreOptions,
    overwrite: bool = False,
) -> Run:
    """Write the run of ``checkpoint`` over ``data`` into ``folder``; finished shards are skipped.

    ``source`` records where the evaluation set came from (data, index). Raises `ArgapError` for a model
    that cannot take the windows or gives a NaN or infinite log-prob, `MismatchError` where the folder
    holds another run.
    """
    device = _device(options.device)
    dtype = _dtype(options.dtype, device)
    record = {
        "model": model_name,
        "checkpoint": {"name": checkpoint.name, "fingerprint": checkpoint.fingerprint},
        "source": source,
        "evaluation": data.describe(),
        "identity": {
            "checkpoint": checkpoint.fingerprint,
            "evaluation set": data.fingerprint,
            "dtype": dtype,
            "device": torch.device(device).type,
            "batch size": options.batch_size,
        },
        **environment(),
    }
    run = begin_run(folder, record, overwrite=overwrite)
    shards = shards_of(data)
    if run.finished and all(_whole(folder, k, data, windows) for k, windows in enumerate(shards)):
        return run
    model = load_model(checkpoint, dtype=DTYPES[dtype], device=device, trust_remote_code=options.trust_remote_code)
    _check_causal(model, checkpoint.name)
    _check_fits(model, data, checkpoint.name)
    scorer = _Scorer(model, data, device, options.batch_size)
    started = time.monotonic()
    try:
        done = _score_shards(scorer, shards, folder, model_name)
    except KeyboardInterrupt:
        say(f"{folder}: interrupted; finished shards stay, the same command goes on from there")
        raise
    seconds = time.monotonic() - started
    return finish_run(
        run,
        {
            "parameters": model.num_parameters(),
            "head": "chunked" if scorer.split else "model",
            "windows per batch": scorer.batch,
            "device name": torch.cuda.get_device_name() if device.startswith("cuda") else "cpu",
            "seconds": round(seconds, 3),
            "tokens per second": round(done / seconds, 1) if done else None,
        },
    )


def _score_shards(scorer: "_Scorer", shards: list[range], folder: Path, name: str) -> int:
    """Write the shards that are not there yet; returns how many tokens were scored."""
    data, done = scorer.data, 0
    with progress(f"scoring {name}", len(data.tokens)) as advance:
        for number, windows in enumerate(shards):
            size = int(data.offsets[windows.stop] - data.offsets[windows.start])
            if not _whole(folder, number, data, windows):
                logprob, top1 = scorer.score(windows)
                _check_finite(logprob, data, windows, name)
                write_shard(shard_path(folder, number), data, windows, logprob, top1)
                done += size
            advance(size)
    return done


class _Scorer:
    """A loaded model and how its log-probs are taken."""

    def __init__(self, model: "PreTrainedModel", data: EvaluationSet, device: str, batch: int | str) -> None:
        self.model = model
        self.data = data
        self.device = device
        limit = AUTO_BATCH_TOKENS.get(torch.device(device).type, 2**15)
        self.backs_off = batch == "auto"
        self.batch = max(1, limit // data.seq_len) if isinstance(batch, str) else batch
        self.head: Any = model.get_output_embeddings()
        self.softcap = getattr(model.config.get_text_config(), "final_logit_softcapping", None)
        self.split = self._head_splits_off()

    def score(self, windows: range) -> tuple[np.ndarray, np.ndarray]:
        """Log-prob float32 (NaN at position 0) and top-1 int32 (-1 there) of every token of ``windows``."""
        while True:
            try:
                return self._score(windows)
            except torch.OutOfMemoryError:
                if not self.backs_off or self.batch == 1:
                    raise ArgapError(
                        f"out of memory at {self.batch} windows of {self.data.seq_len} tokens; "
                        "choose a smaller --batch-size or --seq-len"
                    ) from None
            torch.cuda.empty_cache()
            self.batch //= 2
            say(f"out of memory: going on with {self.batch} windows a batch")

    @torch.inference_mode()
    def _score(self, windows: range) -> tuple[np.ndarray, np.ndarray]:
        offsets = self.data.offsets
        start = offsets[windows.start]
        size = int(offsets[windows.stop] - start)
        logprob = np.full(size, np.nan, dtype=np.float32)
        top1 = np.full(size, -1, dtype=np.int32)
        lengths = np.diff(offsets)
        by_length = sorted((w for w in windows if lengths[w] > 1), key=lambda w: -lengths[w])
        for first in range(0, len(by_length), self.batch):
            batch = by_length[first : first + self.batch]
            ids = np.zeros((len(batch), lengths[batch[0]]), dtype=np.int64)
            for row, w in enumerate(batch):
                ids[row, : lengths[w]] = self.data.tokens[offsets[w] : offsets[w + 1]]
            result = self._logprobs(torch.from_numpy(ids).to(self.device))
            found, best = result.logprob.cpu().numpy(), result.top1.cpu().numpy()
            for row, w in enumerate(batch):
                at, n = offsets[w] - start, lengths[w]
                logprob[at + 1 : at + n] = found[row, : n - 1]
                top1[at + 1 : at + n] = best[row, : n - 1]
        return logprob, top1

    def _logprobs(self, ids: torch.Tensor) -> LogProb:
        """Log-prob and top-1 of ids ``[B, T]``'s tokens 1 … T−1, each ``[B, T − 1]``."""
        targets = ids[:, 1:]
        if self.split:
            hidden = self.model.base_model(input_ids=ids, use_cache=False).last_hidden_state[:, :-1]
            head = self.head
            found = linear_logprob(hidden.flatten(0, 1), head.weight, targets.flatten(), head.bias, self.softcap)
            return LogProb(*(x.view(targets.shape) for x in found))
        rows = [self._own_logits(row) for row in ids]
        return LogProb(*(torch.stack(column) for column in zip(*rows, strict=True)))

    def _own_logits(self, ids: torch.Tensor) -> LogProb:
        """One window through the model's own head, whose logits ``[T, V]`` are held for that window only."""
        logits = self.model(input_ids=ids[None], use_cache=False).logits[0, :-1].float()
        picked = logits.gather(-1, ids[1:, None])[:, 0]
        return LogProb(picked - torch.logsumexp(logits, dim=-1), logits.argmax(dim=-1))

    @torch.inference_mode()
    def _head_splits_off(self) -> bool:
        """Whether the logits are the head's linear map of the trunk's output (and a known soft cap).

        Families scale or bend their logits in ways of their own; what a short probe does not confirm is
        scored through the model's own head.
        """
        model, head = self.model, self.head
        if not isinstance(head, torch.nn.Linear) or model.base_model is model:
            return False
        ids = torch.from_numpy(self.data.tokens[:PROBE_TOKENS].astype(np.int64)).to(self.device)[None]
        output = model.base_model(input_ids=ids, use_cache=False)
        hidden = getattr(output, "last_hidden_state", None)
        if hidden is None or hidden.shape[-1] != head.in_features:
            return False
        ours = head(hidden).float()
        if self.softcap is not None:
            ours = self.softcap * torch.tanh(ours / self.softcap)
        own = model(input_ids=ids, use_cache=False).logits.float()
        tolerance = 1e-4 if model.dtype == torch.float32 else 2e-2
        return ours.shape == own.shape and bool((ours - own).abs().max() <= tolerance * own.abs().max())


def _device(name: str) -> str:
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ArgapError(f"--device {name}: no CUDA device here; use --device cpu")
    return name


def _dtype(name: str, device: str) -> str:
    if name == "auto":
        return "float32" if torch.device(device).type == "cpu" else "bfloat16"
    if name not in DTYPES:
        raise ArgapError(f"--dtype {name}: expected auto, {', '.join(DTYPES)}")
    return name


def _whole(folder: Path, number: int, data: EvaluationSet, windows: range) -> bool:
    rows = int(data.offsets[windows.stop] - data.offsets[windows.start])
    return whole_shard(shard_path(folder, number), rows)


def _check_causal(model: "PreTrainedModel", name: str) -> None:
    """A mixer that sees later tokens gives no log-prob of the next one."""
    from argap.models.mixer import Mixer

    for module in model.modules():
        if isinstance(module, Mixer) and not module.causal:
            raise ArgapError(
                f"{name}: its mixer {type(module).__name__} is not causal; such models serve synthetic tasks only"
            )


def _check_fits(model: "PreTrainedModel", data: EvaluationSet, name: str) -> None:
    longest, limit = int(np.diff(data.offsets).max()), max_positions(model)
    if limit is not None and longest > limit:
        raise ArgapError(f"{name}: takes at most {limit} tokens, the windows have {longest}; use --seq-len {limit}")
    embedding: Any = model.get_input_embeddings()
    rows = embedding.weight.shape[0]
    highest = int(data.tokens.max())
    if highest >= rows:
        raise ArgapError(
            f"{name}: its vocabulary has {rows} entries, the text holds token id {highest}; "
            f"is {data.tokenizer} really its tokenizer?"
        )


def _check_finite(logprob: np.ndarray, data: EvaluationSet, windows: range, name: str) -> None:
    rows = slice(data.offsets[windows.start], data.offsets[windows.stop])
    wrong = ~np.isfinite(logprob) & (data.position[rows] > 0)
    if wrong.any():
        at = int(np.argmax(wrong))
        raise ArgapError(
            f"{name}: log-prob {logprob[at]} at window {data.window[rows][at]}, position {data.position[rows][at]}; "
            "a checkpoint that is broken, or a --dtype too narrow for it (try --dtype float32)"
        )
