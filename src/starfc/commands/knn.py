"""`starfc knn`: the kNN graph alone."""

from __future__ import annotations

from pathlib import Path

import click

from ..errors import InputError
from .common import SHARE, common_options, dim_option, print_result, progress_bars


@click.command()
@click.argument("features", type=Path)
@click.option("-o", "--output", type=Path, required=True, help="GRAPH.npz to write.")
@click.option("--k", type=int, default=80, show_default=True, help="Neighbours per face, itself not counted.")
@click.option("--recall", type=SHARE, default=0.95, show_default=True, help="Recall asked of cells.")
@click.option("--knn", type=click.Choice(["exact", "cells", "auto"]), default="auto", show_default=True, help="Method.")
@dim_option
@common_options
def knn(
    features: Path, output: Path, k: int, recall: float, knn: str, dim: int | None, as_json: bool,
    threads: int | None, seed: int,
) -> None:  # fmt: skip
    """Build the kNN graph of FEATURES."""
    import time

    from ..atomic import require_writable
    from ..features import load_features
    from ..knn import build_knn, measure_recall, save_knn
    from ..pipeline import peak_rss_gb
    from ..threads import limited_threads

    if output.suffix.lower() != ".npz":
        raise InputError(f"output {output} ends in '{output.suffix}'; a kNN graph is written as .npz")
    require_writable(output)
    rows = load_features(features, dim=dim)
    with progress_bars() as bars, limited_threads(threads):
        started = time.perf_counter()
        rows.check(bars.report)
        graph = build_knn(rows, k=k, method=knn, recall=recall, seed=seed, progress=bars.report)
        seconds = time.perf_counter() - started
        save_knn(graph, output)
        measured, n_sampled = measure_recall(rows, graph, seed=seed)
    figures = {
        "n": len(rows), "k": k, "recall": round(measured, 5), "recall_sample": n_sampled,
        "seconds": round(seconds, 3), "peak_rss_gb": round(peak_rss_gb(), 3),
    }  # fmt: skip
    print_result(
        figures,
        as_json,
        f"{k} neighbours of {len(rows)} faces in {seconds:.1f} s, recall {measured:.4f} (sample of {n_sampled})",
    )
