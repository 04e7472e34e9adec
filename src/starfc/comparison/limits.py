"""Limits: a process that may take only so long and so much memory.

In: a command. Out: how it ended. Its resident memory is looked at ten times a second, because a limit on address
space would stop programs that reserve far more than they use (torch, numba). Progress is read from its stdout; what
it says on stderr goes to a log.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ..progress import Progress, silent

_LOOK_EVERY_S = 0.1


@dataclass(frozen=True)
class Ending:
    """How a process ended: `reason` is empty if by itself with code 0."""

    reason: str
    seconds: float
    peak_rss_gb: float


def run_limited(
    command: list[str],
    *,
    time_s: float,
    memory_gb: float,
    log: Path,
    progress: Progress = silent,
) -> Ending:
    """Run a command in its own process group, and end the group when it is over a limit.

    >>> import sys
    >>> log = getfixture("tmp_path") / "log"
    >>> run_limited([sys.executable, "-c", "pass"], time_s=60, memory_gb=4, log=log).reason
    ''
    >>> run_limited([sys.executable, "-c", "while True: pass"], time_s=0.3, memory_gb=4, log=log).reason
    'over the time limit of 0.3 s'
    """
    started, peak = time.monotonic(), 0.0
    with log.open("wb") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, start_new_session=True)
        try:
            with _Lines(process.stdout) as lines:
                while process.poll() is None:
                    lines.pass_on(progress)
                    peak = max(peak, measure_rss_gb(process.pid))
                    over = _find_excess(time.monotonic() - started, time_s, peak, memory_gb)
                    if over:
                        return Ending(over, time.monotonic() - started, peak)
        finally:
            _end_group(process)
    return Ending(_explain(process.returncode, log), time.monotonic() - started, peak)


def measure_rss_gb(pid: int) -> float:
    """Return the resident memory of a process; 0 when it is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except OSError:
        return 0.0
    kilobytes = [line.split()[1] for line in status.splitlines() if line.startswith("VmRSS")]
    return int(kilobytes[0]) * 1024 / 1e9 if kilobytes else 0.0


def _find_excess(seconds: float, time_s: float, peak: float, memory_gb: float) -> str:
    """Name the limit that is passed, if any."""
    if seconds > time_s:
        return f"over the time limit of {time_s:g} s"
    if peak > memory_gb:
        return f"over the memory limit of {memory_gb:g} GB"
    return ""


def _explain(code: int, log: Path) -> str:
    """Say in a few words why a process ended badly."""
    if code == 0:
        return ""
    if code < 0:
        return f"failed: ended by {signal.Signals(-code).name}"
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return f"failed: {lines[-1].strip()[:200] if lines else f'exit code {code}'}"


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """End the process and whatever it started, if they are still there."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


class _Lines:
    """Reads lines of progress from a pipe without waiting for them."""

    def __init__(self, pipe: IO[bytes] | None) -> None:
        assert pipe is not None, "the process was started with a pipe"
        self._pipe, self._rest = pipe, b""
        self._selector = selectors.DefaultSelector()
        self._selector.register(pipe, selectors.EVENT_READ)

    def __enter__(self) -> _Lines:
        return self

    def __exit__(self, *_: object) -> None:
        self._selector.close()
        self._pipe.close()

    def pass_on(self, progress: Progress) -> None:
        """Wait a moment for lines and report each."""
        if not self._selector.select(_LOOK_EVERY_S):
            return
        received = os.read(self._pipe.fileno(), 1 << 16)
        if not received:  # closed: the process is ending
            time.sleep(_LOOK_EVERY_S)
        *lines, self._rest = (self._rest + received).split(b"\n")
        for line in lines:
            try:
                stage, done, total = json.loads(line)
            except (ValueError, TypeError):
                continue  # a library printed something
            progress(stage, done, total)
