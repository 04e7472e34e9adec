import json
from pathlib import Path

import numpy as np
import pytest

from starfc.errors import ModelError, OutputError
from starfc.model import Model, ModelConfig, import_checkpoint, load_model
from test_score import random_model

torch = pytest.importorskip("torch")


def save_released(folder, model, prefix=""):
    """Write the model's tensors as the authors' two files."""
    state = {prefix + name: torch.from_numpy(tensor) for name, tensor in model.tensors.items()}
    backbone, head = folder / "Backbone.pth", folder / "Head.pth"
    torch.save({name: tensor for name, tensor in state.items() if "conv" in name}, backbone)
    torch.save({name: tensor for name, tensor in state.items() if "classifier" in name}, head)
    return backbone, head


def test_round_trip(tmp_path):
    model = random_model(6, (16, 8)).with_config(k=33, tau2=None, gcn_weight=0.25, training={"n_people": 7})
    model.save(tmp_path / "model")
    again = load_model(tmp_path / "model")
    assert again.config == model.config
    assert all(np.array_equal(again.tensors[name], tensor) for name, tensor in model.tensors.items())
    assert {path.name for path in (tmp_path / "model").iterdir()} == {"model.safetensors", "config.json", "README.md"}
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert config["k"] == 33 and config["tau_1"] == 0.7 and config["scorer"] == "gcn"
    assert config["shapes"]["conv1.weight"] == [12, 16]


def test_saving_again_replaces_the_model_but_nothing_else(tmp_path):
    random_model(4, (3,)).save(tmp_path / "model")
    random_model(5, (3,)).save(tmp_path / "model")
    assert load_model(tmp_path / "model").config.dim == 5
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.jpg").write_text("dear")
    with pytest.raises(OutputError, match="holds other files"):
        random_model(4, (3,)).save(tmp_path / "photos")
    assert (tmp_path / "photos" / "a.jpg").read_text() == "dear"
    assert {path.name for path in tmp_path.iterdir()} == {"model", "photos"}


@pytest.mark.parametrize("prefix", ["", "module."])
def test_imported_checkpoint_has_the_authors_settings(tmp_path, prefix):
    model = random_model(6, (8,))
    imported = import_checkpoint(*save_released(tmp_path, model, prefix))
    assert imported.config.k == 80 and imported.config.n_neighbors == 79
    assert (imported.config.tau1, imported.config.tau2, imported.config.edges) == (0.7, 0.72, "directed")
    assert all(np.array_equal(imported.tensors[name], tensor) for name, tensor in model.tensors.items())


def test_checkpoint_with_code_in_it_is_refused(tmp_path):
    _, head = save_released(tmp_path, random_model(6, (8,)))
    evil = tmp_path / "evil.pth"
    torch.save({"conv1.weight": Path("code")}, evil)  # any object but a tensor stands for code
    with pytest.raises(ModelError, match="cannot be read safely"):
        import_checkpoint(evil, head)


def test_checkpoint_of_something_else_is_refused(tmp_path):
    backbone, head = save_released(tmp_path, random_model(6, (8,)))
    with pytest.raises(ModelError, match=r"expected 'conv1\.weight'"):
        import_checkpoint(head, head)
    with pytest.raises(ModelError, match="does not exist"):
        import_checkpoint(backbone, tmp_path / "nowhere.pth")
    torch.save([1, 2], tmp_path / "list.pth")
    with pytest.raises(ModelError, match="no state dict"):
        import_checkpoint(tmp_path / "list.pth", head)


def change_config(folder, **changes):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


def flip_last_byte(path):
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def test_a_folder_of_before_digests_is_read(tmp_path):
    random_model(6, (8,)).save(tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert len(config.pop("sha256")) == 64
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    assert load_model(tmp_path / "model").config.dim == 6


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda f: (f / "config.json").unlink(), "has no config.json"),
        (lambda f: (f / "model.safetensors").unlink(), "has no model.safetensors"),
        (lambda f: (f / "config.json").write_text("{"), "is damaged"),
        (lambda f: (f / "config.json").write_text("[]"), "not of a starfc model"),
        (lambda f: (f / "model.safetensors").write_bytes(b"\0" * 20), "is damaged"),
        (lambda f: flip_last_byte(f / "model.safetensors"), "is not the file that config.json was written with"),
        (lambda f: (f / "model.safetensors").write_bytes((f / "model.safetensors").read_bytes()[:-9]), "is damaged"),
        (lambda f: change_config(f, format="other"), "not of a starfc model"),
        (lambda f: change_config(f, format_version=99), "format version 99"),
        (lambda f: change_config(f, dim="many"), "lacks or garbles"),
        (lambda f: change_config(f, dim=7), "has shape"),
        (lambda f: change_config(f, hidden=[]), "lacks or garbles"),
        (lambda f: change_config(f, tau_1=None), "lacks or garbles"),
        (lambda f: change_config(f, gcn_weight="much"), "lacks or garbles"),
        (lambda f: change_config(f, gcn_weight=None), "lacks or garbles"),
        (lambda f: change_config(f, gcn_weight=float("nan")), "gcn_weight"),
        (lambda f: change_config(f, gcn_weight=2), "gcn_weight"),
        (lambda f: change_config(f, gcn_weight=-0.1), "gcn_weight"),
    ],
)
def test_damaged_folders_are_named(tmp_path, damage, sentence):
    random_model(6, (8,)).save(tmp_path / "model")
    damage(tmp_path / "model")
    with pytest.raises(ModelError, match=sentence):
        load_model(tmp_path / "model")


def test_weights_that_are_not_numbers_are_refused():
    tensors = random_model(3, (2,)).tensors
    tensors["conv1.bias"][0] = np.nan
    with pytest.raises(ModelError, match="NaN"):
        Model(ModelConfig(dim=3, hidden=(2,)), tensors)


def test_another_programs_model_is_not_replaced(tmp_path):
    folder = tmp_path / "bert"
    folder.mkdir()
    for name, text in (("config.json", '{"model_type": "bert"}'), ("model.safetensors", "x"), ("README.md", "x")):
        (folder / name).write_text(text)
    with pytest.raises(OutputError, match="holds other files"):
        random_model(4, (3,)).save(folder)
    assert "bert" in (folder / "config.json").read_text()


@pytest.mark.parametrize("k", [-5, 0, 1.5, True, None, "80"])
def test_a_garbled_k_is_refused(tmp_path, k):
    random_model(6, (8,)).save(tmp_path / "model")
    change_config(tmp_path / "model", k=k)
    with pytest.raises(ModelError, match="k "):
        load_model(tmp_path / "model")
