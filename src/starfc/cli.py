"""Command line: every command is a thin view of one library call.

Results go to stdout (one JSON object with --json), progress and notes to stderr. Exit codes: 0 done, 1 a stated
error, 2 wrong usage, 130 interrupted. Imports stand inside the commands so that `starfc --help` answers at once.
"""

from __future__ import annotations

import json as json_module
import logging
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from . import __version__
from .errors import InputError, StarfcError

if TYPE_CHECKING:
    from .terminal import ProgressBars

Command = Callable[..., None]
_SHARE = click.FloatRange(0, 1, min_open=True)


def main() -> None:
    """Run the command line and turn every outcome into the contract's exit codes."""
    debug = "--debug" in sys.argv
    try:
        commands(prog_name="starfc", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted; nothing was half-written", err=True)
        sys.exit(130)
    except StarfcError as error:
        _fail(str(error), debug)
    except MemoryError:
        _fail("out of memory; use a smaller k, fewer faces at a time, or a machine with more", debug)
    except Exception as error:
        _fail(f"unexpected {type(error).__name__}: {error}; run again with --debug and report what it shows", debug)


def _fail(sentence: str, debug: bool) -> NoReturn:
    """State the error in one line and exit."""
    if debug:
        traceback.print_exc()
    click.echo(f"error: {' '.join(sentence.splitlines())}", err=True)
    sys.exit(1)


def _common_options(command: Command) -> Command:
    """Add what every command has."""
    for option in (
        click.option("--debug", is_flag=True, expose_value=False, help="Show the traceback of an error."),
        click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout and nothing else."),
        click.option("--threads", type=click.IntRange(min=1), help="Cores to use (default: all)."),
        click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Random seed."),
    ):
        command = option(command)
    return command


def _dim_option(command: Command) -> Command:
    return click.option("--dim", type=int, help="Numbers per row of a headerless .bin file.")(command)


@contextmanager
def _bars() -> Iterator[ProgressBars]:
    """Show progress on stderr and send the library's log there too."""
    from .terminal import ProgressBars

    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    with ProgressBars() as bars:
        yield bars


def _print(figures: dict[str, Any], as_json: bool, sentence: str) -> None:
    click.echo(json_module.dumps(figures) if as_json else sentence)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="starfc")
def commands() -> None:
    """Group face embeddings by person."""


@commands.command()
@click.argument("features", type=Path)
@click.option("-o", "--output", type=Path, required=True, help="Labels: .npy, .csv, .parquet or .meta.")
@click.option("--model", type=Path, help="Model folder; without one, edges are scored by cosine.")
@click.option("--k", type=int, help="Neighbours per face (default: the model's, else 80).")
@click.option("--scorer", type=click.Choice(["gcn", "cosine"]), help="Edge scorer (default: the model's).")
@click.option("--tau1", type=float, help="Keep edges with a score above it (default: the model's, else from the data).")
@click.option("--tau2", type=float, help="Keep edges with a node intimacy above it (default: the model's).")
@click.option("--aggregate", type=click.Choice(["max", "mean", "min", "jaccard"]), help="Node intimacy.")
@click.option("--edges", type=click.Choice(["directed", "mutual"]), help="What counts as an edge for node intimacy.")
@click.option(
    "--partition",
    type=click.Choice(["components", "mapequation", "dynamic"]),
    help="How clusters are read off the graph.",
)
@click.option(
    "--knn",
    type=click.Choice(["exact", "cells", "auto"]),
    default="auto",
    show_default=True,
    help="kNN method.",
)
@click.option("--knn-graph", type=Path, help="Ready-made kNN graph (.npz, either layout).")
@click.option("--recall", type=_SHARE, default=0.95, show_default=True, help="Recall asked of --knn cells.")
@click.option("--workdir", type=Path, help="Folder for finished stages; the same command goes on where it was stopped.")
@click.option("--memory-gb", type=click.FloatRange(min=0, min_open=True), help="Refuse to start if more is needed.")
@_dim_option
@_common_options
def cluster(
    features: Path, output: Path, as_json: bool, dim: int | None, **settings: Any  # noqa: ANN401
) -> None:  # fmt: skip
    """Group FEATURES by person and write one label per face to OUT."""
    from .atomic import require_writable
    from .features import load_features
    from .labels import require_label_ending
    from .pipeline import cluster as run

    require_label_ending(output)
    require_writable(output)
    with _bars() as bars:
        result = run(load_features(features, dim=dim), progress=bars.report, **settings)
        result.save(output)
        for note in result.notes:
            bars.say(f"note: {note}")
    figures = result.summary()
    sentence = (
        f"{figures['n']} faces -> {figures['n_clusters']} clusters ({figures['n_singletons']} of one face, largest"
        f" {figures['largest']}) in {figures['seconds']['total']:.1f} s; labels in {output}"
    )
    _print(figures, as_json, sentence)


