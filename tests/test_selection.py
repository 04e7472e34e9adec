import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from starfc.selection import (
    LANES,
    collect_keys,
    count_reaching,
    finish_selection,
    keep_best,
    mark_others,
    offer_run,
    offer_runs,
    pack_key,
    push_rows,
    push_tile,
    raise_floors,
    sharpen_floor,
    sort_keys,
    start_selection,
    unpack_row,
    unpack_similarity,
)


def draw_scores(shape, seed, n_distinct=9):
    """Few distinct values, so that ties abound, zeros of both signs among them."""
    values = np.append(np.linspace(-1, 1, n_distinct), -0.0).astype(np.float32)
    return np.random.default_rng(seed).choice(values, shape)


def sort_candidates(candidates, k):
    """Return ids and similarities of the best (similarity, id) pairs, by sorting."""
    best = sorted(candidates, key=lambda pair: (-pair[0], pair[1]))[:k]
    missing = k - len(best)
    return [row for _, row in best] + [-1] * missing, [float(score) for score, _ in best] + [0.0] * missing


def check(selection, candidates):
    neighbors, similarities = finish_selection(selection)
    for row, offered in enumerate(candidates):
        assert (neighbors[row].tolist(), similarities[row].tolist()) == sort_candidates(offered, selection.k)


CANDIDATES = st.tuples(st.floats(-2, 2, width=32), st.integers(0, 2**31 - 1))


@settings(deadline=None)  # the first call compiles
@given(st.tuples(CANDIDATES, CANDIDATES))
def test_keys_sort_like_candidates(pairs):
    (one, row), (other, other_row) = pairs
    better = (one, -row) > (other, -other_row)
    key = np.uint64(pack_key(np.float32(one), row))
    other_key = np.uint64(pack_key(np.float32(other), other_row))
    assert (key > other_key) == better
    assert unpack_row(key) == row
    assert unpack_similarity(key) == np.float32(one)


@settings(deadline=None)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=60), st.data())
def test_the_best_keys_are_kept(numbers, data):
    k = data.draw(st.integers(1, len(numbers)))
    keys = np.array(numbers, dtype=np.uint64)
    worst = keep_best(keys, len(keys), k)
    expected = sorted(numbers, reverse=True)[:k]
    assert sorted(keys[:k].tolist(), reverse=True) == expected
    assert worst == expected[-1]


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 150), st.integers(1, 9), st.integers(0, 99))
def test_rows_equal_sorting(n, k, seed):
    scores = draw_scores((3, n), seed)
    selection = start_selection(5, k)
    push_rows(selection, scores, 2, 1000)
    check(selection, [[], [], *([(line[j], 1000 + j) for j in range(n)] for line in scores)])


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 150), st.integers(1, 9), st.integers(0, 99))
def test_runs_equal_sorting(n, k, seed):
    selection = start_selection(2, k)
    for first in (0, n):
        offer_run(selection, 1, draw_scores(n, seed + first), first)
    scores = np.append(draw_scores(n, seed), draw_scores(n, seed + n))
    check(selection, [[], list(zip(scores, range(2 * n), strict=True))])


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 60), st.integers(1, 9), st.integers(0, 99))
def test_raised_floors_are_how_the_best_end_and_lose_nothing(n, k, seed):
    selection = start_selection(2, k)
    lines = draw_scores((2, n), seed)
    for row, line in enumerate(lines):
        offer_run(selection, row, line, 0)
    before = selection.floors[1]
    raise_floors(selection, np.array([0]))
    assert selection.floors[0] == (np.sort(lines[0])[-k] if n > k else -np.inf)
    assert selection.floors[1] == before
    offer_run(selection, 0, lines[1], n)
    both = np.append(lines[0], lines[1])
    check(selection, [list(zip(both, range(2 * n), strict=True)), list(zip(lines[1], range(n), strict=True))])


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 400), st.integers(1, 150), st.integers(0, 99))
def test_the_best_of_a_line_equal_sorting(n, most, seed):
    line = draw_scores(n, seed)
    floor = sharpen_floor(line, most, np.float32(-np.inf))
    keys = np.empty(n + 1, dtype=np.uint64)
    keys[0] = pack_key(np.float32(9), 999)
    n_kept = collect_keys(line, floor, 70, keys, 1)
    assert sorted(unpack_row(key) for key in keys[1:n_kept]) == (70 + np.flatnonzero(line >= floor)).tolist()
    n_kept = sort_keys(keys, n_kept, most + 1)
    assert [unpack_row(key) - 70 for key in keys[1:n_kept]] == np.argsort(-line, kind="stable")[:most].tolist()
    assert unpack_row(keys[0]) == 999


