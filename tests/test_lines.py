import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from starfc.lines import collect_members, find_line, invert_lists, lay_out, multiply_runs
from starfc.selection import unpack_row


@settings(deadline=None)  # the first call compiles
@given(hnp.arrays(np.int32, st.tuples(st.integers(0, 12), st.integers(0, 4)), elements=st.integers(-1, 5)))
def test_inverted_lists_equal_a_search(lists):
    starts, rows = invert_lists(lists, 6)
    for target in range(6):
        assert rows[starts[target] : starts[target + 1]].tolist() == np.nonzero(lists == target)[0].tolist()


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 999), st.integers(1, 40), st.integers(1, 6), st.integers(1, 5), st.floats(-2, 2))
def test_a_line_holds_the_products_with_the_runs_that_a_row_names(seed, n, n_runs, n_names, floor):
    rng = np.random.default_rng(seed)
    starts = np.concatenate(([0], np.cumsum(rng.integers(1, 20, n_runs))))
    stored = rng.standard_normal((starts[-1], 6)).astype(np.float32)
    rows = rng.standard_normal((n, 6)).astype(np.float32)
    names = np.full((n, n_names), -1, dtype=np.int32)
    for own in names:
        some = rng.permutation(n_runs)[: rng.integers(0, n_names + 1)]
        own[rng.permutation(n_names)[: len(some)]] = some
    ends = lay_out(names, starts)
    lines = np.full(ends[-1, -1], np.nan, dtype=np.float32)
    multiply_runs(stored, starts, rows, names, ends, lines)
    keys = np.empty(len(stored), dtype=np.uint64)
    for i in range(n):
        members = np.concatenate([np.arange(starts[run], starts[run + 1]) for run in names[i] if run >= 0] or [[]])
        members = members.astype(int)
        begin, end = find_line(ends, i)
        np.testing.assert_allclose(lines[begin:end], stored[members] @ rows[i], atol=1e-5)
        n_kept = collect_members(lines[begin:end], names[i], starts, np.float32(floor), keys)
        expected = members[lines[begin:end] >= np.float32(floor)]
        assert [unpack_row(key) for key in keys[:n_kept]] == expected.tolist()
