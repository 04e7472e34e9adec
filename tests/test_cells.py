import numpy as np
import pytest

from starfc.cells import CELL_ROWS, make_cells
from starfc.progress import silent
from starfc.synth import make_faces
from starfc.workers import start_workers


def make(store, seed=0, progress=silent):
    with start_workers() as pool:
        return make_cells(store, seed, pool, progress)


def test_every_row_has_one_place():
    faces = make_faces(3000, people=60, dim=24, seed=3)[0]
    cells = make(faces)
    assert (np.sort(cells.order) == np.arange(3000)).all()
    assert cells.starts[0] == 0 and cells.starts[-1] == 3000
    assert len(cells.coarse.centres) == cells.n_cells
    sizes = np.diff(cells.starts)
    assert (cells.owners == np.repeat(np.arange(cells.n_cells), sizes)).all()
    assert 0.5 * CELL_ROWS < sizes.mean() < 1.5 * CELL_ROWS


def test_centres_are_the_directions_of_their_members():
    faces = make_faces(3000, people=60, dim=24, seed=3)[0]
    cells = make(faces)
    sums = np.add.reduceat(faces[cells.order].astype(np.float64), cells.starts[:-1], axis=0)
    sums /= np.linalg.norm(sums, axis=1, keepdims=True)
    np.testing.assert_allclose(cells.coarse.centres, sums, atol=1e-5)


def test_rows_lie_nearer_their_cell_than_most_others():
    faces = make_faces(3000, people=60, dim=24, seed=3)[0]
    cells = make(faces)
    scores = faces[cells.order] @ cells.coarse.centres.T
    own = scores[np.arange(3000), cells.owners]
    assert (scores > own[:, None]).sum(axis=1).mean() < 1


@pytest.mark.parametrize("counts", [[2000, 1000, 20, 10], [3030, 0, 0, 0], [257, 256, 255, 1]])
def test_large_cells_are_split(counts):
    store = np.repeat(np.eye(4, dtype=np.float32), counts, axis=0)
    sizes = np.diff(make(store).starts)
    assert sizes.max() <= 4 * CELL_ROWS
    assert sizes.sum() == len(store)
    assert (sizes > 0).all()


def test_progress_ends_with_all():
    calls = []
    make(make_faces(500, dim=8)[0], progress=lambda *call: calls.append(call))
    assert calls[0][:2] == ("knn: cells", 0)
    assert calls[-1][1] == calls[-1][2]
