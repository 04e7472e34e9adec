"""Threads that each run one product at a time.

In: how many threads numba may use. Out: a pool of as many Python threads. A join is thousands of small products: too
small for a BLAS to divide among threads, and a product computed by one thread has the same bits however many there are.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import numba
import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

Result = TypeVar("Result")
_AHEAD = 64  # units handed to the threads before the first of them is waited for: those of 12 million faces are many
_own = threading.local()


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Run the block, or the function, with a BLAS of one thread, so that its bits do not depend on how many there are.

    >>> with one_blas_thread():
    ...     float(np.ones(2) @ np.ones(2))
    2.0
    """
    # The BLAS that numba's np.dot calls; only libraries that are loaded already can be limited.
    import scipy.linalg.cython_blas  # noqa: F401

    with threadpool_limits(limits=1, user_api="blas"):
        yield


@contextmanager
def start_workers() -> Iterator[Executor]:
    """Yield a pool of as many threads as numba may use, each with a BLAS of one thread.

    >>> with start_workers() as pool:
    ...     list(pool.map(abs, [-1, -2]))
    [1, 2]
    """
    with one_blas_thread(), ThreadPoolExecutor(numba.get_num_threads()) as pool:
        yield pool


def run_in_order(work: Callable[[int], Result], units: Iterable[int], finish: Callable[[int, Result], None]) -> None:
    """Call work(unit) for every unit with all threads, and finish(unit, result) in the order of the units.

    An error, or an interrupt, leaves out what has not begun.

    >>> run_in_order(abs, [-1, 2], lambda unit, result: print(unit, result))
    -1 1
    2 2
    """
    waiting: deque[tuple[int, Future[Result]]] = deque()

    def wait_for_oldest() -> None:
        unit, job = waiting.popleft()
        finish(unit, job.result())

    with start_workers() as pool:
        try:
            for unit in units:
                waiting.append((unit, pool.submit(work, unit)))
                if len(waiting) > _AHEAD:
                    wait_for_oldest()
            while waiting:
                wait_for_oldest()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def get_buffer(n_numbers: int) -> NDArray[np.float32]:
    """Return room for so many numbers that belongs to this thread; new room each time would cost page faults.

    It is overwritten by whoever asks next in the same thread.

    >>> get_buffer(5).shape
    (5,)
    """
    if not hasattr(_own, "buffer") or _own.buffer.size < n_numbers:
        _own.buffer = np.empty(n_numbers, dtype=np.float32)
    buffer: NDArray[np.float32] = _own.buffer[:n_numbers]
    return buffer
