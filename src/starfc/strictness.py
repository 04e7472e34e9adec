"""Strictness: how probable a link must be to be kept, in words, and what is right for a collection.

In: ScoredEdges whose scores are probabilities. Out: tau_1.

A link that is probably right is worth keeping if the partition can do with some wrong ones. Where people have two
faces, one wrong link joins two of them, and nothing else is there to tell. Where they have thirty, a face has dozens of
links, the wrong ones lead here and there, and the right ones to one place, the noisy ones among them, of which none is
sure. So less is asked for, the more matches a face has: from `_FEW_MATCHES` expected ones of the median face to
`_MANY_MATCHES`, tau_1 falls from .7 to .5.

Chosen on 63 collections in which the median face has six matches or more: parts of the three real sets, in fewer
dimensions and with noise, and worlds (`docs/benchmarks.md`). Without the fall they lose .04 of BCubed F on average, a
noisy one 2.3; with a fall from six matches to twelve those with many people seen once lose up to a point.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit
from numpy.typing import NDArray

from .score import ScoredEdges
from .scratch import Scratch
from .tiles import run_tiles

# A link is kept if its probability is above: what a user prefers, in words.
PREFERENCES = {"precision": 0.9, "balanced": 0.7, "recall": 0.4}
_BALANCED_AMONG_MANY = 0.5
_FEW_MATCHES, _MANY_MATCHES = 12.0, 24.0
_TILE_ROWS = 1 << 16


def balance_strictness(scored: ScoredEdges, *, scratch: Scratch | None = None) -> tuple[float, float]:
    """Find tau_1 for a collection.

    Parameters
    ----------
    scored : ScoredEdges
        (n, k), with probabilities.
    scratch : Scratch, optional
        Whose mapped pages are let go of on the way.

    Returns
    -------
    tau1 : float
    n_matches : float
        How many matches the median face is expected to have.

    Examples
    --------
    >>> scores = np.full((4, 40), 0.45, np.float32)
    >>> balance_strictness(ScoredEdges(np.zeros((4, 40), np.int32), scores))
    (0.583, 18.0)
    """
    n = len(scored.scores)
    n_matches = np.empty(n, dtype=np.float32)

    def sum_tile(start: int, stop: int) -> None:
        _sum_rows(scored.scores[start:stop], n_matches[start:stop])

    run_tiles(n, _TILE_ROWS, sum_tile, "strictness", after=(scratch or Scratch()).relieve)
    typical = float(np.median(n_matches)) if n else 0.0
    steps = math.log(max(typical, _FEW_MATCHES) / _FEW_MATCHES) / math.log(_MANY_MATCHES / _FEW_MATCHES)
    fall = (PREFERENCES["balanced"] - _BALANCED_AMONG_MANY) * min(steps, 1.0)
    return round(PREFERENCES["balanced"] - fall, 3), round(typical, 3)


@njit(cache=True, nogil=True)
def _sum_rows(scores: NDArray[np.float32], sums: NDArray[np.float32]) -> None:
    """Sum each row, number by number."""
    for i in range(len(scores)):
        total = 0.0
        for j in range(scores.shape[1]):
            total += scores[i, j]
        sums[i] = total
