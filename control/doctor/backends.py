"""Engines as this machine reaches them: does each answer, with our key, and who else reaches it?"""

from __future__ import annotations

import email.utils
import ipaddress
import shlex
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import requests

from control.doctor.findings import Finding, ok, problem, warning
from control.doctor.machine import signalbox
from control.engines.health import read_key
from control.errors import EngineError
from control.fleet.address import ip, is_loopback
from control.fleet.load import LoadedFleet
from control.fleet.resolve import ResolvedBackend, addresses, resolve_backends

#: Seconds to connect, and for the answer.
TIMEOUTS = (3.0, 10.0)
#: Seconds that two clocks may differ: limits, expiry of keys and certificates go by them.
CLOCK = 60.0


def backends(loaded: LoadedFleet, hosts: Sequence[str] | None = None) -> Iterator[Finding]:
    """All backends, or those on ``hosts``, asked side by side."""
    written = [backend for model in loaded.fleet.models.values() for backend in model.backends]
    pairs = zip(resolve_backends(loaded), written, strict=True)
    found = [backend for backend, text in pairs if hosts is None or text.host in hosts]
    with ThreadPoolExecutor(max_workers=16, thread_name_prefix="doctor") as pool:
        for findings in pool.map(lambda backend: _look(loaded, backend), found):
            yield from findings


def _look(loaded: LoadedFleet, backend: ResolvedBackend) -> list[Finding]:
    subject = f"backend {backend.id}"
    found = (_answers(loaded, backend, subject), _open_to(backend, subject))
    return [finding for finding in found if finding is not None]


def _answers(loaded: LoadedFleet, backend: ResolvedBackend, subject: str) -> Finding:
    """Whether /v1/models lists the model, asked as the edge asks."""
    url = f"{backend.url}/v1/models"
    authority = f" --cacert {shlex.quote(str(backend.ca))}" if backend.ca else ""
    curl = f"curl -sS -m 10{authority} {shlex.quote(url)}"
    if not addresses(backend.host):
        return problem(subject, f"the name {backend.host} is not known", f"getent hosts {shlex.quote(backend.host)}")
    try:
        key = read_key(backend)
    except EngineError as error:
        return problem(
            subject, error.message, f"ls -l {shlex.quote(str(backend.key_file))}" if backend.key_file else "env"
        )
    try:
        with requests.Session() as session:
            session.trust_env = False
            answer = session.get(
                url,
                headers={"Authorization": f"Bearer {key}"} if key else {},
                timeout=TIMEOUTS,
                verify=str(backend.ca) if backend.ca else True,
                allow_redirects=False,
            )
    except requests.exceptions.SSLError as error:
        return problem(subject, f"its certificate is not accepted: {_cause(error)}", f"{curl} -v")
    except requests.Timeout:
        return problem(subject, f"{url} does not answer in time", curl)
    except requests.ConnectionError as error:
        if backend.ours:
            return problem(subject, f"nothing serves at {backend.url}: {_cause(error)}", f"{signalbox(loaded)} status")
        return problem(subject, f"{url} is not reached: {_cause(error)}", curl)
    return _judged(backend, subject, answer, curl)


def _judged(backend: ResolvedBackend, subject: str, answer: requests.Response, curl: str) -> Finding:
    if answer.status_code == 401:
        what = (
            "refuses our key" if backend.key_file or backend.key_env else "wants a key: name it by key_file or key_env"
        )
        return problem(subject, f"it {what}", curl)
    if answer.status_code != 200:
        return problem(subject, f"/v1/models answers {answer.status_code}", curl)
    try:
        listed = [str(entry["id"]) for entry in answer.json()["data"]]
    except (ValueError, KeyError, TypeError):
        return problem(subject, "/v1/models answers something that is not a list of models: is it vLLM?", curl)
    if backend.name not in listed:
        names = ", ".join(listed[:5]) or "nothing"
        return problem(subject, f"it serves {names}, not {backend.name}: model_name says what it is called there", curl)
    off = _clock(answer)
    if off is not None and abs(off) > CLOCK:
        return warning(subject, f"it serves {backend.name}; its clock and ours differ by {off:.0f} s", "timedatectl")
    return ok(subject, f"it serves {backend.name}")


def _clock(answer: requests.Response) -> float | None:
    """Seconds that the engine's clock is ahead of this machine's."""
    try:
        return email.utils.parsedate_to_datetime(answer.headers["Date"]).timestamp() - time.time()
    except (KeyError, ValueError, TypeError):
        return None


def _open_to(backend: ResolvedBackend, subject: str) -> Finding | None:
    """Who else reaches the engine: vLLM's management paths ask for no key, whoever comes."""
    if backend.ours and is_loopback(backend.host):
        wide = _listens_everywhere(backend.port)
        if wide:
            text = f"port {backend.port} listens on {wide}: everybody who reaches this machine may manage the engine"
            return warning(subject, text, f"ss -ltnp 'sport = :{backend.port}'")
        return None
    public = [
        address for address in addresses(backend.host) if ipaddress.ip_address(address.partition("%")[0]).is_global
    ]
    if backend.scheme == "http" and public:
        text = (
            f"prompts go in the clear to {backend.host}, and who else reaches it may manage it (a key guards few paths)"
        )
        remedy = f"ssh -N -L 127.0.0.1:{backend.port}:127.0.0.1:{backend.port} {backend.host}"
        return warning(subject, text, f"{remedy}  # then url: http://127.0.0.1:{backend.port}")
    return None


def _listens_everywhere(port: int) -> str:
    """The address beyond loopback on which somebody listens at ``port``; empty when there is none, or none is told."""
    try:
        connections: list[Any] = psutil.net_connections(kind="tcp")
    except psutil.Error:
        return ""
    for connection in connections:
        if connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port == port:
            address = ip(connection.laddr.ip)
            if address is not None and not address.is_loopback:
                return str(connection.laddr.ip)
    return ""


def _cause(error: BaseException) -> str:
    """The innermost reason, without the wrapping of the libraries in between."""
    inner: object = error.args[0] if error.args else error
    reason = getattr(inner, "reason", inner)
    return str(reason).rpartition(": ")[2] or str(error)
