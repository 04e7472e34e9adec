"""Tiles: fixed runs of rows, worked on by as many threads as there are.

In: a number of rows and what to do with a run of them. Out: the results in the order of the runs. The runs are the same
whatever the number of threads, so that whatever depends on where a run begins has the same bits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from .progress import Progress, silent
from .workers import start_workers

Result = TypeVar("Result")
_AHEAD = 64  # runs handed to the threads before the first of them is waited for: those of 12 million faces are many


def run_tiles(
    n: int,
    n_rows: int,
    work: Callable[[int, int], Result],
    stage: str,
    progress: Progress = silent,
    after: Callable[[], None] | None = None,
) -> list[Result]:
    """Call work(start, stop) for every run of n_rows rows, the last one shorter, and `after` after each.

    >>> run_tiles(5, 2, lambda start, stop: stop - start, "count")
    [2, 2, 1]
    """
    progress(stage, 0, n)
    results: list[Result] = []
    waiting: deque[tuple[int, Future[Result]]] = deque()

    def finish() -> None:
        stop, job = waiting.popleft()
        results.append(job.result())
        progress(stage, stop, n)
        if after is not None:
            after()

    with start_workers() as pool:
        try:
            for start in range(0, n, n_rows):
                stop = min(start + n_rows, n)
                waiting.append((stop, pool.submit(work, start, stop)))
                if len(waiting) > _AHEAD:
                    finish()
            while waiting:
                finish()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return results
