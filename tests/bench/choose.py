"""What choosing a backend costs: CPU time inside a real nginx worker, with the edge's own Lua and dictionaries.

``python -m tests.bench.choose`` prints a table.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path

import requests

from control.edge.binary import find_engine
from tests.support.net import REPOSITORY, free_port, wait_until

#: 1,000 backends, a prompt of 100,000 tokens (four bytes each).
BACKENDS, BYTES, ROUNDS = 1_000, 400_000, 200

Row = dict[str, float]

CONFIG = """{modules}
worker_processes 1;
daemon off;
pid {folder}/pid;
error_log {folder}/error.log warn;
events {{ worker_connections 64; }}
http {{
    access_log off;
    client_body_temp_path {folder};
    proxy_temp_path {folder};
    fastcgi_temp_path {folder};
    uwsgi_temp_path {folder};
    scgi_temp_path {folder};
    lua_package_path "{lua}/?.lua;{lua}/?/init.lua;;";
    {dictionaries}
    server {{
        listen 127.0.0.1:{port};
        location / {{ content_by_lua_file {script}; }}
    }}
}}
"""


def measure(backends: int = BACKENDS, size: int = BYTES, rounds: int = ROUNDS) -> dict[str, Row]:
    """CPU microseconds (``median_us``, ``p99_us``, ``worst_us``) per request by policy and prompt of ``size`` bytes."""
    engine = find_engine()
    template = (REPOSITORY / "templates" / "nginx.conf.j2").read_text()
    with tempfile.TemporaryDirectory(prefix="choose-") as name:
        folder, port = Path(name), free_port()
        folder.chmod(0o777)
        config = CONFIG.format(
            modules="\n".join(f"load_module {path};" for path in engine.profile.load_modules),
            folder=folder,
            lua=REPOSITORY / "lua",
            dictionaries="\n    ".join(re.findall(r"lua_shared_dict \w+ \w+;", template)),
            port=port,
            script=REPOSITORY / "tests" / "bench" / "choose.lua",
        )
        (folder / "nginx.conf").write_text(config)
        process = subprocess.Popen([str(engine.path), "-p", name, "-c", str(folder / "nginx.conf")])
        try:
            with requests.Session() as session:
                session.trust_env = False
                url = f"http://127.0.0.1:{port}/?backends={backends}&bytes={size}&rounds={rounds}"
                answer = wait_until("nginx to listen", lambda: session.get(url, timeout=120), 10)
            assert answer.status_code == 200, (folder / "error.log").read_text()
            rows: dict[str, Row] = answer.json()
            return rows
        finally:
            process.terminate()
            process.wait(10)


def main() -> None:
    print(f"{BACKENDS} backends, prompts of {BYTES} bytes; CPU µs per request")
    print(f"{'policy and prompt':36} {'median':>8} {'p99':>8} {'worst':>8}")
    for name, row in measure().items():
        print(f"{name:36} {row['median_us']:8.0f} {row['p99_us']:8.0f} {row['worst_us']:8.0f}")


if __name__ == "__main__":
    main()
