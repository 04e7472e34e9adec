"""FaceMap (Yu et al., "FaceMap: towards unsupervised face clustering via map equation", arXiv 2203.10090, 2022).

Each face cuts its own list where the similarities change most, so there is no cosine to choose. With
p_j = cos_j / sum cos  along a list that begins with the face itself and the drops  δ_j = p_j - p_{j+1},  a window of
`window` drops that begins at j is compared with the whole tail from there on,

    z_j = |mean(δ_j .. δ_{j + window - 1}) - mean(δ_j ..)| / deviation(δ_j ..),

and the list ends before the middle drop of the window with the largest z. Those who are left, weighted by p among them,
are partitioned by the map equation. Published: window 20. z does not change with the sum of p, so cosines will do.

Written from the summary in the field's notes and a public re-implementation, read for its formulas; of the paper only
the abstract was at hand. Deviations: `itself=False` leaves out the face itself, whose drop to its first neighbour is
often the largest, and tuning tries both; the re-implementation ends a list one neighbour later; cosines below 0 count
0; a list in which no window stands out, or that is shorter than one, stays whole; undirected flow, as `mapequation.py`
has it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, prange
from numpy.typing import NDArray

from ..errors import InputError
from ..features import Features
from ..knn import KnnGraph
from ..mapequation import label_by_map_equation
from ..prune import parse_edges
from ..score import ScoredEdges

GRID: tuple[dict[str, Any], ...] = tuple(
    {"window": window, "itself": itself}
    for window in (1, 2, 3, 4, 5, 7, 10, 15, 20, 30, 40)
    for itself in (True, False)
)
_ROUNDING = 1e-6  # what equal drops of cosines in single precision differ by, and more


def cluster_faces(
    features: Features, graph: KnnGraph, *, window: int = 20, itself: bool = True, seed: int = 0
) -> NDArray[np.int64]:
    """Cut every list where its similarities change most, and partition.

    `window` is how many drops are looked at together, `itself` whether a list begins with the face itself; `seed` is of
    the order in which faces are tried.
    """
    kept = np.arange(graph.k) < measure_cuts(graph, window, itself=itself)[:, None]
    weights = np.where(kept, np.clip(graph.similarities, 0, None), np.float32(0))
    totals = weights.sum(axis=1, keepdims=True)
    shares = np.divide(weights, totals, out=np.zeros_like(weights), where=totals > 0)
    return label_by_map_equation(parse_edges(ScoredEdges(graph.neighbors, shares), 0.0), seed=seed)


def measure_cuts(graph: KnnGraph, window: int, *, itself: bool) -> NDArray[np.int32]:
    """Return how many of its neighbours each face keeps, int32 (n,).

    >>> cosines = np.array([[0.9, 0.9, 0.8, 0.3, 0.3, 0.2]], np.float32)
    >>> measure_cuts(KnnGraph(np.arange(1, 7, dtype=np.int32)[None], cosines), 1, itself=True)
    array([3], dtype=int32)
    """
    if window < 1:
        raise InputError(f"window ({window}) must be at least 1 drop; published is 20")
    own = np.ones((graph.n, int(itself)), dtype=np.float32)
    lengths = np.count_nonzero(graph.neighbors >= 0, axis=1) + int(itself)
    return np.asarray(_find_cuts(np.hstack([own, graph.similarities]), lengths, window) - np.int32(itself))


@njit(cache=True, nogil=True)
def _find_cut(cosines, window):  # type: ignore[no-untyped-def]
    """Return how many entries stand before the largest standardised change; all of them where there is none."""
    n_drops = len(cosines) - 1
    best, cut = 0.0, len(cosines)
    mean, squares, within = 0.0, 0.0, 0.0  # of the drops from j on; within: sum over the window
    for j in range(n_drops - 1, -1, -1):
        drop = max(cosines[j], 0.0) - max(cosines[j + 1], 0.0)
        before = drop - mean
        mean += before / (n_drops - j)
        squares += before * (drop - mean)
        within += drop
        if j + window > n_drops:
            continue
        deviation = np.sqrt(squares / (n_drops - j))
        if deviation > _ROUNDING:
            change = abs(within / window - mean) / deviation
            if change >= best and change > _ROUNDING:
                best, cut = change, j + (window - 1) // 2 + 1
        last = j + window - 1
        within -= max(cosines[last], 0.0) - max(cosines[last + 1], 0.0)
    return cut


@njit(cache=True, nogil=True, parallel=True)
def _find_cuts(cosines, lengths, window):  # type: ignore[no-untyped-def]
    """Cut every list, unused entries at its end left out."""
    cuts = np.empty(len(cosines), dtype=np.int32)
    for i in prange(len(cosines)):
        cuts[i] = _find_cut(cosines[i, : lengths[i]], window)
    return cuts
