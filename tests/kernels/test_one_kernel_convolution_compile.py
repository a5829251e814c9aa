"""The one-kernel convolution compiled for Hopper, which needs no GPU: values stay with their threads.

What it relies on is the compiler's choice: that a thread keeps its values from load to store, and that only
`exchange` goes through shared memory. The interpreter, in which the other tests run, shows nothing of that.
Compilation needs a process in which the interpreter was not asked for:

    python tests/kernels/test_one_kernel_convolution_compile.py
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

pytest.importorskip("triton")

CAPABILITY, WARP, SHARED_MEMORY = 90, 32, 227 * 1024
WIDTH, VALUES, FIRST, SECOND, CHANNELS = 1024, 16, 16, 8, 4  # M 2048
THREADS = FIRST * SECOND * CHANNELS
# Two factors of S are two exchanges each way, of real and imaginary parts, of which one may be made twice. Each
# takes two barriers; a value that left its thread elsewhere would take one more for each of 16.
EXCHANGES, BARRIERS = 8, 24


@pytest.mark.slow
def test_only_exchanges_leave_a_thread() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, __file__], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    shared, barriers = (int(word) for word in done.stdout.split())
    assert shared <= SHARED_MEMORY // 2
    assert EXCHANGES <= barriers <= BARRIERS


def main() -> None:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from argap.kernels.one_kernel_convolution import _convolve_kernel as kernel

    constants = {"D": WIDTH, "P": VALUES, "Q": FIRST, "R": SECOND, "C": CHANNELS}
    pointers: dict[str, Any] = dict.fromkeys(("y", "spectrum", "twiddle1", "twiddle2", "skip"), "*fp32")
    pointers |= dict.fromkeys(("x", "gate", "skipped"), ("*fp32", "i32", "i32"))
    names = kernel.arg_names
    signature = {name: "constexpr" if name in constants else pointers.get(name, "i32") for name in names}
    paths = [(at,) if isinstance(kind, str) else (at, 0) for at, kind in enumerate(signature.values())]
    aligned = {path: [["tt.divisibility", 16]] for path in paths if names[path[0]] not in constants}
    source = ASTSource(kernel, signature, {(names.index(name),): value for name, value in constants.items()}, aligned)
    target = GPUTarget("cuda", CAPABILITY, WARP)
    compiled = triton.compile(source, target=target, options={"num_warps": THREADS // WARP})
    print(compiled.metadata.shared, compiled.asm["ptx"].count("bar.sync"))


if __name__ == "__main__":
    main()
