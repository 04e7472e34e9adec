"""Settings: what the caller left open is filled from the model, else with defaults.

In: what the caller asked for, the model, the sizes of the data. Out: Settings, checked.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .errors import InputError
from .features import Features
from .knn import KnnGraph
from .model import Model, ModelConfig
from .partition import PARTITIONS
from .prune import AGGREGATES, EDGE_KINDS
from .relational_model import SCORERS as RELATIONAL
from .relational_model import open_network
from .strictness import PREFERENCES

SCORERS = ("gcn", "relational", "combined", "cosine")
DEFAULT_K = 80
_FEWEST_DIMENSIONS = 8


@dataclass(frozen=True)
class Settings:
    """How the graph is scored, pruned and partitioned."""

    n_neighbors: int  # per face, the face itself not counted
    scorer: str
    tau1: float | None
    tau2: float | None
    aggregate: str = "max"
    edges: str = "directed"
    partition: str = "components"
    k_counts_self: bool = False
    seed: int = 0  # of the map equation
    strays_up_to: float = PREFERENCES["balanced"]  # tau_1 up to which strays join others: above, precision is wanted

    @property
    def k(self) -> int:
        """K as its user counts it: with the face itself for models of the authors' release."""
        return self.n_neighbors + int(self.k_counts_self)

    def __post_init__(self) -> None:
        for name, allowed in (
            ("scorer", SCORERS),
            ("aggregate", AGGREGATES),
            ("edges", EDGE_KINDS),
            ("partition", PARTITIONS),
        ):
            if getattr(self, name) not in allowed:
                raise InputError(f"{name} ('{getattr(self, name)}') must be one of {', '.join(allowed)}")
        if self.partition == "refined" and self.scorer == "cosine":
            raise InputError(
                "partition 'refined' needs scores that are probabilities, and these are cosines (a tau1 alone is"
                " one of cosines); use partition 'mapequation', or scorer 'relational'"
            )
        if self.seed < 0:
            raise InputError(f"seed ({self.seed}) must be 0 or more")
        for name, lowest in (("tau1", -1.0), ("tau2", 0.0)):
            value = getattr(self, name)
            if value is not None and not lowest <= value <= 1.0:
                raise InputError(f"{name} ({value}) must be between {lowest:g} and 1")


def settle(
    features: Features,
    model: Model | None,
    graph: KnnGraph | None,
    k: int | None,
    scorer: str | None,
    tau1: float | None,
    tau2: float | None,
    aggregate: str | None,
    edges: str | None,
    partition: str | None,
    prefer: str | None,
    seed: int,
) -> Settings:
    """Fill what the caller left open from the model, else with the defaults."""
    if prefer is not None and prefer not in PREFERENCES:
        raise InputError(f"prefer ('{prefer}') must be one of {', '.join(PREFERENCES)}")
    # A threshold that comes alone is one on cosines: they are the only scores that a user knows by heart. And in a few
    # dimensions everybody is near everybody, which the relational model has never seen.
    without_model = "relational" if tau1 is None and features.dim >= _FEWEST_DIMENSIONS else "cosine"
    chosen_scorer = scorer or (model.config.scorer if model else without_model)
    if chosen_scorer in ("gcn", "combined") and model is None:
        raise InputError(f"scorer '{chosen_scorer}' needs a model; pass --model (model=...) or use scorer 'relational'")
    if chosen_scorer == "combined" and model is not None and model.config.scorer != "combined":
        raise InputError(f"scorer 'combined' needs a model of it, this one is of '{model.config.scorer}'")
    if model is not None and chosen_scorer == model.config.scorer and chosen_scorer in RELATIONAL:
        open_network(model)  # names what is wrong with it before the work starts
    if prefer is not None and (chosen_scorer not in RELATIONAL or tau1 is not None):
        raise InputError(
            f"prefer ('{prefer}') moves the threshold of the relational scorer; leave out tau1 and other scorers,"
            " or set tau1 in its place"
        )
    config = model.config if model is not None and chosen_scorer == model.config.scorer else None
    if config is not None:
        tau1 = _lean(config.tau1, prefer) if tau1 is None else tau1
        tau2 = config.tau2 if tau2 is None else tau2
    if chosen_scorer == "relational" and tau1 is None and prefer is not None and prefer != "balanced":
        tau1 = PREFERENCES[prefer]  # what is balanced is found from the data
    return Settings(
        n_neighbors=_settle_neighbors(len(features), model, graph, k),
        scorer=chosen_scorer,
        tau1=tau1,
        tau2=tau2,
        aggregate=aggregate or (config.aggregate if config else "max"),
        edges=edges or (config.edges if config else "directed"),
        partition=partition or _settle_partition(config, chosen_scorer),
        k_counts_self=model is not None and model.config.k_counts_self,
        seed=seed,
        strays_up_to=config.tau1 if config is not None else PREFERENCES["balanced"],
    )


def _settle_partition(config: ModelConfig | None, scorer: str) -> str:
    """Return the model's partition; without one, the refined where scores are probabilities."""
    if config is not None:
        return config.partition
    return "refined" if scorer in RELATIONAL else "mapequation"


def _lean(tau1: float, prefer: str | None) -> float:
    """Move a model's threshold as far, in log-odds, as a preference moves the one without labels.

    >>> _lean(0.7, "recall"), _lean(0.5, None)
    (0.4, 0.5)
    """
    if prefer is None or not 0 < tau1 < 1:
        return tau1
    odds = [p / (1 - p) for p in (tau1, PREFERENCES[prefer], PREFERENCES["balanced"])]
    moved = odds[0] * odds[1] / odds[2]
    return round(moved / (1 + moved), 6)


def _settle_neighbors(n: int, model: Model | None, graph: KnnGraph | None, k: int | None) -> int:
    """Return the neighbours per face: the caller's k is checked, a default one is cut to what there is."""
    if n < 2:
        raise InputError(f"there are {n} vectors; clustering needs at least 2")
    if k is not None and (isinstance(k, bool) or not isinstance(k, int | np.integer)):
        raise InputError(f"k ({k!r}) must be a whole number; leave it out for the default")
    counts_self = int(model is not None and model.config.k_counts_self)
    available = graph.neighbors.shape[1] if graph is not None else n - 1
    if k is None:
        return max(1, min((model.config.k if model else DEFAULT_K) - counts_self, available))
    if graph is not None and k - counts_self > available:
        raise InputError(
            f"k ({k}) is more than the {available} neighbours of the given kNN graph;"
            f" pass k={available + counts_self} or fewer"
        )
    if k - counts_self < 1:
        raise InputError(f"k ({k}) must be at least {1 + counts_self}; leave it out for the default")
    if k - counts_self >= n:
        raise InputError(
            f"k ({k}) must be smaller than the number of vectors ({n}); pass k={n - 1 + counts_self} or fewer"
        )
    return k - counts_self
