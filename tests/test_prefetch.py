import numpy as np
import pytest
from numba import njit

from starfc.prefetch import prefetch_row


@njit
def add_up(array, rows):
    """Ask for every row before it is read."""
    total = 0.0
    for i in range(len(rows)):
        prefetch_row(array, rows[i])
        for j in range(array.shape[1]):
            total += array[rows[i], j]
    return total


@pytest.mark.parametrize("kind", [np.float32, np.uint16, np.int32, np.bool_])
@pytest.mark.parametrize("number", [np.int32, np.int64])
@pytest.mark.parametrize("n_columns", [0, 1, 33, 300])
def test_rows_are_what_they_are(kind, number, n_columns):
    array = np.random.default_rng(0).integers(0, 9, (50, n_columns)).astype(kind)
    rows = np.random.default_rng(1).permutation(50).astype(number)
    assert add_up(array, rows) == array[rows].sum()


def test_what_is_not_there_may_be_asked_for():
    """It is a hint: no row is read, and nothing fails."""

    @njit
    def ask(array):
        prefetch_row(array, 1 << 40)

    ask(np.zeros((2, 3), np.float32))
