"""kNN graph: the k most similar other faces of every face.

In: Features, or a file. Out: KnnGraph, the pattern every later stage works on. Similarity is the cosine. Either way of
building it gives the same bits whatever the threads, blocks or memory: `exact` compares all pairs (exact.py), at a cost
of n^2; `cells` compares near ones (cellknn.py), at a cost that grows little faster than n, and finds the share of the
true neighbours that was asked for.
"""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import __version__
from .atomic import replacing
from .cellknn import BITS, find_neighbors
from .errors import InputError
from .exact import EQUAL_WITHIN, join_exactly, search_rows
from .features import Features, npz_names, open_npz_array
from .progress import Progress, silent
from .scratch import Scratch
from .selection import mark_others
from .steps import Steps
from .tiles import run_tiles

METHODS = ("auto", "exact", "cells")
_EXACT_UP_TO = 24_000  # rows up to which all pairs are faster than cells (measured, d = 256)
_FEWEST_FOR_CELLS = 2_048  # fewer rows are joined exactly whatever was asked
_COMPARED_ROWS = 200  # of a ready-made graph, with the features
_COMPARED_EDGES = 8192  # compared anew at once, by each thread
COMPARED_BITS = 1  # counted up when a change of that changes similarities: kept ones are made anew
_SAME_WITHIN = 0.05  # similarities may have been rounded, or be of features before they were


@dataclass(frozen=True)
class KnnGraph:
    """Neighbours of every face, best first.

    Attributes
    ----------
    neighbors : int32 (n, k)
        Row numbers of the neighbours, never the row itself; -1 where a row has fewer than k.
    similarities : float32 (n, k)
        Cosines with them, descending, ties by id; 0 where the neighbour is -1. Of an approximate graph they are those
        of rows in half precision, good to about 1e-4.
    order : int32 (n,), optional
        Rows in an order in which neighbours stand near each other, for stages that gather rows.
    """

    neighbors: NDArray[np.int32]
    similarities: NDArray[np.float32]
    order: NDArray[np.int32] | None = None

    def __post_init__(self) -> None:
        if self.neighbors.ndim != 2 or self.neighbors.shape != self.similarities.shape:
            raise InputError(
                f"a kNN graph needs neighbors and similarities of one shape (n, k), "
                f"not {self.neighbors.shape} and {self.similarities.shape}"
            )

    @property
    def n(self) -> int:
        """Number of faces."""
        return int(self.neighbors.shape[0])

    @property
    def k(self) -> int:
        """Neighbours per face."""
        return int(self.neighbors.shape[1])


def build_knn(
    features: Features,
    *,
    k: int,
    method: str = "auto",
    recall: float = 0.95,
    seed: int = 0,
    folder: Path | None = None,
    facts: dict[str, Any] | None = None,
    memory: int | None = None,
    progress: Progress = silent,
) -> KnnGraph:
    """Find the k most similar other rows of every row.

    Parameters
    ----------
    features : Features
        (n, d) vectors.
    k : int
        Neighbours per row, smaller than n.
    method : {"auto", "exact", "cells"}
        All pairs, or only pairs of near cells; "auto" takes the faster. A few thousand rows are always joined exactly.
    recall : float
        Share of the true neighbours that "cells" must find.
    seed : int
        Of the random choices of "cells".
    folder : Path, optional
        Where "cells" keeps its arrays as files, so that the same call goes on where a killed one stopped.
    facts : dict, optional
        What the result depends on beside these arguments, such as a digest of the features; needed with `folder`.
    memory : int, optional
        Bytes beyond which "cells" lets go of the pages of those files.
    progress : callable
        Called as ``progress("knn", done, total)``.

    Returns
    -------
    KnnGraph
        (n, k); the same bits for the same seed on any number of threads.

    Examples
    --------
    >>> faces = Features(np.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]]))
    >>> build_knn(faces, k=1).neighbors.ravel()
    array([1, 0, 3, 2], dtype=int32)
    """
    if method not in METHODS:
        raise InputError(f"method ({method!r}) must be one of {', '.join(METHODS)}")
    require_k(k, len(features))
    if not 0 < recall <= 1:
        raise InputError(f"recall ({recall}) must be above 0 and at most 1, the share of neighbours to find")
    if prefers_cells(method, len(features), k, recall):
        wanted = (facts or {}) | {"n": len(features), "dim": features.dim, "k": k, "recall": recall, "seed": seed}
        steps = Steps(folder, wanted | {"starfc": __version__, "cells": BITS}, memory, progress)
        graph = KnnGraph(*find_neighbors(features, k, recall=recall, seed=seed, steps=steps))
        steps.let_go()
        return graph
    return KnnGraph(*join_exactly(features.read, len(features), features.dim, k, progress))


