"""Compile functions with numba, and give them three machine instructions that it does not expose."""

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

READ, WRITE = 0, 1


def jit(function: Any) -> Any:
    """Compile a function without the GIL, and keep the machine code on disk if some folder for it can be written.

    Machine code that was cut off or damaged there is compiled again.
    """
    try:
        compiled = numba.njit(nogil=True, cache=True, boundscheck=False)(function)
    except RuntimeError:  # neither the package's folder nor the home: a container's other user, a read-only cluster
        return numba.njit(nogil=True, boundscheck=False)(function)
    cache: Any = vars(compiled)["_cache"]
    load = cache.load_overload

    def load_if_whole(*of: Any) -> Any:
        try:
            return load(*of)
        except Exception:  # of many types, from unpickling what anything may have been written over
            cache.flush()
            return None

    cache.load_overload = load_if_whole
    return compiled


def _prefetch(write: int) -> Any:
    @intrinsic
    def prefetch(typingctx: Any, array: types.Array, index: types.Integer) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            data = cgutils.create_struct_proxy(signature.args[0])(context, builder, value=arguments[0]).data
            address = builder.gep(data, [arguments[1]])
            byte, word = ir.IntType(8).as_pointer(), ir.IntType(32)
            function = builder.module.declare_intrinsic(
                "llvm.prefetch", [byte], ir.FunctionType(ir.VoidType(), [byte, word, word, word])
            )
            # Arguments: address, read or write, locality (3: keep in all caches), data not instructions.
            constants = [ir.Constant(word, value) for value in (write, 3, 1)]
            builder.call(function, [builder.bitcast(address, byte), *constants])
            return context.get_dummy_value()

        return types.void(array, index), codegen

    return prefetch


prefetch_read: Any = _prefetch(READ)
"""``prefetch_read(array, index)``: load the cache line of ``array[index]`` into the caches. Never faults."""
prefetch_write: Any = _prefetch(WRITE)
"""``prefetch_write(array, index)``: the same, for writing."""


@intrinsic
def _lowest_bit(typingctx: Any, word: types.Integer) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.uint64(types.uint64), codegen


lowest_bit: Any = _lowest_bit
"""``lowest_bit(word)``: position of the lowest set bit of a uint64 that is not 0."""
ONE = np.uint64(1)
