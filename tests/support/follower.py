"""``signalbox edge`` as a person runs it: one more edge in a folder of its own, with others' fleet."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import Any

from control.edge.process import EdgeProcess
from control.follow import read_status
from control.paths import REPOSITORY, StatePaths
from tests.support.edge import Edge
from tests.support.net import wait_until


class Follower(Edge):
    """``with Follower(redis.url) as edge``: runs until the block ends. See ``until_taken``."""

    def __init__(self, state: Any, **edge: Any) -> None:
        """``state`` as in fleet.yaml."""
        super().__init__({"edge": {"state": state, **edge}}, may_kill=True)
        self.paths = StatePaths(self.folder / ".signalbox")
        self.daemon: subprocess.Popen[bytes] | None = None
        self.log = self.folder / "daemon.log"

    def start(self) -> Follower:
        Edge.running.append(self)
        self.process = EdgeProcess(self.paths)
        command = [sys.executable, "-m", "control", "--fleet", str(self.fleet_file), "edge"]
        with self.log.open("ab") as log:
            self.daemon = subprocess.Popen(command, cwd=REPOSITORY, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        return self

    def until_taken(self, version: int = 0) -> Follower:
        """Wait until it serves a fleet (of at least this version) with every backend ready."""
        wait_until("the fleet to be taken", lambda: self.status().get("version", 0) >= max(version, 1), 20)
        wait_until("the edge to run", lambda: self.process.pid() is not None, 10)
        self.until_ready()
        return self

    def status(self) -> dict[str, Any]:
        return read_status(self.paths) or {}

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def end(self, number: int = signal.SIGTERM) -> int:
        """End ``signalbox edge``; its exit code."""
        assert self.daemon is not None
        os.kill(self.daemon.pid, number)
        code = self.daemon.wait(40)
        self.daemon = None
        return code

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Another signalbox command on this edge's file."""
        command = [sys.executable, "-m", "control", "--fleet", str(self.fleet_file), *words]
        return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60)

    def stop(self, check: bool = True) -> None:
        if self.daemon is not None:
            self.daemon.kill()
            self.daemon.wait()
        if not check and self.log.exists():
            print(f"signalbox edge said:\n{self.said()[-3000:]}")
        super().stop(check)
