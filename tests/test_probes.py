from dataclasses import replace

import numpy as np
import pytest

from starfc.cells import make_cells
from starfc.features import Features
from starfc.neighborlists import Lists
from starfc.probes import (
    Probes,
    Reach,
    Sample,
    _find_margins,
    _is_reached,
    choose_margin,
    choose_margin_for,
    draw_sample,
    rank_probes,
)
from starfc.rowstore import read_range
from starfc.steps import Steps
from starfc.synth import make_faces


@pytest.fixture(scope="module")
def celled():
    """Faces in the order of their cells, and the cells."""
    faces = make_faces(4000, people=100, dim=32, seed=3)[0]
    cells, store = make_cells(Features(faces), 30, 0, Steps())
    return store, cells


@pytest.fixture(scope="module")
def many_celled():
    """As if there were many cells."""
    faces = make_faces(4000, people=100, dim=32, seed=3)[0]
    noise = np.random.default_rng(0).standard_normal((1000, 32)).astype(np.float32)
    faces[500:1500] = faces[7] + 0.02 * noise  # one cell that is split
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (
            ("FEW_CELLS", 0),
            ("_SEEN_GROUPS", (4, 999)),
            ("_SEEN_BY_WEAK", (8, 999)),
            ("_choose_next", lambda k: 6),
        ):
            patch.setattr(f"starfc.cells.{name}", value)
        cells, store = make_cells(Features(faces), 30, 0, Steps())
    return store, cells


def rank(store, cells, n_probes, reach=None):
    steps = Steps()
    return rank_probes(store, cells, n_probes, reach, steps.open("probes"), steps)


def test_probes_are_the_nearest_other_cells(celled):
    store, cells = celled
    probes = rank(store, cells, 6).cells
    scores = read_range(store, 0, 4000) @ cells.centres.T
    scores[np.arange(4000), cells.owners] = -np.inf
    assert (probes == np.argsort(-scores, axis=1, kind="stable")[:, :6]).mean() > 0.999


def test_probes_are_the_nearest_of_those_around_and_those_that_came_next(many_celled):
    store, cells = many_celled
    assert cells.next_best.shape == (4000, 6)
    n_parts = np.diff(cells.firsts)
    assert n_parts.max() > 1 and n_parts.sum() == cells.n_cells
    probes = rank(store, cells, 12, Reach(1 << 30, 7))
    near = cells.centres @ cells.centres.T
    np.fill_diagonal(near, -np.inf)
    rows = read_range(store, 0, 4000)
    for place in range(0, 4000, 61):
        around = np.argsort(-near[cells.owners[place]], kind="stable")[:7]
        next_best = [old for old in cells.next_best[cells.order[place]] if old >= 0 and n_parts[old]]
        listed = {*around, *(cells.firsts[old] + place % n_parts[old] for old in next_best)} - {cells.owners[place]}
        expected = np.sort(cells.centres[sorted(listed)] @ rows[place])[::-1][:12]
        found = probes.cells[place][probes.cells[place] >= 0]
        assert len(found) == len(expected) and len(set(found.tolist())) == len(found)
        np.testing.assert_allclose(probes.scores[place, : len(found)], expected, atol=1e-5)
        np.testing.assert_allclose(cells.centres[found] @ rows[place], expected, atol=1e-5)


def test_where_no_cell_came_next_weak_rows_rank_all(celled):
    store, cells = celled
    assert cells.next_best.shape[1] == 0
    probes = rank(store, cells, 6, Reach(1 << 30, 8))
    rows = read_range(store, 0, 4000)
    scores = rows @ cells.centres.T
    own = scores[np.arange(4000), cells.owners].copy()
    scores[np.arange(4000), cells.owners] = -np.inf
    near = cells.centres @ cells.centres.T
    np.fill_diagonal(near, -np.inf)
    is_weak = own < np.sort(own)[int(0.4 * 4000) - 1]
    for place in range(0, 4000, 37):
        listed = scores[place] if is_weak[place] else scores[place, np.argsort(-near[cells.owners[place]])[:8]]
        np.testing.assert_allclose(probes.scores[place], np.sort(listed)[::-1][:6], atol=1e-5)
        np.testing.assert_allclose(scores[place, probes.cells[place]], probes.scores[place], atol=1e-5)


def test_a_cell_that_came_next_twice_is_probed_once(many_celled):
    store, cells = many_celled
    twice = replace(cells, next_best=np.hstack((cells.next_best, cells.next_best)))
    found, expected = (rank(store, some, 12, Reach(5, 7)) for some in (twice, cells))
    assert (found.cells == expected.cells).all() and (found.scores == expected.scores).all()


