"""Log-probs of targets from hidden states vs. torch.compile, Cut Cross Entropy, Liger, FLA and PyTorch.

The peers return a loss per token, except FLA, which returns only the mean. Ours is also timed with top-1 ids
(``and top-1``), which no peer computes.
"""

from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn.functional as F
from kernel_case import Case, relative_error

from argap.kernels.head.linear_logprob import linear_logprob

TOKENS, VOCABULARY = 8 * 2048, 50304
CHECKED = 256


def cases() -> Iterator[Case]:
    for size in (768, 2048):
        hidden = torch.randn(TOKENS, size, device="cuda", dtype=torch.bfloat16)
        weight = (torch.randn(VOCABULARY, size, device="cuda") * size**-0.5).bfloat16()
        target = torch.randint(VOCABULARY, (TOKENS,), device="cuda")
        given = hidden, weight, target
        for top1 in (False, True):
            yield Case(
                "linear logprob and top-1" if top1 else "linear logprob",
                f"N {TOKENS}, D {size}, V {VOCABULARY}",
                flops=2 * TOKENS * size * VOCABULARY,
                bytes=hidden.nbytes + weight.nbytes + target.nbytes + 4 * TOKENS,
                ours=partial(ours, *given, top1),
                check=partial(error, *given),
                peers={} if top1 else peers(*given),
            )


def ours(hidden: torch.Tensor, weight: torch.Tensor, target: torch.Tensor, top1: bool) -> torch.Tensor:
    return linear_logprob(hidden, weight, target, top1=top1).logprob


def peers(hidden: torch.Tensor, weight: torch.Tensor, target: torch.Tensor) -> dict[str, Callable[[], torch.Tensor]]:
    from cut_cross_entropy import linear_cross_entropy
    from fla.modules.fused_linear_cross_entropy import fused_linear_cross_entropy_loss
    from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

    liger = LigerFusedLinearCrossEntropyLoss(reduction="none")
    compiled = torch.compile(by_torch)
    return {
        "torch.compile": lambda: compiled(hidden, weight, target),
        "CCE": lambda: -linear_cross_entropy(hidden, weight, target, reduction="none"),
        "Liger": lambda: -liger(weight, hidden, target),
        "FLA mean": lambda: -fused_linear_cross_entropy_loss(hidden, target, weight),
        "torch": partial(by_torch, hidden, weight, target),
    }


def by_torch(hidden: torch.Tensor, weight: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return -F.cross_entropy((hidden @ weight.T).float(), target, reduction="none")


def error(hidden: torch.Tensor, weight: torch.Tensor, target: torch.Tensor, output: torch.Tensor) -> float:
    """Compute the error of the first tokens against float64, or of a mean against ours."""
    if output.dim() == 0:
        return relative_error(output, linear_logprob(hidden, weight, target).logprob.mean())
    logits = hidden[:CHECKED].double() @ weight.double().T
    return relative_error(output[:CHECKED], logits.log_softmax(-1).gather(1, target[:CHECKED, None])[:, 0])
