"""How times, sizes and other numbers are written on the page. Pure."""

from __future__ import annotations

from datetime import datetime

#: What stands for a number that is not known.
NONE = "–"


def exact(since: float | None) -> str:
    """The moment in this machine's time zone, to the second; empty for none. (times.js makes it the viewer's.)"""
    if since is None:
        return ""
    return datetime.fromtimestamp(since).astimezone().strftime("%Y-%m-%d %H:%M:%S %z")


def iso(since: float) -> str:
    """The moment as HTML's ``datetime`` wants it."""
    return datetime.fromtimestamp(since).astimezone().isoformat(timespec="seconds")


def clock(moment: float) -> str:
    """Hours, minutes and seconds in this machine's time zone."""
    return datetime.fromtimestamp(moment).strftime("%H:%M:%S")


def size(count: int) -> str:
    """Bytes in binary units, one digit after the point."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def span(seconds: float | None) -> str:
    """A duration: milliseconds below a second, then seconds, then minutes."""
    if seconds is None:
        return NONE
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.2f} s" if seconds < 9.995 else f"{seconds:.1f} s" if seconds < 600 else f"{seconds / 60:.0f} min"


def rate(value: float | None) -> str:
    """A number per second: one digit after the point below a hundred."""
    if value is None:
        return NONE
    return f"{value:.1f}" if value < 99.95 else f"{value:,.0f}"


def percent(share: float | None) -> str:
    """A share from 0 to 1; small ones keep a digit, so that a few errors do not look like none."""
    if share is None:
        return NONE
    value = share * 100
    return f"{value:.1f} %" if 0 < value < 9.95 else f"{value:.0f} %"


def whole(value: float | None) -> str:
    """A count."""
    return NONE if value is None else f"{value:,.0f}"


#: By the name that templates use.
FILTERS = {"exact": exact, "iso": iso, "clock": clock, "size": size, "span": span, "rate": rate, "percent": percent,
           "whole": whole}  # fmt: skip
