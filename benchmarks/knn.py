"""Time kNN graphs against recall: starfc against faiss and pynndescent, in one run with equal threads.

    python benchmarks/knn.py --faces 200000 --dim 256 --k 80 --recall 0.95 --recall 0.99 -o knn.json
    python benchmarks/knn.py --features ../shared/data/lfw.features.npy --k 30
    python benchmarks/knn.py --growth 125000,250000,500000,1000000 --dim 128 --k 30 --only cells

Each method builds the graph of all rows, index and all. Its one knob (nprobe, efSearch, neighbours) is raised until the
wanted recall is reached on 500 tuning rows; what is reported is the recall on 1,000 other rows. Self is left out on
both sides. CPU seconds are given beside wall seconds, because other work on the machine disturbs them less. The BLAS
that comes with faiss knows no processor newer than itself and takes the slowest kernels it has for those; it is told
which to take (OPENBLAS_CORETYPE).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import faiss
import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_info

from starfc.features import Features, load_features
from starfc.knn import build_knn
from starfc.synth import make_faces
from starfc.threads import limited_threads

Rows = NDArray[np.float32]
Ids = NDArray[np.int64]


@dataclass
class Result:
    """One line of the table."""

    method: str
    setting: str
    n: int
    dim: int
    k: int
    asked: float
    recall: float
    wall_s: float
    cpu_s: float


@dataclass
class Truth:
    """Rows with their true neighbours, without self."""

    rows: Ids
    neighbors: Ids

    def score(self, found: Ids) -> float:
        """Return the share of true neighbours in `found`, lists of the same rows that may hold the row itself."""
        k = self.neighbors.shape[1]
        hits = 0
        for row, true, listed in zip(self.rows, self.neighbors, found, strict=True):
            hits += len(np.intersect1d(true, listed[listed != row][:k]))
        return hits / self.neighbors.size


def find_truth(rows: Rows, chosen: Ids, k: int) -> Truth:
    """Search all rows for the neighbours of the chosen ones."""
    _, found = faiss.knn(rows[chosen], rows, k + 1, metric=faiss.METRIC_INNER_PRODUCT)
    others = [listed[listed != row][:k] for row, listed in zip(chosen, found, strict=True)]
    return Truth(chosen, np.array(others))


def time_call(call: Callable[[], Ids]) -> tuple[Ids, float, float]:
    """Return a result with the wall and CPU seconds it took."""
    wall, cpu = time.perf_counter(), time.process_time()
    found = call()
    return found, time.perf_counter() - wall, time.process_time() - cpu


def run_starfc(rows: Rows, k: int, method: str, recall: float, seed: int) -> Callable[[], Ids]:
    """Return the call that builds our graph; a first one is not counted, so that nothing is compiled on the clock."""
    build_knn(Features(rows[:200_000]), k=k, method=method, recall=recall)
    return lambda: build_knn(Features(rows), k=k, method=method, recall=recall, seed=seed).neighbors


def make_ivf(rows: Rows, n_lists: int) -> faiss.IndexIVFFlat:
    """Train an IVF index on 40 rows per list."""
    index = faiss.index_factory(rows.shape[1], f"IVF{n_lists},Flat", faiss.METRIC_INNER_PRODUCT)
    index.cp.max_points_per_centroid = 40
    index.cp.niter = 6
    index.train(rows)
    index.add(rows)
    return index


def search_big_batch(index: faiss.IndexIVFFlat, queries: Rows, k: int, threads: int) -> Ids:
    """Search with faiss.contrib.big_batch_search, which multiplies whole lists with all their queries."""
    from faiss.contrib.big_batch_search import big_batch_search

    _, found = big_batch_search(index, queries, k + 1, method="pairwise_distances", threaded=threads, verbose=0)
    return np.asarray(found)


def tune(values: list[int], wanted: float, recall_at: Callable[[int], float]) -> int:
    """Return the first value whose recall on the tuning rows is as wanted, or the last."""
    for value in values:
        if recall_at(value) >= wanted:
            return value
    return values[-1]


def bench_ivf(
    rows: Rows, k: int, tuning: Truth, test: Truth, wanted: float, threads: int, lists: list[int]
) -> list[Result]:
    """Time IVF with two list counts, queries in cell order, and by big batches."""
    results = []
    for n_lists in lists or sorted({max(16, len(rows) // 64), max(16, int(4 * np.sqrt(len(rows))))}):
        start, start_cpu = time.perf_counter(), time.process_time()
        index = make_ivf(rows, n_lists)
        build_s, build_cpu_s = time.perf_counter() - start, time.process_time() - start_cpu

        def recall_at(n_probes: int, index: faiss.IndexIVFFlat = index) -> float:
            index.nprobe = n_probes
            return tuning.score(index.search(rows[tuning.rows], k + 1)[1])

        index.nprobe = tune(
            [1, 2, 4, 8, 12, 16, 20, 24, 32, 40, 48, 64, 96, 128, 192, 256, 384, 512], wanted, recall_at
        )
        order = np.argsort(index.quantizer.search(rows, 1)[1][:, 0], kind="stable")

        def search_sorted(index: faiss.IndexIVFFlat = index, order: Ids = order) -> Ids:
            found = np.empty((len(rows), k + 1), dtype=np.int64)
            found[order] = index.search(rows[order], k + 1)[1]
            return found

        calls = {
            "faiss IVF": search_sorted,
            "faiss IVF big_batch_search": lambda index=index: search_big_batch(index, rows, k, threads),
        }
        for name, call in calls.items():
            found, wall, cpu = time_call(call)
            setting = f"IVF{n_lists}, nprobe {index.nprobe}"
            shape = (len(rows), rows.shape[1], k, wanted)
            results.append(
                Result(name, setting, *shape, test.score(found[test.rows]), wall + build_s, cpu + build_cpu_s)
            )
    return results


def bench_hnsw(rows: Rows, k: int, tuning: Truth, test: Truth, wanted: float) -> Result:
    """Time HNSW, its construction included."""
    start, start_cpu = time.perf_counter(), time.process_time()
    index = faiss.IndexHNSWFlat(rows.shape[1], 16, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction = 80
    index.add(rows)
    build_s, build_cpu_s = time.perf_counter() - start, time.process_time() - start_cpu

    def recall_at(ef: int) -> float:
        index.hnsw.efSearch = ef
        return tuning.score(index.search(rows[tuning.rows], k + 1)[1])

    index.hnsw.efSearch = tune([k + 1, 2 * k, 3 * k, 4 * k, 6 * k, 8 * k, 12 * k, 16 * k], wanted, recall_at)
    found, wall, cpu = time_call(lambda: np.asarray(index.search(rows, k + 1)[1]))
    setting = f"M 16, efSearch {index.hnsw.efSearch}"
    recall = test.score(found[test.rows])
    return Result("faiss HNSW", setting, *rows.shape, k, wanted, recall, wall + build_s, cpu + build_cpu_s)


def bench_pynndescent(rows: Rows, k: int, tuning: Truth, test: Truth, wanted: float, threads: int) -> Result:
    """Time pynndescent at the cheapest setting that reaches the recall."""
    from pynndescent import NNDescent

    def build(max_candidates: int) -> Ids:
        index = NNDescent(
            rows, metric="dot", n_neighbors=k + 1, max_candidates=max_candidates, n_jobs=threads, random_state=0
        )
        return np.asarray(index.neighbor_graph[0])

    build_small = rows[:5000]
    NNDescent(build_small, metric="dot", n_neighbors=k + 1, n_jobs=threads, random_state=0)
    for max_candidates in (20, 40, 60):
        found, wall, cpu = time_call(lambda value=max_candidates: build(value))
        if tuning.score(found[tuning.rows]) >= wanted:
            break
    setting = f"max_candidates {max_candidates}"
    return Result("pynndescent", setting, *rows.shape, k, wanted, test.score(found[test.rows]), wall, cpu)


def bench_ours(rows: Rows, k: int, test: Truth, wanted: float, method: str) -> Result:
    """Time our graph; `cells` tunes itself, on rows of its own choice and on the clock."""
    found, wall, cpu = time_call(run_starfc(rows, k, method, wanted, 0))
    asked = 1.0 if method == "exact" else wanted
    return Result(f"starfc {method}", "", *rows.shape, k, asked, test.score(found[test.rows]), wall, cpu)


def bench_flat(rows: Rows, k: int, test: Truth, n_queries: int) -> Result:
    """Time faiss Flat on all rows, or on n_queries of them and scaled up."""
    n_queries = min(n_queries, len(rows)) or len(rows)
    found, wall, cpu = time_call(lambda: faiss.knn(rows[:n_queries], rows, k + 1, metric=faiss.METRIC_INNER_PRODUCT)[1])
    scale = len(rows) / n_queries
    setting = "" if scale == 1 else f"{n_queries} queries, scaled up"
    inside = test.rows[test.rows < n_queries]
    part = Truth(inside, test.neighbors[: len(inside)])
    return Result("faiss Flat", setting, *rows.shape, k, 1.0, part.score(found[inside]), wall * scale, cpu * scale)


def bench_rows(rows: Rows, arguments: argparse.Namespace) -> list[Result]:
    """Run every chosen method on one collection."""
    rng = np.random.default_rng(arguments.seed + 12345)
    drawn = rng.permutation(len(rows))
    k, only = arguments.k, arguments.only
    tuning = find_truth(rows, np.sort(drawn[:500]), k)
    test = find_truth(rows, np.sort(drawn[500:1500]), k)
    results: list[Result] = []

    def note(*more: Result) -> None:
        for result in more:
            print(json.dumps(asdict(result)), flush=True)
            results.append(result)

    if "flat" in only:
        note(bench_flat(rows, k, test, arguments.flat_queries))
    if "exact" in only:
        note(bench_ours(rows, k, test, 1.0, "exact"))
    for wanted in arguments.recall:
        if "cells" in only:
            note(bench_ours(rows, k, test, wanted, "cells"))
        if "ivf" in only:
            note(*bench_ivf(rows, k, tuning, test, wanted, arguments.threads, arguments.ivf_lists))
        if "hnsw" in only:
            note(bench_hnsw(rows, k, tuning, test, wanted))
        if "pynndescent" in only:
            note(bench_pynndescent(rows, k, tuning, test, wanted, arguments.threads))
    return results


def draw_plots(results: list[Result], path: Path) -> None:
    """Draw time against recall, or against n if there are several, beside the table."""
    try:
        import matplotlib.pyplot as plot
    except ImportError:
        return
    figure, axes = plot.subplots(figsize=(7, 4.5))
    by_size = len({result.n for result in results}) > 1
    for method in dict.fromkeys(result.method for result in results):
        points = [result for result in results if result.method == method]
        axes.plot([p.n if by_size else p.recall for p in points], [p.wall_s for p in points], "o-", label=method)
    axes.set(
        xlabel="rows" if by_size else "recall", ylabel="seconds", yscale="log", xscale="log" if by_size else "linear"
    )
    axes.legend()
    figure.savefig(path, dpi=120)


def format_table(results: list[Result]) -> str:
    """Return a markdown table."""
    lines = [
        "| method | setting | n | d | k | asked | recall | wall s | CPU s |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for r in results:
        lines.append(
            f"| {r.method} | {r.setting} | {r.n} | {r.dim} | {r.k} | {r.asked} | {r.recall:.4f} "
            f"| {r.wall_s:.1f} | {r.cpu_s:.1f} |"
        )
    return "\n".join(lines)


def read_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--features", type=Path, help="a file of face vectors instead of synthetic ones")
    parser.add_argument("--faces", type=int, default=200_000)
    parser.add_argument("--growth", help="several numbers of faces, separated by commas")
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--k", type=int, default=80)
    parser.add_argument("--recall", type=float, action="append")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--flat-queries", type=int, default=0, help="time Flat on so many queries and scale up; 0: all")
    parser.add_argument("--ivf-lists", type=int, action="append", help="lists of IVF; default n / 64 and 4 sqrt(n)")
    parser.add_argument("--only", default="flat,exact,cells,ivf,hnsw,pynndescent")
    parser.add_argument("-o", "--output", type=Path, help="JSON; a plot is put beside it")
    arguments = parser.parse_args()
    arguments.recall = arguments.recall or [0.95]
    arguments.ivf_lists = arguments.ivf_lists or []
    return arguments


def wake_blas() -> None:
    """Start again with the name of a kernel set, where a BLAS of the opponents has chosen one without AVX."""
    known = Path("/proc/cpuinfo")
    flags = known.read_text().split() if known.is_file() else []
    is_slow = any(library.get("architecture") == "Prescott" for library in threadpool_info())
    if is_slow and "avx2" in flags and "OPENBLAS_CORETYPE" not in os.environ:
        os.environ["OPENBLAS_CORETYPE"] = "SkylakeX" if "avx512f" in flags else "Haswell"
        os.execv(sys.executable, [sys.executable, *sys.argv])


def main() -> None:
    """Run the benchmark, print a markdown table, save JSON and a plot."""
    arguments = read_arguments()
    wake_blas()
    sizes = [int(size) for size in arguments.growth.split(",")] if arguments.growth else [arguments.faces]
    results: list[Result] = []
    with limited_threads(arguments.threads):
        faiss.omp_set_num_threads(arguments.threads)
        for size in sizes:
            if arguments.features:
                features = load_features(arguments.features)
                rows = features.read(0, len(features))
            else:
                rows = make_faces(size, dim=arguments.dim, seed=arguments.seed)[0]
            results += bench_rows(rows, arguments)
    print(format_table(results))
    if len(sizes) > 1:
        for method in dict.fromkeys(result.method for result in results):
            times = [result.cpu_s for result in results if result.method == method]
            print(f"{method}: CPU time grows as n^{np.log(times[-1] / times[0]) / np.log(sizes[-1] / sizes[0]):.2f}")
    if arguments.output:
        arguments.output.write_text(json.dumps([asdict(result) for result in results], indent=2) + "\n")
        draw_plots(results, arguments.output.with_suffix(".png"))


if __name__ == "__main__":
    main()
