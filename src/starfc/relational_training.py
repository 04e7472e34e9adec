"""Training of the relational scorer: labelled faces, or many worlds of them, become a RelationalModel.

In: collections of Features and labels. Out: Perceptrons, and RelationalModels of them. From each collection a sample of
edges is described, at first sight (`relations.py`) or, with the probabilities of a first network, at a second look
(`looks.py`), and labelled by whether both ends are the same person; the network minimises the cross entropy, every
collection having the same say. A whole collection is one draw from the world of collections, so more of them teach
more than more edges of each.

:func:`fit_residual` is for the user's own people: it leaves a model as it is and learns a small network to be added to
the second's log-odds, r(x) = W_2 relu(W_1 x + b_1) + b_2 with weights that decay towards none. Both are one network in
the end, the new one's hidden units passing through the layers of the old.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import InputError, MissingExtraError, ModelError
from .features import Features
from .knn import KnnGraph, build_knn
from .looks import sum_beliefs
from .perceptron import Perceptron
from .profiles import choose_k, measure_profiles
from .progress import Progress, silent
from .relational import (
    FIRST_ODDS,
    INPUTS,
    RelationalModel,
    add_second,
    describe_again,
    predict_codes,
)
from .relational import load_shipped as load_shipped
from .relations import RELATIONS, relate_rows, survey_graph

HIDDEN = (48, 24)
_CHUNK_ROWS = 32
_BATCH = 4096
_RESIDUAL_BATCH = 2048
_TIMES_THROUGH = 4
# How many times the say of an edge of the largest collection one of a small collection may have: among worlds, and
# among collections of a user's people, where those of a few faces of everybody are far smaller than the others.
_MOST_TIMES, _MOST_TIMES_OF_FEW = 3, 12
_RANGE = (0.001, 0.999)  # quantiles of the training edges


@dataclass(frozen=True)
class EdgeSample:
    """Described edges of one collection.

    Attributes
    ----------
    inputs : float32 (m, inputs)
        Relations; after a second look, all INPUTS.
    targets : float32 (m,)
        1 where both ends are the same person.
    """

    inputs: NDArray[np.float32]
    targets: NDArray[np.float32]


def sample_edges(
    features: Features,
    labels: NDArray[np.int64],
    *,
    n_edges: int = 10_000,
    k: int | None = None,
    graph: KnnGraph | None = None,
    model: RelationalModel | None = None,
    most_per_face: int | None = None,
    seed: int = 0,
) -> EdgeSample:
    """Describe a sample of the edges of a labelled collection; unlabelled faces (-1) stay strangers to the sample.

    Parameters
    ----------
    features : Features
        (n, d).
    labels : int64 (n,)
        People; edges of unlabelled faces are not sampled.
    n_edges : int
        At most.
    k : int, optional
        Neighbours; chosen from the data by default.
    graph : KnnGraph, optional
        A ready-made one.
    model : RelationalModel, optional
        Whose first network's probabilities the edges are looked at with again; at first sight by default.
    most_per_face : int, optional
        Edges of one face: without it, a person with hundreds among people with one makes nearly all of the sample.
    seed : int
        Which edges.

    Returns
    -------
    EdgeSample

    Examples
    --------
    >>> from starfc.synth import make_faces
    >>> faces, people = make_faces(300, people=30, dim=32)
    >>> sample_edges(Features(faces), people, n_edges=100).inputs.shape == (100, len(RELATIONS))
    True
    """
    if len(labels) != len(features):
        raise InputError(f"{len(labels)} labels were given for {len(features)} faces; there must be one per face")
    profiles = measure_profiles(features)
    known = graph or build_knn(features, k=k or choose_k(features, profiles), seed=seed)
    around = survey_graph(known, profiles.weigh_edges(known))
    beliefs = None if model is None else sum_beliefs(known.neighbors, predict_codes(around, model.first))
    rng = np.random.default_rng(seed)
    width = len(RELATIONS if model is None else INPUTS)
    inputs, targets, n_found = [np.empty((0, width), np.float32)], [np.empty(0, np.bool_)], 0
    for start in rng.permutation(np.arange(0, len(features), _CHUNK_ROWS)):
        if n_found >= 4 * n_edges:  # enough chunks that no few people make the sample
            break
        rows = np.arange(start, min(start + _CHUNK_ROWS, len(features)))
        found, positions = relate_rows(around, rows) if beliefs is None else describe_again(around, beliefs, rows)
        ends = start + positions // known.k, known.neighbors[start + positions // known.k, positions % known.k]
        usable = (labels[ends[0]] >= 0) & (labels[ends[1]] >= 0)
        if most_per_face is not None:
            usable[usable] = _draw_few(ends[0][usable], most_per_face, rng)
        inputs.append(found[usable])
        targets.append(labels[ends[0]][usable] == labels[ends[1]][usable])
        n_found += int(usable.sum())
    drawn = rng.permutation(n_found)[:n_edges]
    return EdgeSample(np.concatenate(inputs)[drawn], np.concatenate(targets)[drawn].astype(np.float32))


def _draw_few(faces: NDArray[np.int64], most: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Mark so many of the edges of each face, or all; faces ascend.

    >>> _draw_few(np.array([3, 3, 3, 5]), 2, np.random.default_rng(0))
    array([False,  True,  True,  True])
    """
    order = np.lexsort((rng.random(len(faces)), faces))
    marked = np.empty(len(faces), dtype=np.bool_)
    marked[order] = np.arange(len(faces)) - np.searchsorted(faces, faces) < most  # places within each face
    return marked


