import subprocess
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from starfc.errors import MissingExtraError  # noqa: E402
from starfc.features import Features  # noqa: E402
from starfc.knn import join_rows  # noqa: E402
from starfc.model import Model, ModelConfig, expected_shapes  # noqa: E402
from starfc.network import EdgeNetwork, draw_distance_tensors, draw_tensors, prepare_nodes  # noqa: E402
from starfc.score import score_edges  # noqa: E402


def make_case(n=60, dim=8, hidden=(16,), k=7, seed=0):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(n, dim)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    graph = join_rows(rows, k)
    network = EdgeNetwork(dim, hidden, draw_tensors(dim, hidden, rng))
    with torch.no_grad():
        network.classifier[1].weight += torch.linspace(-1.5, 1, hidden[-1])  # slopes on both sides of 1 and of 0
    return rows, graph, network


def all_edges(graph):
    return torch.arange(graph.n), torch.from_numpy(graph.neighbors)


def run_plainly(network, rows, graph, sources, targets):
    """The network as the paper writes it: torch's own layers on concatenated pairs, dense A~."""
    dense = np.zeros((graph.n, graph.n))
    for i in range(graph.n):
        for j, s in zip(graph.neighbors[i], graph.similarities[i], strict=True):
            if s > 0:
                dense[i, j] = max(dense[i, j], s)
                dense[j, i] = max(dense[j, i], s)
    dense += np.eye(graph.n)
    affinity = torch.from_numpy((dense / dense.sum(axis=1, keepdims=True)).astype(np.float32))
    hidden = torch.from_numpy(rows)
    for layer in range(1, network.n_layers + 1):
        conv = network.get_submodule(f"conv{layer}")
        hidden = torch.relu(torch.cat([hidden, affinity @ hidden], dim=1) @ conv.weight + conv.bias)
    pairs = torch.cat([hidden[sources].repeat_interleave(targets.shape[1], 0), hidden[targets.long().ravel()]], dim=1)
    return network.classifier(pairs)


@pytest.mark.parametrize("hidden", [(16,), (300,), (24, 12), (8, 8, 8)])
def test_log_odds_and_gradients_equal_the_plain_concatenation(hidden):
    rows, graph, network = make_case(hidden=hidden)
    sources = torch.tensor([3, 5, 40, 41, 59])
    targets = torch.from_numpy(graph.neighbors)[sources]
    truth = torch.from_numpy(np.random.default_rng(1).integers(0, 2, targets.shape))

    logits = run_plainly(network, rows, graph, sources, targets)
    plain_loss = torch.nn.functional.cross_entropy(logits, truth.ravel())
    plain_loss.backward()
    plain = {name: tensor.grad.clone() for name, tensor in network.named_parameters()}
    network.zero_grad()

    odds = network(prepare_nodes(rows, graph), sources, targets)
    loss = torch.nn.functional.binary_cross_entropy_with_logits(odds, truth.float())
    loss.backward()
    assert torch.allclose(odds.ravel(), logits[:, 1] - logits[:, 0], atol=1e-5)
    assert abs(loss.item() - plain_loss.item()) < 1e-5
    for name, tensor in network.named_parameters():
        assert torch.allclose(tensor.grad, plain[name], atol=1e-5), name


def test_gradients_agree_with_finite_differences():
    rows, graph, network = make_case(n=12, dim=3, hidden=(4,), k=3)
    nodes, (sources, targets) = prepare_nodes(rows, graph), all_edges(graph)
    network(nodes, sources, targets).sum().backward()
    weight = network.get_submodule("conv1").weight
    for place in [(0, 0), (2, 1), (5, 3)]:
        with torch.no_grad():
            weight[place] += 1e-2
            above = network(nodes, sources, targets).sum().item()
            weight[place] -= 2e-2
            below = network(nodes, sources, targets).sum().item()
            weight[place] += 1e-2
        assert weight.grad[place].item() == pytest.approx((above - below) / 2e-2, rel=0.05, abs=0.05)


@pytest.mark.parametrize("hidden", [(16,), (24, 12)])
def test_equals_the_scores_at_inference(hidden):
    rows, graph, network = make_case(hidden=hidden)
    model = Model(ModelConfig(dim=8, hidden=hidden), network.get_tensors())
    scores = score_edges(Features(rows), graph, model).scores
    with torch.no_grad():
        odds = network(prepare_nodes(rows, graph), *all_edges(graph))
    assert np.allclose(torch.sigmoid(odds).numpy(), scores, atol=1e-5)


