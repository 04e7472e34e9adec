"""Time per training step and memory against the number of faces, which should not matter.

    python benchmarks/step_time.py --faces 500000 5000000 20000000 --folder SCRATCH [--people-faces 68] [--steps 40]
    python benchmarks/step_time.py --features F.npy --labels L.npy --folder SCRATCH

Faces are float16 on disk (d = 256; 10 GB for 20M), rows in random order: people are random directions, and a face is
its person plus one of 65,536 random offsets, which is quick to make and costs a step the same as any other data. A step
is what `starfc train --preset gcn` does with subgraphs of about 10,000 faces and k = 80: sample, read, kNN graph,
affinity, forward and backward, a subgraph being used for four steps. Nobody is held out, so no step has an evaluation.
Every size runs in a process of its own. Prints markdown: seconds and CPU-seconds per step, seconds before the first
step, peak resident memory.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from starfc.features import load_features
from starfc.labels import load_labels
from starfc.pipeline import peak_rss_gb
from starfc.sampling import SamplingPlan
from starfc.training import train

DIM = 256
NODES = 10_000
_BLOCK = 100_000


def make_data(path: Path, faces: int, people: int) -> NDArray[np.int64]:
    """Write the features block by block; return the labels."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, people, faces)
    centers = rng.normal(size=(people, DIM)).astype(np.float16)
    offsets = (0.8 * rng.normal(size=(65_536, DIM))).astype(np.float16)
    rows = np.lib.format.open_memmap(path, mode="w+", dtype=np.float16, shape=(faces, DIM))
    for start in range(0, faces, _BLOCK):
        part = labels[start : start + _BLOCK]
        rows[start : start + len(part)] = centers[part] + offsets[rng.integers(0, len(offsets), len(part))]
        if start % (20 * _BLOCK) == 0:
            rows.flush()
    return labels


def measure(features: Path, labels: Path, work: Path, steps: int) -> dict[str, Any]:
    """Train for some steps and return what they took."""
    rows, truth = load_features(features), load_labels(labels)
    faces_each = len(rows) / len(np.unique(truth))
    found = max(8, round(NODES / (0.9 * 0.87 * faces_each)))
    kept = round(0.87 * found)  # K_1 / M (N + 1) of the published plan
    plan = SamplingPlan(seeds=2, near=found // 2 - 1, cluster_randomness=kept, sample_randomness=0.9, k=80)
    clock: list[tuple[float, float]] = []

    def tick(stage: str, done: int, total: int) -> None:
        if stage == "train":
            clock.append((time.perf_counter(), time.process_time()))

    started = time.perf_counter()
    model = train(
        rows, truth, preset="gcn", plan=plan, steps=steps, held_out=0.0, workdir=work, progress=tick, checkpoint_s=1e9
    )
    spent = np.diff(clock, axis=0)[4:]  # whole rounds of a subgraph, after the first
    return {
        "faces": len(rows),
        "people": model.config.training["n_people"],
        "step_s": float(spent[:, 0].mean()),
        "step_cpu_s": float(spent[:, 1].mean()),
        "before_s": clock[0][0] - started,
        "peak_rss_gb": peak_rss_gb(),
        "nodes_per_s": model.config.training["history"][-1]["nodes_per_s"],
        "edges_per_s": model.config.training["history"][-1]["edges_per_s"],
    }


def run_size(options: argparse.Namespace, faces: int) -> dict[str, Any]:
    """Make the data of one size, measure in a process of its own, and remove the data."""
    folder = options.folder / f"faces{faces}"
    folder.mkdir(parents=True, exist_ok=True)
    try:
        labels = make_data(folder / "features.npy", faces, max(8, faces // options.people_faces))
        np.save(folder / "labels.npy", labels)
        return run_apart(folder / "features.npy", folder / "labels.npy", folder / "work", options.steps)
    finally:
        shutil.rmtree(folder)


def run_apart(features: Path, labels: Path, work: Path, steps: int) -> dict[str, Any]:
    """Measure in a new process, whose memory is its own."""
    command = [sys.executable, __file__, "--child", str(features), str(labels), str(work), "--steps", str(steps)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faces", type=int, nargs="+", default=[500_000, 5_000_000, 20_000_000])
    parser.add_argument("--people-faces", type=int, default=68, help="faces per person, on average")
    parser.add_argument("--features", type=Path)
    parser.add_argument("--labels", type=Path)
    parser.add_argument("--folder", type=Path, default=Path("bench/step_time"))
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--child", type=Path, nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(measure(*options.child, options.steps)))
        return
    print("| faces | people | s per step | CPU-s per step | nodes/s | edges/s | s before the first step | peak GB |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    if options.features:
        print_row(run_apart(options.features, options.labels, options.folder / "work", options.steps))
    else:
        for faces in options.faces:
            print_row(run_size(options, faces))


def print_row(found: dict[str, Any]) -> None:
    """Print a line of the table."""
    print(
        f"| {found['faces']:,} | {found['people']:,} | {found['step_s']:.3f} | {found['step_cpu_s']:.3f} |"
        f" {found['nodes_per_s']:,.0f} | {found['edges_per_s']:,.0f} | {found['before_s']:.1f} |"
        f" {found['peak_rss_gb']:.2f} |",
        flush=True,
    )


if __name__ == "__main__":
    main()
