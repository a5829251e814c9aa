"""Find a model's output head: the linear map, bias, scale and soft cap that turn hidden states into logits.

`argap.kernels.linear_logprob` fuses these with the softmax, so the logits are never stored. Model families transform
their logits in different ways, and configurations name them inconsistently. Each candidate is therefore checked
against the model's logits on a short probe; if none matches, the model is scored through its own logits.
"""

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from argap.kernels.linear_logprob import LogProb, linear_logprob

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SCALES = ("logit_scale", "lm_head_multiplier", "logits_scaling")
"""Logit scale in the configurations of Cohere, Falcon-H1 and Granite (Granite divides by it)."""
SOFT_CAPS = ("final_logit_softcapping", "logits_soft_cap")
"""The c of c·tanh(z / c) in the configurations of Gemma 2 and RecurrentGemma."""


@dataclass(frozen=True)
class Head:
    """An output head. Logits are ``scale · (hidden @ linear.weight.T + linear.bias)``, then capped at ±``softcap``."""

    linear: nn.Linear
    scale: float = 1.0
    softcap: float | None = None

    def logprobs(self, hidden: torch.Tensor, targets: torch.Tensor) -> LogProb:
        """Log-probs of ``targets [N]`` given ``hidden [N, D]``, and the top-1 ids."""
        linear = self.linear
        return linear_logprob(hidden, linear.weight, targets, linear.bias, self.softcap, scale=self.scale, top1=True)


def find_head(model: "PreTrainedModel", ids: torch.Tensor) -> Head | None:
    """The head that reproduces the model's logits on the probe ``ids [1, T]``; None if no candidate does."""
    linear: Any = model.get_output_embeddings()
    if not isinstance(linear, nn.Linear) or model.base_model is model:
        return None
    if type(linear.weight.data) is not torch.Tensor or not linear.weight.is_floating_point():  # quantised
        return None
    hidden = getattr(model.base_model(input_ids=ids, use_cache=False), "last_hidden_state", None)
    if hidden is None or hidden.shape[-1] != linear.in_features:
        return None
    plain = linear(hidden).float()
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


def logprobs_of_model(model: "PreTrainedModel", ids: torch.Tensor) -> LogProb:
    """Log-prob and top-1 of tokens 1 … T−1 of one window ``ids [T]``, from the model's own logits ``[T, V]``."""
    logits = model(input_ids=ids[None], use_cache=False).logits[0, :-1].float()
    picked = logits.gather(-1, ids[1:, None])[:, 0]
    return LogProb(picked - torch.logsumexp(logits, dim=-1), logits.argmax(dim=-1))


def _proposals(model: "PreTrainedModel", linear: nn.Linear) -> list[Head]:
    """Candidate heads, from the one that the configuration describes to the plain linear map."""
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
