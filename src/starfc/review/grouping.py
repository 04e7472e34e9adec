"""Grouping: the sub-clusters of one cluster.

In: the faces of a cluster and how many parts are wanted. Out: the part of each face, by average linkage of cosines cut
where so many remain, which is the clustering of these faces at a stricter level. Above 2,000 faces the tree is made of
a sample and the others join the nearest part.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..features import Features

_MOST_FACES = 2000


def group_members(features: Features, members: NDArray[np.int32], n_parts: int) -> NDArray[np.int64]:
    """Cut the members into n parts, int64 (len(members),).

    >>> faces = Features(np.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]]))
    >>> groups = group_members(faces, np.arange(4, dtype=np.int32), 2)
    >>> bool(groups[0] == groups[1] != groups[2] == groups[3])
    True
    """
    from scipy.cluster.hierarchy import fcluster, linkage
    from scipy.spatial.distance import pdist

    sample = np.unique(np.linspace(0, len(members) - 1, min(len(members), _MOST_FACES)).astype(np.int64))
    rows = features.take(members[sample])
    distances = np.maximum(pdist(rows, "cosine"), 0)
    groups = fcluster(linkage(distances, "average"), n_parts, criterion="maxclust").astype(np.int64) - 1
    if len(sample) == len(members):
        return np.asarray(groups)
    centres = np.zeros((int(groups.max()) + 1, features.dim), dtype=np.float32)
    np.add.at(centres, groups, rows)
    centres /= np.maximum(np.linalg.norm(centres, axis=1, keepdims=True), 1e-9)
    nearest = np.empty(len(members), dtype=np.int64)
    for start in range(0, len(members), _MOST_FACES):
        block = slice(start, start + _MOST_FACES)
        nearest[block] = np.argmax(features.take(members[block]) @ centres.T, axis=1)
    nearest[sample] = groups
    return nearest
