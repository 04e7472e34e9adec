import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphs import knn_graphs, random_knn_graph
from starfc.affinity import build_affinity
from starfc.convolution import TILE_ROWS, Layer, open_rows, reads_in_place
from starfc.features import Features
from starfc.scratch import Scratch
from test_affinity import dense_affinity


@settings(deadline=None, max_examples=40)
@given(knn_graphs(), st.integers(0, 99), st.sampled_from([np.float32, np.float16, np.float64]))
def test_equals_the_dense_formula(graph, seed, dtype):
    rng = np.random.default_rng(seed)
    features = Features(rng.normal(size=(graph.n, 5)).astype(dtype))
    weight, bias = rng.normal(size=(10, 3)).astype(np.float32), rng.normal(size=3).astype(np.float32)
    rows = rng.permutation(graph.n).astype(np.int32)
    layer = Layer(open_rows(features, Scratch()), build_affinity(graph), weight, bias)
    unit = features.read(0, graph.n).astype(np.float64)
    expected = np.maximum(np.concatenate([unit, dense_affinity(graph) @ unit], axis=1) @ weight + bias, 0)
    np.testing.assert_allclose(layer.apply(rows)[: graph.n], expected[rows], atol=1e-5)


def test_a_short_run_of_rows_has_the_bits_of_a_full_one():
    """A product is always of one height, because its bits may depend on it."""
    graph = random_knn_graph(3000, 10)
    rng = np.random.default_rng(0)
    features = Features(rng.normal(size=(3000, 48)).astype(np.float32))
    weight, bias = rng.normal(size=(96, 70)).astype(np.float32), np.zeros(70, np.float32)
    layer = Layer(open_rows(features, Scratch()), build_affinity(graph), weight, bias)
    full, short = (layer.apply(np.arange(count, dtype=np.int32)) for count in (TILE_ROWS, 7))
    assert full[:7].tobytes() == short[:7].tobytes()


@pytest.mark.parametrize(
    ("variant", "in_place"),
    [
        (lambda x: x, True),
        (lambda x: x.astype(np.float16), True),
        (lambda x: x.astype(">f4"), False),
        (np.asfortranarray, False),
        (lambda x: x.astype(np.float64), False),
        (lambda x: (100 * x).astype(np.int16), False),
        (lambda x: x[:, ::2], False),
    ],
)
def test_features_are_read_where_they_are_if_kernels_can(variant, in_place):
    features = Features(variant(np.random.default_rng(0).normal(size=(20, 6)).astype(np.float32)))
    assert reads_in_place(features) is in_place
    source = open_rows(features, Scratch())
    assert np.shares_memory(source.values, features.raw) is in_place
    values = source.values.view(np.float16) if source.values.dtype == np.uint16 else source.values
    unit = values.astype(np.float32) * source.scales[:, None]
    np.testing.assert_allclose(unit, features.read(0, 20), atol=1e-6)


@pytest.mark.parametrize("scale", [1e-38, 1e37])
def test_features_of_extreme_length_are_copied(tmp_path, scale):
    features = Features((scale * np.random.default_rng(0).uniform(0.1, 1, (20, 6))).astype(np.float32))
    source = open_rows(features, Scratch(tmp_path / "w"))
    assert (source.scales == 1).all() and (tmp_path / "w" / "rows.npy").is_file()
    np.testing.assert_allclose(np.linalg.norm(source.values, axis=1), 1, atol=1e-6)
