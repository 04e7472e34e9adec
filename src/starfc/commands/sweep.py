"""`starfc sweep`: what other thresholds would give."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ..errors import InputError
from .options import common_options, dim_option, print_result, progress_bars


@click.command()
@click.argument("features", type=Path)
@click.option("--labels", type=Path, help="Known people, for F; without them: number of clusters and largest one.")
@click.option("--model", type=Path, help="Model folder; without one, edges are scored by cosine.")
@click.option("--k", type=int, help="Neighbours per face (default: the model's, else 80).")
@click.option("--tau1", default="0.3,0.4,0.5,0.6,0.7,0.8,0.9", show_default=True, help="Thresholds on the score.")
@click.option("--tau2", default="none,0.5,0.6,0.72,0.8,0.9", show_default=True, help="Thresholds on the intimacy.")
@click.option("--aggregate", type=click.Choice(["max", "mean", "min", "jaccard"]), help="Node intimacy.")
@click.option("--edges", type=click.Choice(["directed", "mutual"]), help="What counts as an edge for node intimacy.")
@click.option("--knn-graph", type=Path, help="Ready-made kNN graph (.npz, either layout).")
@click.option("--workdir", type=Path, help="Folder of finished stages, shared with 'starfc cluster'.")
@click.option("-o", "--output", type=Path, help="Picture to draw (.png, .svg or .pdf).")
@dim_option
@common_options
def sweep(
    features: Path, labels: Path | None, tau1: str, tau2: str, output: Path | None, dim: int | None, as_json: bool,
    **settings: Any,  # noqa: ANN401
) -> None:  # fmt: skip
    """Show what other thresholds would give: F with labels, else the number of clusters."""
    from ..atomic import require_picture_ending, require_writable
    from ..features import load_features
    from ..labels import load_labels
    from ..pipeline import cluster as run
    from ..sweep import sweep_thresholds
    from ..threads import limited_threads

    if output is not None:
        require_picture_ending(output)
        require_writable(output)
    grid = {name: _parse_grid(name, text) for name, text in (("tau1", tau1), ("tau2", tau2))}
    rows = load_features(features, dim=dim)
    truth = load_labels(labels, n_expected=len(rows)) if labels else None
    with progress_bars() as bars:
        scorer = None if settings["model"] else "cosine"
        result = run(rows, tau1=grid["tau1"][0], scorer=scorer, progress=bars.report, **settings)
        with limited_threads(settings["threads"]):
            table = sweep_thresholds(result.scored, result.settings, truth=truth, progress=bars.report, **grid)
    if output is not None:
        from ..plots import draw_sweep

        draw_sweep(table, output)
    lines = [f"{'tau1':>7}{'tau2':>7}{'clusters':>10}{'largest':>9}" + (f"{'F':>9}{'BCubed':>9}" if labels else "")]
    for row in table:
        text = "".join(f"{'none' if value is None else f'{value:.3g}':>7}" for value in (row.tau1, row.tau2))
        scores = f"{row.pairwise_f:>9.4f}{row.bcubed_f:>9.4f}" if labels else ""
        lines.append(f"{text}{row.n_clusters:>10}{row.largest:>9}{scores}")
    used = result.settings
    lines.append(
        f"scores: {used.scorer}; {used.aggregate} intimacy on {used.edges} edges; clusters by {used.partition}"
    )
    print_result({"rows": [row.as_dict() for row in table]}, as_json, "\n".join(lines))


def _parse_grid(name: str, text: str) -> list[float | None]:
    """Read a list of thresholds such as 'none,0.5,0.72'."""
    try:
        return [None if part.strip().lower() == "none" else float(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"--{name} ('{text}') must be numbers or 'none', separated by commas") from None