def prefers_cells(method: str, n: int, k: int, recall: float) -> bool:
    """Say whether cells are wanted and are not most of the collection anyway."""
    if recall == 1 or n < max(_FEWEST_FOR_CELLS, 8 * k):
        return False
    return method == "cells" or (method == "auto" and n > _EXACT_UP_TO)


def join_rows(rows: NDArray[np.float32], k: int, progress: Progress = silent) -> KnnGraph:
    """Find the exact k nearest other rows of every row of an array of unit rows in memory.

    Parameters
    ----------
    rows : float32 (n, d)
        Rows of length one.
    k : int
        Neighbours per row, smaller than n.
    progress : callable
        Called as ``progress("knn", done, total)``.

    Returns
    -------
    KnnGraph
        (n, k).

    Examples
    --------
    >>> graph = join_rows(np.array([[1, 0], [0.8, 0.6], [0, 1]], dtype=np.float32), 1)
    >>> graph.neighbors.ravel(), graph.similarities.ravel()
    (array([1, 0, 1], dtype=int32), array([0.8, 0.8, 0.6], dtype=float32))
    """
    if rows.ndim != 2 or rows.shape[1] == 0:
        raise InputError(f"rows have shape {rows.shape}; they must be two-dimensional, one row per face")
    require_k(k, len(rows))
    floats = np.asarray(rows, dtype=np.float32)
    n, dim = floats.shape
    return KnnGraph(*join_exactly(lambda start, stop: floats[start:stop], n, dim, k, progress))


def measure_recall(
    features: Features, graph: KnnGraph, *, n_queries: int = 1000, seed: int = 0, progress: Progress = silent
) -> tuple[float, int]:
    """Measure the share of true neighbours that a graph has found, on a sample of rows against all pairs.

    Ties with the k-th similarity count as found whichever of them the graph holds.

    Parameters
    ----------
    features : Features
        (n, d), the rows the graph was built from.
    graph : KnnGraph
        (n, k).
    n_queries : int
        Rows sampled; all of them if there are fewer.
    seed : int
        Which rows.
    progress : callable
        Called as ``progress("recall", done, total)``.

    Returns
    -------
    recall : float
    n_sampled : int

    Examples
    --------
    >>> faces = Features(np.random.default_rng(0).normal(size=(50, 4)))
    >>> measure_recall(faces, build_knn(faces, k=5))
    (1.0, 50)
    """
    n, k = graph.neighbors.shape
    drawn = np.sort(np.random.default_rng((seed, 5)).choice(n, size=min(n, n_queries), replace=False))

    def read(start: int, stop: int) -> NDArray[np.float32]:
        progress("recall", start, n)
        return features.read(start, stop)

    found, similarities = search_rows(features.take(drawn), n, k + 1, read)  # a query finds itself too
    progress("recall", n, n)
    # A query that is pushed out by more than k copies of itself may drop any one of them.
    worst = similarities[mark_others(found, drawn)].reshape(len(drawn), k)[:, -1] - EQUAL_WITHIN
    # The listed neighbours are compared anew: what a graph says of their similarity proves nothing.
    n_found = 0
    for row, listed, least in zip(drawn, graph.neighbors[drawn], worst, strict=True):
        rows = features.take(np.append(listed[listed >= 0], row))
        n_found += int((rows[:-1] @ rows[-1] >= least).sum())
    return n_found / (len(drawn) * k), len(drawn)


def require_same_faces(features: Features, graph: KnnGraph) -> None:
    """Refuse a ready-made graph of other faces: some rows and their first neighbours are compared anew."""
    if graph.n != len(features):
        raise InputError(f"the kNN graph has {graph.n} rows for {len(features)} faces; build it from these features")
    rows = np.unique(np.linspace(0, graph.n - 1, _COMPARED_ROWS).astype(np.int64))
    first = np.asarray(graph.neighbors[rows, 0]).astype(np.int64)
    rows, first = rows[first >= 0], first[first >= 0]
    if len(rows) == 0:
        return
    measured = np.einsum("nd,nd->n", features.take(rows), features.take(first))
    apart = float(np.median(np.abs(measured - graph.similarities[rows, 0])))
    if apart > _SAME_WITHIN:
        raise InputError(
            f"the kNN graph's similarities differ from those of the features by {apart:.2f} (half of {len(rows)} rows"
            " by more): it is of other faces or in another order; build it from these features"
        )


