"""The paper's network in torch, for training only (Sec. 3.2): a GCN over the faces, an MLP over the edges.

In: the rows of a subgraph, its affinity, and edges. Out: the log-odds that both ends are one person,

    F_{l+1} = relu([F_l, A~ F_l] W_l + b_l),      odds(i -> j) from  W_2 prelu(W_1 [h_i; h_j] + b_1) + b_2.

The tensors have the names and shapes of the authors' release. As in `score.py`, W_1 [h_i; h_j] is split into
P_i + Q_j and prelu(v) = (1 + a)/2 v + (1 - a)/2 |v|, so that of the head only  sum_t u_t |P_it + Q_jt|  is
left per edge. That sum and its gradient are compiled: torch would write out (edges, h) a dozen times and take
ten times as long.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit, prange
from numpy.typing import NDArray

from .affinity import build_affinity
from .errors import MissingExtraError
from .knn import KnnGraph
from .model import expected_shapes

try:
    import torch
    from torch import Tensor, nn
    from torch.nn.functional import embedding
except ImportError as error:
    raise MissingExtraError("torch", "train", "training") from error

_COLUMNS = 128  # of the gradient per thread: a few rows of this many stay in the nearest cache


@dataclass(frozen=True)
class NodeInput:
    """What the first layer reads of a subgraph: it never changes while the subgraph is trained on.

    Attributes
    ----------
    stacked : float32 tensor (n, 2d)
        [F_0, A~ F_0].
    affinity : scipy.sparse.csr_array (n, n)
        A~, for the layers after the first.
    """

    stacked: Tensor
    affinity: Any


def prepare_nodes(rows: NDArray[np.float32], graph: KnnGraph) -> NodeInput:
    """Aggregate the unit rows (n, d) over the graph once, ahead of all steps on it."""
    affinity = build_affinity(graph).tocsr()
    # in torch's own memory, because bits of a GEMM can depend on the alignment
    stacked = torch.empty((len(rows), 2 * rows.shape[1]))
    stacked[:, : rows.shape[1]] = torch.from_numpy(rows)
    stacked[:, rows.shape[1] :] = torch.from_numpy(affinity @ rows)
    return NodeInput(stacked, affinity)


class GraphConvolution(nn.Module):
    """relu([F, A~ F] W + b) on rows that are stacked already: (n, 2 d_in) -> (n, d_out)."""

    def __init__(self, width_in: int, width_out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(2 * width_in, width_out))
        self.bias = nn.Parameter(torch.empty(width_out))

    def forward(self, stacked: Tensor) -> Tensor:
        """Apply the layer."""
        return torch.relu(torch.addmm(self.bias, stacked, self.weight))


class EdgeNetwork(nn.Module):
    """GCN layers `conv1`, `conv2`, ... and the head `classifier`, as the authors name them.

    Parameters
    ----------
    dim : int
        Numbers per face.
    hidden : tuple of int
        Width of each GCN layer (the authors': one of 512).
    tensors : dict
        First weights, as :func:`draw_tensors` or :func:`draw_distance_tensors` make them; torch's own
        generator is not used anywhere.
    """

    def __init__(self, dim: int, hidden: tuple[int, ...], tensors: dict[str, NDArray[np.float32]]) -> None:
        super().__init__()
        self.n_layers = len(hidden)
        for layer, (width_in, width_out) in enumerate(zip((dim, *hidden[:-1]), hidden, strict=True), start=1):
            self.add_module(f"conv{layer}", GraphConvolution(width_in, width_out))
        h = hidden[-1]
        self.classifier = nn.Sequential(nn.Linear(2 * h, h), nn.PReLU(h), nn.Linear(h, 2))
        self.load_tensors(tensors)

    def forward(self, nodes: NodeInput, sources: Tensor, targets: Tensor) -> Tensor:
        """Return the log-odds of the edges sources[i] -> targets[i, s].

        The cross entropy of the two-way output is the binary cross entropy of these: a softmax over two
        logits is the sigmoid of their difference.

        Parameters
        ----------
        nodes : NodeInput
        sources : int64 tensor (m,)
        targets : int32 tensor (m, k)

        Returns
        -------
        float32 tensor (m, k)
        """
        hidden = self.embed(nodes)  # (n, h)
        layers: Any = self.classifier  # nn.Sequential hides the types of what it holds
        first, prelu, last = layers
        own, other = first.weight.split(hidden.shape[1], dim=1)
        # functional.embedding, because the gradient of hidden[sources] takes twice the time
        outgoing = torch.addmm(first.bias, embedding(sources, hidden), own.T)  # P (m, h)
        incoming = hidden @ other.T  # Q (n, h)
        difference = last.weight[1] - last.weight[0]
        linear, absolute = difference * (1 + prelu.weight) / 2, difference * (1 - prelu.weight) / 2
        straight = (outgoing @ linear)[:, None] + embedding(targets, (incoming @ linear)[:, None])[..., 0]
        folded: Tensor = _SumOfFolded.apply(outgoing, incoming, targets, absolute)  # type: ignore[no-untyped-call]
        odds: Tensor = folded + straight + (last.bias[1] - last.bias[0])  # (m, k)
        return odds

    def embed(self, nodes: NodeInput) -> Tensor:
        """Run the GCN over all nodes: (n, h)."""
        hidden: Tensor = self.get_submodule("conv1")(nodes.stacked)
        for layer in range(2, self.n_layers + 1):
            around = _Aggregation.apply(hidden, nodes.affinity)  # type: ignore[no-untyped-call]
            stacked = torch.cat([hidden, around], dim=1)
            hidden = self.get_submodule(f"conv{layer}")(stacked)
        return hidden

    def scale_odds(self, slope: float, shift: float) -> None:
        """Turn the log-odds o that the network gives now into slope * o + shift."""
        last: Any = self.classifier[2]
        with torch.no_grad():
            last.weight *= slope
            last.bias *= slope
            last.bias += torch.tensor([-shift / 2, shift / 2])

    def get_tensors(self) -> dict[str, NDArray[np.float32]]:
        """Return copies of all weights, under the names of a model folder."""
        return {name: tensor.detach().numpy().copy() for name, tensor in self.state_dict().items()}

    def load_tensors(self, tensors: dict[str, NDArray[np.float32]]) -> None:
        """Take over weights under the names of a model folder."""
        self.load_state_dict({name: torch.from_numpy(tensor) for name, tensor in tensors.items()})


def draw_tensors(dim: int, hidden: tuple[int, ...], rng: np.random.Generator) -> dict[str, NDArray[np.float32]]:
    """Draw first weights: Xavier for the GCN, as the authors have it, and torch's usual ones for the head."""
    tensors = {}
    for name, shape in expected_shapes(dim, hidden).items():
        if name == "classifier.1.weight":
            values: NDArray[Any] = np.full(shape, 0.25)
        elif name.startswith("conv"):
            bound = np.sqrt(6 / sum(shape)) if len(shape) == 2 else 0.0
            values = rng.uniform(-bound, bound, shape)
        else:
            fan_in = 2 * hidden[-1] if name.startswith("classifier.0") else hidden[-1]
            values = rng.uniform(-1, 1, shape) / np.sqrt(fan_in)
        tensors[name] = values.astype(np.float32)
    return tensors


def draw_distance_tensors(dim: int, width: int, rng: np.random.Generator) -> dict[str, NDArray[np.float32]]:
    """Draw first weights that make the network of one layer a distance of smoothed faces.

    With x_i = (F_i + (A~ F)_i) / 2, random orthonormal directions w_t, and relu(v) - relu(-v) = v, a slope of
    -1 turns the head's unit t into |w_t (x_i - x_j)|, and their sum into a multiple of the distance: odds(i
    -> j) = -sum_t. So the network knows at step 0 what holds for all people, and learns from there; from
    random weights it would have to learn even that from the people it sees, which takes thousands. As many
    units hold |w_t (x_i + x_j)|, with no weight yet.
    """
    n_directions = width // 2
    n_bases = -(-n_directions // dim)
    bases = [np.linalg.qr(rng.normal(size=(dim, dim)))[0] for _ in range(n_bases)]
    directions = np.concatenate(bases, axis=1)[:, :n_directions]  # (d, width // 2)
    signed = np.concatenate([directions, -directions], axis=1)
    eye = np.eye(n_directions)
    difference, total = (np.block([eye, -eye, sign * eye, -sign * eye]) for sign in (-1, 1))
    tensors = {name: np.zeros(shape) for name, shape in expected_shapes(dim, (width,)).items()}
    used = 2 * n_directions  # an odd width leaves one unit without a task
    tensors["conv1.weight"][:, :used] = np.concatenate([signed, signed]) / 2
    head = np.concatenate([difference, total])
    tensors["classifier.0.weight"][:used, :used] = head[:, :used]
    tensors["classifier.0.weight"][:used, width : width + used] = head[:, used:]
    tensors["classifier.1.weight"] -= 1.0
    tensors["classifier.2.weight"][:, :n_directions] = [[0.5], [-0.5]]
    return {name: tensor.astype(np.float32) for name, tensor in tensors.items()}


class _Aggregation(torch.autograd.Function):
    """A~ F and its gradient A~^T G, both in a fixed order of summation."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, affinity: Any) -> Tensor:  # noqa: ANN401
        ctx.affinity = affinity
        return torch.from_numpy(affinity @ rows.detach().numpy())

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, None]:  # noqa: ANN401
        return torch.from_numpy(ctx.affinity.T @ gradients[0].contiguous().numpy()), None


class _SumOfFolded(torch.autograd.Function):
    """sum_t u_t |P_it + Q_jt| for every edge, without ever holding an array of (edges, h)."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:  # noqa: ANN401
        ctx.save_for_backward(*inputs)  # P (m, h), Q (n, h), targets (m, k), u (h,)
        arrays = (tensor.detach().contiguous().numpy() for tensor in inputs)
        return torch.from_numpy(_sum_folded(*arrays))

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, Tensor, None, Tensor]:  # noqa: ANN401
        outgoing, incoming, targets, scale = ctx.saved_tensors
        arrays = (tensor.contiguous().numpy() for tensor in (outgoing, incoming, targets, gradients[0]))
        by_source, by_target = (torch.from_numpy(array) for array in _sum_signs(*arrays))
        # |z| = sign(z) z, so the gradient of u needs no pass over the edges of its own
        by_scale = (by_source * outgoing).sum(dim=0) + (by_target * incoming).sum(dim=0)
        return by_source * scale, by_target * scale, None, by_scale


# Reassociation lets the sum over t use vector lanes; an edge is always summed by the same code, so its bits
# do not vary.
@njit(cache=True, parallel=True, fastmath={"reassoc", "nsz", "contract"})
def _sum_folded(outgoing, incoming, targets, scale):  # type: ignore[no-untyped-def]
    """Return sum_t scale_t |outgoing_it + incoming_jt| for all edges i -> j, float32 (m, k)."""
    m, k = targets.shape
    sums = np.empty((m, k), dtype=np.float32)
    for i in prange(m):
        own = outgoing[i]
        for slot in range(k):
            other = incoming[targets[i, slot]]
            total = np.float32(0)
            for t in range(len(own)):
                total += scale[t] * abs(own[t] + other[t])
            sums[i, slot] = total
    return sums


@njit(cache=True, parallel=True)
def _sum_signs(outgoing, incoming, targets, gradient):  # type: ignore[no-untyped-def]
    """Sum gradient_e sign(outgoing_it + incoming_jt) over the edges of each source and of each target.

    A thread has some of the columns of all nodes to itself, so nothing is scattered to by two of them.
    """
    m, h = outgoing.shape
    by_source = np.zeros((m, h), dtype=np.float32)
    by_target = np.zeros(incoming.shape, dtype=np.float32)
    for block in prange(-(-h // _COLUMNS)):
        start, stop = block * _COLUMNS, min((block + 1) * _COLUMNS, h)
        for i in range(m):
            own, own_sum = outgoing[i, start:stop], by_source[i, start:stop]
            for slot in range(targets.shape[1]):
                j, g = targets[i, slot], gradient[i, slot]
                other, other_sum = incoming[j, start:stop], by_target[j, start:stop]
                for t in range(stop - start):
                    signed = g if own[t] + other[t] > 0 else -g
                    own_sum[t] += signed
                    other_sum[t] += signed
    return by_source, by_target
