"""Kernels compiled for Hopper, which needs no GPU: they fit its shared memory, values stay with their threads, and the
machine code reads no register before it is written.

The interpreter, in which the other tests run without a GPU, takes much that Triton's compiler refuses (a variable of
two types, for one), and shows nothing of which values leave their threads. Compilation needs a process in which the
interpreter was not asked for:

    python tests/unit/kernels/test_kernels_compile.py gla
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("triton")

SHARED_MEMORY = 227 * 1024
"""Bytes that a program may have on Hopper."""
CAPABILITY, WARP = 90, 32
HEADS = dict.fromkeys(("q", "k", "left", "v", "y", "g"), 3)
"""Tensors over heads that are given with their strides, and the number of these."""
RULE = dict.fromkeys(("q", "k", "v", "a", "b", "g", "y"), 3)
STRIDES = {
    "chunk_transitions": RULE,
    "generalized_delta_rule": RULE,
    "one_kernel_convolution": dict.fromkeys(("x", "gate", "skipped"), 2),
    "selective_scan": dict.fromkeys(("u", "step", "B", "C", "gate"), 2),
    "selective_scan_backward": dict.fromkeys(("u", "step", "B", "C", "gate", "dy"), 2),
    "toeplitz_convolution": dict.fromkeys(("x", "gate", "y"), 3),
    "trained_convolution": {},
}
"""The same in kernels without heads, by module."""
BARRIERS = range(8, 25)
"""Of the one-kernel convolution. Two factors of S are two exchanges each way, of real and imaginary parts, of which
one may be made twice. Each takes two barriers; a value that left its thread elsewhere would take one more for each of
16."""

AT_LEAST = {
    "linear_divergence": 4,
    "one_kernel_convolution": 2,
    "selective_scan": 8,
    "toeplitz_convolution": 1,
    "trained_convolution": 4,
}
"""Compilations of ops with fewer than eight."""

INSTRUCTION = re.compile(r"\t(?:@!?U?P\w+ )?([A-Z][\w.]*) ([^;]*);")
UNIFORM = re.compile(r"\bUR(\d+)\b")
WRITING = ("U", "R2UR", "S2UR", "VOTEU", "REDUX", "LDCU")
"""Instructions whose first operand may be a uniform register that they write."""

Compilation = tuple[Any, str, dict[str, Any], Any]
"""A kernel, the type of its inputs, its constants, and its launch."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "op", ["linear_attention", "gla", "taylor_attention", "delta_rule", "generalized_delta_rule", *AT_LEAST]
)
def test_it_compiles(op: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, __file__, op], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert done.stdout.count("shared memory") >= AT_LEAST.get(op, 8)


def of_linear_attention() -> Iterator[Compilation]:
    """Every launch configuration."""
    from argap.kernels.recurrent.linear_attention import LAUNCHES, _forward_kernel

    bare = {"g": None, "h0": None, "ht": None, "DECAY": 0, "NORMALIZE": False, "WHOLE": True}
    for key, dtype, launch in launches(LAUNCHES):
        sizes = {"K": key, "V": 128, "BK": key, "SMALLEST": 1e-6}
        yield _forward_kernel, dtype, {**sizes, **bare}, launch
        for decay in (1, 2):
            yield _forward_kernel, dtype, {**sizes, "DECAY": decay, "NORMALIZE": True, "WHOLE": False}, launch


def of_gla() -> Iterator[Compilation]:
    from argap.kernels.recurrent.gla import CHUNK, DECAY_LAUNCHES, LAUNCHES, _apply_decays_kernel, _scan_kernel

    for table, kernel in ((DECAY_LAUNCHES, _apply_decays_kernel), (LAUNCHES, _scan_kernel)):
        for key, dtype, launch in launches(table):
            sizes = {"K": key, "BK": key, "V": 128, "BT": CHUNK, "RANGE": 60.0, "SIGMOID": True}
            sizes["PRECISION"] = "tf32x3" if dtype == "fp32" else "tf32"
            yield kernel, dtype, sizes, launch
            if kernel is _scan_kernel:
                yield kernel, dtype, {**sizes, "h0": None, "ht": None}, launch


