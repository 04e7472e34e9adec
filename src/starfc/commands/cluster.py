"""`starfc cluster`: group a collection by person."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .options import MEMORY, SHARE, common_options, dim_option, print_result, progress_bars


@click.command()
@click.argument("features", type=Path)
@click.option("-o", "--output", type=Path, required=True, help="Labels: .npy, .csv, .parquet or .meta.")
@click.option("--model", type=Path, help="Model folder; without one, the shipped relational model scores edges.")
@click.option("--k", type=int, help="Neighbours per face (default: the model's, else from the data).")
@click.option("--scorer", type=click.Choice(["gcn", "relational", "cosine"]), help="Edge scorer.")
@click.option("--tau1", type=float, help="Keep edges with a score above it (default: the model's, else from the data).")
@click.option("--tau2", type=float, help="Keep edges with a node intimacy above it (default: the model's).")
@click.option("--aggregate", type=click.Choice(["max", "mean", "min", "jaccard"]), help="Node intimacy.")
@click.option("--edges", type=click.Choice(["directed", "mutual"]), help="What counts as an edge for node intimacy.")
@click.option(
    "--partition",
    type=click.Choice(["components", "mapequation", "dynamic"]),
    help="How clusters are read off the graph.",
)
@click.option(
    "--knn",
    type=click.Choice(["exact", "cells", "auto"]),
    default="auto",
    show_default=True,
    help="kNN method.",
)
@click.option(
    "--prefer",
    type=click.Choice(["precision", "balanced", "recall"]),
    help="Which mistakes weigh more: strangers together, or one person apart (default: balanced).",
)
@click.option("--constraints", type=Path, help="Corrections to honour, as 'starfc export' writes them.")
@click.option("--report", type=Path, help="Also write a report.html.")
@click.option("--knn-graph", type=Path, help="Ready-made kNN graph (.npz, either layout).")
@click.option("--recall", type=SHARE, default=0.95, show_default=True, help="Recall asked of --knn cells.")
@click.option("--workdir", type=Path, help="Folder for finished stages; the same command goes on where it was stopped.")
@click.option("--memory-gb", type=MEMORY, help="Memory to keep to after the kNN graph (default: 80 % of what is free).")
@dim_option
@common_options
def cluster(
    features: Path, output: Path, report: Path | None, as_json: bool, dim: int | None,
    **settings: Any,  # noqa: ANN401
) -> None:  # fmt: skip
    """Group FEATURES by person and write one label per face to OUT."""
    from ..atomic import remove_leftovers_of, require_writable
    from ..features import load_features
    from ..labels import require_label_ending
    from ..pipeline import cluster as run

    require_label_ending(output)
    require_writable(output)
    remove_leftovers_of(output)
    if report is not None:
        require_writable(report)
    with progress_bars() as bars:
        rows = load_features(features, dim=dim)
        result = run(rows, progress=bars.report, say=bars.say, beside=output, **settings)
        result.save(output)
        if report is not None:
            from ..evidence import take_evidence
            from ..report import write_report

            evidence = take_evidence(result, rows, seed=settings["seed"])
            write_report(result.labels, report, features=rows, evidence=evidence, title=output.name)
        for note in result.notes:
            bars.say(f"note: {note}")
    figures = result.summary()
    sentence = (
        f"{figures['n']} faces -> {figures['n_clusters']} clusters ({figures['n_singletons']} of one face, largest"
        f" {figures['largest']}) in {figures['seconds']['total']:.1f} s; labels in {output}"
    )
    print_result(figures, as_json, sentence)
