from __future__ import annotations

import errno
import os
import re
import signal

import pytest

from starfc import atomic
from starfc.atomic import (
    remove_leftovers,
    remove_leftovers_of,
    replacing,
    replacing_folder,
    require_writable,
    temporary_folder,
    write_json,
)
from starfc.errors import OutputError


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_file_appears_whole(tmp_path):
    target = tmp_path / "a.txt"
    with replacing(target) as aside:
        aside.write_text("half")
        assert not target.exists()
        assert aside.parent == tmp_path and aside.suffix == ".txt"
    assert target.read_text() == "half"
    assert names(tmp_path) == ["a.txt"]


def test_permissions_are_those_of_an_ordinary_file(tmp_path):
    before = os.umask(0o027)
    try:
        write_json(tmp_path / "a.json", {"b": 1})
        with replacing_folder(tmp_path / "model") as aside:
            (aside / "x").write_text("x")
    finally:
        os.umask(before)
    assert (tmp_path / "a.json").stat().st_mode & 0o777 == 0o640
    assert (tmp_path / "model").stat().st_mode & 0o777 == 0o750


@pytest.mark.parametrize("error", [RuntimeError("bug"), KeyboardInterrupt()])
def test_an_error_leaves_the_target_as_it_was(tmp_path, error):
    (tmp_path / "a.txt").write_text("old")
    with pytest.raises(type(error)), replacing(tmp_path / "a.txt") as aside:
        aside.write_text("new")
        raise error
    assert (tmp_path / "a.txt").read_text() == "old"
    assert names(tmp_path) == ["a.txt"]


def test_a_failed_write_is_one_sentence(tmp_path):
    sentence = r"cannot write .*a\.txt: No space left on device; nothing was changed"
    with pytest.raises(OutputError, match=sentence), replacing(tmp_path / "a.txt"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert names(tmp_path) == []


def test_a_temporary_name_that_cannot_be_made_is_one_sentence(tmp_path):
    with pytest.raises(OutputError, match="too long"), replacing(tmp_path / ("a" * 250)):
        pass


def test_inner_sentences_are_kept(tmp_path):
    with pytest.raises(OutputError, match=r"^inner$"), replacing(tmp_path / "a.txt"):
        raise OutputError("inner")


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "real.txt").write_text("old")
    (tmp_path / "link.txt").symlink_to(tmp_path / "far" / "real.txt")
    with replacing(tmp_path / "link.txt") as aside:
        aside.write_text("new")
    assert (tmp_path / "link.txt").is_symlink()
    assert (tmp_path / "far" / "real.txt").read_text() == "new"


def test_unwritable_targets(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OutputError, match="does not exist"):
        require_writable(tmp_path / "no" / "a.txt")
    with pytest.raises(OutputError, match="is a folder"):
        require_writable(tmp_path)
    with pytest.raises(OutputError, match="device or pipe"):
        require_writable(tmp_path / "pipe")
    with pytest.raises(OutputError, match="is a file"), replacing_folder(tmp_path / "pipe"):
        pass
    monkeypatch.setattr(atomic.os, "access", lambda path, mode: False)
    with pytest.raises(OutputError, match="not writable"):
        require_writable(tmp_path / "a.txt")


def test_a_folder_is_replaced_whole(tmp_path):
    for content in ("first", "second"):
        with replacing_folder(tmp_path / "model") as aside:
            (aside / content).write_text(content)
        assert names(tmp_path) == ["model"]
        assert names(tmp_path / "model") == [content]


def test_a_folder_survives_a_failure(tmp_path, monkeypatch):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "old").write_text("old")
    with pytest.raises(ZeroDivisionError), replacing_folder(tmp_path / "model"):
        raise ZeroDivisionError

    rename = atomic.Path.replace

    def fail_at_the_end(self, target):
        if target == tmp_path / "model" and self.name != "old":
            raise OSError(errno.EIO, "Input/output error")
        return rename(self, target)

    monkeypatch.setattr(atomic.Path, "replace", fail_at_the_end)
    with pytest.raises(OutputError, match="Input/output error"), replacing_folder(tmp_path / "model") as aside:
        (aside / "new").write_text("new")
    assert names(tmp_path) == ["model"]
    assert names(tmp_path / "model") == ["old"]


def test_only_our_own_leftovers_are_removed(tmp_path):
    try:
        with replacing(tmp_path / "knn.npz") as aside:
            leftover = tmp_path / re.sub(r"starfc-.{8}", "starfc-abcd_123", aside.name)
            aside.rename(leftover)
            leftover.touch()
            raise ZeroDivisionError
    except ZeroDivisionError:
        pass
    others = [".gitignore", ".bashrc.starfc", "knn.npz", ".a.starfc-short.npz", "a.starfc-abcd_123.npz", ".hidden.npz"]
    for name in others:
        (tmp_path / name).write_text("mine")
    (tmp_path / ".folder.starfc-abcd_123").mkdir()
    assert leftover.exists()
    remove_leftovers(tmp_path)
    assert names(tmp_path) == sorted([*others, ".folder.starfc-abcd_123"])


def test_a_private_file_stays_private(tmp_path):
    (tmp_path / "a.txt").write_text("old")
    (tmp_path / "a.txt").chmod(0o640)
    with replacing(tmp_path / "a.txt") as aside:
        aside.write_text("new")
    assert (tmp_path / "a.txt").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("error", [None, RuntimeError("bug"), KeyboardInterrupt()])
def test_a_temporary_folder_is_removed_however_it_ends(tmp_path, error):
    try:
        with temporary_folder(tmp_path / "labels.npy") as folder:
            (folder / "deep").mkdir()
            (folder / "deep" / "file").write_text("x")
            remove_leftovers_of(tmp_path / "labels.npy")  # of another run: leaves what is in use
            assert (folder / "deep" / "file").exists()
            if error is not None:
                raise error
    except (RuntimeError, KeyboardInterrupt) as caught:
        assert caught is error
    assert names(tmp_path) == []


def test_what_killed_runs_left_beside_a_target_is_removed(tmp_path):
    pid = os.fork()
    if pid == 0:
        target = tmp_path / "a[1].npy"
        begun = [replacing(target), temporary_folder(target), replacing(tmp_path / "b.npy")]
        (tmp_path / [context.__enter__() for context in begun][1] / "big.npy").write_text("x")
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    (tmp_path / ".a[1].npy.starfc-notours").write_text("mine")
    (tmp_path / ".a[1].npy.starfc-abcd_123").mkdir()  # without a lock: not of a run
    assert len(names(tmp_path)) == 5
    with replacing(tmp_path / "a[1].npy") as aside:
        remove_leftovers_of(tmp_path / "a[1].npy")
        assert aside.exists()
    left = [name for name in names(tmp_path) if not name.startswith(".b.npy.starfc-")]
    assert left == [".a[1].npy.starfc-abcd_123", ".a[1].npy.starfc-notours", "a[1].npy"]
