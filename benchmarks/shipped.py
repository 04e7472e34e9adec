"""Train the model that is shipped with starfc, over the worlds of `worlds.py` and nothing else.

    python benchmarks/shipped.py -o src/starfc/shipped              # 4,050 worlds; 45 minutes of two cores
    python benchmarks/shipped.py -o /tmp/model --every 20           # of a twentieth of them
    python benchmarks/shipped.py -o /tmp/model --check 900 915      # and its calibration on worlds it has not seen
    python benchmarks/shipped.py -o /tmp/model --first src/starfc/shipped   # the second network anew

Every world is drawn, its kNN graph built with the k that `choose_k` takes, and some thousand of its edges described.
Most worlds have 1,000 to 9,000 faces, the small ones 60 to 3,000, and in one of ten of these nobody has two faces. In
sparse worlds hardly anybody has: a model that has seen few of them takes strangers for matches there, above all if
worlds are of people who are not alike; real ones are, as those of alike worlds. Crowded worlds are filled by 1 to 20
people: a model that has hardly seen this tears them apart. In gathered worlds they are among people who are there once:
a model that has not seen this makes clusters of the strangers. So it is in albums, some with near-copies, but hardly
any of these has crowds of look-alikes: where crowds are dense groups as often as people are, a model takes people for
crowds. In bursts pictures were taken several times in a row. The second network learns from two kinds more. Worlds 900
to 1,099, 10,000 to 29,999, 38,000 to 38,999 and 44,000 to 48,999 are never trained on. The features of the edges of
each world are kept in `--cache`, under the version of the code that described them, so that an interrupted run goes on.

What is shipped is two networks, for the first sight and for the second look (`relational.py`). Each is the mean of two
networks' log-odds, as one network; they differ in their seeds only, and where they disagree, neither knows.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import block_diag

from starfc.atomic import replacing
from starfc.features import Features
from starfc.perceptron import Perceptron
from starfc.relational import RelationalModel, add_second, load_relational
from starfc.relational_training import EdgeSample, fit_network, sample_edges
from starfc.threads import limited_threads
from starfc.workdir import digest_arrays
from unsupervised import name_code
from worlds import (
    Collection,
    draw_album_world,
    draw_alike_world,
    draw_burst_world,
    draw_crowded_world,
    draw_gathered_world,
    draw_small_world,
    draw_sparse_world,
    draw_uneven_world,
    draw_various_world,
    draw_world,
)

Draw = Callable[[int], Collection]


class World(NamedTuple):
    """A world to learn from, or to test on."""

    draw: Draw
    seed: int
    n_edges: int = 6_000  # described, at most
    most_per_face: int | None = None


_PER_FACE = 30  # edges described of a face, at most, where a few people have nearly all edges
# How worlds are drawn, with which seeds, and how many edges of each are described.
_PLAN: tuple[tuple[Draw, range, int], ...] = (
    (draw_world, range(160), 6_000),
    (draw_small_world, range(160, 210), 6_000),
    (draw_crowded_world, range(210, 250), 6_000),
    (draw_world, range(30_000, 30_320), 6_000),
    (draw_small_world, range(31_000, 31_100), 6_000),
    (draw_crowded_world, range(32_000, 32_080), 6_000),
    (draw_world, range(33_000, 33_800), 4_000),
    (draw_small_world, range(34_000, 34_250), 4_000),
    (draw_crowded_world, range(35_000, 35_200), 4_000),
    (draw_sparse_world, range(36_000, 36_400), 4_000),
    (draw_alike_world, range(37_000, 37_500), 4_000),
    (draw_sparse_world, range(41_000, 41_200), 4_000),
    (draw_gathered_world, range(42_000, 42_200), 4_000),
    (draw_burst_world, range(43_000, 43_250), 4_000),
    (draw_album_world, range(51_000, 51_500), 4_000),
)
_N_NETWORKS = 2
_EPOCHS = 8
# Of what the second network says: it has learned what worlds are like around an edge, and real ones differ in that.
_SHARE = 0.7
_FEW_AMONG_OTHERS = (draw_gathered_world, draw_album_world)
WORLDS = [
    World(draw, seed, n_edges, _PER_FACE if draw in _FEW_AMONG_OTHERS else None)
    for draw, seeds, n_edges in _PLAN
    for seed in seeds
]
# What the second look learns from: one in two of these, all of a few people among others, more people who vary a lot,
# and more of those with many faces among people with few: without these it tore them apart.
SEEN_AGAIN = [
    *(world for at, world in enumerate(WORLDS) if at % 2 == 0 or world.draw in _FEW_AMONG_OTHERS),
    *(World(draw_various_world, seed, 5_000) for seed in range(40_000, 40_600)),
    *(World(draw_uneven_world, seed, 5_000, _PER_FACE) for seed in range(49_000, 49_400)),
    *(World(draw_album_world, seed, 5_000, _PER_FACE) for seed in range(51_500, 51_900)),
]

_CARD = """# The relational scorer shipped with starfc

