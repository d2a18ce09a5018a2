"""This machine: nginx, ports, disk, open files, certificates."""

from __future__ import annotations

import resource
import shlex
import shutil
import ssl
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from control.doctor.findings import Finding, ok, problem, warning
from control.edge.binary import PACKAGES, find_engine
from control.edge.ports import require_free
from control.edge.process import present
from control.edge.site import state_paths
from control.errors import EdgeError
from control.fleet.address import split_listen
from control.fleet.edge_schema import Certificate
from control.fleet.load import LoadedFleet
from control.paths import StatePaths
from control.serve import daemon_address

#: Bytes of free disk: below the first logs and bodies fail soon, below the second a runtime cannot be installed.
LEAST_DISK, LITTLE_DISK = 1024**3, 5 * 1024**3
#: Seconds before its end that a certificate should be renewed.
RENEW = 14 * 86_400


def nginx(loaded: LoadedFleet) -> Iterator[Finding]:
    """The engine and its Lua module."""
    binary = loaded.fleet.edge.binary
    configured = None if binary is None else Path(binary) if "/" not in binary else loaded.folder / binary
    try:
        engine = find_engine(configured)
    except EdgeError as error:
        yield problem("nginx", error.message, f"apt-get install --no-install-recommends {PACKAGES}")
        return
    yield ok("nginx", f"{engine.title} at {engine.path}, with Lua ({engine.profile.name})")


def ports(loaded: LoadedFleet) -> Iterator[Finding]:
    """Each listener: free, ours, or somebody else's."""
    paths, edge = state_paths(loaded), loaded.fleet.edge
    runs = present(paths)
    for key, address, ours in (
        ("edge.listen", edge.listen, runs),
        ("edge.admin", edge.admin, runs),
        ("control.listen", loaded.fleet.control.listen, bool(daemon_address(paths))),
    ):
        port = split_listen(address)[1]
        try:
            require_free([address])
        except EdgeError as error:
            if ours:
                yield ok(key, f"{address} is in use, and {_what(key)} of this fleet runs")
            else:
                yield problem(key, error.message, f"ss -ltnp 'sport = :{port}'")
            continue
        yield ok(key, f"{address} is free" + (", though the edge runs: it listens elsewhere yet" if ours else ""))


def _what(key: str) -> str:
    return "the control plane" if key == "control.listen" else "the edge"


def disk(loaded: LoadedFleet) -> Iterator[Finding]:
    """Free space where everything of the fleet lies."""
    folder = _there(state_paths(loaded).root)
    free = shutil.disk_usage(folder).free
    text = f"{free / 1024**3:.1f} GiB are free at {folder}"
    command = f"du -xh --max-depth=2 {shlex.quote(str(folder))} | sort -h | tail"
    if free < LEAST_DISK:
        yield problem("disk", f"only {text}: logs, and large request bodies, will fail", command)
    elif free < LITTLE_DISK:
        yield warning("disk", f"only {text}: too little for another runtime or model", command)
    else:
        yield ok("disk", text)


def _there(path: Path) -> Path:
    """``path``, or the nearest folder above it that exists."""
    return next(folder for folder in (path, *path.parents) if folder.is_dir())


def open_files(loaded: LoadedFleet) -> Iterator[Finding]:
    """Two sockets for each request: does the limit of open files allow what edge.worker_connections promises?"""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    wanted = 2 * loaded.fleet.edge.worker_connections + 512
    if hard == resource.RLIM_INFINITY or hard >= wanted:
        yield ok("open files", f"{'no limit' if hard == resource.RLIM_INFINITY else hard} for each process")
        return
    text = f"{hard} for each process; {loaded.fleet.edge.worker_connections} connections of a worker need {wanted}"
    yield warning("open files", text, f"ulimit -Hn {wanted} (as root, or LimitNOFILE={wanted} in the service)")


def certificates(loaded: LoadedFleet) -> Iterator[Finding]:
    """Certificates of the public listener: do they fit their keys, and until when are they valid?"""
    tls = loaded.fleet.edge.tls
    pairs: list[Certificate] = [tls, *tls.others] if tls is not None else []
    for pair in pairs:
        yield certificate(loaded.file(pair.certificate), loaded.file(pair.key), time.time())


def certificate(path: Path, key: Path, now: float) -> Finding:
    """One certificate with its key at ``now`` (Unix seconds)."""
    look = f"openssl x509 -noout -subject -dates -in {shlex.quote(str(path))}"
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(path, key)
        # The standard library's own reader, which only its tests and whoever needs a date call.
        content = ssl._ssl._test_decode_cert(str(path))  # type: ignore[attr-defined]
        begins, ends = (ssl.cert_time_to_seconds(str(content[name])) for name in ("notBefore", "notAfter"))
    except (OSError, ssl.SSLError, ValueError, KeyError) as error:
        return problem("certificate", f"{path} with {key}: {error}", look)
    days = (ends - now) / 86_400
    if now < begins:
        return problem("certificate", f"{path} is valid only from {_day(begins)} on; is this clock right?", "date -u")
    if days < 0:
        return problem("certificate", f"{path} ended on {_day(ends)}; clients refuse it", look)
    if ends - now < RENEW:
        return warning("certificate", f"{path} ends in {days:.0f} days, on {_day(ends)}; then `signalbox reload`", look)
    return ok("certificate", f"{path} is valid until {_day(ends)}")


def _day(moment: float) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(moment))


def secret_files(loaded: LoadedFleet) -> Iterator[Finding]:
    """Files with keys that others on this machine may read."""
    tls = loaded.fleet.edge.tls
    pairs: list[Certificate] = [tls, *tls.others] if tls is not None else []
    files = [loaded.file(pair.key) for pair in pairs]
    for model in loaded.fleet.models.values():
        files += [loaded.file(backend.key_file) for backend in model.backends if backend.key_file is not None]
    for path in dict.fromkeys(files):
        try:
            mode = path.stat().st_mode
        except OSError as error:
            yield problem("secrets", f"{path}: {error.strerror}", f"ls -l {shlex.quote(str(path.parent))}")
            continue
        if mode & 0o004:
            text = f"everybody on this machine may read {path}"
            yield warning("secrets", text, f"chmod o-r {shlex.quote(str(path))}")


def signalbox(loaded: LoadedFleet) -> str:
    """The command for this fleet, to be followed by what it is to do."""
    program = Path(sys.executable).parent / "signalbox"
    return f"{program if program.exists() else 'signalbox'} -f {shlex.quote(str(loaded.path))}"


def running(loaded: LoadedFleet) -> Iterator[Finding]:
    """What of the fleet runs on this machine."""
    paths: StatePaths = state_paths(loaded)
    if not present(paths):
        yield warning("edge", "it does not run", f"{signalbox(loaded)} run")
    elif not daemon_address(paths):
        text = "it does not run: nobody restarts engines or rotates logs"
        yield warning("control plane", text, f"{signalbox(loaded)} run")
    else:
        yield ok("edge", "it runs, and the control plane does")
