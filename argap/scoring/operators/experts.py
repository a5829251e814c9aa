"""The experts of a mixture as two grouped products with a fused gate and a fused sum over each token's experts.

Legend: N tokens, K experts for each, S = N K rows sorted by expert, D width, I inner width, E experts.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from argap.kernels.fused.gated_product import gated_product
from argap.kernels.fused.weighted_rows import weighted_rows


def takes_experts(module: Any) -> bool:
    """Return whether PyTorch has grouped products and ``module`` the weights and options that `grouped_experts` takes.

    Those are of transformers' experts (``use_experts_implementation``): SiLU of the gate times the value, all without
    biases, and no norm after them.
    """
    from transformers.activations import SiLUActivation
    from transformers.integrations import moe

    weights = [getattr(module, name, None) for name in ("gate_up_proj", "down_proj")]
    set_there = {"has_gate": True, "has_bias": False, "is_concatenated": True}
    later = ("has_post_expert_norm", "_is_expert_parallel")  # attributes of newer versions
    return (
        hasattr(torch.nn.functional, "grouped_mm")
        and all(isinstance(each, nn.Parameter) and each.dim() == 3 for each in weights)
        and all(getattr(module, name, None) is value for name, value in set_there.items())
        and not any(getattr(module, name, False) for name in later)
        and isinstance(getattr(module, "is_transposed", None), bool)
        and getattr(type(module), "_apply_gate", None) is moe._default_apply_gate
        and isinstance(module.act_fn, (SiLUActivation, nn.SiLU))
    )


def grouped_experts(
    plain: Callable[..., Any], module: Any, x: torch.Tensor, experts: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """Return Σₖ wₖ · down_{eₖ}(SiLU(gate_{eₖ} x) ⊙ up_{eₖ} x) of ``x [N, D]``, ``experts`` and ``weights [N, K]``.

    A weight of 0 leaves its expert out, as that of an expert of another device is.

    Runs the module's own form where another dtype is given than that of the weights.
    """
    if x.dtype != module.gate_up_proj.dtype or x.dim() != 2:
        return plain(x, experts, weights)
    K = experts.shape[1]
    sorted_experts, order = experts.flatten().sort()
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order), device=order.device)  # row of each token's k-th expert
    numbers = torch.arange(module.num_experts, device=order.device, dtype=sorted_experts.dtype)
    ends = torch.searchsorted(sorted_experts, numbers, right=True).int()
    first, second = module.gate_up_proj, module.down_proj
    if not module.is_transposed:
        first, second = first.mT, second.mT
    both = torch.nn.functional.grouped_mm(x[order // K], first, offs=ends)
    gate, value = both.chunk(2, dim=-1)
    rows = torch.nn.functional.grouped_mm(gated_product(gate, value, "silu"), second, offs=ends)
    return weighted_rows(rows, place.view(experts.shape), weights)
