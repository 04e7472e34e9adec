import json

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from edge_graphs import make_graph
from starfc.constraints import (
    Constraints,
    Person,
    apply_constraints,
    keep_ids,
    load_constraints,
    require_faces,
    save_constraints,
)
from starfc.errors import InputError
from starfc.partition import label_components
from starfc.prune import EdgeGraph

N = 12
pairs = st.lists(st.tuples(st.integers(0, N - 1), st.integers(0, N - 1)), max_size=5)
edges = st.lists(
    st.tuples(st.integers(0, N - 1), st.integers(0, N - 1), st.sampled_from([0.3, 0.5, 0.7, 0.9])), max_size=30
)


def as_pairs(values):
    return np.array(values, dtype=np.int64).reshape(-1, 2)


def join(groups, wanted, cannot=()):
    """Join the groups of each pair in turn, unless that joins a pair that must stay apart."""
    for first, second in wanted:
        one = next(group for group in groups if first in group)
        other = next(group for group in groups if second in group)
        forbidden = any((a in one and b in other) or (b in one and a in other) for a, b in cannot)
        if one is not other and not forbidden:
            groups.remove(other)
            one |= other


def grow_slowly(graph, labels, must, cannot):
    """Do the same with sets: groups of faces, edges by descending score, refusing what the pairs forbid."""
    clusters = {label: set(np.flatnonzero(labels == label).tolist()) for label in set(labels.tolist())}
    sent = {face for pair in must for face in pair if labels[pair[0]] != labels[pair[1]]}
    moved = sent & {face for pair in cannot for face in pair if labels[pair[0]] == labels[pair[1]]}

    merged = [set(group) for group in clusters.values()]
    join(merged, must)
    result = []
    for group in merged:
        if not any(first in group and second in group for first, second in cannot):
            result.append(group)
            continue
        grown = [{face} for face in sorted(group)]
        stay = [sorted(members - moved) for members in clusters.values() if members <= group and members & moved]
        stay = [[(faces[0], face) for face in faces] for faces in stay if faces]
        while stay:  # those who are left stay together, unless that joins a pair that must stay apart
            held = [{face} for face in sorted(group)]
            join(held, [pair for pair in must if set(pair) <= group] + [pair for pairs in stay for pair in pairs])
            wrong = [one for one in held if any(first in one and second in one for first, second in cannot)]
            if not wrong:
                grown = held
                break
            stay = [pairs for pairs in stay if not any(pairs[0][0] in one for one in wrong)]
        join(grown, [pair for pair in must if set(pair) <= group])
        links = []
        for i in sorted(group):
            for e in range(graph.offsets[i], graph.offsets[i + 1]):
                j = int(graph.targets[e])
                if labels[i] == labels[j] and not {i, j} & moved:
                    links.append((-float(graph.scores[e]), i, j))
        join(grown, [pair for _, *pair in sorted(links)], cannot)
        result += grown
    return {frozenset(group) for group in result}


def as_sets(labels):
    return {frozenset(np.flatnonzero(labels == label).tolist()) for label in set(labels.tolist()) if label >= 0}


@settings(deadline=None, max_examples=80)
@given(edges, pairs, pairs)
@example([(0, 1, 0.3), (0, 3, 0.3)], [(0, 2)], [(0, 1)])  # a moved face
@example([(0, 1, 0.3), (0, 3, 0.3), (0, 4, 0.3)], [(0, 2)], [(0, 1), (1, 3)])  # and those who are left are told apart
def test_against_sets(links, must, cannot):
    graph = make_graph(N, [edge for edge in links if edge[0] != edge[1]])
    told = Constraints(as_pairs(must), as_pairs(cannot))
    try:
        require_faces(told, N)
    except InputError:
        assume(False)
    labels = label_components(graph)
    found = apply_constraints(labels, graph, told)
    assert as_sets(found) == grow_slowly(graph, labels, must, cannot)
    assert all(found[a] == found[b] for a, b in must)
    assert all(found[a] != found[b] for a, b in cannot)
    _, first = np.unique(found, return_index=True)
    assert found[np.sort(first)].tolist() == list(range(len(first)))  # numbered by first appearance
    if not must and not cannot:
        np.testing.assert_array_equal(found, labels)


