"""Every launch configuration compiles for Hopper and fits its shared memory, which needs no GPU.

The interpreter, in which the other tests run without one, takes much that Triton's compiler refuses: a
variable of two types, for one. Compilation needs a process in which the interpreter was not asked for:

    python tests/kernels/test_kernels_compile.py gla
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("triton")

SHARED_MEMORY = 227 * 1024
"""Bytes that a program may have on Hopper."""
CAPABILITY, WARP = 90, 32

Compilation = tuple[Any, str, dict[str, Any], Any]
"""A kernel, the type of its inputs, its constants, and its launch."""


@pytest.mark.slow
@pytest.mark.parametrize("op", ["linear_attention", "gla", "taylor_attention"])
def test_every_configuration_compiles(op: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, __file__, op], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert done.stdout.count("shared memory") >= 8


def of_linear_attention() -> Iterator[Compilation]:
    from argap.kernels.linear_attention import LAUNCHES, _forward_kernel

    bare = {"g": None, "h0": None, "ht": None, "DECAY": 0, "NORMALIZE": False, "WHOLE": True}
    for key, dtype, launch in launches(LAUNCHES):
        sizes = {"K": key, "V": 128, "BK": key, "SMALLEST": 1e-6}
        yield _forward_kernel, dtype, {**sizes, **bare}, launch
        for decay in (1, 2):
            yield _forward_kernel, dtype, {**sizes, "DECAY": decay, "NORMALIZE": True, "WHOLE": False}, launch


def of_gla() -> Iterator[Compilation]:
    from argap.kernels.gla import CHUNK, DECAY_LAUNCHES, LAUNCHES, _apply_decays_kernel, _scan_kernel

    for table, kernel in ((DECAY_LAUNCHES, _apply_decays_kernel), (LAUNCHES, _scan_kernel)):
        for key, dtype, launch in launches(table):
            precision = "tf32x3" if dtype == "fp32" else "tf32"
            sizes = {"K": key, "BK": key, "V": 128, "BT": CHUNK, "RANGE": 60.0, "PRECISION": precision}
            sizes |= {"SIGMOID": True}
            yield kernel, dtype, sizes, launch
            yield kernel, dtype, {**sizes, "h0": None, "ht": None}, launch


def of_taylor_attention() -> Iterator[Compilation]:
    from argap.kernels import taylor_attention, taylor_sums
    from argap.kernels.taylor_sums import GROUP, SEGMENT

    sums, attention = taylor_sums._sum_keys_kernel, taylor_attention._attend_kernel
    for table, kernel in ((taylor_sums.LAUNCHES, sums), (taylor_attention.LAUNCHES, attention)):
        for block, dtype, launch in launches(table):
            key = {16: 16, 32: 24}[block]
            features = -(-(1 + key + key * (key + 1) // 2) // GROUP) * GROUP
            sizes = {"K": key, "BK": block, "V": 64, "P": features, "BP": GROUP, "L": SEGMENT, "SMALLEST": 1e-6}
            yield kernel, dtype, sizes, launch
            yield kernel, dtype, {**sizes, "h0": None, "ht": None, "keys_before": None}, launch


def launches(table: Any) -> Iterator[tuple[int, str, Any]]:
    """The key size of each shape class, the type of inputs, and the launch on Hopper."""
    for shape, launch in table.by_device.get("hopper", table.by_device["any"]).items():
        yield int(shape.split()[0]), "fp32" if shape.endswith("float32") else "bf16", launch


def compile_for_hopper(kernel: Any, dtype: str, constants: dict[str, Any], launch: Any) -> int:
    """Bytes of shared memory. Inputs and outputs are of type ``dtype``, states and decays float32, the rest int32.

    Raises ValueError for products of float32 with 8 columns a warp group, which read beyond shared memory on an H200.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    inputs = ["q", "k", "v", "y", "qg", "kg", "scores"]
    floats = ["g", "h0", "ht", "decays", "factor", "keys_before"]
    # Taylor attention's sums before each segment are in the inputs' type.
    types = dict.fromkeys([*inputs, "before"], f"*{dtype}") | dict.fromkeys(floats, "*fp32")
    types |= {"table": "*i32", "scale": "fp32", "g_scale": "fp32"}
    names = kernel.arg_names
    constants = {name: value for name, value in {**constants, **launch.blocks}.items() if name in names}
    signature = {name: "constexpr" if name in constants else types.get(name, "i32") for name in names}
    aligned = {(at,): [["tt.divisibility", 16]] for at, name in enumerate(names) if name not in constants}
    source = ASTSource(kernel, signature, {(names.index(name),): value for name, value in constants.items()}, aligned)
    options = {"num_warps": launch.warps, "num_stages": launch.stages}
    compiled = triton.compile(source, target=GPUTarget("cuda", CAPABILITY, WARP), options=options)
    if "m64n8k8.f32.tf32" in compiled.asm["ptx"]:
        raise ValueError(f"{kernel.__name__} {dtype} {launch}: 8 columns per warp group")
    return compiled.metadata.shared


def main(op: str) -> None:
    for kernel, dtype, constants, launch in globals()[f"of_{op}"]():
        shared = compile_for_hopper(kernel, dtype, constants, launch)
        print(f"{kernel.__name__} K {constants['K']} {dtype} {launch}: {shared} bytes of shared memory")
        if shared > SHARED_MEMORY:
            sys.exit("too much shared memory")


if __name__ == "__main__":
    main(sys.argv[1])
