"""`starfc synth` and `starfc convert`: collections to try things on, and their formats."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .options import common_options, dim_option, print_result, progress_bars


@click.command()
@click.option(
    "-o",
    "--output",
    "prefix",
    type=Path,
    required=True,
    help="Writes PREFIX.features.npy, PREFIX.labels.npy.",
)
@click.option("--faces", type=int, default=10_000, show_default=True, help="Number of faces.")
@click.option("--people", type=int, help="Number of people (default: one per 68 faces).")
@click.option("--dim", type=int, default=256, show_default=True, help="Numbers per face.")
@click.option(
    "--singletons", type=float, default=0.0, show_default=True, help="Share of the people with a single face."
)
@click.option("--embedder-seed", type=int, default=0, show_default=True, help="Sets with the same one fit each other.")
@common_options
def synth(prefix: Path, as_json: bool, threads: int | None, **settings: Any) -> None:  # noqa: ANN401
    """Make face-like vectors with known identities, streamed to disk."""
    from ..synth import synthesise
    from ..threads import limited_threads

    with progress_bars() as bars, limited_threads(threads):
        made = synthesise(prefix, progress=bars.report, **settings)
    figures = made.as_dict()
    print_result(
        figures,
        as_json,
        f"{figures['n_faces']} faces of {figures['n_people']} people in {figures['features']}, {figures['labels']}",
    )


@click.command()
@click.argument("source", metavar="IN", type=Path)
@click.argument("target", metavar="OUT", type=Path)
@dim_option
@common_options
def convert(source: Path, target: Path, dim: int | None, as_json: bool, threads: int | None, seed: int) -> None:
    """Convert features or labels between all formats; which of the two IN holds is seen from its content."""
    from ..convert import convert_file

    with progress_bars() as bars:
        kind, n_rows = convert_file(source, target, dim=dim, progress=bars.report)
    print_result({"kind": kind, "n": n_rows}, as_json, f"{n_rows} rows of {kind} in {target}")
