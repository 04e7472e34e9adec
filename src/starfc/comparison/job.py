"""A job: what one process of a benchmark does, told by a JSON file and answered by another.

`python -m starfc.comparison.job SPEC RESULT`. Kinds: "knn" builds a graph, "tune" chooses settings of a method that
needs no training, "train" trains one (and chooses its settings if told to), "cluster" runs it on a test part and
scores it. Progress goes to stdout, a JSON list [stage, done, total] per line. RESULT says either what came out or, in
one sentence, why not.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ..atomic import write_json
from ..baselines import METHODS
from ..baselines.weights import load_weights
from ..errors import StarfcError
from ..knn import build_knn, save_knn
from ..metrics import evaluate
from ..pipeline import peak_rss_gb
from ..threads import limited_threads
from .parts import Part
from .tune import separate_noise, train_tuned, tune_method

Spec = dict[str, Any]
_LOOK_EVERY_S = 0.5


class Clock:
    """Measures wall and processor time from when it is made; the second means something on a busy machine too."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def read(self) -> dict[str, float]:
        """Return the seconds of both kinds."""
        return {"seconds": time.perf_counter() - self._wall, "cpu_s": time.process_time() - self._cpu}


def run_job(spec: Spec) -> dict[str, Any]:
    """Do the job and return what came out."""
    part = Part(Path(spec["features"]), Path(spec["labels"]), Path(spec["knn"]) if spec["knn"] else None, spec["dim"])
    with limited_threads(spec["threads"]):
        _limit_torch(spec)
        return _KINDS[spec["kind"]](spec, part)


def _build_graph(spec: Spec, part: Part) -> dict[str, Any]:
    """Build the kNN graph of a part."""
    features, _ = part.read()
    clock = Clock()
    features.check()
    graph = build_knn(features, k=min(spec["k"], len(features) - 1), seed=spec["seed"], progress=_report)
    spent = clock.read()
    save_knn(graph, Path(spec["output"]))
    return spent


def _tune(spec: Spec, part: Part) -> dict[str, Any]:
    """Choose the settings of a method on a labelled part."""
    features, labels = part.read()
    clock = Clock()
    method = METHODS[spec["method"]]
    settings = tune_method(method, features, part.read_graph(spec["k"]), labels, seed=spec["seed"], progress=_report)
    return clock.read() | {"settings": settings}


def _train(spec: Spec, part: Part) -> dict[str, Any]:
    """Train a method on a labelled part and save its weights."""
    method = METHODS[spec["method"]]
    features, labels = part.read()
    graph = part.read_graph(spec["k"])
    clock = Clock()
    options = {"seed": spec["seed"], "steps": spec["steps"], "progress": _report}
    if spec["tune"]:
        model, settings = train_tuned(method, features, graph, labels, **options)
    else:
        model, settings = method.load().train_model(features, graph, labels, **options, **method.settings), {}
    spent = clock.read()
    model.save(Path(spec["output"]))
    return spent | {"settings": settings}


def _cluster(spec: Spec, part: Part) -> dict[str, Any]:
    """Cluster a part, once on a few faces to load compiled code, then on all with the clock running; and score it."""
    method = METHODS[spec["method"]]
    features, labels = part.read()
    graph = part.read_graph(spec["k"])
    options = {"seed": spec["seed"], **method.settings, **spec["settings"]}
    if spec["model"]:
        options["model"] = load_weights(Path(spec["model"]))
    module = method.load()
    _warm_up(module.cluster_faces, options, features.dim, writeable=graph.neighbors.flags.writeable)
    clock = Clock()
    found = module.cluster_faces(features, graph, **options)
    spent = clock.read()
    figures = evaluate(labels, found).as_dict()
    sizes = np.bincount(np.unique(separate_noise(found[labels >= 0]), return_inverse=True)[1])
    return figures | spent | {"n_singletons": int((sizes == 1).sum()), "largest": int(sizes.max())}


def _warm_up(cluster_faces: Callable[..., Any], options: dict[str, Any], dim: int, *, writeable: bool) -> None:
    """Cluster a few dozen random faces, so that compiling is not measured.

    Their graph is `writeable` or not as the one that will be measured: numba compiles for either kind.
    """
    from ..features import Features

    rng = np.random.default_rng(0)
    centers = np.repeat(rng.normal(size=(12, dim)), 8, axis=0)
    few = Features((centers + 0.3 * rng.normal(size=centers.shape)).astype(np.float32))
    graph = build_knn(few, k=30)
    for array in (graph.neighbors, graph.similarities):
        array.setflags(write=writeable)
    cluster_faces(few, graph, **options)


def _limit_torch(spec: Spec) -> None:
    """Let torch use as many cores as the rest, where it is going to be used."""
    if spec.get("method") and METHODS[spec["method"]].trained and spec["threads"]:
        import torch

        torch.set_num_threads(spec["threads"])


def _report(stage: str, done: int, total: int) -> None:
    """Tell the parent how far the job is."""
    sys.stdout.write(json.dumps([stage, done, total]) + "\n")
    sys.stdout.flush()


_KINDS: dict[str, Callable[[Spec, Part], dict[str, Any]]] = {
    "knn": _build_graph, "tune": _tune, "train": _train, "cluster": _cluster,
}  # fmt: skip


def _end_with_parent() -> None:
    """End this process soon after the one that started it: without it nobody watches over time and memory."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_LOOK_EVERY_S)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def main() -> None:
    """Run the job of the command line."""
    _end_with_parent()
    spec = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    try:
        result = {"status": "done"} | run_job(spec)
    except StarfcError as error:
        result = {"status": f"failed: {error}"}
    except MemoryError:
        result = {"status": "failed: out of memory"}
    write_json(Path(sys.argv[2]), result | {"peak_rss_gb": peak_rss_gb()})


if __name__ == "__main__":
    main()
