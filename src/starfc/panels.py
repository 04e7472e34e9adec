"""Panels: products of rows with a few others, in registers.

In: rows that stand anywhere in an array, and others packed in panels, sixteen side by side, number by number. Out: the
products of each with each.

A search multiplies some hundred rows with some forty centres, and that ten thousands of times. A BLAS is made for
larger products: it copies both sides first, and what does not fill its own blocks runs at half the speed. Here the
others are packed once for all rows, and the rows are read where they stand.

Every product is summed number by number, whatever stands beside it: the same bits wherever a block begins or ends.
"""

from __future__ import annotations

from typing import Any

from llvmlite import binding, ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from .halves import as_single
from .kernels import leaf
from .prefetch import prefetch_row

PANEL_LANES = 16  # others side by side
_IS_WIDE = bool(binding.get_host_cpu_features().get("avx512f"))  # 32 registers of 16 numbers, else 16 of 8
_MOST_ROWS = 8 if _IS_WIDE else 4  # multiplied at once: their sums are to stay in registers
_FEW_ROWS = 2  # of those that are left over
_MOST_PANELS = 3 if _IS_WIDE else 1

_LANES, _INDEX = ir.VectorType(ir.FloatType(), PANEL_LANES), ir.IntType(64)


@leaf
def count_panels(n) -> int:  # type: ignore[no-untyped-def]
    """Return how many panels n others take.

    >>> count_panels(0), count_panels(16), count_panels(17)
    (0, 1, 2)
    """
    return int((n + PANEL_LANES - 1) // PANEL_LANES)


def _make_block(n_rows: int, n_panels: int) -> Any:  # noqa: ANN401
    """Return a function for kernels: the products of so many rows with so many panels.

    It takes the rows, which of them are meant, from which to which of those, the panels, from which on, and the
    products. Beyond the last row that one is taken again.
    """

    def define(typing_context, rows, some, at, last, panels, panel, products):  # type: ignore[no-untyped-def]
        signature = types.void(rows, some, types.int64, types.int64, panels, types.int64, products)

        def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
            arrays = [context.make_array(signature.args[i])(context, builder, arguments[i]) for i in (0, 1, 4, 6)]
            at, last, panel = arguments[2], arguments[3], arguments[5]
            dim, width = (cgutils.unpack_tuple(builder, arrays[i].shape)[1] for i in (0, 3))  # type: ignore[no-untyped-call]
            held = [builder.add(panel, _INDEX(j)) for j in range(n_panels)]
            size = builder.mul(dim, _INDEX(PANEL_LANES))
            others = [builder.gep(arrays[2].data, [builder.mul(one, size)]) for one in held]
            here = [builder.add(at, _INDEX(i)) for i in range(n_rows)]
            here = [builder.select(builder.icmp_signed("<", one, last), one, last) for one in here]
            named = [builder.load(builder.gep(arrays[1].data, [one])) for one in here]
            named = [context.cast(builder, one, signature.args[1].dtype, types.int64) for one in named]
            sources = [builder.gep(arrays[0].data, [builder.mul(one, dim)]) for one in named]
            totals = _sum_products(builder, dim, sources, others)  # type: ignore[no-untyped-call]
            for one, sums in zip(here, totals, strict=True):
                target = builder.gep(arrays[3].data, [builder.mul(one, width)])
                for column, total in zip(held, sums, strict=True):
                    place = builder.gep(target, [builder.mul(column, _INDEX(PANEL_LANES))])
                    builder.store(total, builder.bitcast(place, _LANES.as_pointer()), align=4)
            return context.get_dummy_value()

        return signature, generate

    return intrinsic(define)


def _sum_products(builder, dim, sources, others):  # type: ignore[no-untyped-def]
    """Write the loop over the numbers of rows and panels; return the sums, row by row, as the builder goes on."""
    before, loop = builder.block, builder.append_basic_block("numbers")
    after = builder.append_basic_block("summed")
    builder.branch(loop)
    builder.position_at_end(loop)
    number = builder.phi(_INDEX)
    sums = [[builder.phi(_LANES) for _ in others] for _ in sources]
    offset = builder.mul(number, _INDEX(PANEL_LANES))
    columns = [builder.bitcast(builder.gep(other, [offset]), _LANES.as_pointer()) for other in others]
    columns = [builder.load(column, align=4) for column in columns]
    following = builder.add(number, _INDEX(1))
    number.add_incoming(_INDEX(0), before)
    number.add_incoming(following, loop)
    name, kind = f"llvm.fmuladd.v{PANEL_LANES}f32", ir.FunctionType(_LANES, [_LANES] * 3)
    multiply_add = cgutils.get_or_insert_function(builder.module, kind, name)  # type: ignore[no-untyped-call]
    totals = []
    for source, of_row in zip(sources, sums, strict=True):
        factor = _spread(builder, builder.load(builder.gep(source, [number])))  # type: ignore[no-untyped-call]
        added = [builder.call(multiply_add, [factor, *pair]) for pair in zip(columns, of_row, strict=True)]
        for total, new in zip(of_row, added, strict=True):
            total.add_incoming(ir.Constant(_LANES, [0.0] * PANEL_LANES), before)
            total.add_incoming(new, loop)
        totals.append(added)
    builder.cbranch(builder.icmp_signed("<", following, dim), loop, after)
    builder.position_at_end(after)
    return totals


def _define_transposition(typing_context, others, first, number, panels, panel):  # type: ignore[no-untyped-def]
    """Write 16 numbers of 16 stored rows to a panel, the last row again if there are fewer."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        source, target = (context.make_array(signature.args[i])(context, builder, arguments[i]) for i in (0, 3))
        n_rows, dim = cgutils.unpack_tuple(builder, source.shape)  # type: ignore[no-untyped-call]
        last = builder.sub(n_rows, _INDEX(1))
        is_single = signature.args[0].dtype == types.float32
        stored = _LANES if is_single else ir.VectorType(ir.HalfType(), PANEL_LANES)
        rows = []
        for lane in range(PANEL_LANES):
            row = builder.add(arguments[1], _INDEX(lane))
            row = builder.select(builder.icmp_signed("<", row, last), row, last)
            place = builder.gep(source.data, [builder.add(builder.mul(row, dim), arguments[2])])
            loaded = builder.load(builder.bitcast(place, stored.as_pointer()), align=2)
            rows.append(loaded if is_single else builder.fpext(loaded, _LANES))
        start = builder.mul(builder.add(builder.mul(arguments[4], dim), arguments[2]), _INDEX(PANEL_LANES))
        columns = _transpose_lanes(builder, rows)  # type: ignore[no-untyped-call]
        for at, column in enumerate(columns):
            place = builder.gep(target.data, [builder.add(start, _INDEX(at * PANEL_LANES))])
            builder.store(column, builder.bitcast(place, _LANES.as_pointer()), align=4)
        return context.get_dummy_value()

    return types.void(others, types.int64, types.int64, panels, types.int64), generate


def _transpose_lanes(builder, rows):  # type: ignore[no-untyped-def]
    """Return the columns of 16 rows of 16 lanes: blocks beside the diagonal change places, the smallest first."""
    rows, step = [*rows], 1
    while step < PANEL_LANES:
        for i in range(PANEL_LANES):
            if not i & step:
                above, below = rows[i], rows[i + step]
                for row, shift in ((i, 0), (i + step, step)):
                    # Of the lanes of both, one behind the other.
                    ahead = [PANEL_LANES - step if lane & step else 0 for lane in range(PANEL_LANES)]
                    lanes = [lane + shift + more for lane, more in enumerate(ahead)]
                    mask = ir.Constant(ir.VectorType(ir.IntType(32), PANEL_LANES), lanes)
                    rows[row] = builder.shuffle_vector(above, below, mask)
        step *= 2
    return rows


def _spread(builder, value):  # type: ignore[no-untyped-def]
    """Return a number in all lanes."""
    first = builder.insert_element(ir.Constant(_LANES, ir.Undefined), value, ir.IntType(32)(0))
    zeros = ir.Constant(ir.VectorType(ir.IntType(32), PANEL_LANES), [0] * PANEL_LANES)
    return builder.shuffle_vector(first, ir.Constant(_LANES, ir.Undefined), zeros)


_transpose: Any = intrinsic(_define_transposition)
_many_by_one, _few_by_one = _make_block(_MOST_ROWS, 1), _make_block(_FEW_ROWS, 1)
_many_by_two, _few_by_two = _make_block(_MOST_ROWS, 2), _make_block(_FEW_ROWS, 2)
_many_by_three, _few_by_three = _make_block(_MOST_ROWS, 3), _make_block(_FEW_ROWS, 3)


@leaf
def pack_panels(others, panels) -> None:  # type: ignore[no-untyped-def]
    """Pack stored rows in panels, float32 (p, d, 16), which are filled up with the last of them."""
    for panel in range(len(panels)):
        whole = panels.shape[1] // PANEL_LANES * PANEL_LANES
        for number in range(0, whole, PANEL_LANES):
            _transpose(others, panel * PANEL_LANES, number, panels, panel)
        for number in range(whole, panels.shape[1]):
            for lane in range(PANEL_LANES):
                other = min(panel * PANEL_LANES + lane, len(others) - 1)
                panels[panel, number, lane] = as_single(others[other, number])


@leaf
def multiply_panels(rows, some, panels, products) -> None:  # type: ignore[no-untyped-def]
    """Set the products of some of the rows, float32 (len(some), 16 p), with all that is in p panels."""
    panel = 0
    while panel < len(panels):
        n_left = len(panels) - panel
        n_panels = min(_MOST_PANELS, 2 if n_left == 4 else n_left)  # two and two: one alone takes nearly as long
        _multiply_rows(rows, some, panels, panel, n_panels, products)
        panel += n_panels


@leaf
def _multiply_rows(rows, some, panels, panel, n_panels, products):  # type: ignore[no-untyped-def]
    """Set the products with one to three panels."""
    at, last = 0, len(some) - 1
    while at <= last:
        if last - at >= _FEW_ROWS:
            if panel == 0:  # later they are near
                for following in range(at + _MOST_ROWS, min(at + 2 * _MOST_ROWS, last + 1)):
                    prefetch_row(rows, some[following])
            if n_panels == 3:
                _many_by_three(rows, some, at, last, panels, panel, products)
            elif n_panels == 2:
                _many_by_two(rows, some, at, last, panels, panel, products)
            else:
                _many_by_one(rows, some, at, last, panels, panel, products)
            at += _MOST_ROWS
        else:
            if n_panels == 3:
                _few_by_three(rows, some, at, last, panels, panel, products)
            elif n_panels == 2:
                _few_by_two(rows, some, at, last, panels, panel, products)
            else:
                _few_by_one(rows, some, at, last, panels, panel, products)
            at += _FEW_ROWS
