"""Light fixtures: a few dozen clustered vectors and what runs the command line in this process."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from starfc.cli import main


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
