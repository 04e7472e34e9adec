"""Cell join: neighbours are looked for only in the cells that a row lies near.

In: rows of unit length. Out: for every row the k best (similarity, id) pairs among the rows that were compared.

1. The centres of cells of about 64 rows are trained on a sample by spherical k-means, and are themselves grouped: a row
   is compared with the groups and then only with the centres of the best ones, so that assigning n rows costs n^1.5
   and not n^2. Cells that come out too large (one person with half of all faces, thousands of copies) are split.
   From there on a cell is a run of consecutive rows.
2. Every row ranks the other cells and probes the first p. p is not a constant: the true neighbours of a few hundred
   rows are found exactly, and p is the least that finds the wanted share of them.
3. For every cell ONE product of [rows of other cells that probe it] x [its members] is computed and offered to both
   sides, so that a pair is found if either side probes the other.

A candidate is one 64-bit key, similarity in the upper half and inverted id in the lower: "better" is one integer
comparison and a total order (similarity descending, id ascending). What a row keeps does not depend on the order in
which candidates arrive, and the shape of a product depends on the cells alone; hence the same bits whatever the
threads, blocks or memory. A row collects up to twice k keys and then drops all but the k best, which is cheaper than a
heap.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numba
import numpy as np
from numba import njit, prange, types
from numba.core import cgutils
from numba.extending import intrinsic, overload
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from .features import Features
from .progress import Progress

_log = logging.getLogger(__name__)

LANES = 64  # scores tested together for "does any of these beat the worst kept"
_FINE_LANES = 16  # where one does, so many are tested again together
CELL_ROWS = 64  # rows a cell has on average
_LARGEST_CELL = 4 * CELL_ROWS
_ROWS_PER_CENTRE = 12  # sample that the centres are trained on
_N_ROUNDS = 3
_FLAT_CELLS = 4096  # up to so many cells a row is compared with all centres, beyond with those of the best groups
_ROUGH_GROUPS = 16  # groups looked at to find the one best cell
_N_GROUPS = 64  # groups looked at to rank cells for probing
_MOST_PROBES = 256
_CHUNK_ROWS = 256  # rows multiplied at once; fixed, because the bits of a product depend on its shape
_RANK_ROWS = 2048  # rows ranked at once; more make the products with a group's few centres worthwhile
_WIDE_NUMBERS = 1 << 29  # collections of more numbers than this are held in half precision
_PHASES = (0, 3, 8, 1 << 30)  # ranks of the probes that are followed together
_N_QUERIES = 512  # rows whose true neighbours set the number of probes


@dataclass(frozen=True)
class Selection:
    """The best candidates seen so far by each of n rows.

    Attributes
    ----------
    keys : uint64 (n, capacity)
        Packed candidates of each row, unordered, the first `counts` of them in use.
    counts : int32 (n,)
        Candidates held by each row.
    floor_keys : uint64 (n,)
        Worst of the k best when last dropped; nothing at or below it can enter. 0 while everything may.
    floors : float32 (n,)
        Similarity in `floor_keys`, -inf while everything may enter: what whole lanes are tested against.
    k : int
        Candidates that count.
    """

    keys: NDArray[np.uint64]
    counts: NDArray[np.int32]
    floor_keys: NDArray[np.uint64]
    floors: NDArray[np.float32]
    k: int

    @property
    def state(self) -> tuple[Any, ...]:
        """The arguments that every kernel takes."""
        return self.keys, self.counts, self.floor_keys, self.floors, self.k


@dataclass(frozen=True)
class Coarse:
    """Centres of cells in groups of near ones, so that a row need not be compared with all of them.

    Attributes
    ----------
    centres : float32 (m, d)
        Mean directions of the cells, group by group.
    source : int32 (m,)
        What number each of them had before they were grouped.
    groups : float32 (g, d)
        Mean directions of the groups.
    group_starts : int64 (g + 1,)
        First cell of each group.
    """

    centres: NDArray[np.float32]
    source: NDArray[np.int32]
    groups: NDArray[np.float32]
    group_starts: NDArray[np.int64]

    @property
    def state(self) -> tuple[Any, ...]:
        """The arguments that the ranking kernel takes."""
        return self.centres, self.groups, self.group_starts


@dataclass(frozen=True)
class Cells:
    """A division of n rows into m cells, each a run of consecutive places.

    Attributes
    ----------
    order : int32 (n,)
        Which row stands at each place.
    starts : int64 (m + 1,)
        First place of each cell.
    coarse : Coarse
        Their centres.
    """

    order: NDArray[np.int32]
    starts: NDArray[np.int64]
    coarse: Coarse

    @property
    def owners(self) -> NDArray[np.int32]:
        """Which cell each place belongs to, int32 (n,)."""
        return np.repeat(np.arange(len(self.starts) - 1, dtype=np.int32), np.diff(self.starts))


def start_selection(n: int, k: int) -> Selection:
    """Return an empty selection of k for each of n rows; `floors` is longer, so that whole lanes can be read."""
    return Selection(
        keys=np.empty((n, 2 * k + 16), dtype=np.uint64),
        counts=np.zeros(n, dtype=np.int32),
        floor_keys=np.zeros(n, dtype=np.uint64),
        floors=np.full(n + LANES, -np.inf, dtype=np.float32),
        k=k,
    )


def finish_selection(selection: Selection) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Return ids int32 (n, k) and similarities float32 (n, k), best first; -1 and 0 where a row has fewer."""
    n = len(selection.counts)
    neighbors = np.empty((n, selection.k), dtype=np.int32)
    similarities = np.empty((n, selection.k), dtype=np.float32)
    _unpack_best(selection.keys, selection.counts, np.arange(n), neighbors, similarities)
    return neighbors, similarities


