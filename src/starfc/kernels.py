"""Leaf kernels: compiled functions that make no arrays, and so count no references.

In: a function for numba. Out: its compiled form. A kernel counts the references of every row that it takes out of an
array, and of every field that it reads of a tuple of arrays; where a row is some fifty products, that takes about as
long as they do. A function that makes no arrays of its own need not count, and numba can be told so. What makes arrays,
room for its loops among it, stays a plain kernel and hands them down.

numba refuses a leaf that makes an array. It does not see that a leaf must return none either, not even an argument: the
caller would give back a reference that nobody took (a test looks for that). Worth it for what runs once per row, edge
or pair; elsewhere a plain kernel will do.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, TypeVar

import numba

Result = TypeVar("Result")

_njit: Any = numba.njit  # its types do not know that references need not be counted


def leaf(function: Callable[..., Result]) -> Callable[..., Result]:
    """Compile a function that makes no arrays, to be called by other kernels."""
    return leaf_with(fastmath=())(function)


def leaf_with(
    *, fastmath: Collection[str], error_model: str = "python"
) -> Callable[[Callable[..., Result]], Callable[..., Result]]:
    """Compile such a function with the given freedoms of its arithmetic."""

    def compile_leaf(function: Callable[..., Result]) -> Callable[..., Result]:
        options = {"fastmath": set(fastmath), "error_model": error_model}
        compiled: Callable[..., Result] = _njit(cache=True, nogil=True, _nrt=False, **options)(function)
        return compiled

    return compile_leaf
