"""What the commands share: the options every one of them has, progress on stderr, results on stdout."""

from __future__ import annotations

import json
import logging
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from ..terminal import ProgressBars

Command = Callable[..., None]


class _FiniteRange(click.FloatRange):
    """A range of numbers, of which NaN and infinity are none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


SHARE = _FiniteRange(0, 1, min_open=True)
MEMORY = _FiniteRange(min=0, min_open=True)


def common_options(command: Command) -> Command:
    """Add what every command has."""
    for option in (
        click.option("--debug", is_flag=True, expose_value=False, help="Show the traceback of an error."),
        click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout and nothing else."),
        click.option("--threads", type=click.IntRange(min=1), help="Cores to use (default: all)."),
        click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Random seed."),
    ):
        command = option(command)
    return command


def dim_option(command: Command) -> Command:
    """Add --dim, for features in a headerless file."""
    return click.option("--dim", type=int, help="Numbers per row of a headerless .bin file.")(command)


@contextmanager
def progress_bars() -> Iterator[ProgressBars]:
    """Show progress on stderr and send the library's log there too."""
    from ..terminal import ProgressBars

    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    with ProgressBars() as bars:
        yield bars


def print_result(figures: dict[str, Any], as_json: bool, sentence: str) -> None:
    """Print the figures as one JSON object, or the sentence."""
    click.echo(json.dumps(figures) if as_json else sentence)