Gives P(same person) for an edge of a kNN graph of face vectors, from relations in units that do not depend on the
embedder (`relations.py`), and from what its first probabilities say of an edge's surroundings (`looks.py`). Used by
`starfc cluster FEATURES -o OUT` where no model is given.

- First network: {first}
- Second network, {share} of whose output is added for edges that are not hopeless: {second}
- Both are means of networks that differ in their seeds ({seeds}), trained on synthetic worlds only
  (`benchmarks/worlds.py`), no real faces, nobody's pictures.
- Command: `python benchmarks/shipped.py -o src/starfc/shipped{options}`.
- What it gives on worlds and real sets that it has not seen: `docs/benchmarks.md`.
- Not for: verifying that somebody is who they say they are; vectors that are not embeddings of faces (it knows only
  worlds of people with look-alikes).
- Licence: that of starfc.
"""


def write_card(model: RelationalModel, options: str = "") -> str:
    """Return the text that goes with the model, made by the script with these options."""
    told = {}
    for name, network in (("first", model.first), ("second", model.second)):
        assert network is not None
        layers, facts = [len(bias) for bias in network.biases], model.facts[name]
        told[name] = (
            f"{len(network.lowest)} numbers of an edge, layers {layers}, trained on {facts['n_edges']:,} edges of"
            f" {facts['n_worlds']:,} worlds."
        )
    seeds = " and ".join(map(str, model.facts["first"]["seeds"]))
    return _CARD.format(**told, seeds=seeds, share=_SHARE, options=options)


def describe_world(world: World, cache: Path, model: RelationalModel | None = None) -> EdgeSample:
    """Return the described edges of a world, by a second look where a model is given; from the cache if they are."""
    code = name_code()
    if model is not None:
        first = digest_arrays(**model.first.name_tensors())[:12]
        code = f"{name_code('looks.py', 'pairs.py', 'perceptron.py', 'relational.py')}-{first}"
    path = cache / code / f"{world.draw.__name__}-{world.seed}-{world.n_edges}-{world.most_per_face}.npz"
    if path.exists():
        with np.load(path, allow_pickle=False) as kept:
            return EdgeSample(kept["inputs"], kept["targets"])
    rows, labels, _ = world.draw(world.seed)
    faces, most = Features(rows), world.most_per_face
    with limited_threads(1):  # worlds are described side by side
        sample = sample_edges(faces, labels, n_edges=world.n_edges, model=model, most_per_face=most, seed=world.seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as aside, aside.open("wb") as file:
        np.savez(file, inputs=sample.inputs, targets=sample.targets)
    return sample


def average_networks(networks: list[Perceptron]) -> Perceptron:
    """Return one network whose log-odds are the mean of those of several, trained on the same edges."""
    assert all((network.lowest == networks[0].lowest).all() for network in networks), "inputs are cut to one range"
    n_layers = len(networks[0].weights)
    firsts, *between, lasts = ([network.weights[at] for network in networks] for at in range(n_layers))
    biases = [np.concatenate([network.biases[at] for network in networks]) for at in range(n_layers)]
    weights = [np.concatenate(firsts, axis=1), *(block_diag(*layer) for layer in between), np.concatenate(lasts)]
    weights[-1], biases[-1] = weights[-1] / len(networks), biases[-1].mean(keepdims=True)
    return Perceptron(
        tuple(np.ascontiguousarray(weight, np.float32) for weight in weights),
        tuple(bias.astype(np.float32) for bias in biases),
        networks[0].lowest, networks[0].highest,
    )  # fmt: skip


def scale_output(network: Perceptron, share: float) -> Perceptron:
    """Return the network that says so much of what this one says."""
    *weights, last = network.weights
    *biases, bias = network.biases
    return replace(network, weights=(*weights, last * np.float32(share)), biases=(*biases, bias * np.float32(share)))


def train_network(
    worlds: list[World], options: argparse.Namespace, model: RelationalModel | None = None
) -> tuple[Perceptron, dict[str, Any]]:
    """Describe worlds and fit networks to them; return their mean and what is to be told of it."""
    started = time.perf_counter()
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        samples = list(pool.map(describe_world, worlds, repeat(options.cache), repeat(model), chunksize=8))
    print(f"{len(samples)} worlds described in {time.perf_counter() - started:.0f} s", flush=True)
    network = average_networks([fit_network(samples, epochs=options.epochs, seed=seed) for seed in range(_N_NETWORKS)])
    print(f"trained in {time.perf_counter() - started:.0f} s", flush=True)
    n_edges = sum(len(sample.targets) for sample in samples)
    facts = {"n_worlds": len(samples), "epochs": options.epochs, "n_edges": n_edges, "seeds": [*range(_N_NETWORKS)]}
    return network, facts


def check(model: RelationalModel, seeds: range, cache: Path) -> None:
    """Print calibration on the edges of worlds that get a second look."""
    assert model.second is not None
    print("| world | mean probability | share of matches | log loss |\n|---|---|---|---|")
    for seed in seeds:
        sample = describe_world(World(draw_world, seed), cache, model)
        p = np.clip(1 / (1 + np.exp(-add_second(model.second, sample.inputs).astype(np.float64))), 1e-6, 1 - 1e-6)
        loss = -np.mean(np.where(sample.targets > 0, np.log(p), np.log(1 - p)))
        print(f"| {seed} | {p.mean():.3f} | {sample.targets.mean():.3f} | {loss:.3f} |", flush=True)


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--first", type=Path, help="a model folder whose first network is taken as it is")
    parser.add_argument("--every", type=int, default=1, help="take one world in so many")
    parser.add_argument("--check", type=int, nargs=2)
    parser.add_argument("--epochs", type=int, default=_EPOCHS)
    parser.add_argument("--jobs", type=int, default=2, help="worlds described at a time")
    parser.add_argument("--cache", type=Path, default=Path("bench/worlds"))
    options = parser.parse_args()
    if options.first:
        known = load_relational(options.first)
        first, first_facts = known.first, known.facts["first"]
    else:
        first, first_facts = train_network(WORLDS[:: options.every], options)
    second, second_facts = train_network(SEEN_AGAIN[:: options.every], options, RelationalModel(first))
    second = scale_output(second, _SHARE)
    model = RelationalModel(first, second, {"first": first_facts, "second": second_facts})
    told = f" --first {options.first}" * bool(options.first) + f" --every {options.every}" * (options.every > 1)
    model.save(options.output, write_card(model, told + f" --epochs {options.epochs}" * (options.epochs != _EPOCHS)))
    if options.check:
        check(model, range(*options.check), options.cache)


if __name__ == "__main__":
    main()
