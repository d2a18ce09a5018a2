"""``signalbox plan``: the budget of a model on cards, as data and on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console, Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from control.tuning.advise import Finding, Severity, worst_first
from control.tuning.architecture import Architecture
from control.tuning.cards import GIB, gib
from control.tuning.catalogue import static_findings
from control.tuning.kv_cache import block_size
from control.tuning.memory import Budget
from control.tuning.settings import Settings
from control.tuning.showing import MARKS
from control.tuning.static_facts import StaticFacts

BAR_WIDTH = 52
_PARTS = (("weights", "█", "blue"), ("activations", "▓", "magenta"), ("graphs", "▒", "yellow"),
          ("runtime", "░", "red"), ("kv_memory", "▇", "green"))  # fmt: skip


@dataclass(frozen=True)
class OnCard:
    """A model on one card: its budget, and what is to be known of it."""

    budget: Budget
    findings: tuple[Finding, ...]

    @property
    def starts(self) -> bool:
        """Whether vLLM starts there."""
        return self.budget.starts and all(found.severity != "error" for found in self.findings)


@dataclass(frozen=True)
class Plan:
    """A model on several cards. ``lengths``: tokens of a real request, prompt and answer together."""

    name: str
    model: Architecture
    settings: Settings
    lengths: tuple[int, ...]
    cards: tuple[OnCard, ...]

    @property
    def starts(self) -> bool:
        """Whether it starts on one of the cards."""
        return any(card.starts for card in self.cards)

    @property
    def budgets(self) -> tuple[Budget, ...]:
        """The budget on each card."""
        return tuple(card.budget for card in self.cards)

    @property
    def block_size(self) -> int:
        """Tokens of a block."""
        return block_size(self.model, self.budgets[0].resolved)


def plan(name: str, on_cards: Sequence[StaticFacts]) -> Plan:
    """The plan of one model: facts with a budget, one for each card."""
    first = on_cards[0]
    assert first.model is not None
    cards = tuple(
        OnCard(facts.budget, tuple(static_findings(name, facts))) for facts in on_cards if facts.budget is not None
    )
    return Plan(name, first.model, first.settings, first.expected.lengths, cards)


def as_data(planned: Plan) -> dict[str, Any]:
    """The plan for ``--json``: bytes and tokens as whole numbers, per GPU; ``estimates`` names what is one."""
    layout = planned.budgets[0].layout
    return {
        "model": planned.name,
        "architecture": planned.model.name,
        "layers": len(planned.model.layers),
        "tensor_parallel_size": planned.settings.tensor_parallel_size,
        "pipeline_parallel_size": planned.settings.pipeline_parallel_size,
        "block_size": planned.block_size,
        "kv_bytes_per_token": layout.bytes_per_token,
        "kv_bytes_per_token_beyond_window": layout.beyond_window,
        "kv_bytes_per_block": layout.bytes_per_block,
        "starts": planned.starts,
        "cards": [_card_data(card, planned) for card in planned.cards],
    }


def _card_data(card: OnCard, planned: Plan) -> dict[str, Any]:
    found, chosen = card.budget, card.budget.resolved
    estimates = ["activations", "graphs", "runtime", *([] if found.weights_exact else ["weights"])]
    if planned.settings.kv_cache_memory is None:
        estimates.append("kv_memory")
    return {
        "card": found.card.name, "memory": found.card.bytes, "usable": found.usable, "weights": found.weights,
        "activations": found.activations, "graphs": found.graphs, "runtime": found.runtime,
        "kv_memory": found.kv_memory, "estimates": estimates, "starts": card.starts,
        "max_model_len": chosen.max_model_len, "max_num_seqs": chosen.max_num_seqs,
        "max_num_batched_tokens": chosen.max_num_batched_tokens,
        "kv_blocks": found.layout.blocks(found.kv_memory), "kv_tokens": found.tokens,
        "max_concurrency": round(found.concurrency, 2), "longest": found.longest, "tokens_each": found.tokens_each,
        "sequences": {str(length): found.sequences(length) for length in planned.lengths},
        "findings": [one.as_data() for one in card.findings],
    }  # fmt: skip


def show(planned: Plan, console: Console) -> None:
    """Print the plan: facts, bars, a table, and what they mean."""
    settings, layout = planned.settings, planned.budgets[0].layout
    gpus = settings.tensor_parallel_size * settings.pipeline_parallel_size
    spread = f", on {gpus} GPUs each" if gpus > 1 else ""
    about = f"{escape(planned.model.name)}, {len(planned.model.layers)} layers{spread}"
    console.print(f"[bold]{escape(planned.name)}[/] ({about})")
    beyond = f", {layout.beyond_window:,} beyond the window" if layout.beyond_window != layout.bytes_per_token else ""
    size = f"{layout.bytes_per_token:,} bytes per token and GPU{beyond}"
    console.print(f"KV cache: {size}, in blocks of {planned.block_size} tokens")
    if _same_steps(planned):
        tokens, sequences = _steps(planned.budgets[0])
        longest = planned.budgets[0].resolved.max_model_len
        console.print(f"Steps of {tokens} tokens, {sequences} sequences of at most {longest:,} tokens")
    console.print(_bars(planned.budgets))
    console.print(_table(planned))
    for (severity, sentence), names in _sentences(planned).items():
        whose = ", ".join(names) if len(names) < len(planned.cards) else "All"
        console.print(f"{MARKS[severity]} [bold]{escape(whose)}[/]: {escape(sentence)}", soft_wrap=True)
    console.print("[dim]≈ is an estimate: vLLM measures it at its start. All else follows from files and settings.[/]")


def _sentences(planned: Plan) -> dict[tuple[Severity, str], list[str]]:
    """What is to be known → the cards of which it is true."""
    said: dict[tuple[Severity, str], list[str]] = {}
    for card in planned.cards:
        for found in worst_first(card.findings):
            sentence = f"{found.text} {found.cure}" if found.severity != "info" else found.text
            said.setdefault((found.severity, sentence), []).append(card.budget.card.name)
    return said


def _bars(budgets: Sequence[Budget]) -> Group:
    grid = Table.grid(padding=(0, 1))
    for found in budgets:
        bar, used = Text(), 0
        for name, sign, style in _PARTS:
            width = max(0, round(getattr(found, name) / found.card.bytes * BAR_WIDTH))
            width = min(width, BAR_WIDTH - used)
            bar.append(sign * width, style)
            used += width
        bar.append("·" * (BAR_WIDTH - used), "dim")
        grid.add_row(found.card.name, bar, gib(found.card.bytes))
    legend = Text()
    words = ("weights", "step (activations)", "CUDA graphs", "runtime", "KV cache")
    for (_, sign, style), word in zip(_PARTS, words, strict=True):
        legend.append(f"{sign} {word}  ", style)
    return Group(grid, legend.append("· free", "dim"))


def _table(planned: Plan) -> Table:
    """Memory in GiB per GPU."""
    table = Table(box=None, padding=(0, 1), pad_edge=False, collapse_padding=True, header_style="bold")
    kv_cache = "KV" if planned.settings.kv_cache_memory is not None else "≈ KV"
    longest = f"× {planned.budgets[0].resolved.max_model_len:,}"
    table.add_column("GiB per GPU", no_wrap=True)
    own = () if _same_steps(planned) else ("step", "seqs")
    names = (*own, "weights", "≈ step", "≈ more", kv_cache, "tokens", longest)
    for name in (*names, *(f"of {length:,}" for length in planned.lengths)):
        table.add_column(name, justify="right", no_wrap=True)
    for found in planned.budgets:
        steps = () if _same_steps(planned) else _steps(found)
        table.add_row(found.card.name, *steps, *_row(found, planned), style="" if found.starts else "red")
    return table


def _steps(found: Budget) -> tuple[str, str]:
    return f"{found.resolved.max_num_batched_tokens:,}", f"{found.resolved.max_num_seqs:,}"


def _same_steps(planned: Plan) -> bool:
    """vLLM's own choice hangs on the card."""
    return len(set(map(_steps, planned.budgets))) == 1


def _row(found: Budget, planned: Plan) -> list[str]:
    holds = found.kv_memory > 0
    return [
        ("" if found.weights_exact else "≈ ") + _number(found.weights), _number(found.activations),
        _number(found.graphs + found.runtime), _number(found.kv_memory) if holds else "none", f"{found.tokens:,}",
        f"{found.concurrency:.2f}" if holds else "0", *(f"{found.sequences(length):,}" for length in planned.lengths),
    ]  # fmt: skip


def _number(size: int) -> str:
    return f"{size / GIB:.1f}"
