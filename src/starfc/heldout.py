"""Held-out people: how good a model is on people it has never seen, and which thresholds suit it.

In: the people of a training, some of whom are kept aside, and a Model. Out: the share of edges judged rightly, and the
tau_1 and tau_2 whose clusters agree best with the labels. Whole *people* are kept aside, not faces: another face of
somebody trained on says little about strangers. The price: each person held out is one fewer to learn from.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .features import Features
from .knn import KnnGraph, join_rows
from .model import Model
from .partition import label_components
from .prune import measure_intimacy, parse_edges
from .sampling import PersonIndex
from .score import ScoredEdges, score_edges

_MOST_FACES = 20_000  # enough to tell settings apart to a tenth of a point; more would only take time
_TAU1_GRID = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
_TAU2_GRID = (None, 0.2, 0.3, 0.4, 0.5, 0.6, 0.72, 0.8, 0.9)
_AS_GOOD = 0.005  # F scores nearer than this do not tell two settings apart


def split_people(index: PersonIndex, share: float, rng: np.random.Generator) -> tuple[PersonIndex, PersonIndex]:
    """Keep a share of the people aside: (those to learn from, those held out).

    People with several faces and people with one are split alike, at least two of the former are held out if there are
    four, and at least half of them stay.
    """
    several = np.flatnonzero(np.diff(index.offsets) > 1)
    single = np.flatnonzero(np.diff(index.offsets) == 1)
    n_several = min(max(2, round(share * len(several))), len(several) // 2) if share > 0 else 0
    parts = (several, n_several), (single, round(share * len(single)))
    held = np.sort(np.concatenate([rng.choice(people, n, replace=False) for people, n in parts]))
    return index.select(np.setdiff1d(np.arange(len(index)), held)), index.select(held)


@dataclass(frozen=True)
class HeldOut:
    """The kNN graph in which people never trained on must be found.

    People trained on are in it too, as many as there is room for: a few strangers among themselves are easily told
    apart and would ask for thresholds that merge a larger collection. Only the faces held out are judged.

    Attributes
    ----------
    features : Features
        (n, d), held out or company.
    labels : int64 (n,)
    judged : bool (n,)
        Whether a face is held out.
    graph : KnnGraph
        (n, k).
    """

    features: Features
    labels: NDArray[np.int64]
    judged: NDArray[np.bool_]
    graph: KnnGraph

    @classmethod
    def build(
        cls,
        features: Features,
        labels: NDArray[np.int64],
        held: PersonIndex,
        learned: PersonIndex,
        *,
        k: int,
        seed: list[int],
    ) -> HeldOut | None:
        """Build the graph once; None if there are no two faces of one person to find.

        Both draws start from `seed`: who keeps company does not depend on whether the held-out people were too many.
        """
        judged = _gather_held_out(held, np.random.default_rng(seed))
        if len(np.unique(labels[judged])) == len(judged):
            return None
        company = _gather_company(learned, _MOST_FACES - len(judged), np.random.default_rng(seed))
        rows = np.sort(np.concatenate([judged, company]))
        taken = Features(features.take(rows))
        graph = join_rows(taken.raw, min(k, len(rows) - 1))
        return cls(taken, labels[rows], np.isin(rows, judged), graph)

    def judge(self, model: Model, *, choose: bool) -> Verdict:
        """Judge the edges of held-out faces, and the clusters at the model's thresholds, or at the best if so told.

        Choosing takes as long as many steps of a training.
        """
        scored = score_edges(self.features, self.graph, model)
        grid = (_TAU1_GRID, _TAU2_GRID) if choose else ((model.config.tau1,), (model.config.tau2,))
        found = choose_thresholds(scored, self.labels, self.judged, *grid)
        scores = scored.scores[self.judged].astype(np.float64)
        same = self.labels[self.graph.neighbors[self.judged]] == self.labels[self.judged][:, None]
        given = np.clip(np.where(same, scores, 1 - scores), 1e-7, 1)  # the probability of what is true
        return Verdict(float(-np.log(given).mean()), float(((scores > 0.5) == same).mean()), found)


@dataclass(frozen=True)
class Verdict:
    """How a model does on held-out people.

    Attributes
    ----------
    loss, accuracy : float
        Mean cross entropy, and share of edges judged rightly.
    thresholds : Thresholds
        With the F scores of the clusters at them.
    """

    loss: float
    accuracy: float
    thresholds: Thresholds


def _gather_held_out(held: PersonIndex, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return the rows of the held-out people; of too many, those of a person and the people nearest to them."""
    if len(held.rows) <= _MOST_FACES or len(held) < 2:
        return np.sort(held.rows)
    first = rng.integers(len(held), size=1)
    people = np.concatenate([first, held.nearest_people(first, len(held))[0]])
    n_people = max(2, _count_fitting(held, people, _MOST_FACES))
    return held.faces_of(people[:n_people], most=_MOST_FACES // 2, rng=rng)


def _gather_company(learned: PersonIndex, room: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return the rows of random people trained on, as many as fit."""
    people = rng.permutation(len(learned))
    return learned.faces_of(people[: _count_fitting(learned, people, room)])


def _count_fitting(index: PersonIndex, people: NDArray[np.int64], room: int) -> int:
    """Count how many of the people, in this order, have no more faces together than there is room for."""
    return int(np.searchsorted(np.cumsum(np.diff(index.offsets)[people]), room, side="right"))


@dataclass(frozen=True)
class Thresholds:
    """Thresholds, and the F scores that they gave."""

    tau1: float
    tau2: float | None
    pairwise_f: float
    bcubed_f: float

    @property
    def mean_f(self) -> float:
        """What the choice goes by."""
        return (self.pairwise_f + self.bcubed_f) / 2


def choose_thresholds(
    scored: ScoredEdges,
    labels: NDArray[np.int64],
    judged: NDArray[np.bool_],
    tau1_grid: tuple[float, ...] = _TAU1_GRID,
    tau2_grid: tuple[float | None, ...] = _TAU2_GRID,
) -> Thresholds:
    """Find the thresholds whose clusters agree best with the labels: the highest mean of pairwise and BCubed F.

    Of settings that are as good (within .005), the one with the highest tau_1 is taken, and of those the one
    whose tau_2 is nearest to the paper's .72: wrong links multiply in a collection of more people than these,
    lost ones do not. The scores are not computed again.

    Parameters
    ----------
    scored : ScoredEdges
        (n, k).
    labels : int64 (n,)
    judged : bool (n,)
        The faces that count, see :func:`score_faces`.
    tau1_grid, tau2_grid : tuple
        What is tried; None is no refinement.

    Returns
    -------
    Thresholds
    """
    tried = []
    for tau1 in tau1_grid:
        graph = parse_edges(scored, tau1)
        intimacy = measure_intimacy(graph)
        for tau2 in tau2_grid:
            kept = graph if tau2 is None else graph.keep(intimacy > np.float32(tau2))
            tried.append(Thresholds(tau1, tau2, *score_faces(labels, label_components(kept), judged)))
    best = max(setting.mean_f for setting in tried)
    good = [setting for setting in tried if setting.mean_f >= best - _AS_GOOD]
    return min(good, key=lambda setting: (-setting.tau1, abs((setting.tau2 or 0.0) - 0.72)))


def score_faces(
    labels: NDArray[np.int64], clusters: NDArray[np.int64], judged: NDArray[np.bool_]
) -> tuple[float, float]:
    """Return pairwise and BCubed F as the judged faces see them, in clusters that hold others too.

    A pair counts once for each of its judged faces; with all faces judged these are the F scores of
    `metrics.py`.

    >>> score_faces(np.array([0, 0, 1, 1]), np.array([0, 0, 0, 1]), np.array([True, True, False, False]))
    (0.6666666666666666, 0.8)
    """
    people, person = np.unique(labels, return_inverse=True)
    _, cell, together = np.unique(clusters * len(people) + person, return_inverse=True, return_counts=True)
    in_cell = together[cell][judged]  # faces of the same person in the same cluster, for each judged face
    in_cluster, in_person = np.bincount(clusters)[clusters][judged], np.bincount(person)[person][judged]
    right, linked, wanted = ((counts - 1).sum() for counts in (in_cell, in_cluster, in_person))
    pairwise = 2 * right / (linked + wanted) if linked + wanted else 1.0
    precision, recall = (in_cell / in_cluster).mean(), (in_cell / in_person).mean()
    return float(pairwise), float(2 * precision * recall / (precision + recall))
