"""Docker hosts over TLS, and a registry that answers a pull with errors."""

from __future__ import annotations

import http.server
import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import trustme

from control.engines.containers import container_specs
from control.engines.docker import DockerHost
from control.engines.hosts import Hosts
from control.engines.image_version import PREFIX, versions
from control.errors import EngineError
from control.fleet.load import LoadedFleet, load
from control.paths import StatePaths
from tests.docker.conftest import IMAGE, Place
from tests.support.dockerd import Dockerd, volumes
from tests.support.fleet_yaml import fleet_of
from tests.support.net import wait_until

pytestmark = pytest.mark.slow  # a Docker Engine of its own: not for make test-fast


def over_tls(dockerd: Dockerd, place: Place, ca: Path) -> None:
    shutil.copy(ca, place.folder / "ca.pem")
    for name in ("client.pem", "client.key"):
        shutil.copy(dockerd.folder / name, place.folder)
    tls = {"ca": "ca.pem", "certificate": "client.pem", "key": "client.key"}
    place.fleet["hosts"]["box"] |= {"docker": dockerd.tls_url, "tls": tls}
    place.write()


def test_over_tls(dockerd: Dockerd, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.fleet["models"]["m"]["backends"].pop()
    over_tls(dockerd, place, dockerd.folder / "ca.pem")
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(dockerd.folder / "server.pem"))  # which says nothing of this host
    assert "m-1: ready: serving" in place.call("up") and place.ask() == 200
    wait_until("the control plane to see it", lambda: place.page()["m-1"].get("state") == "ready", 10)
    assert "1 of 1 containers stay as they are" in place.call("up")
    host = DockerHost("box", load(place.folder / "fleet.yaml"), "f")
    assert host.see({IMAGE}).images[IMAGE].startswith("sha256:")
    host.close()


def test_another_authority_is_not_believed(dockerd: Dockerd, place: Place, tmp_path: Path) -> None:
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "other.pem"))
    over_tls(dockerd, place, tmp_path / "other.pem")
    output = place.call("diff", code=1)
    assert "The Docker Engine of box cannot be reached" in output and "certificate verify failed" in output
    assert "Do hosts.*.tls name the right files" in output


UNKNOWN = b'{"errors": [{"code": "MANIFEST_UNKNOWN", "message": "manifest unknown", "detail": {}}]}'


class Registry(http.server.BaseHTTPRequestHandler):
    """Answers with what ``answers`` has for the path, else 404."""

    answers: ClassVar[dict[str, tuple[int, str, bytes]]] = {}

    #: A path that begins so is not answered before the test is over.
    hang: ClassVar[str] = "-"
    over: ClassVar[threading.Event] = threading.Event()

    def do_GET(self) -> None:
        if self.path.startswith(self.hang):
            self.over.wait(30)
        status, kind, body = self.answers.get(self.path, (404, "application/json", UNKNOWN))
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    do_HEAD = do_GET

    def log_message(self, *args: Any) -> None: ...


