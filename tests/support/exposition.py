"""Prometheus text, read."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_LABEL = re.compile(r'([a-z_]+)="((?:[^"\\]|\\.)*)"')
_PARTS = {"histogram": ("_bucket", "_sum", "_count")}


@dataclass
class Family:
    """One metric: its kind, help, and the labels and value of each sample by the sample's name."""

    kind: str
    help: str
    samples: dict[str, list[tuple[dict[str, str], float]]] = field(default_factory=dict)

    @property
    def labels(self) -> set[str]:
        """Names of all labels, without the bounds of a histogram."""
        return {name for samples in self.samples.values() for labels, _ in samples for name in labels} - {"le"}


def read(text: str) -> dict[str, Family]:
    """Families by name."""
    families: dict[str, Family] = {}
    helps: dict[str, str] = {}
    for line in text.splitlines():
        if line.startswith("# HELP "):
            _, _, name, words = line.split(" ", 3)
            helps[name] = words
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            family = families[name] = Family(kind, helps[name])
            for part in _PARTS.get(kind, ("",)):
                family.samples[name + part] = []
        elif line:
            series, _, value = line.rpartition(" ")
            name, _, labels = series.partition("{")
            family = next(one for one in families.values() if name in one.samples)
            family.samples[name].append((dict(_LABEL.findall(labels)), float(value)))
    return families
