"""Start, reload and stop a real nginx with the real Lua; and every way in which a reload can fail."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests

from control.edge import apply, files
from control.edge.admin import AdminClient
from control.edge.process import EdgeProcess
from control.edge.site import client, locked
from control.errors import EdgeError, FleetError, RenderError
from tests.control.certificates import make_certificate
from tests.control.edge_site import Place, place

pytestmark = pytest.mark.slow  # starts and waits of its own: not for make test-fast

TWO = {
    "m": {
        "aliases": ["n"],
        "backends": [{"id": "m-1", "url": "http://127.0.0.1:9"}, {"id": "m-2", "url": "http://127.0.0.1:8"}],
    }
}


@pytest.fixture
def edge() -> Iterator[Place]:
    with place() as here:
        yield here


@pytest.fixture
def running(edge: Place) -> Place:
    apply.start(edge.site)
    return edge


def models(edge: Place) -> list[str]:
    """Model names that a client of the public listener sees."""
    answer = requests.get(f"http://{edge.listen}/v1/models", timeout=5)
    assert answer.status_code == 200
    return [model["id"] for model in answer.json()["data"]]


def state(edge: Place) -> dict[str, Any]:
    with contextlib.closing(client(edge.site.paths)) as admin:
        return admin.state()


def pids(content: dict[str, Any]) -> list[int]:
    return sorted(worker["pid"] for worker in content["workers"])


def conf(edge: Place) -> dict[str, str | None]:
    return files.backup(edge.site.paths)


@contextlib.contextmanager
def unchanged(edge: Place) -> Iterator[None]:
    """What runs before runs after: same files, same workers, same generation and fleet, and it serves."""
    before = conf(edge), state(edge)
    yield
    after = conf(edge), state(edge)
    assert after[0] == before[0]
    for key in ("generation", "fleet_version"):
        assert after[1][key] == before[1][key]
    assert pids(after[1]) == pids(before[1])
    assert "m" in models(edge)


def test_start_serves_and_stop_leaves_nothing(edge: Place) -> None:
    result = apply.start(edge.site)
    assert (result.action, result.generation, result.version) == ("started", 1, 1)
    assert result.pid == edge.site.process.pid()
    assert models(edge) == ["m"]
    assert edge.site.paths.admin_token.stat().st_mode & 0o777 == 0o600
    assert apply.stop(edge.site.paths) == "finished its streams"
    assert edge.processes() == []
    assert apply.stop(edge.site.paths) == "was not running"


def test_a_second_start_is_refused_and_harms_nothing(running: Place) -> None:
    with unchanged(running), pytest.raises(EdgeError, match="already running"):
        apply.start(running.site)


def test_start_again_raises_the_generation_and_keeps_the_token(running: Place) -> None:
    token = running.site.paths.admin_token.read_text()
    apply.stop(running.site.paths, quit=False)
    result = apply.start(running.site)
    assert (result.generation, result.version) == (2, 1)
    assert running.site.paths.admin_token.read_text() == token


def test_nothing_changed(running: Place) -> None:
    with unchanged(running):
        result = apply.reload(running.site)
    assert result.action == "nothing"
    assert "Nothing changed" in result.lines()[-1]


def test_a_fleet_change_is_pushed_without_a_reload(running: Place) -> None:
    workers = pids(state(running))
    running.write(TWO)
    result = apply.reload(running.site)
    assert (result.action, result.version) == ("pushed", 2)
    assert result.lines() == [
        "model m: changed (names, backends)",
        "backend m-2: added",
        "The edge took fleet 2 without a reload.",
    ]
    now = state(running)
    assert (now["generation"], now["fleet_version"], pids(now)) == ("1", 2, workers)
    assert [backend["id"] for backend in now["backends"]] == ["m-1", "m-2"]
    assert json.loads((running.site.paths.conf / "fleet.json").read_text())["version"] == 2
    assert json.loads((running.site.paths.last / "fleet.json").read_text())["version"] == 1


def test_render_changes_nothing_that_runs(running: Place) -> None:
    running.write(TWO, max_body="3m")
    with unchanged(running):
        result = apply.render_next(running.site)
    assert any("client_max_body_size 3145728" in line for line in result.lines())
    assert "3145728" in (running.site.paths.next / "nginx.conf").read_text()
    assert json.loads((running.site.paths.next / "fleet.json").read_text())["version"] == 2


def test_a_static_change_makes_a_new_generation(running: Place) -> None:
    pid = running.site.process.pid()
    running.write(TWO, max_body="3m")
    result = apply.reload(running.site)
    assert (result.action, result.generation, result.version) == ("reloaded", 2, 2)
    now = state(running)
    assert (now["generation"], now["fleet_version"]) == ("2", 2)
    assert running.site.process.pid() == pid
    assert "67108864" in (running.site.paths.last / "nginx.conf").read_text()
    assert apply.reload(running.site).action == "nothing"


def test_changed_lua_is_loaded(running: Place) -> None:
    running.append_to_lua("routes.lua", "\n-- a comment\n")
    result = apply.reload(running.site)
    assert (result.action, result.generation) == ("reloaded", 2)
    assert "lua/edge/routes.lua changed" in result.lines()


def test_a_renewed_certificate_is_loaded(edge: Place) -> None:
    certificate, key = edge.folder / "edge.pem", edge.folder / "edge.key"
    make_certificate(certificate, key)
    edge.write(tls={"certificate": "edge.pem", "key": "edge.key"})
    apply.start(edge.site)
    assert apply.reload(edge.site).action == "nothing"
    authority = edge.folder / "ca.pem"
    make_certificate(certificate, key, authority=authority)
    assert apply.reload(edge.site).action == "reloaded"
    answer = requests.get(f"https://{edge.listen}/v1/models", verify=str(authority), timeout=5)
    assert answer.status_code == 200


@pytest.mark.parametrize(
    "text",
    ["\nthis is no Lua\n", '\nerror("on purpose")\n', '\nrequire "edge.nowhere"\n'],
    ids=["syntax", "error", "require"],
)
def test_lua_that_does_not_load_leaves_the_old_serving(running: Place, text: str) -> None:
    """`nginx -t` passes here: only the generation that does not come tells."""
    running.append_to_lua("routes.lua", text)
    running.write(TWO, max_body="3m")
    began = time.monotonic()
    with unchanged(running), pytest.raises(EdgeError, match="the reload was refused") as caught:
        apply.reload(running.site)
    assert time.monotonic() - began < apply.CONFIRM_TIMEOUT / 2  # error.log told; nobody waited it out
    assert "routes.lua" in caught.value.message
    assert "The last good files are back; the edge serves as before." in caught.value.message
    running.restore_lua("routes.lua")
    result = apply.reload(running.site)
    assert (result.action, result.version) == ("reloaded", 2)


def test_lua_that_fails_after_it_took_the_fleet(running: Place) -> None:
    """The shared dictionary is the old workers' too: they must not be left with a fleet that was put back."""
    init = running.sources.lua / "edge" / "init.lua"
    assert "function _M.init(" in init.read_text()
    init.write_text(init.read_text().replace("    admin.init()\n", '    admin.init()\n    error("too late")\n'))
    assert "too late" in init.read_text()
    running.write({"other": TWO["m"]}, max_body="3m")
    with pytest.raises(EdgeError, match="too late"):
        apply.reload(running.site)
    assert models(running) == ["m"]
    now = state(running)
    good = json.loads((running.site.paths.conf / "fleet.json").read_text())
    assert now["generation"] == "1"
    assert now["fleet_version"] == good["version"]
    assert list(good["models"]) == ["m"]


