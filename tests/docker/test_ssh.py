"""A Docker host that is reached through the system's ssh."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docker.conftest import Place
from tests.support.dockerd import Dockerd
from tests.support.net import wait_until
from tests.support.sshd import Sshd

pytestmark = pytest.mark.slow  # a Docker Engine of its own: not for make test-fast


def test_over_ssh(dockerd: Dockerd, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.fleet["models"]["m"]["backends"].pop()
    place.nvidia_smi("echo '0, GPU-a, 93, 20125, 24564, 310.50'")
    with Sshd() as box:
        only = f'command="DOCKER_HOST={dockerd.url} docker system dial-stdio"'
        keys = Path(box.folder / "authorized")
        keys.write_text(f"{only} {(box.folder / 'user.pub').read_text()}")
        monkeypatch.setenv("PATH", box.environment["PATH"])
        place.fleet["hosts"]["box"] |= {"docker": box.url, "address": "127.0.0.1"}
        place.write()
        output = place.call("up")
        assert "start    m-1 on box" in output and "m-1: ready: serving" in output and place.ask() == 200
        wait_until("the control plane to see it", lambda: place.page()["m-1"].get("state") == "ready", 10)
        assert place.call("logs", "--tail", "1", "m-1") == ""
        wait_until("its GPUs to be read", lambda: (place.uses()["m-1"] or {}).get("gpu") == 93, 15)
        used = place.uses()["m-1"]
        assert used["gpu_memory"] == 20125 * 1024**2 and used["power"] == 310.5 and used["memory"] > 10_000_000
        assert "uses: GPU 93 %, 21.1 GB of 25.8 GB, 310 W; CPU" in place.call("status")

        box.stop()
        wait_until("the page to say so", lambda: "Docker does not answer" in place.page()["m-1"].get("phase", ""), 20)
        assert place.ask() == 200
        output = place.call("diff", code=1)
        assert "cannot be reached at ssh://" in output and "docker version" in output
        box.start()
        wait_until("the control plane to see it again", lambda: place.page()["m-1"].get("state") == "ready", 40)
        assert "1 of 1 containers stay as they are" in place.call("up")
        place.call("down")
        assert place.names() == []
