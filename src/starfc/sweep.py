"""Sweep: what other thresholds would have given, from the same scores.

In: ScoredEdges and a grid of tau_1 and tau_2. Out: a row per pair of thresholds, with the number of clusters and the
largest one, and with labels pairwise and BCubed F (the paper's threshold figure). Common neighbours are counted once
per tau_1.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
from numpy.typing import NDArray

from .metrics import bcubed, pairwise
from .pipeline import Settings, label_faces
from .progress import Progress, silent
from .prune import EdgeGraph, measure_intimacy, prune_edges
from .score import ScoredEdges


@dataclass(frozen=True)
class SweepRow:
    """One setting and what it gives; the F scores are None without labels."""

    tau1: float | None
    tau2: float | None
    n_clusters: int
    largest: int
    pairwise_f: float | None = None
    bcubed_f: float | None = None

    def as_dict(self) -> dict[str, float | int | None]:
        """Return the row for JSON."""
        return asdict(self)


def sweep_thresholds(
    scored: ScoredEdges,
    settings: Settings,
    *,
    tau1: Sequence[float | None],
    tau2: Sequence[float | None],
    truth: NDArray[np.int64] | None = None,
    progress: Progress = silent,
) -> list[SweepRow]:
    """Partition the same scores at every pair of thresholds.

    Parameters
    ----------
    scored : ScoredEdges
        (n, k).
    settings : Settings
        Aggregation, edge kind and partition; its thresholds are not used.
    tau1, tau2 : sequences of float or None
        The grid; None skips the step.
    truth : int64 (n,), optional
        Known people, for the F scores.

    Returns
    -------
    list of SweepRow
        tau_2 varies fastest.

    Examples
    --------
    >>> import starfc
    >>> rows = np.random.default_rng(0).normal(size=(60, 8))
    >>> clusters = starfc.cluster(rows, k=5)
    >>> table = sweep_thresholds(clusters.scored, clusters.settings, tau1=[0.5, 1.0], tau2=[None])
    >>> [row.n_clusters for row in table][-1]
    60
    """
    for first, second in itertools.product(tau1, tau2):
        replace(settings, tau1=first, tau2=second)  # refuses what is out of range, before any work
    table = []
    progress("sweep", 0, len(tau1) * len(tau2))
    for first in tau1:
        for second, graph in _refine_at_each(scored, replace(settings, tau1=first), tau2):
            labels = label_faces(scored, graph, replace(settings, tau1=first))
            row = SweepRow(first, second, int(labels.max(initial=-1)) + 1, int(np.bincount(labels).max(initial=0)))
            if truth is not None:
                row = replace(row, pairwise_f=pairwise(truth, labels).f, bcubed_f=bcubed(truth, labels).f)
            table.append(row)
            progress("sweep", len(table), len(tau1) * len(tau2))
    return table


def _refine_at_each(
    scored: ScoredEdges, settings: Settings, tau2: Sequence[float | None]
) -> Iterator[tuple[float | None, EdgeGraph]]:
    """Yield the graph pruned at each tau_2; parsing and counting are shared."""
    parsed = prune_edges(scored, tau1=settings.tau1, tau2=None, aggregate=settings.aggregate, edges=settings.edges)
    intimacy = measure_intimacy(parsed, aggregate=settings.aggregate)
    for second in tau2:
        yield second, parsed if second is None else parsed.keep(intimacy > np.float32(second))
