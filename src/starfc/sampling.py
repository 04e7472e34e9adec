"""Structure-preserved subgraph sampling: a training step sees a part of the graph that looks like the whole.

In: Features and labels. Out: the rows of one subgraph per call, by Algorithm 1 of the paper: M random people
are seeds, each brings its N nearest people by the cosine of their centres (S_1), cluster randomness keeps K_1
of these people (S_2), sample randomness keeps a share K_2 of their faces (S). People, not faces, are the
unit, so the dense links inside a person and the hard negatives between look-alikes survive, which random rows
would lose. The price is an index of the centres (P x d float32) and one M x P product per subgraph; only the
list of rows grows with faces.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import InputError
from .features import Features


@dataclass(frozen=True)
class PersonIndex:
    """Who has which faces, and where each person lies.

    Attributes
    ----------
    people : int64 (P,)
        Labels of the people, ascending.
    offsets : int64 (P + 1,)
        The faces of person p are ``rows[offsets[p]:offsets[p + 1]]``.
    rows : int64 (n_labelled,)
        Row numbers, grouped by person, ascending within one.
    centers : float32 (P, d)
        Mean of each person's unit rows, scaled to length one.
    """

    people: NDArray[np.int64]
    offsets: NDArray[np.int64]
    rows: NDArray[np.int64]
    centers: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.people)

    def faces_of(self, persons: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the rows of all faces of the given persons (positions in `people`), int64, ascending."""
        return np.sort(self.rows[self._places_of(persons)])

    def select(self, persons: NDArray[np.int64]) -> PersonIndex:
        """Return the index of some of the people (positions in `people`, ascending) without reading a face again."""
        offsets = np.concatenate([[0], np.cumsum(np.diff(self.offsets)[persons])])
        rows = self.rows[self._places_of(persons)]
        return PersonIndex(self.people[persons], offsets, rows, self.centers[persons])

    def _places_of(self, persons: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return where in `rows` the faces of the given persons stand, person after person."""
        starts, stops = self.offsets[persons], self.offsets[persons + 1]
        counts = stops - starts
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        return np.asarray(np.repeat(starts, counts) + within)

    def nearest_people(self, seeds: NDArray[np.int64], n: int) -> NDArray[np.int64]:
        """Return the n people nearest to each seed by the cosine of the centres, the seed itself left out.

        Parameters
        ----------
        seeds : int64 (M,)
            Positions in `people`.
        n : int
            How many for each; all others when there are fewer.

        Returns
        -------
        int64 (M, min(n, P - 1))
            Positions in `people`, nearest first, ties by position.

        Examples
        --------
        >>> features = Features(np.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.5, 0.5]]))
        >>> index = index_people(features, np.array([0, 0, 7, 8]))
        >>> index.nearest_people(np.array([0]), 2)
        array([[2, 1]])
        """
        n = min(n, len(self) - 1)
        cosines = self.centers[seeds] @ self.centers.T  # (M, P)
        cosines[np.arange(len(seeds)), seeds] = -np.inf
        return np.stack([_best(row, n) for row in cosines])


@dataclass(frozen=True)
class SamplingPlan:
    """How a subgraph is drawn, in the symbols of Algorithm 1.

    Attributes
    ----------
    seeds : int
        M, people drawn at random.
    near : int
        N, nearest people each seed brings.
    cluster_randomness : int or None
        K_1, people kept of all those found; None switches CR off.
    sample_randomness : float or None
        K_2, share of their faces kept; None switches SR off.
    k : int
        Neighbours per face in the kNN graph rebuilt inside the subgraph.
    full_graph : bool
        Take every face every time (row a of the paper's sampling table); the rest is then ignored.
    """

    seeds: int
    near: int
    cluster_randomness: int | None
    sample_randomness: float | None
    k: int
    full_graph: bool = False

    def __post_init__(self) -> None:
        if self.seeds < 1 or self.near < 1 or self.k < 1:
            raise InputError(f"seeds ({self.seeds}), near ({self.near}) and k ({self.k}) must each be at least 1")
        if self.cluster_randomness is not None and self.cluster_randomness < 2:
            raise InputError(f"cluster_randomness ({self.cluster_randomness}) must keep 2 people or more, or be None")
        if self.sample_randomness is not None and not 0 < self.sample_randomness <= 1:
            raise InputError(
                f"sample_randomness ({self.sample_randomness}) is a share in (0, 1]; pass None for all faces"
            )

    @property
    def people_found(self) -> int:
        """People in S_1 when no two seeds bring the same one: M (N + 1)."""
        return self.seeds * (self.near + 1)


#: The published values for the paper's two data sets, and what the authors' released code does instead: one
#: seed, the 1,500 people nearest to it (itself counted), of whom 1,300 are kept.
PLANS = {
    "ms1m": SamplingPlan(seeds=2, near=750, cluster_randomness=1300, sample_randomness=0.9, k=80),
    "webface": SamplingPlan(seeds=4, near=1100, cluster_randomness=4000, sample_randomness=0.9, k=30),
    "released": SamplingPlan(seeds=1, near=1499, cluster_randomness=1300, sample_randomness=0.9, k=80),
}


def index_people(features: Features, labels: NDArray[np.int64]) -> PersonIndex:
    """Build the index once, reading the features in blocks; rows labelled -1 are left out.

    Examples
    --------
    >>> index = index_people(Features(np.eye(4)), np.array([5, -1, 5, 3]))
    >>> index.people, index.offsets, index.rows
    (array([3, 5]), array([0, 1, 3]), array([3, 0, 2]))
    """
    if len(labels) != len(features):
        raise InputError(f"{len(labels)} labels were given for {len(features)} faces; there must be one per face")
    labelled = np.flatnonzero(labels >= 0)
    people, person_of = np.unique(labels[labelled], return_inverse=True)
    offsets = np.concatenate([[0], np.cumsum(np.bincount(person_of, minlength=len(people)))])
    rows = labelled[np.argsort(person_of, kind="stable")]
    position = np.full(len(labels), -1, dtype=np.int64)
    position[labelled] = person_of
    centers = _average_rows(features, position, len(people))
    return PersonIndex(people.astype(np.int64), offsets.astype(np.int64), rows.astype(np.int64), centers)


def fit_plan(plan: SamplingPlan, *, n_people: int, n_faces: int, max_nodes: int | None = None) -> SamplingPlan:
    """Scale a plan down to data with fewer people than it was published for; enough people leave it as it is.

    The neighbourhoods of all seeds together shrink to the number of people, and further to what keeps a
    subgraph at about `max_nodes` faces on average. (The paper speaks of about 10K nodes, but its numbers give
    about 78K on MS1M, where a person has 67 faces; so only the default preset asks for this limit.) Where the
    neighbourhoods would cover more than half of all people they would mostly be the same, so a single seed is
    used, as in the authors' code. K_1 keeps its proportion to the people found, and always leaves at least
    one of them out.

    Parameters
    ----------
    plan : SamplingPlan
    n_people, n_faces : int
        Of the data to train on.
    max_nodes : int, optional
        Faces wanted in a subgraph; None leaves the number to the plan.

    Examples
    --------
    >>> fit_plan(PLANS["ms1m"], n_people=8573, n_faces=576_494) == PLANS["ms1m"]
    True
    >>> fit_plan(PLANS["ms1m"], n_people=300, n_faces=3000)
    SamplingPlan(seeds=1, near=299, cluster_randomness=260, sample_randomness=0.9, k=80, full_graph=False)
    """
    kept = 1.0 if plan.cluster_randomness is None else min(1.0, plan.cluster_randomness / plan.people_found)
    found = min(plan.people_found, n_people)
    if max_nodes is not None:
        nodes_per_person = n_faces / n_people * kept * (plan.sample_randomness or 1.0)
        found = min(found, max(3, round(max_nodes / nodes_per_person)))
    if found == plan.people_found and 2 * found <= n_people:
        return plan
    seeds = plan.seeds if 2 * found <= n_people and found >= 4 * plan.seeds else 1
    near = max(1, found // seeds - 1)
    fitted = replace(plan, seeds=seeds, near=near, cluster_randomness=None)
    if plan.cluster_randomness is None:
        return fitted
    left_in = min(round(kept * fitted.people_found), fitted.people_found - 1)
    return replace(fitted, cluster_randomness=max(2, left_in))


def sample_subgraph(index: PersonIndex, plan: SamplingPlan, rng: np.random.Generator) -> NDArray[np.int64]:
    """Draw the faces of one subgraph (Algorithm 1).

    A person found by several seeds is in it once, so S_1 may hold fewer than M (N + 1) people; K_1 is then
    the most that is kept, not a number to reach.

    Returns
    -------
    int64 (n,)
        Row numbers, ascending, each once.

    Examples
    --------
    >>> index = index_people(Features(np.eye(6)), np.array([0, 0, 1, 1, 2, 2]))
    >>> plan = SamplingPlan(seeds=1, near=2, cluster_randomness=2, sample_randomness=None, k=3)
    >>> len(sample_subgraph(index, plan, np.random.default_rng(0)))
    4
    """
    if plan.full_graph:
        return np.sort(index.rows)
    seeds = rng.choice(len(index), size=min(plan.seeds, len(index)), replace=False)
    found = np.unique(np.concatenate([seeds, index.nearest_people(seeds, plan.near).ravel()]))  # S_1
    people = _keep(found, plan.cluster_randomness, rng)  # S_2, after CR
    faces = index.faces_of(people)
    n_kept = None if plan.sample_randomness is None else round(plan.sample_randomness * len(faces))
    return _keep(faces, n_kept, rng)  # S, after SR


def _keep(items: NDArray[np.int64], n_kept: int | None, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return `n_kept` of the ascending items at random, ascending; None keeps all."""
    if n_kept is None or n_kept >= len(items):
        return items
    return np.sort(rng.choice(items, size=max(1, n_kept), replace=False))


def _best(values: NDArray[np.float32], n: int) -> NDArray[np.int64]:
    """Return the positions of the n largest values, best first, ties by position."""
    if n >= len(values):
        return np.argsort(-values, kind="stable")
    smallest_kept = np.partition(values, len(values) - n)[len(values) - n]
    above = np.flatnonzero(values > smallest_kept)
    level = np.flatnonzero(values == smallest_kept)[: n - len(above)]
    chosen = np.sort(np.concatenate([above, level]))
    return chosen[np.argsort(-values[chosen], kind="stable")]


def _average_rows(features: Features, position: NDArray[np.int64], n_people: int) -> NDArray[np.float32]:
    """Sum the unit rows of each person block by block and scale the sums to length one."""
    sums = np.zeros((n_people, features.dim), dtype=np.float32)
    for start, stop in features.blocks():
        inside = np.flatnonzero(position[start:stop] >= 0)
        if len(inside) == 0:
            continue
        order = inside[np.argsort(position[start:stop][inside], kind="stable")]
        person = position[start:stop][order]
        firsts = np.flatnonzero(np.diff(person, prepend=-1))
        sums[person[firsts]] += np.add.reduceat(features.read(start, stop)[order], firsts, axis=0)
    return _scale_rows(sums)


def _scale_rows(sums: NDArray[np.float32]) -> NDArray[np.float32]:
    """Scale rows to length one; a sum that cancelled to zero has no direction and stays zero."""
    lengths: NDArray[Any] = np.sqrt(np.einsum("pd,pd->p", sums, sums))[:, None]
    sums /= np.maximum(lengths, np.finfo(np.float32).tiny)
    return sums
