"""Inference: ours against a faithful, unoptimised transcription of the released method, in one run on the same inputs.

    python benchmarks/inference.py [--faces 50000] [--k 80] [--dim 256] [--hidden 512] [--threads 2]
    python benchmarks/inference.py --growth 100000 300000 1000000 [--memory-gb 2] [--workdir]
    python benchmarks/inference.py --end-to-end 584000 --people 8600 [--runs 3] [--model DIR] [--features FILE]

Both get features, the kNN graph and the model, and give labels. The transcription is what the authors' code does:
concatenated pair features through the MLP in torch in 65 patches, scipy's A·A, intimacy of every edge vectorised in
numpy, scipy's components.

`--growth N N ...` runs `starfc cluster --knn-graph` at growing sizes, each in a process of its own, and prints seconds,
peak memory and the exponent of everything after the kNN graph. Its graphs are made in blocks of people, so that a
million faces take seconds: most of a list are the true nearest within the block, the rest are drawn from anywhere,
in the share that the lists of 50,000 faces have of other people (.22).

`--end-to-end N` runs `starfc cluster` from features to labels, kNN graph included, as often as `--runs` says, and
prints every run, the best and the median; features are those of `starfc synth` in half precision, or a file's, and the
network is a random one that keeps half of the edges, or a model's. Prints markdown and saves JSON.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_matrix, eye
from scipy.sparse.csgraph import connected_components

import starfc
from starfc.features import Features, load_features
from starfc.knn import KnnGraph, build_knn, join_rows, save_knn
from starfc.model import Model, ModelConfig, expected_shapes
from starfc.synth import make_faces
from starfc.threads import limited_threads

BLOCK_ROWS = 1500


def make_model(features: Features, graph: KnnGraph, hidden: int, seed: int = 0) -> Model:
    """Draw a random network, its last bias set so that half of the edges pass tau_1: as many as a trained one keeps."""
    from starfc.score import score_edges

    rng = np.random.default_rng(seed)
    tensors = {
        name: (3 * rng.normal(size=shape) / np.sqrt(shape[0 if name.startswith("conv") else -1])).astype(np.float32)
        for name, shape in expected_shapes(features.dim, (hidden,)).items()
    }
    config = ModelConfig(dim=features.dim, hidden=(hidden,), k=graph.neighbors.shape[1])
    scores = score_edges(features, graph, Model(config, tensors)).scores.astype(np.float64)
    odds = np.log(np.clip(scores, 1e-9, 1 - 1e-9) / (1 - np.clip(scores, 1e-9, 1 - 1e-9)))
    tensors["classifier.2.bias"][1] -= np.float32(np.median(odds) - np.log(config.tau1 / (1 - config.tau1)))
    return Model(config, tensors)


def cluster_as_released(features: Features, graph: KnnGraph, model: Model) -> NDArray[np.int64]:
    """Transcribe the released inference, step by step."""
    n, k = graph.neighbors.shape
    tensors = {name: torch.from_numpy(tensor) for name, tensor in model.tensors.items()}
    source, target = np.repeat(np.arange(n), k), graph.neighbors.ravel().astype(np.int64)
    listed = csr_matrix((np.maximum(graph.similarities.ravel(), 0), (source, target)), shape=(n, n))
    affinity = listed.maximum(listed.T) + eye(n)
    affinity = csr_matrix(affinity.multiply(1 / affinity.sum(axis=1))).astype(np.float32)
    rows = features.read(0, n)
    joined = torch.from_numpy(np.concatenate([rows, affinity @ rows], axis=1))
    hidden = torch.relu(joined @ tensors["conv1.weight"] + tensors["conv1.bias"])
    kept = []
    for patch in np.array_split(np.arange(len(source)), 65):
        pairs = torch.cat([hidden[source[patch]], hidden[target[patch]]], dim=1)
        inner = pairs @ tensors["classifier.0.weight"].T + tensors["classifier.0.bias"]
        inner = torch.nn.functional.prelu(inner, tensors["classifier.1.weight"])
        logits = inner @ tensors["classifier.2.weight"].T + tensors["classifier.2.bias"]
        kept.append(torch.softmax(logits, dim=1)[:, 1].numpy() > model.config.tau1)
    source, target = source[np.concatenate(kept)], target[np.concatenate(kept)]
    parsed = csr_matrix((np.ones(len(source)), (source, target)), shape=(n, n))
    degree = np.asarray(parsed.sum(axis=1)).ravel()
    common = np.asarray((parsed @ parsed)[source, target]).ravel()
    with np.errstate(divide="ignore", invalid="ignore"):
        intimacy = np.maximum(common / degree[source], common / degree[target])
    refined = (degree[target] > 0) & (intimacy > model.config.tau2)
    graph2 = csr_matrix((np.ones(refined.sum()), (source[refined], target[refined])), shape=(n, n))
    return np.asarray(connected_components(graph2, directed=False)[1])


def compare(faces: int, k: int, dim: int, hidden: int, seed: int) -> dict[str, float]:
    """Time both on the same inputs; ours is warmed up once, so that compiling is not counted."""
    features = Features(make_faces(faces, dim=dim, seed=seed)[0])
    graph = build_knn(features, k=k, method="exact")
    model = make_model(features, graph, hidden, seed)
    starfc.cluster(features, model=model, knn_graph=graph)
    ours, ours_s, ours_cpu_s = clock(lambda: starfc.cluster(features, model=model, knn_graph=graph).labels)
    theirs, theirs_s, theirs_cpu_s = clock(lambda: cluster_as_released(features, graph, model))
    _, first = np.unique(theirs, return_index=True)
    same = np.array_equal(ours, np.argsort(np.argsort(first))[theirs])
    return {
        "faces": faces,
        "released_s": theirs_s,
        "ours_s": ours_s,
        "ratio": theirs_s / ours_s,
        "released_cpu_s": theirs_cpu_s,
        "ours_cpu_s": ours_cpu_s,
        "cpu_ratio": theirs_cpu_s / ours_cpu_s,
        "same_labels": same,
    }


def clock(work: Callable[[], NDArray[np.int64]]) -> tuple[NDArray[np.int64], float, float]:
    """Return the labels, the wall time and the CPU time, which a busy machine disturbs less."""
    started, cpu_started = time.perf_counter(), time.process_time()
    labels = work()
    return labels, time.perf_counter() - started, time.process_time() - cpu_started


def join_blocks(features: Features, people: NDArray[np.int64], k: int, seed: int) -> KnnGraph:
    """Make a graph with near and far neighbours in linear time (see the module's docstring)."""
    n, n_far = len(features), round(0.22 * k)
    rng = np.random.default_rng(seed)
    order = np.argsort(people, kind="stable")
    neighbors = np.empty((n, k), dtype=np.int32)
    similarities = np.empty((n, k), dtype=np.float32)
    for start in range(0, n, BLOCK_ROWS):
        members = order[start : start + BLOCK_ROWS]
        rows = features.take(members)
        block = join_rows(rows, min(k - n_far, len(members) - 1))
        # far ones from other blocks, so that no face is listed twice
        far = order[(start + BLOCK_ROWS + rng.integers(0, n - 2 * BLOCK_ROWS, (len(members), 3 * n_far))) % n]
        far = np.array([row[np.sort(np.unique(row, return_index=True)[1])][:n_far] for row in far])
        drawn = features.take(far.ravel()).reshape(*far.shape, -1)
        both = np.concatenate([block.similarities, np.einsum("id,ijd->ij", rows, drawn)], axis=1)
        ids = np.concatenate([members[block.neighbors], far], axis=1)
        best = np.argsort(-both, axis=1, kind="stable")
        neighbors[members] = np.take_along_axis(ids, best, axis=1)
        similarities[members] = np.take_along_axis(both, best, axis=1)
    return KnnGraph(neighbors, similarities, order.astype(np.int32))


def write_case(folder: Path, faces: int, k: int, dim: int, hidden: int, seed: int) -> None:
    """Write features (float16), graph and model of one size."""
    rows, people = make_faces(faces, dim=dim, seed=seed)
    np.save(folder / "faces.npy", rows.astype(np.float16))
    del rows
    features = load_features(folder / "faces.npy")
    save_knn(join_blocks(features, people, k, seed), folder / "graph.npz")
    sample = Features(features.read(0, 3000))
    make_model(sample, build_knn(sample, k=k), hidden, seed).save(folder / "model")


def run_case(folder: Path, threads: int, more: list[str], *, model: str | None = "model") -> dict[str, Any]:
    """Run `starfc cluster` on a written case and return what it reports."""
    command = [sys.executable, "-m", "starfc.cli", "cluster", "faces.npy", "-o", "labels.npy"]
    command += ["--model", model] if model else []
    command += ["--threads", str(threads), "--json", *more]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise RuntimeError(done.stderr)
    report: dict[str, Any] = json.loads(done.stdout)
    return report | {"cpu_s": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime}


def measure_growth(
    sizes: list[int], k: int, dim: int, hidden: int, seed: int, threads: int, more: list[str]
) -> list[dict[str, Any]]:
    """Run everything after the kNN graph at growing sizes; a first small run compiles what is not compiled yet."""
    rows: list[dict[str, Any]] = []
    print("| faces | s | of it scores | CPU-s with start and loading | peak GB | KB a face | plan |")
    print("|---|---|---|---|---|---|---|")
    for faces in [2 * BLOCK_ROWS + 1000, *sizes]:
        with tempfile.TemporaryDirectory() as name:
            write_case(Path(name), faces, k, dim, hidden, seed)
            report = run_case(Path(name), threads, ["--knn-graph", "graph.npz", *more])
        if faces in sizes:
            rows.append({"faces": faces, **report})
            total, peak = report["seconds"]["total"], report["peak_rss_gb"]
            print(
                f"| {faces} | {total:.1f} | {report['seconds']['score']:.1f} | {report['cpu_s']:.1f} | {peak:.2f} |"
                f" {peak / faces * 1e6:.2f} | {report['memory']} |", flush=True,
            )  # fmt: skip
    return rows


def write_faces(folder: Path, options: argparse.Namespace) -> None:
    """Put features and a model in a folder: those that were given, else drawn ones."""
    if options.features is not None:
        (folder / "faces.npy").symlink_to(options.features.resolve())
    else:
        rows = make_faces(options.end_to_end, people=options.people, dim=options.dim, seed=options.seed)[0]
        np.save(folder / "faces.npy", rows.astype(np.float16))
    if options.model is not None:
        (folder / "model").symlink_to(options.model.resolve())
    else:
        sample = Features(load_features(folder / "faces.npy").read(0, 3000))
        make_model(sample, build_knn(sample, k=options.k), options.hidden, options.seed).save(folder / "model")


def measure_end_to_end(options: argparse.Namespace, more: list[str]) -> dict[str, Any]:
    """Run from features to labels again and again; a first small run compiles what is not compiled yet."""
    results = {}
    with tempfile.TemporaryDirectory(dir=options.output.parent.resolve()) as name:
        folder = Path(name)
        write_faces(folder, options)
        (folder / "small").mkdir()
        np.save(folder / "small" / "faces.npy", load_features(folder / "faces.npy").raw[:4000])
        (folder / "small" / "model").symlink_to(folder / "model")
        print("| model | run | s | of it kNN | scores | partition | CPU-s | peak GB | clusters |")
        print("|---|---|---|---|---|---|---|---|---|")
        for model in ("model", None) if options.shipped else ("model",):
            run_case(folder / "small", options.threads, ["--k", str(options.k), "--knn", "cells"], model=model)
            rows = []
            for number in range(options.runs):
                shutil.rmtree(folder / "work", ignore_errors=True)
                report = run_case(folder, options.threads, ["--k", str(options.k), *more], model=model)
                rows.append(report)
                seconds = report["seconds"]
                print(
                    f"| {model or 'shipped'} | {number + 1} | {seconds['total']:.1f} |"
                    f" {seconds['knn']:.1f} | {seconds['score']:.1f} | {seconds['partition']:.1f} |"
                    f" {report['cpu_s']:.1f} | {report['peak_rss_gb']:.2f} | {report['n_clusters']} |", flush=True,
                )  # fmt: skip
            totals = [row["seconds"]["total"] for row in rows]
            results[model or "shipped"] = {"runs": rows, "best_s": min(totals), "median_s": float(np.median(totals))}
    for name, result in results.items():
        print(f"{name}: best {result['best_s']:.1f} s, median {result['median_s']:.1f} s")
    return results


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faces", type=int, nargs="+", default=[10_000, 20_000, 50_000])
    parser.add_argument("--k", type=int, default=80)
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--growth", type=int, nargs="*", help="sizes for the growth of ours alone")
    parser.add_argument("--end-to-end", type=int, help="faces of runs from features to labels")
    parser.add_argument("--people", type=int, help="of --end-to-end")
    parser.add_argument("--runs", type=int, default=3, help="of --end-to-end")
    parser.add_argument("--model", type=Path, help="folder, for --end-to-end")
    parser.add_argument("--features", type=Path, help="file, for --end-to-end")
    parser.add_argument("--shipped", action="store_true", help="--end-to-end by the shipped model too")
    parser.add_argument("--memory-gb", type=float, help="of the runs of ours alone")
    parser.add_argument("--workdir", action="store_true", help="give the runs of ours alone a work folder")
    parser.add_argument("-o", "--output", type=Path, default=Path("bench/inference.json"))
    options = parser.parse_args()
    options.output.parent.mkdir(parents=True, exist_ok=True)
    settings = (options.k, options.dim, options.hidden, options.seed)
    results: dict[str, object] = {
        "threads": options.threads,
        "k": options.k,
        "dim": options.dim,
        "hidden": options.hidden,
    }
    with limited_threads(options.threads), torch.no_grad():
        torch.set_num_threads(options.threads)
        more = ["--memory-gb", str(options.memory_gb)] if options.memory_gb else []
        more += ["--workdir", "work"] if options.workdir else []
        if options.end_to_end or options.features:
            results["end_to_end"] = measure_end_to_end(options, more)
        elif options.growth:
            rows = measure_growth(options.growth, *settings, options.threads, more)
            points = np.log([(row["faces"], row["seconds"]["total"], row["cpu_s"]) for row in rows])
            fits = np.polyfit(points[:, 0], points[:, 1:], 1)[0] if len(rows) > 1 else np.full(2, np.nan)
            results |= {"growth": rows, "exponent": float(fits[0]), "cpu_exponent": float(fits[1])}
            print(f"exponent {fits[0]:.2f}, of CPU time {fits[1]:.2f}")
        else:
            print("| faces | released method, s | starfc, s | ratio | CPU-s | ratio | same labels |")
            print("|---|---|---|---|---|---|---|")
            results["comparison"] = rows = []
            for faces in options.faces:
                rows.append(compare(faces, *settings))
                row = rows[-1]
                print(
                    f"| {faces} | {row['released_s']:.1f} | {row['ours_s']:.2f} | {row['ratio']:.0f}x |"
                    f" {row['released_cpu_s']:.1f} / {row['ours_cpu_s']:.2f} | {row['cpu_ratio']:.0f}x |"
                    f" {row['same_labels']} |", flush=True,
                )  # fmt: skip
    options.output.write_text(json.dumps(results, indent=2, default=float) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
