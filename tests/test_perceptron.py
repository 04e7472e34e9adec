"""Small networks, without torch."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from starfc.perceptron import Perceptron, read_perceptron


def draw_network(widths, seed=0):
    rng = np.random.default_rng(seed)
    weights = tuple(rng.normal(size=shape).astype(np.float32) for shape in pairwise(widths))
    biases = tuple(rng.normal(size=width).astype(np.float32) for width in widths[1:])
    return Perceptron(weights, biases, np.full(widths[0], -1, np.float32), np.full(widths[0], 2, np.float32))


@pytest.mark.parametrize("widths", [(7, 1), (7, 5, 1), (3, 40, 9, 1)])
@pytest.mark.parametrize("n_edges", [0, 1, 255, 256, 700])
def test_log_odds_are_those_of_the_layers(widths, n_edges):
    network = draw_network(widths)
    inputs = np.random.default_rng(1).normal(scale=3, size=(n_edges, widths[0])).astype(np.float32)
    values = np.minimum(np.maximum(inputs.astype(np.float64), -1), 2)
    for at, (weight, bias) in enumerate(zip(network.weights, network.biases, strict=True)):
        values = values @ weight + bias
        values = values if at == len(network.weights) - 1 else np.maximum(values, 0)
    np.testing.assert_allclose(network.predict(inputs), values[:, 0], rtol=1e-4, atol=1e-4)


def test_two_networks_share_a_folder():
    one, other = draw_network((4, 3, 1)), draw_network((6, 2, 2, 1), seed=5)
    tensors = one.name_tensors() | other.name_tensors("second.")
    inputs = np.ones((2, 6), np.float32)
    assert (read_perceptron(tensors, "second.").predict(inputs) == other.predict(inputs)).all()
    assert (read_perceptron(tensors).predict(inputs[:, :4]) == one.predict(inputs[:, :4])).all()
    with pytest.raises(KeyError):
        read_perceptron(tensors, "third.")
