"""Inference: ours against a faithful, unoptimised transcription of the released method, in one run on the same inputs.

    python benchmarks/inference.py [--faces 50000] [--k 80] [--dim 256] [--hidden 512] [--threads 2] [--growth]

Both get features, the kNN graph and the model, and give labels. The transcription is what the authors' code does:
concatenated pair features through the MLP in torch in 65 patches, scipy's A·A, intimacy of every edge vectorised in
numpy, scipy's components. `--growth N N ...` times ours at growing sizes and prints the exponent. Prints markdown and
saves JSON.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_matrix, eye
from scipy.sparse.csgraph import connected_components

import starfc
from starfc.features import Features
from starfc.knn import KnnGraph, build_knn
from starfc.model import Model, ModelConfig, expected_shapes
from starfc.synth import make_faces
from starfc.threads import limited_threads


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
    started = time.perf_counter()
    ours = starfc.cluster(features, model=model, knn_graph=graph).labels
    ours_s = time.perf_counter() - started
    started = time.perf_counter()
    theirs = cluster_as_released(features, graph, model)
    theirs_s = time.perf_counter() - started
    _, first = np.unique(theirs, return_index=True)
    same = np.array_equal(ours, np.argsort(np.argsort(first))[theirs])
    return {"faces": faces, "released_s": theirs_s, "ours_s": ours_s, "ratio": theirs_s / ours_s, "same_labels": same}


def measure_growth(sizes: list[int], k: int, dim: int, hidden: int, seed: int) -> list[dict[str, float]]:
    """Time everything after the kNN graph at growing sizes, on graphs of synthetic faces."""
    rows = []
    for faces in sizes:
        features = Features(make_faces(faces, dim=dim, seed=seed)[0].astype(np.float16))
        graph = build_knn(features, k=k)
        model = make_model(features, graph, hidden, seed)
        clusters = starfc.cluster(features, model=model, knn_graph=graph)
        rows.append({"faces": faces, "seconds": clusters.seconds["total"], **clusters.summary()["seconds"]})
        print(f"| {faces} | {rows[-1]['seconds']:.1f} |", flush=True)
    return rows


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
    parser.add_argument("-o", "--output", type=Path, default=Path("bench/inference.json"))
    options = parser.parse_args()
    settings = (options.k, options.dim, options.hidden, options.seed)
    results: dict[str, object] = {
        "threads": options.threads,
        "k": options.k,
        "dim": options.dim,
        "hidden": options.hidden,
    }
    with limited_threads(options.threads), torch.no_grad():
        torch.set_num_threads(options.threads)
        if options.growth:
            rows = measure_growth(options.growth, *settings)
            sizes, seconds = (np.log([row[name] for row in rows]) for name in ("faces", "seconds"))
            results |= {"growth": rows, "exponent": float(np.polyfit(sizes, seconds, 1)[0])}
            print(f"exponent {results['exponent']:.2f}")
        else:
            print("| faces | released method, s | starfc, s | ratio | same labels |\n|---|---|---|---|---|")
            results["comparison"] = rows = []
            for faces in options.faces:
                rows.append(compare(faces, *settings))
                row = rows[-1]
                print(
                    f"| {faces} | {row['released_s']:.1f} | {row['ours_s']:.2f} | {row['ratio']:.0f}x |"
                    f" {row['same_labels']} |", flush=True,
                )  # fmt: skip
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(results, indent=2, default=float) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
