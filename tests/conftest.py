"""Light fixtures: a few dozen clustered vectors and what runs the command line in this process.

The suite is run by a process per core, which share numba's cache.
"""

from __future__ import annotations

import _thread
import fcntl
import os
import sys
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

if "PYTEST_XDIST_WORKER" in os.environ:  # before numpy and torch are loaded: the cores are taken by the processes
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # where a test asks for more threads, they must not spin

import numpy as np
import pytest
from numba.core import caching
from numba.core.dispatcher import Dispatcher

from starfc.cli import main

_save_kernel = caching.IndexDataCacheFile.save
_compile_kernel = Dispatcher.compile


def save_kernel_alone(self: caching.IndexDataCacheFile, *arguments: object) -> None:
    """Write to numba's cache while no other process does: two at once may give one name to two kernels."""
    with Path(f"{self._index_path}.lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _save_kernel(self, *arguments)


def compile_kernel_untraced(self: Dispatcher, signature: object) -> object:
    """Compile in a thread of which coverage knows nothing: tracing the compiler takes half as long again."""
    if sys.gettrace() is None:
        return _compile_kernel(self, signature)
    compiled: Future[object] = Future()

    def work() -> None:
        try:
            compiled.set_result(_compile_kernel(self, signature))
        except BaseException as error:
            compiled.set_exception(error)

    _thread.start_new_thread(work, ())
    return compiled.result()


caching.IndexDataCacheFile.save = save_kernel_alone
Dispatcher.compile = compile_kernel_untraced


@dataclass(frozen=True)
class Outcome:
    """What a command printed and how it ended."""

    code: int
    out: str
    err: str


@pytest.fixture
def faces():
    """60 float32 vectors of 6 people, dimension 32, people in order."""
    rng = np.random.default_rng(0)
    return (np.repeat(rng.normal(size=(6, 32)), 10, axis=0) + 0.2 * rng.normal(size=(60, 32))).astype(np.float32)


@pytest.fixture
def faces_file(faces, tmp_path) -> Path:
    """Those vectors as `in/faces.npy`, in a folder apart from the outputs."""
    folder = tmp_path / "in"
    folder.mkdir()
    np.save(folder / "faces.npy", faces)
    return folder / "faces.npy"


@pytest.fixture
def run(monkeypatch, capsys):
    """Return a function that runs `starfc ARGUMENTS` in this process."""

    def run_starfc(*arguments: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["starfc", *map(str, arguments)])
        capsys.readouterr()
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        printed = capsys.readouterr()
        return Outcome(code, printed.out, printed.err)

    return run_starfc
