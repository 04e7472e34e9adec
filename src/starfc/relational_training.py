"""Training of the relational scorer: labelled faces, or many worlds of them, become a RelationalModel.

In: collections of Features and labels. Out: RelationalModel. From each collection a sample of edges is described
(`relations.py`) and labelled by whether both ends are the same person; the network minimises the cross entropy, every
collection having the same say. A whole collection is one draw from the world of collections, so more of them teach
more than more edges of each.

:func:`fit_relations` starts from the shipped network and goes on with the user's own people. Relations generalise, so
a few hundred people suffice; the shipped worlds are what it knew before, and a short training does not forget them.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import InputError, MissingExtraError
from .features import Features
from .knn import KnnGraph, build_knn
from .profiles import choose_k, measure_profiles
from .progress import Progress, silent
from .relational import RelationalModel, load_shipped
from .relations import RELATIONS, relate_rows, survey_graph

HIDDEN = (48, 24)
_CHUNK_ROWS = 32
_BATCH = 4096
_RANGE = (0.001, 0.999)  # quantiles of the training edges


@dataclass(frozen=True)
class EdgeSample:
    """Described edges of one collection.

    Attributes
    ----------
    relations : float32 (m, relations)
    targets : float32 (m,)
        1 where both ends are the same person.
    """

    relations: NDArray[np.float32]
    targets: NDArray[np.float32]


def sample_edges(
    features: Features,
    labels: NDArray[np.int64],
    *,
    n_edges: int = 10_000,
    k: int | None = None,
    graph: KnnGraph | None = None,
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
    seed : int
        Which edges.

    Returns
    -------
    EdgeSample

    Examples
    --------
    >>> from starfc.synth import make_faces
    >>> faces, people = make_faces(300, people=30, dim=32)
    >>> sample_edges(Features(faces), people, n_edges=100).relations.shape == (100, len(RELATIONS))
    True
    """
    if len(labels) != len(features):
        raise InputError(f"{len(labels)} labels were given for {len(features)} faces; there must be one per face")
    profiles = measure_profiles(features)
    known = graph or build_knn(features, k=k or choose_k(features, profiles), seed=seed)
    around = survey_graph(known, profiles.weigh_edges(known))
    rng = np.random.default_rng(seed)
    relations, targets, n_found = [np.empty((0, len(RELATIONS)), np.float32)], [np.empty(0, np.bool_)], 0
    for start in rng.permutation(np.arange(0, len(features), _CHUNK_ROWS)):
        if n_found >= 4 * n_edges:  # enough chunks that no few people make the sample
            break
        found, positions = relate_rows(around, start, min(start + _CHUNK_ROWS, len(features)))
        ends = start + positions // known.k, known.neighbors[start + positions // known.k, positions % known.k]
        usable = (labels[ends[0]] >= 0) & (labels[ends[1]] >= 0)
        relations.append(found[usable])
        targets.append(labels[ends[0]][usable] == labels[ends[1]][usable])
        n_found += int(usable.sum())
    drawn = rng.permutation(n_found)[:n_edges]
    return EdgeSample(np.concatenate(relations)[drawn], np.concatenate(targets)[drawn].astype(np.float32))


