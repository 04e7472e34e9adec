"""Train the model that is shipped with starfc, over the worlds of `worlds.py` and nothing else.

    python benchmarks/shipped.py -o src/starfc/shipped              # 250 worlds, half an hour on two cores
    python benchmarks/shipped.py -o /tmp/model --worlds 0 20        # a smaller one
    python benchmarks/shipped.py -o /tmp/model --check 900 915      # and its calibration on worlds it has not seen

Every world is drawn, its kNN graph built with the k that `choose_k` takes, and up to 6,000 of its edges described.
Worlds 0 to 159 have 1,000 to 9,000 faces, 160 to 209 60 to 3,000, and in one of ten of these nobody has two faces: a
model that has never seen this takes strangers for matches there. Worlds 210 to 249 are filled by 1 to 20 people: a
model that has hardly seen this tears them apart. Worlds from 900 on are never trained on. The features of the edges of
each world are kept in `--cache`, under the version of the code that described them, so that an interrupted run goes on.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np

from starfc.features import Features
from starfc.relational import RelationalModel, predict_log_odds
from starfc.relational_training import EdgeSample, fit_network, sample_edges
from unsupervised import name_code
from worlds import draw_crowded_world, draw_small_world, draw_world

_FIRST_SMALL, _FIRST_CROWDED, _FIRST_TEST = 160, 210, 900

_CARD = """# The relational scorer shipped with starfc

Gives P(same person) for an edge of a kNN graph of face vectors, from relations in units that do not depend on the
embedder (`relations.py`). Used by `starfc cluster FEATURES -o OUT` where no model is given.

- Input: {n_relations} relations of an edge. Output: log-odds. Layers: {layers}.
- Training: {n_edges:,} edges of {n_worlds} synthetic worlds (`benchmarks/worlds.py`, seeds {first} to {last}), no real
  faces, nobody's pictures. Seed {seed}. Command: `python benchmarks/shipped.py -o src/starfc/shipped`.{remark}
- Mean probability and share of matches on worlds and real sets that it has not seen: `docs/benchmarks.md`.
- Not for: verifying that somebody is who they say they are; vectors that are not embeddings of faces (it knows only
  worlds of people with look-alikes).
- Licence: that of starfc.
"""


def describe_world(seed: int, cache: Path) -> EdgeSample:
    """Return the described edges of a world, from the cache where they are."""
    path = cache / name_code() / f"{seed}.npz"
    if path.exists():
        with np.load(path, allow_pickle=False) as kept:
            return EdgeSample(kept["relations"], kept["targets"], float(kept["least"]))
    draw = draw_world
    if _FIRST_SMALL <= seed < _FIRST_TEST:
        draw = draw_small_world if seed < _FIRST_CROWDED else draw_crowded_world
    rows, labels, _ = draw(seed)
    sample = sample_edges(Features(rows), labels, n_edges=6_000, seed=seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_suffix(".part.npz")
    np.savez(aside, relations=sample.relations, targets=sample.targets, least=sample.least)
    aside.replace(path)
    return sample


def check(model: RelationalModel, seeds: range, cache: Path) -> None:
    """Print calibration on worlds."""
    print("| world | mean probability | share of matches | log loss |\n|---|---|---|---|")
    for seed in seeds:
        sample = describe_world(seed, cache)
        log_odds = predict_log_odds(model, sample.relations, sample.least).astype(np.float64)
        p = np.clip(1 / (1 + np.exp(-log_odds)), 1e-6, 1 - 1e-6)
        loss = -np.mean(np.where(sample.targets > 0, np.log(p), np.log(1 - p)))
        print(f"| {seed} | {p.mean():.3f} | {sample.targets.mean():.3f} | {loss:.3f} |", flush=True)


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--worlds", type=int, nargs=2, default=[0, 250])
    parser.add_argument("--check", type=int, nargs=2)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cache", type=Path, default=Path("bench/worlds"))
    options = parser.parse_args()
    started = time.perf_counter()
    samples = [describe_world(seed, options.cache) for seed in range(*options.worlds)]
    print(f"{len(samples)} worlds described in {time.perf_counter() - started:.0f} s", flush=True)
    facts = {"worlds": options.worlds, "n_edges": sum(len(s.targets) for s in samples), "seed": options.seed}
    model = fit_network(samples, epochs=options.epochs, seed=options.seed, facts=facts)
    print(f"trained in {time.perf_counter() - started:.0f} s", flush=True)
    card = _CARD.format(
        n_relations=len(model.weights[0]), layers=[len(bias) for bias in model.biases], n_edges=facts["n_edges"],
        n_worlds=len(samples), first=options.worlds[0], last=options.worlds[1] - 1, seed=options.seed, remark="",
    )  # fmt: skip
    model.save(options.output, card)
    if options.check:
        check(model, range(*options.check), options.cache)


if __name__ == "__main__":
    main()
