"""`starfc bench`: the paper's tables on any labelled data."""

from __future__ import annotations

import shlex
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..atomic import make_folder
from ..errors import InputError
from .options import MEMORY, common_options, dim_option, print_result, progress_bars

if TYPE_CHECKING:
    from ..comparison.parts import Part
    from ..comparison.run import Bench

_SECONDS = click.FloatRange(min=0, min_open=True)


@click.command()
@click.argument("name", type=click.Choice(["table", "scale", "train-size", "ablations"]))
@click.option("--features", type=Path, required=True, help="Features to train on.")
@click.option("--labels", type=Path, help="Their people (default: where the field, or 'starfc synth', puts them).")
@click.option(
    "--test", "tests", type=Path, multiple=True, required=True, help="Features to test on; scale takes several."
)
@click.option("--test-labels", type=Path, multiple=True, help="Their people, in the same order.")
@click.option("--methods", help="Which, separated by commas (default: all).")
@click.option("--tune", is_flag=True, help="Choose each opponent's settings on training people.")
@click.option("--sizes", help="scale: test on this many faces of --test each, such as 10000,30000,100000.")
@click.option(
    "--shares", default="0.1,0.25,0.5,1", show_default=True, help="train-size: shares of the training people."
)
@click.option("--k", type=click.IntRange(min=1), help="Neighbours per face (default: 80; ablations: the preset's).")
@click.option("--steps", type=click.IntRange(min=1), help="Training steps of every trained method (default: its own).")
@click.option(
    "--preset", type=click.Choice(["gcn", "paper"]), default="gcn", show_default=True, help="ablations: how to train."
)
@click.option("--time-limit", type=_SECONDS, default=3600, show_default=True, help="Seconds a process may take.")
@click.option("--memory-gb", type=MEMORY, default=16, show_default=True, help="Memory a process may take.")
@click.option(
    "-o", "--output", type=Path, default=Path("bench"), show_default=True, help="Folder; resumes what is there."
)
@dim_option
@common_options
def bench(
    name: str, features: Path, labels: Path | None, tests: tuple[Path, ...], test_labels: tuple[Path, ...],
    methods: str | None, tune: bool, sizes: str | None, shares: str, k: int | None, steps: int | None, preset: str,
    time_limit: float, memory_gb: float, output: Path, dim: int | None, as_json: bool, threads: int | None, seed: int,
) -> None:  # fmt: skip
    """Compare all methods on TRAIN and TEST people: a table, F against test size, or F against training size.

    Or, as ablations, the parts of the paper's method.
    """
    from ..baselines import choose_methods
    from ..comparison.parts import find_part
    from ..comparison.run import Bench, Options
    from ..comparison.tables import save_tables

    if test_labels and len(test_labels) != len(tests):
        raise InputError(
            f"--test-labels was given {len(test_labels)} times for {len(tests)} of --test; give one for each"
        )
    chosen = choose_methods(methods)
    train = find_part(features, labels=labels, dim=dim)
    pairs = zip(tests, test_labels or [None] * len(tests), strict=True)
    parts = [find_part(path, labels=truth, dim=dim, option="--test-labels") for path, truth in pairs]
    if name == "ablations":
        _bench_ablations(train, parts, output, as_json, preset=preset, steps=steps, k=k, seed=seed, threads=threads)
        return
    options = Options(
        k=k or 80, tune=tune, steps=steps, time_s=time_limit, memory_gb=memory_gb, seed=seed, threads=threads
    )
    with progress_bars() as bars:
        run = Bench(output, options, progress=bars.report, say=bars.say)
        trains, parts = _choose_parts(run, name, train, parts, sizes, shares)
        save = partial(save_tables, output, name, options=options, command=_name_command())
        rows = run.run(chosen, trains, parts, after_row=save)
    text = save(rows)
    if name != "table":
        from ..comparison.plots import draw_growth

        draw_growth(rows, output / f"{name}.png", against="n_test" if name == "scale" else "n_train")
    print_result({"rows": [row.as_dict() for row in rows]}, as_json, f"{text}\n\nsaved in {output}")


def _bench_ablations(
    train: Part,
    tests: list[Part],
    output: Path,
    as_json: bool,
    **settings: Any,  # noqa: ANN401
) -> None:
    """Train and prune in every way of the paper's ablations, and save the tables and pictures."""
    from ..comparison.ablations import Ablation, ablate, save_ablations

    _require_one(tests, "ablations")
    with progress_bars() as bars:
        options = Ablation(make_folder(output), progress=bars.report, say=bars.say, **settings)
        found = ablate(train.read(), tests[0].read(), options)
    text = save_ablations(output, [found], _name_command())
    print_result(found, as_json, f"{text}\n\nsaved in {output}")


def _name_command() -> str:
    """Return the command line as it was given."""
    return shlex.join(["starfc", *sys.argv[1:]])


def _require_one(tests: list[Part], name: str) -> None:
    """Refuse several test parts where one is meant."""
    if len(tests) > 1:
        raise InputError(
            f"--test was given {len(tests)} times; {name} takes one, only scale without --sizes takes several"
        )


def _choose_parts(
    run: Bench, name: str, train: Part, tests: list[Part], sizes: str | None, shares: str
) -> tuple[list[Part], list[Part]]:
    """Return the training and test parts of a benchmark, cut out of the given ones where it needs several."""
    if name != "scale":
        _require_one(tests, name)
    if name == "scale" and sizes is not None:
        _require_one(tests, "scale with --sizes")
        counts = _parse_numbers("sizes", sizes)
        return [train], [run.take_people(tests[0], f"{tests[0].name}-{int(n)}", faces=int(n)) for n in counts]
    if name == "train-size":
        wanted = _parse_numbers("shares", shares)
        return [run.take_people(train, f"{train.name}-{share:g}", share=share) for share in wanted], tests
    return [train], tests


def _parse_numbers(name: str, text: str) -> list[float]:
    """Read a list of positive numbers such as '0.1,0.5,1'."""
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) <= 0 or (name == "shares" and max(numbers) > 1):
        limit = "between 0 and 1" if name == "shares" else "above 0"
        raise InputError(f"--{name} ('{text}') must be numbers {limit}, separated by commas")
    return numbers
