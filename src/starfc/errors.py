"""What can go wrong, in words a user can act on.

::

    StarfcError                    anything starfc states in one sentence (exit code 1)
    ├── InputError (ValueError)    the data, a file or a parameter is not usable as given
    ├── OutputError (OSError)      a result cannot be written; nothing was left half-written
    ├── ModelError (ValueError)    a model folder is missing, truncated, foreign or does not fit the data
    └── MissingExtraError          an optional dependency is not installed (ImportError)

Every message names the thing, its value, the limit and the remedy.
"""

from __future__ import annotations


class StarfcError(Exception):
    """Base of all errors that starfc states on purpose."""


class InputError(StarfcError, ValueError):
    """The data, a file or a parameter cannot be used as given."""


class OutputError(StarfcError, OSError):
    """A result cannot be written; the target is as it was before."""


class ModelError(StarfcError, ValueError):
    """A model folder is missing, truncated, foreign or does not fit the data."""


class MissingExtraError(StarfcError, ImportError):
    """An optional dependency is needed and not installed."""

    def __init__(self, package: str, extra: str, needed_for: str) -> None:
        super().__init__(f"{needed_for} needs {package}; install it with: pip install 'starfc[{extra}]'")
