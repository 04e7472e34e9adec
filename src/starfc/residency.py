"""Residency: the pages of mapped files count as memory of a process; here they are let go of before there are too many.

In: who holds maps, and a limit. Out: a thread that looks at the memory of the process a hundred times a second and lets
go of the pages of all maps when half of what may be theirs is resident. They stay in the system's cache, which gives
way when others need the memory, and are read again when they are touched.

Stages let go of pages between their tiles, too (`Scratch.relieve`), but a tile can touch more than there is room for:
of 12 million faces, one of a join leads to every page of the stored rows, 6 GB. The thread needs Python's lock for it:
a kernel that goes through maps must not hold it (`nogil`).
"""

from __future__ import annotations

import logging
import mmap
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

_log = logging.getLogger(__name__)
_EVERY_S = 0.01
_LEAST_GROWTH = 64  # one in so many of the limit, before what does not go away is tried again
THREAD = "residency"  # its name
_STATM = Path("/proc/self/statm")


class Holder(Protocol):
    """Who holds maps."""

    def let_go(self) -> None:
        """Let go of the pages of all of them."""


_holders: weakref.WeakSet[Holder] = weakref.WeakSet()
_lock = threading.Lock()


def register_holder(holder: Holder) -> None:
    """Make the maps of somebody known, for as long as it lives."""
    with _lock:
        _holders.add(holder)


@contextmanager
def keep_within(limit_bytes: int | None) -> Iterator[None]:
    """Keep the resident memory of the block below a limit, as far as it is pages of known maps; None is no limit.

    >>> with keep_within(8_000_000_000):
    ...     sum(range(4))
    6
    """
    if limit_bytes is None or not measure_rss_bytes():
        yield
        return
    ended = threading.Event()
    thread = threading.Thread(target=_watch, args=(limit_bytes, ended), name=THREAD, daemon=True)
    try:
        thread.start()
        yield
    finally:
        ended.set()
        thread.join()


def _watch(limit_bytes: int, ended: threading.Event) -> None:
    """Look, and let go, until it is over."""
    left = 0  # after it was let go of
    has_failed = False
    while not ended.wait(_EVERY_S):
        try:
            present = measure_rss_bytes()
            left = min(left, present)
            # Halfway between what has to stay and the limit: the system maps 16 pages when one is touched, up to a
            # gigabyte between two looks. What was left may be in use, or of other files: not tried again at once.
            too_much = (measure_private_bytes() + limit_bytes) // 2
            if present > max(too_much, left + limit_bytes // _LEAST_GROWTH):
                _let_all_go()
                left = measure_rss_bytes()
        except (OSError, ValueError) as error:  # such as a caller's array that is locked in memory
            if not has_failed:
                _log.warning("mapped pages cannot be let go of (%s); more memory than asked for may be used", error)
            has_failed = True


def _let_all_go() -> None:
    """Let go of everything, and forget at once who holds it: else it would live, and its files, as long as we look."""
    with _lock:
        holders = list(_holders)
    errors = []
    for holder in holders:
        try:
            holder.let_go()
        except (OSError, ValueError) as error:
            errors.append(error)
    if errors:
        raise errors[0]


def measure_rss_bytes() -> int:
    """Return the resident memory of this process; 0 where the system does not tell."""
    return int(_STATM.read_text(encoding="ascii").split()[1]) * mmap.PAGESIZE if _STATM.is_file() else 0


def measure_private_bytes() -> int:
    """Return the resident memory of this process that is no page of a file; 0 where the system does not tell."""
    fields = _STATM.read_text(encoding="ascii").split() if _STATM.is_file() else ["0", "0", "0"]
    return (int(fields[1]) - int(fields[2])) * mmap.PAGESIZE
