"""`starfc train` and `starfc import-checkpoint`: the two ways to a model folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .options import common_options, dim_option, print_result, progress_bars


@click.command()
@click.argument("features", type=Path)
@click.argument("labels", type=Path)
@click.option("-o", "--output", type=Path, required=True, help="Model folder to write.")
@click.option(
    "--preset",
    type=click.Choice(["paper", "gcn", "default"]),
    default="default",
    show_default=True,
    help="The published method, its network started as a distance, or relations fitted to these people.",
)
@click.option("--steps", type=click.IntRange(min=1), help="Optimiser steps (default: the preset's).")
@click.option("--k", type=click.IntRange(min=1), help="Neighbours per face (default: the plan's, or from the data).")
@click.option("--plan", type=click.Choice(["ms1m", "webface", "released"]), help="How subgraphs are sampled.")
@click.option("--cluster-randomness/--no-cluster-randomness", default=True, help="CR of the paper.")
@click.option("--sample-randomness/--no-sample-randomness", default=True, help="SR of the paper.")
@click.option("--full-graph", is_flag=True, help="Train on all faces at once, without sampling.")
@click.option(
    "--held-out", type=float, help="Share of the people kept aside (default: .1; a quarter, in turns, of relations)."
)
@click.option("--workdir", type=Path, help="Folder for checkpoints; the same command goes on where it was stopped.")
@dim_option
@common_options
def train(
    features: Path, labels: Path, output: Path, as_json: bool, dim: int | None, **settings: Any  # noqa: ANN401
) -> None:  # fmt: skip
    """Train an edge scorer on FEATURES with known LABELS and write a model folder."""
    from ..features import load_features
    from ..labels import load_labels
    from ..model import require_model_target
    from ..training import train as run

    require_model_target(output)
    rows = load_features(features, dim=dim)
    truth = load_labels(labels, n_expected=len(rows))
    with progress_bars() as bars:
        model = run(rows, truth, progress=bars.report, on_report=lambda report: bars.say(str(report)), **settings)
        model.save(output)
    facts = model.config.training
    print_result(facts, as_json, f"model in {output}: tau1 {model.config.tau1:g}, tau2 {model.config.tau2}")


@click.command("import-checkpoint")
@click.argument("backbone", type=Path)
@click.argument("head", type=Path)
@click.option("-o", "--output", type=Path, required=True, help="Model folder to write.")
@common_options
def import_checkpoint(
    backbone: Path, head: Path, output: Path, as_json: bool, threads: int | None, seed: int
) -> None:  # fmt: skip
    """Make a model folder from the authors' released BACKBONE.pth and HEAD.pth."""
    from ..model import import_checkpoint as run
    from ..model import require_model_target

    require_model_target(output)
    model = run(backbone, head)
    model.save(output)
    figures = {"dim": model.config.dim, "hidden": list(model.config.hidden), "k": model.config.k}
    print_result(
        figures,
        as_json,
        f"model in {output}: dimension {model.config.dim}, layers {list(model.config.hidden)}",
    )
