"""What the keepers of engines and of SSH tunnels share: one process of this machine, minded in a thread of its own."""

from __future__ import annotations

import subprocess
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable

from control.engines.drain import Drain, Gate
from control.engines.policy import Deaths, Policy
from control.engines.processes import Record


class Cancelled(Exception):
    """The keeper closes while something is being prepared."""


class ProcessKeeper(ABC):
    """Calls ``_once`` again and again until ``close``; a fault of ours in it is told, and is no reason to stop."""

    def __init__(
        self, identity: str, kind: str, policy: Policy, gate: Gate | None, after: threading.Thread | None
    ) -> None:
        """``kind``: what is minded, for the thread's name; ``gate``: is asked before a process in use is ended;
        ``after``: who minds one of this id until then."""
        self._id = identity
        self._policy = policy
        self._gate = gate
        self._after = after
        self._drain: Drain | None = None
        self._deaths = Deaths(policy)
        self._wake = threading.Event()
        self._closing = self._stop = False
        self._process: subprocess.Popen[bytes] | None = None
        self.thread = threading.Thread(target=self._run, name=f"{kind} {identity}", daemon=True)

    def close(self, stop: bool) -> None:
        """End the thread; ``stop`` says whether the process goes too. Returns at once: join ``thread``."""
        self._stop, self._closing = stop, True
        self._wake.set()

    @abstractmethod
    def _once(self) -> None:
        """Start the process or take it over, and mind it until it ends or there is something else to do."""

    @abstractmethod
    def _end(self) -> None:
        """End the process, and say so."""

    @abstractmethod
    def _unexpected(self, error: Exception) -> None:
        """Tell of an error that nobody expected."""

    def _left(self) -> None:
        """The thread ends."""
        self._let_in()

    def _run(self) -> None:
        if self._after is not None:
            self._after.join()
        while not self._closing:
            self._wake.clear()
            try:
                self._once()
            except Cancelled:
                break
            except Exception as error:  # a full disk, a bug: say so and go on, or nobody would mind it again
                self._unexpected(error)
                self._pause(self._policy.retry)
        if self._stop:
            try:
                self._end()
            except Exception as error:
                self._unexpected(error)
        self._left()

    def _pause(self, seconds: float) -> bool:
        """Wait; True when there is something else to do: closing, or a changed fleet."""
        return self._wake.wait(seconds) or self._closing

    def _emptied(self, record: Record, seconds: float, purpose: str, tell: Callable[[int], None]) -> bool:
        """Wait until nothing runs there any more; False when there is something else to do first. See ``Drain``."""
        if self._drain is None or self._drain.record != record:
            self._let_in()
            self._drain = Drain(self._gate, self._id, record, purpose)
        return self._drain.wait(seconds, self._policy.drain, self._pause, tell)

    def _let_in(self) -> None:
        """The edge may send requests again; whether it does is its own finding."""
        if self._drain is not None:
            self._drain.release()
            self._drain = None

    def _is_child(self, record: Record) -> bool:
        """Whether this very object started the process; only a parent learns the exit code."""
        return self._process is not None and self._process.pid == record.pid

    def _reap(self) -> None:
        if self._process is not None:
            self._process.poll()