def push_scores(
    selection: Selection, scores: NDArray[np.float32], rows: tuple[int, int], columns: tuple[int, int]
) -> None:
    """Offer scores[i, j] to rows[0]+i and to columns[0]+j; of a diagonal tile only the upper triangle counts."""
    _push_tile(scores, *rows, *columns, selection.state)


def search_rows(
    queries: NDArray[np.float32], n: int, k: int, read: Callable[[int, int], NDArray[np.float32]], block: int = 4096
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Find the exact k best of the n rows that `read` yields, for each query; a query finds itself too."""
    selection = start_selection(len(queries), k)
    with _workers() as pool:
        for start in range(0, n, block):
            rows = read(start, min(start + block, n))
            list(pool.map(lambda at: _search_block(selection, queries, rows, start, at), range(0, len(queries), 256)))  # noqa: B023
    return finish_selection(selection)


def join_cells(
    features: Features, k: int, *, recall: float, seed: int, progress: Progress
) -> tuple[NDArray[np.int32], NDArray[np.float32], NDArray[np.int32]]:
    """Find about `recall` of the k nearest rows of every row; return neighbours, similarities and the cell order."""
    with _workers() as pool:
        store = _load_store(features, pool, progress)
        cells = _make_cells(store, seed, pool, progress)
        store = _permute(store, cells.order)
        n_probes = _choose_probes(store, cells, k, recall, seed, pool)
        neighbors = np.empty((len(store), k), dtype=np.int32)
        similarities = np.empty((len(store), k), dtype=np.float32)
        places = np.arange(len(store), dtype=np.int32)
        ranked = _rank_cells(store, places, cells.coarse, n_probes + 1, _N_GROUPS, pool)
        probes = _drop_own(ranked, cells.owners)
        _join_probes(store, cells, probes, k, (neighbors, similarities), pool, progress)
    return neighbors, similarities, cells.order


@contextmanager
def _workers() -> Iterator[Executor]:
    """Yield as many workers as numba may use threads, each with a BLAS of one thread."""
    # The BLAS that numba's np.dot calls; only libraries that are loaded already can be limited.
    import scipy.linalg.cython_blas  # noqa: F401

    with threadpool_limits(limits=1, user_api="blas"), ThreadPoolExecutor(numba.get_num_threads()) as pool:
        yield pool


def _search_block(
    selection: Selection, queries: NDArray[np.float32], rows: NDArray[np.float32], start: int, at: int
) -> None:
    """Offer a block of rows to 256 of the queries."""
    _push_rows(queries[at : at + 256] @ rows.T, at, start, selection.state)


def _load_store(features: Features, pool: Executor, progress: Progress) -> NDArray[Any]:
    """Read all rows once; big collections are held as the bits of half-precision numbers."""
    n, dim = len(features), features.dim
    store = np.empty((n, dim), dtype=np.float32 if n * dim <= _WIDE_NUMBERS else np.uint16)

    def load(start: int) -> None:
        _encode_rows(features.read(start, start + step), store[start : start + step])

    step = max(1, (4 << 20) // dim)
    starts = range(0, n, step)
    progress("knn: rows", 0, n)
    for start, _ in zip(starts, pool.map(load, starts), strict=True):
        progress("knn: rows", min(n, start + step), n)
    return store


def _read_store(store: NDArray[Any], start: int, stop: int) -> NDArray[np.float32]:
    """Return a range of the store as float32."""
    rows = np.empty((max(0, min(stop, len(store)) - start), store.shape[1]), dtype=np.float32)
    _load_range(store, start, rows)
    return rows


def _permute(store: NDArray[Any], order: NDArray[np.int32]) -> NDArray[Any]:
    """Return the store with row order[i] at place i."""
    return store[order]


# --- cells -----------------------------------------------------------------------------------------------------------


def _make_cells(store: NDArray[Any], seed: int, pool: Executor, progress: Progress) -> Cells:
    """Train centres on a sample, assign every row to one, and split the cells that are too large."""
    n = len(store)
    n_cells = max(2, n // CELL_ROWS)
    progress("knn: cells", 0, _N_ROUNDS + 2)
    sample = np.sort(np.random.default_rng(seed).choice(n, min(n, _ROWS_PER_CENTRE * n_cells), replace=False))
    rows = _take_rows(store, sample)
    centres = rows[np.sort(np.random.default_rng((seed, 2)).choice(len(rows), n_cells, replace=False))]
    for done in range(1, _N_ROUNDS + 1):
        coarse = _group_centres(centres, seed)
        labels = _rank_cells(rows, np.arange(len(rows), dtype=np.int32), coarse, 1, _ROUGH_GROUPS, pool)[:, 0]
        centres = _average_rows(rows, labels, coarse.centres)
        progress("knn: cells", done, _N_ROUNDS + 2)
    coarse = _group_centres(centres, seed)
    labels = _rank_cells(store, np.arange(n, dtype=np.int32), coarse, 1, _ROUGH_GROUPS, pool)[:, 0]
    progress("knn: cells", _N_ROUNDS + 1, _N_ROUNDS + 2)
    cells = _settle_cells(store, _split_large(store, labels, seed, pool), seed, pool)
    progress("knn: cells", _N_ROUNDS + 2, _N_ROUNDS + 2)
    return cells


def _settle_cells(store: NDArray[Any], labels: NDArray[np.int32], seed: int, pool: Executor) -> Cells:
    """Renumber cells so that those of one group follow each other, and sort the rows by cell."""
    order, starts = _sort_by_label(labels)
    n_cells = len(starts) - 1
    centres = np.zeros((n_cells, store.shape[1]), dtype=np.float32)

    def average(at: int) -> None:
        _average_cells(store, order, starts, at, min(at + 64, n_cells), centres)

    list(pool.map(average, range(0, n_cells, 64)))
    coarse = _group_centres(centres, seed)
    renumbered = np.empty(n_cells, dtype=np.int32)
    renumbered[coarse.source] = np.arange(n_cells, dtype=np.int32)
    order, starts = _sort_by_label(renumbered[labels])
    return Cells(order, starts, coarse)


def _group_centres(centres: NDArray[np.float32], seed: int) -> Coarse:
    """Group centres by k-means, groups side by side along their widest direction."""
    n_groups = max(1, min(len(centres), round(4.6 * np.sqrt(len(centres)))))
    groups = _sort_along_axis(_train_centres(centres, n_groups, (seed, 3), n_rounds=3))
    labels = np.empty(len(centres), dtype=np.int32)
    _assign_nearest(centres, groups, labels)
    used, renumbered = np.unique(labels, return_inverse=True)
    source, starts = _sort_by_label(renumbered.astype(np.int32))
    return Coarse(centres[source], source, groups[used], starts)


def _split_large(store: NDArray[Any], labels: NDArray[np.int32], seed: int, pool: Executor) -> NDArray[np.int32]:
    """Split every cell of too many rows, and number the cells without gaps."""
    order, starts = _sort_by_label(labels)

    def split(part: int) -> NDArray[np.int32]:
        rows = order[starts[part] : starts[part + 1]]
        if len(rows) <= _LARGEST_CELL:
            return np.zeros(len(rows), dtype=np.int32)
        return _split_rows(_take_rows(store, rows), (seed, 4, part))

    numbered = np.empty(len(labels), dtype=np.int32)
    n_cells = 0
    for part, local in enumerate(pool.map(split, range(len(starts) - 1))):
        if len(local):
            numbered[order[starts[part] : starts[part + 1]]] = local + n_cells
            n_cells += int(local.max()) + 1
    return numbered


def _split_rows(rows: NDArray[np.float32], seed: tuple[int, ...]) -> NDArray[np.int32]:
    """Split rows into numbered cells, recursively; those that k-means cannot tell apart are dealt out in order."""
    if len(rows) <= _LARGEST_CELL:
        return np.zeros(len(rows), dtype=np.int32)
    fan_out = min(-(-len(rows) // CELL_ROWS), 64)
    labels = np.empty(len(rows), dtype=np.int32)
    _assign_nearest(rows, _train_centres(rows, fan_out, seed), labels)
    sizes = np.bincount(labels, minlength=fan_out)
    if sizes.max() > 0.9 * len(rows):
        return (np.arange(len(rows)) // CELL_ROWS).astype(np.int32)
    numbered = np.empty(len(rows), dtype=np.int32)
    n_cells = 0
    for part in np.flatnonzero(sizes):
        members = np.flatnonzero(labels == part)
        local = _split_rows(rows[members], (*seed, int(part)))
        numbered[members] = local + n_cells
        n_cells += int(local.max()) + 1
    return numbered


def _train_centres(
    rows: NDArray[np.float32], n_parts: int, seed: tuple[int, ...], n_rounds: int = 4
) -> NDArray[np.float32]:
    """Return the unit centres of a few rounds of spherical k-means, started from random rows."""
    chosen = np.random.default_rng(seed).choice(len(rows), n_parts, replace=False)
    centres = rows[np.sort(chosen)]
    labels = np.empty(len(rows), dtype=np.int32)
    for _ in range(n_rounds):
        _assign_nearest(rows, centres, labels)
        centres = _average_rows(rows, labels, centres)
    return centres


def _sort_along_axis(centres: NDArray[np.float32]) -> NDArray[np.float32]:
    """Order centres along their widest direction, so that cells near in number are rather near in space."""
    spread = (centres - centres.mean(axis=0)).astype(np.float64)
    direction = np.ones(spread.shape[1])
    for _ in range(8):
        direction = spread.T @ (spread @ direction)
        direction /= np.linalg.norm(direction) or 1.0
    return centres[np.argsort(spread @ direction, kind="stable")]


def _sort_by_label(labels: NDArray[np.int32]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Return the rows sorted by label, then number, and where each label starts."""
    order = np.argsort(labels, kind="stable").astype(np.int32)
    return order, np.concatenate(([0], np.cumsum(np.bincount(labels))))


def _take_rows(store: NDArray[Any], rows: NDArray[Any]) -> NDArray[np.float32]:
    """Return the given rows of the store as float32."""
    taken = np.empty((len(rows), store.shape[1]), dtype=np.float32)
    _load_rows(store, rows, taken)
    return taken


# --- probes ----------------------------------------------------------------------------------------------------------


def _rank_cells(
    store: NDArray[Any], rows: NDArray[np.int32], coarse: Coarse, n_ranks: int, n_groups: int, pool: Executor
) -> NDArray[np.int32]:
    """Return the n_ranks best cells, best first, of each of the given rows; only those of the n_groups best groups."""
    n_cells = len(coarse.centres)
    ranked = np.empty((len(rows), n_ranks), dtype=np.int32)
    probed = len(coarse.groups) if n_cells <= _FLAT_CELLS and n_groups != _ROUGH_GROUPS else n_groups
    # A row must see enough cells to fill its list, however the groups are sized.
    probed = (
        len(coarse.groups) if probed * n_cells < 4 * n_ranks * len(coarse.groups) else min(probed, len(coarse.groups))
    )

    def rank(at: int) -> None:
        _rank_range(store, rows[at : at + _RANK_ROWS], coarse.state, probed, ranked[at : at + _RANK_ROWS])

    list(pool.map(rank, range(0, len(rows), _RANK_ROWS)))
    return ranked


def _drop_own(ranked: NDArray[np.int32], owners: NDArray[Any]) -> NDArray[np.int32]:
    """Remove each row's own number from its list, or the last entry where it is missing."""
    own = ranked == owners[:, None]
    own[~own.any(axis=1), -1] = True
    others: NDArray[np.int32] = ranked[~own].reshape(len(ranked), -1)
    return others


def _choose_probes(store: NDArray[Any], cells: Cells, k: int, recall: float, seed: int, pool: Executor) -> int:
    """Return the least number of probes that finds the wanted share of the true neighbours of a sample of rows."""
    n = len(store)
    most = min(_MOST_PROBES, len(cells.starts) - 2)
    queries = np.sort(np.random.default_rng((seed, 1)).choice(n, min(n, _N_QUERIES), replace=False))
    truth, free = _find_truth(store, queries, k)
    places = np.unique(np.concatenate((queries, truth.ravel()))).astype(np.int32)
    owners = cells.owners[places]
    at_query, at_truth = np.searchsorted(places, queries), np.searchsorted(places, truth)
    n_ranks = max(24, 2 * -(-2 * k // CELL_ROWS))
    while True:
        n_ranks = min(n_ranks, most)
        ranked = _drop_own(_rank_cells(store, places, cells.coarse, n_ranks + 1, _N_GROUPS, pool), owners)
        ranks = np.where(free, 0, _rank_pairs(ranked, owners, at_query, at_truth))
        n_probes = _pick_probes(ranks, recall, least=min(n_ranks, -(-2 * k // CELL_ROWS)), most=n_ranks)
        if n_probes or n_ranks == most:
            return n_probes or most
        n_ranks *= 3


def _find_truth(store: NDArray[Any], queries: NDArray[np.int64], k: int) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
    """Return the true neighbours of some places, and which of them could be exchanged for others as similar."""
    found, similarities = search_rows(
        _take_rows(store, queries), len(store), k + 2, lambda start, stop: _read_store(store, start, stop)
    )
    own = found == queries[:, None]
    own[~own.any(axis=1), -1] = True
    similarities = similarities[~own].reshape(len(queries), k + 1)
    worst = similarities[:, k - 1 : k]
    tied = similarities[:, k:] >= worst - 1e-6
    return found[~own].reshape(len(queries), k + 1)[:, :k], tied & (similarities[:, :k] <= worst + 1e-6)


def _rank_pairs(
    ranked: NDArray[np.int32], owners: NDArray[Any], at_query: NDArray[Any], at_truth: NDArray[Any]
) -> NDArray[np.int64]:
    """Return at which number of probes each true neighbour is found, by the better of the two sides; 0: same cell."""
    n_near = ranked.shape[1]
    ranks = np.empty(at_truth.shape, dtype=np.int64)
    for row, (query, others) in enumerate(zip(at_query, at_truth, strict=True)):
        forward = ranked[query][None, :] == owners[others][:, None]
        backward = ranked[others] == owners[query]
        either = forward | backward
        ranks[row] = np.where(either.any(axis=1), either.argmax(axis=1) + 1, n_near + 1)
        ranks[row, owners[others] == owners[query]] = 0
    return ranks


def _pick_probes(ranks: NDArray[np.int64], recall: float, *, least: int, most: int) -> int:
    """Return the least number of probes with the wanted recall and a margin of two standard errors, or 0."""
    for n_probes in range(least, most + 1):
        per_query = (ranks <= n_probes).mean(axis=1)
        margin = 2 * per_query.std() / np.sqrt(len(per_query))
        if per_query.mean() - min(margin, (1 - recall) / 4) >= recall:
            _log.debug("%d probes find %.4f of the neighbours of %d rows", n_probes, per_query.mean(), len(ranks))
            return n_probes
    return 0


# --- join ------------------------------------------------------------------------------------------------------------


def _join_probes(
    store: NDArray[Any],
    cells: Cells,
    probes: NDArray[np.int32],
    k: int,
    output: tuple[NDArray[np.int32], NDArray[np.float32]],
    pool: Executor,
    progress: Progress,
) -> None:
    """Compare every row with its cell and the cells it probes, and write the k best of each into `output`."""
    n_cells = len(cells.starts) - 1
    owners = cells.owners
    selection = start_selection(len(store), k)
    locks = np.zeros(n_cells, dtype=np.int32)
    step = 16
    progress("knn", 0, (len(_PHASES) - 1) * n_cells)
    # The best cells of all rows come first: they raise the floors, and the others then have little to offer.
    for phase, (first, last) in enumerate(pairwise(_PHASES)):
        prober_starts, probers = _invert_probes(np.ascontiguousarray(probes[:, first:last]), n_cells)
        lists = (cells.order, cells.starts, owners, probes, prober_starts, probers, locks)

        def join(at: int) -> None:
            _join_range(store, *lists, at, min(at + step, n_cells), phase == 0, selection.state)  # noqa: B023

        for done, _ in enumerate(pool.map(join, range(0, n_cells, step))):
            progress("knn", phase * n_cells + min(n_cells, (done + 1) * step), (len(_PHASES) - 1) * n_cells)
        _raise_floors(selection.state)
    _unpack_best(selection.keys, selection.counts, cells.order, *output)


def _invert_probes(probes: NDArray[np.int32], n_cells: int) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Return for every cell the places that probe it, ascending, as starts and a flat list."""
    counts = np.zeros(n_cells + 1, dtype=np.int64)
    _count_probes(probes, counts)
    starts = np.cumsum(counts)
    probers = np.empty(probes.size, dtype=np.int32)
    _fill_probers(probes, starts[:-1].copy(), probers)
    return starts, probers


# --- kernels ---------------------------------------------------------------------------------------------------------


@njit(cache=True, nogil=True)
def _pack(similarity, row):  # type: ignore[no-untyped-def]
    """Pack a candidate so that a larger key is a better one; -0.0 becomes 0.0, for they are equal."""
    bits = np.uint64(np.float32(similarity + np.float32(0.0)).view(np.uint32))
    # IEEE floats compare like sign-magnitude integers: flip everything below zero, only the sign above.
    ordered = bits ^ np.uint64(0xFFFFFFFF) if bits & np.uint64(0x80000000) else bits | np.uint64(0x80000000)
    return (ordered << np.uint64(32)) | (np.uint64(0xFFFFFFFF) - np.uint64(row))


@njit(cache=True, nogil=True)
def _unpack_similarity(key):  # type: ignore[no-untyped-def]
    """Return the similarity in a key."""
    ordered = np.uint32(key >> np.uint64(32))
    bits = ordered ^ np.uint32(0x80000000) if ordered & np.uint32(0x80000000) else ~ordered
    return np.uint32(bits).view(np.float32)


@njit(cache=True, nogil=True)
def _unpack_row(key):  # type: ignore[no-untyped-def]
    """Return the id in a key."""
    return np.int32(np.uint64(0xFFFFFFFF) - (key & np.uint64(0xFFFFFFFF)))


@njit(cache=True, nogil=True)
def _keep_best(keys, n_keys, k):  # type: ignore[no-untyped-def]
    """Move the k largest of the first n_keys to the front (quickselect) and return the smallest of them."""
    low, high = 0, n_keys - 1
    while low < high:
        pivot = keys[(low + high) >> 1]
        i, j = low, high
        while i <= j:
            while keys[i] > pivot:
                i += 1
            while keys[j] < pivot:
                j -= 1
            if i <= j:
                keys[i], keys[j] = keys[j], keys[i]
                i += 1
                j -= 1
        if k - 1 <= j:
            high = j
        elif k - 1 >= i:
            low = i
        else:
            break
    return keys[k - 1]


@njit(cache=True, nogil=True)
def _offer(row, similarity, other, state):  # type: ignore[no-untyped-def]
    """Give `row` the candidate `other`; when the row is full, keep its k best and raise its floor."""
    keys, counts, floor_keys, floors, k = state
    key = _pack(similarity, other)
    if key > floor_keys[row]:
        held = counts[row]
        keys[row, held] = key
        held += 1
        if held == keys.shape[1]:
            worst = _keep_best(keys[row], held, k)
            floor_keys[row] = worst
            floors[row] = _unpack_similarity(worst)
            held = k
        counts[row] = held


@njit(cache=True, nogil=True)
def _push_tile(  # type: ignore[no-untyped-def]
    scores, row_start, row_stop, column_start, column_stop, state
):
    """Offer a tile to both sides; 64 scores at a time are skipped when none can enter anywhere."""
    floors = state[3]
    n_columns = column_stop - column_start
    hits = np.empty(LANES + 1, dtype=np.int64)
    for i in range(row_stop - row_start):
        row = row_start + i
        line = scores[i]
        first = i + 1 if row_start == column_start else 0
        for begin in range(first // LANES * LANES, n_columns, LANES):
            lane_scores = line[begin : begin + LANES]
            lane_floors = floors[column_start + begin : column_start + begin + LANES]
            floor = floors[row]
            n_hits = 0
            for lane in range(LANES):
                n_hits += lane_scores[lane] >= min(floor, lane_floors[lane])
            if n_hits == 0:
                continue
            n_hits = 0
            for lane in range(LANES):
                hits[n_hits] = lane
                n_hits += lane_scores[lane] >= min(floor, lane_floors[lane])
            for hit in range(n_hits):
                j = begin + hits[hit]
                if j < first or j >= n_columns:
                    continue
                similarity = line[j]
                if similarity >= floors[row]:
                    _offer(row, similarity, column_start + j, state)
                if similarity >= floors[column_start + j]:
                    _offer(column_start + j, similarity, row, state)


@njit(cache=True, nogil=True)
def _push_line(line, ids, row, skipped, state):  # type: ignore[no-untyped-def]
    """Offer the scores of one row with the given ids to that row; the place `skipped` is the row itself."""
    floors = state[3]
    for begin in range(0, len(line), LANES):
        floor = floors[row]
        end = min(begin + LANES, len(line))
        n_hits = 0
        for j in range(begin, end):
            n_hits += line[j] >= floor
        if n_hits == 0:
            continue
        for part in range(begin, end, _FINE_LANES):
            part_end = min(part + _FINE_LANES, end)
            n_hits = 0
            for j in range(part, part_end):
                n_hits += line[j] >= floor
            if n_hits == 0:
                continue
            for j in range(part, part_end):
                if line[j] >= floor and j != skipped:
                    _offer(row, line[j], ids[j], state)
                    floor = floors[row]


@njit(cache=True, nogil=True)
def _push_rows(scores, row_start, id_start, state):  # type: ignore[no-untyped-def]
    """Offer scores[i, j] to row row_start+i as the similarity of id_start+j."""
    ids = np.arange(id_start, id_start + scores.shape[1])
    for i in range(len(scores)):
        _push_line(scores[i], ids, row_start + i, -1, state)


@njit(cache=True, nogil=True)
def _push_columns(  # type: ignore[no-untyped-def]
    line, other, row_start, masked_floors, state
):
    """Offer the scores of the row `other` to the members whose similarities they are, unless masked by +inf."""
    floors = state[3]
    for begin in range(0, len(line), LANES):
        end = min(begin + LANES, len(line))
        n_hits = 0
        for j in range(begin, end):
            n_hits += line[j] >= masked_floors[j]
        if n_hits == 0:
            continue
        for part in range(begin, end, _FINE_LANES):
            part_end = min(part + _FINE_LANES, end)
            n_hits = 0
            for j in range(part, part_end):
                n_hits += line[j] >= masked_floors[j]
            if n_hits == 0:
                continue
            for j in range(part, part_end):
                if line[j] >= masked_floors[j]:
                    _offer(row_start + j, line[j], other, state)
                    masked_floors[j] = floors[row_start + j]


@njit(cache=True, parallel=True)
def _raise_floors(state):  # type: ignore[no-untyped-def]
    """Drop all but the k best of every row."""
    keys, counts, floor_keys, floors, k = state
    for row in prange(len(counts)):
        if counts[row] > k:
            worst = _keep_best(keys[row], counts[row], k)
            floor_keys[row] = worst
            floors[row] = _unpack_similarity(worst)
            counts[row] = k


@njit(cache=True, parallel=True)
def _unpack_best(keys, counts, targets, neighbors, similarities):  # type: ignore[no-untyped-def]
    """Unpack the k best keys of every row, best first, into the row `targets` names; -1 and 0 where there are fewer."""
    k = neighbors.shape[1]
    for row in prange(len(counts)):
        n_keys = counts[row]
        if n_keys > k:
            _keep_best(keys[row], n_keys, k)
            n_keys = k
        best = np.sort(keys[row, :n_keys])
        target = targets[row]
        for place in range(n_keys):
            key = best[n_keys - 1 - place]
            neighbors[target, place] = _unpack_row(key)
            similarities[target, place] = _unpack_similarity(key)
        neighbors[target, n_keys:] = -1
        similarities[target, n_keys:] = 0


def _decode(stored: NDArray[Any], out: NDArray[np.float32]) -> None:
    """Copy a stored row, float32 or the bits of float16, to float32."""


@overload(_decode)
def _decode_in_kernel(stored, out):  # type: ignore[no-untyped-def]
    """Choose the copy when a kernel is compiled. numba has no float16, hence the bits."""
    if stored.dtype == types.float32:

        def copy(stored, out):  # type: ignore[no-untyped-def]
            for i in range(len(out)):
                out[i] = stored[i]

        return copy

    def widen(stored, out):  # type: ignore[no-untyped-def]
        bits = out.view(np.uint32)
        for i in range(len(out)):
            bits[i] = (np.uint32(stored[i]) & np.uint32(0x7FFF)) << np.uint32(13)
        # The exponent of a half is biased by 15, of a float by 127; this is exact for subnormals too.
        for i in range(len(out)):
            out[i] *= np.float32(2.0**112)
        for i in range(len(out)):
            bits[i] |= (np.uint32(stored[i]) & np.uint32(0x8000)) << np.uint32(16)

    return widen


def _encode(values: NDArray[np.float32], stored: NDArray[Any]) -> None:
    """Store a row as float32 or as the bits of float16, rounded to nearest even."""


@overload(_encode)
def _encode_in_kernel(values, stored):  # type: ignore[no-untyped-def]
    """Choose the copy when a kernel is compiled; numpy's own conversion is ten times slower."""
    if stored.dtype == types.float32:

        def copy(values, stored):  # type: ignore[no-untyped-def]
            for i in range(len(values)):
                stored[i] = values[i]

        return copy

    def narrow(values, stored):  # type: ignore[no-untyped-def]
        scaled = values * np.float32(2.0**-112)
        bits = scaled.view(np.uint32)
        for i in range(len(values)):
            size = bits[i] & np.uint32(0x7FFFFFFF)
            size += np.uint32(0xFFF) + ((size >> np.uint32(13)) & np.uint32(1))
            stored[i] = np.uint16((size >> np.uint32(13)) | ((bits[i] >> np.uint32(16)) & np.uint32(0x8000)))

    return narrow


@njit(cache=True, nogil=True)
def _encode_rows(rows, store):  # type: ignore[no-untyped-def]
    """Store unit rows."""
    for i in range(len(rows)):
        _encode(rows[i], store[i])


@njit(cache=True, nogil=True)
def _load_rows(store, rows, out):  # type: ignore[no-untyped-def]
    """Copy the given rows of the store to float32."""
    for i in range(len(rows)):
        _decode(store[rows[i]], out[i])


@njit(cache=True, nogil=True)
def _load_range(store, start, out):  # type: ignore[no-untyped-def]
    """Copy consecutive rows of the store to float32."""
    for i in range(len(out)):
        _decode(store[start + i], out[i])


@njit(cache=True, nogil=True)
def _assign_nearest(rows, centres, labels):  # type: ignore[no-untyped-def]
    """Label each row with its best centre, the first of equals."""
    for start in range(0, len(rows), _CHUNK_ROWS):
        scores = np.dot(rows[start : start + _CHUNK_ROWS], centres.T)
        for i in range(len(scores)):
            labels[start + i] = np.argmax(scores[i])


@njit(cache=True, nogil=True)
def _average_rows(rows, labels, centres):  # type: ignore[no-untyped-def]
    """Return the direction of the sum of the rows of each centre, or the centre where it has none."""
    averages = centres.copy()
    sums = np.zeros_like(centres)
    for i in range(len(rows)):
        total = sums[labels[i]]
        for j in range(len(total)):
            total[j] += rows[i, j]
    for part in range(len(centres)):
        length = np.sqrt(np.sum(sums[part] * sums[part]))
        if length > 0:
            averages[part] = sums[part] / length
    return averages


@njit(cache=True, nogil=True)
def _average_cells(store, order, starts, first, last, centres):  # type: ignore[no-untyped-def]
    """Set the centres of cells first..last to the directions of their sums."""
    row = np.empty(store.shape[1], dtype=np.float32)
    for cell in range(first, last):
        total = centres[cell]
        for place in range(starts[cell], starts[cell + 1]):
            _decode(store[order[place]], row)
            for j in range(len(row)):
                total[j] += row[j]
        length = np.sqrt(np.sum(total * total))
        if length > 0:
            for j in range(len(row)):
                total[j] /= length


@njit(cache=True, nogil=True)
def _rank_range(store, places, coarse, n_probed, ranked):  # type: ignore[no-untyped-def]
    """Rank cells for a chunk of rows: all of them, or those of the n_probed best groups; -1 where these have fewer."""
    centres, groups, group_starts = coarse
    n_rows, n_ranks = ranked.shape
    rows = np.empty((n_rows, store.shape[1]), dtype=np.float32)
    _load_rows(store, places, rows)
    keys = np.empty((n_rows, 2 * n_ranks + 16), dtype=np.uint64)
    counts = np.zeros(n_rows, dtype=np.int32)
    floor_keys = np.zeros(n_rows, dtype=np.uint64)
    floors = np.full(n_rows, -np.inf, dtype=np.float32)
    state = (keys, counts, floor_keys, floors, n_ranks)
    if n_probed >= len(groups):
        for start in range(0, n_rows, _CHUNK_ROWS):
            for first in range(0, len(centres), 512):
                scores = np.dot(rows[start : start + _CHUNK_ROWS], centres[first : first + 512].T)
                _push_rows(scores, start, first, state)
    else:
        _rank_in_groups(rows, centres, groups, group_starts, n_probed, state)
    for i in range(n_rows):
        n_keys = min(counts[i], n_ranks)
        if counts[i] > n_ranks:
            _keep_best(keys[i], counts[i], n_ranks)
        best = np.sort(keys[i, :n_keys])
        for j in range(n_ranks):
            ranked[i, j] = _unpack_row(best[n_keys - 1 - j]) if j < n_keys else -1


@njit(cache=True, nogil=True)
def _rank_in_groups(  # type: ignore[no-untyped-def]
    rows, centres, groups, group_starts, n_probed, state
):
    """Offer to each row the cells of its best groups, group by group."""
    chosen = np.empty((len(rows), n_probed), dtype=np.int32)
    starts = np.zeros(len(groups) + 1, dtype=np.int64)
    group_keys = np.empty(len(groups), dtype=np.uint64)
    for start in range(0, len(rows), _CHUNK_ROWS):
        scores = np.dot(rows[start : start + _CHUNK_ROWS], groups.T)
        for i in range(len(scores)):
            for j in range(len(groups)):
                group_keys[j] = _pack(scores[i, j], j)
            _keep_best(group_keys, len(groups), n_probed)
            for j in range(n_probed):
                chosen[start + i, j] = _unpack_row(group_keys[j])
    _count_probes(chosen, starts)
    starts = np.cumsum(starts)
    inside = np.empty(chosen.size, dtype=np.int32)
    _fill_probers(chosen, starts[:-1].copy(), inside)
    gathered = np.empty((_CHUNK_ROWS, rows.shape[1]), dtype=np.float32)
    for group in range(len(groups)):
        first, last = group_starts[group], group_starts[group + 1]
        if first == last:
            continue
        ids = np.arange(first, last)
        for start in range(starts[group], starts[group + 1], _CHUNK_ROWS):
            here = inside[start : min(start + _CHUNK_ROWS, starts[group + 1])]
            for i in range(len(here)):
                gathered[i] = rows[here[i]]
            scores = np.dot(gathered[: len(here)], centres[first:last].T)
            for i in range(len(here)):
                _push_line(scores[i], ids, here[i], -1, state)


@njit(cache=True, nogil=True)
def _count_probes(probes, counts):  # type: ignore[no-untyped-def]
    """Count the probes of each cell, one place to the right."""
    for place in range(len(probes)):
        for i in range(probes.shape[1]):
            if probes[place, i] >= 0:
                counts[probes[place, i] + 1] += 1


@njit(cache=True, nogil=True)
def _fill_probers(probes, free, probers):  # type: ignore[no-untyped-def]
    """Write each place to the list of every cell it probes."""
    for place in range(len(probes)):
        for i in range(probes.shape[1]):
            cell = probes[place, i]
            if cell >= 0:
                probers[free[cell]] = place
                free[cell] += 1


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
def _lock(locks, cell):  # type: ignore[no-untyped-def]
    """Wait until no other thread works on the selections of a cell."""
    while _exchange(locks, cell, np.int32(1)) != 0:
        pass


@njit(cache=True, nogil=True)
def _unlock(locks, cell):  # type: ignore[no-untyped-def]
    """Let other threads in."""
    _exchange(locks, cell, np.int32(0))


@njit(cache=True, nogil=True)
def _mask_floors(probes, start, stop, source, floors, masked):  # type: ignore[no-untyped-def]
    """Copy the floors of places start..stop, +inf for those that probe the cell `source` and so see its rows anyway."""
    for place in range(start, stop):
        n_equal = 0
        for i in range(probes.shape[1]):
            n_equal += probes[place, i] == source
        masked[place - start] = np.inf if n_equal else floors[place]


@njit(cache=True, nogil=True)
def _join_range(  # type: ignore[no-untyped-def]
    store, order, starts, owners, probes, prober_starts, probers, locks, first, last, with_own, state
):
    """Join the members of cells first..last with each other and with the rows that probe them."""
    gathered = np.empty((_CHUNK_ROWS, store.shape[1]), dtype=np.float32)
    for cell in range(first, last):
        start, stop = starts[cell], starts[cell + 1]
        members = np.empty((stop - start, store.shape[1]), dtype=np.float32)
        _load_range(store, start, members)
        ids = order[start:stop]
        if with_own:
            scores = np.dot(members, members.T)
            _lock(locks, cell)
            for i in range(len(scores)):
                _push_line(scores[i], ids, start + i, i, state)
            _unlock(locks, cell)
        for chunk in range(prober_starts[cell], prober_starts[cell + 1], _CHUNK_ROWS):
            places = probers[chunk : min(chunk + _CHUNK_ROWS, prober_starts[cell + 1])]
            _load_rows(store, places, gathered[: len(places)])
            scores = np.dot(gathered[: len(places)], members.T)
            _push_chunk(scores, places, ids, start, order, owners, probes, locks, cell, state)


@njit(cache=True, nogil=True)
def _push_chunk(  # type: ignore[no-untyped-def]
    scores, places, ids, start, order, owners, probes, locks, cell, state
):
    """Offer the scores of probing rows to themselves, then to the members, holding one lock at a time."""
    floors = state[3]
    begin = 0
    masked = np.empty(len(ids), dtype=np.float32)
    while begin < len(places):
        source = owners[places[begin]]
        end = begin
        while end < len(places) and owners[places[end]] == source:
            end += 1
        _lock(locks, source)
        for i in range(begin, end):
            _push_line(scores[i], ids, places[i], -1, state)
        _unlock(locks, source)
        _lock(locks, cell)
        _mask_floors(probes, start, start + len(ids), source, floors, masked)
        for i in range(begin, end):
            _push_columns(scores[i], order[places[i]], start, masked, state)
        _unlock(locks, cell)
        begin = end
