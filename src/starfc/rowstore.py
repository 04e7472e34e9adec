"""Row store: all rows of a collection in memory, in single or half precision.

In: Features. Out: one array, float32 or, of a big collection, uint16 holding the bits of half-precision numbers (numba
has no float16). Kernels copy rows out of either as float32 and never see the difference. Half precision halves the
memory, and costs the recall of a join about .001.
"""

from __future__ import annotations

from concurrent.futures import Executor
from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import overload
from numpy.typing import NDArray

from .features import Features
from .progress import Progress

CHUNK_ROWS = 256  # rows taken out and multiplied at once; fixed, because the bits of a product depend on its shape
_WIDE_NUMBERS = 1 << 29  # collections of more numbers than this are held in half precision
_READ_NUMBERS = 4 << 20  # numbers read from the features at once


def load_store(features: Features, pool: Executor, progress: Progress) -> NDArray[Any]:
    """Read all rows once, into a store of (n, d)."""
    n, dim = len(features), features.dim
    store = np.empty((n, dim), dtype=np.float32 if n * dim <= _WIDE_NUMBERS else np.uint16)
    step = max(1, _READ_NUMBERS // dim)
    starts = range(0, n, step)

    def load(start: int) -> None:
        _encode_rows(features.read(start, start + step), store[start : start + step])

    progress("knn: rows", 0, n)
    for start, _ in zip(starts, pool.map(load, starts), strict=True):
        progress("knn: rows", min(n, start + step), n)
    return store


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


@njit(cache=True, nogil=True)
def copy_rows(store, rows, out) -> None:  # type: ignore[no-untyped-def]
    """Copy the given rows of the store to float32."""
    for i in range(len(rows)):
        decode_row(store[rows[i]], out[i])


@njit(cache=True, nogil=True)
def copy_range(store, start, out) -> None:  # type: ignore[no-untyped-def]
    """Copy consecutive rows of the store to float32."""
    for i in range(len(out)):
        decode_row(store[start + i], out[i])


@njit(cache=True, nogil=True)
def _encode_rows(rows, store):  # type: ignore[no-untyped-def]
    """Store unit rows."""
    for i in range(len(rows)):
        _encode_row(rows[i], store[i])


def decode_row(source: NDArray[Any], target: NDArray[np.float32]) -> None:
    """Copy a stored row to float32; for kernels only."""


def _encode_row(source: NDArray[np.float32], target: NDArray[Any]) -> None:
    """Copy a row to the store, rounded to nearest even; for kernels only."""


@overload(decode_row)
def _choose_decoder(source, target):  # type: ignore[no-untyped-def]
    """Choose the copy when a kernel is compiled."""
    return _copy if source.dtype == types.float32 else _widen


@overload(_encode_row)
def _choose_encoder(source, target):  # type: ignore[no-untyped-def]
    """Choose the copy when a kernel is compiled."""
    return _copy if target.dtype == types.float32 else _narrow


def _copy(source, target):  # type: ignore[no-untyped-def]
    """Copy single precision."""
    for i in range(len(target)):
        target[i] = source[i]


def _widen(source, target):  # type: ignore[no-untyped-def]
    """Turn the bits of halves into floats."""
    bits = target.view(np.uint32)
    for i in range(len(target)):
        bits[i] = (np.uint32(source[i]) & np.uint32(0x7FFF)) << np.uint32(13)
    # The exponent of a half is biased by 15, of a float by 127; this is exact for subnormals too.
    for i in range(len(target)):
        target[i] *= np.float32(2.0**112)
    for i in range(len(target)):
        bits[i] |= (np.uint32(source[i]) & np.uint32(0x8000)) << np.uint32(16)


def _narrow(source, target):  # type: ignore[no-untyped-def]
    """Turn floats into the bits of halves; numpy's own conversion is ten times slower."""
    scaled = source * np.float32(2.0**-112)
    bits = scaled.view(np.uint32)
    for i in range(len(source)):
        size = bits[i] & np.uint32(0x7FFFFFFF)
        size += np.uint32(0xFFF) + ((size >> np.uint32(13)) & np.uint32(1))
        target[i] = np.uint16((size >> np.uint32(13)) | ((bits[i] >> np.uint32(16)) & np.uint32(0x8000)))
