"""Masks in kernels: which of 64 numbers reach a floor, as the bits of one integer.

In: a line of float32, where to begin, and a floor. Out: an integer of 64 bits, the first number in the lowest. A
processor compares sixteen numbers at once and has the answer as bits; written as a loop, it would be turned back into
one number after the other. Whoever looks for a few hits among many products spends most of the time on that.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic

from .kernels import leaf

MASK_LANES = 64  # numbers compared at once
_FEW_LANES = 16  # where there are fewer


def _make_comparison(n_lanes: int) -> Any:  # noqa: ANN401
    """Return a function for kernels: which of so many numbers of a line, from one on, reach a floor, as bits."""

    def define(typing_context, line, begin, floor):  # type: ignore[no-untyped-def]
        if not isinstance(line, types.Array) or line.dtype != types.float32 or line.layout != "C":
            return None

        def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
            held = context.make_array(line)(context, builder, arguments[0])
            at = builder.gep(held.data, [context.cast(builder, arguments[1], begin, types.int64)])
            lanes = ir.VectorType(ir.FloatType(), n_lanes)
            numbers = builder.load(builder.bitcast(at, lanes.as_pointer()), align=4)
            first = builder.insert_element(ir.Constant(lanes, ir.Undefined), arguments[2], ir.IntType(32)(0))
            zeros = ir.Constant(ir.VectorType(ir.IntType(32), n_lanes), [0] * n_lanes)
            floors = builder.shuffle_vector(first, ir.Constant(lanes, ir.Undefined), zeros)
            mask = builder.bitcast(builder.fcmp_ordered(">=", numbers, floors), ir.IntType(n_lanes))
            return mask if n_lanes == MASK_LANES else builder.zext(mask, ir.IntType(MASK_LANES))

        return types.uint64(line, begin, types.float32), generate

    return intrinsic(define)


def _define_lowest(typing_context, mask):  # type: ignore[no-untyped-def]
    """Count the zeros below the lowest one."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return builder.cttz(arguments[0], ir.IntType(1)(1))

    return types.int64(types.uint64), generate


_compare_many, _compare_few = _make_comparison(MASK_LANES), _make_comparison(_FEW_LANES)
find_lowest: Any = intrinsic(_define_lowest)  # the number of the lowest bit that is set in a uint64 other than 0


@leaf
def mark_reaching(line, begin, floor) -> np.uint64:  # type: ignore[no-untyped-def]
    """Return which of the (at most 64) numbers of a line from `begin`, a multiple of 64, on reach a floor."""
    mask = np.uint64(0)
    n_rest = len(line) - begin
    if n_rest >= MASK_LANES:
        mask = _compare_many(line, begin, floor)
    elif n_rest >= _FEW_LANES:
        for at in range(0, n_rest - _FEW_LANES + 1, _FEW_LANES):
            mask |= _compare_few(line, begin + at, floor) << np.uint64(at)
        last = n_rest - _FEW_LANES  # the last ones overlap those before: one by one would take longer
        mask |= _compare_few(line, begin + last, floor) << np.uint64(last)
    else:
        for at in range(n_rest):
            mask |= np.uint64(line[begin + at] >= floor) << np.uint64(at)
    return mask
