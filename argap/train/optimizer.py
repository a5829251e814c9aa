"""AdamW with decay on weight matrices only, its state, and the learning rate of each step."""

import math
from collections.abc import Mapping

import torch
from torch import nn

from argap.errors import FormatError
from argap.train.config import TrainConfig

MOMENTS = ("exp_avg", "exp_avg_sq")
"""AdamW's state of a parameter, besides the step."""


def build_optimizer(model: nn.Module, config: TrainConfig, device: torch.device) -> torch.optim.AdamW:
    """Build AdamW (Loshchilov & Hutter, arXiv 1711.05101), as one fused kernel on CUDA.

    Decay pulls weights towards zero. That shrinks a matrix that the next norm rescales, but biases the function where a
    parameter *is* the scale. Embeddings (and with them a tied head), biases, norms and all other vectors are therefore
    exempt, as in GPT-3 and Llama training, and so is every parameter that its mixer marks with ``_no_weight_decay =
    True``.
    """
    embeddings = {id(p) for m in model.modules() if isinstance(m, nn.Embedding) for p in m.parameters(recurse=False)}
    decayed, others = [], []
    for name, parameter in model.named_parameters():
        plain = parameter.ndim >= 2 and id(parameter) not in embeddings and not name.endswith("bias")
        plain = plain and not getattr(parameter, "_no_weight_decay", False)
        (decayed if plain else others).append(parameter)
    groups = [
        {"params": decayed, "weight_decay": config.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, fused=device.type == "cuda")


def moments(optimizer: torch.optim.Optimizer, parameters: Mapping[str, nn.Parameter]) -> dict[str, torch.Tensor]:
    """Return AdamW's moments of each parameter that has had a gradient, as ``exp_avg.NAME`` and ``exp_avg_sq.NAME``."""
    return {
        f"{moment}.{name}": optimizer.state[parameter][moment].contiguous()
        for name, parameter in parameters.items()
        for moment in MOMENTS
        if parameter in optimizer.state
    }


def load_moments(
    optimizer: torch.optim.Optimizer,
    parameters: Mapping[str, nn.Parameter],
    saved: Mapping[str, torch.Tensor],
    step: int,
) -> None:
    """Load the `moments` after ``step`` steps.

    Raises `KeyError` if one of the two is missing, and `FormatError` for another shape or type than the parameter's.
    """
    for name, parameter in parameters.items():
        if f"{MOMENTS[0]}.{name}" in saved:  # has had a gradient
            for moment in MOMENTS:
                _check(f"{moment}.{name}", saved[f"{moment}.{name}"], parameter)
            fused = bool(optimizer.defaults.get("fused"))
            optimizer.state[parameter] = {
                "step": torch.tensor(float(step), device=parameter.device if fused else "cpu"),
                **{moment: saved[f"{moment}.{name}"].to(parameter.device) for moment in MOMENTS},
            }


def _check(name: str, saved: torch.Tensor, parameter: nn.Parameter) -> None:
    for of, found, expected in (
        ("shape", [*saved.shape], [*parameter.shape]),
        ("type", saved.dtype, parameter.dtype),
    ):
        if found != expected:
            raise FormatError(f"{name} has {of} {found}, its parameter {expected}")


def learning_rate(step: int, config: TrainConfig) -> float:
    """Return the learning rate of ``step`` (from 0): linear warm-up to ``lr``, then half a cosine.

    The last step of the warm-up has ``lr``, the last step of all ``lr * min_lr_ratio``.
    """
    warmup = config.warmup_steps or 0
    if step < warmup:
        return config.lr * (step + 1) / warmup
    progress = (step + 1 - warmup) / (config.total_steps - warmup)
    cosine = 0.5 * (1 + math.cos(math.pi * progress))
    return config.lr * (config.min_lr_ratio + (1 - config.min_lr_ratio) * cosine)
