"""Values over time as the path of a small SVG line. Pure."""

from __future__ import annotations

from collections.abc import Sequence

#: The picture's size in its own units.
WIDTH, HEIGHT = 120, 20


def spark(values: Sequence[float | None], full: float = 100.0) -> str:
    """The ``d`` of an SVG path, from the left (oldest) to the right; the line breaks where a value is None.

    The top is ``full``, or the largest value if that is more.
    """
    top = max([full, *(value for value in values if value is not None)])
    step = WIDTH / max(1, len(values) - 1)
    words, drawing = [], False
    for index, value in enumerate(values):
        if value is None:
            drawing = False
            continue
        x, y = round(index * step, 1), round(HEIGHT - max(0.0, value) / top * HEIGHT, 1)
        words.append(f"{'L' if drawing else 'M'}{x:g} {y:g}" + ("" if drawing else "h0"))  # h0: a dot if it stays alone
        drawing = True
    return "".join(words)
