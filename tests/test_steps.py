import threading

import numpy as np
import pytest

from starfc.steps import Steps, cut_evenly


def fill(steps, done, *, fail_at=None):
    scratch = steps.open("squares")
    squares = scratch.array("squares", (10,), np.int64)

    def square(start, stop):
        if start == fail_at:
            raise KeyboardInterrupt
        done.append(start)
        squares[start:stop] = np.arange(start, stop) ** 2

    steps.run_tiles(scratch, cut_evenly(10, 3), square, "squares")
    return squares


def test_all_tiles_are_run_in_memory():
    calls = []
    done = []
    squares = fill(Steps(progress=lambda *call: calls.append(call)), done)
    assert (squares == np.arange(10) ** 2).all()
    assert sorted(done) == [0, 3, 6, 9]
    assert calls[0] == ("squares", 0, 10) and calls[-1] == ("squares", 10, 10)


def test_a_stopped_step_goes_on_where_it_was(tmp_path):
    done = []
    with pytest.raises(KeyboardInterrupt):
        fill(Steps(tmp_path, {"n": 10}), done, fail_at=6)
    assert 6 not in done
    again = []
    assert (fill(Steps(tmp_path, {"n": 10}), again) == np.arange(10) ** 2).all()
    assert 6 in again and not set(again) & set(done)
    assert fill(Steps(tmp_path, {"n": 10}), third := []) is not None and third == []


def test_other_facts_begin_anew(tmp_path):
    fill(Steps(tmp_path, {"n": 10}), [])
    done = []
    fill(Steps(tmp_path, {"n": 10, "seed": 2}), done)
    assert sorted(done) == [0, 3, 6, 9]


def test_a_closed_step_is_gone(tmp_path):
    steps = Steps(tmp_path)
    fill(steps, [])
    assert (tmp_path / "squares").is_dir()
    steps.close("squares")
    assert not (tmp_path / "squares").exists()


def test_a_limit_lets_go_of_pages_and_changes_nothing(tmp_path):
    steps = Steps(tmp_path, limit_bytes=1)
    assert (fill(steps, []) == np.arange(10) ** 2).all()
    assert threading.active_count() < 20
