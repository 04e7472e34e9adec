"""The methods without training: hand-made graphs, libraries, slow oracles, and a floor on synthetic faces."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import starfc
from graphs import knn_graphs, random_knn_graph
from starfc.baselines import (
    METHODS,
    aro,
    cdp,
    choose_methods,
    dbscan,
    face_map,
    fc_es,
    hac,
    hdbscan,
    infomap_cosine,
    lcepce,
)
from starfc.baselines import chinese_whispers as whispers
from starfc.baselines.minibatch_kmeans import cluster_faces as cluster_minibatch
from starfc.baselines.pairs import cut_edges, list_sources, pair_edges
from starfc.baselines.peaks import find_denser, label_followers
from starfc.comparison.tune import separate_noise, tune_method
from starfc.errors import InputError
from starfc.features import Features
from starfc.knn import KnnGraph, build_knn
from starfc.metrics import evaluate
from starfc.synth import make_faces

UNTRAINED = [method for method in METHODS.values() if not method.trained and method.module != "star_fc"]


def draw_points(seed, n=60, people=6, dim=5):
    """Return positive features, so that all cosines are, and their complete kNN graph."""
    rng = np.random.default_rng(seed)
    rows = np.abs(np.repeat(rng.normal(size=(people, dim)), n // people, axis=0) + 0.35 * rng.normal(size=(n, dim)))
    features = Features(rows.astype(np.float32))
    return features, build_knn(features, k=n - 1)


def spread_graph(graph):
    """Return the similarities of a complete graph as a matrix with ones on its diagonal."""
    matrix = np.eye(graph.n)
    np.put_along_axis(matrix, graph.neighbors.astype(np.int64), graph.similarities.astype(np.float64), axis=1)
    return matrix


def renumber(labels):
    """Number labels by first appearance, each -1 alone."""
    codes = {}
    return [codes.setdefault(label if label >= 0 else ("alone", row), len(codes)) for row, label in enumerate(labels)]


def make_graph(n, k, edges):
    """Return a kNN graph with the given undirected edges {(i, j): similarity}."""
    lists = [[] for _ in range(n)]
    for (i, j), similarity in edges.items():
        lists[i].append((-similarity, j))
        lists[j].append((-similarity, i))
    neighbors, similarities = np.full((n, k), -1, np.int32), np.zeros((n, k), np.float32)
    for i, found in enumerate(lists):
        for slot, (similarity, j) in enumerate(sorted(found)):
            neighbors[i, slot], similarities[i, slot] = j, -similarity
    return KnnGraph(neighbors, similarities)


TRIANGLES = {(0, 1): 0.9, (0, 2): 0.9, (1, 2): 0.9, (3, 4): 0.9, (3, 5): 0.9, (4, 5): 0.9, (2, 3): 0.65}
NOBODY = Features(np.eye(6))  # for methods that read the graph only


# against libraries


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("eps", "min_samples"), [(0.02, 1), (0.02, 4), (0.05, 3), (0.1, 8)])
def test_dbscan_is_scikit_learns_on_a_complete_graph(seed, eps, min_samples):
    from sklearn.cluster import DBSCAN

    features, graph = draw_points(seed)
    theirs = DBSCAN(eps=eps, min_samples=min_samples, metric="precomputed").fit(np.abs(1 - spread_graph(graph)))
    ours = dbscan.cluster_faces(features, graph, eps=eps, min_samples=min_samples)
    assert ours.tolist() == theirs.labels_.tolist()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("linkage", ["single", "average"])
@pytest.mark.parametrize("threshold", [0.999, 0.98, 0.9, 0.7])
def test_linkage_is_scikit_learns_on_a_complete_graph(seed, linkage, threshold):
    from sklearn.cluster import AgglomerativeClustering

    features, graph = draw_points(seed)
    tree = AgglomerativeClustering(
        n_clusters=None, metric="precomputed", linkage=linkage, distance_threshold=1 - threshold
    )
    theirs = tree.fit(np.abs(1 - spread_graph(graph))).labels_
    ours = hac.cluster_faces(features, graph, linkage=linkage, threshold=threshold)
    assert renumber(ours) == renumber(theirs)


@pytest.mark.parametrize("seed", range(4))
def test_hdbscans_tree_on_lists_has_the_heights_of_all_pairs(seed):
    from scipy.sparse.csgraph import minimum_spanning_tree
    from sklearn.cluster import HDBSCAN

    _, graph = draw_points(seed, n=80, people=4)
    distances = np.abs(1 - spread_graph(graph))
    core = np.sort(distances, axis=1)[:, 4]  # the fourth neighbour, after the face itself
    reachable = np.maximum(np.maximum(core[:, None], core), distances)
    np.fill_diagonal(reachable, 0)
    wanted = np.sort(minimum_spanning_tree(reachable).data)
    tree = HDBSCAN(min_cluster_size=5, min_samples=4, metric="precomputed", copy=True)
    tree.fit(hdbscan._build_distances(graph))
    # Heights, not clusters: several are equal, and which of those merge first decides what scikit-learn makes of them.
    assert np.array_equal(np.sort(tree._single_linkage_tree_["value"]), wanted)


def test_hdbscan_joins_lists_without_a_path():
    edges = {(i, j): 0.9 for group in (range(6), range(6, 12)) for i in group for j in group if i < j}
    labels = hdbscan.cluster_faces(Features(np.eye(12)), make_graph(12, 6, edges), min_cluster_size=3, min_samples=2)
    assert len(set(labels[:6])) == 1 and len(set(labels[6:])) == 1 and labels[0] != labels[6]


# against oracles


def merge_one_by_one(weights, threshold):
    """Average linkage, one merge at a time; weights (n, n), 0 where there is no edge."""
    clusters = [[i] for i in range(len(weights))]
    while len(clusters) > 1:
        found = max(
            (weights[np.ix_(a, b)].mean(), -i, -j)
            for i, a in enumerate(clusters)
            for j, b in enumerate(clusters)
            if i < j
        )
        if found[0] < threshold:
            break
        i, j = -found[1], -found[2]
        clusters[i] += clusters.pop(j)
    labels = np.empty(len(weights), dtype=np.int64)
    for number, members in enumerate(clusters):
        labels[members] = number
    return labels


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("threshold", [0.02, 0.1, 0.3])
def test_average_linkage_on_lists_merges_as_one_by_one(seed, threshold):
    graph = random_knn_graph(30, 4, seed)
    weights = np.zeros((30, 30))
    for i in range(30):
        for j, similarity in zip(graph.neighbors[i], graph.similarities[i], strict=True):
            weights[i, j] = weights[j, i] = max(weights[i, j], similarity)
    ours = hac.cluster_faces(NOBODY, graph, linkage="average", threshold=threshold)
    assert renumber(ours) == renumber(merge_one_by_one(weights, threshold))


def test_linkages_are_named():
    with pytest.raises(InputError, match="linkage"):
        hac.cluster_faces(NOBODY, make_graph(6, 3, TRIANGLES), linkage="ward")


@settings(max_examples=60, deadline=None)
@given(graph=knn_graphs(), threshold=st.sampled_from([-0.5, 0.0, 0.25, 0.6]))
def test_average_linkage_survives_any_graph(graph, threshold):
    labels = hac.cluster_faces(NOBODY, graph, linkage="average", threshold=max(threshold, 0.01))
    assert labels.shape == (graph.n,) and (graph.n == 0 or labels.min() == 0)


def measure_rank_order_slowly(graph):
    """D of every edge by the formula, with lists of Python."""
    n, k = graph.neighbors.shape
    lists = [[int(j) for j in row if j >= 0] for row in graph.neighbors]
    rank = lambda a, b: lists[a].index(b) + 1 if b in lists[a] else k  # noqa: E731
    strangers = lambda a, b: sum(f != b and f not in lists[b] for f in lists[a][: rank(a, b)])  # noqa: E731
    distances = np.full((n, k), np.inf)
    for a in range(n):
        for slot, b in enumerate(lists[a]):
            distances[a, slot] = (strangers(a, b) + strangers(b, a)) / min(rank(a, b), rank(b, a))
    return distances


@settings(max_examples=60, deadline=None)
@given(graph=knn_graphs())
def test_rank_order_distances(graph):
    assert np.allclose(aro.measure_rank_order(graph), measure_rank_order_slowly(graph), rtol=1e-6)


def measure_edge_probability_slowly(graph):
    """NEP of every edge by the formula."""
    n, k = graph.neighbors.shape
    shares = np.zeros((n, n))
    for i in range(n):
        shares[i, i] = 1
        for j, cosine in zip(graph.neighbors[i], graph.similarities[i], strict=True):
            if j >= 0:
                shares[i, j] = np.exp(-(2 - 2 * np.clip(cosine, 0, 1)) / 0.5)
    shares /= shares.sum(axis=1, keepdims=True)
    common = (shares > 0).astype(float)
    nep = (shares @ common.T + common @ shares.T) / 2
    return np.array([[nep[i, j] if j >= 0 else 0 for j in graph.neighbors[i]] for i in range(n)]).reshape(n, k)


@settings(max_examples=60, deadline=None)
@given(graph=knn_graphs())
def test_neighbour_based_edge_probability(graph):
    assert np.allclose(fc_es.measure_edge_probability(graph), measure_edge_probability_slowly(graph), atol=1e-6)


def standardise_changes(cosines, window):
    """z of every window of a list by the formula, {how many entries it keeps: z}."""
    drops = -np.diff(np.clip(np.asarray(cosines, np.float64), 0, None))
    changes = {}
    for j in range(len(drops) - window + 1):
        tail = drops[j:]
        apart = abs(tail[:window].mean() - tail.mean())
        changes[j + (window - 1) // 2 + 1] = apart / tail.std() if tail.std() > 1e-6 else 0.0
    return changes


@settings(max_examples=80, deadline=None)
@given(graph=knn_graphs(max_k=12), window=st.integers(1, 6), itself=st.booleans())
def test_lists_are_cut_at_the_largest_change(graph, window, itself):
    for i, cut in enumerate(face_map.measure_cuts(graph, window, itself=itself)):
        cosines = [1.0] * itself + graph.similarities[i][graph.neighbors[i] >= 0].tolist()
        changes = standardise_changes(cosines, window)
        largest = max(changes.values(), default=0.0)
        if largest < 1e-6:
            assert cut + itself == len(cosines)
        else:  # any of those that are equal up to rounding
            assert changes[cut + itself] == pytest.approx(largest, abs=1e-9)


@settings(max_examples=60, deadline=None)
@given(graph=knn_graphs())
def test_connectivities_of_both_directions_are_averaged(graph):
    dense = np.zeros((graph.n, graph.n))
    for i, j in zip(*np.nonzero(graph.neighbors >= 0), strict=True):
        dense[i, graph.neighbors[i, j]] = graph.similarities[i, j]
    means = (dense + dense.T) / 2
    wanted = [[means[i, j] if j >= 0 else 0 for j in row] for i, row in enumerate(graph.neighbors)]
    found = lcepce.average_directions(graph.neighbors, graph.similarities)
    assert np.allclose(found, np.reshape(wanted, found.shape), atol=1e-7)


def link_denser_slowly(graph, connectivity, least):
    """The links by the rule, face by face, as a set of pairs."""
    lists = [[(int(j), s, c) for j, s, c in zip(*rows, strict=True) if j >= 0]
             for rows in zip(graph.neighbors, graph.similarities, connectivity, strict=True)]  # fmt: skip
    density = [np.float32(sum(s * c for _, s, c in row)) for row in lists]
    first = [s for row in lists for _, s, _ in row[:3]]
    tau = np.float32(np.mean(first, dtype=np.float64)) if first else 0
    links = set()
    for i, row in enumerate(lists):
        denser = [(s * c, c, j) for j, s, c in row if s * c > 0 and (density[j], -j) > (density[i], -i)]
        links |= {(i, j) for weight, _, j in denser if weight >= tau}
        if denser:
            _, c, j = max(denser, key=lambda entry: entry[0])  # the first of equals, as lists go
            links |= {(i, j)} if c >= np.float32(least) else set()
    return links


@settings(max_examples=80, deadline=None)
@given(graph=knn_graphs(), least=st.sampled_from([0.0, 0.25, 0.5]), seed=st.integers(0, 1000))
def test_faces_are_linked_to_denser_ones(graph, least, seed):
    # quarters, so that sums are exact in any order and ties are common
    exact = KnnGraph(graph.neighbors, np.round(graph.similarities * 4) / 4)
    connectivity = np.random.default_rng(seed).choice([0, 0.25, 0.5, 1], graph.neighbors.shape).astype(np.float32)
    links = lcepce.link_denser(exact, connectivity, least=least)
    found = set(zip(list_sources(links).tolist(), links.targets.tolist(), strict=True))
    assert found == link_denser_slowly(exact, connectivity, least)


def whisper_slowly(graph, threshold, n_rounds, seed):
    """Chinese whispers with dictionaries."""
    n = graph.n
    links = {}
    for i in range(n):
        for j, similarity in zip(graph.neighbors[i], graph.similarities[i], strict=True):
            if j >= 0 and similarity >= threshold and similarity > 0:
                for a, b in ((i, j), (j, i)):
                    links[a, b] = max(links.get((a, b), 0), similarity)
    labels, rng = list(range(n)), np.random.default_rng(seed)
    for _ in range(n_rounds):
        for i in rng.permutation(n):
            sums = {}
            for (a, b), weight in links.items():
                if a == i:
                    sums[labels[b]] = sums.get(labels[b], 0) + weight
            if sums:
                labels[i] = min(sums, key=lambda label: (-sums[label], label))
    return labels


@pytest.mark.parametrize("seed", range(5))
def test_whispers(seed):
    graph = random_knn_graph(25, 4, seed)
    ours = whispers.cluster_faces(NOBODY, graph, threshold=0.3, n_rounds=3, seed=seed)
    assert renumber(ours) == renumber(whisper_slowly(graph, 0.3, 3, seed))


@settings(max_examples=40, deadline=None)
@given(graph=knn_graphs())
def test_pairs_are_kept_once_with_the_larger_or_the_mean_score(graph):
    edges = cut_edges(graph, -0.4)
    scores = {}
    for i, j, score in zip(list_sources(edges), edges.targets, edges.scores, strict=True):
        scores.setdefault((min(i, j), max(i, j)), []).append(score)
    for pool, reduce in (("max", max), ("mean", lambda values: sum(values) / len(values))):
        pairs = pair_edges(edges, pool=pool)
        found = dict(zip(zip(list_sources(pairs), pairs.targets, strict=True), pairs.scores, strict=True))
        assert len(found) == len(pairs.targets)
        assert found == pytest.approx({pair: reduce(values) for pair, values in scores.items()})


@settings(max_examples=40, deadline=None)
@given(graph=knn_graphs(), seed=st.integers(0, 1000))
def test_faces_follow_the_nearest_denser_one(graph, seed):
    density = np.random.default_rng(seed).integers(0, 4, graph.n).astype(np.float32)
    parents = find_denser(graph.neighbors, graph.similarities, density, 0.2)
    for i in range(graph.n):
        wanted = [
            j
            for j, similarity in zip(graph.neighbors[i], graph.similarities[i], strict=True)
            if j >= 0 and similarity >= np.float32(0.2) and (density[j], -j) > (density[i], -i)
        ]
        assert parents[i] == (wanted[0] if wanted else -1)
    assert len(np.unique(label_followers(parents))) == (parents < 0).sum()  # one cluster for each peak


# hand-made graphs


@pytest.mark.parametrize(
    ("cluster", "options"),
    [
        (hac.cluster_faces, {"threshold": 0.7}),
        (hac.cluster_faces, {"linkage": "average", "threshold": 0.3}),
        (dbscan.cluster_faces, {"eps": 0.3, "min_samples": 2}),
        (whispers.cluster_faces, {}),
        (cdp.cluster_faces, {"threshold": 0.6, "max_size": 3}),
        (infomap_cosine.cluster_faces, {}),
    ],
)
def test_two_triangles_and_a_bridge(cluster, options):
    assert renumber(cluster(NOBODY, make_graph(6, 3, TRIANGLES), **options)) == [0, 0, 0, 1, 1, 1]


def test_published_thresholds_leave_the_bridge():
    graph = make_graph(6, 3, TRIANGLES)
    for module in (hac, dbscan, cdp):
        assert renumber(module.cluster_faces(NOBODY, graph)) == [0, 0, 0, 1, 1, 1]


def test_rank_order_joins_faces_that_list_each_other():
    graph = make_graph(4, 1, {(0, 1): 0.9, (2, 3): 0.9})
    assert aro.cluster_faces(Features(np.eye(4)), graph).tolist() == [0, 0, 1, 1]


def test_early_stopping_leaves_what_comes_after_a_failure():
    clique = {(i, j): 0.9 for i in range(4) for j in range(i)}
    graph = make_graph(6, 5, clique | {(3, 4): 0.6, (4, 5): 0.5})
    assert renumber(fc_es.cluster_faces(Features(np.eye(6)), graph, threshold=0.7))[:4] == [0, 0, 0, 0]


def test_a_list_ends_where_it_falls():
    groups = {(i, j): 0.9 if (i < 4) == (j < 4) else 0.3 for i in range(8) for j in range(i)}
    graph = make_graph(8, 7, groups)
    for itself in (True, False):
        assert face_map.measure_cuts(graph, 1, itself=itself).tolist() == [3] * 8
        found = face_map.cluster_faces(NOBODY, graph, window=1, itself=itself)
        assert renumber(found) == [0, 0, 0, 0, 1, 1, 1, 1]
        assert face_map.measure_cuts(graph, 8, itself=itself).tolist() == [7] * 8  # no window fits
    with pytest.raises(InputError, match=r"window \(0\)"):
        face_map.cluster_faces(NOBODY, graph, window=0)


def test_a_face_may_stand_out_from_its_whole_list():
    even = KnnGraph(np.array([[1, 2, 3]], np.int32), np.full((1, 3), 0.4, np.float32))
    assert face_map.measure_cuts(even, 1, itself=True).tolist() == [0]  # the first drop is the only one
    assert face_map.measure_cuts(even, 1, itself=False).tolist() == [3]  # nothing stands out


def test_a_doubtful_link_to_a_denser_face_is_left_out():
    graph = make_graph(6, 3, TRIANGLES)
    connectivity = np.where(graph.similarities > 0.7, 0.9, 0.1).astype(np.float32)
    label = lambda sure, least: renumber(  # noqa: E731
        lcepce.label_components(lcepce.link_denser(graph, sure, least=least))
    )
    assert label(connectivity, 0.5) == [0, 0, 0, 1, 1, 1]
    assert label(connectivity, 0.0) == [0] * 6  # 3 has no denser face but 2, over the bridge
    assert label(connectivity, 1.0) == list(range(6))  # none is judged right, and .81 is below τ
    assert label(np.ones_like(connectivity), 1.1) == [0, 0, 0, 1, 1, 1]  # .9 is above τ, .65 is not


def test_connectivities_are_named():
    with pytest.raises(InputError, match="connectivity"):
        lcepce.cluster_faces(NOBODY, make_graph(6, 3, TRIANGLES), connectivity="cosine")


# a floor, and the same bits for a seed


@pytest.fixture(scope="module")
def collections():
    """Return two collections of 1,000 faces of 40 people each, with graphs."""
    found = []
    for seed in (1, 2):
        rows, people = make_faces(1000, people=40, dim=64, seed=seed)
        found.append((Features(rows), build_knn(Features(rows), k=40), people))
    return found


@pytest.mark.parametrize("method", UNTRAINED, ids=lambda method: method.name)
def test_tuned_on_some_people_a_method_finds_others(collections, method):
    (features, graph, people), (other, other_graph, truth) = collections
    chosen = tune_method(method, features, graph, people, seed=3)
    options = method.settings | chosen | {"seed": 3}
    labels = method.load().cluster_faces(other, other_graph, **options)
    figures = evaluate(truth, labels)
    assert (figures.pairwise.f + figures.bcubed.f) / 2 > 0.6
    assert labels.dtype == np.int64 and separate_noise(labels).min() == 0
    assert np.array_equal(labels, method.load().cluster_faces(other, other_graph, **options))


def test_starfc_without_labels_is_the_default_of_cluster(collections):
    features, graph, people = collections[0]
    method = METHODS["starfc-no-labels"]
    assert tune_method(method, features, graph, people) == {}
    labels = method.load().cluster_faces(features, graph, seed=1)
    assert np.array_equal(labels, starfc.cluster(features, knn_graph=graph, seed=1).labels)


def test_more_centres_than_faces_are_cut(collections):
    features, graph, _ = collections[0]
    assert len(np.unique(cluster_minibatch(features, graph, faces_per_cluster=0.5, n_rounds=1))) <= len(features)


def test_methods_are_chosen_by_name():
    assert [method.name for method in choose_methods("aro,gcn-v")] == ["aro", "gcn-v"]
    assert len(choose_methods(None)) == len(METHODS) == 23
    with pytest.raises(InputError, match="'nonsense'"):
        choose_methods("aro,nonsense")
