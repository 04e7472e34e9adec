"""The same labels as the released method on three very different graphs, for every aggregation and kind of edges."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

import starfc
from released import canonical, graded_model, list_with_self, refine_as_released, score_as_released
from starfc.features import Features
from starfc.knn import load_knn
from starfc.model import import_checkpoint
from starfc.prune import AGGREGATES, EDGE_KINDS
from starfc.synth import make_faces
from test_model import save_released

BENCHMARK = Path(starfc.__file__).parents[2] / "benchmarks" / "inference.py"
K = 40  # with the face itself, as the authors count
TAU2 = 0.3141  # no fraction of small whole numbers, so that rounding decides nothing


def draw_faces(rng):
    """People of very different sizes, as in the field's sets."""
    return make_faces(2500, people=120, dim=48, seed=1)[0].astype(np.float64)


def draw_hubs(rng):
    """Five rows that nearly everybody lists: everybody leans towards them, and they towards nobody else."""
    people = np.repeat(rng.normal(size=(120, 48)), 25, axis=0) + 1.6 * rng.normal(size=(3000, 48))
    rows = people + 30 * np.eye(48)[0]
    rows[rng.choice(3000, 5, replace=False)] = 30 * np.eye(48)[0] + 0.05 * rng.normal(size=(5, 48))
    return rows


def draw_copies_and_loners(rng):
    """Groups of copies, whose similarities tie, among people that have one face only."""
    copies = np.repeat(rng.normal(size=(80, 48)), rng.integers(2, 16, size=80), axis=0)
    people = np.repeat(rng.normal(size=(40, 48)), 20, axis=0) + 0.8 * rng.normal(size=(800, 48))
    rows = np.concatenate([copies, people, rng.normal(size=(900, 48))])
    return rows[rng.permutation(len(rows))]


GRAPHS = {"faces": draw_faces, "hubs": draw_hubs, "copies and loners": draw_copies_and_loners}


class World:
    """Rows, the authors' lists in their file format, a model in theirs, and the oracle's scores."""

    def __init__(self, name, folder):
        self.rows = GRAPHS[name](np.random.default_rng(0))
        self.lists = list_with_self(self.rows, K)
        self.model = graded_model(self.rows, self.lists)
        self.source, self.target, self.scores = score_as_released(self.rows, self.model.tensors, *self.lists)
        # Between two scores that are far apart: single and double precision must not disagree about an edge.
        ordered = np.sort(self.scores)[int(0.4 * len(self.scores)) : int(0.5 * len(self.scores))]
        widest = np.argmax(np.diff(ordered))
        self.tau1 = float(ordered[widest : widest + 2].mean())
        self.file = folder / "lists.npz"
        np.savez(self.file, data=np.stack([self.lists[0], 1 - self.lists[1]], axis=1).astype(np.float32))
        self.folder = folder / "model"
        import_checkpoint(*save_released(folder, self.model)).save(self.folder)

    def cluster(self, **settings):
        return starfc.cluster(
            self.rows, model=self.folder, knn_graph=self.file, k=K, tau1=self.tau1, tau2=TAU2, **settings
        )


@pytest.fixture(scope="module", params=GRAPHS)
def world(request, tmp_path_factory):
    return World(request.param, tmp_path_factory.mktemp("world"))


def test_the_graphs_differ():
    for name, draw in GRAPHS.items():
        rows = draw(np.random.default_rng(0))
        neighbors, similarities = list_with_self(rows, K)
        listed = np.sort(np.bincount(neighbors.ravel(), minlength=len(rows)))
        n_copies = (similarities[:, 1] > 1 - 1e-12).sum()
        assert (listed[-5] > 2000) == (name == "hubs")
        assert (n_copies > 500) == (name == "copies and loners")


def test_scores_are_those_of_the_released_network(world):
    found = world.cluster().scored
    rows = np.repeat(np.arange(len(world.rows)), found.neighbors.shape[1])
    pairs = {(i, j): s for i, j, s in zip(world.source, world.target, world.scores, strict=True)}
    expected = [pairs[pair] for pair in zip(rows.tolist(), found.neighbors.ravel().tolist(), strict=True)]
    np.testing.assert_allclose(found.scores.ravel(), expected, atol=2e-5)


@pytest.mark.parametrize("edges", EDGE_KINDS)
def test_labels_are_those_of_the_released_code(world, edges):
    kept = world.scores > world.tau1
    first = world.cluster(edges=edges)
    for aggregate in AGGREGATES:
        expected, n_refined = refine_as_released(
            len(world.rows), world.source[kept], world.target[kept], TAU2, aggregate, edges
        )
        assert 0 < n_refined < kept.sum()
        np.testing.assert_array_equal(first.rethreshold(aggregate=aggregate).labels, canonical(expected))


@pytest.mark.skipif(not BENCHMARK.is_file(), reason="installed without the benchmarks")
def test_labels_are_those_of_the_benchmarks_transcription(world):
    """The one in torch, with which benchmarks/inference.py compares the time."""
    import torch

    spec = importlib.util.spec_from_file_location("inference_benchmark", BENCHMARK)
    benchmark = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(benchmark)
    model = import_checkpoint(*save_released(world.folder.parent, world.model))
    changed = type(model.config)(**(vars(model.config) | {"tau1": world.tau1, "tau2": TAU2}))
    with torch.no_grad():
        labels = benchmark.cluster_as_released(
            Features(world.rows), load_knn(world.file), type(model)(changed, model.tensors)
        )
    np.testing.assert_array_equal(world.cluster().labels, canonical(labels))
