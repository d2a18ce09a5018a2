"""`signalbox doctor HOST` against a real Docker Engine: by its socket, over ssh and over TLS.

There is no GPU here. The stand-in for NVIDIA's toolkit is a hook that lets every container start, and the image's
``nvidia-smi`` prints what one has printed on a real machine; the way there, through Docker's own GPU requests, is real.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from control.doctor.container import LABEL, PREFIX
from control.doctor.findings import Finding
from control.doctor.look import look
from control.fleet.load import load
from tests.docker.conftest import IMAGE, Place
from tests.docker.test_hosts import over_tls
from tests.support.docker_hosts import TWO_4090, cuda_image, details
from tests.support.dockerd import Dockerd, volumes
from tests.support.net import free_port
from tests.support.sshd import Sshd

pytestmark = pytest.mark.slow  # Docker Engines of their own: not for make test-fast

SMI = f"""#!/bin/sh
case "$1" in
--query-gpu*) cat <<'END'
{TWO_4090}END
;;
-q) cat <<'END'
{details("550.54.14", "12.4")}END
;;
esac
"""


@pytest.fixture(scope="module")
def gpu_box() -> Iterator[Dockerd]:
    """A Docker Engine that takes GPU requests, with an image that was built for a newer CUDA than its driver knows."""
    engine = Dockerd()
    hook = engine.folder / "hook" / "nvidia-container-runtime-hook"
    hook.parent.mkdir()
    hook.write_text("#!/bin/sh\nexit 0\n")
    hook.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{hook.parent}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
        engine.__enter__()
    try:
        environment = cuda_image("12.8.1", 470, 535)
        path, programs = "/opt/nvidia:/usr/local/bin:/usr/bin:/bin", {"opt/nvidia/nvidia-smi": SMI}
        engine.image(IMAGE, path, programs=programs, environment=environment)
        yield engine
    finally:
        engine.__exit__()


def unstarted(dockerd: Dockerd, backends: int = 2) -> Iterator[Place]:
    """A fleet of which nothing is started, so nothing has to be ended."""
    place = Place(dockerd, backends)
    yield place
    assert not place.paths.root.exists(), "looking leaves nothing"
    shutil.rmtree(place.folder)


@pytest.fixture
def place(dockerd: Dockerd) -> Iterator[Place]:
    yield from unstarted(dockerd)


@pytest.fixture
def gpu_place(gpu_box: Dockerd) -> Iterator[Place]:
    yield from unstarted(gpu_box, backends=3)


def doctor(place: Place, containers: bool = True) -> list[Finding]:
    return list(look(load(place.folder / "fleet.yaml"), "box", containers))


def bad(findings: list[Finding]) -> dict[str, list[str]]:
    """What is not well, by subject."""
    found: dict[str, list[str]] = {}
    for finding in findings:
        if finding.level != "ok":
            found.setdefault(finding.subject, []).append(f"{finding.text}\n$ {finding.command}")
    return found


def with_model(place: Place) -> Path:
    """Its engines are vLLM with a model in a folder that is almost whole."""
    folder = place.folder / "models" / "m"
    folder.mkdir(parents=True)
    for name, text in {"config.json": "{}", "tokenizer.json": "{}", "model.safetensors": "weights"}.items():
        (folder / name).write_text(text)
    place.fleet["hosts"]["box"]["volumes"] = volumes(place.folder / "models")
    place.fleet["models"]["m"] |= {"source": str(folder), "engine": {"image": IMAGE, "version": "0.30.1"}}
    place.write()
    return folder


def left_on(dockerd: Dockerd) -> list[str]:
    with dockerd.client() as client:
        return [str(row["Names"]) for row in client.api.containers(all=True, filters={"label": LABEL})]


def test_a_host_with_gpus(gpu_box: Dockerd, gpu_place: Place) -> None:
    place, folder = gpu_place, with_model(gpu_place)
    first, second, third = place.fleet["models"]["m"]["backends"]
    first["gpus"], second["gpus"], third["gpus"] = [0], [1], [7]
    box = place.fleet["hosts"]["box"]
    box["gpu_memory"] = "48GiB"
    box["volumes"] += ["/no/such/folder:/extra", "no-such-volume:/root/.cache:rw"]
    place.write()
    found = doctor(place)
    lines = [finding.text for finding in found if finding.subject == "host box" and finding.level == "ok"]
    assert any("GPU 0 (NVIDIA GeForce RTX 4090, 23.5 of 24.0 GiB free), GPU 1" in line for line in lines)
    assert any("GiB are free where Docker keeps images" in line for line in lines)
    assert any(finding.text == f"{folder} is complete (0.0 GiB of weights)" for finding in found)
    worse = bad(found)
    about = "\n".join(worse["host box"])
    assert "the folder /no/such/folder of its volumes does not exist there" in about
    assert "driver 550.54.14 knows CUDA 12.4" in about and "NVIDIA's toolkit does not start it" in about
    assert "fleet.yaml says gpu_memory: 48.0GiB" in about
    assert "GPU 1 has 3.0 of 24.0 GiB free, and m-2 takes 22.1 GiB at the start" in about and "GPU 0 has" not in about
    assert any("box has no GPU 7" in text for text in worse["backend m-3"])
    with gpu_box.client() as client:
        assert client.volumes.list() == [], "looking makes no volume"
    assert left_on(gpu_box) == []


def test_a_driver_that_fails(gpu_box: Dockerd, gpu_place: Place) -> None:
    hook = gpu_box.folder / "hook" / "nvidia-container-runtime-hook"
    works, error = hook.read_text(), "nvidia-container-cli: initialization error: nvml error: driver not loaded"
    gpu_place.fleet["models"]["m"]["backends"][0]["gpus"] = [0]
    gpu_place.write()
    hook.write_text(f"#!/bin/sh\necho '{error}' >&2\nexit 1\n")
    try:
        (said,) = [text for text in bad(doctor(gpu_place))["host box"] if "containers get no GPU" in text]
    finally:
        hook.write_text(works)
    assert "driver not loaded" in said and said.endswith("$ nvidia-smi")
    assert left_on(gpu_box) == []


def test_ports_and_models(dockerd: Dockerd, place: Place) -> None:
    folder = with_model(place)
    (folder / "tokenizer.json").unlink()
    first, second = place.fleet["models"]["m"]["backends"]
    place.fleet["hosts"]["box"]["address"] = "127.0.0.9"
    first["gpus"] = [0]
    place.write()
    with dockerd.client() as client:
        other = client.containers.run(
            IMAGE, ["python3", "-c", "import time; time.sleep(60)"], name="somebody", detach=True,
            volumes=[f"{volume}:ro" for volume in volumes()], ports={"80/tcp": ("127.0.0.9", first["port"])},
        )  # fmt: skip
        listener = client.containers.run(
            IMAGE, ["python3", "-m", "http.server", "--bind", "127.0.0.9", str(second["port"])], detach=True,
            volumes=[f"{volume}:ro" for volume in volumes()], network_mode="host",
        )  # fmt: skip
        try:
            worse = bad(doctor(place))
        finally:
            other.remove(force=True)
            listener.remove(force=True)
    assert "taken by the container somebody" in worse["backend m-1"][0] and "stop somebody" in worse["backend m-1"][0]
    assert "taken by a program there that is no container" in worse["backend m-2"][0]
    assert any("it has no tokenizer" in text for text in worse["model m on box"])
    about = "\n".join(worse["host box"])
    assert "could not select device driver" in about and "sudo apt-get install -y nvidia-container-toolkit" in about


def test_images_that_are_not_there_or_have_no_python(dockerd: Dockerd, place: Place) -> None:
    place.engine["image"] = f"127.0.0.1:{free_port()}/vllm:none"
    place.write()
    about = "\n".join(bad(doctor(place))["host box"])
    assert "is not there, and not to be had" in about and "connection refused" in about
    assert "none of its images is there yet" in about
    place.engine["image"] = dockerd.image("empty:1", "/nowhere")
    place.fleet["hosts"]["box"]["volumes"] = []
    place.write()
    about = "\n".join(bad(doctor(place))["host box"])
    assert "could not be looked at from within empty:1: the image has no python3" in about
    assert left_on(dockerd) == []


def test_what_a_killed_doctor_has_left_is_removed(dockerd: Dockerd, place: Place) -> None:
    with dockerd.client() as client:
        for name, started in (("old", 1), ("new", int(time.time()))):
            client.containers.create(IMAGE, ["true"], name=f"{PREFIX}{name}", labels={LABEL: str(started)})
        assert bad(doctor(place)).get("host box") is None
        assert left_on(dockerd) == [f"['/{PREFIX}new']"]
        client.containers.get(f"{PREFIX}new").remove()


def test_over_tls_and_without_containers(dockerd: Dockerd, place: Place) -> None:
    over_tls(dockerd, place, dockerd.folder / "ca.pem")
    found = doctor(place, containers=False)
    assert "host box" not in bad(found)
    assert any("not looked at (--no-containers)" in finding.text for finding in found)
    shutil.copy(dockerd.folder / "client.pem", place.folder / "ca.pem")  # no authority of that engine
    (said,) = bad(doctor(place))["host box"]
    assert "cannot be reached" in said and "$ openssl s_client -connect 127.0.0.1:" in said


def test_over_ssh(dockerd: Dockerd, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    with Sshd() as box:
        monkeypatch.setenv("PATH", box.environment["PATH"])
        place.fleet["hosts"]["box"] |= {"docker": box.url, "address": "127.0.0.1"}
        place.write()

        def about(command: str) -> list[str]:
            box.let_in(options=f'command="{command}"')
            return bad(doctor(place)).get("host box", [])

        assert about(f"DOCKER_HOST={dockerd.url} docker system dial-stdio") == []
        (said,) = about("DOCKER_HOST=unix:///no.sock docker system dial-stdio")
        assert "Docker does not run there" in said and "systemctl start docker" in said
        (said,) = about("no-such-docker system dial-stdio")
        assert "docker is not on the PATH there" in said and "command -v docker" in said
        box.let_in(False)
        (said,) = bad(doctor(place))["host box"]
        assert "does not let this user in" in said and "$ ssh-copy-id -p" in said


def test_the_command(dockerd: Dockerd, place: Place) -> None:
    found: list[dict[str, Any]] = json.loads(place.call("doctor", "box", "--json", "--no-containers", code=1))
    assert {entry["subject"] for entry in found} == {"host box", "backend m-1", "backend m-2"}
    assert all(entry["command"] for entry in found if entry["level"] != "ok")
    assert "There is no host bxo in" in place.call("doctor", "bxo", code=1)
