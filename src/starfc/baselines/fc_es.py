"""FC-ES (Liu, "Face clustering via early stopping and edge recall", arXiv 2408.13431, 2024), its part without labels.

With  d_ij = 2 - 2 clip(cos_ij, 0, 1)  and  P_ij = exp(-d_ij / .5) / sum over j in N(i),  N(i) the list of i and i
itself,

    NEP_ij = 1/2 sum over m in N(i) and N(j) of (P_im + P_jm)

is the neighbour-based edge probability. A face links its neighbours in the order of their cosines while NEP is at
least `threshold`, and stops at the first that is not (early stopping); the links, weighted by NEP, are partitioned by
the map equation. Published: k = 80 (the face itself counted), threshold .22. Deviations: undirected flow, as
`mapequation.py` has it; the k of the graph does not count the face itself.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba import njit, prange
from numpy.typing import NDArray

from ..features import Features
from ..knn import KnnGraph
from ..mapequation import label_by_map_equation
from ..prune import parse_edges
from ..score import ScoredEdges
from .frame import in_two_steps

Evidence = ScoredEdges

GRID: tuple[dict[str, Any], ...] = tuple({"threshold": round(0.1 + 0.06 * step, 2)} for step in range(14))
_SOFTNESS = 0.5


def cluster_evidence(evidence: Evidence, *, threshold: float = 0.22, seed: int = 0) -> NDArray[np.int64]:
    """Link each face's neighbours in order until the first with an NEP below the threshold, and partition."""
    probable = np.logical_and.accumulate(evidence.scores >= np.float32(threshold), axis=1)
    kept = ScoredEdges(evidence.neighbors, np.where(probable, evidence.scores, np.float32(-1)))
    return label_by_map_equation(parse_edges(kept, 0.0), seed=seed)


def measure_evidence(features: Features, graph: KnnGraph) -> Evidence:
    """Compute NEP once, for any threshold."""
    return ScoredEdges(graph.neighbors, measure_edge_probability(graph))


cluster_faces = in_two_steps(measure_evidence, cluster_evidence)


def measure_edge_probability(graph: KnnGraph) -> NDArray[np.float32]:
    """Return NEP of every edge of the lists, float32 (n, k); 0 where there is none."""
    raw = np.exp((2 * np.clip(graph.similarities, 0, 1) - 2) / _SOFTNESS, dtype=np.float32)
    raw[graph.neighbors < 0] = 0
    totals = 1 + raw.sum(axis=1, dtype=np.float32)  # a face's own entry is exp(0)
    own = np.asarray(1 / totals, dtype=np.float32)
    return np.asarray(_sum_shared(graph.neighbors, raw * own[:, None], own, numba.get_num_threads()))


@njit(cache=True, nogil=True)
def _mark_list(share_of, faces, values):  # type: ignore[no-untyped-def]
    """Write the values of the listed faces."""
    for slot in range(len(faces)):
        if faces[slot] >= 0:
            share_of[faces[slot]] = values[slot]


@njit(cache=True, nogil=True, parallel=True)
def _sum_shared(neighbors, shares, own, n_workers):  # type: ignore[no-untyped-def]
    """Sum half of P_im + P_jm over the m that i and j share, for every edge i -> j."""
    n, k = neighbors.shape
    sums = np.zeros((n, k), dtype=np.float32)
    nothing = np.full(k, -1, dtype=np.float32)
    for worker in prange(n_workers):
        share_of = np.full(n, -1, dtype=np.float32)  # P_im for the row at hand
        for i in range(worker, n, n_workers):
            share_of[i] = own[i]
            _mark_list(share_of, neighbors[i], shares[i])
            for slot in range(k):
                j = neighbors[i, slot]
                if j < 0:
                    continue
                total = share_of[j] + own[j]
                for step in range(k):
                    m = neighbors[j, step]
                    if m >= 0 and share_of[m] >= 0:
                        total += share_of[m] + shares[j, step]
                sums[i, slot] = total / 2
            share_of[i] = -1
            _mark_list(share_of, neighbors[i], nothing)
    return sums
