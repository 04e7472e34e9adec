"""Half precision in kernels: numba has no float16, the processor does.

In: the 16 bits of a half as uint16, or a float32. Out: the float32 of the same value, exactly, or the bits of the
nearest half; in a loop each becomes one vector instruction for eight numbers. `can_widen` says whether this processor
has them.
"""

from __future__ import annotations

import platform
from typing import Any

from llvmlite import binding, ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic, overload


def can_widen() -> bool:
    """Tell whether this processor converts halves by itself."""
    return platform.machine().lower() in ("aarch64", "arm64") or bool(binding.get_host_cpu_features().get("f16c"))


def _define_widening(typing_context, bits):  # type: ignore[no-untyped-def]
    """Read the bits as a half and extend it."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return builder.fpext(builder.bitcast(arguments[0], ir.HalfType()), ir.FloatType())

    return types.float32(types.uint16), generate


_widen_half: Any = intrinsic(_define_widening)


def as_single(value: Any) -> float:  # noqa: ANN401
    """Return a stored number, float32 or the bits of a half, as float32; for kernels only."""
    raise TypeError("as_single is for compiled code only")


@overload(as_single)
def _choose_reading(value):  # type: ignore[no-untyped-def]
    """Choose the reading when a kernel is compiled."""
    if value == types.uint16:
        return lambda value: _widen_half(value)
    return lambda value: value


def _define_narrowing(typing_context, value):  # type: ignore[no-untyped-def]
    """Round to the nearest half, of two the even one, and read its bits."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return builder.bitcast(builder.fptrunc(arguments[0], ir.HalfType()), ir.IntType(16))

    return types.uint16(types.float32), generate


as_half: Any = intrinsic(_define_narrowing)  # the bits of the half nearest to a float32; for kernels only
