"""A model's head: which linear map, bias, scale and soft cap make its logits of the trunk's output.

`argap.kernels.linear_logprob` takes these, so that the logits never reach memory. Families bend their
logits in ways of their own, so what a configuration proposes is confirmed by a short probe: what the probe
does not confirm is scored through the model itself.
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
"""Where Cohere, Falcon-H1 and Granite (which divides by it) keep the factor of their logits."""
SOFT_CAPS = ("final_logit_softcapping", "logits_soft_cap")
"""Where Gemma 2 and RecurrentGemma keep c of c·tanh(z / c)."""


@dataclass(frozen=True)
class Head:
    """Logits are ``scale · (hidden @ linear.weight.T + linear.bias)``, then capped at ±``softcap``."""

    linear: nn.Linear
    scale: float = 1.0
    softcap: float | None = None

    def logprobs(self, hidden: torch.Tensor, targets: torch.Tensor) -> LogProb:
        """Log-prob and top-1 of ``targets [N]`` after ``hidden [N, D]``."""
        linear = self.linear
        return linear_logprob(hidden, linear.weight, targets, linear.bias, self.softcap, scale=self.scale, top1=True)


def find_head(model: "PreTrainedModel", ids: torch.Tensor) -> Head | None:
    """The head of ``model`` as the probe ``ids [1, T]`` confirms it; None where the model keeps it to itself."""
    linear: Any = model.get_output_embeddings()
    if not isinstance(linear, nn.Linear) or model.base_model is model:
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
    errors = [float((_bent(plain, head) - own).abs().max() / largest) for head in heads]
    best = min(errors)
    if not best <= (1e-4 if exact else 2e-2):
        return None
    # Of heads that the probe cannot tell apart, the one that the configuration asks for.
    rounding = 1e-6 if exact else 2**-8
    return next(head for head, error in zip(heads, errors, strict=True) if error <= max(best, rounding))


def logprobs_of_model(model: "PreTrainedModel", ids: torch.Tensor) -> LogProb:
    """Log-prob and top-1 of tokens 1 … T−1 of one window ``ids [T]``, through the model's own logits ``[T, V]``."""
    logits = model(input_ids=ids[None], use_cache=False).logits[0, :-1].float()
    picked = logits.gather(-1, ids[1:, None])[:, 0]
    return LogProb(picked - torch.logsumexp(logits, dim=-1), logits.argmax(dim=-1))


def _proposals(model: "PreTrainedModel", linear: nn.Linear) -> list[Head]:
    """What the configuration asks for comes first, the plain head last."""
    config = model.config.get_text_config()
    scales: list[float] = []
    for name in SCALES:
        value = getattr(config, name, None)
        if isinstance(value, int | float) and value:
            scales += [float(value), 1.0 / value]
    caps = [float(value) for name in SOFT_CAPS if (value := getattr(config, name, None))]
    return [Head(linear, scale, cap) for cap, scale in product([*caps, None], [*scales, 1.0])]


def _bent(logits: torch.Tensor, head: Head) -> torch.Tensor:
    logits = logits * head.scale
    return logits if head.softcap is None else head.softcap * torch.tanh(logits / head.softcap)