def compare_anew(
    features: Features, graph: KnnGraph, *, scratch: Scratch | None = None, progress: Progress = silent
) -> KnnGraph:
    """Return the same edges with the similarities that they have by other features of the same faces, best first.

    Parameters
    ----------
    features : Features
        (n, d).
    graph : KnnGraph
        (n, k).
    scratch : Scratch, optional
        Where the lists are kept; in memory by default.
    progress : callable
        Called as ``progress("compare", done, total)``.

    Returns
    -------
    KnnGraph
        (n, k).

    Examples
    --------
    >>> before = KnnGraph(np.array([[1, 2], [0, 2], [1, -1]], np.int32), np.zeros((3, 2), np.float32))
    >>> compare_anew(Features(np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])), before).neighbors.tolist()
    [[2, 1], [0, 2], [1, -1]]
    """
    place = scratch or Scratch()
    neighbors = place.array("neighbors", graph.neighbors.shape, np.int32)
    similarities = place.array("similarities", graph.neighbors.shape, np.float32)

    def compare(start: int, stop: int) -> None:
        listed = np.asarray(graph.neighbors[start:stop])
        others = features.take(np.maximum(listed, 0).ravel()).reshape(*listed.shape, -1)
        found = np.einsum("nd,nkd->nk", features.read(start, stop), others)
        found[listed < 0] = -np.inf
        order = np.lexsort((listed, -found))
        ranked = np.take_along_axis(found, order, axis=1)
        neighbors[start:stop] = np.take_along_axis(listed, order, axis=1)
        similarities[start:stop] = np.where(np.isneginf(ranked), 0, ranked)

    run_tiles(graph.n, max(1, _COMPARED_EDGES // graph.k), compare, "compare", progress, place.relieve)
    return KnnGraph(neighbors, similarities, graph.order)


def require_k(k: int, n: int) -> None:
    """Refuse a number of neighbours that n rows cannot have."""
    if n < 2:
        raise InputError(f"a kNN graph needs at least 2 vectors, not {n}")
    if k < 1:
        raise InputError(f"k ({k}) must be at least 1")
    if k >= n:
        raise InputError(f"k ({k}) must be smaller than the number of vectors ({n}); pass k={n - 1} or fewer")


def save_knn(graph: KnnGraph, path: str | Path) -> None:
    """Write `neighbors` and `similarities` (and `order`, if there is one) as an `.npz`, whole or not at all."""
    path = Path(path)
    _require_npz(path)
    arrays = {"neighbors": graph.neighbors, "similarities": graph.similarities}
    if graph.order is not None:
        arrays["order"] = graph.order
    with replacing(path) as aside, aside.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)


def load_knn(path: str | Path, *, n_expected: int | None = None) -> KnnGraph:
    """Open a kNN graph of either layout without reading it all into memory.

    Parameters
    ----------
    path : str or Path
        `.npz` with `neighbors` and `similarities`, self excluded; or with `data` (n, 2, k): ids, then cosine distances,
        self included. The second becomes k - 1 columns.
    n_expected : int, optional
        Number of faces the graph belongs to; another is an error.

    Returns
    -------
    KnnGraph
        Checked: ids in range, no self, finite similarities.

    Examples
    --------
    >>> path = getfixture("tmp_path") / "graph.npz"
    >>> save_knn(join_rows(np.eye(3, dtype=np.float32), 1), path)
    >>> load_knn(path).neighbors.ravel().tolist()
    [1, 0, 0]
    """
    path = Path(path)
    _require_npz(path)
    try:
        graph = _read_graph(path)
    except FileNotFoundError:
        raise InputError(f"{path} does not exist; check the path") from None
    except PermissionError:
        raise InputError(f"{path} cannot be read; check its permissions") from None
    except InputError:
        raise
    except (OSError, EOFError, ValueError, zipfile.BadZipFile) as error:
        raise InputError(f"{path} cannot be read: {error}; the file is damaged or of another format") from error
    if n_expected is not None and graph.n != n_expected:
        raise InputError(
            f"{path} is a graph of {graph.n} faces, the features are {n_expected}; they must belong together"
        )
    return graph


def _require_npz(path: Path) -> None:
    """Refuse a name that is not an `.npz`."""
    if path.suffix.lower() != ".npz":
        raise InputError(f"{path} ends in '{path.suffix}'; a kNN graph is a .npz file")


def _read_graph(path: Path) -> KnnGraph:
    """Read the layout that is there and check it."""
    names = npz_names(path)
    if "neighbors" in names and "similarities" in names:
        order = open_npz_array(path, "order") if "order" in names else None
        return _check_graph(open_npz_array(path, "neighbors"), open_npz_array(path, "similarities"), order, path)
    if "data" in names:
        return _convert_data(open_npz_array(path, "data"), path)
    raise InputError(f"{path} holds {names or 'no arrays'}; a kNN graph has 'neighbors' and 'similarities', or 'data'")


def _check_graph(
    neighbors: NDArray[Any], similarities: NDArray[Any], order: NDArray[Any] | None, path: Path
) -> KnnGraph:
    """Refuse arrays that are no kNN graph, block by block."""
    if neighbors.ndim != 2 or neighbors.shape != similarities.shape:
        raise InputError(
            f"{path} has neighbors of shape {neighbors.shape} and similarities of shape {similarities.shape}; "
            f"both must be (n, k)"
        )
    if neighbors.shape[1] < 1:
        raise InputError(f"{path} has lists of 0 neighbours; build the graph with k of at least 1")
    if neighbors.dtype.kind not in "iu" or similarities.dtype.kind != "f":
        raise InputError(
            f"{path} has neighbors of type {neighbors.dtype} and similarities of type {similarities.dtype}; "
            f"they must be integers and floats"
        )
    for start in range(0, len(neighbors), 1 << 16):
        _check_rows(
            neighbors[start : start + (1 << 16)],
            similarities[start : start + (1 << 16)],
            start,
            len(neighbors),
            path,
        )
    if order is not None and not _is_permutation(order, len(neighbors)):
        raise InputError(
            f"{path} has an order of shape {order.shape} and type {order.dtype} that does not name each of"
            f" {len(neighbors)} faces once; build the graph anew"
        )
    return KnnGraph(
        _as_native(neighbors, np.dtype(np.int32)),
        _as_native(similarities, np.dtype(np.float32)),
        None if order is None else _as_native(order, np.dtype(np.int32)),
    )


def _is_permutation(order: NDArray[Any], n: int) -> bool:
    """Tell whether an array names each of n rows once."""
    if order.shape != (n,) or order.dtype.kind not in "iu" or (n and (order.min() < 0 or order.max() >= n)):
        return False
    return bool((np.bincount(order, minlength=n) == 1).all())


def _check_rows(neighbors: NDArray[Any], similarities: NDArray[Any], start: int, n: int, path: Path) -> None:
    """Refuse ids out of range, a row that is its own neighbour, and similarities that are no numbers."""
    rows = np.arange(start, start + len(neighbors))[:, None]
    if neighbors.size and (neighbors.min() < -1 or neighbors.max() >= n):
        row = int(rows[((neighbors < -1) | (neighbors >= n)).any(axis=1)][0, 0])
        raise InputError(
            f"{path} row {row} has neighbour ids outside -1..{n - 1}; the graph is of other features or damaged"
        )
    own = (neighbors == rows).any(axis=1)
    if own.any():
        raise InputError(
            f"{path} row {int(rows[own][0, 0])} has itself as a neighbour; remove each row from its own list"
        )
    ordered = np.sort(neighbors, axis=1)
    twice = ((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)).any(axis=1)
    if twice.any():
        raise InputError(f"{path} row {int(rows[twice][0, 0])} has a neighbour twice; the graph is damaged")
    odd = ~(np.abs(similarities) <= 1 + 1e-3).all(axis=1)  # NaN is not <= anything
    if odd.any():
        raise InputError(f"{path} row {int(rows[odd][0, 0])} has similarities outside -1..1; they must be cosines")


def _as_native(array: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return the array in the wanted type; a memory map that has it already stays one."""
    return array if array.dtype == dtype else array.astype(dtype)


def _convert_data(data: NDArray[Any], path: Path) -> KnnGraph:
    """Turn the field's (n, 2, k) ids and cosine distances, self included, into a graph of k - 1 columns."""
    if data.ndim != 3 or data.shape[1] != 2 or data.dtype.kind not in "fiu":
        raise InputError(f"{path} has data of shape {data.shape} and type {data.dtype}; it must be numbers (n, 2, k)")
    n, _, k = data.shape
    if k < 2:
        raise InputError(f"{path} has {k} neighbour(s) per face, the face itself included; at least 2 are needed")
    neighbors = np.empty((n, k - 1), dtype=np.int32)
    similarities = np.empty((n, k - 1), dtype=np.float32)
    for start in range(0, n, 1 << 14):
        block = data[start : start + (1 << 14)]
        ids, distances = block[:, 0], np.asarray(block[:, 1], dtype=np.float64)
        if not np.isfinite(ids).all() or (np.asarray(ids) % 1 != 0).any():
            raise InputError(
                f"{path} has neighbour ids that are no whole numbers; the first of the two planes must be ids"
            )
        kept = mark_others(np.asarray(ids), np.arange(start, start + len(block)))
        neighbors[start : start + len(block)] = ids[kept].reshape(len(block), k - 1).clip(-2, n)
        similarities[start : start + len(block)] = (1.0 - distances)[kept].reshape(len(block), k - 1)
    similarities[neighbors == -1] = 0
    return _check_graph(neighbors, similarities, None, path)
