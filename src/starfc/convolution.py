"""Graph convolution: relu([F, A~ F] W + b) for one run of rows at a time (Sec. 3.2).

In: rows of the layer below, the affinity, a layer's weights. Out: the rows of the layer, float32. The rows below are
gathered as they are stored: features in single or half precision where the file has them, each with the factor that
makes it of length one, so that nothing is copied; hidden layers in single precision. A run of rows is one product of
a fixed height, padded with zeros, because the bits of a product may depend on its height.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from .affinity import Affinity
from .features import Features
from .halves import as_single, can_widen
from .progress import Progress, silent
from .scratch import Scratch
from .tiles import run_tiles

TILE_ROWS = 1024
_FURTHEST_SCALE = 1e30  # features further than this from length one are copied, scaled


@dataclass(frozen=True)
class RowSource:
    """Rows that a convolution gathers: scales[i] * values[i].

    Attributes
    ----------
    values : float32 (n, d), or uint16 (n, d) with the bits of halves
    scales : float32 (n,)
    """

    values: NDArray[Any]
    scales: NDArray[np.float32]


@dataclass(frozen=True)
class Layer:
    """A graph convolution that is ready to be applied to any run of rows."""

    below: RowSource
    affinity: Affinity
    weight: NDArray[np.float32]  # (2 d, h)
    bias: NDArray[np.float32]  # (h,)

    def apply(self, rows: NDArray[np.int32]) -> NDArray[np.float32]:
        """Return the layer's output for at most TILE_ROWS rows, float32 (TILE_ROWS, h); those beyond mean nothing."""
        joined = np.zeros((TILE_ROWS, len(self.weight)), dtype=np.float32)
        affinity = self.affinity
        # Lists are copied out, so that the kernel sees one kind of array wherever the graph lives.
        _join_rows(
            rows, np.array(affinity.neighbors[rows]), np.array(affinity.weights[rows]),
            affinity.offsets, affinity.unlisted, affinity.unlisted_weights,
            self.below.values, self.below.scales, joined,
        )  # fmt: skip
        out = joined @ self.weight
        out += self.bias
        np.maximum(out, 0, out=out)
        return np.asarray(out)


def reads_in_place(features: Features) -> bool:
    """Tell whether kernels can gather the features as they are stored."""
    raw = features.raw
    readable = (np.float32, np.float16) if can_widen() else (np.float32,)
    return raw.dtype in readable and bool(raw.flags.c_contiguous and raw.flags.aligned)


def open_rows(features: Features, scratch: Scratch, progress: Progress = silent) -> RowSource:
    """Make the features a source of rows: in place where kernels can read them, else as a float32 copy.

    >>> source = open_rows(Features(np.array([[3, 4]], np.float32)), Scratch())
    >>> source.values.tolist(), source.scales.tolist()
    ([[3.0, 4.0]], [0.20000000298023224])
    """
    raw, n = features.raw, len(features)
    if reads_in_place(features):
        values = np.asarray(raw).view(np.uint16) if raw.dtype == np.float16 else np.asarray(raw)
        scales = np.empty(n, dtype=np.float32)
        scratch.watch(raw)

        def measure(start: int, stop: int) -> None:
            _measure_scales(values, start, stop, scales)

        run_tiles(n, 8 * TILE_ROWS, measure, "", silent, scratch.relieve)
        if scales.min() > 1 / _FURTHEST_SCALE and scales.max() < _FURTHEST_SCALE:
            return RowSource(values, scales)
    rows = scratch.array("rows", (n, features.dim), np.float32)

    def copy(start: int, stop: int) -> None:
        rows[start:stop] = features.read(start, stop)

    run_tiles(n, 8 * TILE_ROWS, copy, "read features", progress, scratch.relieve)
    return RowSource(rows, np.ones(n, dtype=np.float32))


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})
def _measure_scales(values, start, stop, scales):  # type: ignore[no-untyped-def]
    """Write 1 / length of the rows start..stop."""
    for i in range(start, stop):
        total = 0.0
        for value in values[i]:
            total += np.float64(as_single(value)) ** 2
        scales[i] = 1 / np.sqrt(total) if total > 0 else np.inf


@njit(cache=True, nogil=True)
def _join_rows(rows, lists, weights, offsets, unlisted, unlisted_weights, values, scales, joined):  # type: ignore[no-untyped-def]
    """Write [F, A~ F] of the given rows."""
    dim = values.shape[1]
    k = lists.shape[1]
    ids = np.empty(4, dtype=np.int32)
    factors = np.empty(4, dtype=np.float32)
    for r in range(len(rows)):
        i = rows[r]
        own, around = joined[r, :dim], joined[r, dim:]
        _set_row(own, scales[i], values[i])
        around[:] = own
        total = np.float32(1)
        n_held = 0
        n_unlisted = offsets[i + 1] - offsets[i]
        for e in range(k + n_unlisted):
            j = lists[r, e] if e < k else unlisted[offsets[i] + e - k]
            weight = weights[r, e] if e < k else unlisted_weights[offsets[i] + e - k]
            if j < 0 or weight <= 0:
                continue
            total += weight
            ids[n_held], factors[n_held] = j, weight * scales[j]
            n_held += 1
            if n_held == 4:
                _add_four(around, factors, values[ids[0]], values[ids[1]], values[ids[2]], values[ids[3]])
                n_held = 0
        for held in range(n_held):
            _add_one(around, factors[held], values[ids[held]])
        around /= total


@njit(cache=True, nogil=True)
def _set_row(out, scale, row):  # type: ignore[no-untyped-def]
    """Write scale * row."""
    for t in range(len(out)):
        out[t] = scale * as_single(row[t])


@njit(cache=True, nogil=True, fastmath={"contract"})
def _add_one(out, factor, row):  # type: ignore[no-untyped-def]
    """Add factor * row."""
    for t in range(len(out)):
        out[t] += factor * as_single(row[t])


@njit(cache=True, nogil=True, fastmath={"contract"})
def _add_four(out, factors, a, b, c, d):  # type: ignore[no-untyped-def]
    """Add four rows, each with its factor; four at once, because reading and writing `out` costs as much as a row."""
    f_a, f_b, f_c, f_d = factors[0], factors[1], factors[2], factors[3]
    for t in range(len(out)):
        total = out[t] + f_a * as_single(a[t])
        total += f_b * as_single(b[t])
        total += f_c * as_single(c[t])
        out[t] = total + f_d * as_single(d[t])
