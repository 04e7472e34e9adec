"""People: who has which faces, where each person lies, and who lies near whom.

In: Features and labels. Out: PersonIndex, all that sampling needs to know of the data: the rows of every person and the
centre c_p = sum of the person's unit rows, scaled to length one. It is built in one pass over the features, block by
block, and kept as a file in a work folder, so that a training of twenty million faces reads them once.

The people nearest to one are found by comparing its centre with all others, P d multiplications. Where that would take
longer than the rest of a step, each person's nearest few are found once, by the kNN graph of the centres, and a
neighbourhood is gathered by following these links until three times as many people as wanted are met, the best of which
are taken. That misses a few of the farther ones, which a subgraph can do without.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .atomic import replacing
from .errors import InputError
from .features import Features
from .knn import KnnGraph, build_knn, load_knn, save_knn
from .progress import Progress, silent
from .scratch import remove_scratch
from .workdir import Workdir

COMPARED_UP_TO = 100_000  # people among whom a product finds the nearest in a few hundredths of a second
_LINKS = 32  # nearest people kept of each
# Strangers are hardly nearer to one another than chance has it: more recall would mean to compare all of them, and a
# sampled neighbourhood leaves out some of those near by anyway.
_LINKS_RECALL = 0.5
_MARGIN = 3  # times as many people are looked at as are wanted
_LINKS_FOLDER = "people.links.parts"


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
    links : int32 (P, m), optional
        Some of the people nearest to each, where there are too many to compare; -1 where there are fewer.
    """

    people: NDArray[np.int64]
    offsets: NDArray[np.int64]
    rows: NDArray[np.int64]
    centers: NDArray[np.float32]
    links: NDArray[np.int32] | None = None

    def __len__(self) -> int:
        return len(self.people)

    def faces_of(
        self, persons: NDArray[np.int64], *, most: int | None = None, rng: np.random.Generator | None = None
    ) -> NDArray[np.int64]:
        """Return the rows of all faces of the given persons (positions in `people`), int64, ascending.

        Of a person with more than `most` faces so many are drawn: one may have half of all there are.
        """
        if most is None or rng is None:
            return np.sort(self.rows[self._places_of(persons)])
        is_large = np.diff(self.offsets)[persons] > most
        found = [self.rows[self._places_of(persons[~is_large])]]
        for person in persons[is_large]:
            own = self.rows[self.offsets[person] : self.offsets[person + 1]]
            found.append(rng.choice(own, most, replace=False))
        return np.sort(np.concatenate(found))

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

        With `links`, of the people that these lead to; without, of all.

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
        found = np.empty((len(seeds), n), dtype=np.int64)
        for at, seed in enumerate(seeds):
            others = self._gather_around(int(seed), n)
            known = self.centers if others is None else self.centers[others]
            # not by BLAS, whose bits may depend on how many threads it has, and this one runs beside others
            cosines = np.einsum("pd,d->p", known, self.centers[seed])
            if others is None:
                cosines[seed] = -np.inf
                found[at] = _choose_best(cosines, n)
            else:
                found[at] = others[_choose_best(cosines, n)]
        return found

    def _gather_around(self, seed: int, n: int) -> NDArray[np.int64] | None:
        """Return the people that links lead to from a seed, enough of them to choose n from; None for all."""
        if self.links is None or _MARGIN * n >= len(self):
            return None
        met = np.array([seed])
        while len(met) <= _MARGIN * n:
            n_met = len(met)
            met = np.union1d(met, self.links[met])
            met = met[met >= 0]
            if len(met) == n_met:  # an island: too small to choose from
                return None
        return np.asarray(met[met != seed], dtype=np.int64)


