"""Shapes: the sums, cohesion and closeness of some clusters, without reading all features.

In: Features, the faces of the clusters that changed. Out: Shapes of these. Rows are scattered over the file, and the
clusters of another strictness may be giants, so few rows are in memory at a time.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ..features import Features
from ..progress import Progress, silent
from ..quality import Groups, Shapes, add_rows, compare_rows, measure_cohesion
from ..workers import start_workers

_SOME_ROWS = 4096  # scattered in the file: every one of them brings its neighbourhood into memory


def measure_some_shapes(
    features: Features, faces: NDArray[np.int32], groups: Groups, *, progress: Progress = silent
) -> Shapes:
    """Do what measure_shapes does for some faces (m,), which are all faces of their clusters; `groups` is of these m.

    Cluster by cluster, so every row is read once (twice in giants), but not in the order of the file: for what is in
    memory.

    >>> from starfc.quality import group_faces
    >>> rows = Features(np.array([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]]))
    >>> measure_some_shapes(rows, np.array([0, 2], np.int32), group_faces(np.array([5, 5]))).cohesion.round(3)
    array([0.6], dtype=float32)
    """
    sums = np.zeros((groups.n_clusters, features.dim), dtype=np.float32)
    closeness = np.empty(len(faces), dtype=np.float32)
    # Runs of whole clusters with at least so many faces, giants alone; threads share none.
    giants = np.flatnonzero(groups.sizes > _SOME_ROWS)
    cuts = np.searchsorted(groups.offsets, np.arange(0, len(faces), _SOME_ROWS))
    runs = np.unique(np.concatenate((cuts, giants, giants + 1, [groups.n_clusters])))

    def measure_run(first: int, last: int) -> None:
        members = groups.order[groups.offsets[first] : groups.offsets[last]]
        if last - first == 1 and len(members) > _SOME_ROWS:
            closeness[members] = _measure_giant(features, faces[members], sums[first:last], progress)
        else:
            starts = groups.offsets[first : last + 1] - groups.offsets[first]
            closeness[members] = _measure_clusters(features.take(faces[members]), starts, sums[first:last])
        progress("clusters", last, groups.n_clusters)

    with start_workers() as pool:
        list(pool.map(measure_run, runs[:-1].tolist(), runs[1:].tolist()))
    closeness[groups.sizes[groups.codes] == 1] = 1
    return Shapes(sums, measure_cohesion(np.einsum("cd,cd->c", sums, sums), groups.sizes), closeness)


def _measure_giant(
    features: Features, faces: NDArray[np.int32], sums: NDArray[np.float32], progress: Progress
) -> NDArray[np.float32]:
    """Sum up one cluster (1, d) and compare its faces with it, few rows at a time; the same bits as all at once."""
    closeness = np.empty(len(faces), dtype=np.float32)
    codes = np.zeros(_SOME_ROWS, dtype=np.int32)
    blocks = [slice(start, start + _SOME_ROWS) for start in range(0, len(faces), _SOME_ROWS)]
    for block in blocks:
        rows = features.take(faces[block])
        add_rows(rows, codes[: len(rows)], sums)
        progress("clusters", 0, 1)
    squares = np.einsum("cd,cd->c", sums, sums)
    for block in blocks:
        rows = features.take(faces[block])
        compare_rows(rows, codes[: len(rows)], sums, squares, closeness[block])
        progress("clusters", 0, 1)
    return closeness


@njit(cache=True, nogil=True)
def _measure_clusters(rows, starts, sums):  # type: ignore[no-untyped-def]
    """Sum up whole clusters, whose rows lie side by side, and compare each row with the rest of its own."""
    closeness = np.empty(len(rows), dtype=np.float32)
    for c in range(len(sums)):
        mine = rows[starts[c] : starts[c + 1]]
        codes = np.zeros(len(mine), dtype=np.int32)
        add_rows(mine, codes, sums[c : c + 1])
        square = np.float32(0)
        for t in range(sums.shape[1]):
            square += sums[c, t] * sums[c, t]
        out = closeness[starts[c] : starts[c + 1]]
        compare_rows(mine, codes, sums[c : c + 1], np.full(1, square, np.float32), out)
    return closeness
