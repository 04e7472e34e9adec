"""The trained methods on tiny networks: oracles of their kernels, a floor, the same bits for a seed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphs import knn_graphs
from starfc.baselines import METHODS
from starfc.baselines.padded import build_adjacency
from starfc.baselines.weights import Weights, load_weights
from starfc.errors import ModelError
from starfc.features import Features
from starfc.knn import KnnGraph, build_knn
from starfc.metrics import evaluate
from starfc.synth import make_faces

torch = pytest.importorskip("torch")

# What makes each method small enough for a test: its widths, and how many steps.
TINY = {
    "lgcn": {"widths": (32, 16), "most": 40, "steps": 60},
    "gcn-d": {"widths": (32, 16), "most": 60, "base": 0.6, "steps": 30},
    "gcn-d-s": {"widths": (32, 16), "most": 60, "base": 0.6, "steps": 80},
    "gcn-v": {"width": 64, "steps": 60},
    "gcn-v-e": {"width": 64, "widths": (32, 16), "steps": 40},
    "da-net": {"width": 32, "length": 4, "steps": 15},
}


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Run torch on one core: products this small only lose by more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def collections():
    """Return two collections of 600 faces of 24 people each, with graphs."""
    found = []
    for seed in (1, 2):
        rows, people = make_faces(600, people=24, dim=64, seed=seed)
        found.append((Features(rows), build_knn(Features(rows), k=25), people))
    return found


@pytest.mark.parametrize("name", TINY)
def test_a_trained_method_finds_people_it_has_not_seen(collections, name, tmp_path):
    (features, graph, people), (other, other_graph, truth) = collections
    method = METHODS[name]
    module = method.load()
    stages = []
    model = module.train_model(
        features,
        graph,
        people,
        seed=4,
        progress=lambda stage, done, total: stages.append(done),
        **TINY[name] | method.settings,
    )
    assert stages[-1] == TINY[name]["steps"]
    again = module.train_model(features, graph, people, seed=4, **TINY[name] | method.settings)
    assert all(np.array_equal(model.tensors[key], again.tensors[key]) for key in again.tensors)
    model.save(tmp_path / "weights.safetensors")
    model = load_weights(tmp_path / "weights.safetensors")

    evidence = module.measure_evidence(other, other_graph, model)
    tried = [
        (evaluate(truth, module.cluster_evidence(evidence, **method.settings, **chosen)), chosen)
        for chosen in module.GRID
    ]
    best, chosen = max(tried, key=lambda pair: pair[0].pairwise.f + pair[0].bcubed.f)
    assert (best.pairwise.f + best.bcubed.f) / 2 > 0.5  # the settings are chosen with the labels: only a floor
    labels = module.cluster_faces(other, other_graph, model=model, **method.settings, **chosen)
    assert evaluate(truth, labels) == best


def test_starfc_through_the_same_door(collections):
    (features, graph, people), (other, other_graph, _) = collections
    module = METHODS["starfc"].load()
    model = module.train_model(features, graph, people, preset="default", steps=2, hidden=(8,), threads=1)
    labels = module.cluster_faces(other, other_graph, model=model, preset="default")
    assert labels.shape == (600,) and "history" not in model.facts["training"]


def test_damaged_weights_are_named(tmp_path):
    (tmp_path / "w.safetensors").write_bytes(b"nothing")
    with pytest.raises(ModelError, match="cannot be read"):
        load_weights(tmp_path / "w.safetensors")
    assert Weights({"a.x": np.ones(1, np.float32), "b": np.ones(1, np.float32)}).select("a.").keys() == {"x"}


# kernels


@settings(max_examples=50, deadline=None)
@given(graph=knn_graphs(), seed=st.integers(0, 1000))
def test_graphs_are_cut_out(graph, seed):
    rng = np.random.default_rng(seed)
    nodes = np.full((2, 6), -1, dtype=np.int32)
    for row in nodes:
        chosen = rng.permutation(graph.n)[: rng.integers(0, 7)]
        row[: len(chosen)] = chosen
    found = build_adjacency(nodes, graph.neighbors, graph.similarities)
    for row, matrix in zip(nodes, found, strict=True):
        wanted = np.zeros((6, 6))
        for p, a in enumerate(row):
            for q, b in enumerate(row):
                if a >= 0 and b >= 0:
                    listed = [
                        similarity
                        for i, j in ((a, b), (b, a))
                        for similarity in graph.similarities[i][graph.neighbors[i] == j]
                    ]
                    wanted[p, q] = 1 if p == q else max([0, *listed])
        sums = wanted.sum(axis=1, keepdims=True)
        assert np.allclose(matrix, np.divide(wanted, sums, out=np.zeros_like(wanted), where=sums > 0), atol=1e-6)


@settings(max_examples=40, deadline=None)
@given(graph=knn_graphs(), second=st.integers(1, 4), room=st.integers(0, 6))
def test_hops_are_gathered(graph, second, room):
    from starfc.baselines.lgcn import gather_hops

    most = graph.k + room
    found = gather_hops(graph.neighbors, np.arange(graph.n), second, most)
    for pivot in range(graph.n):
        wanted = graph.neighbors[pivot].tolist()
        for middle in graph.neighbors[pivot]:
            for face in graph.neighbors[middle][:second] if middle >= 0 else []:
                if face >= 0 and face != pivot and face not in wanted:
                    wanted.append(int(face))
        assert found[pivot].tolist() == (wanted + [-1] * most)[:most]


def test_proposals_hold_every_scale_once():
    from starfc.baselines.proposals import propose_clusters

    rng = np.random.default_rng(0)
    centers = np.repeat(np.eye(4), 5, axis=0)
    features = Features((centers + 0.05 * rng.normal(size=centers.shape)).astype(np.float32))
    proposals = propose_clusters(features, build_knn(features, k=8), base=0.7, max_size=300, max_parts=16)
    sets = [tuple(proposals.get(p)) for p in range(len(proposals))]
    assert len(set(sets)) == len(sets)
    assert {tuple(range(5 * person, 5 * person + 5)) for person in range(4)} <= set(sets)


def test_the_best_proposal_takes_a_face_first():
    from starfc.baselines.gcn_d import Evidence, cluster_evidence
    from starfc.baselines.proposals import Proposals

    proposals = Proposals(np.array([0, 3, 6]), np.array([0, 1, 2, 2, 3, 4], np.int32))
    stays = np.array([True, True, True, True, True, False])
    evidence = Evidence(proposals, np.array([0.2, 0.9], np.float32), np.array([0.5, 0.2], np.float32), stays, 6)
    assert cluster_evidence(evidence, segment=False).tolist() == [0, 0, 1, 1, 1, -1]
    assert cluster_evidence(evidence, segment=True).tolist() == [0, 0, 1, 1, -1, -1]
    assert cluster_evidence(evidence, segment=True, mixed=(0.3, 0.7)).tolist() == [0, 0, 1, 1, 1, -1]
    assert cluster_evidence(evidence, segment=False, least=0.5).tolist() == [-1, -1, 1, 1, 1, -1]


def test_without_proposals_everybody_is_alone():
    from starfc.baselines import gcn_d

    features = Features(np.eye(8, dtype=np.float32))
    graph = build_knn(features, k=3)
    model = gcn_d.train_model(features, graph, np.arange(8) // 2, steps=1, widths=(4, 4))
    assert gcn_d.cluster_faces(features, graph, model=model).tolist() == [-1] * 8


def test_the_proposals_base_is_the_best_cosine_of_cdp(collections):
    from starfc.baselines.gcn_d import choose_training

    features, graph, people = collections[0]
    assert 0.2 <= choose_training(features, graph, people)["base"] <= 0.8


def test_confidence_leaves_padding_and_strangers_out():
    from starfc.baselines.gcn_v import measure_confidence

    graph = KnnGraph(
        np.array([[1, -1], [0, 2], [1, 0]], np.int32), np.array([[0.8, 0], [0.8, 0.4], [0.4, 0.2]], np.float32)
    )
    assert np.allclose(measure_confidence(graph, np.array([5, 5, -1])), [0.8, 0.8, -0.3])


def test_overlaps_take_any_label_and_leave_the_unknown_out():
    from starfc.baselines.proposals import Proposals, measure_overlap

    proposals = Proposals(np.array([0, 3, 6]), np.array([0, 1, 2, 3, 4, 5], np.int32))
    labels = np.array([10**17, 10**17, -1, 10**17, 7, 7])
    iou, iop = measure_overlap(proposals, labels)
    assert np.allclose(iou, [2 / 3, 2 / 3]) and np.allclose(iop, [1, 2 / 3])
