"""Progress on a terminal (rich), and in plain lines where there is none, such as in CI."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from control.engines.progress import seconds_text

#: Without a terminal, a long step says a line this often (seconds).
QUIET_SECONDS = 15.0

_STYLES = {"ready": "green", "failed": "red", "stopped": "yellow"}


class Steps:
    """Shows long steps one below the other: ``with Steps(console) as progress: progress(title, detail, fraction)``."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bars = Progress(
            SpinnerColumn(finished_text="✓"),
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            TextColumn("[dim]{task.fields[detail]}", markup=True),
            console=console,
        )
        self._task: TaskID | None = None
        self._title = ""
        self._began = self._said = time.monotonic()

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._finish()
        self._bars.stop()

    def __call__(self, title: str, detail: str = "", fraction: float | None = None) -> None:
        """There is news; see ``control.engines.progress.Progress``."""
        if title != self._title:
            self._finish()
            self._title, self._began = title, time.monotonic()
            if self._console.is_terminal:
                self._task = self._bars.add_task(title, total=None, detail="")
            self._say(detail)
        elif not self._console.is_terminal and time.monotonic() - self._said > QUIET_SECONDS:
            self._say(detail)
        if self._task is not None:
            self._bars.update(self._task, detail=detail.replace("[", r"\["))
            if fraction is not None:
                self._bars.update(self._task, total=1.0, completed=min(fraction, 0.999))

    def _finish(self) -> None:
        if not self._title:
            return
        if self._task is not None:
            self._bars.update(self._task, total=1.0, completed=1.0)
        elif not self._console.is_terminal:
            self._console.print(
                f"{self._title}: done in {seconds_text(time.monotonic() - self._began)}", soft_wrap=True
            )
        self._title, self._task = "", None

    def _say(self, detail: str) -> None:
        self._said = time.monotonic()
        if not self._console.is_terminal:
            self._console.print(f"{self._title}{': ' if detail else ''}{detail}", markup=False, soft_wrap=True)


@dataclass(frozen=True)
class EngineRow:
    """One engine while it starts: ``state`` is the supervisor's, ``seconds`` how long it has been in it."""

    id: str
    state: str
    phase: str
    detail: str
    seconds: float


class EngineTable:
    """The engines' phases, live on a terminal; elsewhere a line for each change."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, refresh_per_second=4)
        self._said: dict[str, tuple[str, str]] = {}

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def show(self, rows: Iterable[EngineRow]) -> None:
        """Show these rows instead of the earlier ones."""
        rows = list(rows)
        if self._console.is_terminal:
            self._live.update(_table(rows))
            return
        for row in rows:
            if self._said.get(row.id) != (_words(row), row.detail):
                self._said[row.id] = (_words(row), row.detail)
                detail = f" ({row.detail})" if row.detail else ""
                self._console.print(f"{row.id}: {_words(row)}{detail}", markup=False, soft_wrap=True)


def _words(row: EngineRow) -> str:
    return row.state if row.state == row.phase or not row.phase else f"{row.state}: {row.phase}"


def _table(rows: list[EngineRow]) -> Table:
    table = Table.grid(padding=(0, 2))
    for row in rows:
        mark = {"ready": "✓", "failed": "✗"}.get(row.state, "·")
        words = Text(f"{mark} {_words(row)}", style=_STYLES.get(row.state, "cyan"))
        table.add_row(row.id, words, seconds_text(row.seconds), Text(row.detail, style="dim", overflow="ellipsis"))
    return table
