"""What nginx/ and examples/systemd/ ship: the images' files are enough, nothing is exposed, units are right."""

from __future__ import annotations

import fnmatch
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from control.edge.binary import PACKAGES
from control.edge.ports import free_port
from control.fleet.load import load
from control.paths import REPOSITORY
from tests.support.net import wait_until

DOCKERFILES = [REPOSITORY / "nginx" / "Dockerfile", REPOSITORY / "nginx" / "Dockerfile.debian"]
COMPOSE = REPOSITORY / "nginx" / "compose.yaml"
UNITS = sorted((REPOSITORY / "examples" / "systemd").glob("*.service"))
COMMAND = "/opt/signalbox/.venv/bin/signalbox"


def instructions(path: Path) -> list[tuple[str, str]]:
    """The Dockerfile's instructions with their arguments, continued lines joined."""
    text = re.sub(r"^\s*#.*\n", "", path.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in text.splitlines() if line)]


def copied(path: Path) -> dict[str, str]:
    """What the Dockerfile takes out of the checkout: source to destination."""
    pairs = [rest.split() for word, rest in instructions(path) if word == "COPY" and "--from" not in rest]
    return dict(pairs)  # type: ignore[arg-type]


def let_in(path: str) -> bool:
    """Whether .dockerignore lets the builder see ``path``: the last pattern that fits decides."""
    seen = True
    for line in (REPOSITORY / ".dockerignore").read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        pattern = line.lstrip("!")
        if any(fnmatch.fnmatch(part, pattern) for part in (path, *map(str, Path(path).parents))):
            seen = line.startswith("!")
    return seen


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_what_an_image_copies_is_there_and_let_in(path: Path) -> None:
    sources = copied(path)
    assert set(sources) == {"control", "lua", "templates", "requirements/run.lock", "nginx/signalbox"}
    for source in sources:
        assert (REPOSITORY / source).exists() and let_in(source), source
    assert os.access(REPOSITORY / "nginx" / "signalbox", os.X_OK)
    for secret in ("keys.yaml", "secrets/gpu.key", ".signalbox/edge/run/admin.token", ".git/config", "nginx/.env"):
        assert not let_in(secret), secret


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_an_image_is_pinned_and_runs_without_rights(path: Path) -> None:
    found = instructions(path)
    (argument,) = [rest for word, rest in found if word == "ARG"]
    assert re.fullmatch(r"[A-Z]+=[a-z/]+:[a-z0-9.-]*[0-9]{2}[a-z0-9.-]*", argument), f"{argument} is no pinned tag"
    assert [rest for word, rest in found if word == "USER"] == ["10001:10001"]
    words = [word for word, _ in found]
    assert words.index("USER") > max(index for index, word in enumerate(words) if word == "RUN")
    assert "--require-hashes" in path.read_text()
    assert dict(found)["STOPSIGNAL"] == "SIGTERM" and "control.alive" in dict(found)["HEALTHCHECK"]


def test_both_images_differ_in_their_base_only() -> None:
    openresty, debian = ([line for line in path.read_text().splitlines() if line] for path in DOCKERFILES)
    packages = " ".join(line.strip(" \\") for line in debian if line not in openresty and "nginx-light" in line)
    # luajit2 comes with the module; the name servers' client is optional for `signalbox start`, not for an image.
    assert set(packages.split()) == {*PACKAGES.split()} - {"luajit2"} | {"lua-nginx-dns"}
    rest = [line.replace("DEBIAN", "OPENRESTY") for line in debian if "nginx-light" not in line]
    same = [line for line in openresty if line in rest]
    assert len(same) >= len(openresty) - 4, "the comment, the argument and the list of packages"