def fit_network(
    samples: list[EdgeSample],
    *,
    start: RelationalModel | None = None,
    hidden: tuple[int, ...] = HIDDEN,
    epochs: int = 10,
    learning_rate: float = 4e-3,
    weight_decay: float = 1e-3,
    seed: int = 0,
    facts: dict[str, Any] | None = None,
    progress: Progress = silent,
) -> RelationalModel:
    """Fit a network to described edges of several collections.

    Parameters
    ----------
    samples : list of EdgeSample
        One for each collection; those with fewer edges have a larger weight each.
    start : RelationalModel, optional
        Go on from its weights; random ones by default.
    hidden : tuple of int
        Widths of the hidden layers, where there is no start.
    epochs, learning_rate, weight_decay, seed
        Of the optimiser (AdamW, one cycle).
    facts : dict, optional
        Kept in the model.

    Returns
    -------
    RelationalModel
    """
    torch = _import_torch()
    relations = np.concatenate([sample.relations for sample in samples])
    lowest, highest = (start.lowest, start.highest) if start else np.quantile(relations, _RANGE, axis=0)
    inputs = np.clip(relations, lowest, highest).astype(np.float32)
    targets = torch.from_numpy(np.concatenate([sample.targets for sample in samples]))
    weights = torch.from_numpy(_weigh_samples(samples))
    # What is the same for all edges (of one collection) must not be blown up: another one will differ in it.
    mean, spread = inputs.mean(axis=0), np.maximum(inputs.std(axis=0), 0.1 * (highest - lowest) + 1e-3)
    scaled = torch.from_numpy(((inputs - mean) / spread).astype(np.float32))
    torch.manual_seed(seed)
    network = _make_network(torch, start, hidden, mean, spread)
    optimizer = torch.optim.AdamW(network.parameters(), learning_rate, weight_decay=weight_decay)
    n_batches = -(-len(inputs) // _BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, learning_rate, total_steps=epochs * n_batches)
    for epoch in range(epochs):
        progress("train", epoch, epochs)
        for batch in torch.randperm(len(inputs)).split(_BATCH):
            losses = torch.nn.functional.binary_cross_entropy_with_logits(
                network(scaled[batch])[:, 0], targets[batch], weight=weights[batch]
            )
            optimizer.zero_grad()
            losses.backward()
            optimizer.step()
            schedule.step()
    progress("train", epochs, epochs)
    ranges = np.stack([lowest, highest]).astype(np.float32)
    return _read_network(torch, network, mean, spread, ranges, facts or {})


def fit_relations(
    features: Features,
    labels: NDArray[np.int64],
    *,
    graph: KnnGraph | None = None,
    n_edges: int = 200_000,
    epochs: int = 6,
    learning_rate: float = 1e-3,
    seed: int = 0,
    progress: Progress = silent,
) -> RelationalModel:
    """Fit the shipped scorer to labelled faces.

    Parameters
    ----------
    features : Features
        (n, d), the faces of the labelled people (and others, label -1).
    labels : int64 (n,)
        Who they are.
    graph : KnnGraph, optional
        Of these faces, where there is one.
    n_edges, epochs, learning_rate, seed
        How much of them is learned from, and how fast.

    Returns
    -------
    RelationalModel

    Examples
    --------
    >>> from starfc.synth import make_faces
    >>> faces, people = make_faces(300, people=30, dim=32)
    >>> model = fit_relations(Features(faces), people, epochs=1)
    >>> model.facts["n_people"]
    30
    """
    sample = sample_edges(features, labels, n_edges=n_edges, graph=graph, seed=seed)
    if len(sample.targets) == 0 or sample.targets.min() == sample.targets.max():
        raise InputError(
            "the labelled faces have no neighbours of the same person, or no others; training needs both kinds"
        )
    facts = {"n_faces": len(features), "n_people": len(np.unique(labels[labels >= 0])), "start": "shipped"}
    return fit_network(
        [sample], start=load_shipped(), epochs=epochs, learning_rate=learning_rate, seed=seed, facts=facts,
        progress=progress,
    )  # fmt: skip


def _import_torch() -> Any:  # noqa: ANN401
    """Import torch, or say how to get it."""
    try:
        import torch
    except ImportError:
        raise MissingExtraError("torch", "train", "training") from None
    return torch


def _weigh_samples(samples: list[EdgeSample]) -> NDArray[np.float32]:
    """Give every collection the same say, but no edge more than three times that of the largest."""
    most = max(len(sample.targets) for sample in samples)
    sizes = [len(sample.targets) for sample in samples]
    return np.concatenate([np.full(size, most / max(size, most / 3), np.float32) for size in sizes])


def _make_network(
    torch: Any,  # noqa: ANN401
    start: RelationalModel | None,
    hidden: tuple[int, ...],
    mean: NDArray[np.float32],
    spread: NDArray[np.float32],
) -> Any:  # noqa: ANN401
    """Make a network on scaled relations, with random weights or those of a model."""
    widths = [len(mean), *(len(bias) for bias in start.biases)] if start else [len(mean), *hidden, 1]
    layers: list[Any] = []
    for at, (n_in, n_out) in enumerate(pairwise(widths)):
        layer = torch.nn.Linear(n_in, n_out)
        if start is not None:
            weight, bias = start.weights[at], start.biases[at]
            if at == 0:  # the model takes relations as they are
                weight, bias = weight * spread[:, None], bias + mean @ weight
            layer.weight.data = torch.from_numpy(np.ascontiguousarray(weight.T, np.float32))
            layer.bias.data = torch.from_numpy(np.ascontiguousarray(bias, np.float32))
        layers += [layer, torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])


def _read_network(
    torch: Any,  # noqa: ANN401
    network: Any,  # noqa: ANN401
    mean: NDArray[np.float32],
    spread: NDArray[np.float32],
    ranges: NDArray[np.float32],
    facts: dict[str, Any],
) -> RelationalModel:
    """Take the weights out, for relations as they are."""
    layers = [layer for layer in network if isinstance(layer, torch.nn.Linear)]
    weights = [layer.weight.detach().numpy().T.astype(np.float32) for layer in layers]
    biases = [layer.bias.detach().numpy().astype(np.float32) for layer in layers]
    biases[0] = (biases[0] - (mean / spread) @ weights[0]).astype(np.float32)
    weights[0] = (weights[0] / spread[:, None]).astype(np.float32)
    contiguous = tuple(np.ascontiguousarray(weight) for weight in weights)
    return RelationalModel(contiguous, tuple(biases), ranges[0], ranges[1], facts)
