import numpy as np
import pytest

from starfc.cells import make_cells
from starfc.features import Features
from starfc.probes import _is_reached, _rank_pairs, choose_n_probes, draw_sample, rank_probes
from starfc.rowstore import read_range
from starfc.steps import Steps
from starfc.synth import make_faces

ALL = 1 << 30


@pytest.fixture(scope="module")
def celled():
    """Faces in the order of their cells, and the cells."""
    faces = make_faces(4000, people=100, dim=32, seed=3)[0]
    cells, store = make_cells(Features(faces), 30, 0, Steps())
    return store, cells


def rank(store, cells, n_probes, n_seen=ALL):
    steps = Steps()
    return rank_probes(store, cells, n_probes, n_seen, steps.open("probes"), steps)


def test_probes_are_the_nearest_other_cells(celled):
    store, cells = celled
    probes = rank(store, cells, 6)
    centres = np.empty_like(cells.coarse.centres)
    centres[cells.coarse.source] = cells.coarse.centres
    scores = read_range(store, 0, 4000) @ centres.T
    scores[np.arange(4000), cells.owners] = -np.inf
    assert (probes == np.argsort(-scores, axis=1, kind="stable")[:, :6]).mean() > 0.999


def test_nobody_probes_its_own_cell(celled):
    store, cells = celled
    assert not (rank(store, cells, 20, 5) == cells.owners[:, None]).any()


def test_more_recall_takes_more_probes(celled):
    store, cells = celled
    ranked, sample = rank(store, cells, cells.n_cells - 1), draw_sample(store, 30, 0)
    counts = [choose_n_probes(ranked, cells.owners, sample, recall) for recall in (0.7, 0.9, 0.99)]
    assert 1 <= counts[0] < counts[1] < counts[2] < cells.n_cells
    assert choose_n_probes(ranked[:, :2], cells.owners, sample, 0.99) == 0


def test_truth_is_exact_and_without_the_query(celled):
    store, _ = celled
    sample = draw_sample(store, 8, 0)
    rows = read_range(store, 0, 4000).astype(np.float64)
    cosines = rows[sample.queries] @ rows.T
    cosines[np.arange(len(sample.queries)), sample.queries] = -np.inf
    best = -np.sort(-cosines, axis=1)[:, :8]
    np.testing.assert_allclose(np.take_along_axis(cosines, sample.neighbors, axis=1), best, atol=2e-6)
    np.testing.assert_allclose(sample.worst[:, 0], best[:, -1], atol=2e-6)
    assert sample.exchangeable.mean() < 0.1
    assert sample.reaches(sample.neighbors, best.astype(np.float32), 0.99) == (True, 1.0)
    worse = best.astype(np.float32)
    worse[:, 4:] -= 0.9
    assert sample.reaches(sample.neighbors, worse, 0.6) == (False, 0.5)
    padded = np.where(np.arange(8) < 2, sample.neighbors, -1)
    assert sample.reaches(padded, best.astype(np.float32), 0.6) == (False, 0.25)


def test_copies_can_be_exchanged():
    store = np.repeat(np.eye(2, dtype=np.float32), [50, 3], axis=0)
    sample = draw_sample(store, 2, 0)
    assert (sample.exchangeable[:50]).all()
    assert not (sample.exchangeable[50:]).any()


def test_a_pair_is_found_by_the_better_side():
    owners = np.array([0, 1, 2, 0], dtype=np.int32)
    ranked = np.array([[2, 3], [3, 0], [1, 3], [1, 2]], dtype=np.int32)
    # Place 0 probes the cell of 2 first; 1 probes the cell of 0 second; 3 is in the cell of 0. 1 and 2: only 2 probes.
    assert _rank_pairs(ranked, owners, np.array([0]), np.array([[2, 1, 3]])).tolist() == [[1, 2, 0]]
    assert _rank_pairs(ranked, owners, np.array([1]), np.array([[2, 0]])).tolist() == [[1, 2]]
    assert _rank_pairs(ranked[:, :1], owners, np.array([1]), np.array([[0]])).tolist() == [[2]]


def test_a_sample_must_have_the_recall_with_a_margin():
    assert _is_reached(np.full(100, 0.8125), 0.8125) == (True, 0.8125)
    scattered = np.tile([0.61, 1.0], 50)
    assert _is_reached(scattered, 0.8) == (False, pytest.approx(0.805))
    assert _is_reached(scattered + 0.03, 0.8)[0]