@pytest.mark.parametrize("hidden", [(16,), (24, 12)])
def test_equals_a_numpy_forward(hidden):
    rows, graph, network = make_case(hidden=hidden)
    tensors = network.get_tensors()
    nodes = prepare_nodes(rows, graph)
    values = rows
    for layer in range(1, len(hidden) + 1):
        stacked = np.concatenate([values, nodes.affinity.toarray() @ values], axis=1)
        values = np.maximum(stacked @ tensors[f"conv{layer}.weight"] + tensors[f"conv{layer}.bias"], 0)
    for i in (0, 17, 59):
        for slot, j in enumerate(graph.neighbors[i]):
            first = (
                tensors["classifier.0.weight"] @ np.concatenate([values[i], values[j]]) + tensors["classifier.0.bias"]
            )
            bent = np.where(first > 0, first, first * tensors["classifier.1.weight"])
            logits = tensors["classifier.2.weight"] @ bent + tensors["classifier.2.bias"]
            with torch.no_grad():
                odds = network(nodes, torch.tensor([i]), torch.from_numpy(graph.neighbors[i : i + 1]))
            assert odds[0, slot].item() == pytest.approx(logits[1] - logits[0], abs=1e-5)


def test_state_has_the_released_names_and_shapes():
    _, _, network = make_case(hidden=(24, 12))
    found = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    assert found == expected_shapes(8, (24, 12))


def test_first_weights_depend_on_the_generator_only():
    first, again = (draw_tensors(8, (16,), np.random.default_rng(3)) for _ in range(2))
    other = draw_tensors(8, (16,), np.random.default_rng(4))
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert not np.array_equal(first["conv1.weight"], other["conv1.weight"])
    assert abs(first["conv1.weight"]).max() <= np.sqrt(6 / (16 + 16))


@pytest.mark.parametrize(("dim", "width"), [(8, 400), (8, 401), (8, 6), (1, 2)])
def test_distance_weights_give_the_distance_of_smoothed_faces(dim, width):
    rows, graph, _ = make_case(dim=max(dim, 2), k=7)
    dim = rows.shape[1]
    network = EdgeNetwork(dim, (width,), draw_distance_tensors(dim, width, np.random.default_rng(0)))
    nodes = prepare_nodes(rows, graph)
    smooth = (rows + nodes.affinity @ rows) / 2
    with torch.no_grad():
        odds = network(nodes, *all_edges(graph)).numpy()
    directions = network.get_tensors()["conv1.weight"][:dim, : width // 2] * 2
    expected = np.abs((smooth[:, None] - smooth[graph.neighbors]) @ directions).sum(axis=2)
    assert np.allclose(-odds, expected, atol=1e-4)
    assert np.allclose(np.linalg.norm(directions, axis=0), 1, atol=1e-5)
    if width >= 400:  # many directions: the sum is a multiple of the Euclidean distance
        ratio = -odds / np.linalg.norm(smooth[:, None] - smooth[graph.neighbors], axis=2)
        assert ratio.std() / ratio.mean() < 0.1


def test_odds_are_scaled_and_shifted():
    rows, graph, network = make_case()
    nodes = prepare_nodes(rows, graph)
    with torch.no_grad():
        before = network(nodes, *all_edges(graph))
        network.scale_odds(3.0, -0.5)
        assert torch.allclose(network(nodes, *all_edges(graph)), 3 * before - 0.5, atol=1e-5)


def test_tensors_go_out_and_in_unchanged():
    _, _, network = make_case()
    _, _, other = make_case(seed=9)
    tensors = network.get_tensors()
    other.load_tensors(tensors)
    assert all(np.array_equal(tensors[name], tensor) for name, tensor in other.get_tensors().items())


def test_two_threads_give_the_bits_of_one(monkeypatch):
    import numba

    rows, graph, network = make_case(n=300, hidden=(300,), k=20)
    gradients = []
    before = numba.get_num_threads()
    for threads in (1, min(2, numba.config.NUMBA_NUM_THREADS)):
        numba.set_num_threads(threads)
        network.zero_grad()
        network(prepare_nodes(rows, graph), *all_edges(graph)).square().sum().backward()
        gradients.append(network.classifier[2].weight.grad.clone())
    numba.set_num_threads(before)
    assert torch.equal(*gradients)


def test_without_torch_the_remedy_is_named():
    code = "import sys; sys.modules['torch'] = None\nimport starfc.network"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert MissingExtraError.__name__ in done.stderr
    assert "training needs torch; install it with: pip install 'starfc[train]'" in done.stderr
