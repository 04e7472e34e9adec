import pytest

from starfc.threads import limited_threads
from starfc.tiles import run_tiles


@pytest.mark.parametrize("threads", [1, 2])
def test_results_come_in_order_and_progress_is_told(threads):
    calls, after = [], []
    with limited_threads(threads):
        runs = run_tiles(
            10, 4, lambda *run: run, "x", lambda *call: calls.append(call), lambda: after.append(len(calls))
        )
    assert runs == [(0, 4), (4, 8), (8, 10)]
    assert calls == [("x", 0, 10), ("x", 4, 10), ("x", 8, 10), ("x", 10, 10)] and len(after) == 3


def test_no_rows():
    assert run_tiles(0, 4, lambda *run: run, "x") == []


def test_an_error_stops_the_rest():
    done = []

    def work(start, stop):
        if start == 0:
            raise ZeroDivisionError
        done.append(start)

    with limited_threads(1), pytest.raises(ZeroDivisionError):
        run_tiles(10_000, 1, work, "x")
    assert len(done) < 10_000
