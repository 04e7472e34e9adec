import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphs import knn_graphs, random_knn_graph
from starfc.errors import InputError, ModelError
from starfc.features import Features
from starfc.halves import can_widen
from starfc.knn import KnnGraph, join_rows
from starfc.model import Model, ModelConfig, expected_shapes
from starfc.score import score_by_cosine, score_edges, split_head
from starfc.scratch import Scratch
from starfc.threads import limited_threads
from test_affinity import dense_affinity


def random_model(dim, hidden, seed=0, scale=1.0):
    rng = np.random.default_rng(seed)
    tensors = {}
    for name, shape in expected_shapes(dim, hidden).items():
        fan_in = shape[0] if name.startswith("conv") else shape[-1]
        tensors[name] = (scale * rng.normal(size=shape) / np.sqrt(fan_in)).astype(np.float32)
    tensors["classifier.1.weight"] = rng.normal(0.25, 0.5, size=hidden[-1]).astype(np.float32)  # slopes of either sign
    return Model(ModelConfig(dim=dim, hidden=hidden), tensors)


def plain_scores(rows, graph, model):
    """The network as the paper writes it: concatenated pair features through the MLP and a softmax, in float64."""
    t = {name: tensor.astype(np.float64) for name, tensor in model.tensors.items()}
    affinity, hidden = dense_affinity(graph), rows.astype(np.float64)
    for layer in range(1, len(model.config.hidden) + 1):
        joined = np.concatenate([hidden, affinity @ hidden], axis=1)
        hidden = np.maximum(joined @ t[f"conv{layer}.weight"] + t[f"conv{layer}.bias"], 0)
    source, slot = np.nonzero(graph.neighbors >= 0)
    pairs = np.concatenate([hidden[source], hidden[graph.neighbors[source, slot]]], axis=1)
    inner = pairs @ t["classifier.0.weight"].T + t["classifier.0.bias"]
    inner = np.where(inner > 0, inner, t["classifier.1.weight"] * inner)
    logits = inner @ t["classifier.2.weight"].T + t["classifier.2.bias"]
    exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
    scores = np.zeros(graph.neighbors.shape)
    scores[source, slot] = exponentials[:, 1] / exponentials.sum(axis=1)
    return scores


@settings(deadline=None, max_examples=60)
@given(
    knn_graphs(),
    st.integers(0, 1000),
    st.sampled_from([(8,), (1,), (16, 8), (5, 7, 3)]),
    st.sampled_from([0.3, 1.0, 5.0]),
)
def test_equals_plain_concatenation(graph, seed, hidden, scale):
    rows = np.random.default_rng(seed).normal(size=(len(graph.neighbors), 6)).astype(np.float32)
    model = random_model(6, hidden, seed, scale)
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    scored = score_edges(Features(rows), graph, model)
    # three layers of large weights make logits of hundreds, whose last float32 bit is worth more
    np.testing.assert_allclose(scored.scores, plain_scores(unit, graph, model), atol=1e-5 * max(1, scale))


