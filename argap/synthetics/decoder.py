"""How compression is answered: each token from the last position's vector and the token's place (MAD, arXiv
2403.17844, section 3).

Legend: B batch, N positions, M answers of an example, D width, V vocabulary.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn

from argap.errors import ArgapError


class LastVectorDecoder(nn.Module):
    """Logits of the tokens of a sequence, each from the last vector and sinusoids of its place alone.

    As in the task's published code an MLP that does not widen, two layers each with a norm before and GELU after, and a
    norm and a head that is not tied to the embedding. The vector comes from behind the model's last norm.
    Raises `ArgapError` for an odd width.
    """

    places: torch.Tensor
    """``[N, D]``."""

    def __init__(self, width: int, vocab_size: int, length: int) -> None:
        super().__init__()
        layers = [nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU()) for _ in range(2)]
        self.mlp = nn.Sequential(*layers)
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, vocab_size))
        self.register_buffer("places", sinusoids(length, width), persistent=False)

    def forward(self, hidden: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        """``[B, M, V]`` of the model's vectors ``hidden [B, N, D]`` at ``places [B, M]`` of the input."""
        last = hidden[:, -1:]
        return self.head(self.mlp(last + F.embedding(places, self.places)))


def sinusoids(length: int, width: int) -> torch.Tensor:
    """``[length, width]``: sine and cosine of each place at ``width / 2`` rates from 1 to 1 / 10,000."""
    if width % 2:
        raise ArgapError(f"width {width}: the decoder of compression needs an even number")
    rates = torch.exp(torch.linspace(0, -math.log(10_000), width // 2))
    angles = torch.arange(length)[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], dim=1)
