"""Threads that each run one product at a time.

In: how many threads numba may use. Out: a pool of as many Python threads. A join is thousands of small products: too
small for a BLAS to divide among threads, and a product computed by one thread has the same bits however many there are.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager

import numba
from threadpoolctl import threadpool_limits


@contextmanager
def start_workers() -> Iterator[Executor]:
    """Yield a pool of as many threads as numba may use, each with a BLAS of one thread.

    >>> with start_workers() as pool:
    ...     list(pool.map(abs, [-1, -2]))
    [1, 2]
    """
    # The BLAS that numba's np.dot calls; only libraries that are loaded already can be limited.
    import scipy.linalg.cython_blas  # noqa: F401

    with threadpool_limits(limits=1, user_api="blas"), ThreadPoolExecutor(numba.get_num_threads()) as pool:
        yield pool
