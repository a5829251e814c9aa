"""Resolve the names of devices and dtypes, and choose the attention kernel for generation."""

import os
import platform
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from argap.errors import ArgapError, first_line
from argap.runtime.progress import say

ALIASES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "half": "float16"}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def resolve_device(name: str) -> str:
    """Resolve ``auto`` to CUDA if available, else to the CPU; check and return any other name.

    Raises `ArgapError` for an unknown or missing device.
    """
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise ArgapError(f"`device` {name}: expected auto, cpu, cuda or cuda:N")
    if name.startswith("cuda"):
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if not count:
            raise ArgapError(f"`device` {name}: no CUDA device available; use `device=cpu`")
        if int(name.partition(":")[2] or 0) >= count:
            raise ArgapError(f"`device` {name}: this machine has {count} CUDA devices, numbered from 0")
    return name


def use_device(name: str) -> torch.device:
    """Return the torch device named ``name``, and make a numbered GPU the current device.

    Triton launches kernels on the current device, whichever device their tensors are on.
    """
    device = torch.device(resolve_device(name))
    if device.index is not None and device.type == "cuda":
        torch.cuda.set_device(device)
    return device


def resolve_dtype(name: str, device: str) -> str:
    """Resolve ``auto`` to float32 on a CPU and bfloat16 elsewhere, and short names such as ``bf16``.

    Raises `ArgapError`, listing the known names, for any other.
    """
    if name == "auto":
        return "float32" if torch.device(device).type == "cpu" else "bfloat16"
    name = ALIASES.get(name, name)
    if name not in DTYPES:
        raise ArgapError(f"`dtype` {name}: expected auto, {', '.join(DTYPES)}")
    return name


@contextmanager
def deterministic_algorithms(enabled: bool = True) -> Iterator[None]:
    """Make PyTorch's operations give the same bits each time while the block runs.

    cuBLAS needs a fixed workspace for that, which it reads from the environment before its first product in a process.
    Kernels outside PyTorch are not covered, nor do other devices, versions or numbers of threads give the same bits.
    Raises `ArgapError` for an operation that has no deterministic form.
    """
    if not enabled:
        yield
        return
    settings: Any = torch.utils.deterministic
    before = torch.are_deterministic_algorithms_enabled(), settings.fill_uninitialized_memory
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    try:
        torch.use_deterministic_algorithms(True)
        settings.fill_uninitialized_memory = False  # a check for bugs, which writes every new tensor
        yield
    except RuntimeError as error:
        if "deterministic" not in str(error):
            raise
        raise ArgapError(f"`deterministic=True`: {first_line(error)}; use `deterministic=False`") from None
    finally:
        torch.use_deterministic_algorithms(before[0])
        settings.fill_uninitialized_memory = before[1]


def computes_fast(dtype: torch.dtype) -> bool:
    """Return whether this processor has instructions for products in ``dtype``.

    Without them, torch converts every matrix for every product: bfloat16 then took 5 to 14 times as long as float32.
    Its own answer counts every processor with AVX-512, most of which have none for bfloat16.
    """
    if dtype == torch.float16:
        return torch.ops.mkldnn._is_mkldnn_fp16_supported()
    if dtype != torch.bfloat16:
        return True
    if platform.machine().lower() in ("x86_64", "amd64"):
        return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return torch.ops.mkldnn._is_mkldnn_bf16_supported()


def say_if_slow(name: str, dtype: torch.dtype, device: str) -> None:
    """Say so if a processor without instructions for ``dtype`` is to run the model ``name`` in it."""
    if torch.device(device).type == "cpu" and not computes_fast(dtype):
        narrow = str(dtype).removeprefix("torch.")
        slow = "in which products take many times as long as in float32"
        say(f"{name}: this processor has no instructions for {narrow}, {slow}")


@contextmanager
def growing_keys() -> Iterator[None]:
    """Keep `torch.nn.functional.scaled_dot_product_attention` from choosing cuDNN inside the block.

    On GPUs of compute capability 9.0 and 10.0 torch prefers cuDNN, which builds a new plan for each number of keys:
    when generating, every step would wait for one. The other kernels take any number of keys.
    """
    before = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)
