import numpy as np
import pytest
from threadpoolctl import threadpool_info

from starfc.threads import limited_threads
from starfc.workers import start_workers


@pytest.mark.parametrize("threads", [1, 2])
def test_as_many_workers_as_numba_has_threads(threads):
    with limited_threads(threads) as n_threads, start_workers() as pool:
        assert pool._max_workers == n_threads


def test_each_multiplies_alone():
    np.eye(2) @ np.eye(2)
    before = [library["num_threads"] for library in threadpool_info()]
    with start_workers():
        assert {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"} == {1}
    assert [library["num_threads"] for library in threadpool_info()][: len(before)] == before


def test_an_error_comes_out():
    with pytest.raises(ZeroDivisionError), start_workers() as pool:
        list(pool.map(lambda number: 1 // number, [1, 0]))