def test_moved_faces_take_nobody_along():
    """Two faces of one cluster go to two others: these must not become one by way of it."""
    clusters = [range(6), range(6, 9), range(9, 12)]
    pairs = [(i, j) for members in clusters for i in members for j in members if i != j]
    offsets = np.concatenate(([0], np.cumsum(np.bincount([i for i, _ in pairs], minlength=12))))
    graph = EdgeGraph(offsets, np.array([j for _, j in pairs], np.int32), np.full(len(pairs), 0.9, np.float32))
    labels = np.repeat(np.arange(3), [len(members) for members in clusters])
    told = Constraints(must=np.array([[1, 7], [2, 10], [3, 10]]), cannot=np.array([[1, 0], [2, 0], [3, 0]]))
    assert apply_constraints(labels, graph, told).tolist() == [0, 1, 2, 2, 0, 0, 1, 1, 1, 2, 2, 2]


def test_faces_moved_to_a_new_person_take_nobody_along_either():
    """Three faces of a tight cluster are taken out, then two more: all others stay together, and nobody rejoins."""
    offsets, others = np.arange(0, 91, 9), [[j for j in range(10) if j != i] for i in range(10)]
    graph = EdgeGraph(offsets, np.array(others, np.int32).ravel(), np.full(90, 0.9, np.float32))
    told = Constraints(
        must=np.array([[0, 1], [0, 2], [3, 4]]),
        cannot=np.array([[0, 9], [1, 9], [2, 9], [3, 9], [4, 9]]),
        moved=np.array([0, 1, 2, 3, 4]),
    )
    assert apply_constraints(np.zeros(10, np.int64), graph, told).tolist() == [0, 0, 0, 1, 1, 2, 2, 2, 2, 2]


@pytest.mark.parametrize("line", ["msut,0,1", "must;0;1", "hello", "cannot,0", "must,0,x"])
def test_a_mistyped_first_line_is_no_header(tmp_path, line):
    path = tmp_path / "pairs.csv"
    path.write_text(f"{line}\nmust,0,1\n")
    with pytest.raises(InputError, match="line 1 is"):
        load_constraints(path, n_faces=3)
    path.write_text("kind,first,second\nmust,0,1\n")
    assert load_constraints(path, n_faces=3).must.tolist() == [[0, 1]]


def test_people_keep_their_labels_and_non_faces_have_none():
    graph = make_graph(5, [(0, 1, 0.9)])
    told = Constraints(not_faces=np.array([4]), people=(Person(7, 0, "Ann"), Person(0, 2), Person(7, 3), Person(9, 4)))
    assert apply_constraints(label_components(graph), graph, told).tolist() == [7, 7, 0, 1, -1]


def test_contradictions_and_strangers_are_refused():
    graph = make_graph(3, [])
    with pytest.raises(InputError, match="faces 0 and 2 are two people"):
        apply_constraints(np.arange(3), graph, Constraints(as_pairs([(0, 1), (1, 2)]), as_pairs([(0, 2)])))
    with pytest.raises(InputError, match="face 9; faces go from 0 to 2"):
        apply_constraints(np.arange(3), graph, Constraints(as_pairs([(0, 9)])))


@settings(deadline=None)  # the first example compiles
@given(st.lists(st.integers(0, 4), min_size=1, max_size=20), st.data())
def test_ids_are_kept_by_overlap(labels, data):
    labels = np.array(labels)
    previous = np.array(data.draw(st.lists(st.integers(0, 9), min_size=len(labels), max_size=len(labels))))
    renamed = keep_ids(labels, previous)
    assert as_sets(renamed) == as_sets(labels)
    np.testing.assert_array_equal(keep_ids(previous, previous), previous)
    np.testing.assert_array_equal(keep_ids(renamed, renamed), renamed)
    fresh = set(renamed.tolist()) - set(previous.tolist())
    assert all(label > previous.max() for label in fresh)


