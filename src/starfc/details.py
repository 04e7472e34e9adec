"""Details: how far each face and each cluster of a result can be trusted, as a table.

In: Features, labels (n,), ScoredEdges. Out: a `.csv` or `.parquet` with a line per face,

    row, label, size, confidence, cohesion:

the size of its cluster; how much better the face fits there than anywhere else, 0 to 1; and the mean cosine of two
faces of the cluster, empty for a face alone (`quality.py` has both formulas). Confidence is of the face, cohesion of
the cluster: two compact people in one cluster are confident faces in a loose cluster. Costs two passes over the rows.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .atomic import replacing
from .errors import InputError
from .features import Features, import_parquet
from .quality import group_faces, measure_confidence, measure_shapes
from .score import ScoredEdges

ENDINGS = (".csv", ".parquet")


def write_details(
    labels: NDArray[np.int64], features: Features, scored: ScoredEdges, path: str | Path, *, tau1: float
) -> None:
    r"""Write the table, whole or not at all.

    Parameters
    ----------
    labels : int64 (n,)
        -1 counts as a face alone.
    features : Features
        (n, d).
    scored : ScoredEdges
        (n, k), what the labels were read off from.
    path : path
        `.csv` or `.parquet`.
    tau1 : float
        What a face that is alone has been measured by.

    Examples
    --------
    >>> faces = Features(np.array([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]]))
    >>> scored = ScoredEdges(np.array([[1, 2], [0, 2], [1, 0]], np.int32),
    ...                      np.array([[0.8, 0.4], [0.8, 0.6], [0.6, 0.4]], np.float32))
    >>> path = getfixture("tmp_path") / "details.csv"
    >>> write_details(np.array([0, 0, 1]), faces, scored, path, tau1=0.5)
    >>> print(path.read_text(), end="")
    row,label,size,confidence,cohesion
    0,0,2,0.9997,0.6000
    1,0,2,0.9820,0.6000
    2,1,1,0.1192,
    """
    path = Path(path)
    require_ending(path)
    groups = group_faces(labels)
    columns: dict[str, NDArray[Any]] = {
        "row": np.arange(len(labels)),
        "label": labels,
        "size": groups.sizes[groups.codes],
        "confidence": measure_confidence(scored, groups, tau1=tau1),
        "cohesion": measure_shapes(features, groups).cohesion[groups.codes],
    }
    with replacing(path) as aside:
        write = _write_csv if path.suffix.lower() == ".csv" else _write_parquet
        write(aside, columns)


def require_ending(path: Path) -> None:
    """Refuse a file name of another kind before any work is done for it."""
    if path.suffix.lower() not in ENDINGS:
        raise InputError(f"details {path} ends in '{path.suffix}'; they are written as one of {', '.join(ENDINGS)}")


def _write_csv(aside: Path, columns: dict[str, NDArray[Any]]) -> None:
    with aside.open("w", encoding="utf-8") as file:
        file.write(",".join(columns) + "\n")
        for row, label, size, sure, tight in zip(*(values.tolist() for values in columns.values()), strict=True):
            file.write(f"{row},{label},{size},{sure:.4f},{'' if size == 1 else format(tight, '.4f')}\n")


def _write_parquet(aside: Path, columns: dict[str, NDArray[Any]]) -> None:
    parquet = import_parquet()
    import pyarrow as arrow

    cohesion = arrow.array(columns["cohesion"], mask=columns["size"] == 1)
    parquet.write_table(arrow.table(columns | {"cohesion": cohesion}), aside)
