import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from starfc.centres import (
    Patience,
    assign_nearest,
    assign_rows,
    average_cells,
    average_rows,
    group_centres,
    rank_cells,
    sort_by_label,
    train_centres,
)
from starfc.synth import make_faces
from starfc.workers import start_workers


@pytest.fixture(scope="module")
def faces():
    return make_faces(6000, people=150, dim=48, seed=3)[0]


def group(centres):
    with start_workers() as pool:
        return group_centres(centres, 0, pool)


def sort_all(rows, centres):
    return np.argsort(-(rows @ centres.T), axis=1, kind="stable")


def test_ranking_equals_sorting_all_scores(faces):
    coarse = group(faces[:150])
    ranked, scores = rank_cells(faces[:500], coarse, 7, 1000)
    np.testing.assert_allclose(scores, np.take_along_axis(faces[:500] @ faces[:150].T, ranked, axis=1), atol=1e-5)
    assert (ranked == coarse.source[sort_all(faces[:500], coarse.centres)[:, :7]]).mean() > 0.999


def test_ranking_in_the_best_groups_misses_little(faces):
    coarse = group(faces[:400])
    assert len(coarse.groups) > 3 * 24
    rows = np.ascontiguousarray(faces[::2])
    ranked, scores = rank_cells(rows, coarse, 5, 24)
    oracle = coarse.source[sort_all(rows, coarse.centres)]
    assert (ranked[:, 0] == oracle[:, 0]).mean() > 0.9
    np.testing.assert_allclose(scores, np.take_along_axis(rows @ faces[:400].T, ranked, axis=1), atol=1e-5)
    assert (np.diff(scores, axis=1) <= 1e-6).all()
    assert (np.diff(np.sort(ranked, axis=1), axis=1) > 0).all()


def test_ranking_equals_sorting_what_the_groups_hold(faces):
    coarse = group(faces[:200])
    rows = faces[300:340]
    best = np.argsort(-(rows @ coarse.groups.T), axis=1, kind="stable")[:, :4]
    of_cell = np.repeat(np.arange(len(coarse.groups)), np.diff(coarse.group_starts))
    for row, ranked, groups in zip(rows, rank_cells(rows, coarse, 30, 4)[0], best, strict=True):
        seen = np.flatnonzero(np.isin(of_cell, groups))
        expected = coarse.source[seen[np.argsort(-(coarse.centres[seen] @ row), kind="stable")]][:30]
        assert ranked[: len(expected)].tolist() == expected.tolist()
        assert (ranked[len(expected) :] == -1).all()


def assign(rows, coarse, n_seen, n_seen_by_weak, n_ranks=1):
    ranked = np.empty((len(rows), n_ranks), dtype=np.int32)
    assign_rows(rows, coarse, Patience(n_seen, n_seen_by_weak), ranked)
    return ranked


def test_assignment_finds_the_best_cell(faces):
    coarse = group(faces[:400])
    assert len(coarse.groups) > 3 * 16
    best = sort_all(faces, coarse.centres)
    assert (assign(faces, coarse, 16, 16)[:, 0] == best[:, 0]).mean() > 0.85
    assert (assign(faces, coarse, 10_000, 10_000)[:, 0] == best[:, 0]).mean() > 0.999
    several = assign(faces, coarse, 10_000, 10_000, 9)
    assert (several[:, 0] == best[:, 0]).mean() > 0.999
    assert (np.sort(several) == np.sort(best[:, :9])).mean() > 0.998


def test_the_least_similar_rows_look_into_more_groups(faces):
    coarse = group(faces[:400])
    hasty, patient, careful = (assign(faces, coarse, *seen, 5) for seen in ((2, 2), (2, 30), (30, 30)))

    def find_best(found):
        return np.take_along_axis(faces @ coarse.centres.T, found[:, :1], axis=1)[:, 0]

    strong = find_best(hasty) >= np.partition(find_best(hasty), 2399)[2399]
    weakest = find_best(patient) < np.partition(find_best(patient), 500)[500]  # of one in seven
    patient, hasty, careful = (np.hstack((found[:, :1], np.sort(found))) for found in (patient, hasty, careful))
    assert (patient[strong] == hasty[strong]).all()
    assert (patient[weakest] == careful[weakest]).all()
    assert (hasty[weakest] != careful[weakest]).any()
    between = ~strong & ~weakest
    assert (patient[between] == careful[between]).mean() > (hasty[between] == careful[between]).mean()


def test_rows_that_see_too_few_cells_say_so(faces):
    coarse = group(faces[:40])
    ranked = assign(faces[:100], coarse, 1, 1, 40)
    sizes = np.diff(coarse.group_starts)[np.argmax(faces[:100] @ coarse.groups.T, axis=1)]
    assert ((ranked >= 0).sum(axis=1) == sizes).all()


def test_groups_hold_every_centre_once(faces):
    coarse = group(faces[:150])
    assert (np.sort(coarse.source) == np.arange(150)).all()
    assert (coarse.centres == faces[coarse.source]).all()
    assert (np.diff(coarse.group_starts) > 0).all()
    assert coarse.group_starts[-1] == 150
    assert len(coarse.groups) == len(coarse.group_starts) - 1


def test_nearest_and_averages_equal_numpy(faces):
    rows, centres = faces[:700], faces[:9].copy()
    labels = assign_nearest(rows, centres)
    assert (labels == (rows @ centres.T).argmax(axis=1)).mean() > 0.998
    labels[labels == 4] = 5  # a centre without rows stays where it is
    averages = average_rows(rows, labels, centres)
    for part in range(9):
        total = rows[labels == part].astype(np.float64).sum(axis=0)
        expected = centres[4] if part == 4 else total / np.linalg.norm(total)
        np.testing.assert_allclose(averages[part], expected, atol=1e-5)


def test_the_first_of_equal_centres_is_the_nearest():
    rng = np.random.default_rng(0)
    rows = rng.integers(0, 3, (600, 4)).astype(np.float32)
    centres = rng.integers(0, 3, (7, 4)).astype(np.float32)
    assert (assign_nearest(rows, centres) == (rows @ centres.T).argmax(axis=1)).all()


def test_training_finds_separate_directions():
    rows = np.repeat(np.eye(3, dtype=np.float32), 40, axis=0)
    centres = train_centres(rows, 30, (0,), n_rounds=2)
    assert set(map(tuple, centres)) == {(1, 0, 0), (0, 1, 0), (0, 0, 1)}


@given(hnp.arrays(np.int32, st.integers(0, 30), elements=st.integers(0, 5)))
def test_sorting_by_label_is_stable(labels):
    order, starts = sort_by_label(labels)
    for label, (start, stop) in enumerate(itertools.pairwise(starts)):
        assert order[start:stop].tolist() == np.flatnonzero(labels == label).tolist()


def test_averages_of_runs_equal_numpy(faces):
    starts = np.array([0, 5, 6, 40])
    centres = np.zeros((3, 48), dtype=np.float32)
    average_cells(faces[:40], starts, 0, 3, centres)
    sums = np.add.reduceat(faces[:40].astype(np.float64), starts[:-1], axis=0)
    np.testing.assert_allclose(centres, sums / np.linalg.norm(sums, axis=1, keepdims=True), atol=1e-5)
