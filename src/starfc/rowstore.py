"""Row store: all rows of a collection as halves, in memory or in a file.

In: Features. Out: one array (n, d) of uint16, the bits of half-precision numbers (numba has no float16), or float32
where the processor cannot widen halves by itself. Kernels copy rows out of either as float32 and never see the
difference. Half precision halves the memory that gathers wait for, and costs a join about .001 of its recall.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import overload
from numpy.typing import NDArray

from .halves import as_half, as_single, can_widen
from .kernels import leaf, leaf_with
from .prefetch import prefetch_row

_AHEAD = 8  # rows that are asked for before they are copied: they stand anywhere
CHUNK_ROWS = 256  # rows taken out and multiplied at once; fixed, because the bits of a product depend on its shape


def store_type() -> type[np.generic]:
    """Return the type in which rows are stored on this machine."""
    return np.uint16 if can_widen() else np.float32


def read_range(store: NDArray[Any], start: int, stop: int) -> NDArray[np.float32]:
    """Return rows start..stop of the store as float32."""
    rows = np.empty((stop - start, store.shape[1]), dtype=np.float32)
    copy_range(store, start, rows)
    return rows


def take_rows(store: NDArray[Any], rows: NDArray[Any]) -> NDArray[np.float32]:
    """Return the given rows of the store as float32."""
    taken = np.empty((len(rows), store.shape[1]), dtype=np.float32)
    copy_rows(store, rows, taken)
    return taken


@leaf
def copy_row(source, target) -> None:  # type: ignore[no-untyped-def]
    """Copy numbers; an assignment of slices does the same in five times the time."""
    for i in range(len(target)):
        target[i] = source[i]


@leaf
def copy_rows(store, rows, out) -> None:  # type: ignore[no-untyped-def]
    """Copy the given rows of the store to float32."""
    for i in range(len(rows)):
        if i + _AHEAD < len(rows):
            prefetch_row(store, rows[i + _AHEAD])
        source, target = store[rows[i]], out[i]
        for j in range(len(target)):
            target[j] = as_single(source[j])


@leaf
def copy_range(store, start, out) -> None:  # type: ignore[no-untyped-def]
    """Copy consecutive rows of the store to float32."""
    for i in range(len(out)):
        source, target = store[start + i], out[i]
        for j in range(len(target)):
            target[j] = as_single(source[j])


@leaf
def put_rows(store, places, rows) -> None:  # type: ignore[no-untyped-def]
    """Store unit rows at the given places."""
    for i in range(len(rows)):
        _encode_row(rows[i], store[places[i]])


@leaf_with(fastmath={"reassoc", "contract"})
def multiply_row(row, stored) -> np.float32:  # type: ignore[no-untyped-def]
    """Return the product of a float32 row and a stored one, accumulated in float32."""
    total = np.float32(0)
    for j in range(len(row)):
        total += row[j] * as_single(stored[j])
    return total


@njit(cache=True, nogil=True)
def multiply_into(room, rows, others) -> NDArray[np.float32]:  # type: ignore[no-untyped-def]
    """Return the products of rows with others, in the flat room given: new room for each costs as much as they do.

    The system has to find and to clear its pages: products of 256 rows with 813 others run at half the speed then.
    """
    products: NDArray[np.float32] = room[: len(rows) * len(others)].reshape(len(rows), len(others))
    np.dot(rows, others.T, products)
    return products


@leaf
def narrow_rows(rows, out) -> None:  # type: ignore[no-untyped-def]
    """Write rows as the bits of halves; nothing may be larger than these can say."""
    for i in range(len(rows)):
        _encode_row(rows[i], out[i])


def _encode_row(source: NDArray[np.float32], target: NDArray[Any]) -> None:
    """Copy a row to the store, rounded to nearest even; for kernels only."""


@overload(_encode_row)
def _choose_encoder(source, target):  # type: ignore[no-untyped-def]
    """Choose the copy when a kernel is compiled."""
    return _copy if target.dtype == types.float32 else _narrow


def _copy(source, target):  # type: ignore[no-untyped-def]
    """Copy single precision."""
    for i in range(len(target)):
        target[i] = source[i]


def _narrow(source, target):  # type: ignore[no-untyped-def]
    """Turn floats into the bits of halves; numpy's own conversion is ten times slower."""
    for i in range(len(target)):
        target[i] = as_half(source[i])
