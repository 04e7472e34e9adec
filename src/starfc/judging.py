"""Judging: which of several scorers of relations suits held-out people, at which threshold and with which partition.

In: a collection with held-out people in it (Judged), networks, a GCN, a space. Out: how well each kind of scorer
clusters their faces and knows their edges, and the Choice that follows (`relational_fit.py` says what is fitted).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .features import Features
from .heldout import score_faces
from .knn import KnnGraph, build_knn
from .model import Model
from .partition import partition_graph
from .profiles import choose_k, measure_profiles
from .prune import parse_edges
from .relational import RelationalModel, score_by_relations
from .relational_model import combine_scores
from .score import ScoredEdges, score_edges
from .space import Space, map_features


class Kind(NamedTuple):
    """What a scorer is made of.

    Attributes
    ----------
    share : float
        Of what was learned that is added to the shipped network.
    gcn_weight : float
        Of a GCN beside it.
    change : float
        Share of the change that a space makes to the features before everything else.
    """

    share: float
    gcn_weight: float = 0.0
    change: float = 0.0


KINDS = {
    "shipped": Kind(0.0),
    "leaning": Kind(0.5),
    "fitted": Kind(1.0),
    "advised": Kind(0.5, gcn_weight=0.25),
    "combined": Kind(1.0, gcn_weight=0.5),
    "half mapped": Kind(0.5, change=0.5),
    "mapped": Kind(0.5, change=1.0),
}
_PARTITIONS = ("refined", "components")
THRESHOLDS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
# Of mean F, for a kind that does not know the edges best.
_LEAST_GAIN = 0.004
_LEAST = np.float32(1e-5)  # probability, below which none counts as smaller in a cross entropy
# Of mean F, for components to be taken: they chain the more people there are, and those held out are few.
_LEAST_GAIN_OF_COMPONENTS = 0.01


@dataclass(frozen=True)
class Choice:
    """A scorer, a threshold and a partition, and the F scores they gave on held-out people, averaged over collections.

    Attributes
    ----------
    kind : {"shipped", "leaning", "fitted", "advised", "combined", "half mapped", "mapped"}
        With none, half and all of what was learned; the second and third of these with a GCN; the second in half
        of a space, and in all of it.
    partition : {"refined", "components"}
    tau1 : float
    pairwise_f, bcubed_f : float
    """

    kind: str
    partition: str
    tau1: float
    pairwise_f: float
    bcubed_f: float

    @property
    def mean_f(self) -> float:
        """What the choice goes by."""
        return (self.pairwise_f + self.bcubed_f) / 2


@dataclass(frozen=True)
class Judged:
    """A collection with held-out people in it, ready to be clustered.

    Attributes
    ----------
    features : Features
    labels : int64 (n,)
    judged : bool (n,)
        Whether a face is held out.
    """

    features: Features
    labels: NDArray[np.int64]
    judged: NDArray[np.bool_]

    def score(
        self,
        networks: dict[float, RelationalModel],
        gcn: Model | None = None,
        space: Space | None = None,
        k: int | None = None,
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return F scores and losses of every kind, NaN and infinite of those whose GCN or space there is not.

        The first are pairwise and BCubed F by partition and threshold, (kinds, 2, thresholds, 2); the others the mean
        cross entropy of the edges of judged faces, (kinds,). Networks are given by the share of what was learned.
        """
        scored: dict[str, ScoredEdges] = {}
        for change in {kind.change for kind in KINDS.values()}:
            kinds = {name: kind for name, kind in KINDS.items() if kind.change == change}
            if change == 0:
                scored |= self._score_kinds(self.features, kinds, networks, gcn, k)
            elif space is not None:
                scored |= self._score_kinds(
                    map_features(self.features, space.take_share(change)), kinds, networks, gcn, k
                )
        scores = np.full((len(KINDS), len(_PARTITIONS), len(THRESHOLDS), 2), np.nan)
        losses = np.full(len(KINDS), np.inf)
        for at, name in enumerate(KINDS):
            if name in scored:
                losses[at] = self._measure_loss(scored[name])
                scores[at] = [self._score_thresholds(scored[name], partition) for partition in _PARTITIONS]
        return scores, losses

    def _score_kinds(
        self,
        features: Features,
        kinds: dict[str, Kind],
        networks: dict[float, RelationalModel],
        gcn: Model | None,
        k: int | None,
    ) -> dict[str, ScoredEdges]:
        """Return the edges as some kinds score them, those with a GCN only if there is one."""
        profiles = measure_profiles(features)
        wanted = k or choose_k(features, profiles)
        graph = build_knn(features, k=min(wanted, len(features) - 1))
        by_relations = {
            share: score_by_relations(features, graph, model=networks[share], profiles=profiles)
            for share in {kind.share for kind in kinds.values()}
        }
        scored = {name: by_relations[kind.share] for name, kind in kinds.items() if kind.gcn_weight == 0}
        with_gcn = kinds.keys() - scored.keys()
        if gcn is not None and with_gcn:
            n_near = gcn.config.n_neighbors
            near = KnnGraph(graph.neighbors[:, :n_near], graph.similarities[:, :n_near], graph.order)
            by_gcn = score_edges(features, near, gcn)
            for name in with_gcn:
                scored[name] = combine_scores(by_relations[kinds[name].share], by_gcn, kinds[name].gcn_weight)
        return scored

    def _measure_loss(self, scored: ScoredEdges) -> float:
        """Return the mean cross entropy of the edges of judged faces."""
        neighbors = scored.neighbors[self.judged]
        same = (self.labels[neighbors] == self.labels[self.judged, None])[neighbors >= 0]
        found = np.clip(scored.scores[self.judged][neighbors >= 0], _LEAST, 1 - _LEAST)
        return float(-np.log(np.where(same, found, 1 - found)).mean(dtype=np.float64))

    def _score_thresholds(self, scored: ScoredEdges, partition: str) -> list[tuple[float, float]]:
        """Return the F scores of the clusters at each threshold."""
        return [
            score_faces(self.labels, partition_graph(parse_edges(scored, tau1), partition=partition), self.judged)
            for tau1 in THRESHOLDS
        ]


