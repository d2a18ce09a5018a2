"""The load: bodies, and wrk with a script for each. An answer that is not 2xx makes a measurement invalid."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from control.bench.edge.process import BenchError, Tree

MODEL = "m1"
PATH = "/v1/chat/completions"
EVENTS_PER_STREAM = 50
#: The client's API key. All proxies get it; only Signalbox asks for one.
KEY = "sk-bench-key-of-nobody"


def chat_body(size: int, *, stream: bool = False, spaced: bool = False) -> bytes:
    """A chat request of exactly ``size`` bytes. ``spaced`` asks the fake engine for 20 ms between events."""
    body = {"model": MODEL, "max_tokens": EVENTS_PER_STREAM}
    if stream:
        body |= {"stream": True}
    if spaced:
        body |= {"user": "spaced"}
    frame = {**body, "messages": [{"role": "user", "content": ""}]}
    # Without blanks: the fake engine looks for the exact text, and vllm-router writes its own JSON without them too.
    room = size - len(json.dumps(frame, separators=(",", ":")))
    text = ("hello world " * (room // 12 + 1))[:room]
    frame["messages"] = [{"role": "user", "content": text}]
    return json.dumps(frame, separators=(",", ":")).encode()


@dataclass(frozen=True)
class Load:
    """One kind of request, sent over ``connections`` keep-alive connections."""

    name: str
    body: bytes
    connections: int

    def script(self, folder: Path) -> Path:
        """Write wrk's Lua script for this load; the body goes beside it, byte for byte."""
        body = folder / f"{self.name}.json"
        body.write_bytes(self.body)
        script = folder / f"{self.name}.lua"
        script.write_text(
            f'local file = assert(io.open("{body}", "rb"))\n'
            'wrk.method = "POST"\n'
            'wrk.headers["Content-Type"] = "application/json"\n'
            f'wrk.headers["Authorization"] = "Bearer {KEY}"\n'
            'wrk.body = file:read("*a")\n'
            "file:close()\n"
        )
        return script


CPU_LOADS = {
    "1kb": Load("1kb", chat_body(1_000), 32),
    "10kb": Load("10kb", chat_body(10_000), 32),
    "100kb": Load("100kb", chat_body(100_000), 16),
    "1mb": Load("1mb", chat_body(1_000_000), 8),
    "stream": Load("stream", chat_body(1_000, stream=True), 16),
}


def wrk_version() -> str:
    """Version of the wrk on PATH. Raises BenchError when there is none."""
    binary = shutil.which("wrk")
    if binary is None:
        raise BenchError("The load generator wrk is not installed.", "Install it: apt-get install wrk")
    first = subprocess.run([binary, "-v"], capture_output=True, text=True, timeout=10, check=False).stdout.split("\n")[
        0
    ]
    match = re.search(r"wrk (\S+)", first)
    return match.group(1) if match else first


def parse_wrk(output: str) -> int:
    """Number of requests answered. Raises BenchError when one was not answered 2xx or a socket failed."""
    failures = re.findall(r"Non-2xx.*|Socket errors:.*", output)
    count = re.search(r"(\d+) requests in", output)
    if failures or count is None or int(count.group(1)) == 0:
        raise BenchError(
            f"Not a valid measurement: {'; '.join(failures) or output.strip() or 'wrk said nothing'}.",
            "Read the proxy's log; a figure with failed requests in it says nothing.",
        )
    return int(count.group(1))


def run_wrk(tree: Tree, load: Load, seconds: float, *, core: int, folder: Path) -> int:
    """Send ``load`` to the proxy for ``seconds``; the number of requests answered.

    Raises BenchError when one was not answered 2xx, a socket failed, or wrk does not end.
    """
    command = [
        "taskset",
        "-c",
        str(core),
        "wrk",
        "-t1",
        f"-c{load.connections}",
        "-d1h",
        "--timeout",
        "30s",
        "-s",
        str(load.script(folder)),
        f"http://127.0.0.1:{tree.port}{PATH}",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            time.sleep(seconds)
            process.send_signal(signal.SIGINT)  # wrk then stops and reports; its -d knows whole seconds only
            return parse_wrk(process.communicate(timeout=60)[0])
        except subprocess.TimeoutExpired as error:
            raise BenchError(
                f"{tree.name}, {load.name}: wrk did not end.", "Is the proxy hanging? Read its log."
            ) from error
        except BenchError as error:
            raise BenchError(f"{tree.name}, {load.name}: {error.message}", error.hint) from error
        finally:
            process.kill()


def cpu_microseconds(tree: Tree, load: Load, seconds: float, *, core: int, folder: Path) -> float:
    """CPU time of the proxy's process tree for one request of ``load``, microseconds."""
    before = tree.cpu_seconds()
    requests = run_wrk(tree, load, seconds, core=core, folder=folder)
    return (tree.cpu_seconds() - before) / requests * 1e6
