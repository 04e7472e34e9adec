"""Evidence: the scores behind a clustering that is looked at again.

In: Features and what `starfc cluster` was given (model, k, work folder, a ready-made graph). Out: Evidence, the scored
kNN graph and the settings. A label file holds labels only, so the scores come from the run's work folder where there is
one and are computed anew where there is none.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .background import find_threshold
from .features import Features
from .model import Model, load_model
from .pipeline import Clusters, Settings, cluster
from .progress import Progress, silent
from .score import ScoredEdges
from .settings import settle

_FIT = 0.6  # below, scores and labels are of different runs; what a run gives has .9 and more


@dataclass(frozen=True)
class Evidence:
    """What a clustering was read off from.

    Attributes
    ----------
    scored : ScoredEdges
        (n, k).
    settings : Settings
        With tau_1 and tau_2 as the model or the data give them.
    threshold : float
        The cosine beyond which strangers are rare; tau_1 itself where scores are cosines.
    """

    scored: ScoredEdges = field(repr=False)
    settings: Settings
    threshold: float

    @property
    def tau1(self) -> float:
        """tau_1 as a number: the lowest cosine where parsing is skipped."""
        return -1.0 if self.settings.tau1 is None else self.settings.tau1


def gather_evidence(
    features: Features,
    *,
    model: Model | str | Path | None = None,
    k: int | None = None,
    scorer: str | None = None,
    tau1: float | None = None,
    tau2: float | None = None,
    partition: str | None = None,
    prefer: str | None = None,
    knn_graph: str | Path | None = None,
    workdir: str | Path | None = None,
    seed: int = 0,
    threads: int | None = None,
    progress: Progress = silent,
) -> Evidence:
    """Score the kNN graph as `starfc cluster` did with the same arguments, from its work folder if it is given.

    >>> import numpy as np
    >>> evidence = gather_evidence(Features(np.random.default_rng(0).normal(size=(50, 8))), k=5)
    >>> evidence.scored.scores.shape, evidence.settings.partition
    ((50, 5), 'refined')
    """
    loaded = load_model(model) if isinstance(model, str | Path) else model
    # Components, because the labels are thrown away: they are the cheapest to read off.
    found = cluster(
        features, model=loaded, k=k, scorer=scorer, tau1=tau1, tau2=tau2, partition="components", prefer=prefer,
        knn_graph=knn_graph, workdir=workdir, seed=seed, threads=threads, progress=progress,
    )  # fmt: skip
    chosen = settle(features, loaded, None, None, scorer, tau1, tau2, None, None, partition, prefer, seed).partition
    return take_evidence(replace(found, settings=replace(found.settings, partition=chosen)), features, seed=seed)


def measure_fit(evidence: Evidence, labels: NDArray[np.int64], *, most_rows: int = 20_000, seed: int = 0) -> float:
    """Return the share of edges above tau_1 that lie within a cluster, of a sample of faces; 1 where there is none.

    Labels that were read off these very scores have nearly all of them within; a low share tells that they were not.

    >>> scored = ScoredEdges(np.array([[1], [0], [0]], np.int32), np.array([[.9], [.9], [.8]], np.float32))
    >>> measure_fit(Evidence(scored, Settings(1, "cosine", 0.5, None), 0.5), np.array([0, 0, 1])).__round__(2)
    0.67
    """
    rows = np.random.default_rng(seed).permutation(len(labels))[:most_rows]
    neighbors = evidence.scored.neighbors[rows]
    kept = (neighbors >= 0) & (evidence.scored.scores[rows] > np.float32(evidence.tau1))
    within = (labels[neighbors] == labels[rows][:, None]) & (labels[rows] >= 0)[:, None]
    return float((kept & within).sum() / kept.sum()) if kept.any() else 1.0


def describe_misfit(evidence: Evidence, labels: NDArray[np.int64]) -> str | None:
    """Return a sentence for who gave the labels of one run and the settings of another, else None."""
    fit = measure_fit(evidence, labels)
    if fit >= _FIT:
        return None
    return (
        f"only {fit:.0%} of the links above tau1 = {evidence.tau1:.3f} ({evidence.settings.scorer}) are within these"
        " clusters; if they were made with another --model, --scorer, --k or --tau1, pass the same here"
    )


def take_evidence(clusters: Clusters, features: Features, *, seed: int = 0) -> Evidence:
    """Return the evidence of a clustering that was made just now.

    >>> import starfc, numpy as np
    >>> rows = np.random.default_rng(0).normal(size=(50, 8))
    >>> take_evidence(starfc.cluster(rows, k=5, tau1=0.4), Features(rows)).threshold
    0.4
    """
    settings = clusters.settings
    if settings.scorer == "cosine" and settings.tau1 is not None:
        return Evidence(clusters.scored, settings, settings.tau1)
    return Evidence(clusters.scored, settings, find_threshold(features, seed=seed)[0])