def choose_setting(scores: NDArray[np.float64], losses: NDArray[np.float64]) -> Choice:
    """Choose by mean F scores (kinds, partitions, thresholds, 2), NaN where there are none, and losses (kinds,).

    The kind that knows the edges best, the first of equals, unless another is clearly better: F hangs on a few large
    people, the cross entropy is of all edges. Thresholds are compared by a running mean over three, which is less at
    the mercy of those few as well.

    >>> scores = np.zeros((2, 2, len(THRESHOLDS), 2))
    >>> scores[1, 0, 3] = 0.9
    >>> choice = choose_setting(scores, np.array([0.1, 0.1]))
    >>> choice.kind, choice.tau1
    ('leaning', 0.6)
    """
    means = scores.mean(axis=3)
    padded = np.pad(means, ((0, 0), (0, 0), (1, 1)), mode="edge")
    smooth = 0.25 * padded[..., :-2] + 0.5 * padded[..., 1:-1] + 0.25 * padded[..., 2:]
    smooth[np.arange(len(losses)) != losses.argmin()] -= _LEAST_GAIN
    smooth[:, 1:] -= _LEAST_GAIN_OF_COMPONENTS
    smooth[np.isnan(smooth)] = -np.inf
    # Of equally good thresholds the highest: wrong links multiply in a collection of more people, lost ones do not.
    kind, partition, last = np.unravel_index(smooth[..., ::-1].argmax(), smooth.shape)
    at = len(THRESHOLDS) - 1 - int(last)
    pairwise, bcubed = (float(score) for score in scores[kind, partition, at])
    return Choice(list(KINDS)[kind], _PARTITIONS[partition], THRESHOLDS[at], pairwise, bcubed)