def test_nobody_probes_its_own_cell(celled, many_celled):
    assert not (rank(*celled, 20).cells == celled[1].owners[:, None]).any()
    assert not (rank(*many_celled, 20, Reach(5, 9)).cells == many_celled[1].owners[:, None]).any()


def count_probes(probes, floors, margin):
    return (probes.scores - floors[:, None] >= margin).sum(axis=1).mean()


def test_more_recall_takes_more_probes(celled):
    store, cells = celled
    probes, sample = rank(store, cells, cells.n_cells - 1), draw_sample(store, cells.places, 30, 0, Steps())
    lists = Lists(np.full((4000, 30), -1, np.int32), np.zeros((4000, 30), np.float32))
    floors = np.full(4000, 0.5, np.float32)
    margins = [choose_margin(probes, cells.owners, lists, floors, sample, recall) for recall in (0.1, 0.2, 0.3)]
    counts = [count_probes(probes, floors, margin) for margin in margins]
    assert 0 < counts[0] < counts[1] < counts[2] < cells.n_cells
    few = Probes(probes.cells[:, :1], probes.scores[:, :1])
    assert choose_margin(few, cells.owners, lists, floors, sample, 0.99) is None
    margin = choose_margin_for(7, probes, floors, sample)
    assert count_probes(probes, floors, margin) == pytest.approx(7, abs=1)


def test_a_neighbour_is_found_by_the_better_side():
    owners = np.array([0, 1, 2, 3, 0], dtype=np.int32)
    probes = Probes(
        np.array([[1, 3], [0, 2], [0, 1], [1, 2], [3, 1]], dtype=np.int32),
        np.array([[0.5, 0.25], [0.75, 0.5], [0.5, 0.25], [0.75, 0.5], [0.5, 0.25]], dtype=np.float32),
    )
    floors = np.array([0.25, 0.0, 0.25, 0.5, 0.0], dtype=np.float32)
    lists = Lists(np.full((5, 4), -1, np.int32), np.zeros((5, 4), np.float32))
    lists.places[0, 0] = 4
    sample = Sample(
        np.array([0]), np.array([[4, 1, 2, 3]]), np.float32([[0.9, 0.8, 0.2, 0.1]]), np.zeros((1, 4), dtype=bool)
    )
    # 4 is listed. 1: .5 - .25 forward, .75 - 0 backward. 2 probes the cell of 0 but has better ones. 3: forward alone.
    assert _find_margins(probes, owners, lists, floors, sample).tolist() == [[np.inf, 0.75, -np.inf, 0.0]]


def test_truth_is_exact_and_without_the_query(celled):
    store, cells = celled
    sample = draw_sample(store, cells.places, 8, 0, Steps())
    rows = read_range(store, 0, 4000).astype(np.float64)
    cosines = rows[sample.queries] @ rows.T
    cosines[np.arange(len(sample.queries)), sample.queries] = -np.inf
    best = -np.sort(-cosines, axis=1)[:, :8]
    np.testing.assert_allclose(np.take_along_axis(cosines, sample.neighbors, axis=1), best, atol=2e-6)
    np.testing.assert_allclose(sample.similarities, best, atol=2e-6)
    assert sample.exchangeable.mean() < 0.1

    def spread(places, similarities):
        lists = Lists(np.full((4000, 8), -1, np.int32), np.zeros((4000, 8), np.float32))
        lists.places[sample.queries], lists.similarities[sample.queries] = places, similarities
        return lists

    assert sample.measure(spread(sample.neighbors, best), 0.99) == (True, 1.0)
    worse = best.copy()
    worse[:, 4:] -= 0.9
    assert sample.measure(spread(sample.neighbors, worse), 0.6) == (False, 0.5)
    padded = np.where(np.arange(8) < 2, sample.neighbors, -1)
    assert sample.measure(spread(padded, best), 0.6) == (False, 0.25)


def test_copies_can_be_exchanged():
    store = np.repeat(np.eye(2, dtype=np.float32), [50, 3], axis=0)
    sample = draw_sample(store, np.arange(53, dtype=np.int32), 2, 0, Steps())
    assert (sample.exchangeable[:50]).all()
    assert not (sample.exchangeable[50:]).any()


def test_a_sample_must_have_the_recall_with_a_margin():
    assert _is_reached(np.full(100, 0.8125), 0.8125) == (True, 0.8125)
    scattered = np.tile([0.61, 1.0], 50)
    assert _is_reached(scattered, 0.8) == (False, pytest.approx(0.805))
    assert _is_reached(scattered + 0.03, 0.8)[0]
