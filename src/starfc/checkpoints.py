"""Checkpoints: a killed training goes on where it stopped.

In: the state of a training. Out: one file, `training.safetensors`, replaced by rename so that it is whole at any
moment. Its tensors are the weights and the optimiser's averages; its metadata is a JSON object of everything else and
of a fingerprint: what decides the weights. A training with another fingerprint is refused, naming what differs, since
going on would give weights that belong to neither.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .atomic import replacing
from .errors import InputError
from .features import Features
from .network import EdgeNetwork
from .workdir import digest_arrays

import torch  # isort: skip  (after network.py, which says what to install where it is missing)

logger = logging.getLogger(__name__)

_DIGESTED_ROWS = 4096


@dataclass
class TrainingState:
    """How far a training is; what a checkpoint holds.

    Attributes
    ----------
    network, optimizer
        Weights, and the optimiser's averages.
    step : int
        Steps done.
    sums : dict
        Loss, time and so on of the steps since the last report.
    history : list of dict
        The reports.
    best_step, best_loss, best
        The step with the least loss on held-out people, that loss, and its weights; 0 and None before the first.
    result : dict or None
        tau_1, tau_2 and the facts, once the training is finished.
    """

    network: EdgeNetwork
    optimizer: torch.optim.Optimizer
    step: int = 0
    sums: dict[str, float] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    best_step: int = 0
    best_loss: float = float("inf")
    best: dict[str, NDArray[np.float32]] | None = None
    result: dict[str, Any] | None = None

    def note_loss(self, loss: float) -> None:
        """Keep the present weights if the loss on held-out people was never lower."""
        if loss < self.best_loss:
            self.best_step, self.best_loss, self.best = self.step, loss, self.network.get_tensors()

    def add_step(self, **figures: float) -> None:
        """Count a step, and add its figures to the sums."""
        self.step += 1
        for name, value in figures.items():
            self.sums[name] = self.sums.get(name, 0.0) + value


@dataclass
class Checkpoints:
    """The checkpoint file of a training; without a folder nothing is saved.

    Attributes
    ----------
    folder : Path or None
    fingerprint : dict
        What the weights depend on, for JSON.
    every_s : float
        Seconds between checkpoints.
    saved_at : float
        When the last one was made, on the clock of `time.perf_counter`.
    """

    folder: Path | None
    fingerprint: dict[str, Any]
    every_s: float
    saved_at: float = field(default_factory=time.perf_counter)

    @property
    def path(self) -> Path | None:
        """Where the file is."""
        return None if self.folder is None else self.folder / "training.safetensors"

    def save_if_due(self, state: TrainingState) -> None:
        """Save when the last checkpoint is old enough."""
        if time.perf_counter() - self.saved_at >= self.every_s:
            self.save(state)

    def save(self, state: TrainingState) -> None:
        """Write the file, whole or not at all."""
        from safetensors.numpy import save

        if self.path is None:
            return
        tensors = {f"network.{name}": tensor for name, tensor in state.network.get_tensors().items()}
        for number, entries in state.optimizer.state_dict()["state"].items():
            for name, tensor in entries.items():
                if tensor is not None:
                    tensors[f"optimizer.{number}.{name}"] = tensor.numpy()
        for name, tensor in (state.best or {}).items():
            tensors[f"best.{name}"] = tensor
        facts = {name: getattr(state, name) for name in ("step", "sums", "history", "best_step", "best_loss", "result")}
        metadata = {"starfc": json.dumps(facts | {"fingerprint": self.fingerprint})}
        with replacing(self.path) as aside:
            aside.write_bytes(save(tensors, metadata))
        self.saved_at = time.perf_counter()

    def restore(self, state: TrainingState) -> bool:
        """Bring `state` to where the last checkpoint left it, and say whether there was one."""
        from safetensors import SafetensorError, safe_open

        if self.path is None or not self.path.is_file():
            return False
        try:
            with safe_open(self.path, framework="np") as file:
                facts = json.loads((file.metadata() or {})["starfc"])
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, KeyError, ValueError) as error:
            raise InputError(f"checkpoint {self.path} cannot be read ({error}); delete it to start again") from error
        self._require_same_training(facts.pop("fingerprint", {}))
        _restore_tensors(state, tensors)
        for name, value in facts.items():
            setattr(state, name, value)
        logger.info("training goes on from step %d of %s", state.step, self.path)
        return True

    def _require_same_training(self, found: dict[str, Any]) -> None:
        """Refuse the checkpoint of another training, naming what differs."""
        wanted = json.loads(json.dumps(self.fingerprint))
        differing = [name for name in wanted if found.get(name) != wanted[name]]
        if differing:
            changes = ", ".join(f"{name} ({found.get(name)}, now {wanted[name]})" for name in differing)
            raise InputError(
                f"work folder {self.folder} holds a training with other {changes};"
                " use another workdir, or delete it to start again"
            )


def _restore_tensors(state: TrainingState, tensors: dict[str, NDArray[Any]]) -> None:
    """Put the weights and the optimiser's averages back."""
    prefix = "network."
    weights = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
    state.network.load_tensors(weights)
    best = {name.removeprefix("best."): tensor for name, tensor in tensors.items() if name.startswith("best.")}
    state.best = best or None
    entries: dict[int, dict[str, torch.Tensor]] = {}
    for name, tensor in tensors.items():
        if name.startswith("optimizer."):
            _, number, key = name.split(".")
            entries.setdefault(int(number), {})[key] = torch.from_numpy(tensor.copy())
    groups = state.optimizer.state_dict()["param_groups"]
    state.optimizer.load_state_dict({"state": entries, "param_groups": groups})


def fingerprint_data(features: Features, labels: NDArray[np.int64]) -> dict[str, str]:
    """Name the data of a training; the features are represented by a few thousand of their rows.

    >>> fingerprint_data(Features(np.eye(3)), np.arange(3))["faces"]
    '3 x 3 float64'
    """
    raw = features.raw
    sample = raw[:: max(1, len(raw) // _DIGESTED_ROWS)]
    return {
        "faces": f"{raw.shape[0]} x {raw.shape[1]} {raw.dtype}",
        "features": digest_arrays(rows=np.ascontiguousarray(sample)),
        "labels": hashlib.sha256(labels.tobytes()).hexdigest()[:16],
    }
