"""Kills: a run that is killed again and again must end as if nothing had happened.

    python benchmarks/kills.py [--faces 200000] [--kills 20] [--k 80] [--dim 256] [--hidden 512] [--seed 0]

`starfc cluster --workdir` is started, killed (SIGKILL) after a random part of the time an undisturbed run takes, and
started again, until it has been killed as often as asked for; then it runs to the end. Runs that end before their time
are followed by one from nothing. Prints whether the labels are those of an undisturbed run without a work folder, and
every file that should not be there. Each run is a fork of this process, which has everything loaded and compiled, so
that the time is spent in the work.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import numpy as np

os.environ["NUMBA_THREADING_LAYER"] = "workqueue"  # numba's default one must not be forked

import starfc
from starfc.cli import main as run_command
from starfc.features import Features
from starfc.knn import build_knn
from starfc.model import Model, ModelConfig, expected_shapes
from starfc.score import score_edges
from starfc.synth import make_faces

KEPT = {
    ".lock",
    *(f"{stage}.{ending}" for stage in ("knn", "relations", "scores") for ending in ("npz", "npy", "json")),
}


def write_inputs(folder: Path, faces: int, k: int, dim: int, hidden: int, seed: int) -> None:
    """Write features and a random network whose last bias lets half of the edges pass."""
    rows = make_faces(faces, dim=dim, seed=seed)[0]
    np.save(folder / "faces.npy", rows)
    rng = np.random.default_rng(seed)
    tensors = {
        name: (3 * rng.normal(size=shape) / np.sqrt(shape[0 if name.startswith("conv") else -1])).astype(np.float32)
        for name, shape in expected_shapes(dim, (hidden,)).items()
    }
    model = Model(ModelConfig(dim=dim, hidden=(hidden,), k=k), tensors)
    sample = Features(rows[:3000])
    scores = score_edges(sample, build_knn(sample, k=k), model).scores.astype(np.float64).clip(1e-9, 1 - 1e-9)
    tensors["classifier.2.bias"][1] -= np.float32(np.median(np.log(scores / (1 - scores))) - np.log(0.7 / 0.3))
    model.save(folder / "model")
    for knn in ("exact", "exact", "cells"):  # compiles what the forks will need, to build and to load
        starfc.cluster(rows[:3000], model=model, knn=knn, workdir=folder / f"warm-{knn}")
    for _ in range(2):
        starfc.cluster(rows[:3000], scorer="relational", workdir=folder / "warm-relational")


def fork(work: Callable[[], None], log: Path) -> int:
    """Start work in a fork and return its process id."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        with log.open("a") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
            work()
        code = 0
    except SystemExit as stop:
        code = int(stop.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def start(folder: Path, *options: str) -> int:
    """Start `starfc cluster` and return its process id."""

    def run() -> None:
        sys.argv = ["starfc", "cluster", str(folder / "faces.npy"), "--model", str(folder / "model"), *options]
        run_command()

    return fork(run, folder / "log")


def finish(pid: int, log: Path) -> None:
    """Wait for a run that must end well."""
    status = os.waitpid(pid, 0)[1]
    if status != 0:
        raise RuntimeError(f"a run ended with status {status}: {log.read_text()}")


def kill_often(folder: Path, n_kills: int, seed: int, options: list[str]) -> dict[str, object]:
    """Kill and start again; compare with an undisturbed run."""
    rng = np.random.default_rng(seed)
    work, out = folder / "work", folder / "out"
    log = folder / "log"
    out.mkdir()
    finish(start(folder, "-o", str(folder / "undisturbed.npy"), *options), log)
    disturbed = ["-o", str(out / "labels.npy"), "--workdir", str(work), *options]
    started = time.perf_counter()
    finish(start(folder, *disturbed), log)
    whole_s = time.perf_counter() - started
    shutil.rmtree(work)
    (out / "labels.npy").unlink()
    n_killed = n_ended = 0
    while n_killed < n_kills:
        pid = start(folder, *disturbed)
        time.sleep(rng.uniform(0, whole_s))
        os.kill(pid, signal.SIGKILL)
        status = os.waitpid(pid, 0)[1]
        if status == signal.SIGKILL:
            n_killed += 1
        elif status != 0:
            raise RuntimeError(f"a run after {n_killed} kills ended with status {status}: {log.read_text()[-2000:]}")
        else:
            n_ended += 1
            shutil.rmtree(work)
            (out / "labels.npy").unlink()
    started = time.perf_counter()
    finish(start(folder, *disturbed), log)
    stale = [str(path) for path in work.rglob("*") if path.relative_to(work).as_posix() not in KEPT]
    stale += [str(path) for path in out.iterdir() if path.name != "labels.npy"]
    same = (folder / "undisturbed.npy").read_bytes() == (out / "labels.npy").read_bytes()
    return {
        "kills": n_killed,
        "ended_before_the_kill": n_ended,
        "undisturbed_s": whole_s,
        "last_run_s": time.perf_counter() - started,
        "same_labels": same,
        "stale_files": stale,
    }


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faces", type=int, default=200_000)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--k", type=int, default=80)
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--options", nargs=argparse.REMAINDER, default=[], help="further options of starfc cluster")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_inputs(folder, options.faces, options.k, options.dim, options.hidden, options.seed)
        result = kill_often(folder, options.kills, options.seed, options.options)
    print(json.dumps({"faces": options.faces, **result}))


if __name__ == "__main__":
    main()
