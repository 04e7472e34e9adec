from __future__ import annotations

import json
import os
import signal

import numpy as np
import pytest

from starfc import atomic, workdir
from starfc.errors import OutputError
from starfc.features import Features, open_npz_array
from starfc.workdir import Workdir, digest_arrays, digest_features


def save(array, path):
    with atomic.replacing(path) as aside, aside.open("wb") as file:
        np.savez(file, x=array)


def load(path):
    return np.asarray(open_npz_array(path, "x"))


@pytest.fixture
def stage(tmp_path):
    """Return a function that runs the stage "sum" and tells whether it was built."""

    def run_stage(folder=tmp_path / "work", **depends_on) -> bool:
        built = []

        def build():
            built.append(True)
            return np.arange(10)

        result = Workdir.open(folder).stage("sum", depends_on, build, save, load)
        np.testing.assert_array_equal(result, np.arange(10))
        return bool(built)

    return run_stage


def test_no_folder_builds_always(stage):
    assert stage(folder=None, k=1) and stage(folder=None, k=1)


def test_the_same_call_reuses(stage):
    facts = {"k": 3, "hidden": (4, 5), "tau": 0.1, "none": None}
    assert stage(**facts)
    assert not stage(**facts)


def test_a_change_builds_again(stage, tmp_path, monkeypatch):
    assert stage(k=3)
    assert stage(k=4)
    assert not stage(k=4)
    assert stage(k=4, seed=1)
    monkeypatch.setattr(workdir, "__version__", "99")
    assert stage(k=4, seed=1)


@pytest.mark.parametrize(
    "damage", ["truncated", "garbled", "no output", "no manifest", "half a manifest", "odd manifest"]
)
def test_damage_builds_again(stage, tmp_path, damage):
    assert stage(k=3)
    output, manifest = tmp_path / "work" / "sum.npz", tmp_path / "work" / "sum.json"
    whole = output.read_bytes()
    if damage == "truncated":
        output.write_bytes(whole[:-10])
    elif damage == "garbled":
        output.write_bytes(bytes(len(whole)))
    elif damage == "no output":
        output.unlink()
    elif damage == "no manifest":
        manifest.unlink()
    else:
        manifest.write_text("[1]" if damage == "odd manifest" else manifest.read_text()[:20])
    assert stage(k=3)
    assert not stage(k=3)


def test_the_manifest_is_written_last(tmp_path):
    work = Workdir.open(tmp_path)
    work.stage("sum", {"k": 1}, lambda: np.arange(3), save, load)

    def killed(array, path):
        assert not (tmp_path / "sum.json").exists()  # or it would vouch for the output of another call
        save(array, path)
        assert not (tmp_path / "sum.json").exists()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work.stage("sum", {"k": 2}, lambda: np.arange(4), killed, load)
    assert not (tmp_path / "sum.json").exists()
    work.stage("sum", {"k": 2}, lambda: np.arange(4), save, load)
    manifest = json.loads((tmp_path / "sum.json").read_text())
    assert manifest == {"starfc": workdir.__version__, "k": 2, "bytes": (tmp_path / "sum.npz").stat().st_size}


def test_a_failed_build_keeps_what_was_there(tmp_path, stage):
    def fail():
        raise ZeroDivisionError

    assert stage(k=1)
    with pytest.raises(ZeroDivisionError):
        Workdir.open(tmp_path / "work").stage("sum", {"k": 2}, fail, save, load)
    assert not stage(k=1)


def test_only_what_a_killed_run_left_is_removed(tmp_path):
    leftover = tmp_path / ".knn.npz.starfc-0123abcd.npz"
    mine = [tmp_path / ".gitignore", tmp_path / ".knn.npz", tmp_path / "notes.txt"]
    for path in (leftover, *mine):
        path.write_text("x")
    with Workdir.open(tmp_path).locked():
        assert sorted(tmp_path.iterdir()) == sorted([*mine, tmp_path / ".lock"])


def test_what_another_run_is_writing_is_left_to_it(tmp_path):
    writing = tmp_path / ".knn.npz.starfc-0123abcd.npz"
    with Workdir.open(tmp_path).locked():
        writing.write_text("x")
        with pytest.raises(OutputError, match="in use"), Workdir.open(tmp_path).locked():
            raise AssertionError
        assert writing.exists()


def test_a_folder_that_cannot_be_used(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("x")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(OutputError, match=r"cannot be used: .*; choose another --workdir"):
            Workdir.open(folder)
    monkeypatch.setattr(workdir.os, "access", lambda path, mode: False)
    with pytest.raises(OutputError, match="not writable"):
        Workdir.open(tmp_path)


def test_digests():
    rows = np.arange(12.0).reshape(4, 3)
    calls = []
    digest = digest_features(Features(rows), lambda *call: calls.append(call))
    assert calls == [("digest", 0, 4), ("digest", 4, 4)]
    assert digest == digest_features(Features(np.asfortranarray(rows), "elsewhere"))
    changed = rows.copy()
    changed[3, 2] += 1e-12
    others = [changed, rows.reshape(3, 4), rows.astype(np.float32), rows[:3], rows[::-1]]
    assert len({digest, *(digest_features(Features(other)) for other in others)}) == 6
    assert digest_arrays(a=rows, b=changed) == digest_arrays(b=changed, a=rows) != digest_arrays(a=changed, b=rows)


def test_two_runs_at_once_are_refused(tmp_path):
    first, second = Workdir.open(tmp_path), Workdir.open(tmp_path)
    sentence = "in use by another run; wait for it or choose another --workdir"
    with first.locked(), pytest.raises(OutputError, match=sentence), second.locked():
        raise AssertionError
    with second.locked():  # free again
        pass
    with Workdir(None).locked(), Workdir(None).locked():
        pass


def test_a_lock_dies_with_its_process(tmp_path):
    pid = os.fork()
    if pid == 0:
        held = Workdir.open(tmp_path).locked()
        held.__enter__()
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    with Workdir.open(tmp_path).locked():
        pass


def test_digests_of_many_blocks(monkeypatch):
    monkeypatch.setattr(workdir, "_BLOCK_BYTES", 64)
    rows = np.random.default_rng(0).normal(size=(100, 4)).astype(np.float32)
    released = []
    digest = digest_features(Features(rows), after=lambda: released.append(1))
    assert len(released) == 25
    seen = {digest}
    for row in range(0, 100, 7):
        changed = rows.copy()
        changed[row, row % 4] += 1
        seen.add(digest_features(Features(changed)))
    swapped = rows.copy()
    swapped[[0, 99]] = rows[[99, 0]]
    seen.add(digest_features(Features(swapped)))
    assert len(seen) == 17
    assert digest == digest_features(Features(rows[::-1][::-1]))
