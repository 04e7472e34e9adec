"""`starfc knn`: the kNN graph alone."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import click

from ..errors import InputError
from .options import MEMORY, SHARE, common_options, dim_option, print_result, progress_bars


@click.command()
@click.argument("features", type=Path)
@click.option("-o", "--output", type=Path, required=True, help="GRAPH.npz to write.")
@click.option("--k", type=int, default=80, show_default=True, help="Neighbours per face, itself not counted.")
@click.option("--recall", type=SHARE, default=0.95, show_default=True, help="Recall asked of cells.")
@click.option("--knn", type=click.Choice(["exact", "cells", "auto"]), default="auto", show_default=True, help="Method.")
@click.option("--workdir", type=Path, help="Folder for finished parts; the same command goes on where it was stopped.")
@click.option("--memory-gb", type=MEMORY, help="Memory to keep to; the arrays of 'cells' go to files.")
@dim_option
@common_options
def knn(
    features: Path, output: Path, k: int, recall: float, knn: str, workdir: Path | None, memory_gb: float | None,
    dim: int | None, as_json: bool, threads: int | None, seed: int,
) -> None:  # fmt: skip
    """Build the kNN graph of FEATURES."""
    import time

    from ..atomic import remove_leftovers_of, require_apart, require_writable, temporary_folder
    from ..features import load_features
    from ..knn import build_knn, measure_recall, save_knn
    from ..pipeline import peak_rss_gb
    from ..residency import keep_within
    from ..scratch import Scratch, remove_scratch
    from ..threads import limited_threads
    from ..workdir import Workdir, digest_features

    if output.suffix.lower() != ".npz":
        raise InputError(f"output {output} ends in '{output.suffix}'; a kNN graph is written as .npz")
    require_writable(output)
    require_apart(output, features)
    remove_leftovers_of(output)
    rows = load_features(features, dim=dim)
    with progress_bars() as bars, limited_threads(threads), ExitStack() as stack:
        started = time.perf_counter()
        kept = Workdir.open(workdir)
        stack.enter_context(kept.locked())
        folder, facts = None, {}
        memory = int(memory_gb * 1e9) if memory_gb is not None else None
        stack.enter_context(keep_within(memory))
        pages = Scratch(limit_bytes=memory)
        pages.watch(rows.raw)

        def report(stage: str, done: int, total: int) -> None:
            bars.report(stage, done, total)
            pages.relieve()

        if kept.folder is not None:
            folder, facts = kept.folder / "knn.parts", {"features": digest_features(rows, report)}
        elif memory_gb is not None:
            folder = stack.enter_context(temporary_folder(output)) / "knn.parts"
        rows.check(report)
        graph = build_knn(
            rows, k=k, method=knn, recall=recall, seed=seed, folder=folder, facts=facts, memory=memory,
            progress=report,
        )  # fmt: skip
        seconds = time.perf_counter() - started
        save_knn(graph, output)
        measured, n_sampled = measure_recall(rows, graph, seed=seed, progress=report)
        if folder is not None:
            remove_scratch(folder)
    figures = {
        "n": len(rows), "k": k, "recall": round(measured, 5), "recall_sample": n_sampled,
        "seconds": round(seconds, 3), "peak_rss_gb": round(peak_rss_gb(), 3),
    }  # fmt: skip
    print_result(
        figures,
        as_json,
        f"{k} neighbours of {len(rows)} faces in {seconds:.1f} s, recall {measured:.4f} (sample of {n_sampled})",
    )
