"""`starfc cluster`: group a collection by person."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import OutputError
from .options import MEMORY, SHARE, common_options, dim_option, print_result, progress_bars

if TYPE_CHECKING:
    from ..features import Features
    from ..pipeline import Clusters


@click.command()
@click.argument("features", type=Path)
@click.option("-o", "--output", type=Path, required=True, help="Labels: .npy, .csv, .parquet or .meta.")
@click.option("--model", type=Path, help="Model folder; without one, the shipped relational model scores edges.")
@click.option("--k", type=int, help="Neighbours per face (default: the model's, else from the data).")
@click.option("--scorer", type=click.Choice(["gcn", "relational", "combined", "cosine"]), help="Edge scorer.")
@click.option(
    "--tau1",
    type=float,
    help="Keep edges with a score above it (default: the model's, else .7, of cosines from the data).",
)
@click.option("--tau2", type=float, help="Keep edges with a node intimacy above it (default: the model's).")
@click.option("--aggregate", type=click.Choice(["max", "mean", "min", "jaccard"]), help="Node intimacy.")
@click.option("--edges", type=click.Choice(["directed", "mutual"]), help="What counts as an edge for node intimacy.")
@click.option(
    "--partition",
    type=click.Choice(["components", "mapequation", "refined", "dynamic"]),
    help="How clusters are read off the graph.",
)
@click.option(
    "--knn",
    type=click.Choice(["exact", "cells", "auto"]),
    default="auto",
    show_default=True,
    help="kNN method.",
)
@click.option(
    "--prefer",
    type=click.Choice(["precision", "balanced", "recall"]),
    help="Which mistakes weigh more: strangers together, or one person apart (default: balanced).",
)
@click.option("--constraints", type=Path, help="Corrections to honour, as 'starfc export' writes them.")
@click.option("--report", type=Path, help="Also write a report.html.")
@click.option("--details", type=Path, help="Also write confidence and cohesion, a line per face: .csv, .parquet.")
@click.option("--knn-graph", type=Path, help="Ready-made kNN graph (.npz, either layout).")
@click.option("--recall", type=SHARE, default=0.95, show_default=True, help="Recall asked of --knn cells.")
@click.option("--workdir", type=Path, help="Folder for finished stages; the same command goes on where it was stopped.")
@click.option("--memory-gb", type=MEMORY, help="Memory to keep to (default: 80 % of what is free).")
@dim_option
@common_options
def cluster(
    features: Path, output: Path, report: Path | None, details: Path | None, as_json: bool, dim: int | None,
    **settings: Any,  # noqa: ANN401
) -> None:  # fmt: skip
    """Group FEATURES by person and write one label per face to OUT."""
    from ..atomic import remove_leftovers_of, require_apart, require_writable
    from ..features import load_features
    from ..labels import require_label_ending
    from ..pipeline import cluster as run

    require_label_ending(output)
    require_writable(output)
    inputs = features, settings["knn_graph"], settings["constraints"]
    require_apart(output, *inputs)
    _require_free(output, corrected=settings["constraints"] is not None)
    remove_leftovers_of(output)
    if report is not None:
        require_writable(report)
        require_apart(report, output, *inputs)
    if details is not None:
        from ..details import require_ending

        require_ending(details)
        require_writable(details)
        require_apart(details, output, report, *inputs)
    with progress_bars() as bars:
        rows = load_features(features, dim=dim)
        result = run(rows, progress=bars.report, say=bars.say, beside=output, **settings)
        result.save(output)
        if result.constraints is not None:
            from ..export import carry_over

            aside = carry_over(result.constraints, result.labels, output, source=settings["constraints"].name)
            if aside is not None:
                bars.say(f"note: the corrections of the labels that were in {output} are kept in {aside}")
        if report is not None:
            from ..evidence import take_evidence
            from ..report import write_report

            evidence = take_evidence(result, rows, seed=settings["seed"])
            write_report(result.labels, report, features=rows, evidence=evidence, title=output.name)
        if details is not None:
            from ..details import write_details

            lowest = -1.0 if result.settings.tau1 is None else result.settings.tau1
            write_details(result.labels, rows, result.scored, details, tau1=lowest)
        figures = result.summary() | judge_result(result, rows, settings["seed"])
        for line in list_remarks(result, figures):
            bars.say(line)
    sentence = (
        f"{figures['n']} faces -> {figures['n_clusters']} clusters ({figures['n_singletons']} of one face, largest"
        f" {figures['largest']}) in {figures['seconds']['total']:.1f} s; labels in {output}"
    )
    print_result(figures, as_json, sentence)


def judge_result(result: Clusters, rows: Features, seed: int) -> dict[str, Any]:
    """Return what looks wrong with a result and, where scores are probabilities, how sure it is of itself."""
    from ..guardrails import find_warnings, measure_sureness
    from ..relational_model import SCORERS as RELATIONAL

    by_relations = result.settings.scorer in RELATIONAL
    warnings = find_warnings(rows, result.labels, result.scored, by_relations=by_relations, seed=seed)
    judged: dict[str, Any] = {"warnings": warnings}
    if by_relations:
        judged["sureness"] = asdict(measure_sureness(result.labels, result.scored))
    return judged


def list_remarks(result: Clusters, figures: dict[str, Any]) -> list[str]:
    """Return what the user should know beside the figures."""
    from ..guardrails import Sureness

    notes = list(result.notes)
    if "sureness" in figures:
        notes.append(Sureness(**figures["sureness"]).describe())
    return [f"note: {note}" for note in notes] + [f"warning: {warning}" for warning in figures["warnings"]]


def _require_free(output: Path, *, corrected: bool) -> None:
    """Refuse to overwrite labels that somebody has corrected or reviews now: the journal would be of no use."""
    from ..journal import count_actions, name_journal, require_closed

    journal = name_journal(output)
    if corrected:  # what was told before goes on in a new journal
        require_closed(journal)
    elif n_actions := count_actions(journal):
        raise OutputError(
            f"{output} was corrected ({n_actions} actions in {journal.name}, which need these labels);"
            " choose another -o, or keep them by 'starfc export --constraints FILE' and 'cluster --constraints FILE'"
        )
