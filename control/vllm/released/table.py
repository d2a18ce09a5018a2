"""flags.json: all releases in one table, with spans of releases for what did not change. Small diffs: one per line."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

ABOUT = (
    "The flags of `vllm serve` per release, read by `make flags` out of vllm/engine/arg_utils.py, the server's "
    "cli_args.py and the configuration classes of the wheels below (PyPI: vllm). Not to be edited. "
    "from, to: first and last release that has the flag in this way; no to: the newest one has it."
)

Facts = dict[str, Any]


@dataclass
class Table:
    """``origins``: release → the wheel that it was read from; ``flags``: release → flag → what it takes."""

    origins: dict[str, str] = field(default_factory=dict)
    flags: dict[str, dict[str, Facts]] = field(default_factory=dict)

    @classmethod
    def read(cls, text: str) -> Table:
        """The table that ``text`` wrote."""
        data = json.loads(text)
        releases = list(data["releases"])
        table = cls(dict(data["releases"]), {release: {} for release in releases})
        for flag, spans in data["flags"].items():
            for span in spans:
                facts = {key: value for key, value in span.items() if key not in ("from", "to")}
                last = releases.index(span.get("to", releases[-1]))
                for release in releases[releases.index(span["from"]) : last + 1]:
                    table.flags[release][flag] = facts
        return table

    def add(self, release: str, origin: str, flags: dict[str, Facts]) -> None:
        """Another release, in any order."""
        self.origins[release] = origin
        self.flags[release] = flags
        order = sorted(self.origins, key=lambda name: [int(part) for part in name.split(".")])
        self.origins = {name: self.origins[name] for name in order}
        self.flags = {name: self.flags[name] for name in order}

    def text(self) -> str:
        """The file: the same table gives the same text."""
        names = sorted({flag for flags in self.flags.values() for flag in flags})
        releases = ",\n".join(f"    {_json(name)}: {_json(origin)}" for name, origin in self.origins.items())
        flags = ",\n".join(f"    {_json(name)}: [{self._spans(name)}]" for name in names)
        about = f'  "about": {_json(ABOUT)},\n'
        return f'{{\n{about}  "releases": {{\n{releases}\n  }},\n  "flags": {{\n{flags}\n  }}\n}}\n'

    def _spans(self, flag: str) -> str:
        spans: list[Facts] = []
        releases = list(self.flags)
        for release, known in self.flags.items():
            facts = known.get(flag)
            before = spans[-1] if spans and "to" not in spans[-1] else None
            if before is not None and facts != {key: value for key, value in before.items() if key != "from"}:
                before["to"] = releases[releases.index(release) - 1]
                before = None
            if facts is not None and before is None:
                spans.append({"from": release, **facts})
        written = [_json(_ordered(span)) for span in spans]
        return written[0] if len(written) == 1 else "\n      " + ",\n      ".join(written) + "\n    "


def _ordered(span: Facts) -> Facts:
    first = {key: span[key] for key in ("from", "to") if key in span}
    return first | {key: value for key, value in sorted(span.items()) if key not in first}


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