@pytest.mark.parametrize("n", [1, 2, 10, 11, 57, 58, 132, 133, 301, 302, 701, 702, 2000])
@pytest.mark.parametrize("n_different", [3, 1 << 40])
def test_keys_are_sorted_best_first(n, n_different):
    drawn = np.random.default_rng(n).integers(0, n_different, n).astype(np.uint64)
    for most in (n, n // 2 + 1):
        keys = drawn.copy()
        assert sort_keys(keys, n, most) == min(n, most)
        assert keys[:most].tolist() == np.sort(drawn)[::-1][:most].tolist()


@pytest.mark.parametrize("k", [1, 4])
def test_rows_are_offered_their_lines(k):
    selection, lines = start_selection(5, k), draw_scores((3, 100), 0)
    offer_runs(selection, np.array([4, 0, 3]), lines, 20, lines.shape[1])
    offered = {row: list(zip(line, range(20, 120), strict=True)) for row, line in zip((4, 0, 3), lines, strict=True)}
    check(selection, [offered.get(row, []) for row in range(5)])


@settings(deadline=None, max_examples=100)
@given(st.integers(0, 400), st.integers(1, 150), st.integers(0, 99), st.sampled_from([-np.inf, -3.0, 0.1, 0.5, 3.0]))
def test_a_sharp_floor_is_reached_by_as_many_as_asked(n, most, seed, guess):
    line = np.random.default_rng(seed).uniform(-1, 1, n).astype(np.float32)  # none are equal
    floor = sharpen_floor(line, most, np.float32(guess))
    assert count_reaching(line, floor) == (line >= floor).sum() == min(n, most)


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 400), st.integers(1, 150), st.integers(0, 99))
def test_a_sharp_floor_leaves_out_no_equals(n, most, seed):
    line = draw_scores(n, seed)
    floor = sharpen_floor(line, most, np.float32(-np.inf))
    expected = np.sort(line)[::-1][most - 1] if n > most else line.min()
    assert (line >= floor).sum() == (line >= expected).sum()


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 2 * LANES), st.integers(1, 2 * LANES), st.integers(1, 9), st.integers(0, 99))
def test_tiles_equal_sorting(n_rows, n_columns, k, seed):
    tile = 2 * LANES  # rows 0..n_rows, columns from `tile` on; the rest is padding
    scores = draw_scores((tile, tile), seed)
    selection = start_selection(tile + n_columns, k)
    push_tile(selection, scores, (0, n_rows), (tile, tile + n_columns))
    candidates = [[(scores[i, j], tile + j) for j in range(n_columns)] if i < n_rows else [] for i in range(tile)]
    candidates += [[(scores[i, j], i) for i in range(n_rows)] for j in range(n_columns)]
    check(selection, candidates)


@pytest.mark.parametrize("n", [1, 2, 63, 64, 65, 128])
def test_a_diagonal_tile_counts_its_upper_triangle(n):
    scores = draw_scores((128, 128), n)
    selection = start_selection(n, 4)
    push_tile(selection, scores, (0, n), (0, n))
    check(selection, [[(scores[min(i, j), max(i, j)], j) for j in range(n) if j != i] for i in range(n)])


def test_others_are_all_but_one():
    ids = np.array([[4, 5, 6], [5, 4, 6], [6, 5, 4], [1, 2, 3], [4, 4, 5]])
    kept = ids[mark_others(ids, np.full(5, 4))].reshape(5, 2)
    assert kept.tolist() == [[5, 6], [5, 6], [6, 5], [1, 2], [4, 5]]
