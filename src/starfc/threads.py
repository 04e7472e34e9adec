"""How many cores the kernels use.

numba, the BLAS behind numpy and the OpenMP of faiss each keep a count of their own; this sets them together.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import numba
from threadpoolctl import threadpool_limits

from .errors import InputError


def available_cores() -> int:
    """Cores this process may run on (a container may grant fewer than the machine has)."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def limited_threads(threads: int | None) -> Iterator[int]:
    """Run the block on `threads` cores (None: all of them, or as many as a block around it allows); yield how many.

    >>> with limited_threads(1) as n_threads:
    ...     n_threads
    1
    """
    if threads is not None and threads < 1:
        raise InputError(f"threads ({threads}) must be at least 1; leave it out to use all cores")
    before = numba.get_num_threads()
    wanted = min(threads or min(available_cores(), before), int(numba.config.NUMBA_NUM_THREADS))  # type: ignore[attr-defined]
    numba.set_num_threads(wanted)
    try:
        with threadpool_limits(limits=wanted):
            yield wanted
    finally:
        numba.set_num_threads(before)
