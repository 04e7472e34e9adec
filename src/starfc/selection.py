"""Selections: the k best candidates of each of n rows, out of any number that are offered.

In: scores, in tiles or lines. Out: ids and similarities, best first.

A candidate is one 64-bit key, similarity in the upper half and inverted id in the lower: "better" is one integer
comparison and a total order (similarity descending, id ascending). What a row keeps does not depend on the order in
which candidates arrive, hence the same bits whatever the threads, blocks or memory.

A row collects about three times k keys and then drops all but the k best, which is cheaper than a heap and costs the
memory. Most scores cannot enter anywhere, so a whole lane of them is first compared with the floors of its rows. The
kernels lock nothing: no two threads may offer to one row at a time.

numba compiles these into the kernels of other files that call them and keeps the result on disk, and does not notice
when only this file changes: delete `__pycache__` after an edit here. The same holds of every file whose kernels others
call: rowstore, halves, prefetch, masks, lines, centres, neighborlists, facetable.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit, prange
from numpy.typing import NDArray

from .kernels import leaf, leaf_with
from .masks import MASK_LANES, find_lowest, mark_reaching
from .prefetch import prefetch_item

_AHEAD = 4  # rows whose place for what comes next is asked for: they may stand anywhere
LANES = 64  # scores tested together for "does any of these beat the worst kept"
# Shell's sort, by Ciura's gaps: a leaf may not call numpy's, which makes an array; as fast for 200 keys, faster for 30.
_GAPS = 701, 301, 132, 57, 23, 10, 1
_FIRST_STEP = np.float32(0.02)  # from a guessed floor to where it is looked for
_MOST_STEPS = 40  # to where it is, each twice as long as the last
_MOST_HALVINGS = 24  # of the last one, beyond which numbers are as good as equal


class Selection(NamedTuple):
    """The best candidates seen so far by each of n rows; a named tuple, because kernels take it whole.

    Attributes
    ----------
    keys : uint64 (n, capacity)
        Packed candidates of each row, unordered, the first `counts` of them in use.
    counts : int32 (n,)
        Candidates held by each row.
    floor_keys : uint64 (n,)
        Worst of the k best when last dropped; nothing at or below it can enter. 0 while everything may.
    floors : float32 (n + LANES,)
        Similarity in `floor_keys`, -inf while everything may enter: what whole lanes are tested against.
    k : int
        Candidates that count.
    """

    keys: NDArray[np.uint64]
    counts: NDArray[np.int32]
    floor_keys: NDArray[np.uint64]
    floors: NDArray[np.float32]
    k: int


def start_selection(n: int, k: int) -> Selection:
    """Return an empty selection of k for each of n rows; `floors` is longer, so that whole lanes can be read."""
    return Selection(
        keys=np.empty((n, 3 * k + 16), dtype=np.uint64),
        counts=np.zeros(n, dtype=np.int32),
        floor_keys=np.zeros(n, dtype=np.uint64),
        floors=np.full(n + LANES, -np.inf, dtype=np.float32),
        k=k,
    )


def finish_selection(selection: Selection) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Return the best of each row, best first; -1 and 0 where a row has fewer than k.

    Parameters
    ----------
    selection : Selection
        Of n rows.

    Returns
    -------
    neighbors : int32 (n, k)
    similarities : float32 (n, k)

    Examples
    --------
    >>> selection = start_selection(2, 3)
    >>> push_rows(selection, np.array([[0.25, 0.5], [1.0, 0.75]], dtype=np.float32), 0, 7)
    >>> finish_selection(selection)[0]
    array([[ 8,  7, -1], [ 7,  8, -1]], dtype=int32)
    """
    n = len(selection.counts)
    neighbors = np.empty((n, selection.k), dtype=np.int32)
    similarities = np.empty((n, selection.k), dtype=np.float32)
    _unpack_best(selection, neighbors, similarities)
    return neighbors, similarities


def mark_others(ids: NDArray[Any], own: NDArray[Any]) -> NDArray[np.bool_]:
    """Mark all but one entry of each row of ids: its own id where that first stands, or the last where it is missing.

    >>> mark_others(np.array([[5, 6, 7], [5, 6, 7]]), np.array([6, 9]))
    array([[ True, False,  True], [ True,  True, False]])
    """
    is_own = ids == own[:, None]
    dropped = np.where(is_own.any(axis=1), is_own.argmax(axis=1), ids.shape[1] - 1)
    others = np.ones(ids.shape, dtype=bool)
    others[np.arange(len(ids)), dropped] = False
    return others


