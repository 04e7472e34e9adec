"""Terminal: progress bars and tables on stderr, so that stdout carries results only."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as RichProgress

_SECONDS_BETWEEN_LINES = 10.0


class ProgressBars:
    """Draws progress(stage, done, total): one bar per stage on a terminal, a line now and then in a log file.

    Used as a context manager; `report` is the callable the library wants.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self._console = Console(stderr=True, quiet=quiet)
        self._bars = RichProgress(
            TextColumn("{task.description:<20}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._tasks: dict[str, TaskID] = {}
        self._last_line_s = time.monotonic()

    def __enter__(self) -> ProgressBars:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def report(self, stage: str, done: int, total: int) -> None:
        """Show that `done` of `total` units of the stage are finished."""
        if self._console.is_terminal:
            if stage not in self._tasks:
                self._tasks[stage] = self._bars.add_task(stage, total=total)
            self._bars.update(self._tasks[stage], completed=done, total=total)
        elif time.monotonic() - self._last_line_s > _SECONDS_BETWEEN_LINES:
            self._last_line_s = time.monotonic()
            self.say(f"{stage}: {done} of {total}")

    def say(self, sentence: str) -> None:
        """Print a line above the bars."""
        self._console.print(sentence, highlight=False, markup=False, soft_wrap=True)
