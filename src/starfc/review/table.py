"""Table: the figures of every cluster, kept up to date while clusters change.

In: Features, the edges above a floor, labels. Out: one slot per cluster (label, size, cohesion, confidence, sum of
rows) and per face its closeness and confidence. A correction touches few clusters: only their slots are computed
again, from the rows of their faces; new labels get new slots. Sorting and filtering are done on whole columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ..corrections import Book
from ..features import Features
from ..progress import Progress, silent
from ..prune import EdgeGraph
from ..quality import MARGIN_SCALE, average_by_cluster, group_faces, measure_shapes
from .shapes import measure_some_shapes

SORTS = ("size", "doubt", "cohesion", "name", "label")
_SPARE = 4096
_GIANT = 20_000  # faces of a cluster that is not read in one piece
_AT_ONCE_ABOVE = 200  # clusters that are cheaper to compute together than one by one


@dataclass(frozen=True)
class Filter:
    """What the wall shows; None is no limit."""

    sort: str = "size"
    search: str = ""
    min_size: int | None = None
    max_size: int | None = None
    max_confidence: float | None = None
    named: bool | None = None


class ClusterTable:
    """Figures of all clusters of a book.

    Attributes
    ----------
    labels, sizes, cohesion, confidence, sums : arrays (n_slots, ...)
        Of each slot; a slot of size 0 is not in use.
    closeness, face_confidence : float32 (n,)
        Of each face.
    """

    def __init__(
        self,
        features: Features,
        graph: EdgeGraph,
        book: Book,
        *,
        floor: float,
        tau1: float,
        progress: Progress = silent,
    ) -> None:
        self._features, self._graph, self._book, self._progress = features, graph, book, progress
        self._floor, self._tau1 = np.float32(floor), np.float32(tau1)
        self.version = 0
        self.rebuild()

    def rebuild(self) -> None:
        """Compute everything from the beginning: two passes over the features."""
        labels = self._book.labels
        hidden = labels < 0
        # Faces that are none are gathered in a last slot that is never shown.
        groups = group_faces(np.where(hidden, labels.max(initial=0) + 1, labels))
        shapes = measure_shapes(self._features, groups, progress=self._progress)
        self.face_confidence = self._judge(np.arange(len(labels), dtype=np.int32))
        self.closeness = shapes.closeness
        n_shown = groups.n_clusters - int(hidden.any())
        self.n_slots = n_shown
        self._sorted_labels = groups.ids[:n_shown]
        self._added: dict[int, int] = {}

        def with_spare(values: NDArray[Any]) -> NDArray[Any]:
            spare = np.zeros((_SPARE, *values.shape[1:]), dtype=values.dtype)
            return np.concatenate((values[:n_shown], spare))

        self.labels = with_spare(groups.ids)
        self.sizes = with_spare(groups.sizes)
        self.cohesion = with_spare(shapes.cohesion)
        self.confidence = with_spare(average_by_cluster(self.face_confidence, groups))
        self.sums = with_spare(shapes.sums)
        self.version += 1

    def refresh(self, labels: NDArray[np.int64]) -> None:
        """Compute the given clusters again; labels ascend."""
        wanted = labels[labels >= 0]
        if len(wanted) > _AT_ONCE_ABOVE:
            self._refresh_many(wanted)
        else:
            for label in wanted.tolist():
                self._refresh_one(label)
        self.version += 1

    def find(self, label: int) -> int:
        """Return the slot of a label, -1 if there is none."""
        if label in self._added:
            return self._added[label]
        place = int(np.searchsorted(self._sorted_labels, label))
        return place if place < len(self._sorted_labels) and self._sorted_labels[place] == label else -1

    def find_all(self, labels: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the slots of many labels, which must all be there or negative (slot -1)."""
        places = np.searchsorted(self._sorted_labels, labels)
        known = places < len(self._sorted_labels)
        known[known] = self._sorted_labels[places[known]] == labels[known]
        out = np.where(known, places, -1)
        for row in np.flatnonzero(~known):
            out[row] = self._added.get(int(labels[row]), -1)
        return np.asarray(out, dtype=np.int64)

    def select(self, wanted: Filter) -> NDArray[np.int64]:
        """Return the slots that pass the filter, in the order asked for."""
        used = slice(0, self.n_slots)
        passing = self.sizes[used] > 0
        if wanted.min_size is not None:
            passing &= self.sizes[used] >= wanted.min_size
        if wanted.max_size is not None:
            passing &= self.sizes[used] <= wanted.max_size
        if wanted.max_confidence is not None:
            passing &= self.confidence[used] <= wanted.max_confidence
        slots = np.flatnonzero(passing)
        if wanted.named is not None or wanted.search:
            slots = slots[self._match_names(slots, wanted)]
        return slots[self._order(slots, wanted.sort)]

    def doubt(self, slots: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return how many faces of each cluster are expected to be elsewhere: size x (1 - confidence)."""
        return np.asarray(self.sizes[slots] * (1.0 - self.confidence[slots]))

    def _match_names(self, slots: NDArray[np.int64], wanted: Filter) -> NDArray[np.bool_]:
        """Tell which slots are named as asked for; a number finds the label too."""
        names = self._book.names
        named = np.isin(self.labels[slots], np.fromiter(names, np.int64, len(names)))
        passing = np.ones(len(slots), dtype=bool) if wanted.named is None else named == wanted.named
        if wanted.search:
            text = wanted.search.casefold()
            hits = [label for label, name in names.items() if text in name.casefold()]
            if text.isdecimal() and len(text) < 19:
                hits.append(int(text))
            passing &= np.isin(self.labels[slots], np.array(hits, dtype=np.int64))
        return passing

    def _order(self, slots: NDArray[np.int64], sort: str) -> NDArray[np.int64]:
        """Return the order of slots; ties by size, then label."""
        label, size = self.labels[slots], -self.sizes[slots]
        if sort == "doubt":
            return np.lexsort((label, size, -self.doubt(slots)))
        if sort == "cohesion":  # the loosest first, faces alone last
            return np.lexsort((label, size, np.nan_to_num(self.cohesion[slots], nan=2.0)))
        if sort == "name":
            names = [self._book.names.get(number, "\U0010ffff").casefold() for number in label.tolist()]
            return np.lexsort((label, size, np.array(names, dtype=str))) if names else np.empty(0, np.int64)
        return np.lexsort((label,)) if sort == "label" else np.lexsort((label, size))

    def _refresh_one(self, label: int) -> None:
        members = self._book.members(label)
        slot = self.find(label)
        if slot < 0:
            slot = self._add_slot(label)
        self.sizes[slot] = len(members)
        if not len(members):
            return
        if len(members) > _GIANT:
            self._refresh_giant(slot, members)
            return
        rows = self._features.take(members)
        total = rows.sum(axis=0, dtype=np.float32)
        square, n = float(total @ total), len(members)
        self.sums[slot] = total
        self.cohesion[slot] = (square - n) / (n * (n - 1)) if n > 1 else np.nan
        along = rows @ total
        rest = np.sqrt(np.maximum(square - 2 * along + 1, 1e-6))
        self.closeness[members] = np.clip((along - 1) / rest, -1, 1) if n > 1 else 1
        self.face_confidence[members] = self._judge(members)
        self.confidence[slot] = self.face_confidence[members].mean()

    def _refresh_giant(self, slot: int, members: NDArray[np.int32]) -> None:
        """Compute a cluster whose rows should not be in memory all at once."""
        groups = group_faces(np.zeros(len(members), dtype=np.int64))
        shapes = measure_some_shapes(self._features, members, groups, progress=self._progress)
        self.sums[slot], self.cohesion[slot] = shapes.sums[0], shapes.cohesion[0]
        self.closeness[members] = shapes.closeness
        self.face_confidence[members] = self._judge(members)
        self.confidence[slot] = self.face_confidence[members].mean()

    def _refresh_many(self, labels: NDArray[np.int64]) -> None:
        """Compute many clusters again, together, and gather the slots in use; `labels` ascend."""
        faces = np.flatnonzero(np.isin(self._book.labels, labels)).astype(np.int32)
        groups = group_faces(self._book.labels[faces])
        old = np.flatnonzero(self.sizes[: self.n_slots] > 0)
        old = old[~np.isin(self.labels[old], labels)]
        merged = np.sort(np.concatenate((self.labels[old], groups.ids)))
        stayed, filled = np.searchsorted(merged, self.labels[old]), np.searchsorted(merged, groups.ids)
        # Column by column, the old one dropped before the next is made: sums are the largest thing there is.
        self.sums = self._extend(self.sums[old], stayed, len(merged))
        shapes = measure_some_shapes(self._features, faces, groups, progress=self._progress)
        self.sums[filled] = shapes.sums
        self.closeness[faces] = shapes.closeness
        self.face_confidence[faces] = self._judge(faces)
        self.cohesion = self._extend(self.cohesion[old], stayed, len(merged))
        self.confidence = self._extend(self.confidence[old], stayed, len(merged))
        self.sizes = self._extend(self.sizes[old], stayed, len(merged))
        self.labels = np.concatenate((merged, np.zeros(_SPARE, dtype=np.int64)))
        self.cohesion[filled], self.sizes[filled] = shapes.cohesion, groups.sizes
        self.confidence[filled] = average_by_cluster(self.face_confidence[faces], groups)
        self.n_slots, self._sorted_labels, self._added = len(merged), merged, {}

    @staticmethod
    def _extend(values: NDArray[Any], places: NDArray[np.int64], count: int) -> NDArray[Any]:
        """Return a column of so many slots and some to spare, with the values at their places."""
        column = np.zeros((count + _SPARE, *values.shape[1:]), dtype=values.dtype)
        column[places] = values
        return column

    def _add_slot(self, label: int) -> int:
        """Take the next free slot, making room where there is none."""
        if self.n_slots == len(self.labels):
            for name in ("labels", "sizes", "cohesion", "confidence", "sums"):
                old = getattr(self, name)
                setattr(self, name, np.concatenate((old, np.zeros((_SPARE, *old.shape[1:]), dtype=old.dtype))))
        slot = self._added[label] = self.n_slots
        self.labels[slot] = label
        self.n_slots += 1
        return slot

    def _judge(self, faces: NDArray[np.int32]) -> NDArray[np.float32]:
        """Return the confidence of the given faces, by the edges above the floor."""
        graph = self._graph
        margins = _measure_margins_of(
            faces, graph.offsets, graph.targets, graph.scores, self._book.labels, self._floor, self._tau1
        )
        return np.asarray(1 / (1 + np.exp(-margins / np.float32(MARGIN_SCALE))), dtype=np.float32)


@njit(cache=True, nogil=True)
def _measure_margins_of(faces, offsets, targets, scores, labels, floor, tau1):  # type: ignore[no-untyped-def]
    """Best score within the cluster (alone in the lists: tau1, or the floor if it has others) minus the best beyond."""
    margins = np.zeros(len(faces), dtype=np.float32)
    for place in range(len(faces)):
        i = faces[place]
        own, rival = floor, floor
        found = False
        for e in range(offsets[i], offsets[i + 1]):
            if labels[targets[e]] == labels[i]:
                own = max(own, scores[e])
                found = True
            else:
                rival = max(rival, scores[e])
        margins[place] = (own if found else tau1) - rival
    return margins