# --- keys ------------------------------------------------------------------------------------------------------------


@leaf
def pack_key(similarity, row) -> np.uint64:  # type: ignore[no-untyped-def]
    """Pack a candidate so that a larger key is a better one; -0.0 becomes 0.0, for they are equal."""
    bits = np.uint64(np.float32(similarity + np.float32(0.0)).view(np.uint32))
    # IEEE floats compare like sign-magnitude integers: flip everything below zero, only the sign above.
    ordered = bits ^ np.uint64(0xFFFFFFFF) if bits & np.uint64(0x80000000) else bits | np.uint64(0x80000000)
    return (ordered << np.uint64(32)) | (np.uint64(0xFFFFFFFF) - np.uint64(row))


@leaf
def unpack_similarity(key) -> np.float32:  # type: ignore[no-untyped-def]
    """Return the similarity in a key."""
    ordered = np.uint32(key >> np.uint64(32))
    bits = ordered ^ np.uint32(0x80000000) if ordered & np.uint32(0x80000000) else ~ordered
    return np.uint32(bits).view(np.float32)


@leaf
def unpack_row(key) -> np.int32:  # type: ignore[no-untyped-def]
    """Return the id in a key."""
    return np.int32(np.uint64(0xFFFFFFFF) - (key & np.uint64(0xFFFFFFFF)))


@leaf
def keep_best(keys, n_keys, k) -> np.uint64:  # type: ignore[no-untyped-def]
    """Move the k largest of the first n_keys to the front (quickselect) and return the smallest of them."""
    if n_keys == k:
        least: np.uint64 = keys[0]
        for i in range(1, k):
            least = min(least, keys[i])
        return least
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
    worst: np.uint64 = keys[k - 1]
    return worst


@leaf
def sort_keys(keys, n_keys: int, most: int) -> int:  # type: ignore[no-untyped-def]
    """Move the `most` largest of the first n_keys to the front, best first; return how many there are."""
    if n_keys > most:
        keep_best(keys, n_keys, most)
        n_keys = most
    for gap in _GAPS:
        for i in range(gap, n_keys):
            key, at = keys[i], i
            while at >= gap and keys[at - gap] < key:
                keys[at] = keys[at - gap]
                at -= gap
            keys[at] = key
    return n_keys


# --- offers ----------------------------------------------------------------------------------------------------------


@leaf
def _drop_rest(selection, row):  # type: ignore[no-untyped-def]
    """Keep the k best of a row that holds more, and raise its floor."""
    worst = keep_best(selection.keys[row], selection.counts[row], selection.k)
    selection.floor_keys[row] = worst
    selection.floors[row] = unpack_similarity(worst)
    selection.counts[row] = selection.k


@leaf
def raise_floors(selection, rows) -> None:  # type: ignore[no-untyped-def]
    """Drop all but the k best of the given rows, so that less of what follows is taken in."""
    for row in rows:
        if selection.counts[row] > selection.k:
            _drop_rest(selection, row)


@leaf
def offer(selection, row, similarity, other) -> None:  # type: ignore[no-untyped-def]
    """Give `row` the candidate `other`; when the row is full, keep its k best."""
    key = pack_key(similarity, other)
    if key > selection.floor_keys[row]:
        held = selection.counts[row]
        selection.keys[row, held] = key
        selection.counts[row] = held + 1
        if held + 1 == selection.keys.shape[1]:
            _drop_rest(selection, row)


@leaf
def offer_run(selection, row, line, first_id) -> None:  # type: ignore[no-untyped-def]
    """Give `row` the candidates first_id, first_id + 1, ..., of which the similarities are in a line."""
    for begin in range(0, len(line), MASK_LANES):
        hits = mark_reaching(line, begin, selection.floors[row])
        while hits:
            j = begin + find_lowest(hits)
            hits &= hits - np.uint64(1)
            offer(selection, row, line[j], first_id + j)


