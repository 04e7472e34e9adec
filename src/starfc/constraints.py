"""Constraints: what people said about pairs of faces, honoured when the collection is clustered again.

In: labels and the pruned graph they were read off, and must-link and cannot-link pairs. Out: labels that honour every
pair, with the labels that people were known by. Clusters that a must-link joins are merged. Where a merged cluster then
holds a cannot-link, it is taken apart and grown again from its must-linked groups along its own edges, the strongest
first, refusing every edge that would join two faces that must stay apart (Kruskal's tree with refusals); all other
clusters stay bit for bit as they are. A face that was moved (told apart from its own cluster, and said to be moved or
linked to another cluster) takes nobody along: its edges in its own cluster do not count, and those it leaves stay
together.

Files: `.json` (what `starfc export --constraints` writes: pairs, non-faces, labels and names), or `.csv` with a line
`must,FACE,FACE` or `cannot,FACE,FACE` per pair.
"""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from .atomic import write_json
from .errors import InputError
from .features import reading
from .names import clean_name
from .partition import find_root
from .prune import EdgeGraph

_FORMAT = "starfc-constraints-1"
LARGEST_LABEL = 1 << 62  # beyond it there might be no number left for a new person


def _no_pairs() -> NDArray[np.int64]:
    return np.empty((0, 2), dtype=np.int64)


@dataclass(frozen=True)
class Person:
    """Someone with a lasting label and perhaps a name; `face` says which cluster is meant."""

    label: int
    face: int
    name: str | None = None


@dataclass(frozen=True)
class Constraints:
    """What is known about faces.

    Attributes
    ----------
    must, cannot : int64 (m, 2)
        Pairs of faces of one person, and of two.
    not_faces : int64 (k,)
        Faces that are none; their label becomes -1.
    people : tuple of Person
        Labels to keep.
    moved : int64 (m,)
        Faces that were taken out of a cluster by themselves.
    """

    must: NDArray[np.int64] = field(default_factory=_no_pairs)
    cannot: NDArray[np.int64] = field(default_factory=_no_pairs)
    not_faces: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    people: tuple[Person, ...] = ()
    moved: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))

    def as_dict(self) -> dict[str, Any]:
        """Return what is written to a `.json`."""
        return {
            "format": _FORMAT,
            "must": self.must.tolist(),
            "cannot": self.cannot.tolist(),
            "not_faces": self.not_faces.tolist(),
            "people": [{"label": who.label, "face": who.face, "name": who.name} for who in self.people],
            "moved": self.moved.tolist(),
        }


def load_constraints(path: str | Path, *, n_faces: int) -> Constraints:
    r"""Read constraints on n faces.

    >>> path = getfixture("tmp_path") / "pairs.csv"
    >>> _ = path.write_text("must,0,1\ncannot,1,2\n")
    >>> load_constraints(path, n_faces=3).cannot.tolist()
    [[1, 2]]
    """
    path = Path(path)
    readers = {".json": _read_json, ".csv": _read_csv}
    if path.suffix.lower() not in readers:
        raise InputError(f"constraints {path} end in '{path.suffix}'; they must be .json or .csv")
    with reading(path):
        try:
            constraints = readers[path.suffix.lower()](path)
        except (KeyError, TypeError) as error:
            raise InputError(f"{path} is no file of constraints ({error}); write one with starfc export") from error
    require_faces(constraints, n_faces, str(path))
    return constraints


def save_constraints(constraints: Constraints, path: str | Path) -> None:
    """Write constraints as `.json`, whole or not at all."""
    path = Path(path)
    if path.suffix.lower() != ".json":
        raise InputError(f"constraints are written as .json, not '{path.suffix}'; choose another name")
    write_json(path, constraints.as_dict())


