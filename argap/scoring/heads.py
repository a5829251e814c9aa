"""Find a model's output head: the linear map, bias, scale and soft cap that turn hidden states into logits.

`argap.kernels.head.linear_logprob` fuses these with the softmax, so the logits are never stored. Model families
transform their logits in different ways, and configurations name the options inconsistently. Each candidate is
therefore checked against the model's logits on a short probe; if none matches, the model's own logits are used.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from argap.kernels.head.linear_logprob import linear_logprob

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SCALES = ("logit_scale", "lm_head_multiplier", "logits_scaling")
"""Logit scale in the configurations of Cohere, Falcon-H1 and Granite (Granite divides by it)."""
SOFT_CAPS = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")
"""The c of c·tanh(z / c) in the configurations of Gemma 2, RecurrentGemma and xLSTM."""
LOGITS = 2**24
"""Most logits in memory when ranks are requested: 64 MiB in float32."""


class OfTargets(NamedTuple):
    """Log-prob, top-1 id and rank of targets, each ``[N]``."""

    logprob: torch.Tensor
    """float32, nats."""
    top1: torch.Tensor
    """int64, the most likely id; the lowest on ties."""
    rank: torch.Tensor | None = None
    """int64, 1 + the number of ids with a larger logit, or with an equal logit and a lower id, so that the rank is 1
    exactly if ``top1`` is the target. None if not requested."""

    def each(self, function: Callable[[torch.Tensor], torch.Tensor]) -> "OfTargets":
        """Apply ``function`` to every field that is not None."""
        return OfTargets(
            function(self.logprob), function(self.top1), None if self.rank is None else function(self.rank)
        )


def joined(parts: Sequence[OfTargets]) -> OfTargets:
    """Concatenate ``parts``."""
    ranks = [part.rank for part in parts if part.rank is not None]
    logprob, top1 = torch.cat([part.logprob for part in parts]), torch.cat([part.top1 for part in parts])
    return OfTargets(logprob, top1, torch.cat(ranks) if ranks else None)


@dataclass(frozen=True)
class Head:
    """An output head. Logits are ``scale · (hidden @ linear.weight.T + linear.bias)``, then capped at ±``softcap``.

    Hidden states are first cast to the weight's dtype, as the families do that keep residuals in float32 (Mamba's).
    """

    linear: nn.Linear
    scale: float = 1.0
    softcap: float | None = None

    def logprobs(self, hidden: torch.Tensor, targets: torch.Tensor, *, rank: bool = False) -> OfTargets:
        """Return log-probs of ``targets [N]`` given ``hidden [N, D]``, the top-1 ids and, if requested, the ranks.

        Ranks need all logits of a row at once, so they are computed without the kernel, at most `LOGITS` in memory.
        """
        linear = self.linear
        hidden = hidden.to(linear.weight.dtype)
        if rank:
            rows = max(1, LOGITS // linear.out_features)
            portions = zip(hidden.split(rows), targets.split(rows), strict=True)
            return joined([of_targets(self._logits(h), ids, rank=True) for h, ids in portions])
        found = linear_logprob(hidden, linear.weight, targets, linear.bias, self.softcap, scale=self.scale, top1=True)
        assert found.top1 is not None
        return OfTargets(found.logprob, found.top1)

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return float32 logits ``[N, V]`` of ``hidden [N, D]``; a narrower weight is widened a few rows at a time."""
        weight, bias, wide = self.linear.weight, self.linear.bias, hidden.float()
        logits = hidden.new_empty((len(hidden), len(weight)), dtype=torch.float32)
        rows = max(1, LOGITS // weight.shape[1])
        for first in range(0, len(weight), rows):
            block = slice(first, first + rows)
            own = None if bias is None else bias[block].float()
            logits[:, block] = F.linear(wide, weight[block].float(), own)
        return _transformed(logits, self)


def find_head(model: "PreTrainedModel", ids: torch.Tensor) -> Head | None:
    """Return the head that reproduces the model's logits on the probe ``ids [1, T]``; None if no candidate does."""
    linear: Any = model.get_output_embeddings()
    if not isinstance(linear, nn.Linear) or model.base_model is model:
        return None
    if type(linear.weight.data) is not torch.Tensor or not linear.weight.is_floating_point():  # quantised
        return None
    hidden = getattr(model.base_model(input_ids=ids, use_cache=False), "last_hidden_state", None)
    if hidden is None or hidden.shape[-1] != linear.in_features:
        return None
    plain = linear(hidden.to(linear.weight.dtype)).float()
    own = model(input_ids=ids, use_cache=False).logits.float()
    if own.shape != plain.shape:
        return None
    exact = model.dtype == torch.float32
    largest = own.abs().max()
    heads = _proposals(model, linear)
    errors = [float((_transformed(plain, head) - own).abs().max() / largest) for head in heads]
    best = min(errors)
    if not best <= (1e-4 if exact else 2e-2):
        return None
    # Several heads may match within rounding: take the one closest to the configuration.
    rounding = 1e-6 if exact else 2**-8
    return next(head for head, error in zip(heads, errors, strict=True) if error <= max(best, rounding))


def logprobs_of_model(model: "PreTrainedModel", ids: torch.Tensor, *, rank: bool = False) -> OfTargets:
    """Compute `of_targets` for tokens 1 … T−1 of one window ``ids [T]`` from the model's own logits ``[T, V]``."""
    logits = model(input_ids=ids[None], use_cache=False).logits[0, :-1].float()
    return of_targets(logits, ids[1:], rank=rank)


def of_targets(logits: torch.Tensor, targets: torch.Tensor, *, rank: bool) -> OfTargets:
    """Return log-probs of ``targets [N]`` under ``logits [N, V]`` (float32), top-1 ids and, if requested, ranks."""
    own = logits.gather(1, targets[:, None])
    logprob = own[:, 0] - torch.logsumexp(logits, dim=1)
    before = None
    if rank:
        lower = torch.arange(logits.shape[1], device=logits.device) < targets[:, None]
        before = ((logits > own) | ((logits == own) & lower)).sum(1)
    return OfTargets(logprob, logits.argmax(dim=1), None if before is None else before + 1)


def _proposals(model: "PreTrainedModel", linear: nn.Linear) -> list[Head]:
    """Return candidate heads, from the one that the configuration describes to the plain linear map."""
    config = model.config.get_text_config()
    scales: list[float] = []
    for name in SCALES:
        value = getattr(config, name, None)
        if isinstance(value, int | float) and value:
            scales += [float(value), 1.0 / value]
    caps = [float(value) for name in SOFT_CAPS if (value := getattr(config, name, None))]
    return [Head(linear, scale, cap) for cap, scale in product([*caps, None], [*scales, 1.0])]


def _transformed(logits: torch.Tensor, head: Head) -> torch.Tensor:
    logits = logits * head.scale
    return logits if head.softcap is None else head.softcap * torch.tanh(logits / head.softcap)
