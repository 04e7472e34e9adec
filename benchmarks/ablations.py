"""The paper's ablations over folds: `starfc bench ablations` on each, and the means.

    python benchmarks/ablations.py [--faces 20000] [--people 330] [--dim 128] [--steps 150] [--preset gcn] [-o FOLDER]
    python benchmarks/ablations.py --features F.npy --labels L.npy --folds 5

Without --features: trains on one synthetic collection and tests on another (seeds 1000 and 2000); with them, folds by
people. What the tables are: src/starfc/comparison/ablations.py. A finished training is not done again.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from starfc.atomic import make_folder
from starfc.comparison.ablations import Ablation, ablate, save_ablations
from training import draw_synthetic, fold_by_people


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faces", type=int, default=20_000)
    parser.add_argument("--people", type=int, default=330)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--folds", type=int, default=1)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--preset", choices=["gcn", "paper"], default="gcn")
    parser.add_argument("--features", type=Path)
    parser.add_argument("--labels", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", type=Path, default=Path("bench/ablations"))
    options = parser.parse_args()
    draw = fold_by_people if options.features else draw_synthetic
    folds = []
    for number, (train, test) in enumerate(draw(options)):
        folder = make_folder(options.output / f"fold{number}")
        setting = Ablation(folder, preset=options.preset, steps=options.steps, seed=options.seed, say=print)
        folds.append(ablate(train, test, setting))
        text = save_ablations(options.output, folds, shlex.join(["python", *sys.argv]))
    print(text)


if __name__ == "__main__":
    main()
