"""One layer of the native model: a mixer and an MLP, each after a norm and added to the residual stream.

Legend: B batch, T positions, D ``hidden_size``.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from argap.errors import ArgapError
from argap.kernels.fused.gated_product import gated_product
from argap.kernels.fused.residual_norm import residual_norm
from argap.models.configuration import ArgapConfig
from argap.models.mixer import Mixer, ResidualLinear, State
from argap.models.registry import build_mixer


class SwiGLU(nn.Module):
    """Llama's gated MLP (arXiv 2002.05202): down(silu(gate(x)) ⊙ up(x))."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, inner, bias=False)
        self.up = nn.Linear(width, inner, bias=False)
        self.down = ResidualLinear(inner, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(gated_product(self.gate(x), self.up(x), "silu"))


class GELUMLP(nn.Module):
    """The ungated MLP of older Transformers and of RetNet (arXiv 2307.08621, section 2.4): down(gelu(up(x)))."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, inner, bias=False)
        self.down = ResidualLinear(inner, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.gelu(self.up(x)))


def build_norm(config: ArgapConfig) -> nn.Module:
    """Build the configured norm over the width."""
    norm = nn.RMSNorm if config.norm == "rms" else nn.LayerNorm
    return norm(config.hidden_size, eps=config.rms_norm_eps)


def add_and_norm(norm: nn.Module, x: torch.Tensor, added: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the norm of ``x + added``, and the sum itself."""
    if type(norm) is nn.RMSNorm and norm.eps is not None:
        return residual_norm(x, norm.weight, norm.eps, added)
    if type(norm) is nn.LayerNorm and norm.elementwise_affine:
        return residual_norm(x, norm.weight, norm.eps, added, bias=norm.bias, centered=True)
    total = x if added is None else x + added
    return norm(total), total


class Block(nn.Module):
    """One layer: x + mixer(norm(x)) and, with an MLP, x + mlp(norm(x))."""

    def __init__(self, config: ArgapConfig, layer: int) -> None:
        super().__init__()
        self.mixer_norm = build_norm(config)
        self.mixer = build_mixer(config.mixers[layer], config.hidden_size, config.max_position_embeddings)
        name, names = config.mixers[layer]["name"], [mixer["name"] for mixer in config.mixers]
        self.mixer.set_depth(names[:layer].count(name), names.count(name))
        self.has_mlp = config.mlp != "none"
        if self.has_mlp:
            self.mlp_norm = build_norm(config)
            mlp = SwiGLU if config.mlp == "swiglu" else GELUMLP
            self.mlp = mlp(config.hidden_size, config.intermediate_size)

    def forward(self, x: torch.Tensor, input_ids: torch.Tensor) -> torch.Tensor:
        """Apply the layer to ``x [B, T, D]`` with the tokens ``input_ids [B, T]``; the shape stays."""
        return self._through_mlp(x + self._mixed(self.mixer_norm(x), input_ids))

    def terms(
        self, x: torch.Tensor, added: torch.Tensor | None, input_ids: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute `forward` of ``x + added`` as two terms, which the next norm adds in its kernel."""
        normed, x = add_and_norm(self.mixer_norm, x, added)
        mixed = self._mixed(normed, input_ids)
        if not self.has_mlp:
            return x, mixed
        normed, x = add_and_norm(self.mlp_norm, x, mixed)
        return x, self.mlp(normed)

    def auxiliary_loss(self, x: torch.Tensor) -> torch.Tensor | None:
        """Return the mixer's auxiliary loss for ``x [B, T, D]``, the input of `forward`, or None."""
        if type(self.mixer).auxiliary_loss is Mixer.auxiliary_loss:
            return None  # skips a norm whose result nothing reads
        return self.mixer.auxiliary_loss(self.mixer_norm(x))

    def step(self, x: torch.Tensor, state: State, input_ids: torch.Tensor) -> tuple[torch.Tensor, State]:
        """Advance one position: ``x [B, D]`` and ``input_ids [B]``."""
        mixed, state = self.mixer.step(self.mixer_norm(x), state, *self._ids(input_ids))
        return self._through_mlp(x + mixed), state

    def prefill(self, x: torch.Tensor, input_ids: torch.Tensor) -> tuple[torch.Tensor, State]:
        """Return `forward`'s output and the state after the last position."""
        mixed, state = self.mixer.prefill(self.mixer_norm(x), *self._ids(input_ids))
        return self._through_mlp(x + mixed), state

    def _mixed(self, x: torch.Tensor, input_ids: torch.Tensor) -> torch.Tensor:
        """Return the mixer's output. Raises `ArgapError` if adding it to ``x`` would broadcast."""
        mixed = self.mixer(x, *self._ids(input_ids))
        shape = getattr(mixed, "shape", None)
        if shape != x.shape:
            found = type(mixed).__name__ if shape is None else list(shape)
            raise ArgapError(f"mixer {type(self.mixer).__name__}: expected an output {list(x.shape)}, found {found}")
        return mixed

    def _ids(self, input_ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the tokens as a tuple for mixers with ``needs_ids``, else an empty one."""
        return (input_ids,) if self.mixer.needs_ids else ()

    def _through_mlp(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.mlp(self.mlp_norm(x)) if self.has_mlp else x


def compile_layers(model: nn.Module) -> None:
    """Compile each `Block` below ``model`` separately, in place.

    Blocks with equal mixers share their code, so that the time to compile does not grow with the depth, and an operator
    that cannot be traced breaks the graph of its own block only.
    """
    torch.compiler.reset()  # code of earlier models in this process counts towards the recompilation limit
    for module in model.modules():
        if isinstance(module, Block):
            module.compile(backend=_compile_uncached)


def _compile_uncached(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
    """Compile with Inductor, without the AOTAutograd cache on disk; Inductor's own cache of generated code is used.

    torch 2.11 to 2.13 write garbage sizes to that cache for views of a linear map's output (pytorch/pytorch#185630).
    If a graph returns two such views, as the one of `rwkv7` before an untraced operator does, each later process fails.
    """
    from torch._functorch import config
    from torch._inductor.compile_fx import compile_fx  # slow to import

    with config.patch(enable_autograd_cache=False):
        return compile_fx(graph, inputs)
