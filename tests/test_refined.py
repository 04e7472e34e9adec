"""The refined partition on graphs where it is known who is who."""

import numpy as np
import pytest

import starfc
from edge_graphs import make_graph, plant_groups
from starfc import refined
from starfc.errors import InputError
from starfc.mapequation import label_by_map_equation
from starfc.partition import partition_graph
from starfc.refined import label_refined
from test_crowds import make_people


def link_cliques(size, between, score, *, n_pairs):
    """Make pairs of cliques with `between` links of a score from each face of the first to faces of the second."""
    edges = []
    for pair in range(n_pairs):
        start = 2 * size * pair
        for clique in range(2):
            faces = range(start + clique * size, start + (clique + 1) * size)
            edges += [(i, j, 0.9) for i in faces for j in faces if i != j]
        edges += [(start + i, start + size + (i + step) % size, score) for i in range(size) for step in range(between)]
    return make_graph(2 * size * n_pairs, edges), np.repeat(np.arange(2 * n_pairs), size)


def test_faces_of_a_crowd_go_to_their_people():
    graph, _ = make_people(12, 6, blurred=10)
    people = np.repeat(np.arange(12), 6)
    assert label_by_map_equation(graph).tolist() != people.tolist()  # the crowd is a module
    assert label_refined(graph).tolist() == people.tolist()


def test_faces_of_a_crowd_without_other_links_end_alone():
    crowd, strangers = [6 * person + 5 for person in range(10)], (72, 73)
    among = [(i, j, 0.97) for i in (*crowd, *strangers) for j in (*crowd, *strangers) if i != j and max(i, j) >= 72]
    graph, _ = make_people(12, 6, blurred=10, others=among, alone=2)
    assert label_refined(graph).tolist() == [*np.repeat(np.arange(12), 6).tolist(), 12, 13]


def test_two_people_stay_two_however_many_others_there_are():
    graph, people = link_cliques(6, 2, 0.8, n_pairs=400)
    few, _ = link_cliques(6, 2, 0.8, n_pairs=1)
    assert label_by_map_equation(few).tolist() == people[:12].tolist()
    assert label_by_map_equation(graph).max() < 410  # the limit of resolution: nearly all pairs are one
    assert label_refined(graph).tolist() == people.tolist()


def test_a_sure_link_ties_the_parts_of_a_person():
    graph, _ = link_cliques(6, 2, 0.96, n_pairs=400)
    assert label_refined(graph).tolist() == label_by_map_equation(graph).tolist()
    assert label_refined(graph).max() < 410


def keep_slowly(graph, modules, parts):
    """Apply the definition of a splinter to one part after another; labels are in no order."""
    kept = parts.copy()
    sizes = np.bincount(parts)
    links = [
        (i, int(graph.targets[e]), float(graph.scores[e]))
        for i in range(graph.n_nodes)
        for e in range(graph.offsets[i], graph.offsets[i + 1])
    ]
    for part in range(len(sizes)):
        module = modules[parts == part][0]
        main = max(np.unique(parts[modules == module]), key=lambda other: (sizes[other], -other))
        inside = sum(score for i, j, score in links if parts[i] == parts[j] == part)
        to_main = sum(score for i, j, score in links if {parts[i], parts[j]} == {part, main} and part != main)
        is_large = sizes[main] >= max(refined._FEWEST_OF_MAIN, refined._TIMES_SPLINTER * sizes[part])
        if is_large and to_main > 0 and to_main >= inside:
            kept[parts == part] = main
    return kept


@pytest.mark.parametrize("seed", range(20))
def test_splinters_equal_those_of_the_definition(seed):
    rng = np.random.default_rng(seed)
    n, n_parts = 90, 9
    parts = np.unique(rng.choice(n_parts, n, p=rng.dirichlet(np.full(n_parts, 0.4))), return_inverse=True)[1]
    firsts = np.argsort(np.unique(parts, return_index=True)[1])
    parts = np.argsort(firsts)[parts].astype(np.int64)  # numbered by first appearance
    modules = np.unique(rng.integers(0, 3, n_parts)[parts], return_inverse=True)[1].astype(np.int32)
    ends = rng.integers(0, n, (300, 2))
    ends = ends[ends[:, 0] != ends[:, 1]]
    graph = make_graph(n, [(int(i), int(j), 0.5) for i, j in np.unique(ends, axis=0)])
    split = np.array([len(np.unique(parts[modules == module])) > 1 for module in modules])
    found, expected = refined._keep_splinters(graph, modules, parts, split), keep_slowly(graph, modules, parts)
    assert np.array_equal(found[:, None] == found, expected[:, None] == expected)
    assert found[np.sort(np.unique(found, return_index=True)[1])].tolist() == list(range(found.max() + 1))


def test_sure_links_tie_only_what_was_one_module():
    graph, truth = plant_groups(12, 20, inside=8, outside=0, seed=0)
    bridge = make_graph(
        graph.n_nodes,
        [
            *(
                (i, int(graph.targets[e]), 0.9)
                for i in range(240)
                for e in range(graph.offsets[i], graph.offsets[i + 1])
            ),
            (int(np.flatnonzero(truth == 0)[0]), int(np.flatnonzero(truth == 1)[0]), 0.99),
        ],
    )
    assert label_refined(bridge).max() + 1 == 12


def test_labels_are_numbered_by_first_appearance():
    graph, _ = plant_groups(30, 12, inside=6, outside=2, seed=3)
    labels = label_refined(graph, seed=5)
    first = np.sort(np.unique(labels, return_index=True)[1])
    assert labels[first].tolist() == list(range(labels.max() + 1))
    assert labels.dtype == np.int64


def test_many_ties_are_listed():
    parts = np.arange(60, dtype=np.int32)
    graph = make_graph(60, [(i, (i + 1) % 60, 1.0) for i in range(60)])
    ties = refined._list_ties(
        graph.offsets, graph.targets, graph.scores, np.ones(60, np.bool_), np.zeros(60, np.int32), parts,
        np.float32(refined._SURE),
    )  # fmt: skip
    assert ties.tolist() == [[i, (i + 1) % 60] for i in range(60)]


@pytest.mark.parametrize("n", [0, 1, 5])
def test_without_links_everybody_is_alone(n):
    assert partition_graph(make_graph(n, []), partition="refined").tolist() == list(range(n))


def test_the_given_graph_is_left_as_it_is():
    graph, _ = make_people(12, 6, blurred=10)
    before = graph.scores.copy()
    label_refined(graph)
    np.testing.assert_array_equal(graph.scores, before)


@pytest.mark.parametrize("settings", [{"tau1": 0.3}, {"scorer": "cosine"}])
def test_cosines_are_refused(settings):
    with pytest.raises(InputError, match="partition 'refined' needs scores that are probabilities"):
        starfc.cluster(np.eye(40, dtype=np.float32), partition="refined", **settings)