def fit_network(
    samples: list[EdgeSample],
    *,
    hidden: tuple[int, ...] = HIDDEN,
    epochs: int = 10,
    learning_rate: float = 4e-3,
    weight_decay: float = 1e-3,
    seed: int = 0,
    progress: Progress = silent,
) -> Perceptron:
    """Fit a network to described edges of several collections; of a second look, to what is to be added to the first.

    Parameters
    ----------
    samples : list of EdgeSample
        One for each collection; those with fewer edges have a larger weight each.
    hidden : tuple of int
        Widths of the hidden layers.
    epochs, learning_rate, weight_decay, seed
        Of the optimiser (AdamW, one cycle).

    Returns
    -------
    Perceptron
    """
    torch = import_torch()
    described = np.concatenate([sample.inputs for sample in samples])
    known = torch.from_numpy(_find_first_odds(described))
    lowest, highest = np.quantile(described, _RANGE, axis=0)
    inputs = np.clip(described, lowest, highest).astype(np.float32)
    targets = torch.from_numpy(np.concatenate([sample.targets for sample in samples]))
    weights = torch.from_numpy(_weigh_samples(samples, _MOST_TIMES))
    # What is the same for all edges (of one collection) must not be blown up: another one will differ in it.
    mean, spread = inputs.mean(axis=0), np.maximum(inputs.std(axis=0), 0.1 * (highest - lowest) + 1e-3)
    scaled = torch.from_numpy(((inputs - mean) / spread).astype(np.float32))
    torch.manual_seed(seed)
    network = _make_network(torch, [len(mean), *hidden, 1])
    optimizer = torch.optim.AdamW(network.parameters(), learning_rate, weight_decay=weight_decay)
    n_batches = -(-len(inputs) // _BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, learning_rate, total_steps=epochs * n_batches)
    for epoch in range(epochs):
        progress("train", epoch, epochs)
        for batch in torch.randperm(len(inputs)).split(_BATCH):
            losses = torch.nn.functional.binary_cross_entropy_with_logits(
                known[batch] + network(scaled[batch])[:, 0], targets[batch], weight=weights[batch]
            )
            optimizer.zero_grad()
            losses.backward()
            optimizer.step()
            schedule.step()
    progress("train", epochs, epochs)
    ranges = np.stack([lowest, highest]).astype(np.float32)
    return _read_network(torch, network, mean, spread, ranges)


def _find_first_odds(inputs: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the log-odds that a network of these inputs adds to: those of the first network, or none."""
    is_second = inputs.shape[1] == len(INPUTS)
    return np.ascontiguousarray(inputs[:, FIRST_ODDS]) if is_second else np.zeros(len(inputs), np.float32)


def fit_residual(
    samples: list[EdgeSample],
    start: RelationalModel,
    *,
    hidden: int = 32,
    steps: int | None = None,
    learning_rate: float = 3e-3,
    weight_decay: float = 1e-2,
    seed: int = 0,
    facts: dict[str, Any] | None = None,
    progress: Progress = silent,
) -> RelationalModel:
    """Learn what to add to the log-odds of a network on the edges of known people.

    Parameters
    ----------
    samples : list of EdgeSample
        One for each collection, at a second look; those with fewer edges have a larger weight each.
    start : RelationalModel
        It is not changed, and stays the better part of the result.
    hidden : int
        Units of what is added.
    steps, learning_rate, weight_decay, seed
        Of the optimiser (AdamW, one cycle); four times through the edges by default.
    facts : dict, optional
        Kept in the model.

    Returns
    -------
    RelationalModel

    Examples
    --------
    >>> from starfc.synth import make_faces
    >>> faces, people = make_faces(300, people=30, dim=32)
    >>> sample = sample_edges(Features(faces), people, n_edges=500, model=load_shipped())
    >>> fitted = fit_residual([sample], load_shipped(), hidden=8, steps=2)
    >>> len(fitted.second.biases[0]) - len(load_shipped().second.biases[0])
    8
    """
    torch = import_torch()
    _require_both_kinds(samples)
    if start.second is None:
        raise ModelError("the model has no second look, which is what is fitted; start from another one")
    lowest, highest = start.second.lowest, start.second.highest
    described = np.concatenate([sample.inputs for sample in samples])
    inputs = np.clip(described, lowest, highest)
    mean, spread = inputs.mean(axis=0), np.maximum(inputs.std(axis=0), 0.1 * (highest - lowest) + 1e-3)
    scaled = torch.from_numpy(((inputs - mean) / spread).astype(np.float32))
    known = torch.from_numpy(add_second(start.second, described))
    targets = torch.from_numpy(np.concatenate([sample.targets for sample in samples]))
    weights = torch.from_numpy(_weigh_samples(samples, _MOST_TIMES_OF_FEW))
    rng = np.random.default_rng(seed)
    layers = _draw_residual(torch, len(mean), hidden, rng)
    optimizer = torch.optim.AdamW(layers, learning_rate, weight_decay=weight_decay)
    n_steps = steps or _TIMES_THROUGH * -(-len(inputs) // _RESIDUAL_BATCH)
    # One cycle needs a step up and one down.
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, learning_rate, total_steps=max(4, n_steps))
    for step, rows in enumerate(_draw_batches(len(inputs), n_steps, rng)):
        progress("fit", step, n_steps)
        batch = torch.from_numpy(rows)
        first, shift, last, offset = layers
        added = torch.relu(scaled[batch] @ first + shift) @ last + offset
        losses = torch.nn.functional.binary_cross_entropy_with_logits(
            known[batch] + added, targets[batch], weight=weights[batch]
        )
        optimizer.zero_grad()
        losses.backward()
        optimizer.step()
        schedule.step()
    progress("fit", n_steps, n_steps)
    first, shift, last, offset = (layer.detach().numpy().astype(np.float64) for layer in layers)
    unscaled = (first / spread[:, None], shift - (mean / spread) @ first, last, offset)
    return replace(start, second=_add_networks(start.second, unscaled), facts=facts or {})


def halve_residual(fitted: RelationalModel, start: RelationalModel) -> RelationalModel:
    """Return the network whose log-odds are the mean of those of `start` and of what was fitted to it."""
    assert fitted.second is not None and start.second is not None, "what was fitted is in the second"
    new, old = fitted.second, start.second
    last, bias = new.weights[-1].copy(), np.float32(0.5) * (new.biases[-1] + old.biases[-1])
    last[len(old.weights[-1]) :] /= 2
    halved = replace(new, weights=(*new.weights[:-1], last), biases=(*new.biases[:-1], bias))
    return replace(fitted, second=halved)


def _draw_batches(n: int, n_steps: int, rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
    """Yield the edges of so many steps: all of them in a random order, then in another."""
    order, at = rng.permutation(n), 0
    for _ in range(n_steps):
        if at >= n:
            order, at = rng.permutation(n), 0
        yield order[at : at + _RESIDUAL_BATCH]
        at += _RESIDUAL_BATCH


def _require_both_kinds(samples: list[EdgeSample]) -> None:
    """Refuse edges that nothing can be learned from."""
    targets = np.concatenate([sample.targets for sample in samples])
    if len(targets) == 0 or targets.min() == targets.max():
        raise InputError(
            "the labelled faces have no neighbours of the same person, or no others; training needs both kinds"
        )


def _draw_residual(torch: Any, n_in: int, hidden: int, rng: np.random.Generator) -> list[Any]:  # noqa: ANN401
    """Draw first weights that add next to nothing: W_1, b_1, W_2, b_2."""
    widest = 1 / np.sqrt(n_in)
    drawn = [
        rng.uniform(-widest, widest, (n_in, hidden)),
        rng.uniform(-widest, widest, hidden),
        0.1 * rng.uniform(-1, 1, hidden) / np.sqrt(hidden),
        np.zeros(()),
    ]
    return [torch.from_numpy(np.asarray(tensor, np.float32)).requires_grad_() for tensor in drawn]


def _add_networks(start: Perceptron, residual: tuple[NDArray[np.float64], ...]) -> Perceptron:
    """Return the sum of a network and a residual one as a single network.

    Hidden units of the residual are not negative, so the identity followed by relu carries them through the layers.
    """
    first, shift, last, offset = residual
    n_layers, hidden = len(start.weights), len(shift)
    weights, biases = [], []
    for at, (weight, bias) in enumerate(zip(start.weights, start.biases, strict=True)):
        if at == 0:
            weights.append(np.concatenate([weight, first], axis=1))
            biases.append(np.concatenate([bias, shift]))
        elif at < n_layers - 1:
            carried = np.zeros((weight.shape[0] + hidden, weight.shape[1] + hidden))
            carried[: weight.shape[0], : weight.shape[1]] = weight
            carried[weight.shape[0] :, weight.shape[1] :] = np.eye(hidden)
            weights.append(carried)
            biases.append(np.concatenate([bias, np.zeros(hidden)]))
        else:
            weights.append(np.concatenate([weight, last[:, None]]))
            biases.append(bias + offset)
    return Perceptron(
        tuple(np.ascontiguousarray(weight, np.float32) for weight in weights),
        tuple(np.ascontiguousarray(bias, np.float32) for bias in biases),
        start.lowest, start.highest,
    )  # fmt: skip


def import_torch() -> Any:  # noqa: ANN401
    """Import torch, or say how to get it."""
    try:
        import torch
    except ImportError:
        raise MissingExtraError("torch", "train", "training") from None
    return torch


def _weigh_samples(samples: list[EdgeSample], most_times: float) -> NDArray[np.float32]:
    """Give every collection the same say, but no edge more than `most_times` that of the largest."""
    most = max(len(sample.targets) for sample in samples)
    sizes = [len(sample.targets) for sample in samples]
    return np.concatenate([np.full(size, most / max(size, most / most_times), np.float32) for size in sizes])


def _make_network(torch: Any, widths: list[int]) -> Any:  # noqa: ANN401
    """Make a network with random weights, relu between its layers."""
    layers: list[Any] = []
    for n_in, n_out in pairwise(widths):
        layers += [torch.nn.Linear(n_in, n_out), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])


def _read_network(
    torch: Any,  # noqa: ANN401
    network: Any,  # noqa: ANN401
    mean: NDArray[np.float32],
    spread: NDArray[np.float32],
    ranges: NDArray[np.float32],
) -> Perceptron:
    """Take the weights out, for inputs as they are."""
    layers = [layer for layer in network if isinstance(layer, torch.nn.Linear)]
    weights = [layer.weight.detach().numpy().T.astype(np.float32) for layer in layers]
    biases = [layer.bias.detach().numpy().astype(np.float32) for layer in layers]
    biases[0] = (biases[0] - (mean / spread) @ weights[0]).astype(np.float32)
    weights[0] = (weights[0] / spread[:, None]).astype(np.float32)
    contiguous = tuple(np.ascontiguousarray(weight) for weight in weights)
    return Perceptron(contiguous, tuple(biases), ranges[0], ranges[1])
