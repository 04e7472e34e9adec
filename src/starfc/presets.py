"""Presets of training the paper's network, and how a training reports.

Where the paper and the authors' released code differ, the `paper` preset takes the published sampling, and from the
code what the paper does not say: one GCN layer of 512, SGD (.01, momentum .9, decay 1e-5), and that a subgraph is gone
through twice in small steps. Theirs are 80 of 1/40 of the edges; here 16 of 1/8, because on a CPU a step has a price of
its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from .sampling import PLANS, SamplingPlan

_SUBGRAPH_NODES = 5_000  # half of the paper's: on a CPU more steps are worth more than larger ones


@dataclass(frozen=True)
class Preset:
    """What a training does unless it is told otherwise.

    Attributes
    ----------
    plan : SamplingPlan
        How subgraphs are drawn, where the data has enough people.
    max_nodes : int or None
        Faces wanted in a subgraph; None leaves it to the plan.
    optimizer : {"sgd", "adam"}
    learning_rate, weight_decay : float
    decay : bool
        Lower the learning rate to 0 along a cosine.
    steps : int
        Of the optimiser, in all.
    steps_per_subgraph : int
        For how many of them a subgraph is used.
    slice_share : float
        Share of a subgraph's faces whose edges one step sees.
    tau1, tau2 : float
        Thresholds of the model, unless the held-out people choose them.
    choose_thresholds : bool
    choose_best : bool
        Take the weights of the report with the least loss on held-out people, and stop early when that was long ago.
    start_as_distance : bool
        Begin with weights that make the network a distance of smoothed faces, in place of random ones.
    """

    plan: SamplingPlan
    max_nodes: int | None
    optimizer: str
    learning_rate: float
    weight_decay: float
    decay: bool
    steps: int
    steps_per_subgraph: int
    slice_share: float
    tau1: float = 0.7
    tau2: float = 0.72
    choose_thresholds: bool = True
    choose_best: bool = True
    start_as_distance: bool = True


PRESETS = {
    "paper": Preset(
        plan=PLANS["ms1m"], max_nodes=None, optimizer="sgd", learning_rate=0.01, weight_decay=1e-5, decay=False,
        steps=2000, steps_per_subgraph=16, slice_share=1 / 8, choose_thresholds=False, choose_best=False,
        start_as_distance=False,
    ),
    "gcn": Preset(
        plan=PLANS["ms1m"], max_nodes=_SUBGRAPH_NODES, optimizer="adam", learning_rate=3e-4, weight_decay=0.0,
        decay=True, steps=150, steps_per_subgraph=4, slice_share=1 / 2,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class TrainingReport:
    """How a training stands. Figures on held-out people are None when nobody is held out.

    Attributes
    ----------
    step, steps : int
        Done, and in all.
    loss, accuracy : float
        Mean cross entropy and share of edges judged rightly since the last report, on people trained on.
    held_out_loss, held_out_accuracy, pairwise_f, bcubed_f : float or None
        The same, and the F of the clusters at `tau1` and `tau2`, on people never trained on.
    tau1, tau2 : float or None
        Thresholds used for these: the preset's; those of the model may be chosen after the last report.
    nodes_per_s, edges_per_s : float
        Faces of subgraphs run through the GCN, and edges through the head, per second (without evaluation).
    """

    step: int
    steps: int
    loss: float
    accuracy: float
    nodes_per_s: float
    edges_per_s: float
    held_out_loss: float | None = None
    held_out_accuracy: float | None = None
    pairwise_f: float | None = None
    bcubed_f: float | None = None
    tau1: float | None = None
    tau2: float | None = None

    def __str__(self) -> str:
        speed = f"{self.nodes_per_s:,.0f} nodes/s, {self.edges_per_s:,.0f} edges/s"
        line = f"step {self.step}/{self.steps}: loss {self.loss:.4f}, edge accuracy {self.accuracy:.4f}"
        if self.held_out_accuracy is None:
            return f"{line} ({speed})"
        return (
            f"{line}; held-out people: edge accuracy {self.held_out_accuracy:.4f}, F pairwise {self.pairwise_f:.4f},"
            f" BCubed {self.bcubed_f:.4f} ({speed})"
        )
