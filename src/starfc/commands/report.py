"""`starfc report`: one HTML file about a clustering."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .evidence import evidence_options, image_options
from .options import common_options, dim_option, print_result, progress_bars


@click.command()
@click.argument("clusters", type=Path)
@click.option("-o", "--output", type=Path, required=True, help="The report, .html.")
@click.option("--features", type=Path, help="The clustered FEATURES; without them the report shows sizes only.")
@click.option("--labels", type=Path, help="Known people, for metrics and the worst errors.")
@click.option("--traits", type=Path, help="Draw avatars from these numbers (.npy), as 'starfc demo' writes them.")
@click.option("--title", help="Heading of the report (default: the name of CLUSTERS).")
@image_options
@evidence_options
@dim_option
@common_options
def report(
    clusters: Path, output: Path, features: Path | None, labels: Path | None, traits: Path | None,
    title: str | None, images: Path | None, images_root: Path | None, dim: int | None, as_json: bool, **settings: Any,  # noqa: ANN401
) -> None:  # fmt: skip
    """Write one self-contained HTML file that shows CLUSTERS, corrections included."""
    from ..atomic import require_writable
    from ..avatars import load_traits
    from ..errors import OutputError
    from ..evidence import describe_misfit, gather_evidence
    from ..export import final_labels
    from ..features import load_features
    from ..images import load_images
    from ..journal import name_journal, read_book
    from ..labels import load_labels
    from ..report import write_report

    if output.suffix.lower() not in (".html", ".htm"):
        raise OutputError(f"output {output} ends in '{output.suffix}'; a report is .html")
    require_writable(output)
    rows = load_features(features, dim=dim) if features else None
    found = load_labels(clusters, n_expected=len(rows) if rows is not None else None)
    found = final_labels(read_book(name_journal(clusters), found))
    truth = load_labels(labels, n_expected=len(found)) if labels else None
    pictures = load_images(images, n_faces=len(found), root=images_root) if images else None
    drawn = load_traits(traits, n_faces=len(found)) if traits else None
    with progress_bars() as bars:
        evidence = gather_evidence(rows, progress=bars.report, **settings) if rows is not None else None
        if evidence is not None and (misfit := describe_misfit(evidence, found)):
            bars.say(f"note: {misfit}")
        figures = write_report(
            found, output, features=rows, evidence=evidence, images=pictures, traits=drawn, truth=truth,
            title=title or clusters.name, seed=settings["seed"], progress=bars.report,
        )  # fmt: skip
    print_result(
        figures,
        as_json,
        f"{figures['n']} faces in {figures['n_clusters']} clusters ({figures['n_singletons']} of one face"
        f"{f', {n_left} left out' if (n_left := figures['n_left_out']) else ''}); report in {output}",
    )
