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

from control.engines.docker import DockerHost
from control.errors import EngineError
from control.fleet.load import load
from tests.docker.conftest import IMAGE, Place
from tests.support.dockerd import Dockerd
from tests.support.fleet_yaml import fleet_of

pytestmark = pytest.mark.slow  # a Docker Engine of its own: not for make test-fast


def over_tls(dockerd: Dockerd, place: Place, ca: Path) -> None:
    shutil.copy(ca, place.folder / "ca.pem")
    for name in ("client.pem", "client.key"):
        shutil.copy(dockerd.folder / name, place.folder)
    tls = {"ca": "ca.pem", "certificate": "client.pem", "key": "client.key"}
    place.fleet["hosts"]["box"] |= {"docker": dockerd.tls_url, "tls": tls}
    place.write()


def test_over_tls(dockerd: Dockerd, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    over_tls(dockerd, place, dockerd.folder / "ca.pem")
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(dockerd.folder / "server.pem"))  # which says nothing of this host
    assert "start    m-1 on box: it has no container" in place.call("diff", code=1)
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

    def do_GET(self) -> None:
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
    with dockerd.client() as client:
        client.images.get(IMAGE).tag(f"{registry}/vllm", "web")
    assert host.need_image(f"{registry}/vllm:web", tell, pull=True)
    assert told[-1] == f"Using the image {registry}/vllm:web that box has"
    host.close()
