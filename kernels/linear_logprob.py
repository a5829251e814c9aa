"""Hidden states to the log-prob of each target, without ever holding all the logits.

The language-model head is the widest product of a scorer: ``[tokens, vocabulary]`` logits in float32
for 16,384 tokens of GPT-2 are 3.3 GB. This reference walks over the rows in chunks.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F

# Logits held at once, in float32: on a CPU 16 MB, so that the passes over them meet the cache; else 1 GB.
CHUNK_ELEMENTS = {"cpu": 2**22}
CHUNK_ELEMENTS_ELSEWHERE = 2**28


class LogProb(NamedTuple):
    """``logprob`` float32 ``[N]`` (nats) and ``top1`` int64 ``[N]``, the most likely id."""

    logprob: torch.Tensor
    top1: torch.Tensor


def linear_logprob(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    target: torch.Tensor,
    bias: torch.Tensor | None = None,
    softcap: float | None = None,
) -> LogProb:
    """``log_softmax(hidden @ weight.T + bias)`` at ``target``, logits computed and kept in float32.

    ``hidden`` ``[N, D]``, ``weight`` ``[V, D]``, ``target`` ``[N]`` int64, ``bias`` ``[V]``; any floating
    dtypes. ``softcap`` c replaces each logit z by c·tanh(z / c) (Gemma 2, arXiv 2408.00118, section 2).
    """
    weight = weight.float()
    bias = None if bias is None else bias.float()
    elements = CHUNK_ELEMENTS.get(hidden.device.type, CHUNK_ELEMENTS_ELSEWHERE)
    rows = max(1, elements // weight.shape[0])
    logprob = torch.empty(len(target), dtype=torch.float32, device=hidden.device)
    top1 = torch.empty_like(target)
    for start in range(0, len(target), rows):
        chunk = slice(start, start + rows)
        logits = F.linear(hidden[chunk].float(), weight, bias)
        if softcap is not None:
            logits = softcap * torch.tanh(logits / softcap)
        picked = logits.gather(-1, target[chunk, None])[:, 0]
        logprob[chunk] = picked - torch.logsumexp(logits, dim=-1)
        top1[chunk] = logits.argmax(dim=-1)
    return LogProb(logprob, top1)
