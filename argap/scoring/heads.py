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

from argap.kernels.head.linear_logprob import Logits, linear_logprob

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SCALES = ("logit_scale", "lm_head_multiplier", "logits_scaling")
"""Logit scale in the configurations of Cohere, Falcon-H1 and Granite (Granite divides by it)."""
SOFT_CAPS = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")
"""The c of c·tanh(z / c) in the configurations of Gemma 2, RecurrentGemma and xLSTM."""
LOGITS = 2**24
"""Most logits in memory when ranks are requested: 64 MiB in float32."""


class OfTargets(NamedTuple):
    """Predictions of targets, each ``[N]``; None if not requested."""

    logprob: torch.Tensor
    """float32, nats."""
    top1: torch.Tensor
    """int64, the most likely id; the lowest on ties."""
    rank: torch.Tensor | None = None
    """int64, 1 + the number of ids with a larger logit, or with an equal logit and a lower id, so that the rank is 1
    exactly if ``top1`` is the target."""
    entropy: torch.Tensor | None = None
    """float32, nats: of the whole distribution."""
    kl: torch.Tensor | None = None
    """float32, nats: KL(reference ‖ this model) (`argap.kernels.head.linear_divergence`)."""

    def each(self, function: Callable[[torch.Tensor], torch.Tensor]) -> "OfTargets":
        """Apply ``function`` to every field that is not None."""
        return OfTargets(*(None if field is None else function(field) for field in self))  # pyright: ignore


def joined(parts: Sequence[OfTargets]) -> OfTargets:
    """Concatenate ``parts``, which have the same fields."""
    return OfTargets(*(None if None in each else torch.cat(each) for each in zip(*parts, strict=True)))  # pyright: ignore


@dataclass(frozen=True)
class Head:
    """An output head. Logits are ``scale · (hidden @ linear.weight.T + linear.bias)``, then capped at ±``softcap``.

    Hidden states are first cast to the weight's dtype, as the families do that keep residuals in float32 (Mamba's).
    """

    linear: nn.Linear
    scale: float = 1.0
    softcap: float | None = None

    def logits(self, hidden: torch.Tensor) -> Logits:
        """Return the logits of ``hidden [N, D]``, for kernels that compute them tile by tile."""
        weight = self.linear.weight
        return Logits(hidden.to(weight.dtype), weight, self.linear.bias, self.softcap, self.scale)

    def logprobs(
        self, hidden: torch.Tensor, targets: torch.Tensor, *, rank: bool = False, entropy: bool = False
    ) -> OfTargets:
        """Return log-probs of ``targets [N]`` given ``hidden [N, D]``, the top-1 ids and what is asked for.

        Ranks need all logits of a row at once, so they are computed without the kernel, at most `LOGITS` in memory.
        """
        made = self.logits(hidden)
        if rank:
            rows = max(1, LOGITS // made.vocabulary)
            portions = zip(made.hidden.split(rows), targets.split(rows), strict=True)
            return joined([of_targets(self._logits(h), ids, rank=True, entropy=entropy) for h, ids in portions])
        found = linear_logprob(
            made.hidden,
            self.linear.weight,
            targets,
            made.bias,
            made.softcap,
            scale=made.scale,
            top1=True,
            entropy=entropy,
        )
        assert found.top1 is not None
        return OfTargets(found.logprob, found.top1, entropy=found.entropy)

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
    return of_targets(logits_of_model(model, ids)[:-1], ids[1:], rank=rank)


def logits_of_model(model: "PreTrainedModel", ids: torch.Tensor) -> torch.Tensor:
    """Return the model's own logits of one window ``ids [T]``, float32 ``[T, V]``."""
    return model(input_ids=ids[None], use_cache=False).logits[0].float()


def of_targets(logits: torch.Tensor, targets: torch.Tensor, *, rank: bool = False, entropy: bool = False) -> OfTargets:
    """Return log-probs of ``targets [N]`` under ``logits [N, V]`` (float32), top-1 ids and what is asked for."""
    own = logits.gather(1, targets[:, None])
    lse = torch.logsumexp(logits, dim=1)
    found = OfTargets(own[:, 0] - lse, logits.argmax(dim=1))
    if rank:
        lower = torch.arange(logits.shape[1], device=logits.device) < targets[:, None]
        found = found._replace(rank=((logits > own) | ((logits == own) & lower)).sum(1) + 1)
    if entropy:  # entr(p) is −p log p, 0 where p is 0
        found = found._replace(entropy=torch.special.entr((logits - lse[:, None]).exp()).sum(1))
    return found


def _proposals(model: "PreTrainedModel", linear: nn.Linear) -> list[Head]:
    """Return candidate heads, from the one that the configuration describes to the plain linear map."""
    config = model.config.get_text_config()
    scales: list[float] = []
    for name in SCALES:
        value = getattr(config, name, None)
        if isinstance(value, int | float) and value:
            scales += [float(value), 1.0 / value]
    given = [getattr(config, name, None) for name in SOFT_CAPS]
    caps = [float(value) for value in given if isinstance(value, int | float) and value]
    return [Head(linear, scale, cap) for cap, scale in product([*caps, None], [*scales, 1.0])]


def _transformed(logits: torch.Tensor, head: Head) -> torch.Tensor:
    logits = logits * head.scale
    return logits if head.softcap is None else head.softcap * torch.tanh(logits / head.softcap)
