"""Corrections: what people changed in a clustering, forwards and backwards.

In: the labels of a file, and changes. Out: Book, the present state (label of every face, names, answers). A Change
holds what was before and what came after, so taking one back is exact whatever made it. A face that is labelled -1 in
the file is in no cluster: it is left out like one that somebody marked as no face, which is what -1 means in what
`starfc export` and `starfc cluster --constraints` write.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .constraints import LARGEST_LABEL
from .errors import InputError
from .quality import group_faces

NOT_A_FACE = -2
_REGROUP_ABOVE = 500  # clusters in one change from which gathering all anew is cheaper


@dataclass(frozen=True)
class Change:
    """One action, forwards and backwards.

    Attributes
    ----------
    title : str
        What was done, for people.
    faces : int32 (m,)
        Faces that move, each once.
    before, after : int64 (m,)
        Their labels; NOT_A_FACE (-2) is a label too.
    names : tuple of (label, name before, name after)
        None is no name.
    answers : tuple of (face, face, answer before, answer after)
        True: the same person, False: not, None: nobody said; the smaller face first.
    level : (strictness before, strictness after), optional
        None is the one the clusters were made with.
    skipped : tuple of (face, face, skipped before, skipped after)
        Questions that were left open on purpose; the smaller face first.
    kept : tuple of (face, name before, name after)
        Names that wait at a face while another strictness has no cluster of their own for them.
    moved : tuple of (face, moved before, moved after)
        Faces that somebody took out of their cluster, each by itself.
    """

    title: str
    faces: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    before: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    after: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    names: tuple[tuple[int, str | None, str | None], ...] = ()
    answers: tuple[tuple[int, int, bool | None, bool | None], ...] = ()
    level: tuple[float | None, float | None] | None = None
    skipped: tuple[tuple[int, int, bool, bool], ...] = ()
    kept: tuple[tuple[int, str | None, str | None], ...] = ()
    moved: tuple[tuple[int, bool, bool], ...] = ()

    def list_labels(self, most: int) -> list[int]:
        """Return the labels of the clusters it touches, ascending, at most so many."""
        named = np.array([label for label, _, _ in self.names], dtype=np.int64)
        return [int(label) for label in np.unique(np.concatenate((self.before, self.after, named)))[:most]]

    def reverse(self) -> Change:
        """Return the change that takes this one back."""
        names = tuple((label, after, before) for label, before, after in self.names)
        answers = tuple((i, j, after, before) for i, j, before, after in self.answers)
        level = None if self.level is None else (self.level[1], self.level[0])
        skipped = tuple((i, j, after, before) for i, j, before, after in self.skipped)
        kept = tuple((face, after, before) for face, before, after in self.kept)
        moved = tuple((face, after, before) for face, before, after in self.moved)
        return Change(self.title, self.faces, self.after, self.before, names, answers, level, skipped, kept, moved)


def number_alone(labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """Give every face that is labelled -1 a cluster of its own, after all others.

    >>> number_alone(np.array([3, -1, -1]))
    array([3, 4, 5])
    """
    alone = labels == -1
    numbered = np.array(labels, dtype=np.int64)
    numbered[alone] = labels.max(initial=-1) + 1 + np.arange(int(alone.sum()))
    return numbered


class Book:
    """The present state: who is where, who is called what, and which questions were answered.

    >>> book = Book(np.array([0, 0, 1, -1]))
    >>> book.apply(Change("merge", np.array([2], np.int32), np.array([1]), np.array([0])))
    >>> book.members(0).tolist(), book.members(1).tolist(), book.members(NOT_A_FACE).tolist()
    ([0, 1, 2], [], [3])
    """

    def __init__(self, labels: NDArray[np.int64]) -> None:
        if (highest := int(np.max(labels, initial=-1))) >= LARGEST_LABEL:
            raise InputError(f"label {highest} is too large; labels must be below {LARGEST_LABEL}, number people anew")
        self.labels = np.where(np.asarray(labels) == -1, np.int64(NOT_A_FACE), labels).astype(np.int64)
        self.names: dict[int, str] = {}
        self.kept: dict[int, str] = {}  # names by a face of their person, for when the strictness is changed
        self.answers: dict[tuple[int, int], bool] = {}
        self.skipped: dict[tuple[int, int], bool] = {}  # questions left open, in the order of skipping
        self.moved: dict[int, bool] = {}  # faces that were taken out of their cluster
        self.level: float | None = None  # strictness, where it was changed
        self.next_label = int(self.labels.max(initial=-1)) + 1  # grows only: a label is never given twice
        self.touched: set[int] = set()  # labels that a change has mentioned, other strictness aside
        self._regroup()

    def members(self, label: int) -> NDArray[np.int32]:
        """Return the faces of a cluster in row order; empty if there is none of that label."""
        if label in self._moved:
            return self._moved[label]
        place = int(np.searchsorted(self._ids, label))
        if place < len(self._ids) and self._ids[place] == label:
            return self._groups.members(place)
        return np.empty(0, dtype=np.int32)

    def apply(self, change: Change) -> None:
        """Make a change; it must fit the present state."""
        if not np.array_equal(self.labels[change.faces], change.before):
            raise InputError(f"the change '{change.title}' does not fit the present clusters; load the page again")
        self._move(change)
        for label, _, name in change.names:
            _set(self.names, label, name)
        for first, second, _, answer in change.answers:
            _set(self.answers, (first, second), answer)
        for first, second, _, skipped in change.skipped:
            _set(self.skipped, (first, second), skipped or None)
        for face, _, name in change.kept:
            _set(self.kept, face, name)
        for face, _, moved in change.moved:
            _set(self.moved, face, moved or None)
        if change.level is not None:
            self.level = change.level[1]

    def _move(self, change: Change) -> None:
        """Give the faces their new labels and gather the clusters that they leave and enter."""
        left, entered = np.unique(change.before), np.unique(change.after)
        self.labels[change.faces] = change.after
        if change.level is None:
            self.touched.update(left.tolist(), entered.tolist())
        self.next_label = max(self.next_label, int(entered.max(initial=-1)) + 1)
        if len(left) + len(entered) > _REGROUP_ABOVE:
            self._regroup()
            return
        for label in left.tolist():
            self._moved[label] = np.setdiff1d(self.members(label), change.faces[change.before == label])
        for label in entered.tolist():
            self._moved[label] = np.union1d(self.members(label), change.faces[change.after == label])

    def _regroup(self) -> None:
        """Gather the faces of all clusters anew."""
        self._groups = group_faces(self.labels)
        self._ids = self._groups.ids[self._groups.ids >= 0]  # what is no face comes after these
        self._moved: dict[int, NDArray[np.int32]] = {  # clusters that have changed since
            NOT_A_FACE: np.flatnonzero(self.labels == NOT_A_FACE).astype(np.int32)
        }


def _set(table: dict[Any, Any], key: Any, value: Any) -> None:  # noqa: ANN401
    """Set or remove an entry."""
    if value is None:
        table.pop(key, None)
    else:
        table[key] = value
