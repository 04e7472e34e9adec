"""A run that is killed at random moments ends as if nothing had happened (at 200,000 faces: benchmarks/kills.py)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import starfc

SCRIPT = Path(starfc.__file__).parents[2] / "benchmarks" / "kills.py"


@pytest.mark.skipif(not SCRIPT.is_file(), reason="installed without the benchmarks")
@pytest.mark.parametrize("options", [["--knn", "exact"], ["--knn", "cells", "--scorer", "relational"]])
def test_twenty_kills_change_nothing(options):
    arguments = ["--faces", "5000", "--k", "20", "--dim", "32", "--hidden", "200", "--kills", "20"]
    environment = os.environ | {"PYTHONPATH": str(SCRIPT.parents[1] / "src")}
    done = subprocess.run(
        [sys.executable, SCRIPT, *arguments, "--options", *options],
        capture_output=True, text=True, check=False, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["kills"] == 20
    assert report["same_labels"] and report["stale_files"] == []
