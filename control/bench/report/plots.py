"""Plots as SVG without script; colours are the page's (classes ``s0`` to ``s5`` for variants). Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from control.bench.report.quantities import scale, shown
from control.bench.results import Mark

#: Variants that can be told apart by colour and dashes.
STYLES = 6
#: So many points of a line are drawn; of more, the least and the greatest of each stretch.
MOST_POINTS = 400
_MOST_MARKS = 500
_WIDTH, _HEIGHT = 360, 230
_LEFT, _RIGHT, _TOP, _BOTTOM = 50, 10, 12, 28
_SHARES = ((0.5, "P50"), (0.75, "P75"), (0.9, "P90"), (0.99, "P99"))
_LAST_SHARE = 0.99
#: Faster than this nobody measures; a logarithm needs an end.
_LEAST_SECONDS = 1e-4
_PANEL, _BETWEEN = 58, 26


def tick(seconds: float) -> str:
    """``200 ms``, ``2 s``: a time on an axis."""
    return f"{seconds:g} s" if seconds >= 1 else f"{seconds * 1000:g} ms"


def steps(least: float, most: float) -> list[float]:
    """1, 2 and 5 times powers of ten, from the last one below ``least`` to the first one above ``most``."""
    powers = range(math.floor(math.log10(least)) - 1, math.ceil(math.log10(most)) + 2)
    every = [float(f"{digit}e{power}") for power in powers for digit in (1, 2, 5)]
    first = max(place for place, value in enumerate(every) if value <= least)
    last = min(place for place, value in enumerate(every) if value >= most and place > first)
    return every[first : last + 1]


def even_step(most: float, parts: int) -> float:
    """The distance of ticks from 0 to ``most``: 1, 2 or 5 times a power of ten, at most ``parts`` of them."""
    wanted = max(most, 1e-9) / parts
    power = 10.0 ** math.floor(math.log10(wanted))
    return next(digit * power for digit in (1, 2, 5, 10) if digit * power >= wanted * 0.999)


def percentiles(
    title: str, curves: Sequence[tuple[str, Sequence[tuple[float, float]]]], limit: float | None = None
) -> Markup:
    """Seconds (logarithmic) by percentile, stretched towards the tail; ``limit`` is an SLO.

    ``curves`` has the name of each variant and its (share, seconds), empty where it has none.
    """
    body = [value for _, curve in curves for share, value in curve if 0.05 <= share <= _LAST_SHARE]
    if not body:
        return Markup("")
    ends = [*body, limit] if limit else body
    grid = steps(max(min(ends), _LEAST_SECONDS), max(*ends, 2 * _LEAST_SECONDS))
    low, high = math.log(grid[0]), math.log(grid[-1])
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM

    def x(share: float) -> float:
        return _LEFT + math.log10(1 / (1 - share)) / 2 * (right - _LEFT)

    def y(seconds: float) -> float:
        return bottom - (math.log(max(seconds, grid[0])) - low) / (high - low) * (bottom - _TOP)

    parts = [_across(_LEFT, right, y(value), tick(value)) for value in _fewer(grid)]
    parts += [_upright(x(share), _TOP, bottom, name) for share, name in _SHARES]
    if limit:
        parts.append(f'<path class="limit" d="M{_LEFT} {y(limit):.1f}H{right}"/>')
        parts.append(
            f'<text class="limit-name" x="{_LEFT + 4}" y="{y(limit) - 4:.1f}">SLO {escape(tick(limit))}</text>'
        )
    for number, (_, curve) in enumerate(curves):
        points = [(x(share), y(value)) for share, value in curve if share <= _LAST_SHARE]
        parts.append(_line(points, f"series s{number % STYLES}"))
    return _svg(_HEIGHT, _told(title, curves), parts)


def _fewer(grid: Sequence[float]) -> list[float]:
    """Those of 1, 2 and 5 that have room: all, or only powers of ten."""
    if len(grid) <= 9:
        return list(grid)
    return [value for value in grid if f"{value:e}".startswith("1.000000e")]


def _told(title: str, curves: Sequence[tuple[str, Sequence[tuple[float, float]]]]) -> str:
    told = []
    for name, curve in curves:
        by_share = dict(curve)
        values = [f"{word} {shown(by_share[share], scale('seconds', [by_share[share]]))}"
                  for share, word in _SHARES if share in by_share]  # fmt: skip
        if values:
            told.append(f"{name} {', '.join(values)}")
    return f"{title} by percentile: {'; '.join(told)}"


@dataclass(frozen=True)
class Panel:
    """One strip of a timeline: ``lines`` are its values with their class, one for each moment of ``t``."""

    title: str
    top: float
    unit: str
    lines: Sequence[tuple[str, Sequence[float], Sequence[float | None]]]


def timeline(title: str, panels: Sequence[Panel], marks: Sequence[Mark], seconds: float) -> Markup:
    """Panels below each other over the same ``seconds``; marks stand behind all of them, until their first token."""
    height = _TOP + len(panels) * (_PANEL + _BETWEEN) + 14
    right = _WIDTH - _RIGHT

    def x(at: float) -> float:
        return _LEFT + min(max(at / seconds, 0.0), 1.0) * (right - _LEFT)

    floor = height - 14 - _BETWEEN + 12
    parts = [_band(x(one.start), x(one.end if one.first_token is None else one.first_token), floor, one)
             for one in marks[:_MOST_MARKS]]  # fmt: skip
    for place, panel in enumerate(panels):
        upper = _TOP + 12 + place * (_PANEL + _BETWEEN)
        parts += _panel(panel, upper, x, right)
    step = even_step(seconds, 5)
    for number in range(int(seconds / step + 0.001) + 1):
        parts.append(
            f'<text class="tick middle" x="{x(number * step):.1f}" y="{height - 6}">{number * step:g} s</text>'
        )
    return _svg(height, title, parts)


def _panel(panel: Panel, upper: float, x: Callable[[float], float], right: float) -> list[str]:
    lower = upper + _PANEL
    top = panel.top or 1.0
    step = even_step(top, 2)
    parts = [f'<text class="panel" x="{_LEFT}" y="{upper - 5}">{escape(panel.title)}</text>']
    for number in range(int(top / step + 0.001) + 1):
        value = number * step
        label = tick(value) if panel.unit == " s" and value else f"{value:g}{panel.unit}"
        parts.append(_across(_LEFT, right, lower - value / top * _PANEL, label))
    for name, moments, values in panel.lines:
        stretches = [[(x(at), lower - min(value / top, 1.0) * _PANEL) for at, value in stretch]
                     for stretch in known(moments, values)]  # fmt: skip
        parts += [_line(stretch, f"series {name}") for stretch in stretches]
    return parts


def known(moments: Sequence[float], values: Sequence[float | None]) -> list[list[tuple[float, float]]]:
    """Stretches without an unknown value, thinned to what can be seen."""
    found: list[list[tuple[float, float]]] = [[]]
    for at, value in zip(moments, values, strict=True):
        if value is not None:
            found[-1].append((at, value))
        elif found[-1]:
            found.append([])
    return [thinned(stretch) for stretch in found if stretch]


def thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """At most about ``MOST_POINTS`` of them, with every peak and every dip."""
    if len(points) <= MOST_POINTS:
        return list(points)
    size = math.ceil(2 * len(points) / MOST_POINTS)
    kept = []
    for begin in range(0, len(points), size):
        stretch = points[begin : begin + size]
        ends = {min(stretch, key=lambda point: point[1]), max(stretch, key=lambda point: point[1])}
        kept += sorted(ends)
    return kept


def _band(start: float, end: float, floor: float, mark: Mark) -> str:
    size = "" if mark.prompt_tokens is None else f", {mark.prompt_tokens:,} tokens"
    until = "no token" if mark.first_token is None else f"first token after {mark.first_token - mark.start:.2f} s"
    width = max(end - start, 1.0)
    return (
        f'<rect class="mark" x="{start:.1f}" y="{_TOP}" width="{width:.1f}" height="{floor - _TOP}">'
        f"<title>{escape(mark.group)}{size}: {until}</title></rect>"
    )


def _across(left: float, right: float, y: float, name: str) -> str:
    return (
        f'<path class="grid" d="M{left} {y:.1f}H{right}"/>'
        f'<text class="tick end" x="{left - 5}" y="{y + 3.5:.1f}">{escape(name)}</text>'
    )


def _upright(x: float, top: float, bottom: float, name: str) -> str:
    return (
        f'<path class="grid" d="M{x:.1f} {top}V{bottom}"/>'
        f'<text class="tick middle" x="{x:.1f}" y="{bottom + 15}">{escape(name)}</text>'
    )


def _line(points: Sequence[tuple[float, float]], classes: str) -> str:
    if not points:
        return ""
    if len(points) == 1:  # a dash, or nobody sees it
        points = [(points[0][0] - 1, points[0][1]), (points[0][0] + 1, points[0][1])]
    return f'<path class="{classes}" d="M{"L".join(f"{x:.1f} {y:.1f}" for x, y in points)}"/>'


def _svg(height: float, title: str, parts: Iterable[str]) -> Markup:
    return Markup(
        f'<svg class="plot" viewBox="0 0 {_WIDTH} {height:g}" role="img" aria-label="{escape(title)}">'
        f"{''.join(parts)}</svg>"
    )
