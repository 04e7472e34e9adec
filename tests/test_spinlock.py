import numpy as np
from numba import njit

from starfc.spinlock import lock, unlock
from starfc.workers import start_workers


@njit(nogil=True)
def count_up(locks, counts, index, n):
    """Count in steps that two threads would spoil for each other."""
    for _ in range(n):
        lock(locks, index)
        before = counts.copy()
        counts[index] = before[index] + 1
        unlock(locks, index)


def test_no_step_is_lost():
    locks, counts = np.zeros(3, dtype=np.int32), np.zeros(3, dtype=np.int64)
    count_up(locks, counts, 0, 1)
    with start_workers() as pool:
        list(pool.map(lambda index: count_up(locks, counts, index, 5000), [1] * 8))
    assert counts.tolist() == [1, 40_000, 0]
    assert not locks.any()


def test_locks_are_taken_one_by_one():
    locks = np.zeros(3, dtype=np.int32)
    lock(locks, 1)
    assert locks.tolist() == [0, 1, 0]
    lock(locks, 2)
    unlock(locks, 1)
    assert locks.tolist() == [0, 0, 1]