def test_unassigned_faces_stay_unassigned():
    assert keep_ids(np.array([-1, 0, 0]), np.array([5, 5, -1])).tolist() == [-1, 5, 5]


def test_files(tmp_path):
    told = Constraints(as_pairs([(0, 1)]), as_pairs([(1, 2)]), np.array([3]), (Person(8, 0, "Ann"), Person(9, 2)))
    save_constraints(told, tmp_path / "told.json")
    read = load_constraints(tmp_path / "told.json", n_faces=4)
    assert read.as_dict() == told.as_dict()
    (tmp_path / "told.csv").write_text("relation,first,second\nmust,0,1\n\nCannot, 1 ,2\n")
    read = load_constraints(tmp_path / "told.csv", n_faces=3)
    assert (read.must.tolist(), read.cannot.tolist()) == ([[0, 1]], [[1, 2]])
    save_constraints(Constraints(), tmp_path / "none.json")
    assert len(load_constraints(tmp_path / "none.json", n_faces=1).must) == 0


def told(**parts):
    empty = {"format": "starfc-constraints-1", "must": [], "cannot": [], "not_faces": [], "people": []}
    return json.dumps(empty | parts)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "must,0,1\nshould,1,2\n", "line 2"),
        ("a.csv", "must,0\n", "line 1"),
        ("a.csv", "must,0,-1\n", "line 1"),
        ("a.csv", "must,0,99\n", "face 99"),
        ("a.json", "{}", "no file of constraints"),
        ("a.json", "[1]", "no file of constraints"),
        ("a.json", "{", "cannot be read"),
        ("a.json", json.dumps({"format": "starfc-constraints-1"}), "no file of constraints"),
        ("a.json", json.dumps({"format": "starfc-constraints-1", "must": [[1, 2, 3]], "cannot": [], "not_faces": [],
                               "people": []}), "a pair is two"),
        ("a.json", told(must=[[True, 2]]), "face true; it must be a whole number"),
        ("a.json", told(cannot=[[0, 1.0]]), "face 1.0; it must be a whole number"),
        ("a.json", told(cannot=[[0, "1"]]), 'face "1"; it must be a whole number'),
        ("a.json", told(must=[[0, 10**30]]), "face 10+; it must be a whole number"),
        ("a.json", told(must="ab"), "'must' that is no list"),
        ("a.json", told(must=[7]), "a pair is two"),
        ("a.json", told(not_faces=[None]), "face null; it must be"),
        ("a.json", told(not_faces=[-1]), "face -1; it must be"),
        ("a.json", told(people=[{"label": 10**30, "face": 0, "name": None}]), "label 10+; it must be"),
        ("a.json", told(people=[{"label": 2**63 - 1, "face": 0, "name": None}]), "label 9223372036854775807; it must"),
        ("a.json", told(people=[{"label": False, "face": 0, "name": None}]), "label false; it must be"),
        ("a.json", told(people=[{"label": 1, "face": 0, "name": 5}]), "name '5'; a name must be a text"),
        ("a.json", told(people=[{"label": 1, "face": 0, "name": "a\u202eb"}]), "U.202E"),
        ("a.json", told(people=["Ann"]), "a person 'Ann'"),
        ("a.csv", "must,0," + "9" * 40 + "\n", "line 1"),
        ("a.csv", "must,0,9999999999999999999\n", "it must be a whole number"),
        ("a.txt", "must,0,1", "must be .json or .csv"),
    ],
)  # fmt: skip
def test_bad_files_are_named(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=message):
        load_constraints(tmp_path / name, n_faces=3)


def test_only_json_is_written(tmp_path):
    with pytest.raises(InputError, match="written as"):
        save_constraints(Constraints(), tmp_path / "told.csv")
