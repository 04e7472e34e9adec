"""`starfc review`: look through a clustering and correct it, on a page in the browser."""

from __future__ import annotations

import sys
import webbrowser
from pathlib import Path
from typing import Any

import click

from .evidence import evidence_options, image_options
from .options import common_options, dim_option, print_result, progress_bars


@click.command()
@click.argument("clusters", type=Path)
@click.option("--features", type=Path, required=True, help="The clustered FEATURES.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port on 127.0.0.1 (default: a free one).")
@click.option("--no-browser", is_flag=True, help="Only print the address.")
@click.option("--traits", type=Path, help="Draw avatars from these numbers (.npy), as 'starfc demo' writes them.")
@image_options
@evidence_options
@dim_option
@common_options
def review(
    clusters: Path, features: Path, port: int, no_browser: bool, images: Path | None, images_root: Path | None,
    traits: Path | None, dim: int | None, as_json: bool, **settings: Any,  # noqa: ANN401
) -> None:  # fmt: skip
    """Look through CLUSTERS and correct them on a page in the browser; corrections are kept beside CLUSTERS."""
    from ..avatars import load_traits
    from ..evidence import describe_misfit, gather_evidence
    from ..features import load_features
    from ..images import load_images
    from ..journal import name_journal
    from ..labels import load_labels
    from ..review.collection import Collection
    from ..review.server import serve
    from ..threads import limited_threads

    rows = load_features(features, dim=dim)
    labels = load_labels(clusters, n_expected=len(rows))
    n_outside = int((labels == -1).sum())
    pictures = load_images(images, n_faces=len(rows), root=images_root) if images else None
    drawn = load_traits(traits, n_faces=len(rows)) if traits else None
    with limited_threads(settings["threads"]):
        with progress_bars() as bars:
            evidence = gather_evidence(rows, progress=bars.report, **settings)
            if misfit := describe_misfit(evidence, labels):
                bars.say(f"note: {misfit}")
            if n_outside:
                bars.say(
                    f"note: {n_outside} faces are labelled -1 in {clusters} (no face, or in no cluster) and are left"
                    " out; the page can make each of them a person"
                )
            collection = Collection(rows, labels, evidence, name_journal(clusters), images=pictures, traits=drawn)
        del evidence

        def announce(url: str) -> None:
            print_result({"url": url, "journal": str(name_journal(clusters))}, as_json, f"review {clusters} at {url}")
            sys.stdout.flush()
            if not no_browser:
                webbrowser.open(url)

        try:
            serve(collection, port=port, seed=settings["seed"], on_ready=announce)
        except KeyboardInterrupt:
            click.echo(f"stopped; every correction is in {name_journal(clusters)}", err=True)
            raise
