"""`starfc export`: a corrected clustering in other forms."""

from __future__ import annotations

from pathlib import Path

import click

from ..errors import InputError
from .evidence import image_options
from .options import common_options, print_result


@click.command()
@click.argument("clusters", type=Path)
@click.option("-o", "--output", type=Path, help="Corrected labels: .npy, .csv, .parquet or .meta.")
@click.option("--folders", type=Path, help="One folder per person with links to their pictures (needs --images).")
@click.option("--copy", is_flag=True, help="Copies in place of links.")
@click.option("--fiftyone", type=Path, help="FiftyOne image classification, .json (needs --images).")
@click.option("--constraints", type=Path, help="Corrections as constraints for 'starfc cluster --constraints', .json.")
@image_options
@common_options
def export(
    clusters: Path, output: Path | None, folders: Path | None, copy: bool, fiftyone: Path | None,
    constraints: Path | None, images: Path | None, images_root: Path | None, as_json: bool, threads: int | None,
    seed: int,
) -> None:  # fmt: skip
    """Write CLUSTERS as corrected by 'starfc review': labels, folders, FiftyOne, constraints."""
    from ..constraints import save_constraints
    from ..export import export_fiftyone, export_folders, final_labels, make_constraints
    from ..images import load_images
    from ..journal import name_journal, read_book
    from ..labels import load_labels, save_labels

    if not any((output, folders, fiftyone, constraints)):
        raise click.UsageError("say what to write: -o, --folders, --fiftyone or --constraints")
    if (folders or fiftyone) and not images:
        raise InputError("--folders and --fiftyone need the pictures; pass --images")
    found = load_labels(clusters)
    book = read_book(name_journal(clusters), found)
    labels = final_labels(book)
    figures: dict[str, int] = {"n": len(labels), "n_clusters": len(set(labels[labels >= 0].tolist()))}
    if output:
        save_labels(labels, output)
    if images:
        pictures = load_images(images, n_faces=len(labels), root=images_root)
        if folders:
            figures["n_pictures"] = export_folders(book, pictures, folders, copy=copy)
        if fiftyone:
            figures["n_fiftyone"] = export_fiftyone(book, pictures, fiftyone)
    if constraints:
        told = make_constraints(book)
        save_constraints(told, constraints)
        figures |= {"n_must": len(told.must), "n_cannot": len(told.cannot), "n_not_faces": len(told.not_faces)}
    written = ", ".join(str(path) for path in (output, folders, fiftyone, constraints) if path)
    print_result(figures, as_json, f"{figures['n']} faces of {figures['n_clusters']} people in {written}")
