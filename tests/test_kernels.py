"""Leaf kernels: they may read and write arrays, neither make nor return them."""

from __future__ import annotations

import ast
from pathlib import Path

import numba
import numpy as np
import pytest

import starfc
from starfc.kernels import leaf, leaf_with

SOURCES = sorted(Path(starfc.__file__).parent.rglob("*.py"))


@leaf
def double_rows(rows, doubled):
    for i in range(len(rows)):
        row, target = rows[i], doubled[i]
        for j in range(len(row)):
            target[j] = 2 * row[j]


@leaf
def sum_doubled(row):
    doubled = np.empty(len(row))
    for i in range(len(row)):
        doubled[i] = 2 * row[i]
    return doubled.sum()


@leaf_with(fastmath={"reassoc"}, error_model="numpy")
def divide(one, other):
    return one / other


@numba.njit
def double(rows):
    doubled = np.empty_like(rows)
    double_rows(rows, doubled)
    return doubled


def test_a_leaf_fills_arrays_that_its_caller_has_made():
    rows = np.arange(6.0).reshape(2, 3)
    assert np.array_equal(double(rows), 2 * rows)


def test_a_leaf_that_makes_an_array_is_refused():
    with pytest.raises(numba.core.errors.NumbaError, match="Only accept returning of array"):
        sum_doubled(np.ones(3))


def find_leaves(source):
    """Return the leaf kernels of a source."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef):
            marks = [mark.func if isinstance(mark, ast.Call) else mark for mark in node.decorator_list]
            if any(isinstance(mark, ast.Name) and mark.id in ("leaf", "leaf_with") for mark in marks):
                yield node


def is_number(node):
    """Tell whether a part of an array is one number: all of its indices are given, and none is a range."""
    index = getattr(node, "slice", None)
    return isinstance(index, ast.Tuple) and not any(isinstance(at, ast.Slice) for at in index.elts)


def name_returned(function):
    """Return the names that a function returns as they are, or parts of."""
    for node in ast.walk(function):
        if isinstance(node, ast.Return) and node.value is not None:
            values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
            for value in values:
                while isinstance(value, ast.Subscript | ast.Attribute) and not is_number(value):
                    value = value.value
                if isinstance(value, ast.Name):
                    yield value.id


def name_arrays(function):
    """Return the names that a function takes a part of, or the length: all arrays and tuples are among them."""
    for node in ast.walk(function):
        if isinstance(node, ast.Subscript | ast.Attribute) and isinstance(node.value, ast.Name):
            yield node.value.id
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "len":
            yield from (argument.id for argument in node.args if isinstance(argument, ast.Name))


def test_the_search_for_returned_arrays_finds_them():
    (function,) = find_leaves("@leaf\ndef f(row, n):\n    first = row[0]\n    return n, row[1:]")
    assert set(name_returned(function)) & set(name_arrays(function)) == {"row"}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_no_leaf_returns_an_array(path):
    for function in find_leaves(path.read_text(encoding="utf-8")):
        assert not set(name_returned(function)) & set(name_arrays(function)), function.name


def test_a_leaf_takes_the_freedoms_it_is_given():
    assert np.isinf(divide(1.0, 0.0))
