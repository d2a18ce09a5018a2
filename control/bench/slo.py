"""``--slo ttft=1.5s,tpot=60ms``. Pure."""

from __future__ import annotations

from control.bench.results import Slo
from control.errors import BenchRunError

_NAMES = tuple(Slo.model_fields)


def parse_slo(text: str) -> Slo:
    """The limits of this text; empty for none. Raises BenchRunError for what is no limit."""
    limits: dict[str, float] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = part.partition("=")
        if not equals or name not in _NAMES or name in limits:
            raise BenchRunError(
                f"{part!r} is no limit.", f"Write {', '.join(_NAMES)} once each, as in --slo ttft=1.5s,tpot=60ms."
            )
        limits[name] = _seconds(name, value)
    return Slo(**limits)


def _seconds(name: str, text: str) -> float:
    unit = next((unit for unit in ("ms", "s") if text.endswith(unit)), "")
    try:
        value = float(text.removesuffix(unit)) * (0.001 if unit == "ms" else 1)
    except ValueError:
        value = 0
    if not unit or not 0 < value < 86_400:
        raise BenchRunError(f"{name}={text} is no time.", f"Write it with its unit, as in {name}=60ms or {name}=1.5s.")
    return value