@pytest.mark.slow
def test_the_files_of_an_image_run_an_edge() -> None:
    """Nothing but what the Dockerfile copies, read-only by its owner, run by another account."""
    folder = Path(tempfile.mkdtemp(prefix="image-"))
    try:
        folder.chmod(0o755)
        for source, target in copied(DOCKERFILES[0]).items():
            at = folder / target.lstrip("/")
            at.parent.mkdir(parents=True, exist_ok=True)
            ignored = shutil.ignore_patterns("__pycache__")
            (shutil.copytree if (REPOSITORY / source).is_dir() else shutil.copy)(  # type: ignore[operator]
                REPOSITORY / source, at, **({"ignore": ignored} if (REPOSITORY / source).is_dir() else {})
            )
        state = folder / "state"
        state.mkdir()
        fleet = {
            "edge": {"listen": f"127.0.0.1:{free_port()}", "admin": f"127.0.0.1:{free_port()}", "workers": 1},
            "control": {"state_dir": str(state)},
            "models": {"m": {"backends": [{"url": "http://127.0.0.1:9"}]}},
        }
        (folder / "fleet.yaml").write_text(yaml.safe_dump(fleet))
        _run_an_edge(folder, state)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run_an_edge(folder: Path, state: Path) -> None:
    # As the image's account, if that can reach this Python (a checkout below /root is closed to it).
    account: list[str] = []
    if os.geteuid() == 0:
        account = ["setpriv", "--reuid=10001", "--regid=10001", "--clear-groups", "--no-new-privs"]
        if subprocess.run([*account, sys.executable, "-c", "import yaml, click"], capture_output=True).returncode == 0:
            os.chown(state, 10001, 10001)
        else:
            account = []
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(folder / "opt/signalbox"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    python = [*account, sys.executable, "-m"]
    command = [*python, "control", "--fleet", str(folder / "fleet.yaml"), "start", "--foreground"]
    before = _listing(folder, state)
    edge = subprocess.Popen(
        command, env=environment, cwd=state, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        check = [*python, "control.alive", "edge", str(state)]
        healthy = lambda: subprocess.run(check, env=environment, cwd=state, capture_output=True).returncode == 0  # noqa: E731
        wait_until("it to be healthy", lambda: edge.poll() is not None or healthy(), 20, every=0.2)
        conf = (state / "edge/conf/nginx.conf").read_text()
        assert f"{folder}/opt/signalbox/lua/?.lua" in conf and str(REPOSITORY) not in conf
    finally:
        edge.terminate()
        said, _ = edge.communicate(timeout=20)
    assert edge.returncode == 0, said
    assert _listing(folder, state) == before, "it writes into the state folder only"


def _listing(folder: Path, state: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if state not in (path, *path.parents)}


def services() -> dict[str, dict[str, Any]]:
    content = yaml.safe_load(COMPOSE.read_text())
    assert set(content["services"]) == {"edge", "control", "redis"}
    return content["services"]


@pytest.mark.parametrize("name", ["edge", "control", "redis"])
def test_a_service_has_no_rights_it_does_not_need(name: str) -> None:
    service = services()[name]
    assert service["read_only"] is True and service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"] and "privileged" not in service
    assert not service["user"].startswith("0") and "pid" not in service
    assert service["restart"] == "unless-stopped" and service["healthcheck"]["test"]
    assert all(
        mount.endswith((":ro", "/var/lib/signalbox", "/etc/signalbox", "/data", "docker.sock"))
        for mount in service["volumes"]
    )
    tag = re.fullmatch(r"\$\{[A-Z_]+:-[a-z]+:([0-9][a-z0-9.-]+)\}", service["image"])
    assert tag, f"{service['image']} is not pinned"


def test_dockers_socket_is_seen_by_the_control_plane_only() -> None:
    assert [name for name, service in services().items() if "docker.sock" in str(service)] == ["control"]
    assert any("/etc/signalbox:ro" in mount for mount in services()["edge"]["volumes"])


def test_answers_get_their_time_to_finish() -> None:
    drain = int(load_example().fleet.edge.timeouts.drain) / 1000
    assert int(services()["edge"]["stop_grace_period"].removesuffix("s")) > drain
    unit = (REPOSITORY / "examples/systemd/signalbox-edge.service").read_text()
    assert f"--wait {drain:.0f}\n" in unit and int(re.findall(r"TimeoutStopSec=(\d+)", unit)[0]) > drain
    assert services()["control"]["stop_signal"] == "SIGUSR1", "the next control plane takes the engines over"


def load_example() -> Any:
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(REPOSITORY / "examples/deploy.yaml", folder)
        (Path(folder) / "secrets").mkdir()
        (Path(folder) / "secrets/redis.pw").write_text("x\n")
        return load(Path(folder) / "deploy.yaml")


@pytest.mark.slow
def test_redis_starts_by_the_services_own_command(tmp_path: Path) -> None:
    """The command of compose.yaml in a shell, its password in no argument and needed by every client."""
    service, port = services()["redis"], free_port()
    (script,) = service["command"]
    password = tmp_path / "redis.pw"
    password.write_text("hush\n")
    data = tmp_path / "data"
    data.mkdir()
    script = script.replace("$$", "$").replace("/run/secrets/redis_password", str(password)).replace("/data", str(data))
    environment = os.environ | {"REDIS_BIND": "127.0.0.1", "REDIS_PORT": str(port)}
    redis = subprocess.Popen(
        ["/bin/sh", "-ec", script], env=environment, stdout=subprocess.DEVNULL, start_new_session=True
    )
    try:
        check = (
            service["healthcheck"]["test"][1].replace("$$", "$").replace("/run/secrets/redis_password", str(password))
        )

        def healthy() -> bool:
            return subprocess.run(["/bin/sh", "-c", check], env=environment, capture_output=True).returncode == 0

        wait_until("Redis to be healthy", healthy, 10, every=0.1)
        bare = subprocess.run(["redis-cli", "-p", str(port), "ping"], capture_output=True, text=True)
        assert "NOAUTH" in bare.stdout + bare.stderr
        lines = subprocess.run(["ps", "-ww", "-eo", "args"], capture_output=True, text=True).stdout
        assert "redis-server" in lines and "hush" not in lines
        assert (data / "appendonlydir").exists() or (data / "appendonly.aof").exists()
    finally:
        os.killpg(redis.pid, 15)
        redis.wait(10)


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_a_unit_is_right_and_hardened(path: Path, tmp_path: Path) -> None:
    assert len(UNITS) == 2
    text = path.read_text()
    assert COMMAND in text and "User=signalbox" in text
    for line in ("NoNewPrivileges=yes", "ProtectSystem=strict", "LimitNOFILE=65536", "RestrictSUIDSGID=yes"):
        assert f"\n{line}\n" in text
    if shutil.which("systemd-analyze") is None:
        pytest.skip("NOT TESTED: systemd-analyze is not here to verify the units")
    copy = tmp_path / path.name
    copy.write_text(
        text.replace(COMMAND, sys.executable).replace(
            "After=network-online.target signalbox-edge.service", "After=network-online.target"
        )
    )
    done = subprocess.run(["systemd-analyze", "verify", str(copy)], capture_output=True, text=True)
    assert done.returncode == 0 and path.name not in done.stderr, done.stderr


def test_the_commands_of_the_units_exist() -> None:
    for path in UNITS:
        for arguments in re.findall(rf"{COMMAND} -f \S+ (.+)", path.read_text()):
            words = [*arguments.split(), "--help"]
            done = subprocess.run([sys.executable, "-m", "control", *words], capture_output=True, cwd=REPOSITORY)
            assert done.returncode == 0, (words, done.stderr)
