"""`starfc demo`: the main job on a synthetic collection."""

from __future__ import annotations

from pathlib import Path

import click

from .options import common_options, print_result, progress_bars


@click.command()
@click.option("-o", "--output", type=Path, default=Path("demo"), show_default=True, help="Folder for the results.")
@common_options
def demo(output: Path, as_json: bool, threads: int | None, seed: int) -> None:
    """Cluster a synthetic collection without labels, train on another, cluster again, and draw the result."""
    from ..demo import run_demo

    with progress_bars() as bars:
        result = run_demo(output, seed=seed, threads=threads, progress=bars.report, say=bars.say)
    print_result(result.as_dict(), as_json, result.table())
