from __future__ import annotations

import json
import mmap
import os
import signal
from pathlib import Path

import numpy as np
import pytest
from numba import njit

from starfc import scratch as module
from starfc.errors import OutputError
from starfc.residency import measure_private_bytes, measure_rss_bytes
from starfc.scratch import Rooms, Scratch, identify_boot, read_facts
from starfc.steps import Steps


def test_in_memory_nothing_is_left(tmp_path):
    work = Scratch()
    work.start_journal(2)
    work.mark(1)
    assert (work.is_done(0), work.is_done(1), work.all_done) == (False, True, False)
    assert work.array("a", (2, 3), np.int32).shape == (2, 3)
    work.let_go()
    work.remove()
    with pytest.raises(ValueError, match="no file"):
        work.publish("a", tmp_path / "a.npy")


def test_the_same_work_goes_on(tmp_path):
    with Scratch(tmp_path / "w", facts={"n": 3, "hidden": (4, 5)}) as first:
        first.start_journal(4)
        first.array("a", (5,), np.float32)[:] = range(5)
        first.mark(2)
    again = Scratch(tmp_path / "w", facts={"n": 3, "hidden": (4, 5)})
    again.start_journal(4)
    assert [again.is_done(unit) for unit in range(4)] == [False, False, True, False]
    assert again.array("a", (5,), np.float32).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("change", ["facts", "boot", "torn facts"])
def test_other_work_starts_anew(tmp_path, monkeypatch, change):
    first = Scratch(tmp_path / "w", facts={"n": 3})
    first.start_journal(1)
    first.array("a", (2,), np.int32)[:] = 7
    first.mark(0)
    if change == "boot":
        monkeypatch.setattr(module, "identify_boot", lambda: "another day")
    elif change == "torn facts":
        (tmp_path / "w" / "facts.json").write_text('{"n": 3')
    again = Scratch(tmp_path / "w", facts={"n": 4 if change == "facts" else 3})
    again.start_journal(1)
    assert not again.is_done(0)
    assert again.array("a", (2,), np.int32).tolist() == [0, 0]


def test_a_file_that_was_cut_short_is_made_anew(tmp_path):
    work = Scratch(tmp_path / "w")
    work.array("a", (100,), np.int64)[:] = 1
    path = tmp_path / "w" / "a.npy"
    os.truncate(path, path.stat().st_size - 8)
    assert not work.array("a", (100,), np.int64).any()
    assert not work.array("a", (50, 2), np.int64).any()  # nor is another shape mistaken for it
    assert np.load(path).shape == (50, 2)


def test_what_was_written_before_a_kill_is_there(tmp_path):
    pid = os.fork()
    if pid == 0:
        work = Scratch(tmp_path / "w")
        work.start_journal(1)
        work.array("a", (1000,), np.int64)[:] = np.arange(1000)
        work.mark(0)
        os.kill(os.getpid(), signal.SIGKILL)
    assert os.waitpid(pid, 0)[1] == signal.SIGKILL
    work = Scratch(tmp_path / "w")
    work.start_journal(1)
    assert work.is_done(0) and work.array("a", (1000,), np.int64).sum() == 499500


def test_pages_are_let_go_of_and_come_back(tmp_path):
    work = Scratch(tmp_path / "w", limit_bytes=1)
    array = work.array("a", (1 << 22,), np.float64)  # 32 MB
    private = measure_private_bytes()
    array[:] = 3
    before = measure_rss_bytes()
    assert measure_private_bytes() < private + (8 << 20) < before
    work.relieve()
    assert measure_rss_bytes() < before - (24 << 20)
    assert (array == 3).all()
    generous = Scratch(limit_bytes=1 << 50)
    generous.watch(array, array[2:], np.ones(3))
    before = measure_rss_bytes()
    generous.relieve()
    assert measure_rss_bytes() > before - (8 << 20)


def test_what_was_written_into_a_copy_on_write_map_stays(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros(100_000))
    array = np.load(tmp_path / "a.npy", mmap_mode="c")
    array += 1
    work = Scratch(limit_bytes=1)
    work.watch(array, array[5:], np.asarray(array))
    work.relieve()
    assert array.min() == 1


