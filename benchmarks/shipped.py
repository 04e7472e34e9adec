"""Train the model that is shipped with starfc, over the worlds of `worlds.py` and nothing else.

    python benchmarks/shipped.py -o src/starfc/shipped --beside EARLIER     # 2,000 worlds, 40 CPU-minutes
    python benchmarks/shipped.py -o /tmp/model --every 20           # of a twentieth of them
    python benchmarks/shipped.py -o /tmp/model --check 900 915      # and its calibration on worlds it has not seen

Every world is drawn, its kNN graph built with the k that `choose_k` takes, and some thousand of its edges described.
Most worlds have 1,000 to 9,000 faces, the small ones 60 to 3,000, and in one of ten of these nobody has two faces: a
model that has never seen this takes strangers for matches there. Crowded worlds are filled by 1 to 20 people: a model
that has hardly seen this tears them apart. Worlds 900 to 1,099 and 10,000 to 29,999 are never trained on. The features
of the edges of each world are kept in `--cache`, under the version of the code that described them, so that an
interrupted run goes on.

A single network may be wildly wrong about a kind of collection that no world is like, and two of them are rarely so in
the same way. So what is shipped is the mean of two networks' log-odds, as one network: of the one trained here and of
the one that was shipped before (`--beside`; `git archive 5ea62c0 src/starfc/shipped`), trained on the first 250 worlds.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from starfc.features import Features
from starfc.relational import RelationalModel, load_relational, predict_log_odds
from starfc.relational_training import EdgeSample, fit_network, sample_edges
from unsupervised import name_code
from worlds import draw_crowded_world, draw_small_world, draw_world

Draw = Callable[[int], tuple[NDArray[np.float32], NDArray[np.int64], dict[str, Any]]]


class World(NamedTuple):
    """A world to learn from, or to test on."""

    draw: Draw
    seed: int
    n_edges: int = 6_000  # described, at most


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
)
WORLDS = [World(draw, seed, n_edges) for draw, seeds, n_edges in _PLAN for seed in seeds]

_CARD = """# The relational scorer shipped with starfc

Gives P(same person) for an edge of a kNN graph of face vectors, from relations in units that do not depend on the
embedder (`relations.py`). Used by `starfc cluster FEATURES -o OUT` where no model is given.

- Input: {n_relations} relations of an edge. Output: log-odds{of}. Layers: {layers}.
- Training: {n_edges:,} edges of {n_worlds:,} synthetic worlds (`benchmarks/worlds.py`), no real faces, nobody's
  pictures. Seed {seed}. Command: `python benchmarks/shipped.py -o src/starfc/shipped{options}`.{remark}
- Mean probability and share of matches on worlds and real sets that it has not seen: `docs/benchmarks.md`.
- Not for: verifying that somebody is who they say they are; vectors that are not embeddings of faces (it knows only
  worlds of people with look-alikes).
- Licence: that of starfc.
"""


_REMARK = """
  That is one of the two; the other (`EARLIER`: what was shipped up to commit 5ea62c0) was trained on 250 of these, most
  of which were described before the rule for a few people who fill a collection was written. Relations are cut to the
  ranges that both have seen."""


def describe_world(world: World, cache: Path) -> EdgeSample:
    """Return the described edges of a world, from the cache where they are."""
    path = cache / name_code() / f"{world.draw.__name__}-{world.seed}-{world.n_edges}.npz"
    if path.exists():
        with np.load(path, allow_pickle=False) as kept:
            return EdgeSample(kept["relations"], kept["targets"], float(kept["least"]))
    rows, labels, _ = world.draw(world.seed)
    sample = sample_edges(Features(rows), labels, n_edges=world.n_edges, seed=world.seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_suffix(".part.npz")
    np.savez(aside, relations=sample.relations, targets=sample.targets, least=sample.least)
    aside.replace(path)
    return sample


def average_networks(earlier: RelationalModel, trained: RelationalModel) -> RelationalModel:
    """Return one network whose log-odds are the mean of those of two, on relations within the ranges of both."""
    weights, biases = [], []
    for at, (one, other) in enumerate(zip(earlier.weights, trained.weights, strict=True)):
        if at == 0:
            weights.append(np.concatenate([one, other], axis=1))
        elif at < len(earlier.weights) - 1:
            weights.append(np.block([
                [one, np.zeros((len(one), other.shape[1]))], [np.zeros((len(other), one.shape[1])), other]
            ]))  # fmt: skip
        else:
            weights.append(np.concatenate([one, other]) / 2)
        pair = earlier.biases[at], trained.biases[at]
        biases.append(np.concatenate(pair) if at < len(earlier.weights) - 1 else (pair[0] + pair[1]) / 2)
    return RelationalModel(
        tuple(weight.astype(np.float32) for weight in weights), tuple(bias.astype(np.float32) for bias in biases),
        np.maximum(earlier.lowest, trained.lowest), np.minimum(earlier.highest, trained.highest),
        trained.facts | {"beside": earlier.facts},
    )  # fmt: skip


def check(model: RelationalModel, seeds: range, cache: Path) -> None:
    """Print calibration on worlds."""
    print("| world | mean probability | share of matches | log loss |\n|---|---|---|---|")
    for seed in seeds:
        sample = describe_world(World(draw_world, seed), cache)
        log_odds = predict_log_odds(model, sample.relations, sample.least).astype(np.float64)
        p = np.clip(1 / (1 + np.exp(-log_odds)), 1e-6, 1 - 1e-6)
        loss = -np.mean(np.where(sample.targets > 0, np.log(p), np.log(1 - p)))
        print(f"| {seed} | {p.mean():.3f} | {sample.targets.mean():.3f} | {loss:.3f} |", flush=True)


def _name_options(options: argparse.Namespace) -> str:
    """Return the options that matter, as they were given."""
    named = [f" --every {options.every}"] if options.every > 1 else []
    return "".join([*named, " --beside EARLIER"] if options.beside is not None else named)


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--every", type=int, default=1, help="take one world in so many")
    parser.add_argument("--beside", type=Path, help="folder of a network to take the mean with")
    parser.add_argument("--check", type=int, nargs=2)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cache", type=Path, default=Path("bench/worlds"))
    options = parser.parse_args()
    started = time.perf_counter()
    samples = [describe_world(world, options.cache) for world in WORLDS[:: options.every]]
    print(f"{len(samples)} worlds described in {time.perf_counter() - started:.0f} s", flush=True)
    facts = {
        "n_worlds": len(samples),
        "epochs": options.epochs,
        "n_edges": sum(len(s.targets) for s in samples),
        "seed": options.seed,
    }
    model = fit_network(samples, epochs=options.epochs, seed=options.seed, facts=facts)
    if options.beside is not None:
        model = average_networks(load_relational(options.beside), model)
    print(f"trained in {time.perf_counter() - started:.0f} s", flush=True)
    card = _CARD.format(
        n_relations=len(model.weights[0]), layers=[len(bias) for bias in model.biases], n_edges=facts["n_edges"],
        n_worlds=len(samples), seed=options.seed, options=_name_options(options),
        of="" if options.beside is None else ", the mean of two networks'",
        remark="" if options.beside is None else _REMARK,
    )  # fmt: skip
    model.save(options.output, card)
    if options.check:
        check(model, range(*options.check), options.cache)


if __name__ == "__main__":
    main()
