"""Engines in containers on a machine of which only the SSH port can be reached."""

from __future__ import annotations

import socket

import pytest

from tests.docker.conftest import IMAGE, Place
from tests.support.dockerd import Dockerd, volumes
from tests.support.netns import machines
from tests.support.sshd import Sshd

pytestmark = pytest.mark.slow  # a Docker Engine of its own: not for make test-fast


def test_containers_behind_ssh_are_started_served_and_open_to_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    with machines(2) as (here, there):
        with there.inside():
            box, dockerd = Sshd(there.address).start(), Dockerd()
            dockerd.__enter__()
            dockerd.image(IMAGE)
        try:
            # What docker over ssh runs there; a tunnel runs nothing.
            box.let_in(options=f'command="DOCKER_HOST={dockerd.url} docker system dial-stdio"')
            monkeypatch.setenv("PATH", box.environment["PATH"])
            with here.inside():
                place = Place(dockerd, backends=1)
                place.fleet["hosts"]["box"] = {"docker": box.url, "tunnel": "ssh", "volumes": volumes()}
                place.write()
                port = place.fleet["models"]["m"]["backends"][0]["port"]
                try:
                    said = place.call("up")
                    assert "m-1: ready: serving" in said and place.ask() == 200
                    (container,) = place.containers()
                    opened = container["HostConfig"]["PortBindings"][f"{port}/tcp"]
                    assert opened == [{"HostIp": "127.0.0.1", "HostPort": str(port)}]
                    with pytest.raises(ConnectionRefusedError):
                        socket.create_connection((there.address, port), 5)
                    place.engine["environment"] = {"CHANGED": "1"}  # drained and replaced through the same tunnel
                    place.write()
                    assert "m-1: ready: serving" in place.call("up") and place.ask() == 200
                    place.call("down")
                    assert place.names() == []
                    with there.inside():
                        box.stop()
                        box.start(forwarding="no")  # docker still goes through, and the tunnel does not
                    place.engine["start_timeout"] = "6s"
                    place.write()
                    said = " ".join(place.call("up", code=1).split())
                    assert "The engine m-1 did not start: " in said and "the tunnel to it is down: " in said
                finally:
                    assert place.end() == []
        finally:
            with there.inside():
                dockerd.__exit__()
                box.__exit__()