def test_equals_plain_concatenation_at_the_released_width():
    rows = np.random.default_rng(1).normal(size=(300, 256)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    graph = join_rows(rows, 20)
    model = random_model(256, (512,), scale=2.0)
    np.testing.assert_allclose(
        score_edges(Features(rows), graph, model).scores, plain_scores(rows, graph, model), atol=1e-5
    )


def test_same_bits_for_any_number_of_threads():
    graph = random_knn_graph(5000, 10)  # more than one tile
    features = Features(np.random.default_rng(0).normal(size=(5000, 16)).astype(np.float32))
    model = random_model(16, (32,))
    with limited_threads(1):
        alone = score_edges(features, graph, model).scores
    with limited_threads(2):
        together = score_edges(features, graph, model).scores
    assert alone.tobytes() == together.tobytes()


@pytest.mark.parametrize("hidden", [(300,), (8, 260)])
@pytest.mark.parametrize("columns", [1, 128, 200])
def test_same_bits_for_any_memory(tmp_path, monkeypatch, hidden, columns):
    graph = random_knn_graph(2500, 7)  # three tiles, the last one short
    features = Features(np.random.default_rng(0).normal(size=(2500, 16)).astype(np.float32))
    model = random_model(16, hidden)
    monkeypatch.setattr("starfc.score.choose_group", lambda n: 64)
    whole = score_edges(features, graph, model).scores
    assert score_edges(features, graph, model, columns=columns).scores.tobytes() == whole.tobytes()
    with Scratch(tmp_path / "w", limit_bytes=1) as scratch:  # files, and every page let go of after every tile
        mapped = score_edges(features, graph, model, columns=columns, scratch=scratch).scores
        assert mapped.tobytes() == whole.tobytes()


@pytest.mark.skipif(not can_widen(), reason="this processor cannot read halves")
@pytest.mark.parametrize(("scale", "moved"), [(1.0, 5e-4), (30.0, 0.0)])
def test_half_precision_where_it_moves_no_score(tmp_path, monkeypatch, scale, moved):
    """Of a network that it would matter to, single precision to the bit; either way the same for any memory."""
    graph = random_knn_graph(2500, 7)
    features = Features(np.random.default_rng(0).normal(size=(2500, 16)).astype(np.float32))
    model = random_model(16, (260,), scale=scale)
    monkeypatch.setattr("starfc.score.choose_group", lambda n: 64)
    single = score_edges(features, graph, model).scores
    monkeypatch.setattr("starfc.score.measure_column", lambda n: 4)
    halved = score_edges(features, graph, model).scores
    assert 0 < np.abs(halved - single).max() <= moved if moved else halved.tobytes() == single.tobytes()
    for columns in (1, 64, 200):
        assert score_edges(features, graph, model, columns=columns).scores.tobytes() == halved.tobytes()
        with Scratch(tmp_path / str(columns), limit_bytes=1) as scratch:
            mapped = score_edges(features, graph, model, columns=columns, scratch=scratch)
            assert mapped.scores.tobytes() == halved.tobytes() and scratch.all_done


@pytest.mark.parametrize("columns", [None, 64])
@pytest.mark.parametrize("hidden", [(150,), (8, 150)])
def test_an_interrupted_run_goes_on_with_the_next_tile(tmp_path, hidden, columns):
    graph = random_knn_graph(2500, 7)
    features = Features(np.random.default_rng(0).normal(size=(2500, 16)).astype(np.float32))
    model = random_model(16, hidden)
    whole = score_edges(features, graph, model).scores
    n_runs = 0
    done: list[bool] = []
    while True:
        scratch = Scratch(tmp_path / "w")
        n_begun, begun = 0, scratch.mark

        def mark_one(unit, begun=begun):
            nonlocal n_begun
            n_begun += 1
            if n_begun > 2:
                raise KeyboardInterrupt  # the tile's work is done, but it was not said
            begun(unit)

        scratch.mark = mark_one
        n_runs += 1
        try:
            with limited_threads(1):
                scored = score_edges(features, graph, model, columns=columns, scratch=scratch)
            break
        except KeyboardInterrupt:
            done.append(scratch.all_done)
    assert scored.scores.tobytes() == whole.tobytes()
    n_passes = 1 if columns is None else len(split_head(model, 128).divide(columns))
    assert n_runs == -(-3 * (len(hidden) - 1 + 2 * n_passes) // 2) and not any(done)


def test_half_precision_features_are_read_as_they_are():
    rows = np.random.default_rng(1).normal(size=(300, 24)).astype(np.float16)
    graph, model = random_knn_graph(300, 9), random_model(24, (16,))
    unit = rows.astype(np.float64) / np.linalg.norm(rows.astype(np.float64), axis=1, keepdims=True)
    np.testing.assert_allclose(
        score_edges(Features(rows), graph, model).scores, plain_scores(unit, graph, model), atol=1e-5
    )


def test_passes_cover_all_groups_once():
    head = split_head(random_model(4, (300,)), 64)
    for columns in (None, 1, 64, 128, 300, 1000):
        passes = head.divide(columns)
        assert [group for run in passes for group in range(*run)] == list(range(len(head.signs)))
        widths = [int(head.bounds[stop] - head.bounds[first]) for first, stop in passes]
        assert columns is None or all(width < max(columns, 64) + 64 for width in widths)
        assert len(passes) <= max(1, -(-300 // (columns or 300)))
    assert len(head.divide(None)) == 1


def test_cosine_scores_are_the_similarities():
    graph = random_knn_graph(10, 3)
    np.testing.assert_array_equal(score_by_cosine(graph).scores, graph.similarities)


def test_model_of_another_dimension_is_refused():
    with pytest.raises(ModelError, match=r"dimension 6, these have 4"):
        score_edges(Features(np.eye(4, dtype=np.float32)), random_knn_graph(4, 2), random_model(6, (8,)))


def test_graph_of_other_faces_is_refused():
    with pytest.raises(InputError, match="5 rows for 4 faces"):
        score_edges(Features(np.eye(4, dtype=np.float32)), random_knn_graph(5, 2), random_model(4, (8,)))


def test_a_graph_without_edges_scores_nothing():
    graph = KnnGraph(np.full((3, 2), -1, np.int32), np.zeros((3, 2), np.float32))
    assert (
        score_edges(Features(np.eye(3, dtype=np.float32)), graph, random_model(3, (4,))).scores.tolist() == [[0, 0]] * 3
    )


def test_an_error_in_a_tile_stops_the_stage():
    def interrupt(stage, done, total):
        if stage == "project nodes" and done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        score_edges(
            Features(np.random.default_rng(0).normal(size=(5000, 4))),
            random_knn_graph(5000, 3),
            random_model(4, (4,)),
            progress=interrupt,
        )