def require_faces(constraints: Constraints, n_faces: int, source: str = "the constraints") -> None:
    """Refuse constraints about faces that are not there, or that contradict each other."""
    named = np.concatenate(
        (
            constraints.must.ravel(),
            constraints.cannot.ravel(),
            constraints.not_faces,
            [who.face for who in constraints.people],
            constraints.moved,
        )
    )
    outside = named[(named < 0) | (named >= n_faces)]
    if len(outside):
        raise InputError(f"{source} name face {int(outside[0])}; faces go from 0 to {n_faces - 1}")
    groups = _join(n_faces, constraints.must)
    for first, second in constraints.cannot.tolist():
        if groups[first] == groups[second]:
            raise InputError(
                f"{source} say that faces {first} and {second} are two people, and by way of 'must' pairs that they are"
                " one; remove one of these"
            )


def apply_constraints(labels: NDArray[np.int64], graph: EdgeGraph, constraints: Constraints) -> NDArray[np.int64]:
    """Change a clustering as little as the constraints demand.

    Parameters
    ----------
    labels : int64 (n,)
        Clusters; 0 and up.
    graph : EdgeGraph
        The pruned graph of n faces they were read off.
    constraints : Constraints

    Returns
    -------
    int64 (n,)
        Known people have their labels; the others are numbered by first appearance with what is left; -1 is no face.

    Examples
    --------
    >>> graph = EdgeGraph(np.array([0, 1, 2, 3, 3]), np.array([1, 2, 3], np.int32), np.array([.9, .5, .8], np.float32))
    >>> told = Constraints(cannot=np.array([[0, 3]]))
    >>> apply_constraints(np.zeros(4, np.int64), graph, told).tolist()
    [0, 0, 1, 1]
    """
    require_faces(constraints, len(labels))
    _, codes = np.unique(labels, return_inverse=True)
    n_clusters = int(codes.max(initial=-1)) + 1
    merged = _join(n_clusters, codes[constraints.must])[codes]
    broken = merged[constraints.cannot[:, 0]] == merged[constraints.cannot[:, 1]]
    again = np.isin(merged, np.unique(merged[constraints.cannot[broken, 0]]))
    result = merged.astype(np.int64)
    if again.any():
        result[again] = len(labels) + _grow(graph, codes, constraints, again)[again]
    return _keep_labels(result, constraints)


