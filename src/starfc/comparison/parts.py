"""Parts: a labelled collection on disk, found the way the field lays it out.

In: the path of the features. Out: Part, with the labels and the kNN graph that lie where they are expected:

    DATA/features/part1_test.bin   DATA/labels/part1_test.meta   DATA/knns/part1_test/faiss_k_80.npz
    PREFIX.features.npy            PREFIX.labels.npy             (what `starfc synth` writes)

Files are read as they are, memory-mapped; a headerless `.bin` has as many numbers per row as its size and the number of
labels say.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from ..features import Features, load_features, save_features
from ..knn import KnnGraph, load_knn
from ..labels import load_labels, save_labels
from ..sampling import index_people


@dataclass(frozen=True)
class Part:
    """Where a labelled collection lies.

    Attributes
    ----------
    features, labels : Path
    knn : Path or None
        A ready-made kNN graph.
    dim : int or None
        Numbers per row of a headerless file.
    """

    features: Path
    labels: Path
    knn: Path | None = None
    dim: int | None = None

    @property
    def name(self) -> str:
        """What tables and file names call it."""
        prefix = self.features.name.split(".features")[0]
        return prefix if prefix != self.features.name else self.features.stem

    @property
    def in_field_layout(self) -> bool:
        """Whether it lies in the folders of the field."""
        return self.features.parent.name == "features" and self.features.suffix == ".bin"

    def read(self) -> tuple[Features, NDArray[np.int64]]:
        """Open the features and read the labels."""
        labels = load_labels(self.labels)
        features = load_features(self.features, dim=self._infer_dim(len(labels)))
        if len(features) != len(labels):
            raise InputError(
                f"{self.labels} has {len(labels)} labels for the {len(features)} faces of {self.features};"
                " there must be one per face"
            )
        return features, labels

    def read_graph(self, k: int) -> KnnGraph:
        """Open the ready-made graph and take its first k neighbours, or all if it has fewer."""
        if self.knn is None:
            raise InputError(f"{self.features} has no kNN graph yet; build one first")
        graph = load_knn(self.knn, n_expected=len(load_labels(self.labels)))
        return KnnGraph(np.ascontiguousarray(graph.neighbors[:, :k]), np.ascontiguousarray(graph.similarities[:, :k]))

    def fingerprint(self) -> dict[str, Any]:
        """Name the files' content by path, size and time of writing."""
        files = (self.features, self.labels, *([self.knn] if self.knn else []))
        return {str(path): [path.stat().st_size, path.stat().st_mtime_ns] for path in files}

    def _infer_dim(self, n_faces: int) -> int | None:
        """Return the numbers per row of a headerless file; None where the file says it itself."""
        if self.features.suffix.lower() != ".bin" or self.dim is not None:
            return self.dim
        n_bytes = self.features.stat().st_size
        if n_faces == 0 or n_bytes % (4 * n_faces):
            raise InputError(
                f"{self.features} has {n_bytes} bytes, which do not divide by {n_faces} labels x 4; pass --dim"
            )
        return n_bytes // (4 * n_faces)


def find_part(
    features: Path,
    *,
    labels: Path | None = None,
    knn: Path | None = None,
    dim: int | None = None,
    option: str = "--labels",
) -> Part:
    """Find the labels and the kNN graph that belong to a file of features; `option` is how labels are given.

    >>> folder = getfixture("tmp_path")
    >>> for name in ("a.features.npy", "a.labels.npy"): (folder / name).touch()
    >>> find_part(folder / "a.features.npy").labels.name
    'a.labels.npy'
    """
    if not features.is_file():
        raise InputError(f"{features} does not exist; give a file of features")
    found = labels or _find_labels(features)
    if found is None or not found.is_file():
        looked = found or "labels/NAME.meta or PREFIX.labels.npy"
        raise InputError(f"no labels were found for {features} (looked for {looked}); pass them with {option}")
    return Part(features, found, knn or _find_knn(features), dim)


def _find_labels(features: Path) -> Path | None:
    """Return where the labels of these features are expected."""
    if features.parent.name == "features":
        return features.parent.parent / "labels" / f"{features.stem}.meta"
    if ".features" in features.name:
        stem = features.name.split(".features")[0]
        return next(
            (
                path
                for ending in (".npy", ".meta", ".csv")
                if (path := features.with_name(f"{stem}.labels{ending}")).is_file()
            ),
            None,
        )
    return None


def _find_knn(features: Path) -> Path | None:
    """Return the graph with most neighbours in the field's `knns` folder."""
    if features.parent.name != "features":
        return None
    sizes = {
        int(match[1]): path
        for path in sorted((features.parent.parent / "knns" / features.stem).glob("*.npz"))
        if (match := re.search(r"_k_(\d+)\.npz$", path.name))
    }
    return sizes[max(sizes)] if sizes else None


def take_people(part: Part, target: Path, *, share: float | None = None, faces: int | None = None, seed: int) -> Part:
    """Write a part of some of the people, all of their faces: a share of the people, or until there are enough faces.

    A smaller part holds a subset of the people of a larger one with the same seed.
    """
    features, labels = part.read()
    index = index_people(features, labels)
    order = np.random.default_rng(seed).permutation(len(index))
    if share is not None:
        n_people = max(1, round(share * len(order)))
    else:
        n_people = int(np.searchsorted(np.cumsum(np.diff(index.offsets)[order]), faces or 0)) + 1
    rows = index.faces_of(order[:n_people])
    taken = Part(target.with_name(f"{target.name}.features.npy"), target.with_name(f"{target.name}.labels.npy"))
    save_features(Features(np.asarray(features.raw[rows])), taken.features)
    save_labels(labels[rows], taken.labels)
    return taken
