"""Which settings an engine has, and who said so: fleet.yaml, its profile, or nobody (vLLM's default). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from control.engines.facts import Facts
from control.fleet.arguments import release_of, vllm_settings
from control.fleet.schema import Engine
from control.vllm.flags import UnknownRelease, flags_of
from control.vllm.settings import SETTINGS, SettingError, words

Origin = Literal["fleet", "profile", "default"]


@dataclass(frozen=True)
class Setting:
    """One setting as fleet.yaml calls it, the words of the command line that say it (empty: nothing is said)."""

    name: str
    value: str
    words: str
    origin: Origin


def settings_of(engine: Engine) -> tuple[Setting, ...]:
    """Every setting of an engine that vLLM is told or could be told, in the order of fleet.yaml; then extra_args.

    A ``command`` of one's own has none.
    """
    if engine.command is not None:
        return ()
    told = vllm_settings(engine)
    found = []
    for name in SETTINGS:
        given = getattr(engine, name) is not None
        value = told.get(name)
        origin: Origin = "fleet" if given else "profile" if value is not None else "default"
        found.append(Setting(name, "" if value is None else _shown(value), _words(engine, name, value), origin))
    extra = " ".join(engine.extra_args)
    return (*found, *([Setting("extra_args", extra, extra, "fleet")] if extra else []))


def running_value(name: str, facts: Mapping[str, Any] | None) -> str:
    """What the running engine said of a setting when it started; empty when it did not."""
    value = (facts or {}).get("kv_cache_memory" if name == "kv_cache_memory" else name)
    return "" if value in (None, "") or name not in Facts.__dataclass_fields__ else _shown(value)


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:g}" if isinstance(value, float) else str(int(value)) if isinstance(value, int) else str(value)


def _words(engine: Engine, name: str, value: object) -> str:
    if value is None:
        return ""
    try:
        return " ".join(words(name, value, flags_of(release_of(engine)), engine.environment))
    except (SettingError, UnknownRelease):  # `signalbox check` says why
        return ""
