"""Options of the commands that look at a clustering again: how it was scored, and which pictures belong to it."""

from __future__ import annotations

from pathlib import Path

import click

from .options import Command


def evidence_options(command: Command) -> Command:
    """Add what tells how the clustering was scored; the same values as `starfc cluster` was given."""
    for option in (
        click.option("--model", type=Path, help="Model folder that scored it (default: the shipped relational model)."),
        click.option("--scorer", type=click.Choice(["gcn", "relational", "combined", "cosine"]), help="Edge scorer."),
        click.option("--prefer", type=click.Choice(["precision", "balanced", "recall"]), help="As it was clustered."),
        click.option("--k", type=int, help="Neighbours per face (default: the model's, else from the data)."),
        click.option("--tau1", type=float, help="Threshold on the score (default: the model's, else from the data)."),
        click.option("--tau2", type=float, help="Threshold on the intimacy (default: the model's)."),
        click.option("--knn-graph", type=Path, help="Ready-made kNN graph (.npz, either layout)."),
        click.option("--workdir", type=Path, help="Work folder of 'starfc cluster': nothing is computed again."),
    ):
        command = option(command)
    return command


def image_options(command: Command) -> Command:
    """Add what tells which picture belongs to which face."""
    for option in (
        click.option("--images", type=Path, help="Pictures: a folder, a .txt list or a .csv with a column 'file'."),
        click.option("--images-root", type=Path, help="Folder that listed pictures must lie in (default: the list's)."),
    ):
        command = option(command)
    return command
