"""Perceptron: a small network that turns a few numbers of an edge into log-odds, without torch.

In: float32 (m, inputs). Out: float32 (m,),

    o(x) = W_3 relu(W_2 relu(W_1 x + b_1) + b_2) + b_3,

with any number of layers. Beyond what it has seen in training a network says anything, so inputs are cut to that range
first. `relational_training.py` fits them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numba import njit
from numpy.typing import NDArray

from .errors import ModelError

_EDGES_AT_A_TIME = 256  # through the network


@dataclass(frozen=True, eq=False)
class Perceptron:
    """A network from numbers of an edge to log-odds.

    Attributes
    ----------
    weights : tuple of float32 (inputs, outputs)
        Of each layer; the last gives one number.
    biases : tuple of float32 (outputs,)
    lowest, highest : float32 (inputs,)
        Range of each input in training; inputs are cut to it.
    """

    weights: tuple[NDArray[np.float32], ...]
    biases: tuple[NDArray[np.float32], ...]
    lowest: NDArray[np.float32]
    highest: NDArray[np.float32]

    def require_inputs(self, n_inputs: int) -> None:
        """Raise ModelError unless the network takes so many numbers and gives one, and all its own are finite."""
        widths = [n_inputs, *(len(bias) for bias in self.biases)]
        shapes = [weight.shape for weight in self.weights]
        if widths[-1] != 1 or shapes != list(pairwise(widths)):
            raise ModelError(
                f"a network of relations takes {n_inputs} numbers here and gives one; its layers have shapes"
                f" {shapes}: the folder is damaged or of another version"
            )
        if self.lowest.shape != (n_inputs,) or self.highest.shape != (n_inputs,):
            raise ModelError(f"a network of relations needs a range for each of {n_inputs} numbers; train it again")
        if not all(np.isfinite(tensor).all() for tensor in (*self.weights, *self.biases, self.lowest, self.highest)):
            raise ModelError("the model holds NaN or infinite weights; train it again")

    def name_tensors(self, prefix: str = "") -> dict[str, NDArray[np.float32]]:
        """Return all numbers of the network by name."""
        tensors = {f"layer{at}.weight": weight for at, weight in enumerate(self.weights)}
        tensors |= {f"layer{at}.bias": bias for at, bias in enumerate(self.biases)}
        tensors |= {"lowest": self.lowest, "highest": self.highest}
        return {prefix + name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}

    def predict(self, inputs: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the log-odds of edges, (m, inputs) -> (m,).

        >>> weights = np.array([[1.0], [-2.0]], np.float32)
        >>> ends = np.full(2, -9, np.float32), np.full(2, 9, np.float32)
        >>> Perceptron((weights,), (np.ones(1, np.float32),), *ends).predict(np.array([[3, 20]], np.float32))
        array([-14.], dtype=float32)
        """
        weights = tuple(np.ascontiguousarray(weight) for weight in self.weights)
        rows = np.ascontiguousarray(inputs)
        return np.asarray(_run_network(rows, self.lowest, self.highest, weights, self.biases))


def read_perceptron(tensors: Mapping[str, NDArray[np.float32]], prefix: str = "") -> Perceptron:
    """Return the network whose numbers have these names; KeyError where one is missing.

    >>> weight, bias, ends = np.ones((2, 1), np.float32), np.zeros(1, np.float32), np.ones(2, np.float32)
    >>> network = Perceptron((weight,), (bias,), -ends, ends)
    >>> read_perceptron(network.name_tensors("again."), "again.").weights[0].shape
    (2, 1)
    """
    layers = [name for name in tensors if name.startswith(f"{prefix}layer") and name.endswith(".weight")]
    numbers = range(max(1, len(layers)))
    return Perceptron(
        tuple(tensors[f"{prefix}layer{at}.weight"] for at in numbers),
        tuple(tensors[f"{prefix}layer{at}.bias"] for at in numbers),
        tensors[f"{prefix}lowest"],
        tensors[f"{prefix}highest"],
    )


@njit(cache=True, nogil=True)
def _run_network(inputs, lowest, highest, weights, biases):  # type: ignore[no-untyped-def]
    """Return the log-odds of edges, so few at a time that what is between the layers stays in the cache."""
    out = np.empty(len(inputs), dtype=np.float32)
    widest = inputs.shape[1]
    for bias in biases:
        widest = max(widest, len(bias))
    below, above = np.empty(_EDGES_AT_A_TIME * widest, np.float32), np.empty(_EDGES_AT_A_TIME * widest, np.float32)
    for start in range(0, len(inputs), _EDGES_AT_A_TIME):
        block = inputs[start : start + _EDGES_AT_A_TIME]
        width = block.shape[1]
        _cut_to_range(block, lowest, highest, below)
        for layer in range(len(weights)):
            values = below[: len(block) * width].reshape(len(block), width)
            width = len(biases[layer])
            product = above[: len(block) * width].reshape(len(block), width)
            np.dot(values, weights[layer], product)
            _add_bias(product, biases[layer], np.float32(0 if layer + 1 < len(weights) else -np.inf))
            below, above = above, below
        out[start : start + len(block)] = below[: len(block)]
    return out


@njit(cache=True, nogil=True)
def _cut_to_range(block, lowest, highest, out):  # type: ignore[no-untyped-def]
    """Write the inputs of some edges one after the other, each cut to its range."""
    width = block.shape[1]
    for edge in range(len(block)):
        for at in range(width):
            value = block[edge, at] if block[edge, at] > lowest[at] else lowest[at]
            out[edge * width + at] = value if value < highest[at] else highest[at]


@njit(cache=True, nogil=True)
def _add_bias(values, bias, lowest):  # type: ignore[no-untyped-def]
    """Add the bias to every row, and raise what is below the lowest to it."""
    for row in range(len(values)):
        for at in range(len(bias)):
            value = values[row, at] + bias[at]
            values[row, at] = value if value > lowest else lowest
