"""KL between two heads from hidden states vs. log_softmax of both logits: time, and memory besides the inputs.

No library has this kernel. ``torch`` keeps both float32 ``[N, V]`` logits; ``torch, chunked`` is the CPU's form of the
same sums.
"""

from collections.abc import Iterator
from functools import partial

import torch
from kernel_case import Case, relative_error

from argap.kernels.head.linear_divergence import linear_divergence, linear_divergence_reference
from argap.kernels.head.linear_logprob import Logits

TOKENS, VOCABULARY = 8 * 2048, 50304
CHECKED = 256


def cases() -> Iterator[Case]:
    for size in (768, 2048):
        reference = drawn(size)
        near = reference._replace(hidden=reference.hidden + 0.05 * torch.randn_like(reference.hidden))
        inputs = sum(x.nbytes for head in (reference, near) for x in head[:2] if x is not None)
        yield Case(
            "linear divergence",
            f"N {TOKENS}, D {size}, V {VOCABULARY}",
            flops=4 * TOKENS * size * VOCABULARY,
            bytes=inputs + 4 * TOKENS,
            ours=partial(linear_divergence, reference, near),
            check=partial(error, reference, near),
            peers={
                "torch": partial(by_torch, reference, near),
                "torch.compile": partial(torch.compile(by_torch), reference, near),
                "torch, chunked": partial(linear_divergence_reference, reference, near),
            },
        )


def drawn(size: int) -> Logits:
    hidden = torch.randn(TOKENS, size, device="cuda", dtype=torch.bfloat16)
    return Logits(hidden, (torch.randn(VOCABULARY, size, device="cuda") * 2 * size**-0.5).bfloat16())


def by_torch(reference: Logits, model: Logits) -> torch.Tensor:
    p, q = ((each.hidden @ each.weight.T).float().log_softmax(-1) for each in (reference, model))  # pyright: ignore
    return (p.exp() * (p - q)).sum(-1)


def error(reference: Logits, model: Logits, output: torch.Tensor) -> float:
    """Compute the error of the first tokens against float64."""
    first = [each._replace(hidden=each.hidden[:CHECKED]) for each in (reference, model)]
    p, q = ((each.hidden.double() @ each.weight.double().T).log_softmax(-1) for each in first)  # pyright: ignore
    return relative_error(output[:CHECKED], (p.exp() * (p - q)).sum(-1))
