"""One callable carries all progress: ``progress(stage, done, total)``.

The library calls it, the command line draws it, a notebook may ignore it. ``done`` and ``total`` count the stage's own
unit of work (rows, tiles, steps); the first call of a stage has ``done == 0``.
"""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, int, int], None]


def silent(stage: str, done: int, total: int) -> None:
    """Report nothing: the default of every library function."""
