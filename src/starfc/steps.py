"""Steps: the parts of a long stage, each with its own scratch folder and journal.

In: a folder (or none), what the work depends on, and a memory limit. Out: a Scratch per step, and tiles of rows run by
all threads, of which those that an earlier run has finished are left out. Without a folder everything is in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .progress import Progress, silent
from .scratch import Rooms, Scratch, remove_scratch
from .workers import run_in_order

_HEADROOM = 0.8  # of the limit: a tile touches pages before anybody looks again
_PASSED_ROWS = 1 << 17  # gone through before mapped pages are let go of


@dataclass
class Steps:
    """Where the steps of a stage keep their arrays.

    Attributes
    ----------
    folder : Path, optional
        Holds one folder per step; None for arrays in memory.
    facts : dict
        What the whole stage depends on.
    limit_bytes : int, optional
        Resident memory beyond which mapped pages are let go.
    progress : callable
        Called as ``progress(step, done, total)``.
    """

    folder: Path | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    limit_bytes: int | None = None
    progress: Progress = silent
    _open: list[Scratch] = field(default_factory=list)
    _rooms: Rooms = field(default_factory=Rooms)

    def open(self, name: str) -> Scratch:
        """Return the scratch of a step."""
        folder = None if self.folder is None else self.folder / name
        if folder is not None:
            self._open = [scratch for scratch in self._open if scratch.folder != folder]
        scratch = Scratch(folder, facts=self.facts, rooms=self._rooms)
        self._open.append(scratch)
        return scratch

    def watch(self, *arrays: NDArray[Any]) -> None:
        """Let go of the pages of these arrays too, as far as they are memory maps."""
        pages = Scratch()
        pages.watch(*arrays)
        self._open.append(pages)

    def close(self, name: str) -> None:
        """Remove what a step has left, once it is of no more use."""
        if self.folder is not None:
            self._open = [scratch for scratch in self._open if scratch.folder != self.folder / name]
            remove_scratch(self.folder / name)

    def run_tiles(
        self, scratch: Scratch, edges: NDArray[np.int64], work: Callable[[int, int], None], stage: str
    ) -> None:
        """Call work(start, stop) for every unfinished run between two edges, and mark it finished."""
        n_units, total = len(edges) - 1, int(edges[-1])
        scratch.start_journal(n_units)

        def run(unit: int) -> None:
            work(int(edges[unit]), int(edges[unit + 1]))
            scratch.mark(unit)

        def finish(unit: int, _: None) -> None:
            self.progress(stage, int(edges[unit + 1]), total)
            self.relieve()

        self.progress(stage, 0, total)
        run_in_order(run, (unit for unit in range(n_units) if not scratch.is_done(unit)), finish)
        self.progress(stage, total, total)

    def pass_over(self, n: int) -> Iterator[tuple[int, int]]:
        """Yield the runs (start, stop) of n rows that are gone through before memory is let go of, where it is short.

        >>> list(Steps().pass_over(5))
        [(0, 5)]
        """
        for start in range(0, n, _PASSED_ROWS):
            yield start, min(start + _PASSED_ROWS, n)
            self.relieve()

    def relieve(self) -> None:
        """Let go of the mapped pages of all steps if the process has more memory than it may."""
        if self.limit_bytes is not None:
            for scratch in self._open:
                scratch.relieve_above(int(_HEADROOM * self.limit_bytes))

    def give_back(self) -> None:
        """Let go of memory that arrays have been in: something else is to come."""
        self._rooms.give_back()

    def let_go(self) -> None:
        """Let go of the mapped pages of all steps, for what comes next wants memory too."""
        if self.limit_bytes is not None:
            for scratch in self._open:
                scratch.let_go()


def cut_evenly(n: int, n_rows: int) -> NDArray[np.int64]:
    """Return the edges of runs of n_rows rows, the last one shorter.

    >>> cut_evenly(5, 2)
    array([0, 2, 4, 5])
    """
    return np.append(np.arange(0, n, n_rows), n)