def of_taylor_attention() -> Iterator[Compilation]:
    from argap.kernels.recurrent import taylor_attention, taylor_sums
    from argap.kernels.recurrent.taylor_sums import GROUP, SEGMENT

    sums, attention = taylor_sums._sum_keys_kernel, taylor_attention._attend_kernel
    for table, kernel in ((taylor_sums.LAUNCHES, sums), (taylor_attention.LAUNCHES, attention)):
        for block, dtype, launch in launches(table):
            key = {16: 16, 32: 24}[block]
            features = -(-(1 + key + key * (key + 1) // 2) // GROUP) * GROUP
            sizes = {"K": key, "BK": block, "V": 64, "P": features, "BP": GROUP, "L": SEGMENT, "SMALLEST": 1e-6}
            yield kernel, dtype, sizes, launch
            yield kernel, dtype, {**sizes, "h0": None, "ht": None, "keys_before": None}, launch


def of_delta_rule() -> Iterator[Compilation]:
    """With a decay for each position, without decays, and with a decay for each channel."""
    from argap.kernels.recurrent import decayed_pairs, delta_rule, delta_rule_inverse

    inverse, scan = delta_rule_inverse._invert_kernel, delta_rule._scan_kernel
    for table, kernel in ((delta_rule_inverse.LAUNCHES, inverse), (delta_rule.LAUNCHES, scan)):
        for key, dtype, launch in launches(table):
            sizes = {"K": key, "BK": key, "V": 128, "BT": 64, "PRECISION": "tf32x3" if dtype == "fp32" else "tf32"}
            plain = {"norms": None, "g": None, "sums": None}
            without = {"lower": None, "left": None, "decays": None}
            if str(key) not in delta_rule.SCORES_FIRST:
                sizes["scores"] = None
            narrower = delta_rule.NARROWER.get(str(key), ()) if kernel is scan else ()
            for each in (launch, *narrower):
                yield kernel, dtype, {**sizes, **without}, each
                yield kernel, dtype, {**sizes, **without, **plain, "h0": None}, each
                if key <= delta_rule.LARGEST_DECAYED_KEY if kernel is scan else key == 16:
                    yield kernel, dtype, {**sizes, **plain, **({"k": None} if kernel is inverse else {})}, each
    for key, dtype, launch in launches(decayed_pairs.LAUNCHES):
        sizes = {
            "K": key,
            "BT": 64,
            "RANGE": 40.0,
            "WEAKEST": 1e-35,
            "PRECISION": "tf32x3" if dtype == "fp32" else "tf32",
        }
        yield decayed_pairs._pairs_kernel, dtype, sizes, launch
        strong = decayed_pairs.STRONG_LAUNCHES.by_device["any"]["any"]
        yield decayed_pairs._strong_pairs_kernel, dtype, {**sizes, "BK": key}, strong
    # Scores of wide keys.
    scores, sizes = delta_rule_inverse._scores_kernel, {"K": 256, "BK": 256, "BT": 64}
    yield scores, "bf16", sizes, delta_rule_inverse.SCORE_LAUNCHES.by_device["any"]["any"]


def of_generalized_delta_rule() -> Iterator[Compilation]:
    """Chunks as maps of the state, and the form for other dtypes and small keys."""
    from argap.kernels.recurrent import chunk_transitions as transitions
    from argap.kernels.recurrent import generalized_delta_rule as rule

    inverse = transitions.INVERSE_LAUNCHES.by_device["hopper"]["any"]
    for key, dtype, launch in launches(transitions.LAUNCHES):
        yield transitions._inverse_kernel, dtype, {"K": key, "BK": key, "BT": 64}, inverse
        for value in (key, 2 * key):
            yield transitions._transitions_kernel, dtype, {"K": key, "BK": key, "V": value, "BT": 64}, launch
    for key, dtype, launch in launches(transitions.CHAIN_LAUNCHES):
        for state in ({}, {"h0": None}):
            yield transitions._chain_kernel, dtype, {"K": key, "BK": key, "V": key, "BT": 64, **state}, launch
    yield rule._reads_kernel, "fp16", {"K": 128, "V": 128, "BT": 64}, rule.READ_LAUNCHES.by_device["any"]["any"]
    for table, kernel in ((rule.LAUNCHES, rule._scan_kernel), (rule.PRODUCT_LAUNCHES, rule._products_kernel)):
        for key, dtype, launch in launches(table):
            taken = dtype == "bf16" and str(key) in transitions.LAUNCHES.by_device["hopper"]
            yield kernel, "fp16" if taken else dtype, {"K": key, "BK": key, "V": 128, "BT": 64}, launch


def of_one_kernel_convolution() -> Iterator[Compilation]:
    """M 2048 in four channels a program, alone and with gate and skip."""
    from argap.kernels.convolution.one_kernel_convolution import _convolve_kernel
    from argap.kernels.launch import Launch

    sizes, launch = {"D": 1024, "R": 8}, Launch({"P": 16, "Q": 16, "C": 4}, warps=16)
    yield _convolve_kernel, "fp32", {**sizes, "gate": None, "skip": None}, launch
    yield _convolve_kernel, "fp32", sizes, launch


def of_selective_scan() -> Iterator[Compilation]:
    """16 states, with everything and with what is required; gradients with every launch configuration."""
    from argap.kernels.scan import selective_scan_backward as backward
    from argap.kernels.scan.selective_scan import LAUNCHES, _scan_kernel

    sizes, (_, _, launch) = {"E": 2048, "N": 16, "BN": 16, "L": backward.STORED_EVERY}, next(launches(LAUNCHES))
    yield _scan_kernel, "bf16", sizes, launch
    yield _scan_kernel, "bf16", {**sizes, "gate": None, "skip": None, "h0": None, "states": None}, launch
    bare = dict.fromkeys(("gate", "skip", "dht", "dgate", "dskip"))
    for states, _, launch in launches(backward.LAUNCHES):
        sizes |= {"N": states, "BN": states}
        yield backward._backward_kernel, "bf16", sizes, launch
        yield backward._backward_kernel, "bf16", {**sizes, **bare}, launch


def of_toeplitz_convolution() -> Iterator[Compilation]:
    from argap.kernels.convolution.toeplitz_convolution import COPIES, LARGEST_BLOCK, LAUNCHES, _multiply_kernel

    sizes = {"FIRST": LARGEST_BLOCK, "L": 18 * LARGEST_BLOCK, "COPIES": COPIES}
    yield _multiply_kernel, "bf16", sizes, LAUNCHES.by_device["hopper"]["any"]


def of_trained_convolution() -> Iterator[Compilation]:
    """One block and two, with all that may follow the products."""
    from argap.kernels.convolution.trained_convolution import BLOCK, LAUNCHES, _backward_kernel, _forward_kernel

    for way, kernel in (("forward", _forward_kernel), ("backward", _backward_kernel)):
        for blocks, shape in ((1, way), (2, f"{way} of blocks")):
            sizes = {"T": blocks * BLOCK, "BT": BLOCK, "NT": blocks, "P": 2, "STEPS": 4, "TF32": True}
            yield kernel, "fp32", sizes, LAUNCHES.by_device["any"][shape]


def of_linear_divergence() -> Iterator[Compilation]:
    """Two hidden sizes, by the copy engine and without."""
    from argap.kernels.head.divergence_tiles import divergence_tile_kernel
    from argap.kernels.head.linear_divergence import LAUNCHES
    from argap.kernels.head.linear_logprob import LOWEST

    for shape, dtype in (("16 bits", "bf16"), ("32 bits", "fp32")):
        for engine in (False, True):
            sizes = {"D_P": 2048, "D_Q": 1024, "LOWEST": LOWEST, "CAPPED_P": True, "CAPPED_Q": False, "bias_q": None}
            sizes |= {"COPY_ENGINE_P": engine, "COPY_ENGINE_Q": engine}
            yield divergence_tile_kernel, dtype, sizes, LAUNCHES.by_device["hopper"][shape]


def launches(table: Any) -> Iterator[tuple[int, str, Any]]:
    """The key size of each shape class, the type of inputs, and the launch on Hopper."""
    for shape, launch in table.by_device.get("hopper", table.by_device["any"]).items():
        yield int(shape.split()[0]), "fp32" if shape.endswith("float32") else "bf16", launch


def compile_for_hopper(kernel: Any, dtype: str, constants: dict[str, Any], launch: Any) -> tuple[int, int]:
    """Bytes of shared memory, and barriers. Inputs and outputs are of type ``dtype``, states and decays float32, the
    rest int32.

    Raises ValueError for products of float32 with 8 columns a warp group, which read beyond shared memory on an H200,
    and for machine code that reads a register which nothing has written.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    dims = STRIDES.get(kernel.fn.__module__.rpartition(".")[2], {**HEADS, "beta": 3})
    inputs = [*dims, "qg", "kg", "qd", "kd", "kl", "scores", "inverse", "m", "before", "copies"]
    inputs += ["reads", "kept", "added", "ad", "bl", "w", "read", "on_k", "on_b", "from_k"]
    floats = [
        "g",
        "h0",
        "ht",
        "decays",
        "factor",
        "keys_before",
        "norms",
        "sums",
        "lower",
        "spectrum",
        "twiddle1",
        "twiddle2",
        "skip",
    ]
    floats += (
        ["A", "B", "C", "states", "scratch", "dht", "dB", "dC", "dA", "dskip", "dh0"] if "A" in kernel.arg_names else []
    )
    inputs += ["du", "dstep", "dgate", "x", "gate", "dy", "dx"]
    floats += ["taps", "bias", "products", "dskip", "dbias"]
    types: dict[str, Any] = dict.fromkeys(inputs, f"*{dtype}") | dict.fromkeys(floats, "*fp32")
    types |= dict.fromkeys(("max_p", "sum_p", "cross", "max_q", "sum_q"), "*fp32") | {"bias_p": f"*{dtype}"}
    for head in ("p", "q"):
        types[f"numbers_{head}"] = ("i32", "i32", "fp32", "fp32")
        for name, rows in ((f"hidden_{head}", "BN"), (f"weight_{head}", "BV")):
            blocks = f"[{launch.blocks.get(rows)},{launch.blocks.get('BD')}]"
            engine = constants.get(f"COPY_ENGINE_{head.upper()}")
            types[name] = f"tensordesc<{dtype}{blocks}>" if engine else f"*{dtype}"
    types |= {"y": f"*{dtype}", "table": "*i32", "scale": "fp32", "g_scale": "fp32"}
    types |= {name: (types[name], *["i32"] * count) for name, count in dims.items()}
    names = kernel.arg_names
    constants = {name: value for name, value in {**constants, **launch.blocks}.items() if name in names}
    signature = {name: "constexpr" if name in constants else types.get(name, "i32") for name in names}
    aligned = {}
    unspecialized = [each.name for each in kernel.params if each.do_not_specialize]
    for at, (argument, kind) in enumerate(signature.items()):
        if argument in unspecialized:
            continue
        for path in [(at,)] if isinstance(kind, str) else [(at, part) for part in range(len(kind))]:
            whole = kind if isinstance(kind, str) else kind[path[-1]]
            aligned |= {path: [["tt.divisibility", 16]]} if whole.startswith(("*", "i")) else {}
    source = ASTSource(kernel, signature, {(names.index(name),): value for name, value in constants.items()}, aligned)
    options = {"num_warps": launch.warps, "num_stages": launch.stages}
    compiled = triton.compile(source, target=GPUTarget("cuda", CAPABILITY, WARP), options=options)
    if "m64n8k8.f32.tf32" in compiled.asm["ptx"]:
        raise ValueError(f"{kernel.__name__} {dtype} {launch}: 8 columns per warp group")
    if found := unwritten(compiled.asm["sass"]):
        raise ValueError(f"{kernel.__name__} {constants} {dtype} {launch}: {found} before anything is written to it")
    return compiled.metadata.shared, compiled.asm["ptx"].count("bar.sync")


def unwritten(sass: str) -> str | None:
    """The first instruction that reads a uniform register which none above it writes, or None.

    ptxas 12.8 makes such code of kernels with several products for Hopper, now and then: addresses of shared memory
    that depend on what ran before, so that an H100 ends in an illegal access.
    """
    written: set[int] = set()
    for line in sass.splitlines():
        if not (found := INSTRUCTION.search(line)):
            continue
        operation, operands = found[1], [each.strip() for each in found[2].split(",")]
        writes = UNIFORM.fullmatch(operands[0]) if operation.startswith(WRITING) else None
        reads = [
            int(register) + part
            for each in (operands[1:] if writes else operands)
            for register in UNIFORM.findall(each)
            for part in parts(operation, each, operands)
        ]
        if any(register not in written for register in reads):
            return f"{operation} {found[2]}"
        if writes:
            wide = 4 if ".128" in operation else 2 if ".64" in operation or ".WIDE" in operation else 1
            written.update(int(writes[1]) + part for part in range(wide))
    return None


def parts(operation: str, operand: str, operands: list[str]) -> range:
    """The registers of an operand, from its first: the descriptors of a matrix product are two each, of both factors or
    of the second alone."""
    if "gdesc[" in operand:
        return range(2 if operands[1].startswith("R") else 0, 4)
    return range(2 if "desc[" in operand or (operation.startswith("U") and ".64" in operation) else 1)


def ones(kernel: Any, constants: dict[str, Any]) -> Iterator[dict[str, int]]:
    """What Triton compiles anew for an argument of 1: one position, and as many heads of keys as of values."""
    free = {each.name for each in kernel.params if not each.do_not_specialize} - constants.keys()
    yield {}
    if names := free & {"R", "T"}:
        yield dict.fromkeys(names, 1)


def main(op: str) -> None:
    for kernel, dtype, constants, launch in globals()[f"of_{op}"]():
        for one in ones(kernel, constants):
            check(op, kernel, dtype, constants | one, launch)


def check(op: str, kernel: Any, dtype: str, constants: dict[str, Any], launch: Any) -> None:
    shared, barriers = compile_for_hopper(kernel, dtype, constants, launch)
    print(f"{kernel.__name__} {constants} {dtype} {launch}: {shared} bytes of shared memory, {barriers} barriers")
    if shared > SHARED_MEMORY:
        sys.exit("too much shared memory")
    if (op, kernel.__name__) == ("selective_scan", "_scan_kernel") and barriers > 6:
        sys.exit("B and C change threads more than once in each of two tiles")
    if op == "one_kernel_convolution" and not (shared <= SHARED_MEMORY // 2 and barriers in BARRIERS):
        sys.exit("values leave their threads")


if __name__ == "__main__":
    main(sys.argv[1])
