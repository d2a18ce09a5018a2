"""Start a scripted engine: ``python -m tests.scripted --port 8101 --name my-model``."""

from __future__ import annotations

import argparse
import asyncio
import socket
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tests.scripted.app import App
from tests.scripted.script import Script
from tests.scripted.state import Engine

ENGINE: Engine


class CountingProtocol(HttpToolsProtocol):
    """uvicorn's own protocol, which also counts connections and shows its transport to the app."""

    posted = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        ENGINE.opened += 1
        ENGINE.open += 1

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        ENGINE.open -= 1

    def on_headers_complete(self) -> None:
        self.scope["scripted.transport"] = self.transport  # type: ignore[typeddict-unknown-key]
        super().on_headers_complete()
        path = self.scope.get("path")
        if not self.posted and self.scope["method"] == "POST" and path != "/_scripted":
            self.posted = True
            ENGINE.post_connections += 1


class Server(uvicorn.Server):
    """uvicorn's server, which can refuse connections for a while."""

    async def refuse(self, seconds: float) -> None:
        """Close the listening socket, and open it again later. Established connections live on."""
        host, port = self.config.host, self.config.port
        for server in self.servers:
            server.close()
        await asyncio.sleep(seconds)

        def protocol() -> CountingProtocol:
            return CountingProtocol(self.config, self.server_state, {})

        self.servers = [await asyncio.get_running_loop().create_server(protocol, host, port)]


def main() -> None:
    global ENGINE
    parser = argparse.ArgumentParser(prog="python -m tests.scripted", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--fd", type=int, help="a listening socket to take over instead of host and port")
    parser.add_argument("--name", action="append", required=True, help="served model name; several are aliases")
    parser.add_argument("--lora", action="append", default=[], help="name of an adapter to list")
    parser.add_argument("--api-key", default="")
    parser.add_argument("--max-model-len", type=int, default=4_194_304)
    parser.add_argument("--delay-ms", type=float, default=0, help="time between two tokens")
    parser.add_argument("--max-running", type=int, default=0, help="requests that generate at a time; others wait")
    parser.add_argument("--tls-certificate", help="speak HTTPS with this PEM file (key included)")
    parser.add_argument("--log-file", help="append a line per request here")
    parser.add_argument("--starts-file", help="append the id of every POST here; it outlives a killed engine")
    options = parser.parse_args()
    ENGINE = Engine(options.name, options.lora, options.api_key, options.max_model_len,
                    Script(delay_ms=options.delay_ms), max_running=options.max_running)  # fmt: skip
    if options.starts_file:
        ENGINE.starts = open(options.starts_file, "ab", buffering=0)  # noqa: SIM115 (as long as the process lives)
    settings: dict[str, Any] = {"log_config": _log_config(options.log_file)} if options.log_file else {}
    if options.tls_certificate:
        settings |= {"ssl_certfile": options.tls_certificate, "ssl_keyfile": options.tls_certificate}
    config = uvicorn.Config(
        App(ENGINE), options.host, options.port, http=CountingProtocol, ws="none", lifespan="off", loop="asyncio",
        log_level="info" if options.log_file else "critical", access_log=bool(options.log_file),
        timeout_keep_alive=5, timeout_graceful_shutdown=1, backlog=2048, **settings,
    )  # fmt: skip
    ENGINE.server = Server(config)
    sockets = [socket.socket(fileno=options.fd)] if options.fd is not None else None
    ENGINE.server.run(sockets=sockets)


def _log_config(path: str) -> dict[str, Any]:
    line = {"format": "%(asctime)s %(levelname)s %(message)s"}
    handler = {"class": "logging.FileHandler", "filename": path, "formatter": "line"}
    return {"version": 1, "disable_existing_loggers": False, "formatters": {"line": line},
            "handlers": {"file": handler}, "root": {"handlers": ["file"], "level": "INFO"}}  # fmt: skip


if __name__ == "__main__":
    main()
