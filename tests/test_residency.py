import gc
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from numba.core.dispatcher import Dispatcher

from starfc import (
    celljoin,
    cellknn,
    cells,
    centres,
    exact,
    expansion,
    lines,
    neighborlists,
    panels,
    probes,
    rowstore,
    selection,
)
from starfc.residency import THREAD, keep_within, measure_rss_bytes, register_holder
from starfc.scratch import Scratch
from starfc.steps import Steps

N_BYTES = 64 << 20
needs_proc = pytest.mark.skipif(
    not Path("/proc/self/statm").is_file(), reason="the system does not tell what is resident"
)


def touch_all(pages):
    """Write into every page and return the most memory that was seen meanwhile."""
    highest = 0
    for start in range(0, N_BYTES, 1 << 18):
        pages[start : start + (1 << 18)] = start >> 18
        highest = max(highest, measure_rss_bytes())
        time.sleep(0.0005)
    return highest


@needs_proc
@pytest.mark.parametrize("private_bytes", [0, 2 * N_BYTES])
def test_pages_touched_within_one_step_are_let_go_of(tmp_path, private_bytes):
    """Nobody calls `relieve` here: a tile that touches everything must not take everything.

    Nor may pages have what was private for a while.
    """
    with Scratch(tmp_path / "w") as scratch:
        pages = scratch.array("pages", (N_BYTES,), np.uint8)
        limit = measure_rss_bytes() + N_BYTES // 4
        with keep_within(limit):
            for_a_while = np.ones(private_bytes, dtype=np.uint8)
            time.sleep(0.1)
            del for_a_while
            time.sleep(0.1)
            highest = touch_all(pages)
        assert highest < limit + N_BYTES // 4  # the thread may have to wait for its turn
        assert (pages[:: 1 << 18] == np.arange(N_BYTES >> 18) % 256).all()  # what was let go of is not lost


class Locked:
    """Holds what the system will not let go of."""

    def let_go(self):
        raise OSError("locked in memory")


class Stubborn:
    """Holds what does not go away."""

    n_calls = 0

    def let_go(self):
        self.n_calls += 1


@needs_proc
def test_what_does_not_go_away_is_not_tried_all_the_time():
    holder = Stubborn()
    register_holder(holder)
    with keep_within(1 << 50):
        time.sleep(0.1)
    assert holder.n_calls == 0
    with keep_within(16 << 20):
        time.sleep(0.4)
    assert 1 <= holder.n_calls <= 5


@needs_proc
def test_files_of_a_closed_step_are_gone_while_memory_is_looked_at(tmp_path):
    steps = Steps(tmp_path)
    with keep_within(16 << 20):
        steps.open("first").array("pages", (N_BYTES,), np.uint8)[:] = 1
        time.sleep(0.1)
        steps.close("first")
        gc.collect()
        assert not [line for line in Path("/proc/self/maps").read_text().splitlines() if str(tmp_path) in line]


@needs_proc
def test_a_map_that_cannot_be_let_go_of_is_said_once(caplog):
    holders = Locked(), Stubborn()
    for holder in holders:
        register_holder(holder)
    with caplog.at_level("WARNING"), keep_within(16 << 20):
        time.sleep(0.3)
    assert sum("locked" in record.getMessage() for record in caplog.records) == 1
    assert holders[1].n_calls  # whatever others do


def test_without_a_limit_nobody_looks():
    with keep_within(None):
        assert THREAD not in {thread.name for thread in threading.enumerate()}
    with keep_within(1 << 50):
        assert (THREAD in {thread.name for thread in threading.enumerate()}) == (measure_rss_bytes() > 0)


SEARCH = (
    cells, celljoin, cellknn, centres, exact, expansion, lines, neighborlists, panels, probes, rowstore, selection
)  # fmt: skip


@pytest.mark.parametrize("module", SEARCH, ids=lambda module: module.__name__)
def test_no_kernel_of_the_search_keeps_the_thread_from_looking(module):
    """One that held Python's lock while it read here and there would touch pages of maps without a limit."""
    kernels = [kernel for kernel in vars(module).values() if isinstance(kernel, Dispatcher)]
    assert [kernel.__name__ for kernel in kernels if not kernel.targetoptions.get("nogil")] == []
