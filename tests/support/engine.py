"""A scripted engine as a subprocess."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
from typing import Any

from tests.support.net import REPOSITORY, free_port, wait_until


class ScriptedEngine:
    """``with ScriptedEngine("my-model") as engine``: serves at ``engine.url`` until the block ends."""

    def __init__(self, *names: str, port: int | None = None, host: str = "127.0.0.1", **options: Any) -> None:
        """``options`` become command-line options: ``api_key="k"``, ``lora=["a", "b"]``, ``delay_ms=5``."""
        self.names = names or ("scripted",)
        self.host = host
        self.port = port or free_port()
        self.options = options
        self.tls = "tls_certificate" in options
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}"

    def __enter__(self) -> ScriptedEngine:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.kill()

    def launch(self) -> ScriptedEngine:
        """Start the process without waiting for it: several at once start in the time of one."""
        listener = socket.socket(socket.AF_INET6 if ":" in self.host else socket.AF_INET)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((self.host, self.port))
        command = [sys.executable, "-m", "tests.scripted", "--host", self.host, "--port", str(self.port)]
        command += ["--fd", str(listener.fileno())]
        for name in self.names:
            command += ["--name", name]
        for option, value in self.options.items():
            for one in value if isinstance(value, list) else [value]:
                command += ["--" + option.replace("_", "-"), str(one)]
        self.process = subprocess.Popen(command, cwd=REPOSITORY, pass_fds=[listener.fileno()])
        listener.close()
        return self

    def start(self) -> ScriptedEngine:
        self.launch()
        return self.ready()

    def ready(self) -> ScriptedEngine:
        """Wait until it answers."""

        def answers() -> bool:
            assert self.process is not None and self.process.poll() is None, f"the scripted engine {self.names} ended"
            return bool(self.counters()["scripted"])

        wait_until(f"scripted engine {self.names} at {self.url}", answers, 20)
        return self

    def call(self, method: str, value: Any = None) -> dict[str, Any]:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=5)
        if self.tls:
            context = ssl._create_unverified_context()
            connection = http.client.HTTPSConnection(self.host, self.port, timeout=5, context=context)
        try:
            connection.request(method, "/_scripted", json.dumps(value) if value is not None else None)
            answer = connection.getresponse()
            content: dict[str, Any] = json.loads(answer.read())
            assert answer.status == 200, content
            return content
        finally:
            connection.close()

    def counters(self) -> dict[str, Any]:
        """Connections, requests started, finished and aborted by path, the last 100 requests."""
        return self.call("GET")

    def configure(self, **values: Any) -> None:
        """Change defaults: any key of Script, ``freeze``, ``refuse_ms``, ``names``, ``loras``, ``health_status`` ..."""
        self.call("POST", values)

    def reset(self) -> None:
        """Counters back to zero."""
        self.call("POST", {"reset": True})

    def started(self, path: str = "/v1/chat/completions") -> int:
        return int(self.counters()["started"].get(path, 0))

    def kill(self) -> None:
        """End the process at once; its port refuses connections from now on."""
        if self.process is None:
            return
        if self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGCONT)
            self.process.kill()
        self.process.wait()
        self.process = None

    def freeze(self) -> None:
        """Stop the whole process: connections are accepted by the kernel, nothing answers."""
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGCONT)

    def restart(self) -> None:
        """Kill it and start it again at the same port, counters at zero."""
        self.kill()
        self.start()