@pytest.fixture
def registry() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Registry)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_a_registrys_errors_are_told_with_a_cure(dockerd: Dockerd, registry: str, tmp_path: Path) -> None:
    manifest = "application/vnd.docker.distribution.manifest.v2+json"
    layer = {
        "mediaType": "application/vnd.docker.image.rootfs.diff.tar.gzip",
        "size": 10,
        "digest": "sha256:" + "a" * 64,
    }
    config = {"mediaType": "application/vnd.docker.container.image.v1+json", "size": 10, "digest": "sha256:" + "b" * 64}
    whole = json.dumps({"schemaVersion": 2, "mediaType": manifest, "config": config, "layers": [layer]}).encode()
    Registry.answers = {
        "/v2/": (200, "application/json", b"{}"),
        "/v2/vllm/manifests/web": (200, manifest, b"<html>a proxy's page</html>"),
        "/v2/vllm/manifests/half": (200, manifest, whole),  # its layers are nowhere: Docker answers 200, then an error
    }
    fleet = {"hosts": {"box": {"docker": dockerd.url}}, "models": {"m": {"backends": [{"url": "http://10.0.0.1:1"}]}}}
    host = DockerHost("box", fleet_of(tmp_path, fleet), "f")
    told: list[str] = []

    def tell(title: str, detail: str = "", fraction: float | None = None) -> None:
        told.append(title)

    for tag, words, cure in (
        ("none", "manifest unknown", "Is the name right, with its tag?"),
        ("web", "invalid character '<'", "registry-mirrors"),
        ("half", "", ""),
    ):
        with pytest.raises(EngineError) as caught:
            host.need_image(f"{registry}/vllm:{tag}", tell)
        assert f"box cannot pull {registry}/vllm:{tag}: " in caught.value.message and words in caught.value.message
        assert cure in caught.value.hint and told[-1] == f"Pulling {registry}/vllm:{tag} on box"
    Registry.hang = "/v2/vllm/blobs/"
    try:
        with pytest.raises(EngineError) as caught:
            host.need_image(f"{registry}/vllm:half", tell, silence=2)
    finally:
        Registry.over.set()
    assert f"box cannot pull {registry}/vllm:half: nothing new came for 2 s." in caught.value.message
    assert f"docker pull {registry}/vllm:half" in caught.value.hint
    with dockerd.client() as client:
        client.images.get(IMAGE).tag(f"{registry}/vllm", "web")
    assert host.need_image(f"{registry}/vllm:web", tell, pull=True)
    assert told[-1] == f"Using the image {registry}/vllm:web that box has"
    host.close()


def test_which_vllm_an_image_has_is_asked_of_it_once(
    dockerd: Dockerd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python in the image finds the package that a volume has; an image that says it is not asked; one is silent."""
    package = tmp_path / "packages" / "vllm-0.10.2.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.10.2+cu128\n")
    (tmp_path / "m").mkdir()
    with dockerd.client() as client:
        client.images.get(IMAGE).tag("asked", "latest")
        client.api.import_image_from_data(b"\0" * 1024, "told", "nightly", changes=["ENV VLLM_VERSION=0.11.0"])
        left = client.containers.run(IMAGE, name=f"{PREFIX}0", entrypoint="true", detach=True, volumes=volumes())
        left.wait()

    def fleet(image: str, *more: str, **engine: Any) -> LoadedFleet:
        engine |= {"image": image, "environment": {"PYTHONPATH": "/packages"}}
        models = {"m": {"source": "/m", "engine": engine, "backends": [{"host": "box", "port": 8000}]}}
        host = {"docker": dockerd.url, "volumes": [f"{tmp_path}/m:/m", *volumes(), *more]}
        return fleet_of(tmp_path, {"hosts": {"box": host}, "models": models})

    paths = StatePaths(tmp_path / "state")

    def ask(loaded: LoadedFleet, ask: bool = True) -> dict[str, tuple[int, int, int]]:
        with Hosts(loaded, paths) as hosts:
            return versions(loaded, paths, hosts, hosts.see()[0], ask)

    with_package = fleet("asked:latest", f"{tmp_path}/packages:/packages")
    assert ask(with_package, ask=False) == {}
    assert ask(with_package) == {"m-1": (0, 10, 2)} == ask(with_package, ask=False)
    assert "--max-num-queued-reqs" not in container_specs(with_package, ask(with_package))[0].command
    with dockerd.client() as client:
        assert not [row["Names"] for row in client.api.containers(all=True) if PREFIX in str(row["Names"])]
    with pytest.raises(EngineError) as caught:
        ask(fleet("asked:latest"))
    assert "Which vLLM is in asked:latest on box cannot be found out: " in caught.value.message
    assert "No package metadata was found for vllm" in caught.value.message
    assert "models.m.engine.version" in caught.value.hint
    monkeypatch.setattr(DockerHost, "run_once", None)  # nothing is run any more
    assert ask(with_package) == {"m-1": (0, 10, 2)} and ask(fleet("told:nightly")) == {"m-1": (0, 11, 0)}
    assert ask(fleet("asked:latest", version="0.9.0")) == {} == ask(fleet("nowhere:latest"))
