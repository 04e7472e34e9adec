"""`starfc calibrate`: thresholds for a model from a small labelled sample."""

from __future__ import annotations

from pathlib import Path

import click

from .options import common_options, dim_option, print_result, progress_bars


@click.command()
@click.argument("features", type=Path)
@click.argument("labels", type=Path)
@click.option("--model", type=Path, help="Model folder; without one, the scorer of relations that is shipped.")
@click.option("-o", "--output", type=Path, required=True, help="Model folder to write.")
@dim_option
@common_options
def calibrate(
    features: Path, labels: Path, model: Path | None, output: Path, dim: int | None, as_json: bool, seed: int,
    threads: int | None,
) -> None:  # fmt: skip
    """Choose a model's thresholds by the LABELS of some of the FEATURES (-1: unknown), or by pairs (a, b, same)."""
    from ..calibration import calibrate as run
    from ..calibration import describe, load_pairs
    from ..features import load_features
    from ..labels import load_labels
    from ..model import load_model, require_model_target

    require_model_target(output)
    rows = load_features(features, dim=dim)
    pairs = load_pairs(labels)
    known = pairs if pairs is not None else load_labels(labels, n_expected=len(rows))
    start = load_model(model) if model is not None else None
    with progress_bars() as bars:
        found = run(rows, known, model=start, seed=seed, threads=threads, progress=bars.report)
        found.model.save(output)
    print_result(found.as_dict(), as_json, f"model in {output}: {describe(found)}")
