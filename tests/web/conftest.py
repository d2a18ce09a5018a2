"""The real stack for the browser: scripted engines, a real edge, the control plane's daemon, Chromium."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import requests
from playwright.sync_api import Browser, ConsoleMessage, Page, sync_playwright
from waitress.server import create_server

from control.web.app import WebSettings, create_app
from control.web.login import Guard
from control.web.logins import set_login
from control.web.poller import FleetView
from control.web.view import FleetBackend, FleetFacts, FleetModel
from tests.support.edge import Edge
from tests.support.engine import ScriptedEngine
from tests.support.net import REPOSITORY, free_port, wait_until
from tests.web.fakes import FLEET, KEYS, Sources, Status, backend, edge_state

QUIET = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
         "--disable-sync", "--no-first-run")  # fmt: skip


class Daemon:
    """``signalbox serve`` on one fleet.yaml; its log beside it."""

    def __init__(self, fleet_file: Path, port: int) -> None:
        self.fleet_file, self.port = fleet_file, port
        self.log = fleet_file.parent / "daemon.log"
        self.url = f"http://127.0.0.1:{port}"

    def start(self, wait: bool = True) -> Daemon:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "control", "-f", str(self.fleet_file), "serve"],
                cwd=REPOSITORY, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        if wait:
            wait_until("the page", self.answers, 20, every=0.05)
        return self

    def answers(self) -> bool:
        assert self.process.poll() is None, self.text()
        try:
            return requests.get(self.url + "/api/fleet", timeout=5).ok
        except requests.ConnectionError:
            return False

    def facts(self) -> dict[str, Any]:
        """``/api/fleet``."""
        content: dict[str, Any] = requests.get(self.url + "/api/fleet", timeout=5).json()
        return content

    def states(self) -> dict[str, str]:
        return {backend["id"]: backend["state"] for backend in self.facts()["backends"]}

    def text(self) -> str:
        """The log so far."""
        return self.log.read_text(errors="replace")

    def tell(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)

    def stop(self, seconds: float = 20) -> int:
        """SIGTERM, then wait; returns the exit code."""
        if self.process.poll() is None:
            self.tell(signal.SIGTERM)
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"the daemon did not stop in {seconds} s:\n{self.text()}") from None


@dataclass
class Stack:
    """Two engines of model m behind one edge, and the daemon whose page shows them."""

    engines: list[ScriptedEngine]
    edge: Edge
    daemon: Daemon

    @property
    def url(self) -> str:
        return self.daemon.url


@pytest.fixture(scope="session")
def stack() -> Iterator[Stack]:
    """Everything running, both backends ready; a test that ends a part starts it again."""
    with ScriptedEngine("m") as first, ScriptedEngine("m") as second:
        port = free_port()
        backends = [{"id": f"m-{n}", "url": engine.url} for n, engine in enumerate((first, second), 1)]
        fleet = {
            "edge": {"log": {"rotate_at": "1KiB", "keep": 2}},
            "control": {"listen": f"127.0.0.1:{port}"},
            "models": {"m": {"aliases": ["chat"], "loras": ["sql-lora"], "backends": backends}},
        }
        with Edge(fleet) as edge:
            daemon = Daemon(edge.fleet_file, port).start()
            try:
                yield Stack([first, second], edge, daemon)
            finally:
                daemon.stop()


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """Debian's Chromium, or the one that CHROMIUM names."""
    path = os.environ.get("CHROMIUM") or shutil.which("chromium") or "/usr/bin/chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(QUIET))
        yield browser
        browser.close()


@dataclass
class Tabs:
    """Opens pages and collects what the browser complains about: nothing is to be left at the end of a test."""

    browser: Browser
    complaints: list[str] = field(default_factory=list)

    def open(self, url: str, width: int = 1280, **options: Any) -> Page:
        """A page in a context of its own, loaded."""
        options = {"locale": "en-US", **options}
        page = self.browser.new_context(viewport={"width": width, "height": 800}, **options).new_page()
        page.on("console", self._on_console)
        page.on("pageerror", lambda error: self.complaints.append(f"uncaught: {error}"))
        page.on("requestfailed", lambda request: self._on_failed(request.url, request.failure))
        page.goto(url)
        return page

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):  # a violation of the CSP is an error on the console
            self.complaints.append(f"{message.type}: {message.text}")

    def _on_failed(self, url: str, failure: str | None) -> None:
        # A stream is closed by the page itself when a tab goes, and what is still on its way when the test goes on.
        if "/api/events" not in url and failure != "net::ERR_ABORTED":
            self.complaints.append(f"failed: {url}: {failure}")


@pytest.fixture
def tabs(chromium: Browser) -> Iterator[Tabs]:
    """Pages whose console must stay clean."""
    tabs = Tabs(chromium)
    yield tabs
    for context in list(chromium.contexts):
        context.close()
    assert tabs.complaints == []


def serve_app(sources: Sources, listeners: int = 16, **settings: Any) -> tuple[str, FleetView, Any]:
    """The page over turned sources, on a real port: for what a real edge would never say."""
    port = free_port()
    view = sources.view(interval=0.2)
    server = create_server(
        create_app(view, WebSettings(port=port, listeners=listeners, **settings), keys=lambda _now: sources.keys),
        host="127.0.0.1",
        port=port,
        threads=8,
        channel_request_lookahead=1,
    )
    view.start()
    threading.Thread(target=server.run, daemon=True).start()
    return f"http://127.0.0.1:{port}/", view, server


def _served(sources: Sources, **settings: Any) -> Iterator[str]:
    url, view, server = serve_app(sources, **settings)
    yield url
    view.close()
    server.close()


@pytest.fixture
def evil_page() -> Iterator[str]:
    """A page about an engine that reports HTML."""
    evil = "<img src=x onerror=alert(1)>"
    yield from _served(
        Sources(edge_state(backend("m-1", "down", reason=evil, reported=[evil, "<script>alert(1)</script>"])))
    )


@pytest.fixture
def asking_page(tmp_path: Path) -> Iterator[str]:
    """A page that asks for a login: alice, "correct horse"."""
    set_login(tmp_path / "page.logins", "alice", "correct horse")
    yield from _served(Sources(), guard=Guard("t" * 64, tmp_path / "page.logins"))


@pytest.fixture(scope="session")
def ugly_page() -> Iterator[str]:
    """A page full of names without a place to break, long reasons and large numbers."""
    long = "a" * 64
    rows = [
        backend(long, "down", model=long * 4, reason="x" * 300, in_flight=10**9, requests=10**15, reported=["y" * 256])
    ]
    rows.append(backend("m-1", "starting", reason="connection refused while connecting to upstream " * 4))
    fleet = FleetFacts(
        (FleetModel(long * 4, (long * 4, "b" * 200), tuple(f"lora-{n}" for n in range(60)), "least_loaded"),),
        (FleetBackend(long, long * 4, f"{'h' * 63}.{'i' * 63}.example.com:65535", "https"), *FLEET.backends),
    )
    state = edge_state(*rows) | {
        "workers": [{"pid": 4_000_000 + n, "generation": "1", "exiting": n > 8} for n in range(16)]
    }
    engines = [Status("m-1", "installing", "z" * 200, "w" * 300, restarts=10**6)]
    yield from _served(Sources(state, engines, fleet, keys=KEYS))
