"""Tiles: fixed runs of rows, worked on by as many threads as there are.

In: a number of rows and what to do with a run of them. Out: the results in the order of the runs. The runs are the same
whatever the number of threads, so that whatever depends on where a run begins has the same bits.
"""

from __future__ import annotations

from collections.abc import Callable

from .progress import Progress, silent
from .workers import Result, run_in_order


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
    results: list[Result] = []

    def finish(start: int, result: Result) -> None:
        results.append(result)
        progress(stage, min(start + n_rows, n), n)
        if after is not None:
            after()

    progress(stage, 0, n)
    run_in_order(lambda start: work(start, min(start + n_rows, n)), range(0, n, n_rows), finish)
    return results
