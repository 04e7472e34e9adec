"""Weighted edge graphs for hypothesis and with planted groups, shared by the tests of the map equation."""

from collections import defaultdict

import numpy as np
from hypothesis import strategies as st

from starfc.prune import EdgeGraph


def make_graph(n, edges):
    """Make an EdgeGraph of (source, target, score) triples in any order."""
    edges = sorted(edges, key=lambda edge: edge[0])
    offsets = np.concatenate(([0], np.cumsum(np.bincount([i for i, _, _ in edges], minlength=n)))).astype(np.int64)
    return EdgeGraph(
        offsets, np.array([j for _, j, _ in edges], np.int32), np.array([s for *_, s in edges], np.float32)
    )


@st.composite
def weighted_graphs(draw, max_nodes=14):
    """Draw graphs with repeats, both directions, self loops, nodes without edges, and scores of any sign."""
    n = draw(st.integers(1, max_nodes))
    node = st.integers(0, n - 1)
    score = st.sampled_from([-0.5, 0.0, 0.125, 0.25, 0.5, 1.0, 3.0])  # sums of these are exact
    return make_graph(n, draw(st.lists(st.tuples(node, node, score), max_size=4 * n)))


def sum_pairs(graph):
    """Return {(i, j): weight} with i < j."""
    pairs = defaultdict(float)
    for i in range(graph.n_nodes):
        for e in range(graph.offsets[i], graph.offsets[i + 1]):
            if graph.scores[e] > 0 and graph.targets[e] != i:
                pairs[min(i, int(graph.targets[e])), max(i, int(graph.targets[e]))] += float(graph.scores[e])
    return pairs


def plant_groups(n_groups, size, *, inside, outside, seed):
    """Draw a graph with `inside` links a node in its group and `outside` to anywhere; nodes in random order."""
    rng = np.random.default_rng(seed)
    truth = rng.permutation(np.repeat(np.arange(n_groups), size))
    members = np.argsort(truth, kind="stable").reshape(n_groups, size)
    near = members[truth[:, None], rng.integers(0, size, (len(truth), inside))]
    far = rng.integers(0, len(truth), (len(truth), outside))
    targets = np.concatenate((near, far), axis=1).astype(np.int32)
    offsets = np.arange(len(truth) + 1, dtype=np.int64) * targets.shape[1]
    return EdgeGraph(offsets, targets.ravel(), rng.uniform(0.4, 1.0, targets.size).astype(np.float32)), truth
