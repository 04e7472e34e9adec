"""CDP with a single model (Zhan et al., "Consensus-driven propagation in massive unlabeled data", ECCV 2018).

With one embedder there is no committee and no mediator: pairs of the kNN graph at or above a cosine threshold are
candidates, and labels propagate along them. A connected component larger than `max_size` is cut again at a threshold
raised by  t <- t + (1 - t) step,  until all are small enough: this is `partition.label_by_dynamic_pruning`. Published
for MS1M (learn-to-cluster): k = 80, threshold .7, step .05, max_size 300.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..features import Features
from ..knn import KnnGraph
from ..partition import label_by_dynamic_pruning
from .pairs import COSINES, cut_edges

GRID: tuple[dict[str, Any], ...] = tuple(
    {"threshold": cosine, "max_size": most} for cosine in COSINES for most in (100, 300, 1000)
)


def cluster_faces(
    features: Features,
    graph: KnnGraph,
    *,
    threshold: float = 0.7,
    max_size: int = 300,
    step: float = 0.05,
    seed: int = 0,
) -> NDArray[np.int64]:
    """Propagate labels along pairs above a threshold that rises where clusters are too large.

    `threshold` is the first cosine, `max_size` the largest cluster that is left as it is, `step` the share of the way
    to 1 by which the threshold rises.
    """
    return label_by_dynamic_pruning(cut_edges(graph, threshold), max_size=max_size, start=threshold, step=step)
