"""``signalbox profiles``: every profile with its numbers and reasons, and what vLLM itself would choose on a card."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from control.tuning.cards import Card
from control.vllm.defaults import tier
from control.vllm.profiles import PROFILES

_COLUMNS = ("max_num_batched_tokens", "max_num_seqs", "long_prefill_token_threshold")


def as_data(card: Card) -> list[dict[str, Any]]:
    """The profiles for ``--json``; ``settings`` of ``default`` are what vLLM chooses on this card."""
    tokens, sequences = tier(card.device)
    chosen = {"max_num_batched_tokens": tokens, "max_num_seqs": sequences}
    return [
        {"profile": name, "settings": dict(profile.settings) or chosen, "traffic": profile.traffic, "why": profile.why,
         "holds": profile.holds, "elsewhere": profile.elsewhere}
        for name, profile in PROFILES.items()
    ]  # fmt: skip


def show(card: Card, console: Console) -> None:
    """Print them: a table of the numbers, then a paragraph each."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("profile")
    for title in ("tokens of a step", "sequences", "of a long prompt"):
        table.add_column(title, justify="right")
    table.add_column("for")
    for row in as_data(card):
        numbers = (f"{row['settings'][name]:,}" if name in row["settings"] else "" for name in _COLUMNS)
        table.add_row(row["profile"], *numbers, row["traffic"])
    console.print(table)
    for row in as_data(card):
        console.print(f"\n[bold]{row['profile']}[/]: {escape(row['why'])}", soft_wrap=True)
        console.print(f"  Holds for: {escape(row['holds'])}. Elsewhere: {escape(row['elsewhere'])}", soft_wrap=True)
    console.print(
        f"\n[dim]default: as vLLM 0.28 to 0.33 chooses on {escape(card.name)}. All but default cut prompts into chunks "
        "and cache prefixes. The columns are max_num_batched_tokens, max_num_seqs, long_prefill_token_threshold.[/]",
        soft_wrap=True,
    )