@njit(cache=True, nogil=True)
def push_tile(selection, scores, rows, columns) -> None:  # type: ignore[no-untyped-def]
    """Offer scores[i, j] to rows[0]+i and to columns[0]+j; of a diagonal tile only the upper triangle counts.

    `rows` and `columns` are (start, stop); scores beyond them are padding, up to whole lanes.
    """
    floors = selection.floors
    n_columns = columns[1] - columns[0]
    hits = np.empty(LANES + 1, dtype=np.int64)
    for i in range(rows[1] - rows[0]):
        row = rows[0] + i
        line = scores[i]
        first = i + 1 if rows[0] == columns[0] else 0
        for begin in range(first // LANES * LANES, n_columns, LANES):
            lane_scores = line[begin : begin + LANES]
            lane_floors = floors[columns[0] + begin : columns[0] + begin + LANES]
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
                    offer(selection, row, similarity, columns[0] + j)
                if similarity >= floors[columns[0] + j]:
                    offer(selection, columns[0] + j, similarity, row)


@leaf
def push_rows(selection, scores, row_start, id_start) -> None:  # type: ignore[no-untyped-def]
    """Offer scores[i, j] to row row_start+i as the similarity of id_start+j."""
    for i in range(len(scores)):
        offer_run(selection, row_start + i, scores[i], id_start)


@leaf
def offer_runs(selection, rows, lines, first_id, n_ids) -> None:  # type: ignore[no-untyped-def]
    """Give each of the rows n_ids candidates, first_id, first_id + 1, ..., with which its line begins."""
    for i in range(len(rows)):
        if i + _AHEAD < len(rows):
            following = rows[i + _AHEAD]
            prefetch_item(selection.keys, following, selection.counts[following])
        offer_run(selection, rows[i], lines[i, :n_ids], first_id)


# --- whole lines -----------------------------------------------------------------------------------------------------


@leaf
def collect_keys(line, floor, first_id: int, keys, n_kept: int) -> int:  # type: ignore[no-untyped-def]
    """Append the keys of the numbers of a line that reach a floor; return how many keys there are then.

    There must be room for the whole line.
    """
    for begin in range(0, len(line), MASK_LANES):
        hits = mark_reaching(line, begin, floor)
        while hits:
            j = begin + find_lowest(hits)
            hits &= hits - np.uint64(1)
            keys[n_kept] = pack_key(line[j], first_id + j)
            n_kept += 1
    return n_kept


@leaf_with(fastmath={"reassoc", "nnan", "nsz"})  # else they are counted one by one
def count_reaching(line, floor) -> int:  # type: ignore[no-untyped-def]
    """Return how many numbers of a line, not more than 2^24, reach a floor."""
    total = np.float32(0)  # eight of them are added at once where eight integers would take two steps
    for j in range(len(line)):
        total += np.float32(1) if line[j] >= floor else np.float32(0)
    return int(total)


@leaf
def sharpen_floor(line, most, guess) -> np.float32:  # type: ignore[no-untyped-def]
    """Return a number that `most` of a line reach, or more where some are as good as equal; -inf if it is no longer.

    Found by halving, from a guess: counting takes so little time that it is faster than to sort out too many.
    """
    if len(line) <= most:
        return np.float32(-np.inf)
    low: np.float32
    low, high, n_reaching = _enclose_floor(line, most, guess if np.isfinite(guess) else np.float32(0))
    for _ in range(_MOST_HALVINGS):
        if n_reaching == most:
            break
        middle = (low + high) * np.float32(0.5)
        n_here = count_reaching(line, middle)
        if n_here >= most:
            low, n_reaching = middle, n_here
        else:
            high = middle
    return low


@leaf
def _enclose_floor(line, most, guess):  # type: ignore[no-untyped-def]
    """Return a number that at least `most` of a line reach, one that fewer do, and how many reach the first."""
    low, step = guess, _FIRST_STEP
    n_reaching = count_reaching(line, low)
    if n_reaching < most:
        for _ in range(_MOST_STEPS):
            high = low
            low = low - step
            n_reaching = count_reaching(line, low)
            if n_reaching >= most:
                return low, high, n_reaching
            step += step
        return np.float32(-np.inf), low, most
    high = low + step
    for _ in range(_MOST_STEPS):
        n_above = count_reaching(line, high)
        if n_above < most:
            break
        low, n_reaching = high, n_above
        step += step
        high = low + step
    return low, high, n_reaching


@njit(cache=True, parallel=True, nogil=True)
def _unpack_best(selection, neighbors, similarities):  # type: ignore[no-untyped-def]
    """Unpack the k best keys of every row, best first; -1 and 0 where there are fewer."""
    for row in prange(len(selection.counts)):
        best = selection.keys[row]
        n_best = sort_keys(best, selection.counts[row], selection.k)
        for place in range(n_best):
            neighbors[row, place] = unpack_row(best[place])
            similarities[row, place] = unpack_similarity(best[place])
        neighbors[row, n_best:] = -1
        similarities[row, n_best:] = 0
