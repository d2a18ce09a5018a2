"""Small line plots as SVG without script or style. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from markupsafe import Markup

WIDTH, HEIGHT = 240, 40


def top(series: Iterable[Sequence[float | None]]) -> float:
    """The highest known value of all lines, the upper end of their axis; 0 when nothing is known."""
    return max((value for line in series for value in line if value is not None), default=0.0)


def lines(series: Sequence[Sequence[float | None]], length: int) -> Markup:
    """One path per line, from 0 at the bottom to the highest at the top; the newest of ``length`` bins at the right.

    A line is broken where nothing is known; a single known point is a dash.
    """
    highest = top(series) or 1.0
    step = WIDTH / max(1, length - 1)
    paths = []
    for number, points in enumerate(series):
        offset = length - len(points)
        text = " ".join(
            "M" + " L".join(f"{x * step:.4g} {HEIGHT - 1 - y / highest * (HEIGHT - 2):.3g}" for x, y in _wide(run))
            for run in runs([None] * offset + list(points))
        )
        paths.append(f'<path class="line-{number}" d="{text}"/>')
    return Markup(
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none" aria-hidden="true" focusable="false">'
        f"{''.join(paths)}</svg>"
    )


def runs(points: Sequence[float | None]) -> list[list[tuple[float, float]]]:
    """Stretches of known points with their index."""
    found: list[list[tuple[float, float]]] = []
    known = [(float(index), value) for index, value in enumerate(points) if value is not None]
    for before, point in pairwise([(-2.0, 0.0), *known]):
        if point[0] == before[0] + 1 and found:
            found[-1].append(point)
        else:
            found.append([point])
    return found


def _wide(run: list[tuple[float, float]]) -> list[tuple[float, float]]:
    return [(run[0][0] - 0.4, run[0][1]), *run] if len(run) == 1 else run