def test_memory_of_the_caller_is_no_file():
    memory = mmap.mmap(-1, 8192, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    array = np.ndarray((8192,), np.uint8, buffer=memory)
    array[:] = 7
    work = Scratch()
    work.watch(array)
    work.let_go()
    assert (array == 7).all()


def test_a_dropped_array_gives_its_disk_space_back(tmp_path):
    work = Scratch(tmp_path)
    work.array("a", (1000,), np.int64)
    kept = work.array("b", (1000,), np.int64)
    name, maps = str(tmp_path / "a.npy"), Path("/proc/self/maps")
    assert name in maps.read_text()
    work.drop("a", "never there")
    assert name not in maps.read_text() and not (tmp_path / "a.npy").exists()
    kept[:] = 7
    work.let_go()
    assert (kept == 7).all()


def test_a_published_array_replaces_and_stays(tmp_path):
    (tmp_path / "out.npy").write_text("old")
    work = Scratch(tmp_path / "w")
    work.array("a", (3,), np.int64)[:] = [1, 2, 3]
    for _ in range(2):  # a kill after the first may make it happen twice
        work.publish("a", tmp_path / "out.npy")
        assert np.load(tmp_path / "out.npy").tolist() == [1, 2, 3]
    work.remove()
    assert [path.name for path in tmp_path.iterdir()] == ["out.npy"]


def test_a_full_disk_is_one_sentence(tmp_path, monkeypatch):
    def fail(handle, start, count):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module.os, "posix_fallocate", fail)
    with pytest.raises(OutputError, match=r"a.npy \(0.0 GB\): No space left on device; free some disk space"):
        Scratch(tmp_path / "w").array("a", (3,), np.int64)


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(OutputError, match="cannot be made"):
        Scratch(tmp_path / "file" / "below")


def test_facts_are_read_back(tmp_path):
    assert read_facts(tmp_path) is None
    Scratch(tmp_path / "w", facts={"k": 1})
    assert read_facts(tmp_path / "w") == {"boot": identify_boot(), "k": 1}
    (tmp_path / "w" / "facts.json").write_text(json.dumps([1]))
    assert read_facts(tmp_path / "w") is None


def test_a_room_is_free_only_when_nobody_holds_any_part_of_it():
    rooms, n = Rooms(), 1 << 20
    first = rooms.make((n, 2), np.float32)
    place, row = first.ctypes.data, first[7]
    del first
    second = rooms.make((n, 2), np.float32)
    assert second.ctypes.data != place, "a row of the first array is still held"
    row[:] = 1
    second[:] = 2
    assert row.tolist() == [1, 1]
    del row
    assert rooms.make((n, 2), np.int32).ctypes.data == place


def test_a_room_is_not_wasted_on_a_small_array():
    rooms = Rooms()
    other, large = (rooms.make((n << 20,), np.uint8) for n in (4, 8))
    place = large.ctypes.data
    del other, large
    small = rooms.make((2 << 20,), np.uint8)
    assert small.ctypes.data != place
    assert rooms.make((7 << 20,), np.uint8).ctypes.data == place


def test_rooms_are_never_larger_than_arrays_have_been_at_once():
    rooms, held, most = Rooms(), [], 0
    rng = np.random.default_rng(0)
    for _ in range(200):
        while held and rng.random() < 0.5:
            held.pop(int(rng.integers(len(held))))
        held.append(rooms.make((int(rng.integers(1 << 20, 1 << 22)),), np.uint8))
        most = max(most, sum(array.base.size for array in held))
        assert sum(room.size for room in rooms._rooms) <= most
    held.clear()
    rooms.give_back()
    assert rooms._rooms == []


def test_a_view_of_memory_and_a_kernel_keep_a_room():
    rooms = Rooms()
    view = memoryview(rooms.make((1 << 20,), np.uint8))
    assert rooms.make((1 << 20,), np.uint8).base is not view.obj.base
    part = take_end(rooms.make((1 << 21,), np.uint8))
    assert not np.shares_memory(rooms.make((1 << 21,), np.uint8), part)


@njit
def take_end(values):
    return values[-5:]


def test_steps_share_rooms():
    steps = Steps()
    place = steps.open("one").array("a", (1 << 20,), np.uint8).ctypes.data
    assert steps.open("two").array("b", (1 << 20,), np.uint8).ctypes.data == place


def test_arrays_in_memory_go_into_the_rooms_of_their_scratch():
    rooms = Rooms()
    place = Scratch(rooms=rooms).array("a", (1 << 20,), np.uint8).ctypes.data
    assert Scratch(rooms=rooms).array("b", (1 << 20,), np.uint8).ctypes.data == place
