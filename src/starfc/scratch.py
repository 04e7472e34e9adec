"""Scratch: the arrays of a stage at work, in memory or in files that outlive a kill.

In: names, shapes and types. Out: arrays: plain ones, put where others have been if they may (Rooms), or shared memory
maps of files in a folder together with a journal of finished units of work. A process that is killed leaves the pages
it wrote in the system's cache, so the next run of the same work goes on behind the last unit that was marked. After a
crash of the whole machine that cache may have reached the disk in any order: a journal counts only if its facts say the
same, the machine's start included. Mapped pages count as memory of the process while they are resident; `relieve`, and
`residency.py`, let go of them.
"""

from __future__ import annotations

import io
import json
import math
import mmap
import os
import shutil
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .atomic import write_json
from .errors import OutputError
from .residency import measure_rss_bytes, register_holder

_FACTS = "facts.json"
_JOURNAL = "journal"
_LEAST_ROOM_BYTES = 1 << 20
_ROOMY = 1.25  # times as large as it need be, at most


class KeptPages(mmap.mmap):
    """A private map of a file that nobody writes into, whatever its arrays allow: its pages may be let go of."""


class Rooms:
    """Memory that arrays have been in: once nobody holds any part of one, the next array is put in its place.

    New memory has to be found and cleared by the system, on a virtual machine by its host too: 3 s for a GB and more.
    All rooms together are never larger than those in use have been at once. For one thread; an address of an array does
    not keep its room, only the array, or a part of it, does.

    Examples
    --------
    >>> rooms = Rooms()
    >>> first, second = rooms.make((1 << 20,), np.uint8), rooms.make((1 << 20,), np.uint8)
    >>> place = first.ctypes.data
    >>> del first
    >>> rooms.make((1 << 18,), np.float32).ctypes.data == place, second.ctypes.data == place
    (True, False)
    """

    def __init__(self) -> None:
        self._rooms: list[NDArray[np.uint8]] = []
        self._unused = [np.empty(0, np.uint8)]
        self._most_bytes = 0  # that have been in use at once

    def make(self, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:  # noqa: ANN401
        """Return an array whose numbers are not set; a small one, or one that no room fits, in new memory."""
        n_bytes = math.prod(shape) * np.dtype(dtype).itemsize
        if n_bytes < _LEAST_ROOM_BYTES:
            return np.empty(shape, dtype=dtype)
        idle = [at for at in range(len(self._rooms)) if self._is_idle(at)]
        fitting = [at for at in idle if n_bytes <= self._rooms[at].size <= _ROOMY * n_bytes]
        if not fitting:
            self._add_room(n_bytes, idle)
        room = self._rooms[min(fitting, key=lambda at: self._rooms[at].size) if fitting else -1]
        made: NDArray[Any] = room[:n_bytes].view(dtype).reshape(shape)  # its base, and that of its parts, is the room
        return made

    def give_back(self) -> None:
        """Let go of the rooms that nobody uses."""
        for at in reversed(range(len(self._rooms))):
            if self._is_idle(at):
                del self._rooms[at]

    def _add_room(self, n_bytes: int, idle: list[int]) -> None:
        """Add a room, and let go of idle ones, the oldest first, as far as there would be more than ever in use."""
        total = sum(room.size for room in self._rooms) + n_bytes
        in_use = total - sum(self._rooms[at].size for at in idle)
        self._most_bytes = max(self._most_bytes, in_use)
        dropped = set()
        for at in idle:
            if total > self._most_bytes:
                dropped.add(at)
                total -= self._rooms[at].size
        self._rooms = [room for at, room in enumerate(self._rooms) if at not in dropped]
        self._rooms.append(np.empty(n_bytes, np.uint8))

    def _is_idle(self, at: int) -> bool:
        """Tell whether nobody refers to a room; what counting itself adds differs between versions of Python."""
        return self._count_holders(self._rooms, at) == self._count_holders(self._unused, 0)

    @staticmethod
    def _count_holders(rooms: list[NDArray[np.uint8]], at: int) -> int:
        """Count the references to a room."""
        return sys.getrefcount(rooms[at])


class Scratch:
    """Arrays of one stage and which of its units are finished.

    Parameters
    ----------
    folder : Path, optional
        Where the files go; without one, arrays are in memory and nothing outlives the process.
    facts : dict, optional
        What the work depends on; files that were left by other work are removed.
    limit_bytes : int, optional
        Resident memory beyond which mapped pages are let go.
    rooms : Rooms, optional
        Where arrays in memory are put, in place of new memory.

    Examples
    --------
    >>> work = Scratch(getfixture("tmp_path") / "work", facts={"n": 3})
    >>> work.array("squares", (3,), np.int64)[:] = [0, 1, 4]
    >>> work.start_journal(2)
    >>> work.mark(0)
    >>> again = Scratch(work.folder, facts={"n": 3})
    >>> again.start_journal(2)
    >>> again.is_done(0), again.is_done(1), again.array("squares", (3,), np.int64).tolist()
    (True, False, [0, 1, 4])
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        facts: dict[str, Any] | None = None,
        limit_bytes: int | None = None,
        rooms: Rooms | None = None,
    ) -> None:
        self.folder = folder
        self.facts = facts or {}
        self._limit_bytes = limit_bytes
        self._rooms = rooms
        self._maps: list[mmap.mmap] = []
        self._named: dict[str, mmap.mmap] = {}
        self._journal: NDArray[np.uint8] = np.zeros(0, np.uint8)
        register_holder(self)
        if folder is not None:
            wanted = json.loads(json.dumps({"boot": identify_boot(), **(facts or {})}))
            if read_facts(folder) != wanted:
                _make_folder(folder)
                remove_scratch(folder)
                _make_folder(folder)
                write_json(folder / _FACTS, wanted)

    def __enter__(self) -> Scratch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._maps.clear()

    def array(self, name: str, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:  # noqa: ANN401
        """Return the array of that name: as an earlier run left it, else all zero; in memory, numbers are not set."""
        if self.folder is None or 0 in shape:
            return np.empty(shape, dtype=dtype) if self._rooms is None else self._rooms.make(shape, dtype)
        mapped = _open_file(self.folder / f"{name}.npy", shape, np.dtype(dtype))
        self.watch(mapped)
        self._named[name] = self._maps[-1]
        return np.asarray(mapped)

    def drop(self, *names: str) -> None:
        """Remove the files of arrays that are of no more use; whoever holds one may go on with it."""
        if self.folder is not None:
            for name in names:
                (self.folder / f"{name}.npy").unlink(missing_ok=True)
                dropped = self._named.pop(name, None)  # as long as it is known here, the disk keeps its space
                self._maps = [mapped for mapped in self._maps if mapped is not dropped]

    def start_journal(self, n_units: int) -> None:
        """Read which units an earlier run of the same work has finished."""
        if self.folder is None:
            self._journal = np.zeros(n_units, np.uint8)
            return
        self._journal = self.array(_JOURNAL, (n_units,), np.uint8)

    @property
    def n_units(self) -> int:
        """Units of the journal."""
        return len(self._journal)

    def is_done(self, unit: int) -> bool:
        """Tell whether a unit is finished."""
        return bool(self._journal[unit])

    @property
    def all_done(self) -> bool:
        """Tell whether every unit is finished."""
        return bool(self._journal.all())

    def mark(self, unit: int) -> None:
        """Note that a unit is finished; its results must have been written before."""
        self._journal[unit] = 1

    def watch(self, *arrays: NDArray[Any]) -> None:
        """Let `relieve` release the pages of these arrays too, as far as they are maps of what is in a file.

        Other maps are left alone, copy-on-write ones too: what was written into them would be lost.
        """
        for array in arrays:
            source: Any = array
            is_file = False
            while isinstance(source, np.ndarray):
                is_file = is_file or getattr(source, "mode", "c") != "c"
                source = source.base
            is_file = is_file or isinstance(source, KeptPages)
            if is_file and isinstance(source, mmap.mmap) and all(source is not known for known in self._maps):
                self._maps.append(source)

    def expect_random_reads(self, expected: bool) -> None:
        """Tell the system whether rows are read here and there, so that it reads nothing around them."""
        for mapped in self._maps:
            mapped.madvise(mmap.MADV_RANDOM if expected else mmap.MADV_NORMAL)

    def let_go(self) -> None:
        """Release the mapped pages; they are read again when needed."""
        for mapped in [*self._maps]:  # another thread may add some
            mapped.madvise(mmap.MADV_DONTNEED)

    def relieve(self) -> None:
        """Release the mapped pages if the process has more memory than it may."""
        self.relieve_above(self._limit_bytes)

    def relieve_above(self, limit_bytes: int | None) -> None:
        """Release the mapped pages if the process has more memory than the limit."""
        if limit_bytes is not None and self._maps and measure_rss_bytes() > limit_bytes:
            self.let_go()

    def publish(self, name: str, target: Path) -> None:
        """Give a finished array's file a second name, which replaces what stood there; it stays here too."""
        if self.folder is None:
            raise ValueError("arrays in memory have no file")
        file = self.folder / f"{name}.npy"
        link = self.folder / "published"
        link.unlink(missing_ok=True)
        with file.open("rb") as opened:
            os.fsync(opened.fileno())  # writes the mapped pages too
        try:
            link.hardlink_to(file)
        except OSError:  # some file systems have no second names
            shutil.copyfile(file, link)
        link.replace(target)

    def remove(self) -> None:
        """Remove the folder."""
        self._maps.clear()
        if self.folder is not None:
            remove_scratch(self.folder)


def _open_file(path: Path, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Map a `.npy` file for writing; one that is not there, or was cut short by a kill, is made anew, all zero."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": dtype.str, "fortran_order": False, "shape": shape})
    n_bytes = header.tell() + math.prod(shape) * dtype.itemsize
    try:
        with path.open("r+b" if path.is_file() else "w+b") as file:
            if file.read(header.tell()) != header.getvalue() or path.stat().st_size != n_bytes:
                file.seek(0)
                file.truncate()
                # Reserved, not only promised: a map of a full disk ends in a signal and not in an error.
                os.posix_fallocate(file.fileno(), 0, n_bytes)
                file.write(header.getvalue())
    except OSError as error:
        raise OutputError(
            f"cannot write {path} ({n_bytes / 1e9:.1f} GB): {error.strerror or error}; free some disk space"
        ) from error
    return np.memmap(path, dtype=dtype, mode="r+", offset=header.tell(), shape=shape)


def read_facts(folder: Path) -> dict[str, Any] | None:
    """Return what the work in a scratch folder depends on, None if there is no such work."""
    try:
        content = json.loads((folder / _FACTS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def remove_scratch(folder: Path) -> None:
    """Remove a scratch folder, all facts in it first, so that a kill leaves nothing that could be mistaken."""
    for facts in [*folder.rglob(_FACTS)]:
        facts.unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def identify_boot() -> str:
    """Return a text that changes when the machine starts anew."""
    known = Path("/proc/sys/kernel/random/boot_id")
    if known.is_file():
        return known.read_text(encoding="ascii").strip()
    return f"started {round((time.time() - time.monotonic()) / 60)}"


def _make_folder(folder: Path) -> None:
    """Make the folder, or say why not."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"folder {folder} cannot be made: {error.strerror}; choose another --workdir") from error
