"""Feature maps φ for linear attention, where φ(q)·φ(k) replaces exp(q·k).

All map ``x [..., T, K]``, in float32 or wider, at positions from ``first``, a number or ``[1]``, to ``[..., T, F]``.
Legend: T positions, K key size, F feature size.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import nn
from transformers.initialization import copy_

from argap.kernels.recurrent.taylor_attention import taylor_features
from argap.models.mixer import longest

ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "identity": lambda x: x,
    "elu": lambda x: 1 + F.elu(x),  # arXiv 2006.16236, eq. 7
    "relu": F.relu,
    "silu": F.silu,
}


class FeatureMap(nn.Module, ABC):
    """φ for a given key size, maximum sequence length (or None) and number of random features."""

    positive: bool = True
    """Whether φ(q)·φ(k) ≥ 0, so that the weights can be normalised by their sum."""
    alike: ClassVar[bool] = True
    """Whether φ is the same for queries and keys."""

    def __init__(self, key_size: int, max_positions: int | None, random_features: int) -> None:
        super().__init__()
        self.key_size = self.size = key_size

    @abstractmethod
    def forward(self, x: torch.Tensor, first: int | torch.Tensor, query: bool) -> torch.Tensor: ...


class ByElement(FeatureMap):
    """One of `ACTIVATIONS`. Weights of ``identity`` can be negative, so their sum cannot normalise the output."""

    def __init__(self, name: str, key_size: int, max_positions: int | None, random_features: int) -> None:
        super().__init__(key_size, max_positions, random_features)
        self.activation = ACTIVATIONS[name]
        self.positive = name != "identity"

    def forward(self, x: torch.Tensor, first: int | torch.Tensor, query: bool) -> torch.Tensor:
        return self.activation(x)


class CosFormer(FeatureMap):
    """φ(x) = relu(x)·(cos α, sin α) with α = π·t / 2M at position t (cosine re-weighting, arXiv 2202.08791).

    The weight of a pair decays with its distance as cos(π·(i − j) / 2M). M is the longest sequence.
    """

    def __init__(self, key_size: int, max_positions: int | None, random_features: int) -> None:
        super().__init__(key_size, max_positions, random_features)
        self.longest = longest(max_positions, "linear_attention: feature_map 'cosformer' needs")
        self.size = 2 * key_size

    def forward(self, x: torch.Tensor, first: int | torch.Tensor, query: bool) -> torch.Tensor:
        positions = first + torch.arange(x.shape[-2], dtype=x.dtype, device=x.device)
        angle = (positions * (math.pi / (2 * self.longest)))[:, None]
        x = F.relu(x)
        return torch.cat([x * angle.cos(), x * angle.sin()], dim=-1)


class Taylor(FeatureMap):
    """φ(x) = (1, x / K^¼, x ⊗ x / √(2K)) (arXiv 2402.18668, section 3.1).

    φ(q)·φ(k) = 1 + s + s²/2 with s = q·k / √K: the second-order Taylor expansion of exp(s), never below ½.
    """

    def __init__(self, key_size: int, max_positions: int | None, random_features: int) -> None:
        super().__init__(key_size, max_positions, random_features)
        self.size = 1 + key_size + key_size**2

    def forward(self, x: torch.Tensor, first: int | torch.Tensor, query: bool) -> torch.Tensor:
        return taylor_features(x)


class Performer(FeatureMap):
    """φ(x) = exp(Ωz − |z|²/2) / √F with z = x / K^¼ (arXiv 2009.14794, lemma 1).

    φ(q)·φ(k) is an unbiased estimate of exp(q·k / √K) over draws of Ω, whose rows ω are Gaussian and orthogonal within
    blocks of K (section 2.4). Ω is drawn once and saved with the model.

    Features are at most exp(|ω|²/2). A query's features are divided by their maximum for stability; normalising by
    the sum cancels that factor.
    """

    alike = False

    def __init__(self, key_size: int, max_positions: int | None, random_features: int) -> None:
        super().__init__(key_size, max_positions, random_features)
        self.size = random_features
        self.omega: torch.Tensor
        self.register_buffer("omega", torch.empty(random_features, key_size))

    def initialize(self, std: float, residual_std: float) -> None:
        """Draw blocks of orthogonal rows with uniform directions and the lengths of Gaussian vectors."""
        key_size = self.key_size
        normal = torch.randn(
            -(-self.size // key_size), key_size, key_size, device=self.omega.device, dtype=torch.float32
        )
        rows = torch.linalg.qr(normal).Q.flatten(0, 1)[: self.size]
        # transformers' copy_ skips buffers already loaded from a checkpoint.
        copy_(self.omega, rows * torch.randn_like(self.omega, dtype=torch.float32).norm(dim=-1, keepdim=True))

    def forward(self, x: torch.Tensor, first: int | torch.Tensor, query: bool) -> torch.Tensor:
        x = x * self.key_size**-0.25
        exponent = x @ self.omega.to(x.dtype).mT - x.square().sum(dim=-1, keepdim=True) / 2
        if query:
            exponent = exponent - exponent.amax(dim=-1, keepdim=True)
        return exponent.exp() / math.sqrt(self.size)


FEATURE_MAPS: dict[str, Callable[[int, int | None, int], FeatureMap]] = {
    **{name: partial(ByElement, name) for name in ("identity", "elu", "relu")},
    "performer": Performer,
    "cosformer": CosFormer,
    "taylor": Taylor,
}
