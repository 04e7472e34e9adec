import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from starfc import celljoin
from starfc.cells import Cells
from starfc.centres import Coarse
from starfc.neighborlists import Lists
from starfc.steps import Steps

EMPTY = np.empty((0, 1), np.float32)


def make_cells(starts, order):
    coarse = Coarse(EMPTY, np.empty(0, np.int32), EMPTY, np.zeros(1, np.int64))
    return Cells(order, np.asarray(starts), coarse, np.empty((len(order), 0), np.int32), np.zeros(1, np.int64))


def join(rows, starts, probes, k, order, before=None):
    """Join rows of which cell i is starts[i]..starts[i+1]; order says which row stands at each place."""
    cells, steps = make_cells(starts, order), Steps()
    choose = lambda start, stop: probes[start:stop]  # noqa: E731
    return celljoin.join_cells(rows[order], cells, choose, before, k, steps.open("join"), steps)


def join_slowly(rows, starts, probes, k, order):
    """Compare each place with the members of the cells it probes, one by one."""
    owners = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    stored = rows[order].astype(np.float64)
    expected = []
    for place in range(len(rows)):
        seen = [other for other in range(len(rows)) if other != place and owners[other] in probes[place]]
        seen.sort(key=lambda other: (-stored[other] @ stored[place], order[other]))
        expected.append(seen[:k])
    return expected


def draw_probes(rng, n, n_cells, n_probes):
    probes = np.full((n, n_probes), -1, dtype=np.int32)
    for place in range(n):
        some = rng.permutation(n_cells)[: rng.integers(0, n_probes + 1)]
        probes[place, rng.permutation(n_probes)[: len(some)]] = some
    return probes


@settings(deadline=None, max_examples=60)
@given(
    st.integers(0, 999),
    st.integers(1, 6),
    st.integers(1, 5),
    st.integers(1, 12),
    st.sampled_from([4, 9, 4096]),
    st.sampled_from([1, 40, 1 << 20]),
)
def test_the_join_equals_a_search(seed, n_cells, n_probes, k, block_rows, n_numbers):
    """In one go, or in two of which the second starts from the lists of the first."""
    rng = np.random.default_rng(seed)
    starts = np.concatenate(([0], np.cumsum(rng.integers(1, 9, n_cells))))
    n = int(starts[-1])
    rows = rng.standard_normal((n, 5)).astype(np.float32)
    order = rng.permutation(n).astype(np.int32)
    probes = draw_probes(rng, n, n_cells, n_probes)
    half = rng.random(probes.shape) < 0.5
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(celljoin, "_BLOCK_ROWS", block_rows)
        patch.setattr(celljoin, "_SPAN_CELLS", 1 + block_rows % 3)
        patch.setattr(celljoin, "_LINE_NUMBERS", n_numbers)
        first = join(rows, starts, np.where(half, probes, -1), k, order)
        # What is offered twice is listed once.
        joined = [join(rows, starts, probes, k, order), join(rows, starts, probes, k, order, first)]
    stored = rows[order]
    for lists in joined:
        for place, expected in enumerate(join_slowly(rows, starts, probes, k, order)):
            size = len(expected)
            assert lists.places[place, :size].tolist() == expected
            assert (lists.places[place, size:] == -1).all() and (lists.similarities[place, size:] == 0).all()
            products = stored[expected] @ stored[place]
            np.testing.assert_allclose(lists.similarities[place, :size], products, atol=1e-5, rtol=1e-5)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 999), st.integers(1, 6), st.integers(1, 5), st.integers(1, 12), st.sampled_from([2, 9, 4096]))
def test_some_are_joined_and_the_others_stay(seed, n_cells, n_probes, k, block_rows):
    rng = np.random.default_rng(seed)
    starts = np.concatenate(([0], np.cumsum(rng.integers(1, 9, n_cells))))
    n = int(starts[-1])
    rows = rng.standard_normal((n, 5)).astype(np.float32)
    order = rng.permutation(n).astype(np.int32)
    probes = draw_probes(rng, n, n_cells, n_probes)
    some = np.flatnonzero(rng.random(n) < 0.4)
    before = join(rows, starts, draw_probes(rng, n, n_cells, 1), k, order)
    expected = join(rows, starts, probes, k, order, before)  # tested above
    stored, steps = rows[order], Steps()
    place_of = {tuple(row): place for place, row in enumerate(stored)}

    def choose(chosen):
        return probes[[place_of[tuple(row)] for row in chosen]].reshape(-1, n_probes)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(celljoin, "_BLOCK_ROWS", block_rows)
        patch.setattr(celljoin, "_SPARSE_ROWS", 2 * block_rows)
        cells = make_cells(starts, order)
        lists = celljoin.join_some(stored, cells, some, choose, before, steps.open("join"), steps)
    is_joined = np.isin(np.arange(n), some)
    for part, whole, old in zip(lists, expected, before, strict=True):
        np.testing.assert_allclose(part[is_joined], whole[is_joined], atol=1e-6)
        assert (part[~is_joined] == old[~is_joined]).all()


@pytest.mark.parametrize("n", [2, 300, 700])
def test_a_large_cell_is_joined_with_itself(n):
    rows = np.random.default_rng(0).standard_normal((n, 3)).astype(np.float32)
    lists = join(rows, [0, n], np.zeros((n, 1), np.int32), 4, np.arange(n, dtype=np.int32))
    scores = rows @ rows.T
    np.fill_diagonal(scores, -np.inf)
    best = np.argsort(-scores, axis=1, kind="stable")[:, : min(4, n - 1)]
    assert (lists.places[:, : min(4, n - 1)] == best).mean() > 0.99


def test_lists_that_are_better_stay_as_they_are():
    rows = np.eye(4, dtype=np.float32)
    before = Lists(np.array([[1, 2]] * 4, dtype=np.int32), np.full((4, 2), 9, dtype=np.float32))
    lists = join(rows, [0, 2, 4], np.array([[0, 1]] * 4, dtype=np.int32), 2, np.arange(4, dtype=np.int32), before)
    assert (lists.places == before.places).all() and (lists.similarities == 9).all()


@pytest.mark.parametrize("n", [600, 1100])
def test_many_who_look_into_one_cell_find_the_same_by_offers_as_by_lines(n):
    """More than are multiplied at once, where some lists have room and some are full."""
    rows = np.random.default_rng(n).standard_normal((n, 6)).astype(np.float32)
    order, starts = np.random.default_rng(1).permutation(n).astype(np.int32), [0, 5, 60, n]
    probes = np.tile(np.array([1, 0, 2], np.int32), (n, 1))
    first = join(rows, starts, np.where(np.arange(n)[:, None] % 3, probes[:, 1:2], -1), 9, order)
    offered, laid_out = join(rows, starts, probes, 9, order, first), join(rows, starts, probes, 9, order)
    assert (offered.places == laid_out.places).mean() > 0.99  # but for roundings
    np.testing.assert_allclose(offered.similarities, laid_out.similarities, atol=1e-5)


def test_no_probes_change_nothing():
    lists = join(np.eye(3, dtype=np.float32), [0, 3], np.empty((3, 0), np.int32), 2, np.arange(3, dtype=np.int32))
    assert (lists.places == -1).all()
