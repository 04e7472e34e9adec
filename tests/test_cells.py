import numpy as np
import pytest

from starfc.cells import choose_cell_rows, make_cells
from starfc.features import Features
from starfc.rowstore import read_range
from starfc.steps import Steps
from starfc.synth import make_faces

CELL_ROWS = choose_cell_rows(30)


def make(rows, seed=0):
    return make_cells(Features(rows), 30, seed, Steps())


@pytest.fixture(scope="module")
def faces():
    return make_faces(3000, people=60, dim=24, seed=3)[0]


@pytest.fixture(scope="module")
def made(faces):
    return make(faces)


def test_every_row_has_one_place(faces, made):
    cells, store = made
    assert (np.sort(cells.order) == np.arange(3000)).all()
    assert (cells.places[cells.order] == np.arange(3000)).all()
    assert cells.starts[0] == 0 and cells.starts[-1] == 3000
    assert len(cells.coarse.centres) == cells.n_cells
    sizes = np.diff(cells.starts)
    assert (cells.owners == np.repeat(np.arange(cells.n_cells), sizes)).all()
    assert 0.4 * CELL_ROWS < sizes.mean() < 1.5 * CELL_ROWS
    np.testing.assert_allclose(read_range(store, 0, 3000), faces[cells.order], atol=5e-4)


def test_centres_are_the_directions_of_their_members(faces, made):
    cells, _ = made
    sums = np.add.reduceat(faces[cells.order].astype(np.float64), cells.starts[:-1], axis=0)
    sums /= np.linalg.norm(sums, axis=1, keepdims=True)
    np.testing.assert_allclose(cells.coarse.centres, sums[cells.coarse.source], atol=1e-3)


def test_rows_lie_nearer_their_cell_than_most_others(faces, made):
    cells, _ = made
    centres = np.empty_like(cells.coarse.centres)
    centres[cells.coarse.source] = cells.coarse.centres
    scores = faces[cells.order] @ centres.T
    own = scores[np.arange(3000), cells.owners]
    assert (scores > own[:, None]).sum(axis=1).mean() < 1.5


@pytest.mark.parametrize("counts", [[2000, 1000, 20, 10], [3030, 0, 0, 0], [257, 256, 255, 1]])
def test_large_cells_are_split(counts):
    rows = np.repeat(np.eye(4, dtype=np.float32), counts, axis=0)
    sizes = np.diff(make(rows)[0].starts)
    assert sizes.max() <= 4 * CELL_ROWS
    assert sizes.sum() == len(rows)
    assert (sizes > 0).all()
