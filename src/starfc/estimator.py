"""Estimator: the pipeline as a scikit-learn clusterer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.utils.validation import validate_data

from .errors import InputError
from .model import Model
from .pipeline import cluster


class StarFC(ClusterMixin, BaseEstimator):  # type: ignore[misc]
    """Group vectors by person, with scikit-learn's interface.

    Parameters
    ----------
    model, k, scorer, tau1, tau2, aggregate, edges, partition, knn, seed, threads
        As in :func:`starfc.cluster`.

    Attributes
    ----------
    labels_ : int64 (n,)
        Cluster of each row; -1 for a row of zeros, which has no direction and so resembles nobody.
    clusters_ : Clusters
        The whole result, without rows of zeros.
    n_features_in_ : int
        Dimension seen in fit.

    Examples
    --------
    >>> import numpy as np
    >>> from starfc import StarFC
    >>> rng = np.random.default_rng(0)
    >>> X = np.repeat(rng.normal(size=(5, 32)), 4, axis=0) + 0.1 * rng.normal(size=(20, 32))
    >>> StarFC(tau1=0.7).fit_predict(X)
    array([0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4])
    """

    def __init__(
        self,
        *,
        model: Model | str | Path | None = None,
        k: int | None = None,
        scorer: str | None = None,
        tau1: float | None = None,
        tau2: float | None = None,
        aggregate: str | None = None,
        edges: str | None = None,
        partition: str | None = None,
        knn: str = "auto",
        seed: int = 0,
        threads: int | None = None,
    ) -> None:
        self.model = model
        self.k = k
        self.scorer = scorer
        self.tau1 = tau1
        self.tau2 = tau2
        self.aggregate = aggregate
        self.edges = edges
        self.partition = partition
        self.knn = knn
        self.seed = seed
        self.threads = threads

    def fit(self, X: ArrayLike, y: Any = None) -> StarFC:  # noqa: ANN401
        """Cluster the rows of X (n, d); y is ignored."""
        rows = validate_data(self, X, dtype="numeric", ensure_min_samples=2)
        directed = np.flatnonzero(rows.any(axis=1))
        if len(directed) < 2:
            raise InputError(f"X has {len(directed)} row(s) that are not all zero; clustering needs at least 2")
        self.clusters_ = cluster(rows[directed], **self.get_params(deep=False))
        self.labels_ = np.full(len(rows), -1, dtype=np.int64)
        self.labels_[directed] = self.clusters_.labels
        return self