def index_people(
    features: Features, labels: NDArray[np.int64], *, after_block: Callable[[], None] | None = None
) -> PersonIndex:
    """Build the index in one pass over the features, in blocks; rows labelled -1 are left out.

    Parameters
    ----------
    features : Features
        (n, d).
    labels : int64 (n,)
    after_block : callable, optional
        Called after every block, for instance to let go of the pages that were read.

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
    position = np.full(len(labels), -1, dtype=np.int32)
    position[labelled] = person_of
    centers = _average_rows(features, position, len(people), after_block)
    return PersonIndex(people.astype(np.int64), offsets.astype(np.int64), rows.astype(np.int64), centers)


def draw_people(
    index: PersonIndex, n_faces: int, rng: np.random.Generator, *, most: int | None = None
) -> NDArray[np.int64]:
    """Draw people at random until they have about so many faces; return the rows of their faces, ascending.

    Nobody brings more than half of them, or more than `most`.

    >>> index = index_people(Features(np.eye(6)), np.arange(6) // 2)
    >>> len(draw_people(index, 4, np.random.default_rng(0)))
    4
    """
    order = rng.permutation(len(index))
    sizes = np.diff(index.offsets)[order]
    reached = np.cumsum(sizes if most is None else np.minimum(sizes, most))
    n_people = max(2, int(np.searchsorted(reached, n_faces, side="left")) + 1)
    return index.faces_of(order[:n_people], most=max(2, n_faces // 2) if most is None else most, rng=rng)


def keep_index(
    features: Features,
    labels: NDArray[np.int64],
    *,
    workdir: Workdir,
    depends_on: dict[str, Any],
    after_block: Callable[[], None] | None = None,
) -> PersonIndex:
    """Return the index from the work folder, or build it and keep it there.

    Parameters
    ----------
    features : Features
        (n, d).
    labels : int64 (n,)
    workdir : Workdir
        With no folder nothing is kept.
    depends_on : dict
        What tells these data from others, for JSON.
    after_block
        As for :func:`index_people`.
    """
    return workdir.stage(
        "people", depends_on, lambda: index_people(features, labels, after_block=after_block), _save_index, _load_index
    )


def link_people(
    index: PersonIndex,
    *,
    workdir: Workdir,
    depends_on: dict[str, Any],
    at_most: int = COMPARED_UP_TO,
    progress: Progress = silent,
) -> PersonIndex:
    """Find the nearest people of each where there are more than `at_most`; the graph is kept in the work folder.

    Examples
    --------
    >>> index = index_people(Features(np.eye(5)), np.arange(5))
    >>> link_people(index, workdir=Workdir(None), depends_on={}, at_most=4).links.shape
    (5, 4)
    """
    if len(index) <= at_most:
        return index
    k = min(_LINKS, len(index) - 1)
    folder = None if workdir.folder is None else workdir.folder / _LINKS_FOLDER
    facts = {**depends_on, "n_people": len(index), "k": k, "recall": _LINKS_RECALL}

    def build() -> KnnGraph:
        centers = Features(_fill_zeros(index.centers))
        return build_knn(centers, k=k, recall=_LINKS_RECALL, folder=folder, facts=facts, progress=progress)

    graph = workdir.stage("people.links", facts, build, save_knn, load_knn)
    if folder is not None:
        remove_scratch(folder)
    return replace(index, links=np.ascontiguousarray(graph.neighbors))


def _fill_zeros(centers: NDArray[np.float32]) -> NDArray[np.float32]:
    """Give faces that cancelled to zero some direction: the kNN graph needs one."""
    empty = np.flatnonzero(~centers.any(axis=1))
    if len(empty) == 0:
        return centers
    filled = centers.copy()
    filled[empty, 0] = 1.0
    return filled


def _save_index(index: PersonIndex, path: Path) -> None:
    """Write the arrays, whole or not at all."""
    arrays: dict[str, NDArray[Any]] = {
        "people": index.people, "offsets": index.offsets, "rows": index.rows, "centers": index.centers,
    }  # fmt: skip
    with replacing(path) as aside, aside.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)


def _load_index(path: Path) -> PersonIndex:
    """Read what :func:`_save_index` wrote."""
    with np.load(path, allow_pickle=False) as arrays:
        return PersonIndex(*(arrays[name] for name in ("people", "offsets", "rows", "centers")))


def _choose_best(values: NDArray[np.float32], n: int) -> NDArray[np.int64]:
    """Return the positions of the n largest values, best first, ties by position."""
    if n >= len(values):
        return np.argsort(-values, kind="stable")
    smallest_kept = np.partition(values, len(values) - n)[len(values) - n]
    above = np.flatnonzero(values > smallest_kept)
    level = np.flatnonzero(values == smallest_kept)[: n - len(above)]
    chosen = np.sort(np.concatenate([above, level]))
    return chosen[np.argsort(-values[chosen], kind="stable")]


def _average_rows(
    features: Features, position: NDArray[np.int32], n_people: int, after_block: Callable[[], None] | None
) -> NDArray[np.float32]:
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
        if after_block is not None:
            after_block()
    return _scale_rows(sums)


def _scale_rows(sums: NDArray[np.float32]) -> NDArray[np.float32]:
    """Scale rows to length one; a sum that cancelled to zero has no direction and stays zero."""
    lengths: NDArray[Any] = np.sqrt(np.einsum("pd,pd->p", sums, sums))[:, None]
    sums /= np.maximum(lengths, np.finfo(np.float32).tiny)
    return sums