@commands.command()
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
@_dim_option
@_common_options
def sweep(
    features: Path, labels: Path | None, tau1: str, tau2: str, output: Path | None, dim: int | None, as_json: bool,
    **settings: Any,  # noqa: ANN401
) -> None:  # fmt: skip
    """Show what other thresholds would give: F with labels, else the number of clusters."""
    from .atomic import require_picture_ending, require_writable
    from .features import load_features
    from .labels import load_labels
    from .pipeline import cluster as run
    from .sweep import sweep_thresholds
    from .threads import limited_threads

    if output is not None:
        require_picture_ending(output)
        require_writable(output)
    grid = {name: _parse_grid(name, text) for name, text in (("tau1", tau1), ("tau2", tau2))}
    rows = load_features(features, dim=dim)
    truth = load_labels(labels, n_expected=len(rows)) if labels else None
    with _bars() as bars:
        result = run(rows, tau1=grid["tau1"][0], progress=bars.report, **settings)
        with limited_threads(settings["threads"]):
            table = sweep_thresholds(result.scored, result.settings, truth=truth, progress=bars.report, **grid)
    if output is not None:
        from .plots import draw_sweep

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
    _print({"rows": [row.as_dict() for row in table]}, as_json, "\n".join(lines))


def _parse_grid(name: str, text: str) -> list[float | None]:
    """Read a list of thresholds such as 'none,0.5,0.72'."""
    try:
        return [None if part.strip().lower() == "none" else float(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"--{name} ('{text}') must be numbers or 'none', separated by commas") from None


@commands.command()
@click.argument("features", type=Path)
@click.argument("labels", type=Path)
@click.option("-o", "--output", type=Path, required=True, help="Model folder to write.")
@click.option(
    "--preset",
    type=click.Choice(["paper", "default"]),
    default="default",
    show_default=True,
    help="Settings.",
)
@click.option("--steps", type=click.IntRange(min=1), help="Optimiser steps (default: the preset's).")
@click.option(
    "--k", type=click.IntRange(min=1), help="Neighbours per face (default: the plan's, or fitted to the data)."
)
@click.option("--plan", type=click.Choice(["ms1m", "webface", "released"]), help="How subgraphs are sampled.")
@click.option("--cluster-randomness/--no-cluster-randomness", default=True, help="CR of the paper.")
@click.option("--sample-randomness/--no-sample-randomness", default=True, help="SR of the paper.")
@click.option("--full-graph", is_flag=True, help="Train on all faces at once, without sampling.")
@click.option("--held-out", type=float, default=0.1, show_default=True, help="Share of the people kept aside.")
@click.option("--workdir", type=Path, help="Folder for checkpoints; the same command goes on where it was stopped.")
@_dim_option
@_common_options
def train(
    features: Path, labels: Path, output: Path, as_json: bool, dim: int | None, **settings: Any  # noqa: ANN401
) -> None:  # fmt: skip
    """Train an edge scorer on FEATURES with known LABELS and write a model folder."""
    from .features import load_features
    from .labels import load_labels
    from .model import require_model_target
    from .training import train as run

    require_model_target(output)
    rows = load_features(features, dim=dim)
    truth = load_labels(labels, n_expected=len(rows))
    with _bars() as bars:
        model = run(rows, truth, progress=bars.report, on_report=lambda report: bars.say(str(report)), **settings)
        model.save(output)
    facts = model.config.training
    _print(facts, as_json, f"model in {output}: tau1 {model.config.tau1:g}, tau2 {model.config.tau2}")


@commands.command()
@click.argument("truth", type=Path)
@click.argument("predicted", type=Path)
@_common_options
def evaluate(truth: Path, predicted: Path, as_json: bool, threads: int | None, seed: int) -> None:
    """Compare PREDICTED labels with TRUTH: pairwise and BCubed precision, recall, F, and NMI."""
    from .labels import load_labels
    from .metrics import evaluate as run

    known = load_labels(truth)
    result = run(known, load_labels(predicted, n_expected=len(known)))
    lines = [f"{'':<9} precision  recall       f"]
    for name, figures in (("pairwise", result.pairwise), ("bcubed", result.bcubed)):
        lines.append(f"{name:<9} {figures.precision:>9.4f} {figures.recall:>7.4f} {figures.f:>7.4f}")
    lines.append(
        f"nmi {result.nmi:.4f}; {result.n_clusters} clusters for {result.n_true} people, {result.n_faces} faces"
    )
    if result.n_unlabelled:
        lines.append(f"{result.n_unlabelled} unlabelled faces were left out")
    if result.n_unassigned:
        lines.append(f"{result.n_unassigned} unassigned faces (-1) count as clusters of their own")
    _print(result.as_dict(), as_json, "\n".join(lines))


@commands.command()
@click.argument("features", type=Path)
@click.option("-o", "--output", type=Path, required=True, help="GRAPH.npz to write.")
@click.option("--k", type=int, default=80, show_default=True, help="Neighbours per face, itself not counted.")
@click.option("--recall", type=_SHARE, default=0.95, show_default=True, help="Recall asked of cells.")
@click.option("--knn", type=click.Choice(["exact", "cells", "auto"]), default="auto", show_default=True, help="Method.")
@_dim_option
@_common_options
def knn(
    features: Path, output: Path, k: int, recall: float, knn: str, dim: int | None, as_json: bool,
    threads: int | None, seed: int,
) -> None:  # fmt: skip
    """Build the kNN graph of FEATURES."""
    import time

    from .atomic import require_writable
    from .features import load_features
    from .knn import build_knn, measure_recall, save_knn
    from .pipeline import peak_rss_gb
    from .threads import limited_threads

    if output.suffix.lower() != ".npz":
        raise InputError(f"output {output} ends in '{output.suffix}'; a kNN graph is written as .npz")
    require_writable(output)
    rows = load_features(features, dim=dim)
    with _bars() as bars, limited_threads(threads):
        started = time.perf_counter()
        rows.check(bars.report)
        graph = build_knn(rows, k=k, method=knn, recall=recall, seed=seed, progress=bars.report)
        seconds = time.perf_counter() - started
        save_knn(graph, output)
        measured, n_sampled = measure_recall(rows, graph, seed=seed)
    figures = {
        "n": len(rows), "k": k, "recall": round(measured, 5), "recall_sample": n_sampled,
        "seconds": round(seconds, 3), "peak_rss_gb": round(peak_rss_gb(), 3),
    }  # fmt: skip
    _print(
        figures,
        as_json,
        f"{k} neighbours of {len(rows)} faces in {seconds:.1f} s, recall {measured:.4f} (sample of {n_sampled})",
    )


@commands.command()
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
@_common_options
def synth(prefix: Path, as_json: bool, threads: int | None, **settings: Any) -> None:  # noqa: ANN401
    """Make face-like vectors with known identities, streamed to disk."""
    from .synth import synthesise
    from .threads import limited_threads

    with _bars() as bars, limited_threads(threads):
        made = synthesise(prefix, progress=bars.report, **settings)
    figures = made.as_dict()
    _print(
        figures,
        as_json,
        f"{figures['n_faces']} faces of {figures['n_people']} people in {figures['features']}, {figures['labels']}",
    )


@commands.command()
@click.argument("source", metavar="IN", type=Path)
@click.argument("target", metavar="OUT", type=Path)
@_dim_option
@_common_options
def convert(source: Path, target: Path, dim: int | None, as_json: bool, threads: int | None, seed: int) -> None:
    """Convert features or labels between all formats; which of the two IN holds is seen from its content."""
    from .convert import convert_file

    with _bars() as bars:
        kind, n_rows = convert_file(source, target, dim=dim, progress=bars.report)
    _print({"kind": kind, "n": n_rows}, as_json, f"{n_rows} rows of {kind} in {target}")


@commands.command("import-checkpoint")
@click.argument("backbone", type=Path)
@click.argument("head", type=Path)
@click.option("-o", "--output", type=Path, required=True, help="Model folder to write.")
@_common_options
def import_checkpoint(
    backbone: Path, head: Path, output: Path, as_json: bool, threads: int | None, seed: int
) -> None:  # fmt: skip
    """Make a model folder from the authors' released BACKBONE.pth and HEAD.pth."""
    from .model import import_checkpoint as run
    from .model import require_model_target

    require_model_target(output)
    model = run(backbone, head)
    model.save(output)
    figures = {"dim": model.config.dim, "hidden": list(model.config.hidden), "k": model.config.k}
    _print(
        figures,
        as_json,
        f"model in {output}: dimension {model.config.dim}, layers {list(model.config.hidden)}",
    )


@commands.command()
@click.option("-o", "--output", type=Path, default=Path("demo"), show_default=True, help="Folder for the results.")
@_common_options
def demo(output: Path, as_json: bool, threads: int | None, seed: int) -> None:
    """Cluster a synthetic collection without labels, train on another, cluster again, and draw the result."""
    from .demo import run_demo

    with _bars() as bars:
        result = run_demo(output, seed=seed, threads=threads, progress=bars.report, say=bars.say)
    _print(result.as_dict(), as_json, result.table())


if __name__ == "__main__":
    main()
