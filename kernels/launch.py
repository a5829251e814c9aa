"""How an op reaches its Triton kernel: when a kernel runs, how its tensors lie in memory, how it is launched.

A kernel's file starts with ``from __future__ import annotations`` and imports ``jit``, ``tl`` and ``triton`` from
here, so that it also imports where Triton is not installed (macOS, Windows). A jitted function runs on a GPU, or
under Triton's interpreter with ``TRITON_INTERPRET=1``.

Launch configurations were measured once and stand beside their kernel, one per device class and shape class. Nothing is
tuned at run time: the first call costs one compilation, ragged lengths cost none, and the same input gives the same
bits on the same device.

Names inside kernels follow flash-linear-attention: ``i_*`` are program indices, ``o_*`` offsets, ``m_*`` masks, ``p_*``
pointers, ``b_*`` blocks in registers, ``B*`` block sizes, ``N*`` numbers of blocks; ``h0`` and ``ht`` are the states
before the first and after the last position. A tensor ``x`` of any strides is a tuple (`strided`): ``x[0]`` points to
its first element, ``x[1]``, ``x[2]``, … are its strides in elements.

Legend: B batch, H heads, T positions, K key size, V value size.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any, overload

import torch

triton: Any = None
if TYPE_CHECKING:
    import triton.language as tl
else:
    tl = None
    try:
        import triton
        import triton.language as tl  # noqa: F401  (for the kernels)
    except ImportError:  # every op then runs its reference
        pass

HOPPER = (9, 0)


def jit(kernel: Callable[..., Any] | None = None, *, unspecialized: Iterable[str] = ()) -> Any:
    """Apply `triton.jit`; without Triton return the plain function, which nothing launches.

    ``unspecialized``: arguments for whose value, 1 or a multiple of 16, Triton compiles no code of its own.
    """
    if kernel is None:
        return partial(jit, unspecialized=unspecialized)
    return kernel if triton is None else triton.jit(kernel, do_not_specialize=[*unspecialized])


def runs_kernels(*tensors: torch.Tensor | None) -> bool:
    """Return whether an op runs its forward-only Triton kernel: all ``tensors`` on a GPU, no gradient needed.

    Always False under `torch.compile`, which rebuilds the launches that it traces; the delta rule's kernels would then
    read outside their inputs. A compiled model runs the references, which the compiler fuses.
    """
    return not torch.compiler.is_compiling() and _on_gpu(tensors) and not _needs_gradient(tensors)


def trains_kernels(*tensors: torch.Tensor | None) -> bool:
    """Return whether an op with a backward kernel runs its kernels: all ``tensors`` on a GPU, a gradient needed.

    Also under `torch.compile`, from which the launches must be hidden in an operator of `torch.library`.
    """
    return _on_gpu(tensors) and _needs_gradient(tensors)


def _on_gpu(tensors: Iterable[torch.Tensor | None]) -> bool:
    return triton is not None and all(x.is_cuda for x in tensors if x is not None)


def _needs_gradient(tensors: Iterable[torch.Tensor | None]) -> bool:
    return torch.is_grad_enabled() and any(x.requires_grad for x in tensors if x is not None)


@dataclass(frozen=True)
class Launch:
    """How to launch one kernel on one class of shapes."""

    blocks: Mapping[str, int]
    """The kernel's block sizes (its ``tl.constexpr`` arguments) by name."""
    warps: int = 4
    """Warps of 32 threads per program."""
    stages: int = 2
    """Depth of the software pipeline: the number of loop iterations whose loads are in flight together."""

    def arguments(self) -> dict[str, int]:
        """Return the keyword arguments of a launch."""
        return {**self.blocks, "num_warps": self.warps, "num_stages": self.stages}


@dataclass(frozen=True)
class LaunchTable:
    """The configurations of one kernel: device class, then shape class."""

    kernel: str
    by_device: Mapping[str, Mapping[str, Launch]]
    """Always has ``any``, which serves every device class without rows of its own."""

    def at(self, device: torch.device, shape_class: str) -> Launch:
        """Return the configuration for ``shape_class`` on ``device``."""
        return self.rows(device)[shape_class]

    def rows(self, device: torch.device) -> Mapping[str, Launch]:
        """Return all configurations for ``device``, by shape class."""
        return self.by_device.get(device_class(device), self.by_device["any"])


@cache
def device_class(device: torch.device) -> str:
    """Return ``hopper`` (compute capability 9.0: H100, H200) or ``any``."""
    if device.type == "cuda" and torch.cuda.get_device_capability(device) == HOPPER:
        return "hopper"
    return "any"


