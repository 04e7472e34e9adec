import threading
import time

import numpy as np

from starfc.residency import keep_within, measure_rss_bytes, register_holder
from starfc.scratch import Scratch

N_BYTES = 64 << 20


def test_pages_touched_within_one_step_are_let_go_of(tmp_path):
    """Nobody calls `relieve` here: a tile that touches everything must not take everything."""
    with Scratch(tmp_path / "w") as scratch:
        pages = scratch.array("pages", (N_BYTES,), np.uint8)
        limit = measure_rss_bytes() + N_BYTES // 4
        highest = 0
        with keep_within(limit):
            for start in range(0, N_BYTES, 1 << 18):
                pages[start : start + (1 << 18)] = start >> 18
                highest = max(highest, measure_rss_bytes())
                time.sleep(0.0005)
        assert highest < limit + (4 << 20)
        assert (pages[:: 1 << 18] == np.arange(N_BYTES >> 18) % 256).all()  # what was let go of is not lost


class Stubborn:
    """Holds what does not go away."""

    n_calls = 0

    def let_go(self):
        self.n_calls += 1


def test_what_does_not_go_away_is_not_tried_all_the_time():
    holder = Stubborn()
    register_holder(holder)
    with keep_within(1 << 50):
        time.sleep(0.1)
    assert holder.n_calls == 0
    with keep_within(16 << 20):
        time.sleep(0.4)
    assert 1 <= holder.n_calls <= 5


def test_without_a_limit_nobody_looks():
    before = threading.active_count()
    with keep_within(None):
        assert threading.active_count() == before
