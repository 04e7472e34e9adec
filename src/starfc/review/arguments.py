"""Arguments: what a request says, read strictly.

In: the JSON object that a page (or somebody else) sent. Out: numbers and texts; anything else is refused in a sentence.
"""

from __future__ import annotations

from typing import Any

from ..constraints import LARGEST_LABEL
from ..errors import InputError


def read_whole(given: dict[str, Any], name: str) -> int:
    """Return a whole number."""
    value = given.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) >= LARGEST_LABEL:
        raise InputError(f"{name} ({str(value)[:40]}) must be a whole number")
    return value


def read_optional(given: dict[str, Any], name: str) -> int | None:
    """Return a whole number, or None where nothing is given."""
    return None if given.get(name) is None else read_whole(given, name)


def read_wholes(given: dict[str, Any], name: str) -> list[int]:
    """Return a list of whole numbers."""
    values = given.get(name)
    if not isinstance(values, list):
        raise InputError(f"{name} must be a list of whole numbers")
    return [read_whole({name: value}, name) for value in values]


def read_text(given: dict[str, Any], name: str) -> str:
    """Return a text."""
    value = given.get(name)
    if not isinstance(value, str):
        raise InputError(f"{name} must be a text")
    return value