def keep_ids(labels: NDArray[np.int64], previous: NDArray[np.int64]) -> NDArray[np.int64]:
    """Rename clusters after those of an earlier clustering of the same faces, by how many faces they share.

    The pair that shares most comes first; every label is given once. New clusters get labels that were not in use.

    >>> keep_ids(np.array([0, 0, 1, 1, 1]), np.array([7, 7, 7, 3, 3]))
    array([7, 7, 3, 3, 3])
    """
    values, codes = np.unique(labels, return_inverse=True)
    known, owners = np.unique(previous, return_inverse=True)
    both = (labels >= 0) & (previous >= 0)
    pairs, counts = np.unique(codes[both] * len(known) + owners[both], return_counts=True)
    pairs = pairs[np.argsort(-counts, kind="stable")]  # equal counts in the order of cluster, then label
    chosen = _match_pairs(pairs // len(known), pairs % len(known), len(values), len(known))
    renamed = np.where(chosen >= 0, known[chosen], -1)
    unnamed = (chosen < 0) & (values >= 0)
    renamed[unnamed] = int(previous.max(initial=-1)) + 1 + np.arange(int(unnamed.sum()))
    return np.asarray(renamed[codes])


def _grow(
    graph: EdgeGraph, codes: NDArray[np.int64], constraints: Constraints, again: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Grow the marked faces together along their edges, strongest first; return the root of each face."""
    sources = np.repeat(np.arange(graph.n_nodes, dtype=np.int32), np.diff(graph.offsets))
    moved = _find_moved(codes, constraints)
    inside = again[sources] & (codes[sources] == codes[graph.targets])
    inside &= ~moved[sources] & ~moved[graph.targets]
    sources, targets, scores = sources[inside], graph.targets[inside], graph.scores[inside]
    order = np.lexsort((targets, sources, -scores))
    held = _hold_together(codes, constraints, np.flatnonzero(again & ~moved), np.unique(codes[again & moved]))
    roots = _join(graph.n_nodes, np.concatenate((constraints.must, held))).astype(np.int32)
    cannot = constraints.cannot[again[constraints.cannot].all(axis=1)]
    return np.asarray(_grow_trees(roots, sources[order], targets[order], cannot), dtype=np.int64)


def _hold_together(
    codes: NDArray[np.int64], constraints: Constraints, left: NDArray[np.int64], emptied: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return pairs that keep those together who are left in clusters that others were moved out of, int64 (m, 2).

    Their only link may have been who is gone. Where somebody was said to be two people nevertheless, they get none.
    """
    left = left[np.isin(codes[left], emptied)]
    _, first, place = np.unique(codes[left], return_index=True, return_inverse=True)
    pairs = np.column_stack((left[first[place]], left)).astype(np.int64)
    while len(pairs):
        groups = _join(len(codes), np.concatenate((constraints.must, pairs)))
        ends = groups[constraints.cannot]
        broken = ends[ends[:, 0] == ends[:, 1], 0]
        if not len(broken):
            break
        pairs = pairs[~np.isin(groups[pairs[:, 0]], broken)]
    return pairs


def _find_moved(codes: NDArray[np.int64], constraints: Constraints) -> NDArray[np.bool_]:
    """Mark the faces that do not belong to their own cluster, and to another or by themselves, bool (n,)."""
    marks = []
    for pairs, want_same in ((constraints.must, False), (constraints.cannot, True)):
        marked = np.zeros(len(codes), dtype=np.bool_)
        marked[pairs[(codes[pairs[:, 0]] == codes[pairs[:, 1]]) == want_same]] = True
        marks.append(marked)
    marks[0][constraints.moved] = True
    return marks[0] & marks[1]


def _keep_labels(result: NDArray[np.int64], constraints: Constraints) -> NDArray[np.int64]:
    """Give known people their labels, everyone else the lowest free ones in order of appearance."""
    kept = np.ones(len(result), dtype=bool)
    kept[constraints.not_faces] = False
    values, first, codes = np.unique(result[kept], return_index=True, return_inverse=True)
    labels = np.full(len(values), -1, dtype=np.int64)
    taken: set[int] = set()
    for person in constraints.people:
        if not kept[person.face]:
            continue
        place = int(np.searchsorted(values, result[person.face]))
        if labels[place] < 0 and person.label not in taken:
            labels[place] = person.label
            taken.add(person.label)
    unnamed = np.flatnonzero(labels < 0)
    unnamed = unnamed[np.argsort(first[unnamed])]
    numbers = np.setdiff1d(np.arange(len(unnamed) + len(taken)), np.fromiter(taken, np.int64, len(taken)))
    labels[unnamed] = numbers[: len(unnamed)]
    out = np.full(len(result), -1, dtype=np.int64)
    out[kept] = labels[codes]
    return out


def _join(n: int, pairs: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the smallest number that each of 0..n-1 is joined with by the pairs."""
    return np.asarray(_join_pairs(n, np.ascontiguousarray(pairs, dtype=np.int64)), dtype=np.int64)


def _read_json(path: Path) -> Constraints:
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise InputError(f"{path} is no file of constraints (format {_FORMAT}); write one with starfc export")
    content.setdefault("moved", [])  # not in older files
    for key in ("must", "cannot", "not_faces", "people", "moved"):
        if not isinstance(content[key], list):
            raise InputError(f"{path} has '{key}' that is no list; write one with starfc export")
    return Constraints(
        _as_pairs(content["must"], path),
        _as_pairs(content["cannot"], path),
        np.array([_as_whole(face, "face", path) for face in content["not_faces"]], dtype=np.int64),
        tuple(_read_person(who, path) for who in content["people"]),
        np.array([_as_whole(face, "face", path) for face in content["moved"]], dtype=np.int64),
    )


def _read_person(entry: Any, path: Path) -> Person:  # noqa: ANN401
    if not isinstance(entry, dict):
        raise InputError(f"{path} has a person '{str(entry)[:40]}'; one is a label, a face and a name")
    name = entry["name"]
    if name is not None and not isinstance(name, str):
        raise InputError(f"{path} has the name '{str(name)[:40]}'; a name must be a text, or null for none")
    try:
        clean = clean_name(name or "") or None
    except InputError as error:
        raise InputError(f"{path} has the name {ascii(name)[:40]}: {error}") from error
    return Person(_as_whole(entry["label"], "label", path), _as_whole(entry["face"], "face", path), clean)


def _read_csv(path: Path) -> Constraints:
    found: dict[str, list[tuple[int, int]]] = {"must": [], "cannot": []}
    with path.open(newline="", encoding="utf-8-sig") as file:
        for number, line in enumerate(csv.reader(file), start=1):
            if not line:
                continue
            kind, numbers = line[0].strip().lower(), [text.strip() for text in line[1:3]]
            if number == 1 and kind not in found and len(numbers) == 2 and not any(map(str.isdecimal, numbers)):
                continue  # a header
            right = len(numbers) == 2 and all(text.isdecimal() and len(text) < 20 for text in numbers)
            if kind not in found or not right:
                raise InputError(
                    f"{path} line {number} is '{','.join(line)}'; write must,FACE,FACE or cannot,FACE,FACE"
                )
            found[kind].append((int(numbers[0]), int(numbers[1])))
    return Constraints(_as_pairs(found["must"], path), _as_pairs(found["cannot"], path))


def _as_pairs(values: Any, path: Path) -> NDArray[np.int64]:  # noqa: ANN401
    for pair in values:
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise InputError(f"{path} has the pair '{str(pair)[:40]}'; a pair is two face numbers")
    flat = [_as_whole(face, "face", path) for pair in values for face in pair]
    return np.array(flat, dtype=np.int64).reshape(-1, 2)


def _as_whole(value: Any, what: str, path: Path) -> int:  # noqa: ANN401
    """Return a whole number as it is; what only looks like one (true, 1.0, "1") is somebody's mistake."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < LARGEST_LABEL:
        shown = json.dumps(value)[:40]
        raise InputError(f"{path} has {what} {shown}; it must be a whole number from 0 to {LARGEST_LABEL - 1}")
    return value


@njit(cache=True, nogil=True)
def _match_pairs(first, second, n_first, n_second):  # type: ignore[no-untyped-def]
    """Give each of the first its partner, pair by pair, where both are free; -1 for those who get none."""
    chosen = np.full(n_first, -1, dtype=np.int64)
    taken = np.zeros(n_second, dtype=np.bool_)
    for p in range(len(first)):
        if chosen[first[p]] < 0 and not taken[second[p]]:
            chosen[first[p]] = second[p]
            taken[second[p]] = True
    return chosen


@njit(cache=True, nogil=True)
def _join_pairs(n, pairs):  # type: ignore[no-untyped-def]
    """Union-find over pairs; the smallest number of a tree is its root."""
    parent = np.arange(n)
    for p in range(len(pairs)):
        a, b = find_root(parent, pairs[p, 0]), find_root(parent, pairs[p, 1])
        if a < b:
            parent[b] = a
        elif b < a:
            parent[a] = b
    for i in range(n):
        parent[i] = find_root(parent, i)
    return parent


@njit(cache=True, nogil=True)
def _grow_trees(parent, sources, targets, cannot):  # type: ignore[no-untyped-def]
    """Join the ends of each edge in turn unless that would join a pair that must stay apart."""
    for e in range(len(sources)):
        a, b = find_root(parent, sources[e]), find_root(parent, targets[e])
        if a == b:
            continue
        allowed = True
        for p in range(len(cannot)):
            x, y = find_root(parent, cannot[p, 0]), find_root(parent, cannot[p, 1])
            if (x == a and y == b) or (x == b and y == a):
                allowed = False
                break
        if allowed:
            parent[max(a, b)] = min(a, b)
    for i in range(len(parent)):
        parent[i] = find_root(parent, i)
    return parent
