"""The methods that starfc is compared with, one file each, all with one signature.

In: Features and the kNN graph of the same faces, and for the trained ones labels. Out: int64 labels (n,), -1 for a face
alone. Every file offers

- ``cluster_faces(features, graph, *, seed, ...)``: Features (n, d) and KnnGraph (n, k) in, labels out; the method with
  its published settings as defaults; a trained one also takes ``model``. The seed matters where the method draws;
- ``train_model(features, graph, labels, *, seed, steps, progress, ...)`` -> Weights, if the method is trained; labels
  are int64 (n,), -1 for nobody's, and ``steps`` is its own number where it is None;
- ``GRID``: the settings that tuning tries;
- ``measure_evidence(features, graph[, model])`` and ``cluster_evidence(evidence, ...)``, where what takes long does not
  depend on the settings: ``cluster_faces`` is the second after the first. `frame.py` puts these together.

Each is written from its paper on the stages of starfc (kNN graph, components, map equation, training on a CPU); its
docstring gives the reference, the formulas and the deviations. A file is imported when its method is asked for.

>>> import numpy as np
>>> from starfc.features import Features
>>> from starfc.knn import build_knn
>>> faces = Features(np.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]]))
>>> graph = build_knn(faces, k=3)
>>> {name: METHODS[name].load().cluster_faces(faces, graph).tolist() for name in ("cdp", "hac", "infomap")}
{'cdp': [0, 0, 1, 1], 'hac': [0, 0, 1, 1], 'infomap': [0, 0, 1, 1]}
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from typing import Any

from ..errors import InputError


@dataclass(frozen=True)
class Method:
    """A row of the table.

    Attributes
    ----------
    name : str
        For --methods and for file names.
    title : str
        As the papers write it.
    module : str
        The file in this folder.
    trained : bool
        Whether it learns from labels.
    settings : dict
        What makes it this method and not another of the same file.
    """

    name: str
    title: str
    module: str
    trained: bool = False
    settings: dict[str, Any] = field(default_factory=dict)

    def load(self) -> Any:  # noqa: ANN401
        """Import the method's file."""
        return importlib.import_module(f"{__name__}.{self.module}")


_LISTED = (
    Method("kmeans", "K-Means", "kmeans"),
    Method("minibatch-kmeans", "mini-batch K-Means", "minibatch_kmeans"),
    Method("hac", "HAC, single linkage", "hac", settings={"linkage": "single"}),
    Method("hac-average", "HAC, average linkage", "hac", settings={"linkage": "average"}),
    Method("dbscan", "DBSCAN", "dbscan"),
    Method("hdbscan", "HDBSCAN", "hdbscan"),
    Method("chinese-whispers", "Chinese whispers", "chinese_whispers"),
    Method("aro", "ARO", "aro"),
    Method("cdp", "CDP, single model", "cdp"),
    Method("infomap", "Infomap on cosines", "infomap_cosine"),
    Method("fc-es", "FC-ES", "fc_es"),
    Method("face-map", "FaceMap", "face_map"),
    Method("lcepce", "LCEPCE links on NEP", "lcepce", settings={"connectivity": "nep"}),
    Method("lcepce-relational", "LCEPCE links on our scores", "lcepce", settings={"connectivity": "relational"}),
    Method("lgcn", "L-GCN", "lgcn", trained=True),
    Method("gcn-d", "GCN-D", "gcn_d", trained=True, settings={"segment": False}),
    Method("gcn-d-s", "GCN-D + GCN-S", "gcn_d", trained=True, settings={"segment": True}),
    Method("gcn-v", "GCN-V", "gcn_v", trained=True),
    Method("gcn-v-e", "GCN-V + GCN-E", "gcn_e", trained=True),
    Method("da-net", "DA-Net", "da_net", trained=True),
    Method("starfc-no-labels", "starfc, no labels", "star_fc"),
    Method("starfc-paper", "STAR-FC as published", "star_fc", trained=True, settings={"preset": "paper"}),
    Method("starfc", "starfc, trained", "star_fc", trained=True, settings={"preset": "default"}),
)

#: Every method by its name, in the order of the tables.
METHODS = {method.name: method for method in _LISTED}


def choose_methods(names: str | None) -> list[Method]:
    """Return the methods of a list such as "kmeans,gcn-v"; all of them for None.

    >>> [method.title for method in choose_methods("cdp, aro")]
    ['CDP, single model', 'ARO']
    """
    if names is None:
        return list(METHODS.values())
    asked = [name.strip() for name in names.split(",") if name.strip()]
    unknown = [name for name in asked if name not in METHODS]
    if unknown:
        raise InputError(f"methods ('{unknown[0]}') must be among {', '.join(METHODS)}")
    return [METHODS[name] for name in asked]
