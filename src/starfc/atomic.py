"""Files that are either whole or not there.

Everything is written to a temporary name in the target's own folder and renamed when complete, so that a kill, a full
disk or an error leaves the target as it was. ``OutputError`` says which path and why.
"""

from __future__ import annotations

import fcntl
import glob
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .errors import OutputError

# ".labels.npy.starfc-k3_x9a2b.npy": no one else makes such names, so what a killed run left behind is safe to remove.
_TEMPORARY_NAME = re.compile(r"\..+\.starfc-[a-z0-9_]{8}(\.[^.]*)?")


_LOCK = "lock"
PICTURE_ENDINGS = (".png", ".svg", ".pdf")


def require_writable(target: Path) -> None:
    """Refuse a target that cannot be written, before any work is done for it."""
    _require_parent(target)
    if target.is_dir():
        raise OutputError(f"output {target} is a folder; give a file name")
    if target.exists() and not target.is_file():
        raise OutputError(f"output {target} is a device or pipe, which cannot be replaced; give a file name")


def require_apart(target: Path, *others: Path | None) -> None:
    """Refuse to write over what the same run reads or writes."""
    for other in others:
        # Not Path.resolve, which fails on links that lead to themselves; whoever reads such a file says so.
        if other is not None and os.path.realpath(target) == os.path.realpath(other):
            raise OutputError(f"output {target} would replace {other}, which this run also needs; give another name")


def require_picture_ending(target: Path) -> None:
    """Refuse a file name that is no picture, before any work is done for it."""
    if target.suffix.lower() not in PICTURE_ENDINGS:
        raise OutputError(f"output {target} ends in '{target.suffix}'; pictures are {', '.join(PICTURE_ENDINGS)}")


def require_folder_writable(target: Path) -> None:
    """Refuse a target folder that cannot be made, before any work is done for it."""
    _require_parent(target)
    if target.exists() and not target.is_dir():
        raise OutputError(f"output {target} is a file; give a folder name")


def make_folder(folder: Path) -> Path:
    """Make a folder, and those above it, unless it is there; return it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"output folder {folder} cannot be made: {error.strerror}; choose another") from error
    return folder


def _require_parent(target: Path) -> None:
    """Refuse a target whose folder is missing or read-only."""
    folder = target.resolve().parent
    if not folder.is_dir():
        raise OutputError(f"output folder {folder} does not exist; create it or choose another path")
    if not os.access(folder, os.W_OK):
        raise OutputError(f"output folder {folder} is not writable; change its permissions or choose another path")


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """Yield a temporary path beside `target`; rename it to `target` when the block ends well.

    >>> folder = getfixture("tmp_path")
    >>> with replacing(folder / "a.txt") as aside:
    ...     _ = aside.write_text("whole")
    >>> [p.name for p in folder.iterdir()]
    ['a.txt']
    """
    require_writable(target)
    place = target.resolve()  # a link stays a link: what it points to is replaced
    with _naming(target):
        handle, name = tempfile.mkstemp(prefix=f".{place.name}.starfc-", suffix=place.suffix, dir=place.parent)
        aside = Path(name)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)  # dies with this process: then what is left may be removed
            yield aside
            _flush_to_disk(aside)
            # what was private stays private
            aside.chmod(place.stat().st_mode & 0o777 if place.exists() else 0o666 & ~_umask())
            aside.replace(place)
        finally:
            aside.unlink(missing_ok=True)
            os.close(handle)


@contextmanager
def temporary_folder(target: Path) -> Iterator[Path]:
    """Yield a folder beside `target` for what does not fit in memory; it is removed in the end, however that comes.

    >>> folder = getfixture("tmp_path")
    >>> with temporary_folder(folder / "labels.npy") as scratch:
    ...     scratch.parent == folder
    True
    >>> list(folder.iterdir())
    []
    """
    place = target.resolve()
    with _naming(target):
        folder = Path(tempfile.mkdtemp(prefix=f".{place.name}.starfc-", dir=place.parent))
        try:
            with (folder / _LOCK).open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def replacing_folder(target: Path) -> Iterator[Path]:
    """Yield a temporary folder beside `target`; it takes the place of `target` when the block ends well."""
    require_folder_writable(target)
    place = target.resolve()
    with _naming(target):
        aside = Path(tempfile.mkdtemp(prefix=f".{place.name}.starfc-", dir=place.parent))
        try:
            yield aside
            for file in aside.rglob("*"):
                _flush_to_disk(file)
            aside.chmod(0o777 & ~_umask())
            _swap_folders(aside, place)
        finally:
            shutil.rmtree(aside, ignore_errors=True)


def write_json(target: Path, content: dict[str, Any]) -> None:
    """Write `content` as indented JSON, whole or not at all."""
    with replacing(target) as aside:
        aside.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def remove_leftovers(folder: Path) -> None:
    """Remove the temporary files that killed runs left in `folder`; every other file stays."""
    for path in folder.iterdir():
        if _TEMPORARY_NAME.fullmatch(path.name) and path.is_file() and not path.is_symlink():
            path.unlink(missing_ok=True)


def remove_leftovers_of(target: Path) -> None:
    """Remove the temporary files and folders that killed runs left beside `target` on its behalf."""
    place = target.resolve()
    for path in place.parent.glob(f".{glob.escape(place.name)}.starfc-*"):
        if not _TEMPORARY_NAME.fullmatch(path.name) or path.is_symlink():
            continue
        if path.is_file() and not _is_locked(path):
            path.unlink(missing_ok=True)
        elif (path / _LOCK).is_file() and not _is_locked(path / _LOCK):
            shutil.rmtree(path, ignore_errors=True)


def _is_locked(path: Path) -> bool:
    """Tell whether a process is still at work on a temporary file."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    return False


@contextmanager
def _naming(target: Path) -> Iterator[None]:
    """State a failed write in one sentence that names the target."""
    try:
        yield
    except OutputError:
        raise
    except OSError as error:
        raise OutputError(f"cannot write {target}: {error.strerror or error}; nothing was changed") from error


def _swap_folders(aside: Path, place: Path) -> None:
    """Put `aside` in `place`; whatever stood there is removed afterwards, or put back if that fails."""
    if not place.exists():
        aside.replace(place)
        return
    retired = Path(tempfile.mkdtemp(prefix=f".{place.name}.starfc-", dir=place.parent))
    try:
        place.replace(retired / "old")
        aside.replace(place)
    finally:
        if not place.exists():
            (retired / "old").replace(place)
        shutil.rmtree(retired, ignore_errors=True)


def _flush_to_disk(path: Path) -> None:
    """Force the bytes out, so that the rename can never be seen before them (and a full disk is noticed here)."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _umask() -> int:
    """Return the process's umask (it can only be read by setting it)."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
