"""Spin locks that compiled kernels take while they work on shared rows.

In: an int32 array, one lock per element, 0 where it is free. numba has no locks and no atomic exchange; this is one
instruction of the processor. A waiting thread burns its core, so a lock is for a few microseconds, and a thread must
never wait for one while it holds another.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic


def _define_exchange(typing_context, array, index, value):  # type: ignore[no-untyped-def]
    """Set array[index] (int32) to value and return what it was, as one step that no other thread can divide."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        array_type = signature.args[0]
        view = context.make_array(array_type)(context, builder, arguments[0])
        locate: Any = cgutils.get_item_pointer
        pointer = locate(context, builder, array_type, view, [arguments[1]], wraparound=False)
        return builder.atomic_rmw("xchg", pointer, arguments[2], "seq_cst")

    return types.int32(array, types.intp, types.int32), generate


_exchange: Any = intrinsic(_define_exchange)


@njit(cache=True, nogil=True)
def lock(locks, index) -> None:  # type: ignore[no-untyped-def]
    """Wait until a lock is free, and take it."""
    while _exchange(locks, index, np.int32(1)) != 0:
        pass


@njit(cache=True, nogil=True)
def unlock(locks, index) -> None:  # type: ignore[no-untyped-def]
    """Let other threads in."""
    _exchange(locks, index, np.int32(0))
