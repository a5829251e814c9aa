"""Feature maps φ of linear attention: φ(q)·φ(k) stands in for exp(q·k).

Legend: T positions, K key size, F feature size. All take ``x [..., T, K]`` in float32 or wider and the
positions ``[T]``, and give ``[..., T, F]``.
"""

import math
from abc import ABC, abstractmethod
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import nn
from transformers.initialization import copy_

from argap.errors import ArgapError
from argap.kernels.taylor_attention import taylor_features


class FeatureMap(nn.Module, ABC):
    """φ, made for a key size, the longest sequence (or None) and a number of random features."""

    positive: ClassVar[bool] = True
    """Whether φ(q)·φ(k) ≥ 0, so that the outputs can be divided by its sum."""

    def __init__(self, key_size: int, max_positions: int | None, random_features: int) -> None:
        super().__init__()
        self.key_size = self.size = key_size

    @abstractmethod
    def forward(self, x: torch.Tensor, positions: torch.Tensor, query: bool) -> torch.Tensor: ...


class Identity(FeatureMap):
    """φ(x) = x: of either sign, so that there is no sum to divide by."""

    positive = False

    def forward(self, x: torch.Tensor, positions: torch.Tensor, query: bool) -> torch.Tensor:
        return x


class OnePlusElu(FeatureMap):
    """φ(x) = 1 + elu(x) (arXiv 2006.16236, eq. 7)."""

    def forward(self, x: torch.Tensor, positions: torch.Tensor, query: bool) -> torch.Tensor:
        return 1 + F.elu(x)


class Relu(FeatureMap):
    """φ(x) = max(x, 0)."""

    def forward(self, x: torch.Tensor, positions: torch.Tensor, query: bool) -> torch.Tensor:
        return F.relu(x)


class CosFormer(FeatureMap):
    """φ(x) at t = relu(x)·(cos α, sin α), α = π·t / 2M, so that a pair's weight falls with its distance
    as cos(π·(i − j) / 2M) (arXiv 2202.08791, its cosine re-weighting). M is the longest sequence."""

    def __init__(self, key_size: int, max_positions: int | None, random_features: int) -> None:
        super().__init__(key_size, max_positions, random_features)
        if max_positions is None:
            raise ArgapError(
                "linear_attention: feature_map 'cosformer' needs the longest sequence; "
                "set the model's max_position_embeddings"
            )
        self.longest = max_positions
        self.size = 2 * key_size

    def forward(self, x: torch.Tensor, positions: torch.Tensor, query: bool) -> torch.Tensor:
        angle = (positions.to(x.dtype) * (math.pi / (2 * self.longest)))[:, None]
        x = F.relu(x)
        return torch.cat([x * angle.cos(), x * angle.sin()], dim=-1)


class Taylor(FeatureMap):
    """φ(x) = (1, x / K^¼, x ⊗ x / √(2K)), so that φ(q)·φ(k) = 1 + s + s²/2 with s = q·k / √K, the second
    order of exp(s) (arXiv 2402.18668, section 3.1). It is at least ½."""

    def __init__(self, key_size: int, max_positions: int | None, random_features: int) -> None:
        super().__init__(key_size, max_positions, random_features)
        self.size = 1 + key_size + key_size**2

    def forward(self, x: torch.Tensor, positions: torch.Tensor, query: bool) -> torch.Tensor:
        return taylor_features(x)


class Performer(FeatureMap):
    """φ(x) = exp(Ωz − |z|²/2) / √F with z = x / K^¼ (arXiv 2009.14794, lemma 1), so that φ(q)·φ(k) has the
    mean exp(q·k / √K) over draws of Ω, whose rows ω are normal, and orthogonal in blocks of K (its section
    2.4). Drawn once and saved with the model.

    An element is at most exp(|ω|²/2). A query's are divided by their largest, which the sum cancels.
    """

    def __init__(self, key_size: int, max_positions: int | None, random_features: int) -> None:
        super().__init__(key_size, max_positions, random_features)
        self.size = random_features
        self.omega: torch.Tensor
        self.register_buffer("omega", torch.empty(random_features, key_size))

    def initialize(self, std: float, residual_std: float) -> None:
        """Blocks of orthogonal rows, uniform over directions and as long as normal vectors are."""
        key_size = self.key_size
        normal = torch.randn(
            -(-self.size // key_size), key_size, key_size, device=self.omega.device, dtype=torch.float32
        )
        rows = torch.linalg.qr(normal).Q.flatten(0, 1)[: self.size]
        # By transformers' own copy, which passes over what a checkpoint has filled.
        copy_(self.omega, rows * torch.randn_like(self.omega, dtype=torch.float32).norm(dim=-1, keepdim=True))

    def forward(self, x: torch.Tensor, positions: torch.Tensor, query: bool) -> torch.Tensor:
        x = x * self.key_size**-0.25
        exponent = x @ self.omega.to(x.dtype).mT - x.square().sum(dim=-1, keepdim=True) / 2
        if query:
            exponent = exponent - exponent.amax(dim=-1, keepdim=True)
        return exponent.exp() / math.sqrt(self.size)


FEATURE_MAPS: dict[str, type[FeatureMap]] = {
    "identity": Identity,
    "elu": OnePlusElu,
    "relu": Relu,
    "performer": Performer,
    "cosformer": CosFormer,
    "taylor": Taylor,
}
