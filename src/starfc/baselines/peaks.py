"""Density peaks on a kNN graph: every face follows its nearest denser neighbour, and ends where there is none.

In: neighbour lists, a density per face, a least similarity. Out: labels. It is the last step of GCN-V, GCN-V+E and
DA-Net (after Rodriguez and Laio, "Clustering by fast search and find of density peaks", Science 2014).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..partition import label_components
from ..prune import EdgeGraph


def find_denser(
    neighbors: NDArray[np.int32], similarities: NDArray[np.float32], density: NDArray[np.float32], tau: float
) -> NDArray[np.int64]:
    """Return the nearest denser neighbour of every face with a similarity of at least tau, -1 if there is none.

    Faces of equal density follow the lower id, so that no circle can arise.

    Parameters
    ----------
    neighbors : int32 (n, k)
        Best first.
    similarities : float32 (n, k)
    density : float32 (n,)
    tau : float

    Returns
    -------
    int64 (n,)

    Examples
    --------
    >>> lists = np.array([[1, 2], [0, 2], [1, 0]], np.int32)
    >>> find_denser(lists, np.full((3, 2), 0.9, np.float32), np.array([1, 2, 3], np.float32), 0.5)
    array([ 1,  2, -1])
    """
    rows = np.arange(len(neighbors))
    denser = mark_denser(neighbors, density, rows) & (similarities >= np.float32(tau))
    first = np.argmax(denser, axis=1)
    return np.where(denser[rows, first], neighbors[rows, first], -1).astype(np.int64)


def mark_denser(
    neighbors: NDArray[np.int32], density: NDArray[np.float32], faces: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Mark those of the neighbours of some faces (m,) that are denser than the face itself, bool (m, k)."""
    own, theirs = density[faces][:, None], density[neighbors]
    lower = neighbors < faces[:, None]
    return np.asarray((neighbors >= 0) & ((theirs > own) | ((theirs == own) & lower)))


def label_followers(parents: NDArray[np.int64]) -> NDArray[np.int64]:
    """Label faces that lead to the same peak, int64 (n,)."""
    following = parents >= 0
    offsets = np.concatenate(([0], np.cumsum(following)))
    ones = np.ones(int(following.sum()), dtype=np.float32)
    return label_components(EdgeGraph(offsets, parents[following].astype(np.int32), ones))
