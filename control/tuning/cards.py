"""Cards to plan for, with the memory that CUDA reports. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from control.errors import TuningError
from control.vllm.defaults import GIB, Device

__all__ = ["CARDS", "GIB", "Card", "find", "gib"]


def gib(size: float) -> str:
    """Bytes as GiB, for people."""
    return f"{size / GIB:.1f} GiB" if abs(size) >= 0.1 * GIB else f"{size / 1024**2:.0f} MiB"


@dataclass(frozen=True)
class Card:
    """A GPU, or a machine that computes without one (``cpu``).

    ``label``: what it is sold as; ``bytes``: what a program sees of it, which is less.
    """

    name: str
    label: str
    bytes: int
    cpu: bool = False

    @property
    def device(self) -> Device:
        """The same as vLLM's own choices depend on it."""
        return Device(self.bytes, self.name, self.cpu)


def _card(name: str, label: str, gib: float) -> Card:
    return Card(name, label, int(gib * GIB))


#: Sizes as PyTorch and vLLM print them in public logs ("total capacity of ... GiB", "total_gpu_memory"); they differ by
#: some 0.2 GiB between drivers. What a host really has stands in its ``gpu_memory``.
CARDS = (
    _card("L4", "24GB", 22.0),
    _card("RTX 4090", "24GB", 23.6),
    _card("L40S", "48GB", 44.4),
    _card("A100 80GB", "80GB", 79.2),
    _card("H100 80GB", "80GB", 79.2),
    _card("H200", "141GB", 139.8),
)


def find(text: str) -> list[Card]:
    """The cards that ``text`` means: a name (l40s), what it is sold as (24GB), or a size (22GiB). Else TuningError."""
    wanted = re.sub(r"[\s_-]", "", text).lower()
    found = [card for card in CARDS if wanted in (card.label.lower(), *_names(card))]
    if found:
        return found
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(gib|mib)", wanted)
    if match is not None and float(match[1]) > 0:
        return [Card(text, text, int(float(match[1]) * (GIB if match[2] == "gib" else 1024**2)))]
    known = ", ".join(dict.fromkeys(card.name for card in CARDS))
    raise TuningError(
        f"No card is called {text!r}.",
        f"Known are {known}, 24GB, 48GB, 80GB, 141GB. For another one give what `nvidia-smi` shows, such as 32607MiB.",
    )


def _names(card: Card) -> tuple[str, ...]:
    plain = card.name.replace(" ", "").lower()
    return plain, plain.removeprefix("rtx"), plain.removesuffix(card.label.lower())