def multiprocessors(device: torch.device) -> int:
    """Return how many programs run at once, each on its own multiprocessor; 2 in Triton's interpreter."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 2


def key_class(size: int, dtype: torch.dtype) -> str:
    """Return a key's shape class: its block size, marked for float32, whose tiles are twice as large."""
    return f"{block_size(size)} float32" if dtype == torch.float32 else str(block_size(size))


def block_size(size: int) -> int:
    """Return the block that holds a row of ``size`` elements: a power of 2, at least the 16 of a tensor core."""
    return max(16, 1 << (size - 1).bit_length())


@overload
def unit_stride(x: torch.Tensor) -> torch.Tensor: ...
@overload
def unit_stride(x: torch.Tensor | None) -> torch.Tensor | None: ...
def unit_stride(x: torch.Tensor | None) -> torch.Tensor | None:
    """Return ``x`` if its last dimension has stride 1, else a contiguous copy."""
    return x if x is None or x.stride(-1) == 1 else x.contiguous()


@overload
def contiguous_float32(x: torch.Tensor) -> torch.Tensor: ...
@overload
def contiguous_float32(x: torch.Tensor | None) -> torch.Tensor | None: ...
def contiguous_float32(x: torch.Tensor | None) -> torch.Tensor | None:
    """Return ``x`` in float32 and contiguous, as kernels read states."""
    return None if x is None else x.float().contiguous()


def new_by_channel(x: torch.Tensor) -> torch.Tensor:
    """Return an uninitialised tensor like ``x [B, T, D]`` that lies in memory as ``[D, B, T]``."""
    B, T, D = x.shape
    return x.new_empty(D, B, T).permute(1, 2, 0)


def strided(*tensors: torch.Tensor | None, dims: int) -> tuple[tuple[Any, ...] | None, ...]:
    """Pair each tensor with the strides of its first ``dims`` dimensions, as kernels read it; None stays None."""
    return tuple(None if x is None else (x, *x.stride()[:dims]) for x in tensors)


@jit
def rows(x, i_b, i_h, o_t, o_k):
    """Return pointers to positions ``o_t [BT, 1]`` and columns ``o_k [BK]`` of one head of a `strided` tensor."""
    return x[0] + i_b * x[1] + i_h * x[2] + o_t * x[3] + o_k[None, :]


def common_dtype(*tensors: torch.Tensor) -> torch.dtype:
    """Return the dtype to which all ``tensors`` promote."""
    dtype = tensors[0].dtype
    for x in tensors[1:]:
        dtype = torch.promote_types(dtype, x.dtype)
    return dtype


@dataclass(frozen=True)
class HeadTensors:
    """Inputs and outputs of a kernel over heads, in its layout: one dtype, stride 1 along rows."""

    q: torch.Tensor
    """``[B, G, T, K]``, each for H / G neighbouring heads."""
    k: torch.Tensor
    """Like ``q``."""
    v: torch.Tensor
    """``[B, H, T, V]``."""
    y: torch.Tensor
    """The output ``[B, H, T, V]``, uninitialised, in the dtype of the caller's v. In memory it is ``[B, T, H, V]``, so
    that the heads of a position can be joined without a copy."""
    h0: torch.Tensor | None
    """The state before the first position, float32, contiguous; None: 0."""

    @classmethod
    def of(cls, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, state: torch.Tensor | None) -> "HeadTensors":
        """Prepare an op's arguments; copies only tensors in another layout."""
        dtype, (B, H, T, V) = common_dtype(q, k, v), v.shape
        y = v.new_empty(B, T, H, V).transpose(1, 2)
        q, k, v = (unit_stride(x.to(dtype)) for x in (q, k, v))
        return cls(q, k, v, y, contiguous_float32(state))

    @property
    def shape(self) -> tuple[int, int, int, int, int]:
        """B, H, T, K and V."""
        B, H, T, V = self.v.shape
        return B, H, T, self.q.shape[-1], V

    @property
    def heads_per_key(self) -> int:
        """H / G."""
        return self.v.shape[1] // self.q.shape[1]

    @property
    def shape_class(self) -> str:
        return key_class(self.q.shape[-1], self.q.dtype)

    def new_state(self, rows: int, columns: int) -> torch.Tensor:
        """Return an uninitialised float32 state ``[B, H, rows, columns]``."""
        return self.v.new_empty(*self.v.shape[:2], rows, columns, dtype=torch.float32)

    def programs(self, launch: Launch) -> int:
        """Return the number of programs: one per head, sequence and block of ``BV`` columns of V."""
        B, H, _, _, V = self.shape
        return triton.cdiv(V, launch.blocks["BV"]) * B * H
