"""Checkpoints: what is saved comes back bit for bit, and nothing else is taken for it."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from starfc.checkpoints import Checkpoints, TrainingState, fingerprint_data  # noqa: E402
from starfc.errors import InputError  # noqa: E402
from starfc.features import Features  # noqa: E402
from starfc.network import EdgeNetwork, draw_tensors  # noqa: E402

OPTIMIZERS = {
    "adam": torch.optim.Adam,
    "sgd": lambda weights: torch.optim.SGD(weights, lr=0.1, momentum=0.9),
    "plain": lambda weights: torch.optim.SGD(weights, lr=0.1),  # keeps no averages
}


def make_state(optimizer, *, seed=0, steps=0):
    """Make the state of a training, after steps along made-up gradients."""
    network = EdgeNetwork(4, (3,), draw_tensors(4, (3,), np.random.default_rng(seed)))
    state = TrainingState(network, OPTIMIZERS[optimizer](network.parameters()))
    for _ in range(steps):
        take_step(state)
    return state


def take_step(state):
    rng = np.random.default_rng(state.step)
    for weights in state.network.parameters():
        weights.grad = torch.from_numpy(rng.normal(size=tuple(weights.shape)).astype(np.float32))
    state.optimizer.step()
    state.add_step(steps=1, loss=0.1 * state.step)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_restored_state_goes_on_with_the_same_bits(tmp_path, optimizer):
    state = make_state(optimizer, steps=3)
    state.history.append({"step": 2, "tau2": None})
    state.note_loss(0.5)
    Checkpoints(tmp_path, {"seed": 0}, 10.0).save(state)
    restored = make_state(optimizer, seed=1)
    assert Checkpoints(tmp_path, {"seed": 0}, 10.0).restore(restored)
    assert (restored.step, restored.sums, restored.history, restored.result) == (
        3, {"steps": 3, "loss": 0.1 + 0.2}, [{"step": 2, "tau2": None}], None,
    )  # fmt: skip
    assert (restored.best_step, restored.best_loss) == (3, 0.5)
    assert all(np.array_equal(tensor, restored.best[name]) for name, tensor in state.best.items())
    take_step(state)
    take_step(restored)
    for name, tensor in state.network.get_tensors().items():
        assert np.array_equal(tensor, restored.network.get_tensors()[name]), name


def test_without_a_folder_nothing_is_saved():
    checkpoints = Checkpoints(None, {}, 0.0)
    checkpoints.save_if_due(make_state("adam"))
    assert not checkpoints.restore(make_state("adam"))


def test_an_empty_folder_restores_nothing(tmp_path):
    assert not Checkpoints(tmp_path, {}, 0.0).restore(make_state("adam"))


def test_checkpoints_are_as_far_apart_as_asked(tmp_path):
    checkpoints = Checkpoints(tmp_path, {}, 1000.0)
    checkpoints.save_if_due(make_state("adam"))
    assert not checkpoints.path.exists()
    checkpoints.saved_at -= 1000.0
    checkpoints.save_if_due(make_state("adam"))
    assert checkpoints.path.exists()
    checkpoints.path.unlink()
    checkpoints.save_if_due(make_state("adam"))
    assert not checkpoints.path.exists()


def test_another_fingerprint_is_refused_and_what_differs_named(tmp_path):
    Checkpoints(tmp_path, {"steps": 6, "hidden": (8,), "seed": 1}, 0.0).save(make_state("adam"))
    state = make_state("adam", seed=1)
    with pytest.raises(InputError, match=r"other steps \(6, now 7\), hidden \(\[8\], now \[9\]\);") as caught:
        Checkpoints(tmp_path, {"steps": 7, "hidden": (9,), "seed": 1}, 0.0).restore(state)
    assert "seed" not in str(caught.value) and "use another workdir" in str(caught.value)
    assert Checkpoints(tmp_path, {"steps": 6, "hidden": (8,), "seed": 1}, 0.0).restore(state)


@pytest.mark.parametrize(
    "damage", [lambda whole: whole[:100], lambda whole: b"", lambda whole: whole.replace(b"starfc", b"x")]
)
def test_a_damaged_checkpoint_is_named(tmp_path, damage):
    checkpoints = Checkpoints(tmp_path, {}, 0.0)
    checkpoints.save(make_state("adam", steps=1))
    checkpoints.path.write_bytes(damage(checkpoints.path.read_bytes()))
    with pytest.raises(InputError, match=r"cannot be read .* delete it to start again"):
        checkpoints.restore(make_state("adam"))


def test_other_data_has_another_fingerprint():
    rows, labels = np.random.default_rng(0).normal(size=(10_000, 3)), np.arange(10_000)
    whole = fingerprint_data(Features(rows), labels)
    assert whole == fingerprint_data(Features(rows.copy()), labels.copy())
    flipped = rows.copy()
    flipped[0] *= -1
    assert fingerprint_data(Features(flipped), labels)["features"] != whole["features"]
    assert fingerprint_data(Features(rows), labels[::-1].copy())["labels"] != whole["labels"]
    assert fingerprint_data(Features(rows[:-1]), labels[:-1])["faces"] == "9999 x 3 float64"
