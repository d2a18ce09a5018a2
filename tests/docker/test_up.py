"""``signalbox up`` and its siblings against a real Docker Engine, with scripted engines in containers."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import requests

from tests.docker.conftest import IMAGE, Place
from tests.support.client import CHAT, chat
from tests.support.dockerd import volumes
from tests.support.net import free_port, wait_until
from tests.support.raw import RawClient

pytestmark = pytest.mark.slow  # a Docker Engine of its own: not for make test-fast

SLOW = ["sh", "-c", 'sleep 2; exec "$@"', "sh"]


def stream(place: Place, tokens: int) -> RawClient:
    """A stream of ``tokens`` tokens, one every 40 ms."""
    client = RawClient(place.port, timeout=60)
    client.request(CHAT, chat("m", stream=True, tokens=tokens, delay_ms=40))
    assert client.head().status == 200
    return client


def whole(client: RawClient, tokens: int) -> bool:
    """Read the stream to its end: it has every token and its own end."""
    events = [event for _, event in client.events()]
    client.close()
    return events[-1] == b"data: [DONE]" and len(events) >= tokens


@contextmanager
def asking(place: Place) -> Iterator[list[int]]:
    """Short requests, one after another, until the block ends: the statuses that they got."""
    statuses: list[int] = []
    over = threading.Event()

    def ask() -> None:
        while not over.wait(0.1):
            statuses.append(place.ask())

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield statuses
    finally:
        over.set()
        thread.join()


def _restart_on_the_page(place: Place) -> None:
    """The page does to a container what `signalbox restart` does, and shows the end of its output."""
    before = {row["Name"]: row["State"]["StartedAt"] for row in place.containers()}
    url = f"http://{place.fleet['control']['listen']}/api"
    token = {"Authorization": f"Bearer {place.paths.page_token.read_text().strip()}"}
    log = requests.get(f"{url}/backends/m-1/log", headers=token, timeout=20).json()
    assert log["problem"] == "" and not log["live"]
    assert requests.post(f"{url}/backends/m-2/restart", headers=token, timeout=10).ok
    second = requests.post(f"{url}/backends/m-2/stop", headers=token, timeout=10)
    assert second.status_code == 409 and "already being done with m-2" in second.text

    def ended() -> bool:
        jobs = requests.get(f"{url}/fleet", headers=token, timeout=5).json()["jobs"]  # as of the page's last look
        assert not any(job["state"] == "failed" for job in jobs), jobs
        return [job["state"] for job in jobs] == ["done"]

    wait_until("the restart", ended, 90, every=0.5)
    after = {row["Name"]: row["State"]["StartedAt"] for row in place.containers()}
    assert [name for name in after if after[name] != before[name]] == ["/signalbox-m-2"]
    kept = place.paths.audit_log.read_text().splitlines()
    assert [json.loads(line)["what"] for line in kept] == ["restart", "stop", "restart ended"]


def test_from_nothing_to_answers_and_back(place: Place) -> None:
    output = place.call("up")
    assert "start    m-1 on box: it has no container" in output and "m-2: ready: serving" in output
    assert "problem" not in place.call("doctor", "box")
    assert place.ask() == 200
    assert place.names() == ["signalbox-m-1", "signalbox-m-2"]
    rows = place.status()
    assert all(row["state"] == "running" and row["as_asked"] and row["image"] == IMAGE for row in rows.values())
    wait_until("the control plane to see them", lambda: {one["state"] for one in place.page().values()} == {"ready"})

    before = [row["Id"] for row in place.containers()]
    assert "2 of 2 containers stay as they are" in place.call("up")
    assert [row["Id"] for row in place.containers()] == before
    assert "keep" not in place.call("diff") and "as it is" in place.call("diff", "m-1")
    _restart_on_the_page(place)

    for row in place.containers():
        port = place.fleet["models"]["m"]["backends"][int(row["Name"][-1]) - 1]["port"]
        assert row["HostConfig"]["PortBindings"] == {f"{port}/tcp": [{"HostIp": "127.0.0.1", "HostPort": str(port)}]}
        assert row["HostConfig"]["RestartPolicy"]["Name"] == "no" and row["HostConfig"]["IpcMode"] == "host"
        assert row["HostConfig"]["LogConfig"] == {"Type": "json-file", "Config": {"max-file": "2", "max-size": "20m"}}
        assert not any(mount["RW"] for mount in row["Mounts"])

    client = stream(place, 60)
    busy = place.call("down", "m-1", "m-2")  # waits for the stream
    assert "waiting for 1 sequence" in busy and whole(client, 60)
    assert place.names() == [] and {row["state"] for row in place.status().values()} == {"absent"}
    place.call("down")


def test_a_change_under_live_streams_breaks_none(place: Place) -> None:
    place.call("up")
    place.engine["environment"] = {"COLOUR": "red"}
    place.write()
    assert "environment: COLOUR: none → red" in place.call("diff", code=1)
    said = place.call("reload")
    assert "leaves containers as they are" in said
    assert "  m-1 on box: its settings changed; environment: COLOUR: none → red" in said
    clients = [stream(place, 150) for _ in range(20)]
    with asking(place) as statuses:
        output = place.call("up")
        assert "replace  m-1 on box: its settings changed" in output and "waiting for" in output
        assert [whole(client, 150) for client in clients] == [True] * 20
    assert set(statuses) == {200} and len(statuses) > 20
    rows = place.containers()
    assert [row["Name"] for row in rows] and all("COLOUR=red" in row["Config"]["Env"] for row in rows)
    assert place.names() == ["signalbox-m-1", "signalbox-m-2"]

    starts = {row["Name"]: row["State"]["StartedAt"] for row in rows}
    place.call("restart", "m-1")
    again = {row["Name"]: row["State"]["StartedAt"] for row in place.containers()}
    assert again["/signalbox-m-1"] > starts["/signalbox-m-1"]
    assert again["/signalbox-m-2"] == starts["/signalbox-m-2"]


def test_a_failed_replacement_goes_back_and_the_next_backend_is_left_alone(place: Place) -> None:
    place.call("up")
    ids = {row["Id"] for row in place.containers()}
    good = list(place.engine["command"])
    place.engine["command"] = [*good, "--no-such-option"]
    place.write()
    with asking(place) as statuses:
        output = place.call("up", code=1)
    said = " ".join(output.split())
    assert "The engine m-1 did not start: " in said, output
    assert "Its old container, with the old settings, runs again." in said, output
    assert "m-2 was left as it is, because another backend of m failed." in output
    assert {row["Id"] for row in place.containers()} == ids and set(statuses) == {200}
    assert "unrecognized arguments: --no-such-option" in (place.paths.engine("m-1") / "engine.log").read_text()
    wait_until("both to serve again", lambda: {one["state"] for one in place.page().values()} == {"ready"}, 10)
    place.engine["command"] = good
    place.write()
    assert "2 of 2 containers stay as they are" in place.call("up")


def test_up_goes_on_after_ctrl_c_and_after_it_and_the_control_plane_were_killed(place: Place) -> None:
    place.call("up")
    mounts = {entry.split(":")[0]: {"bind": entry.split(":")[1], "mode": "ro"} for entry in volumes()}
    with place.dockerd.client() as client:
        theirs = client.containers.run(IMAGE, entrypoint="sleep", command=["600"], volumes=mounts, detach=True)
        theirs.reload()
    place.engine["command"] = [*SLOW, *place.engine["command"]]
    place.write()
    interrupted = place.start("up")
    wait_until("the first to be replaced", lambda: "signalbox-m-1.2" in place.names(), 20)
    wait_until("the new one to run", lambda: place.running("signalbox-m-1.2"), 20)
    interrupted.send_signal(signal.SIGINT)
    output, _ = interrupted.communicate(timeout=20)
    assert interrupted.returncode == 1 and "Interrupted." in output and "goes on where it was" in output
    assert len(place.containers()) == 3 and place.ask() == 200

    killed = place.start("up")
    wait_until("the second to be replaced", lambda: place.running("signalbox-m-2.2"), 70)
    os.kill(place.daemon(), signal.SIGKILL)
    killed.kill()
    output, _ = killed.communicate()
    assert "finish   m-1 on box: its replacement was interrupted" in output and "replace  m-2" in output
    assert place.ask() == 200
    assert "The control plane runs (pid " in place.call("up")
    assert place.names() == ["signalbox-m-1", "signalbox-m-2"]
    assert all(row["Config"]["Entrypoint"] == ["sh"] and row["State"]["Running"] for row in place.containers())

    # Killed while it has an engine to start again: the engine stays dead until the next `up`.
    (first,) = [row for row in place.containers() if row["Name"] == "/signalbox-m-1"]
    os.kill(place.daemon(), signal.SIGSTOP)
    os.kill(first["State"]["Pid"], signal.SIGKILL)
    wait_until("its end", lambda: not place.running("signalbox-m-1"), 10)
    os.kill(place.daemon(), signal.SIGKILL)
    assert "start    m-1 on box" in place.call("up")
    assert {row["Id"] for row in place.containers()} >= {first["Id"]} and place.running("signalbox-m-1")
    wait_until(
        "the new control plane to see both", lambda: {one["state"] for one in place.page().values()} == {"ready"}
    )
    started = theirs.attrs["State"]["StartedAt"]
    with place.dockerd.client() as client:
        now = client.containers.get(theirs.id)
        assert now.status == "running" and now.attrs["State"]["StartedAt"] == started


def test_what_is_not_ours_is_never_touched(place: Place) -> None:
    ports = [backend["port"] for backend in place.fleet["models"]["m"]["backends"]]
    with place.dockerd.client() as client:
        mounts = {entry.split(":")[0]: {"bind": entry.split(":")[1], "mode": "ro"} for entry in volumes()}
        options = {"entrypoint": "sleep", "command": ["600"], "volumes": mounts, "detach": True}
        on_port = client.containers.run(IMAGE, name="theirs", ports={"1/tcp": ("127.0.0.1", ports[0])}, **options)
        named = client.containers.run(IMAGE, name="signalbox-m-2", **options)
        output = place.call("up", code=1)
        assert f"port {ports[0]} is taken by the container theirs ({on_port.short_id}" in output.replace("\n", " ")
        assert "the name signalbox-m-2 is taken by the container signalbox-m-2" in output.replace("\n", " ")
        assert place.names() == []
        for one in (on_port, named):
            one.reload()
            assert one.status == "running"
        named.rename("other")
        on_port.remove(force=True)
        place.call("up")
        place.call("down")
        named.reload()
        assert named.status == "running" and place.names() == []
        named.remove(force=True)


def test_what_docker_refuses_is_explained(place: Place, tmp_path: Path) -> None:
    place.fleet["models"]["m"]["backends"].pop()
    place.fleet["hosts"]["box"]["volumes"] = [f"{tmp_path}/missing:/models", *volumes()]
    place.write()
    output = place.call("up", code=1)
    assert f"bind source path does not exist: {tmp_path}/missing" in output and "Correct the volume" in output

    place.fleet["hosts"]["box"]["volumes"] = volumes()
    place.engine["image"] = f"127.0.0.1:{free_port()}/nobody/there:1"
    place.write()
    output = place.call("up", code=1)
    assert "box cannot pull 127.0.0.1:" in output and "docker save IMAGE" in output

    with place.dockerd.client() as client:
        repository, tag = place.engine["image"].rsplit(":", 1)
        client.images.get(IMAGE).tag(repository, tag)
    assert "Using the image" in place.call("up", "--pull")
    assert place.ask() == 200

    place.fleet["hosts"]["box"]["gpus"] = 2
    place.fleet["models"]["m"]["backends"][0]["gpus"] = [1]
    place.write()
    output = place.call("up", code=1)
    assert "could not select device driver" in output and "nvidia-container-toolkit" in output
    assert "runs again" in output and place.ask() == 200

    # Its host leaves fleet.yaml: what runs there is told and ended.
    place.fleet["hosts"].pop("box")
    place.fleet["models"]["m"] = {"backends": [{"id": "other", "url": f"http://127.0.0.1:{free_port()}"}]}
    place.write()
    assert "stop     m-1 on box: it has left the fleet" in place.call("diff", code=1) and len(place.names()) == 1
    assert place.status()["m-1"]["why"] == "it has left the fleet"
    place.call("up")
    assert place.names() == [] and "containers" not in json.loads(place.call("status", "--json"))
    assert list((place.paths.root / "hosts").iterdir()) == []


def test_a_container_of_somebody_else_is_adopted(place: Place) -> None:
    place.fleet["models"]["m"]["backends"].pop()
    place.write()
    port = place.fleet["models"]["m"]["backends"][0]["port"]
    words = [word.format(host="0.0.0.0", port=port, name="m") for word in place.engine["command"]]
    with place.dockerd.client() as client:
        mounts = {entry.split(":")[0]: {"bind": entry.split(":")[1], "mode": "ro"} for entry in volumes()}
        options = {"volumes": mounts, "detach": True, "ports": {f"{port}/tcp": port}, "ipc_mode": "host"}
        options |= {"name": "by-hand", "entrypoint": words[0]}
        theirs = client.containers.run(IMAGE, command=[*words[1:], "--delay-ms", "1"], **options)
        assert "--delay-ms: 1 → none" in place.call("adopt", "m-1", code=1)
        theirs.remove(force=True)
        theirs = client.containers.run(IMAGE, command=words[1:], **options)
        assert "the container by-hand" in place.call("adopt", "m-1")
        assert "1 of 1 containers stay as they are" in place.call("up") and place.ask() == 200
        theirs.reload()
        assert theirs.status == "running"
        place.engine["environment"] = {"COLOUR": "red"}
        place.write()
        place.call("up")
        assert place.names() == ["signalbox-m-1"]
        assert [one.name for one in client.containers.list(all=True)] == ["signalbox-m-1"]
