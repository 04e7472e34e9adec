"""Prefetches in kernels: rows that will be read soon are asked for beforehand.

In: an array and the number of one of its rows. Out: nothing; the memory is told, and the kernel does not wait. Rows
that stand anywhere in a store of some hundred MB take longer to arrive than to multiply, and a processor that has to
guess what comes next does not look far enough ahead by itself.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from .kernels import leaf

_LINE_BYTES = 64  # that arrive together


def _define_prefetch(typing_context, array, row, column):  # type: ignore[no-untyped-def]
    """Ask for the line of memory that holds array[row, column]."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        held = context.make_array(array)(context, builder, arguments[0])
        at = builder.ptrtoint(held.data, ir.IntType(64))
        strides = cgutils.unpack_tuple(builder, held.strides)  # type: ignore[no-untyped-call]
        indices = zip(arguments[1:], signature.args[1:], strides, strict=True)
        for index, kind, stride in indices:
            at = builder.add(at, builder.mul(context.cast(builder, index, kind, types.int64), stride))
        pointer, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer, number, number, number])
        name = "llvm.prefetch.p0"
        function = cgutils.get_or_insert_function(builder.module, kind, name)  # type: ignore[no-untyped-call]
        builder.call(function, [builder.inttoptr(at, pointer), number(0), number(3), number(1)])  # to read, and keep
        return context.get_dummy_value()

    return types.void(array, row, column), generate


prefetch_item: Any = intrinsic(_define_prefetch)


@leaf
def prefetch_row(array, row) -> None:  # type: ignore[no-untyped-def]
    """Ask for a row, int, of a two-dimensional array of consecutive rows; for kernels only."""
    for column in range(0, array.shape[1], _LINE_BYTES // array.itemsize):
        prefetch_item(array, row, column)
