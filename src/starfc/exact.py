"""Exact neighbours: every row with every row, or a few queries with every row.

In: unit rows, read in ranges, so that they need not all be in memory. Out: ids and similarities, best first.

The join computes every product of two rows once and offers it to both of them: a fixed grid of tiles, one
single-threaded GEMM per pair of tiles, in rounds whose pairs share no tile, so that threads never meet in a row. The
grid depends on n alone and the selection is a total order, so the bits do not depend on threads, blocks or memory. The
price is n^2 / 2 products of length d.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
from numba import njit
from numpy.typing import NDArray

from .panels import PANEL_LANES, count_panels, multiply_panels, pack_panels
from .progress import Progress
from .selection import LANES, Selection, finish_selection, offer_runs, push_tile, start_selection
from .workers import get_buffer, start_workers

EQUAL_WITHIN = 1e-6  # rounding of a product of two float32 rows
_TILE = 512
_SPAN_BYTES = 2 << 30  # rows held at once by the join
_QUERY_ROWS = 256  # queries multiplied at once
_SEARCH_ROWS = 16384  # rows read at once
_AT_ONCE = 1024  # of them multiplied at once: their products stay near the processor until they are looked at

ReadRows = Callable[[int, int], NDArray[np.float32]]


def search_rows(
    queries: NDArray[np.float32], n: int, k: int, read: ReadRows
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Find the exact k best of the n rows that `read` yields, for each query; a query finds itself too."""
    selection = start_selection(len(queries), k)
    with start_workers() as pool:
        for start in range(0, n, _SEARCH_ROWS):
            search = partial(_search_block, selection, queries, read(start, min(start + _SEARCH_ROWS, n)), start)
            list(pool.map(search, range(0, len(queries), _QUERY_ROWS)))
    return finish_selection(selection)


def _search_block(
    selection: Selection, queries: NDArray[np.float32], rows: NDArray[np.float32], start: int, at: int
) -> None:
    """Offer the block of rows that begins at `start` to the queries that begin at `at`."""
    here = queries[at : at + _QUERY_ROWS]
    for first in range(0, len(rows), _AT_ONCE):
        others = rows[first : first + _AT_ONCE]
        width = PANEL_LANES * count_panels(len(others))
        products = get_buffer(len(here) * width).reshape(len(here), width)
        _offer_rows(selection, here, others, at, start + first, products)


@njit(cache=True, nogil=True)
def _offer_rows(selection, queries, rows, at, first_id, products):  # type: ignore[no-untyped-def]
    """Offer rows from `first_id` on to the queries from `at` on; `products` is room."""
    panels = np.empty((count_panels(len(rows)), rows.shape[1], PANEL_LANES), dtype=np.float32)
    pack_panels(rows, panels)
    some = np.arange(len(queries))
    multiply_panels(queries, some, panels, products)
    offer_runs(selection, some + at, products, first_id, len(rows))


def join_exactly(
    read: ReadRows, n: int, dim: int, k: int, progress: Progress
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Find the exact k best other rows of each of n rows, with two spans of tiles in memory at a time."""
    selection = start_selection(n, k)
    tile = _choose_tile_rows(n)
    n_tiles = -(-n // tile)
    span = max(1, _SPAN_BYTES // (2 * 4 * dim * tile))
    done, total = 0, n_tiles * (n_tiles + 1) // 2
    progress("knn", 0, total)
    with start_workers() as pool:
        for first in range(0, n_tiles, span):
            left = _Span(read, first, min(first + span, n_tiles), tile, n)
            for second in range(first, n_tiles, span):
                right = left if second == first else _Span(read, second, min(second + span, n_tiles), tile, n)
                for pairs in _list_rounds(left, right):
                    list(pool.map(partial(_join_tiles, selection, left, right), pairs))
                    done += len(pairs)
                    progress("knn", done, total)
    return finish_selection(selection)


def measure_exact_bytes(n: int, dim: int, k: int) -> int:
    """Return the memory that comparing all pairs takes, the rows not counted: selections, lists, spans of tiles."""
    return n * (32 * k + 128) + min(8 * n * dim, 4 << 30)


def _choose_tile_rows(n: int) -> int:
    """Return the rows per tile: whole lanes, and few enough that some thousand rows still keep several threads busy."""
    return min(_TILE, -(-n // (8 * LANES)) * LANES)


class _Span:
    """Consecutive tiles held in memory; the last one is padded with zero rows to the common shape."""

    def __init__(self, read: ReadRows, first: int, last: int, tile: int, n: int) -> None:
        self.first, self.last, self.tile, self.n = first, last, tile, n
        start, stop = first * tile, min(last * tile, n)
        rows = read(start, stop)
        self.rows = np.zeros(((last - first) * tile, rows.shape[1]), dtype=np.float32)
        self.rows[: stop - start] = rows

    def get_tile(self, index: int) -> NDArray[np.float32]:
        start = (index - self.first) * self.tile
        return self.rows[start : start + self.tile]

    def get_limits(self, index: int) -> tuple[int, int]:
        return index * self.tile, min((index + 1) * self.tile, self.n)


def _list_rounds(left: _Span, right: _Span) -> Iterator[list[tuple[int, int]]]:
    """Yield every pair of tiles once, in rounds in which no tile occurs twice."""
    m, first = left.last - left.first, left.first
    if left is not right:
        width = right.last - right.first
        for shift in range(max(m, width)):
            shifted = [(first + i, right.first + (i + shift) % max(m, width)) for i in range(m)]
            yield [pair for pair in shifted if pair[1] < right.last]
        return
    # A round-robin tournament: in round r the tiles i and r - i meet; who would meet itself plays its diagonal.
    for r in range(m):
        meetings = {(min(i, (r - i) % m), max(i, (r - i) % m)) for i in range(m)}
        yield sorted((first + i, first + j) for i, j in meetings)


def _join_tiles(selection: Selection, left: _Span, right: _Span, pair: tuple[int, int]) -> None:
    """Multiply two tiles and offer the products to the rows of both."""
    scores = get_buffer(left.tile**2).reshape(left.tile, left.tile)
    np.matmul(left.get_tile(pair[0]), right.get_tile(pair[1]).T, out=scores)
    push_tile(selection, scores, left.get_limits(pair[0]), right.get_limits(pair[1]))
