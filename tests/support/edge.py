"""A real edge: fleet.yaml in a scratch folder, rendered, started on free ports, looked at from every side."""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
import threading
from pathlib import Path
from typing import Any, ClassVar

import psutil
import requests
import yaml

from control.edge import apply
from control.edge.site import Site, open_site
from control.fleet.load import load
from tests.support.client import CHAT
from tests.support.net import free_port, wait_until
from tests.support.raw import RawClient

#: What must never stand in an error log: crashes, lost globals, Lua that died.
FORBIDDEN = ("[alert]", "[emerg]", "lua entry thread aborted", "writing a global Lua variable", "lua coroutine")
#: Alerts that a test brings about itself by killing workers.
KILLED = ("exited on signal 9",)


class Edge:
    """``with Edge(fleet) as edge``: runs until the block ends, then fails the test if its error log is not clean."""

    running: ClassVar[list[Edge]] = []
    #: Settings under ``edge`` that every edge gets unless its fleet says otherwise.
    defaults: ClassVar[dict[str, Any]] = {}

    def __init__(self, fleet: dict[str, Any], ready: bool = True, sources: Any = None, may_kill: bool = False) -> None:
        """``ready``: wait until every backend is ready. ``may_kill``: the test kills workers, which nginx reports."""
        # Not pytest's tmp_path: workers run as nobody and must be able to read what lies here.
        self.folder = Path(tempfile.mkdtemp(prefix="edge-"))
        self.folder.chmod(0o755)
        self.fleet_file = self.folder / "fleet.yaml"
        self.port, self.admin_port = free_port(), free_port()
        self.wait_ready, self.sources, self.may_kill = ready, sources, may_kill
        self.scheme = "https" if fleet.get("edge", {}).get("tls") else "http"
        self.write(fleet)
        self._local = threading.local()
        self._log_start = 0

    def write(self, fleet: dict[str, Any]) -> None:
        """Write fleet.yaml with this edge's ports, two workers and a state folder of its own."""
        settings = {"listen": f"127.0.0.1:{self.port}", "admin": f"127.0.0.1:{self.admin_port}", "workers": 2,
                    **self.defaults, **fleet.get("edge", {})}  # fmt: skip
        self.fleet_file.write_text(yaml.safe_dump({**fleet, "edge": settings}, sort_keys=False))

    @property
    def site(self) -> Site:
        site = open_site(load(self.fleet_file))
        return Site(site.loaded, site.paths, site.engine, self.sources) if self.sources else site

    def __enter__(self) -> Edge:
        return self.start()

    def start(self) -> Edge:
        Edge.running.append(self)
        try:
            site = self.site
            self.paths, self.process = site.paths, site.process
            apply.start(site)
            if self.wait_ready:
                self.until_ready()
        except BaseException:
            print(self.tail())
            self.stop(check=False)
            raise
        return self

    def __exit__(self, kind: object, value: object, trace: object) -> None:
        if kind is not None:
            print(f"error.log of the edge at {self.url}:\n{self.tail()}")
        self.stop(check=kind is None)

    def tail(self) -> str:
        """The last lines of the error log, without nginx's remarks on large bodies."""
        lines = [line for line in self.error_log().splitlines() if "buffered to a temporary file" not in line]
        return "\n".join(lines[-15:])

    def stop(self, check: bool = True) -> None:
        """Stop nginx and remove the folder. With ``check``: AssertionError when the error log shows a fault."""
        if self in Edge.running:
            Edge.running.remove(self)
        log = ""
        try:
            if hasattr(self, "process"):
                self.process.stop(quit=False)
            log = self.error_log()
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)
        if check:
            self.check_log(log)

    def check_log(self, log: str | None = None) -> None:
        """Fail when nginx or Lua reported a fault of the edge itself."""
        lines = (self.error_log() if log is None else log).splitlines()
        allowed = KILLED if self.may_kill else ()
        bad = [line for line in lines if any(word in line for word in FORBIDDEN)
               and not any(word in line for word in allowed)]  # fmt: skip
        assert not bad, "the edge's error log shows faults:\n" + "\n".join(bad[:20])

    # Talking to it.

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}"

    @property
    def session(self) -> requests.Session:
        """One session per thread: a client that keeps its connection."""
        if not hasattr(self._local, "session"):
            self._local.session = requests.Session()
            self._local.session.trust_env = False
            self._local.session.headers.clear()
        session: requests.Session = self._local.session
        return session

    def call(
        self, method: str, path: str, new_connection: bool = False, timeout: float = 30, **options: Any
    ) -> requests.Response:
        """One request; ``new_connection`` leaves the thread's kept connection alone."""
        if new_connection:
            with requests.Session() as session:
                session.trust_env = False
                return session.request(method, self.url + path, timeout=timeout, **options)
        return self.session.request(method, self.url + path, timeout=timeout, **options)

    def get(self, path: str, **options: Any) -> requests.Response:
        return self.call("GET", path, **options)

    def post(self, path: str, value: Any = None, data: Any = None, **options: Any) -> requests.Response:
        """POST ``value`` as JSON, or ``data`` as it is with JSON's content type unless headers name another."""
        if data is None:
            data = json.dumps(value).encode()
        headers = {"Content-Type": "application/json", **options.pop("headers", {})}
        return self.call("POST", path, data=data, headers=headers, **options)

    def chat(self, body: dict[str, Any], **options: Any) -> requests.Response:
        return self.post(CHAT, body, **options)

    def raw(self, **options: Any) -> RawClient:
        return RawClient(self.port, **options)

    # Looking at it.

    @property
    def token(self) -> str:
        return self.paths.admin_token.read_text().strip()

    def admin(self, method: str, path: str, **options: Any) -> requests.Response:
        headers = {"Authorization": f"Bearer {self.token}", **options.pop("headers", {})}
        url = f"http://127.0.0.1:{self.admin_port}{path}"
        # The kernel wakes one worker for a new connection. When that one is being killed, nobody is told of it until
        # the next connection comes: tests that kill must try again soon.
        timeout = 0.4 if self.may_kill else 5
        return requests.request(method, url, headers=headers, timeout=timeout, **options)

    def state(self) -> dict[str, Any]:
        content: dict[str, Any] = self.admin("GET", "/state").json()
        return content

    def backends(self) -> dict[str, dict[str, Any]]:
        return {backend["id"]: backend for backend in self.state()["backends"]}

    def in_flight(self) -> int:
        return sum(backend["in_flight"] for backend in self.state()["backends"])

    def idle(self, seconds: float = 3.0) -> None:
        """Wait until no slot is taken."""
        wait_until("all slots to be free", lambda: self.in_flight() == 0, seconds)

    def until_ready(self, seconds: float = 5.0) -> None:
        """Wait until every backend is ready."""

        def ready() -> bool:
            return all(backend["state"] == "ready" for backend in self.state()["backends"])

        wait_until("all backends to be ready", ready, seconds)

    def metrics(self) -> dict[str, float]:
        """Every sample of /metrics: the series as written, without white space around, and its value."""
        samples = {}
        for line in self.admin("GET", "/metrics").text.splitlines():
            if line and not line.startswith("#"):
                series, _, value = line.rpartition(" ")
                samples[series] = float(value)
        return samples

    def metric(self, name: str, **labels: str) -> float:
        """Sum of all samples of ``name`` that carry these labels."""
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        return sum(value for series, value in self.metrics().items()
                   if series.partition("{")[0] == name and all(one in series for one in wanted))  # fmt: skip

    def log_lines(self) -> list[dict[str, Any]]:
        """The access log, oldest first; nginx is told to write out what it holds back."""
        path = self.paths.edge_logs / "access.log"
        self.process.reopen_logs()
        text = path.read_text() if path.exists() else ""
        whole, _, _ = text.rpartition("\n")  # a worker may be writing the last line at this moment
        return [json.loads(line) for line in whole.splitlines()]

    def log_of_all(self, count: int) -> list[dict[str, Any]]:
        """The access log once it has ``count`` lines: workers write theirs a moment after they are told to."""

        def lines() -> list[dict[str, Any]]:
            found = self.log_lines()
            return found if len(found) >= count else []

        return wait_until(f"{count} log lines", lines, 10, every=0.1)

    def log_of(self, request_id: str) -> dict[str, Any]:
        """The one line of a request."""

        def lines() -> list[dict[str, Any]]:
            return [line for line in self.log_lines() if line["id"] == request_id]

        found = wait_until(f"the log line of {request_id}", lines, every=0.05)
        assert len(found) == 1, found
        return found[0]

    def error_log(self) -> str:
        path = self.paths.edge_logs / "error.log" if hasattr(self, "paths") else Path("/nonexistent")
        return path.read_text(errors="replace") if path.exists() else ""

    def workers(self) -> list[int]:
        """Pids of nginx's workers, the draining ones included."""
        pid = self.process.pid()
        return [child.pid for child in psutil.Process(pid).children()] if pid else []

    def kill_worker(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)

    def reload(self, force: bool = False) -> Any:
        """Render and apply what fleet.yaml says now; ``force``: HUP even when nothing static changed."""
        if force:
            generation = int((self.paths.conf / "generation").read_text()) + 1
            (self.paths.conf / "generation").write_text(f"{generation}\n")
            self.process.reload_signal()
            wait_until("workers of the new generation", lambda: self.state()["generation"] == str(generation))
            return None
        return apply.reload(self.site)
