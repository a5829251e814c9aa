"""Triton's interpreter without work that it repeats: kernels compute the same bits in less than half the time."""

from dataclasses import replace
from typing import Any

import numpy as np


def hurry() -> None:
    """Patch Triton's interpreter. Integer overflow, eight operations for each addition, is no longer checked.

    Raises `ImportError` without Triton and `AttributeError` for one with other names; then all is left as it is.
    """
    from triton.language import core
    from triton.language.semantic import TritonSemantic
    from triton.runtime import interpreter

    patch_lang, launch, np_dtype = interpreter._patch_lang, interpreter.GridExecutor.__call__, interpreter._get_np_dtype
    new_block_type, new_tensor = core.block_type.__init__, core.tensor.__init__
    broadcast, scans, scope = TritonSemantic.broadcast_impl_value, interpreter.ScanOps, interpreter._LangPatchScope
    options = replace(interpreter.interpreter_builder.options, sanitize_overflow=False)
    patched: set[int] = set()

    def patch_once(fn: Any) -> Any:
        """Patch the language in a module's globals once a launch, not at each call of a device function."""
        if id(fn.__globals__) in patched:
            return scope()
        patched.add(id(fn.__globals__))
        return patch_lang(fn)

    def launch_anew(self: Any, *args: Any, **options: Any) -> None:
        patched.clear()
        launch(self, *args, **options)

    known: dict[str, np.dtype] = {}

    def np_dtype_by_name(dtype: Any) -> np.dtype:
        name = dtype.scalar.name
        if name not in known:
            known[name] = np_dtype(dtype)
        return known[name]

    blocks: dict[Any, dict[str, Any]] = {}
    shapes: dict[str, tuple[Any, Any]] = {}

    def block_type_known(self: Any, element_ty: Any, shape: Any) -> None:
        """Shapes and types never change: those of a block are made once."""
        name = (element_ty.name, *(getattr(size, "value", size) for size in shape))
        if name not in blocks:
            new_block_type(self, element_ty, shape)
            blocks[name] = dict(self.__dict__)
        self.__dict__.update(blocks[name])

    def tensor_known(self: Any, handle: Any, type: Any) -> None:
        if type.name not in shapes:
            new_tensor(self, handle, type)
            shapes[type.name] = self.numel, self.shape
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.numel, self.shape = shapes[type.name]

    def broadcast_where_needed(self: Any, lhs: Any, rhs: Any) -> Any:
        alike = lhs.type.is_block() and rhs.type.is_block() and lhs.shape is rhs.shape
        return (lhs, rhs) if alike else broadcast(self, lhs, rhs)

    def scan_slices(self: Any, input: Any) -> list[Any]:
        """Scan with any function, all elements of a position at once, in the order of the interpreter's own loop."""
        columns = [np.moveaxis(each.handle.data, self.axis, 0) for each in input]
        outputs = [np.empty_like(column) for column in columns]
        types = [each.dtype for each in input]
        before: Any = None
        for k in range(len(columns[0])):
            here = [self.to_tensor(column[k], dtype) for column, dtype in zip(columns, types, strict=True)]
            after = here if k == 0 else self.combine_fn.fn(*before, *here)
            before = list(after) if isinstance(after, tuple | list) else [after]
            for output, each in zip(outputs, before, strict=True):
                output[k] = each.handle.data.reshape(output[k].shape)
        return [self.to_tensor(np.moveaxis(x, 0, self.axis), t) for x, t in zip(outputs, types, strict=True)]

    interpreter._patch_lang = patch_once
    interpreter.GridExecutor.__call__ = launch_anew
    interpreter._get_np_dtype = np_dtype_by_name
    core.block_type.__init__, core.tensor.__init__ = block_type_known, tensor_known
    TritonSemantic.broadcast_impl_value = broadcast_where_needed
    scans.generic_scan = scan_slices
    interpreter.interpreter_builder.options = options
