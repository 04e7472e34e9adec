"""Command line: finds a command's file in `commands/` and turns every outcome into the contract's exit codes.

Results go to stdout (one JSON object with --json), progress and notes to stderr. Exit codes: 0 done, 1 a stated
error, 2 wrong usage, 130 interrupted. A command's file is imported when it is called, and what it needs inside the
function, so that `starfc --help` answers at once.
"""

from __future__ import annotations

import importlib
import sys
import traceback
from typing import NoReturn

import click

from . import __version__
from .errors import StarfcError

# Command -> (file in commands/, one line of help). In the order of use.
COMMANDS = {
    "cluster": ("cluster", "Group FEATURES by person and write one label per face to OUT."),
    "sweep": ("sweep", "Show what other thresholds would give: F with labels, else the number of clusters."),
    "train": ("train", "Train an edge scorer on FEATURES with known LABELS and write a model folder."),
    "calibrate": ("calibrate", "Choose a model's thresholds by a small labelled sample, and say what F to expect."),
    "evaluate": ("evaluate", "Compare PREDICTED labels with TRUTH: pairwise and BCubed precision, recall, F, and NMI."),
    "report": ("report", "Write one self-contained HTML file that shows CLUSTERS."),
    "review": ("review", "Look through CLUSTERS and correct them on a page in the browser."),
    "export": ("export", "Write CLUSTERS as corrected by 'starfc review': labels, folders, FiftyOne, constraints."),
    "knn": ("knn", "Build the kNN graph of FEATURES."),
    "synth": ("data", "Make face-like vectors with known identities, streamed to disk."),
    "convert": ("data", "Convert features or labels between all formats."),
    "import-checkpoint": ("train", "Make a model folder from the authors' released BACKBONE.pth and HEAD.pth."),
    "bench": ("bench", "Compare all methods on labelled data: a table, or F against test or training size."),
    "demo": ("demo", "Cluster a synthetic collection without labels, train on another, and draw the result."),
}


class _LazyGroup(click.Group):
    """A group whose commands are imported when they are asked for."""

    def list_commands(self, context: click.Context) -> list[str]:
        """Name the commands, in the order of use."""
        return list(COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        """Import the command's file."""
        if name not in COMMANDS:
            return None
        module = importlib.import_module(f"starfc.commands.{COMMANDS[name][0]}")
        command: click.Command = getattr(module, name.replace("-", "_"))
        return command

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, help_line) for name, (_, help_line) in COMMANDS.items()])


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="starfc")
def commands() -> None:
    """Group face embeddings by person."""


def main() -> None:
    """Run the command line and turn every outcome into the contract's exit codes."""
    debug = "--debug" in sys.argv
    try:
        commands(prog_name="starfc", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted; nothing was half-written", err=True)
        sys.exit(130)
    except StarfcError as error:
        _fail(str(error), debug)
    except MemoryError:
        _fail("out of memory; use a smaller k, fewer faces at a time, or a machine with more", debug)
    except Exception as error:
        _fail(f"unexpected {type(error).__name__}: {error}; run again with --debug and report what it shows", debug)


def _fail(sentence: str, debug: bool) -> NoReturn:
    """State the error in one line and exit."""
    if debug:
        traceback.print_exc()
    click.echo(f"error: {' '.join(sentence.splitlines())}", err=True)
    sys.exit(1)


if __name__ == "__main__":
    main()
