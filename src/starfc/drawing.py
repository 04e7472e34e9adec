"""Drawing: plots as inline SVG, for pages that must be one file and need no library.

In: numbers. Out: SVG text. Three kinds are enough for the report: bars of several series over a range (histograms with
marked thresholds), dots on two logarithmic axes, and a map of coloured dots. Text is sized in the drawing's own units,
which the page scales to the width of the screen.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np
from numpy.typing import NDArray

WIDTH, HEIGHT = 420, 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 12, 26, 40
_COLOURS = ((240, 190, 60), (64, 170, 140), (70, 60, 140))  # small clusters, middling, large ones


def draw_histogram(
    edges: NDArray[np.float64],
    series: dict[str, tuple[NDArray[np.int64], str]],
    *,
    label: str,
    marks: dict[str, float] | None = None,
    logarithmic: bool = False,
) -> str:
    """Draw stacked bars over bins, with vertical lines at the marks; bars that would dwarf the others are cut off.

    Parameters
    ----------
    edges : float64 (n_bins + 1,)
    series : dict of name -> (counts (n_bins,), colour)
    label : str
        Of the horizontal axis.
    marks : dict of name -> place
    logarithmic : bool
        Heights are those of log10(1 + count): for one series whose bars differ by orders of magnitude.

    Returns
    -------
    str
        An SVG element.

    Examples
    --------
    >>> drawn = draw_histogram(np.array([0, 0.5, 1]), {"faces": (np.array([1, 3]), "#888")}, label="confidence")
    >>> drawn.count("<rect class='bar'")
    2
    """
    heights = {name: np.log10(1 + counts) if logarithmic else counts for name, (counts, _) in series.items()}
    totals = np.sum(list(heights.values()), axis=0)
    top = float(max(1.0, totals.max(initial=0) if logarithmic else _find_top(totals)))
    span = _Axis(float(edges[0]), float(edges[-1]), _LEFT, WIDTH - _RIGHT)
    rise = _Axis(0.0, top * 1.05, HEIGHT - _BOTTOM, _TOP)
    counts_shown = [0.0, *(10.0**power for power in range(int(top) + 1))] if logarithmic else _nice_ticks(0, top, 4)
    levels = [float(np.log10(1 + count)) for count in counts_shown] if logarithmic else counts_shown
    across = _nice_ticks(edges[0], edges[-1], 6)
    parts = [_draw_grid(rise, levels, _shorten_all(counts_shown)), _draw_ticks(span, across, _shorten_all(across))]
    base = np.zeros(len(edges) - 1)
    for name, (_, colour) in series.items():
        counts = heights[name]
        for place in np.flatnonzero(counts):
            left, right = span.at(edges[place]), span.at(edges[place + 1])
            low, high = rise.at(min(base[place], top)), rise.at(min(base[place] + counts[place], top))
            parts.append(
                f"<rect class='bar' x='{left + 0.4:.1f}' y='{high:.1f}' width='{max(0.6, right - left - 0.8):.1f}'"
                f" height='{low - high:.1f}' fill='{colour}'/>"
            )
        base = base + counts
    for line, place in enumerate(np.flatnonzero(totals > top)):
        count = _shorten(float(f"{totals[place]:.2g}"))
        late = place > 0.8 * len(totals)  # beside the bar where there is room
        beside = (
            f"x='{span.at(edges[place]) - 3:.1f}' text-anchor='end'"
            if late
            else f"x='{span.at(edges[place + 1]) + 2:.1f}'"
        )
        parts.append(f"<text {beside} y='{_TOP + 11 + 13 * line}'>{count} ↑</text>")
    for name, level in (marks or {}).items():
        x, end = span.at(min(max(level, edges[0]), edges[-1])), level > edges[0] + 0.7 * (edges[-1] - edges[0])
        parts.append(f"<path class='mark' d='M{x:.1f} {_TOP}V{HEIGHT - _BOTTOM}'/>")
        beside = f"x='{x + (-4 if end else 4):.1f}' text-anchor='{'end' if end else 'start'}'"
        parts.append(f"<text {beside} y='{_TOP + 11}'>{escape(name)}</text>")
    return _frame("".join(parts) + _draw_legend({name: colour for name, (_, colour) in series.items()}), label)


def draw_log_dots(x: NDArray[np.float64], y: NDArray[np.float64], *, label: str, colour: str = "#2a9d8f") -> str:
    """Draw dots on two logarithmic axes; all values must be 1 or more.

    >>> draw_log_dots(np.array([1.0, 10.0]), np.array([100.0, 1.0]), label="size").count("<circle")
    2
    """
    span = _Axis(0.0, max(1.0, float(np.log10(x.max(initial=1)))) * 1.04, _LEFT + 6, WIDTH - _RIGHT)
    rise = _Axis(0.0, max(1.0, float(np.log10(y.max(initial=1)))) * 1.06, HEIGHT - _BOTTOM - 6, _TOP)
    tall, wide = ([float(p) for p in range(12) if p <= axis.stop] for axis in (rise, span))
    parts = [
        _draw_grid(rise, tall, _shorten_all([10.0**p for p in tall])),
        _draw_ticks(span, wide, _shorten_all([10.0**p for p in wide])),
    ]
    parts += [
        f"<circle cx='{span.at(np.log10(a)):.1f}' cy='{rise.at(np.log10(b)):.1f}' r='3' fill='{colour}'/>"
        for a, b in zip(x, y, strict=True)
    ]
    return _frame("".join(parts), label)


def draw_map(places: NDArray[np.float64], sizes: NDArray[np.int64], titles: Sequence[str]) -> str:
    """Draw a dot per cluster at its place, larger and darker for more faces.

    >>> draw_map(np.array([[0.0, 0.0], [1.0, 1.0]]), np.array([1, 50]), ["cluster 0", "<b>"]).count("&lt;b&gt;")
    1
    """
    low, high = places.min(axis=0, initial=np.inf), places.max(axis=0, initial=-np.inf)
    scale = np.where(high > low, high - low, 1)
    height = 300
    deepest = max(1.0, float(np.log10(sizes.max(initial=1))))
    parts = []
    for place, size, title in zip(places, sizes, titles, strict=True):
        x, y = 14 + (place - low) / scale * (WIDTH - 28, height - 28)
        depth = float(np.log10(size)) / deepest
        parts.append(
            f"<circle cx='{x:.1f}' cy='{y:.1f}' r='{1.2 + 4 * depth:.1f}' fill='{mix_colour(depth)}' fill-opacity='.8'>"
            f"<title>{escape(title)}</title></circle>"
        )
    return f"<svg class='plot' viewBox='0 0 {WIDTH} {height}' role='img'>{''.join(parts)}</svg>"


def mix_colour(share: float) -> str:
    """Return the colour of a share between 0 (few faces) and 1 (many).

    >>> mix_colour(0.0), mix_colour(1.0)
    ('#f0be3c', '#463c8c')
    """
    place = min(1, int(share * 2))
    low, high = _COLOURS[place], _COLOURS[place + 1]
    return "#" + "".join(f"{round(a + (b - a) * (2 * share - place)):02x}" for a, b in zip(low, high, strict=True))


class _Axis:
    """Maps values from start..stop to places from..to."""

    def __init__(self, start: float, stop: float, begin: float, end: float) -> None:
        self.start, self.stop, self._begin, self._end = start, stop, begin, end

    def at(self, value: float) -> float:
        share = (float(value) - self.start) / ((self.stop - self.start) or 1)
        return self._begin + share * (self._end - self._begin)


def _find_top(totals: NDArray[np.int64]) -> float:
    """Return the height of the axis: of the highest bar, or little more than the third if it is several times that."""
    ranked = np.sort(totals)[::-1]
    if len(ranked) > 2 and ranked[0] > 4 * ranked[2] > 0:
        return float(1.25 * ranked[2])
    return float(ranked[0]) if len(ranked) else 0.0


def _nice_ticks(low: float, high: float, wanted: int) -> list[float]:
    """Return round numbers between low and high, about as many as wanted."""
    rough = max((high - low) / wanted, 1e-9)
    power = 10.0 ** np.floor(np.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
    first = np.ceil(low / step - 1e-9)
    return [float(step * (first + place)) for place in range(int((high / step + 1e-9) - first) + 1)]


def _shorten(value: float) -> str:
    """Write a number as people do: 0.2, 15, 20k, 3M."""
    for limit, ending in ((1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:g}{ending}"
    return f"{value:g}"


def _shorten_all(values: Sequence[float]) -> list[str]:
    return [_shorten(round(value, 6)) for value in values]


def _draw_grid(rise: _Axis, ticks: Sequence[float], texts: Sequence[str]) -> str:
    """Draw horizontal lines with their numbers on the left."""
    return "".join(
        f"<path class='grid' d='M{_LEFT} {rise.at(tick):.1f}H{WIDTH - _RIGHT}'/>"
        f"<text x='{_LEFT - 6}' y='{rise.at(tick) + 4:.1f}' text-anchor='end'>{text}</text>"
        for tick, text in zip(ticks, texts, strict=True)
    )


def _draw_ticks(span: _Axis, ticks: Sequence[float], texts: Sequence[str]) -> str:
    """Write the numbers of the horizontal axis."""
    return "".join(
        f"<text x='{span.at(tick):.1f}' y='{HEIGHT - _BOTTOM + 16}' text-anchor='middle'>{text}</text>"
        for tick, text in zip(ticks, texts, strict=True)
    )


def _draw_legend(colours: dict[str, str]) -> str:
    """Name the series above the plot, if there are several."""
    if len(colours) < 2:
        return ""
    parts, x = [], float(_LEFT)
    for name, colour in colours.items():
        parts.append(f"<rect x='{x:.0f}' y='6' width='10' height='10' fill='{colour}'/>")
        parts.append(f"<text x='{x + 14:.0f}' y='15'>{escape(name)}</text>")
        x += 26 + 6.4 * len(name)
    return "".join(parts)


def _frame(content: str, label: str) -> str:
    """Put the content into an SVG element with the axis's name below."""
    middle = (_LEFT + WIDTH - _RIGHT) / 2
    return (
        f"<svg class='plot' viewBox='0 0 {WIDTH} {HEIGHT}' role='img' aria-label='{escape(label)}'>{content}"
        f"<text x='{middle}' y='{HEIGHT - 6}' text-anchor='middle' class='axis'>{escape(label)}</text></svg>"
    )
