"""Plots: pictures of a clustering, for people to look at (matplotlib, extra `plots`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .atomic import replacing
from .errors import MissingExtraError
from .prune import EdgeGraph, parse_edges
from .score import ScoredEdges
from .sweep import SweepRow

_SHOWN_PEOPLE = 48


def draw_comparison(
    truth: NDArray[np.int64],
    results: dict[str, NDArray[np.int64]],
    scores: dict[str, tuple[ScoredEdges, float | None]],
    path: str | Path,
) -> None:
    """Draw how each result splits and mixes the same people, and the score distributions it came from.

    Upper row: one bar per person, cut where the person is split; a segment is grey if its cluster holds only that
    person, red if the cluster mixes people. Lower row: scores of edges within and between people, with tau_1.

    Parameters
    ----------
    truth : int64 (n,)
    results : dict of name -> labels (n,)
    scores : dict of the same names -> (ScoredEdges, tau_1)
    path : str or Path
        `.png`, `.svg` or `.pdf`.
    """
    pyplot = import_pyplot()
    figure, axes = pyplot.subplots(
        2, len(results), figsize=(6.5 * len(results), 9), squeeze=False, height_ratios=(2.2, 1), layout="constrained"
    )
    for column, (name, labels) in enumerate(results.items()):
        _draw_people(axes[0, column], truth, labels, name)
        _draw_scores(axes[1, column], truth, *scores[name])
    with replacing(Path(path)) as aside:
        figure.savefig(aside, dpi=110)
    pyplot.close(figure)


def draw_sweep(table: list[SweepRow], path: str | Path) -> None:
    """Draw pairwise F (without labels: the number of clusters) over tau_1 and tau_2, the paper's threshold figure."""
    pyplot = import_pyplot()
    tau1 = list(dict.fromkeys(row.tau1 for row in table))
    tau2 = list(dict.fromkeys(row.tau2 for row in table))
    labelled = table[0].pairwise_f is not None
    values = np.array([row.pairwise_f if labelled else row.n_clusters for row in table], dtype=np.float64)
    figure, axis = pyplot.subplots(figsize=(1.5 + 0.7 * len(tau2), 1.5 + 0.5 * len(tau1)), layout="constrained")
    image = axis.imshow(values.reshape(len(tau1), len(tau2)), cmap="viridis", aspect="auto")
    for place, value in enumerate(values):
        text = f"{value:.3f}" if labelled else f"{value:.0f}"
        axis.text(place % len(tau2), place // len(tau2), text, ha="center", va="center", color="white", fontsize=7)
    axis.set_xticks(range(len(tau2)), ["none" if value is None else f"{value:g}" for value in tau2])
    axis.set_yticks(range(len(tau1)), ["none" if value is None else f"{value:.3g}" for value in tau1])
    axis.set(xlabel="$\\tau_2$ (node intimacy)", ylabel="$\\tau_1$ (edge score)")
    figure.colorbar(image, label="pairwise F" if labelled else "clusters")
    with replacing(Path(path)) as aside:
        figure.savefig(aside, dpi=110)
    pyplot.close(figure)


def import_pyplot() -> Any:  # noqa: ANN401
    """Import matplotlib for drawing to files, or say how to install it."""
    try:
        import matplotlib
    except ImportError:
        raise MissingExtraError("matplotlib", "plots", "drawing") from None
    matplotlib.use("agg")
    import matplotlib.pyplot

    return matplotlib.pyplot


def _draw_people(axis: Any, truth: NDArray[np.int64], labels: NDArray[np.int64], name: str) -> None:  # noqa: ANN401
    """Draw a bar per person, the people with most faces first, in segments of one cluster each."""
    known = truth >= 0
    people, counts = np.unique(truth[known], return_counts=True)
    shown = people[np.argsort(-counts, kind="stable")][:_SHOWN_PEOPLE]
    mixed = _find_mixed(truth, labels)
    for place, person in enumerate(shown):
        clusters, sizes = np.unique(labels[truth == person], return_counts=True)
        order = np.argsort(-sizes, kind="stable")
        left = 0
        for cluster, size in zip(clusters[order], sizes[order], strict=True):
            colour = "#d1495b" if mixed[cluster] else "#8d99ae"
            axis.barh(place, size, left=left, height=0.78, color=colour, edgecolor="white", linewidth=0.6)
            left += size
    axis.set(title=name, xlabel="faces of a person, cut where split; red: the cluster mixes people", ylabel="people")
    axis.invert_yaxis()
    axis.set_yticks([])
    axis.spines[["top", "right", "left"]].set_visible(False)


def _find_mixed(truth: NDArray[np.int64], labels: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Tell, for every cluster, whether it holds more than one person."""
    known = truth >= 0
    pairs = np.unique(np.column_stack([labels[known], truth[known]]), axis=0)
    return np.asarray(np.bincount(pairs[:, 0], minlength=int(labels.max()) + 1) > 1)


def _draw_scores(axis: Any, truth: NDArray[np.int64], scored: ScoredEdges, tau1: float | None) -> None:  # noqa: ANN401
    """Draw the distribution of edge scores within and between people (the paper's score figure)."""
    graph: EdgeGraph = parse_edges(scored, None)
    sources = np.repeat(truth, np.diff(graph.offsets))
    known = (sources >= 0) & (truth[graph.targets] >= 0)
    same = known & (sources == truth[graph.targets])
    bins = np.linspace(min(0.0, float(graph.scores.min())), 1.0, 51)
    axis.hist(graph.scores[same], bins=bins, color="#2a9d8f", alpha=0.75, label="same person")
    axis.hist(graph.scores[known & ~same], bins=bins, color="#e76f51", alpha=0.75, label="different people")
    if tau1 is not None:
        axis.axvline(tau1, color="black", linewidth=1, linestyle="--", label=f"$\\tau_1$ = {tau1:.2f}")
    axis.set(xlabel="edge score", ylabel="edges")
    axis.legend(frameon=False)
    axis.spines[["top", "right"]].set_visible(False)
