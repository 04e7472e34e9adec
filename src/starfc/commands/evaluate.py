"""`starfc evaluate`: compare a clustering with the truth."""

from __future__ import annotations

from pathlib import Path

import click

from .options import common_options, print_result


@click.command()
@click.argument("truth", type=Path)
@click.argument("predicted", type=Path)
@common_options
def evaluate(truth: Path, predicted: Path, as_json: bool, threads: int | None, seed: int) -> None:
    """Compare PREDICTED labels with TRUTH: pairwise and BCubed precision, recall, F, and NMI."""
    from ..labels import load_labels
    from ..metrics import evaluate as run

    known = load_labels(truth)
    result = run(known, load_labels(predicted, n_expected=len(known)))
    lines = [f"{'':<9} precision  recall       f"]
    for name, figures in (("pairwise", result.pairwise), ("bcubed", result.bcubed)):
        lines.append(f"{name:<9} {figures.precision:>9.4f} {figures.recall:>7.4f} {figures.f:>7.4f}")
    lines.append(
        f"nmi {result.nmi:.4f}; {result.n_clusters} clusters for {result.n_true} people, {result.n_faces} faces"
    )
    if result.n_unlabelled:
        lines.append(f"{result.n_unlabelled} unlabelled faces were left out")
    if result.n_unassigned:
        lines.append(f"{result.n_unassigned} unassigned faces (-1) count as clusters of their own")
    print_result(result.as_dict(), as_json, "\n".join(lines))
