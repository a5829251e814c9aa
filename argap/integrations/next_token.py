"""Log-probs of next tokens as `RecallGap.measure_logprobs` takes them, from a model's logits or last hidden states.

Legend: B batch, T tokens, D hidden size, V vocabulary.
"""

import torch

from argap.kernels.head.linear_logprob import linear_logprob

ROWS = 2**26
"""Logits that are widened to float32 at a time: 256 MiB."""


def whole(values: torch.Tensor) -> torch.Tensor:
    """Return a tensor that is spread over devices (a DTensor) in one piece, and any other as it is."""
    gather = getattr(values, "full_tensor", None)
    return values if gather is None else gather()


def logprobs_of_logits(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Return log p of ``ids[:, 1:]``, float32 ``[B, T − 1]``, from ``logits [B, T, V]``.

    Logits that tensor parallelism left spread over the vocabulary are gathered.
    """
    rows, targets = whole(logits)[:, :-1].flatten(0, 1), ids[:, 1:].flatten()
    found = torch.empty(len(rows), dtype=torch.float32, device=rows.device)
    step = max(1, ROWS // rows.shape[1])
    for start in range(0, len(rows), step):
        some, of_rows = rows[start : start + step].float(), targets[start : start + step, None]
        found[start : start + step] = some.gather(1, of_rows)[:, 0] - torch.logsumexp(some, dim=1)
    return found.view(len(ids), -1)


def logprobs_of_hidden(
    hidden: torch.Tensor, weight: torch.Tensor, ids: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """Return log p of ``ids[:, 1:]``, float32 ``[B, T − 1]``, without logits in memory.

    ``hidden [B, T, D]``: what the head multiplies, so after the last norm; ``weight [V, D]``, ``bias [V]``: of the
    head. Sharded ones are gathered.
    """
    hidden, weight = whole(hidden)[:, :-1], whole(weight)
    found = linear_logprob(
        hidden.flatten(0, 1).to(weight.dtype), weight, ids[:, 1:].flatten(), None if bias is None else whole(bias)
    )
    return found.logprob.view(len(ids), -1)
