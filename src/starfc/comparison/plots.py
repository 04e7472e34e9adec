"""Pictures of a benchmark: F and seconds against the number of faces (matplotlib, extra `plots`)."""

from __future__ import annotations

from pathlib import Path

from ..atomic import replacing
from ..plots import import_pyplot
from .run import Row


def draw_growth(rows: list[Row], path: Path, *, against: str) -> None:
    """Draw pairwise F, BCubed F and processor time of every method against `n_test` or `n_train`; time on log axes."""
    pyplot = import_pyplot()
    figure, axes = pyplot.subplots(1, 3, figsize=(17, 5.5), layout="constrained")
    cost = "cpu_s" if against == "n_test" else "train_cpu_s"
    for place, title in enumerate(dict.fromkeys(row.title for row in rows)):
        done = sorted(
            (row for row in rows if row.title == title and row.status == "done"), key=lambda row: getattr(row, against)
        )
        style = {
            "label": title,
            "marker": "os^vD"[place % 5],
            "linestyle": ("-", "--", ":")[place // 10 % 3],
            "markersize": 4,
        }
        sizes = [getattr(row, against) for row in done]
        for axis, kind in zip(axes, ("pairwise", "bcubed"), strict=False):
            axis.plot(sizes, [100 * row.figures[kind]["f"] for row in done], **style)
        spent = [(size, getattr(row, cost)) for size, row in zip(sizes, done, strict=True) if getattr(row, cost)]
        if spent:
            axes[2].plot(*zip(*spent, strict=True), **style)
    faces = "test faces" if against == "n_test" else "training faces"
    for axis, label in zip(
        axes, ("pairwise F", "BCubed F", "clustering, CPU-s" if cost == "cpu_s" else "training, CPU-s"), strict=True
    ):
        axis.set(xlabel=faces, ylabel=label, xscale="log")
        axis.spines[["top", "right"]].set_visible(False)
    axes[2].set_yscale("log")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", frameon=False, fontsize=8)
    with replacing(path) as aside:
        figure.savefig(aside, dpi=110)
    pyplot.close(figure)
