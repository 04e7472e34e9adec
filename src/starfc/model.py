"""Model folder: what training leaves behind and clustering needs.

`model.safetensors` holds the tensors, those of a GCN under the names of the authors' release (`conv1.weight`, ...,
`classifier.2.bias`), those of a network of relations as `relational_model.py` has them; `config.json` the scorer, its
shapes, k, tau_1, tau_2 and how to prune and partition, `README.md` the model card. Nothing here needs torch, except the
import of the authors' `.pth` files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .atomic import replacing_folder, require_folder_writable
from .errors import MissingExtraError, ModelError, OutputError

FORMAT_VERSION = 1
_MAPPED_VERSION = 2  # of a model with a space, which versions that know of none would leave out
_DIGEST = "sha256"
SPACE = "space."  # before the names of tensors that map the features (`space.py`)
_FILES = ("model.safetensors", "config.json", "README.md")
_HEAD = (
    "classifier.0.weight",
    "classifier.0.bias",
    "classifier.1.weight",
    "classifier.2.weight",
    "classifier.2.bias",
)


@dataclass(frozen=True)
class ModelConfig:
    """How a model is to be used. `k` counts the face itself only if `k_counts_self` (the authors' convention)."""

    dim: int
    hidden: tuple[int, ...]
    scorer: str = "gcn"
    k: int = 80
    k_counts_self: bool = False
    tau1: float = 0.7
    tau2: float | None = 0.72
    aggregate: str = "max"
    edges: str = "directed"
    partition: str = "components"
    relations: tuple[str, ...] = ()  # that a relational model reads
    gcn_weight: float = 0.5  # of the GCN's log-odds beside those of relations
    training: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if type(self.k) is not int or self.n_neighbors < 1:
            raise ModelError(f"the model's k ({self.k}) must be a whole number of 1 or more; train it again")
        limited = (("tau_1", self.tau1, -1), ("tau_2", self.tau2, 0), ("gcn_weight", self.gcn_weight, 0))
        for name, value, lowest in limited:
            is_none = value is None and name == "tau_2"
            if not is_none and not (isinstance(value, int | float) and lowest <= value <= 1):
                raise ModelError(f"the model's {name} ({value}) must be between {lowest} and 1; train it again")

    @property
    def n_neighbors(self) -> int:
        """Neighbours per face, the face itself not counted."""
        return self.k - 1 if self.k_counts_self else self.k


@dataclass(frozen=True)
class Model:
    """Tensors of a trained edge scorer and how to use them."""

    config: ModelConfig
    tensors: dict[str, NDArray[np.float32]]

    def __post_init__(self) -> None:
        config = self.config
        # A network of relations is checked by what reads it (`relational_model.py`).
        expected = expected_shapes(config.dim, config.hidden) if config.scorer != "relational" else {}
        found = {name: tuple(tensor.shape) for name, tensor in self.tensors.items()}
        for name, shape in expected.items():
            if found.get(name) != shape:
                raise ModelError(
                    f"the model's tensor '{name}' has shape {found.get(name, 'none')}, expected {shape};"
                    " the folder is damaged or of another program"
                )
        if not all(np.isfinite(tensor).all() for tensor in self.tensors.values()):
            raise ModelError("the model holds NaN or infinite weights; train it again")

    def with_config(self, **changes: Any) -> Model:  # noqa: ANN401
        """Return the same tensors with another configuration."""
        return Model(replace(self.config, **changes), self.tensors)

    def require_dim(self, dim: int) -> None:
        """Refuse features of another dimension than the model was trained for."""
        if dim != self.config.dim:
            raise ModelError(
                f"the model was trained for vectors of dimension {self.config.dim}, these have {dim};"
                " use features of the same embedder or train another model"
            )

    @property
    def _is_mapped(self) -> bool:
        """Whether it maps the features before anything else (`space.py`)."""
        return any(name.startswith(SPACE) for name in self.tensors)

    def save(self, folder: str | Path) -> None:
        """Write the model folder, whole or not at all."""
        require_model_target(Path(folder))
        write_folder(Path(folder), self.tensors, self._config_as_json(), self._card())

    def _config_as_json(self) -> dict[str, Any]:
        from . import __version__

        config = self.config
        return {
            "format": "starfc-model",
            "format_version": _MAPPED_VERSION if self._is_mapped else FORMAT_VERSION,
            "starfc_version": __version__,
            "scorer": config.scorer,
            "dim": config.dim,
            "hidden": list(config.hidden),
            "shapes": {name: list(tensor.shape) for name, tensor in self.tensors.items()},
            "k": config.k,
            "k_counts_self": config.k_counts_self,
            "tau_1": config.tau1,
            "tau_2": config.tau2,
            "aggregate": config.aggregate,
            "edges": config.edges,
            "partition": config.partition,
            "relations": list(config.relations),
            "gcn_weight": config.gcn_weight,
            "training": config.training,
        }

    def _card(self) -> str:
        config = self.config
        facts = (
            "\n".join(f"- {name}: {value}" for name, value in config.training.items() if name != "history")
            or "- not recorded"
        )
        if config.relations:
            beside = (
                f" and, beside them, by the GCN of STAR-FC (k {config.k}, weight {config.gcn_weight})"
                if config.scorer == "combined"
                else ""
            )
            mapping = (
                f"Maps face vectors (dimension {config.dim}) so that pictures of one person are nearer, then scores"
            )
            limits = (
                "It is of use only for vectors of the embedder it was trained on."
                if self._is_mapped
                else "Relations do not depend on the embedder, but what was learned is of the people and the embedder"
                " it was trained on."
            )
            what = (
                f"{mapping if self._is_mapped else 'Scores'} the edges of a kNN graph of face vectors by the relations"
                f" of their ends{beside}.\nUse: `starfc cluster FEATURES -o OUT --model THIS_FOLDER`"
                f" (k from the data, p > {config.tau1}, {config.partition}).\n\n{limits}"
            )
        else:
            what = (
                f"Scores the edges of a kNN graph of face vectors (dimension {config.dim}) with the GCN of STAR-FC,"
                f" layers {list(config.hidden)}.\nUse: `starfc cluster FEATURES -o OUT --model THIS_FOLDER`"
                f" (k {config.k}, tau_1 {config.tau1}, tau_2 {config.tau2},\n{config.aggregate} intimacy on"
                f" {config.edges} edges, {config.partition}).\n\nIt reads raw features: it is of use only for vectors"
                " of the embedder it was trained on."
            )
        return f"# starfc model\n\n{what}\n\n## Training\n\n{facts}\n"


def write_folder(folder: Path, tensors: Mapping[str, NDArray[np.float32]], config: dict[str, Any], card: str) -> None:
    """Write tensors, configuration and card, all or none; the configuration keeps the tensors' digest."""
    from safetensors.numpy import save

    content = save({name: np.ascontiguousarray(tensor, np.float32) for name, tensor in tensors.items()})
    with replacing_folder(folder) as aside:
        (aside / "model.safetensors").write_bytes(content)
        known = config | {_DIGEST: sha256(content).hexdigest()}
        (aside / "config.json").write_text(json.dumps(known, indent=2) + "\n", encoding="utf-8")
        (aside / "README.md").write_text(card, encoding="utf-8")


def read_tensors(folder: Path, config: Any) -> dict[str, NDArray[np.float32]]:  # noqa: ANN401
    """Read the tensors of a folder; ModelError where they are not those its configuration was written with.

    Folders of earlier versions have no digest, and are taken as they are.
    """
    from safetensors.numpy import load

    content = (folder / "model.safetensors").read_bytes()
    tensors = load(content)  # first: what it says of a file that was cut short is of more use than another digest
    expected = config.get(_DIGEST) if isinstance(config, dict) else None
    if expected is not None and expected != sha256(content).hexdigest():
        raise ModelError(
            f"{folder / 'model.safetensors'} is not the file that config.json was written with (sha256"
            f" {sha256(content).hexdigest()[:8]}..., expected {str(expected)[:8]}...); copy the model or train it again"
        )
    return {name: tensor.astype(np.float32) for name, tensor in tensors.items()}


def require_model_target(folder: Path) -> None:
    """Refuse a folder that cannot be written, or that holds anything but an older model: saving replaces it whole."""
    require_folder_writable(folder)
    found = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    foreign = found if found and not _is_ours(folder) else found - set(_FILES)
    if foreign:
        raise OutputError(
            f"output folder {folder} holds other files than a model ({min(foreign)}); choose a new or empty folder"
        )


def _is_ours(folder: Path) -> bool:
    """Tell whether a folder's config.json says that it is a starfc model."""
    try:
        return bool(json.loads((folder / "config.json").read_text(encoding="utf-8"))["format"] == "starfc-model")
    except (OSError, ValueError, KeyError, TypeError):
        return False


def expected_shapes(dim: int, hidden: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """Return the shape of every tensor of a GCN with the given input dimension and layer widths."""
    shapes: dict[str, tuple[int, ...]] = {}
    for layer, (width_in, width_out) in enumerate(zip((dim, *hidden[:-1]), hidden, strict=True), start=1):
        shapes[f"conv{layer}.weight"] = (2 * width_in, width_out)
        shapes[f"conv{layer}.bias"] = (width_out,)
    h = hidden[-1]
    return shapes | dict(zip(_HEAD, ((h, 2 * h), (h,), (h,), (2, h), (2,)), strict=True))


def load_model(folder: str | Path) -> Model:
    """Read a model folder; anything missing, truncated or foreign is named in one sentence."""
    from safetensors import SafetensorError

    folder = Path(folder)
    if not folder.is_dir():
        what = "is a file" if folder.is_file() else "does not exist"
        raise ModelError(f"model folder {folder} {what}; give the folder that 'starfc train -o' wrote")
    try:
        raw = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        tensors = read_tensors(folder, raw)
    except FileNotFoundError as error:
        raise ModelError(
            f"model folder {folder} has no {Path(error.filename).name}; it is not a starfc model"
        ) from error
    except (json.JSONDecodeError, UnicodeDecodeError, SafetensorError, OSError) as error:
        raise ModelError(f"model folder {folder} is damaged ({error}); copy or train it again") from error
    if not isinstance(raw, dict) or raw.get("format") != "starfc-model":
        raise ModelError(
            f"{folder / 'config.json'} is not of a starfc model; give the folder that 'starfc train -o' wrote"
        )
    if raw.get("format_version") not in (FORMAT_VERSION, _MAPPED_VERSION):
        raise ModelError(
            f"model folder {folder} has format version {raw.get('format_version')}, this starfc reads"
            f" {FORMAT_VERSION} and {_MAPPED_VERSION};"
            " update starfc or train again"
        )
    return Model(_config_from_json(raw, folder), tensors)


def _config_from_json(raw: dict[str, Any], folder: Path) -> ModelConfig:
    try:
        hidden = tuple(int(width) for width in raw["hidden"])
        if not hidden:
            raise ValueError("hidden")
        return ModelConfig(
            dim=int(raw["dim"]),
            hidden=hidden,
            scorer=str(raw["scorer"]),
            k=raw["k"],
            k_counts_self=raw["k_counts_self"] is True,
            tau1=float(raw["tau_1"]),
            tau2=None if raw["tau_2"] is None else float(raw["tau_2"]),
            aggregate=str(raw["aggregate"]),
            edges=str(raw["edges"]),
            partition=str(raw["partition"]),
            relations=tuple(str(name) for name in raw.get("relations", ())),
            gcn_weight=float(raw.get("gcn_weight", 0.5)),
            training=dict(raw["training"]),
        )
    except ModelError:
        raise
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ModelError(
            f"{folder / 'config.json'} lacks or garbles a setting ({error}); train the model again"
        ) from error


def import_checkpoint(backbone: str | Path, head: str | Path) -> Model:
    """Make a model from the authors' released `.pth` pair, to be used exactly as their code does.

    Their k = 80 counts the face itself, edges are directed, tau_1 is .7 and tau_2 .72. The files are loaded with
    ``weights_only=True``: no code in them can run.
    """
    tensors = _read_state(Path(backbone)) | _read_state(Path(head))
    if "conv1.weight" not in tensors or "classifier.0.weight" not in tensors:
        raise ModelError(
            f"{backbone} and {head} hold {sorted(tensors)}; expected 'conv1.weight' in the first and"
            " 'classifier.0.weight' in the second"
        )
    n_layers = sum(name.startswith("conv") and name.endswith(".weight") for name in tensors)
    convolutions = [tensors.get(f"conv{layer}.weight", np.empty(0)) for layer in range(1, n_layers + 1)]
    if any(weight.ndim != 2 for weight in convolutions):
        shapes = {name: tensor.shape for name, tensor in tensors.items() if name.startswith("conv")}
        raise ModelError(
            f"{backbone} holds {shapes}; expected two-dimensional conv1.weight, conv2.weight, ... in a row"
        )
    hidden = tuple(int(weight.shape[1]) for weight in convolutions)
    dim = int(tensors["conv1.weight"].shape[0]) // 2
    kept = {name: tensors[name] for name in expected_shapes(dim, hidden) if name in tensors}
    facts = {
        "source": "imported from the authors' released layout",
        "backbone": Path(backbone).name,
        "head": Path(head).name,
    }
    return Model(ModelConfig(dim=dim, hidden=hidden, k=80, k_counts_self=True, training=facts), kept)


def _read_state(path: Path) -> dict[str, NDArray[np.float32]]:
    """Read a torch state dict as numpy arrays."""
    try:
        import torch
    except ImportError:
        raise MissingExtraError("torch", "train", "importing a checkpoint") from None
    import pickle

    if not path.is_file():
        raise ModelError(f"checkpoint {path} does not exist; check the path")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError, ValueError, KeyError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ModelError(
            f"checkpoint {path} cannot be read safely ({reason}); it must be a plain state dict"
        ) from error
    if not isinstance(state, dict) or not all(isinstance(tensor, torch.Tensor) for tensor in state.values()):
        raise ModelError(f"checkpoint {path} is no state dict (names to tensors); save model.state_dict()")
    return {name.removeprefix("module."): tensor.float().numpy() for name, tensor in state.items()}
