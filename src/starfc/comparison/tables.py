"""Tables: the rows of a benchmark as markdown, csv and json.

In: rows. Out: NAME.md (what people read), NAME.csv (a line per row), NAME.json (everything, with the settings used).
F and the like are in percent in the markdown, as in the papers, and fractions of 1 elsewhere.
"""

from __future__ import annotations

import csv
import io
import json
import platform
from pathlib import Path
from typing import Any

from .. import __version__
from ..atomic import replacing, write_json
from .run import Options, Row


def save_tables(folder: Path, name: str, rows: list[Row], options: Options, command: str) -> str:
    """Write the three files and return the markdown."""
    text = f"`{command}`\n\n{_format_rows(name, rows)}"
    _write(folder / f"{name}.md", text)
    _write(folder / f"{name}.csv", _format_csv(rows))
    facts = {
        "command": command,
        "starfc": __version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
    }
    write_json(
        folder / f"{name}.json",
        facts | {"options": json.loads(json.dumps(options.__dict__)), "rows": [row.as_dict() for row in rows]},
    )
    return text


def _format_rows(name: str, rows: list[Row]) -> str:
    """Format the table that suits the benchmark."""
    if name == "table":
        return format_table(rows)
    return format_grid(rows, column="test" if name == "scale" else "train")


def format_table(rows: list[Row]) -> str:
    """Return a markdown table with everything about one training and one test part.

    >>> print(format_table([]))
    | method | labels | P | R | F | P (BCubed) | R | F | NMI | clusters | alone | training, CPU-s | s | CPU-s | GB |
    |---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|
    """
    beside = any(row.paper for row in rows)
    head = [
        "method",
        "labels",
        "P",
        "R",
        "F",
        "P (BCubed)",
        "R",
        "F",
        "NMI",
        "clusters",
        "alone",
        "training, CPU-s",
        "s",
        "CPU-s",
        "GB",
    ]
    lines = [head + ["the paper's F"] * beside]
    for row in rows:
        cells = [row.title, "yes" if row.trained else "no", *_list_scores(row), *_list_costs(row)]
        lines.append(cells + [_format_published(row)] * beside)
    return format_markdown(lines)


def format_grid(rows: list[Row], *, column: str) -> str:
    """Return a markdown table with a column for each test (or training) part: F pairwise / BCubed, seconds."""
    size = "n_test" if column == "test" else "n_train"
    parts = list(dict.fromkeys((getattr(row, column), getattr(row, size)) for row in rows))
    lines = [["method", *(f"{n:,} faces" for _, n in parts)]]
    for title in dict.fromkeys(row.title for row in rows):
        cells = [title]
        for part in parts:
            row = next(row for row in rows if row.title == title and (getattr(row, column), getattr(row, size)) == part)
            cells.append(_format_cell(row))
        lines.append(cells)
    return format_markdown(lines)


def _format_cell(row: Row) -> str:
    """Return F pairwise / BCubed and the seconds of clustering, or what went wrong."""
    if row.status != "done":
        return row.status
    pairwise, bcubed = row.figures["pairwise"], row.figures["bcubed"]
    spent = f"{row.seconds:.1f} s" if row.cpu_s is None else f"{row.cpu_s:.1f} CPU-s"
    return f"{100 * pairwise['f']:.2f} / {100 * bcubed['f']:.2f} ({spent})"


def _list_scores(row: Row) -> list[str]:
    """Return the cells from precision to the singletons; the first says what went wrong if something did."""
    if row.status != "done":
        return [row.status, *[""] * 8]
    scores = [row.figures[kind][name] for kind in ("pairwise", "bcubed") for name in ("precision", "recall", "f")]
    percents = [f"{100 * score:.2f}" for score in (*scores, row.figures["nmi"])]
    return [*percents, f"{row.figures['n_clusters']:,}", f"{row.figures['n_singletons']:,}"]


def _list_costs(row: Row) -> list[str]:
    """Return the cells of seconds and memory."""
    costs = ((row.train_cpu_s, ".0f"), (row.seconds, ".1f"), (row.cpu_s, ".1f"), (row.peak_rss_gb, ".2f"))
    return ["" if value is None else format(value, form) for value, form in costs]


def _format_published(row: Row) -> str:
    """Return the paper's pairwise and BCubed F."""
    if row.paper is None:
        return ""
    return " / ".join("-" if value is None else f"{value:.2f}" for value in row.paper)


def format_markdown(lines: list[list[str]]) -> str:
    """Join cells; the first line is the head."""
    formatted = ["| " + " | ".join(cells) + " |" for cells in lines]
    return "\n".join([formatted[0], "|" + "---|" * len(lines[0]), *formatted[1:]])


def _format_csv(rows: list[Row]) -> str:
    """Return a line per row with plain numbers."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, fieldnames=_COLUMNS, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        flat: dict[str, Any] = {name: value for name, value in row.as_dict().items() if name in _COLUMNS}
        for kind in ("pairwise", "bcubed"):
            flat |= {f"{kind}_{name}": value for name, value in row.figures.get(kind, {}).items()}
        flat |= {name: value for name, value in row.figures.items() if name in _COLUMNS}
        flat["paper_pairwise_f"], flat["paper_bcubed_f"] = row.paper or (None, None)
        writer.writerow(flat | {"settings": json.dumps(row.settings)})
    return stream.getvalue()


_COLUMNS = (
    "method", "trained", "train", "test", "n_train", "n_test", "status", "pairwise_precision", "pairwise_recall",
    "pairwise_f", "bcubed_precision", "bcubed_recall", "bcubed_f", "nmi", "n_clusters", "n_true", "n_singletons",
    "largest", "train_s", "train_cpu_s", "seconds", "cpu_s", "peak_rss_gb", "paper_pairwise_f", "paper_bcubed_f",
    "settings",
)  # fmt: skip


def _write(path: Path, text: str) -> None:
    """Write a text file, whole or not at all."""
    with replacing(path) as aside:
        aside.write_text(text if text.endswith("\n") else text + "\n", encoding="utf-8")
