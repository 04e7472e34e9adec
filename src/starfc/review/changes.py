"""Changes: what each correction does to labels, names and answers, as a Change that can be taken back.

In: the book and the table as they are. Out: a Change, nothing is made yet. Every correction also says something about
pairs of faces, which later runs honour: to merge is to say that the two central faces are one person, to move a face is
to say that it belongs with the centre of the one and not of the other. What contradicts it is withdrawn.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ..corrections import NOT_A_FACE, Book, Change
from ..errors import InputError
from ..names import clean_name
from .table import ClusterTable

_MOST_PAIRS = 10_000  # faces of one move that get pairs of their own
Answers = tuple[tuple[int, int, bool | None, bool | None], ...]


def require_cluster(book: Book, label: int) -> NDArray[np.int32]:
    """Return the faces of a cluster, refusing a label that has none."""
    members = book.members(label)
    if not len(members):
        raise InputError(f"there is no cluster {label}; load the page again")
    return members


def find_central(book: Book, table: ClusterTable, label: int) -> int:
    """Return the face of a cluster that stands for it."""
    members = require_cluster(book, label)
    return int(members[np.argmax(table.closeness[members])])


def merge_clusters(book: Book, table: ClusterTable, labels: Sequence[int]) -> Change:
    """Merge clusters into the largest of them, named ones first."""
    distinct = sorted(set(labels))
    if len(distinct) < 2:
        raise InputError(f"a merge needs two clusters or more, not {len(distinct)}; select another one")
    members = {label: require_cluster(book, label) for label in distinct}
    if min(distinct) < 0:
        raise InputError("what is no face cannot be merged; move it to a person")
    target = max(distinct, key=lambda label: (label in book.names, len(members[label]), -label))
    others = [label for label in distinct if label != target]
    faces = np.concatenate([members[label] for label in others])
    names = tuple((label, book.names[label], None) for label in others if label in book.names)
    centre = find_central(book, table, target)
    pairs = {(find_central(book, table, label), centre): True for label in others}
    answers = _say(book, pairs, _find_contradictions(book, distinct))
    title = f"merged {len(distinct)} people into {_call(book, target)}"
    return Change(title, faces, book.labels[faces], np.full(len(faces), target), names, answers)


def move_faces(book: Book, table: ClusterTable, faces: Sequence[int], target: int | None) -> Change:
    """Move faces to another cluster, or to a new one of their own."""
    moved = _check_faces(book, faces)
    label = book.next_label if target is None else target
    if target is not None:
        require_cluster(book, target)
        moved = moved[book.labels[moved] != target]
    if not len(moved):
        raise InputError("these faces are there already; choose another person")
    sources = [number for number in np.unique(book.labels[moved]).tolist() if number >= 0]
    anchor = int(moved[0]) if target is None else find_central(book, table, target)
    pairs: dict[tuple[int, int], bool] = {(int(face), anchor): True for face in moved[:_MOST_PAIRS] if face != anchor}
    for source in sources:
        left = np.setdiff1d(book.members(source), moved)
        if len(left):
            centre = int(left[np.argmax(table.closeness[left])])
            mine = moved[book.labels[moved] == source][:_MOST_PAIRS]
            pairs |= {(int(face), centre): False for face in mine}
    where = "a new person" if target is None else _call(book, label)
    title = f"moved {len(moved)} face{'s' * (len(moved) > 1)} to {where}"
    names = tuple(
        (source, book.names[source], None)
        for source in sources
        if source in book.names and not len(np.setdiff1d(book.members(source), moved))
    )
    taken_out = tuple((face, face in book.moved, True) for face in moved[:_MOST_PAIRS].tolist())
    change = Change(title, moved, book.labels[moved], np.full(len(moved), label), names, _say(book, pairs))
    return replace(change, moved=taken_out)


def mark_not_faces(book: Book, faces: Sequence[int]) -> Change:
    """Take faces out because they are none."""
    moved = _check_faces(book, faces)
    moved = moved[book.labels[moved] != NOT_A_FACE]
    if not len(moved):
        raise InputError("these are marked as no faces already; choose others")
    title = f"marked {len(moved)} as not a face"
    return Change(title, moved, book.labels[moved], np.full(len(moved), NOT_A_FACE))


def part_faces(book: Book, faces: Sequence[int] | None) -> Change:
    """Make everyone of these faces, which were left out, a person of their own; None is all of them."""
    moved = book.members(NOT_A_FACE) if faces is None else _check_faces(book, faces)
    moved = moved[book.labels[moved] == NOT_A_FACE]
    if not len(moved):
        raise InputError("none of these faces was left out; choose others")
    title = f"made {len(moved)} left out a person each" if len(moved) > 1 else "made one left out a person"
    after = book.next_label + np.arange(len(moved), dtype=np.int64)
    return Change(title, moved, book.labels[moved], after)


def split_cluster(
    book: Book, table: ClusterTable, label: int, groups: NDArray[np.int64], *, title: str | None = None
) -> Change:
    """Split a cluster into groups (one number per member); the largest keeps label and name."""
    members = require_cluster(book, label)
    numbers, counts = np.unique(groups, return_counts=True)
    if len(numbers) < 2:
        raise InputError(f"cluster {label} does not fall apart; ask for more parts")
    kept = numbers[np.argmax(counts)]
    others = [number for number in numbers.tolist() if number != kept]
    after = np.full(len(members), label, dtype=np.int64)
    for place, number in enumerate(others):
        after[groups == number] = book.next_label + place
    moves = after != label
    centres = [
        int(members[groups == number][np.argmax(table.closeness[members[groups == number]])])
        for number in [int(kept), *others][:12]
    ]
    pairs = dict.fromkeys(itertools.combinations(centres, 2), False)
    said = title or f"split {_call(book, label)} into {len(numbers)}"
    faces = members[moves]
    answers = _say(book, pairs, _find_broken(book, members, groups))
    return Change(said, faces, book.labels[faces], after[moves], (), answers)


def name_cluster(book: Book, label: int, name: str) -> Change:
    """Name a person, or take the name away with an empty one."""
    require_cluster(book, label)
    if label < 0:
        raise InputError("what is no face has no name; move it to a person first")
    clean = clean_name(name)
    title = f"named person {label} '{clean}'" if clean else f"took the name of person {label} away"
    return Change(title, names=((label, book.names.get(label), clean or None),))


def answer_only(book: Book, first: int, second: int, same: bool) -> Change:
    """Write an answer down that changes no cluster."""
    title = f"said that faces {first} and {second} are {'one person' if same else 'two people'}"
    return Change(title, answers=_say(book, {(first, second): same}))


def skip_question(book: Book, first: int, second: int) -> Change:
    """Leave a question open, which changes no cluster and says nothing about anyone."""
    pair = (min(first, second), max(first, second))
    return Change("skipped a question", skipped=((*pair, pair in book.skipped, True),))


def with_answer(change: Change, book: Book, first: int, second: int, same: bool) -> Change:
    """Return the change with one more answer, unless it has that pair already."""
    key = (min(first, second), max(first, second))
    kept = tuple(entry for entry in change.answers if entry[:2] != key)
    answers = (*kept, (*key, book.answers.get(key), same))
    return replace(change, answers=answers)


def relabel(book: Book, table: ClusterTable, labels: NDArray[np.int64], *, level: float) -> Change:
    """Make the change that leads to the given labels, those of another strictness; names stay with their people.

    Every name waits at a face of its person. A cluster of one person has that name; where two named people are in one
    cluster, it has the name of the larger, and the other's comes back when they are apart again.
    """
    faces = np.flatnonzero(book.labels != labels).astype(np.int32)
    kept = _keep_names(book, table, labels)
    rank = {face: len(book.members(label)) for face, label in kept.items() if label is not None}
    named: dict[int, str] = {}
    for face in sorted(kept, key=lambda one: (int(labels[one]) != kept[one], -rank.get(one, 0), one)):
        if labels[face] >= 0:
            named.setdefault(int(labels[face]), _name_at(book, face, kept[face]))
    names = tuple(
        (label, book.names.get(label), named.get(label))
        for label in sorted({*book.names, *named})
        if book.names.get(label) != named.get(label)
    )
    waits = tuple(
        (face, book.kept.get(face), _name_at(book, face, label))
        for face, label in kept.items()
        if book.kept.get(face) != _name_at(book, face, label)
    )
    title = f"strictness {level:.3f}"
    change = Change(title, faces, book.labels[faces], labels[faces], names, level=(book.level, level))
    return replace(change, kept=waits)


def _keep_names(book: Book, table: ClusterTable, labels: NDArray[np.int64]) -> dict[int, int | None]:
    """Return a face for every name, with the label that has the name now; None if it waits."""
    kept: dict[int, int | None] = {}
    for face, name in book.kept.items():
        label = int(book.labels[face])
        kept[face] = label if book.names.get(label) == name else None
    shown = {label for label in kept.values() if label is not None}
    for label in book.names:
        members = book.members(label)
        if label not in shown and len(members):
            staying = members[labels[members] == label]
            among = staying if len(staying) else members
            kept[int(among[np.argmax(table.closeness[among])])] = label
    return kept


def _name_at(book: Book, face: int, label: int | None) -> str:
    """Return the name that waits at a face, or that its cluster has."""
    return book.kept[face] if label is None else book.names[label]


def forget_kept(book: Book, change: Change) -> Change:
    """Let names no longer wait at faces that somebody moves, or of people whose name somebody changes."""
    moved = set(change.faces.tolist()) if len(change.faces) else set()
    renamed = {label: before for label, before, _ in change.names}
    gone = [face for face, name in book.kept.items() if face in moved or renamed.get(int(book.labels[face])) == name]
    return replace(change, kept=tuple((face, book.kept[face], None) for face in gone)) if gone else change


def _check_faces(book: Book, faces: Sequence[int]) -> NDArray[np.int32]:
    """Return the faces as a sorted array, refusing numbers that are none."""
    if not faces:
        raise InputError("no face is selected; select one or more")
    wrong = [face for face in faces if not 0 <= face < len(book.labels)]
    if wrong:
        raise InputError(f"there is no face {wrong[0]}; faces go from 0 to {len(book.labels) - 1}")
    return np.unique(np.array(faces, dtype=np.int32))


def _find_contradictions(book: Book, labels: Sequence[int]) -> list[tuple[int, int]]:
    """Return the pairs that were said to be two people and come together when the labels are merged."""
    wanted = set(labels)
    return [
        pair
        for pair, same in book.answers.items()
        if not same and int(book.labels[pair[0]]) in wanted and int(book.labels[pair[1]]) in wanted
    ]


def _find_broken(book: Book, members: NDArray[np.int32], groups: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Return the pairs that were said to be one person and come apart when the members are split."""
    place = {int(face): int(group) for face, group in zip(members, groups, strict=True)}
    return [
        pair
        for pair, same in book.answers.items()
        if same and pair[0] in place and pair[1] in place and place[pair[0]] != place[pair[1]]
    ]


def _say(book: Book, pairs: dict[tuple[int, int], bool], withdrawn: Iterable[tuple[int, int]] = ()) -> Answers:
    """Return the entries that set the given answers and withdraw others, each pair once, the smaller face first."""
    entries: dict[tuple[int, int], bool | None] = dict.fromkeys(withdrawn)
    entries |= {(min(pair), max(pair)): same for pair, same in pairs.items() if pair[0] != pair[1]}
    return tuple((i, j, book.answers.get((i, j)), same) for (i, j), same in entries.items())


def _call(book: Book, label: int) -> str:
    return f"'{book.names[label]}'" if label in book.names else f"person {label}"