def test_workers_that_complain_are_heard(running: Place) -> None:
    init = running.sources.lua / "edge" / "init.lua"
    assert "    probe.init_worker()\n" in init.read_text()
    init.write_text(init.read_text().replace("    probe.init_worker()\n", '    error("no probes today")\n'))
    result = apply.reload(running.site)
    assert result.action == "reloaded"
    assert any("no probes today" in line for line in result.lines())


def test_variables_and_dictionaries_are_warned_about(edge: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOT_SET_KEY", raising=False)
    keyed = {"m": {"backends": [{"url": "http://127.0.0.1:9", "key_env": "NOT_SET_KEY"}]}}
    edge.write(keyed)
    assert any("$NOT_SET_KEY is not set" in line for line in apply.start(edge.site).lines())
    keyed["m"]["backends"][0]["key_env"] = "OTHER_KEY"
    edge.write(keyed)
    template = edge.sources.templates / "nginx.conf.j2"
    assert "lua_shared_dict edge_state 8m" in template.read_text()
    template.write_text(template.read_text().replace("lua_shared_dict edge_state 8m", "lua_shared_dict edge_state 9m"))
    lines = apply.reload(edge.site).lines()
    assert any("if OTHER_KEY was not set then, restart it" in line for line in lines)
    assert any("a shared dictionary changed" in line for line in lines)


def test_a_broken_template_changes_nothing(running: Place) -> None:
    template = running.sources.templates / "nginx.conf.j2"
    good = template.read_text()
    for text in ("{% if %}\n" + good, good + "{{ nosuch }}"):
        template.write_text(text)
        with unchanged(running), pytest.raises(RenderError):
            apply.reload(running.site)


def test_a_configuration_that_nginx_refuses_changes_nothing(running: Place) -> None:
    template = running.sources.templates / "nginx.conf.j2"
    good = template.read_text()
    template.write_text(good + "nosuch_directive on;\n")
    with unchanged(running), pytest.raises(EdgeError, match='unknown directive "nosuch_directive"'):
        apply.reload(running.site)
    assert "nosuch_directive" in running.site.paths.reload_refused.read_text(), "the page tells it"
    template.write_text(good)
    apply.reload(running.site)
    assert not running.site.paths.reload_refused.exists()


def test_broken_yaml_changes_nothing(running: Place) -> None:
    running.fleet_file.write_text("edge: {listen: [\n")
    with pytest.raises(FleetError, match=r"fleet\.yaml:\d"):
        running.site.render()
    running.write()
    with unchanged(running):
        pass


def test_a_port_in_use_at_start_names_its_holder(edge: Place) -> None:
    host, _, port = edge.listen.partition(":")
    with socket.create_server((host, int(port))), pytest.raises(EdgeError) as caught:
        apply.start(edge.site)
    assert f"{edge.listen} is in use by process {os.getpid()} (" in caught.value.message
    assert edge.processes() == []
    assert conf(edge) == {"nginx.conf": None, "fleet.json": None, "generation": None}
    apply.start(edge.site)


def test_a_port_in_use_at_reload_changes_nothing(running: Place) -> None:
    old = running.listen
    with socket.create_server(("127.0.0.1", 0)) as server:
        running.listen = f"127.0.0.1:{server.getsockname()[1]}"
        running.write()
        running.listen, new = old, running.listen
        with unchanged(running), pytest.raises(EdgeError, match=f"{new} is in use"):
            apply.reload(running.site)


def test_a_port_that_is_taken_between_check_and_reload(running: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """nginx itself finds it in use, after 2.5 s of trying, and says so only in its log."""
    monkeypatch.setattr(apply, "require_free", lambda addresses: None)
    old = running.listen
    with socket.create_server(("127.0.0.1", 0)) as server:
        running.listen = f"127.0.0.1:{server.getsockname()[1]}"
        running.write()
        running.listen = old
        with unchanged(running), pytest.raises(EdgeError, match="still could not bind"):
            apply.reload(running.site)


def test_new_listener_and_admin_addresses(running: Place) -> None:
    with place() as other:
        running.listen, running.admin = other.listen, other.admin
    running.write()
    assert apply.reload(running.site).action == "reloaded"
    assert models(running) == ["m"]
    assert state(running)["generation"] == "2"
    assert apply.reload(running.site).action == "nothing"


def test_an_edge_that_starts_but_does_not_serve_is_stopped(edge: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apply, "CONFIRM_TIMEOUT", 0.5)
    template = edge.sources.templates / "nginx.conf.j2"
    text = template.read_text()
    assert 'require("edge").admin()' in text
    template.write_text(text.replace('require("edge").admin()', "ngx.exit(503)"))
    with pytest.raises(EdgeError, match="started but does not serve"):
        apply.start(edge.site)
    assert edge.processes() == []
    assert conf(edge) == {"nginx.conf": None, "fleet.json": None, "generation": None}


def test_workers_that_never_confirm_are_rolled_back(running: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The new configuration came up but its admin listener is of no use: the old one comes back as generation 3."""
    monkeypatch.setattr(apply, "CONFIRM_TIMEOUT", 2.0)
    template = running.sources.templates / "nginx.conf.j2"
    template.write_text(template.read_text().replace('require("edge").admin()', "ngx.exit(503)"))
    with pytest.raises(EdgeError, match="serves them as generation 3"):
        apply.reload(running.site)
    assert state(running)["generation"] == "3"
    assert models(running) == ["m"]


def test_lua_that_does_not_load_at_start(edge: Place) -> None:
    edge.append_to_lua("routes.lua", "\nthis is no Lua\n")
    with pytest.raises(EdgeError, match=r"routes\.lua"):
        apply.start(edge.site)
    assert edge.processes() == []


@pytest.mark.parametrize("content", ["", "garbage", "1", "999999999", "own"])
def test_a_stale_pid_file_is_no_edge(edge: Place, content: str) -> None:
    """A pid file that outlived its nginx, also when the pid is somebody else's now: nobody is signalled."""
    edge.site.process.prepare()
    edge.site.paths.edge_pid.write_text(str(os.getpid()) if content == "own" else content)
    assert edge.site.process.pid() is None
    assert apply.stop(edge.site.paths) == "was not running"
    with pytest.raises(EdgeError, match="not running"):
        apply.reload(edge.site)
    apply.start(edge.site)
    assert models(edge) == ["m"]


def test_another_edge_in_the_pid_file_is_left_alone(running: Place) -> None:
    with place() as other:
        other.site.process.prepare()
        other.site.paths.edge_pid.write_text(str(running.site.process.pid()))
        assert apply.stop(other.site.paths, quit=False) == "was not running"
        apply.start(other.site)
    assert models(running) == ["m"]


def test_an_edge_that_was_killed_starts_again(running: Place) -> None:
    for process in running.processes():
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    wait_until_free(running)
    assert running.site.process.pid() is None
    result = apply.start(running.site)
    assert result.generation == 2
    assert models(running) == ["m"]


def wait_until_free(edge: Place) -> None:
    deadline = time.monotonic() + 5
    while edge.processes() and time.monotonic() < deadline:
        time.sleep(0.01)


def test_two_reloads_at_once_come_one_after_the_other(running: Place) -> None:
    running.write(TWO, max_body="3m")
    results: list[str] = []
    threads = [threading.Thread(target=lambda: results.append(apply.reload(running.site).action)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(results) == ["nothing", "reloaded"]
    assert state(running)["generation"] == "2"


def test_a_lock_that_is_never_given_back_is_told(running: Place) -> None:
    with (
        locked(running.site.paths),
        pytest.raises(EdgeError, match="still at work"),
        locked(running.site.paths, timeout=0.1),
    ):
        pass


def test_a_push_that_the_edge_refuses_is_put_back(running: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    running.write(TWO)
    real = AdminClient.put_fleet
    monkeypatch.setattr(AdminClient, "put_fleet", lambda self, text: real(self, text.replace('"port"', '"porte"')))
    with unchanged(running), pytest.raises(EdgeError, match=r"backend m-[12] needs "):
        apply.reload(running.site)
    monkeypatch.undo()
    assert apply.reload(running.site).action == "pushed"


def test_a_reload_that_was_interrupted_is_finished_by_the_next(running: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control plane dies after the swap and before the signal: conf/ has what nobody has loaded."""
    running.write(TWO, max_body="3m")

    class Died(BaseException):
        pass

    def die(*arguments: object) -> None:
        raise Died

    with monkeypatch.context() as patch:
        patch.setattr(EdgeProcess, "reload_signal", die)
        patch.setattr(apply, "_put_back", die)
        with pytest.raises(Died):
            apply.reload(running.site)
    assert "3145728" in (running.site.paths.conf / "nginx.conf").read_text()
    result = apply.reload(running.site)
    assert result.action == "reloaded"
    now = state(running)
    assert (now["generation"], now["fleet_version"]) == (str(result.generation), result.version)
    assert len(now["backends"]) == 2
    assert "3145728" not in (running.site.paths.last / "nginx.conf").read_text()


def test_a_fleet_that_somebody_else_pushed_is_overwritten(running: Place) -> None:
    content = json.loads((running.site.paths.conf / "fleet.json").read_text())
    content["version"] = 40
    content["models"]["m"]["names"] = ["m", "z"]
    content["names"]["z"] = "m"
    with contextlib.closing(client(running.site.paths)) as admin:
        assert admin.put_fleet(json.dumps(content)) == 40
    result = apply.reload(running.site)
    assert (result.action, result.version) == ("pushed", 41)
    assert state(running)["models"][0]["names"] == ["m"]
    assert apply.reload(running.site).action == "nothing"


def test_stop_lets_a_running_request_finish_and_then_cuts(running: Place) -> None:
    host, _, port = running.listen.partition(":")
    with socket.create_connection((host, int(port))) as slow:
        slow.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n{")
        time.sleep(0.2)
        began = time.monotonic()
        assert apply.stop(running.site.paths, drain=0.5) == "was terminated"
        assert 0.5 <= time.monotonic() - began < 5
    assert edge_is_gone(running)


def test_a_master_that_ignores_term_is_killed(running: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("control.edge.process.TERM_TIMEOUT", 0.3)
    for process in running.processes():
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGSTOP)
    assert apply.stop(running.site.paths, quit=False) == "was killed"
    assert edge_is_gone(running)


def edge_is_gone(edge: Place) -> bool:
    wait_until_free(edge)
    return edge.processes() == [] and edge.site.process.pid() is None


def test_a_missing_binary_is_told_before_anything_is_touched(edge: Place) -> None:
    edge.write(binary="nowhere/nginx")
    with pytest.raises(EdgeError, match=r"edge\.binary names .*nowhere/nginx"):
        _ = edge.site
    assert not (edge.folder / ".signalbox").exists()


def test_a_binary_that_vanishes(running: Place) -> None:
    site = running.site
    running.write(TWO)
    gone = replace(running.site, engine=replace(site.engine, path=Path("/nonexistent/nginx")))
    with unchanged(running), pytest.raises(EdgeError, match="could not be run"):
        apply.reload(gone)
