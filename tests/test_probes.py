import numpy as np
import pytest

from starfc.cells import make_cells
from starfc.probes import _find_truth, _pick_n_probes, _rank_pairs, choose_n_probes, rank_probes
from starfc.progress import silent
from starfc.synth import make_faces
from starfc.workers import start_workers


@pytest.fixture(scope="module")
def pool():
    with start_workers() as pool:
        yield pool


@pytest.fixture(scope="module")
def celled(pool):
    """Faces in the order of their cells, and the cells."""
    faces = make_faces(4000, people=100, dim=32, seed=3)[0]
    cells = make_cells(faces, 0, pool, silent)
    return faces[cells.order], cells


def test_probes_are_the_nearest_other_cells(celled, pool):
    store, cells = celled
    places = np.arange(0, 4000, 7, dtype=np.int32)
    probes = rank_probes(store, cells, places, 6, pool)
    scores = store[places] @ cells.coarse.centres.T
    scores[np.arange(len(places)), cells.owners[places]] = -np.inf
    assert (probes == np.argsort(-scores, axis=1, kind="stable")[:, :6]).mean() > 0.999


def test_more_recall_takes_more_probes(celled, pool):
    store, cells = celled
    counts = [choose_n_probes(store, cells, 30, recall, 0, pool) for recall in (0.5, 0.9, 0.99)]
    assert 1 <= counts[0] < counts[1] < counts[2] < cells.n_cells


def test_all_cells_are_the_most(celled, pool):
    store, cells = celled
    assert choose_n_probes(store, cells, 30, 1.1, 0, pool) == cells.n_cells - 1


def test_truth_is_exact_and_without_the_query(celled):
    store, _ = celled
    queries = np.arange(5, 4000, 97)
    truth, exchangeable = _find_truth(store, queries, 8)
    cosines = store[queries].astype(np.float64) @ store.T.astype(np.float64)
    cosines[np.arange(len(queries)), queries] = -np.inf
    best = -np.sort(-cosines, axis=1)[:, :8]
    np.testing.assert_allclose(np.take_along_axis(cosines, truth, axis=1), best, atol=2e-6)
    assert exchangeable.mean() < 0.1


def test_copies_can_be_exchanged():
    store = np.repeat(np.eye(2, dtype=np.float32), [50, 3], axis=0)
    _, exchangeable = _find_truth(store, np.array([0, 51]), 2)
    assert exchangeable.tolist() == [[True, True], [False, False]]


def test_a_pair_is_found_by_the_better_side():
    owners = np.array([0, 1, 2, 0], dtype=np.int32)
    ranked = np.array([[2, 3], [3, 0], [1, 3], [1, 2]], dtype=np.int32)
    # Place 0 probes the cell of 2 first; 1 probes the cell of 0 second; 3 is in the cell of 0. 1 and 2: only 2 probes.
    assert _rank_pairs(ranked, owners, np.array([0]), np.array([[2, 1, 3]])).tolist() == [[1, 2, 0]]
    assert _rank_pairs(ranked, owners, np.array([1]), np.array([[2, 0]])).tolist() == [[1, 2]]
    assert _rank_pairs(ranked[:, :1], owners, np.array([1]), np.array([[0]])).tolist() == [[2]]


def test_the_least_number_with_a_margin():
    ranks = np.tile([0, 1, 2, 3, 9], (100, 1))
    assert _pick_n_probes(ranks, 0.59, least=1, most=8) == 2
    assert _pick_n_probes(ranks, 0.79, least=1, most=8) == 3
    assert _pick_n_probes(ranks, 0.79, least=5, most=8) == 5
    assert _pick_n_probes(ranks, 0.9, least=1, most=8) == 0
