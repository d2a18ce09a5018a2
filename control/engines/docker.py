"""Docker Engines over the Docker SDK: one object per host of the fleet."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Any, cast

import docker
import requests
from docker.constants import DEFAULT_DOCKER_API_VERSION
from docker.errors import APIError, DockerException, ImageNotFound, InvalidVersion, NotFound
from docker.tls import TLSConfig
from docker.types import LogConfig
from docker.types.daemon import CancellableStream

from control.engines import docker_errors
from control.engines.containers import BACKEND, FACTS, FLEET, SPEC, ContainerSpec
from control.engines.ownership import Adopted
from control.engines.plan import Foreign, Found, Seen
from control.engines.progress import Progress, seconds_text, size_text, ticking
from control.engines.pulls import SILENCE, Pull
from control.engines.samples import Spent
from control.errors import EngineError
from control.fleet.host_schema import Host
from control.fleet.load import LoadedFleet

#: Seconds that Docker may take for an answer (a stop gets its own time on top of them).
TIMEOUT = 60
#: Seconds until a host counts as away.
CONNECT_TIMEOUT = 10


class Conflict(EngineError):
    """Docker refused because somebody else has the name."""


class DockerHost:
    """One host of the fleet with Docker. Connects when it is first asked; may be used by several threads."""

    def __init__(self, name: str, loaded: LoadedFleet, fleet: str, host: Host | None = None) -> None:
        """``fleet``: what marks containers as ours (``ownership.fleet_id``); ``host``: one that fleet.yaml has not."""
        self.name = name
        self._host = host or loaded.fleet.hosts[name]
        self._fleet = fleet
        assert self._host.docker is not None
        self.url = self._host.docker
        tls = self._host.tls
        self._tls = None if tls is None else [loaded.file(path) for path in (tls.ca, tls.certificate, tls.key)]
        self._lock = threading.Lock()
        self._client: docker.DockerClient | None = None
        self._version: dict[str, Any] = {}

    @property
    def gpu_memory(self) -> int | None:
        """Memory of one of its GPUs in bytes, where fleet.yaml says it."""
        return None if self._host.gpu_memory is None else int(self._host.gpu_memory)

    @property
    def dcgm(self) -> str | None:
        """The URL of its DCGM exporter, where fleet.yaml says it."""
        return self._host.dcgm

    # Looking.

    def see(self, images: set[str], adopted: Mapping[str, Adopted] = MappingProxyType({})) -> Seen:
        """All containers there, and the ids of those ``images`` that are there. Raises EngineError.

        ``adopted``: containers that are ours without our labels, by their ids.
        """
        with self.told():
            ours, foreign = [], []
            for row in self._api.containers(all=True):
                labels = row.get("Labels") or {}
                if labels.get(FLEET) == self._fleet or row["Id"] in adopted:
                    with contextlib.suppress(NotFound):  # it went meanwhile
                        ours.append(self._found(self._api.inspect_container(row["Id"]), adopted.get(row["Id"])))
                else:
                    foreign.append(_foreign(row))
            there = {image: self._image_id(image) for image in images}
            return Seen(tuple(ours), tuple(foreign), {image: name for image, name in there.items() if name})

    def look(self, container: str) -> Found | None:
        """One container; None when it is gone. Raises EngineError."""
        with self.told():
            try:
                return self._found(self._api.inspect_container(container))
            except NotFound:
                return None

    def describe(self, container: str) -> dict[str, Any]:
        """Docker's own description of a container. Raises EngineError."""
        with self.told(f"there is no container {container} on {self.name}"):
            return cast("dict[str, Any]", self._api.inspect_container(container))

    def about(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """What Docker says of itself: /version and /info. Raises EngineError."""
        with self.told():
            info = self._api.info()  # connects, which asks for the version
            return self._version, info

    def image(self, image: str) -> dict[str, Any] | None:
        """Docker's own description of an image; None when it is not there. Raises EngineError."""
        with self.told():
            try:
                return cast("dict[str, Any]", self._api.inspect_image(image))
            except (ImageNotFound, NotFound):
                return None

    def in_registry(self, image: str) -> None:
        """Let Docker ask the image's registry for it, without pulling. Raises EngineError when it does not give it."""
        with self.told(f"{self.name} does not get {image}"):
            self._api.inspect_distribution(image)

    def has_volume(self, name: str) -> bool:
        """Whether there is a volume of this name. Raises EngineError."""
        with self.told():
            try:
                self._api.inspect_volume(name)
            except NotFound:
                return False
            return True

    def logs(
        self, container: str, follow: bool = False, tail: int | str = "all", since: float = 0.0
    ) -> Iterator[bytes]:
        """The container's output in pieces (not lines), until it ends when ``follow``. Raises EngineError.

        ``since``: Unix seconds of the host's own clock.
        """
        with self.told():
            options: dict[str, Any] = {"since": int(since)} if since else {}
            yield from cast(
                "Iterator[bytes]", self._api.logs(container, stream=True, follow=follow, tail=tail, **options)
            )

    def events(self, since: float | None = None) -> CancellableStream[dict[str, Any]]:
        """Starts and ends of all containers there, as they come; read it within ``told``. Raises EngineError.

        ``since``: from this moment on (Unix seconds of the host's clock), as far as Docker remembers.
        """
        kinds = ["start", "kill", "die", "oom", "destroy"]
        with self.told():
            stream = self._api.events(since=since, filters={"type": "container", "event": kinds}, decode=True)
            return cast("CancellableStream[dict[str, Any]]", stream)

    def spent(self, container: str) -> tuple[Spent, int | None]:
        """CPU time that a running container has used, and its main memory in bytes without what can go (page cache).

        The memory is what `docker stats` shows. Raises EngineError.
        """
        with self.told():
            try:
                row = self._api.stats(container, stream=False, one_shot=True)
            except InvalidVersion:  # before API 1.41 Docker looks twice, which takes it a second
                row = self._api.stats(container, stream=False)
        used = (row.get("cpu_stats") or {}).get("cpu_usage") or {}
        memory = row.get("memory_stats") or {}
        cache = (memory.get("stats") or {}).get(
            "inactive_file", (memory.get("stats") or {}).get("total_inactive_file", 0)
        )
        seconds = float(used.get("total_usage", 0)) / 1e9
        return Spent(seconds, time.monotonic()), int(memory["usage"]) - int(cache) if "usage" in memory else None

    def run_inside(self, container: str, command: Sequence[str]) -> Generator[str, None, None]:
        """Lines of a program's output (both streams) in a running container, as they come. Raises EngineError.

        Closing the iterator stops reading; the program goes on until it ends by itself.
        """
        with self.told():
            made = self._api.exec_create(container, list(command), tty=True)["Id"]  # a terminal: line by line
            # Not exec_start: over ssh it would wait until it has 4 KB.
            answer = self._api.post(
                self._api._url("/exec/{0}/start", made), json={"Tty": True, "Detach": False}, stream=True,
                headers={"Connection": "Upgrade", "Upgrade": "tcp"}, timeout=TIMEOUT,
            )  # fmt: skip
            with contextlib.closing(answer):
                self._api._raise_for_status(answer)
                for line in answer.raw._fp.fp:  # what comes after the headers, over any kind of connection
                    yield line.decode(errors="replace").rstrip()

    # Changing.

    def need_image(self, image: str, progress: Progress, pull: bool = False, silence: float = SILENCE) -> str:
        """The id of an image, pulled when it is not there, or when ``pull`` asks for a newer one.

        An image that is there is used when the registry is not: the progress says so. Raises EngineError, also for a
        pull that shows nothing new for ``silence`` seconds.
        """
        with self.told():
            here = self._image_id(image)
        if here and not pull:
            return here
        try:
            self._pull(image, progress, silence)
        except EngineError as error:
            if not here:
                raise
            progress(f"Using the image {image} that {self.name} has", f"it could not be pulled: {error.message}")
        with self.told():
            found = self._image_id(image)
        if not found:
            raise EngineError(f"{self.name} has no image {image} although it was pulled.", "Try the same again.")
        return found

    def create(self, spec: ContainerSpec, name: str) -> Found:
        """Create a container without starting it. Raises EngineError; Conflict when the name is taken."""
        with self.told(f"{self.name} cannot create the container of {spec.id}"):
            container = self._connected().containers.create(**spec.create_arguments(self._fleet, name))
            return self._found(self._api.inspect_container(container.id))

    def start(self, container: str) -> None:
        """Start a container that does not run. Raises EngineError with Docker's reason."""
        with self.told(f"{self.name} cannot start the engine"):
            self._api.start(container)

    def stop(self, container: str, seconds: float) -> None:
        """TERM, ``seconds`` to finish, then KILL. One that does not run is left alone. Raises EngineError."""
        with self.told(), contextlib.suppress(NotFound):
            self._api.stop(container, timeout=round(seconds))

    def remove(self, container: str) -> None:
        """Remove a container, whatever it does; its anonymous volumes go too. Raises EngineError."""
        with self.told():
            try:
                self._api.remove_container(container, force=True, v=True)
            except NotFound:
                pass
            except APIError as error:
                if error.status_code != 409 or "already in progress" not in str(error.explanation):
                    raise

    def rename(self, container: str, name: str) -> None:
        """Give a container another name. Raises EngineError."""
        with self.told():
            self._api.rename(container, name)

    def run_once(self, arguments: Mapping[str, Any]) -> bytes:
        """Run a container of ``containers.create``'s arguments to its end, and remove it: its output.

        It must end by itself: over ssh nothing limits how long an answer takes. Few calls, as each is a login there.
        Raises EngineError.
        """
        log_config = LogConfig(type=LogConfig.types.JSON)  # the host's own may be one that cannot be read
        with self.told():
            container = str(self._connected().containers.create(**arguments, log_config=log_config).id)
            try:
                self._api.start(container)
                return cast("bytes", self._api.logs(container, stream=False, follow=True))
            finally:
                self.remove(container)

    def close(self) -> None:
        """Close the connections."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            with contextlib.suppress(Exception):  # over ssh, closing says a last word to a process that may be gone
                client.close()

    # Inside.

    @property
    def _api(self) -> Any:
        return self._connected().api

    def _connected(self) -> docker.DockerClient:
        with self._lock:
            if self._client is None:
                self._client = self._connect()
            return self._client

    def _connect(self) -> docker.DockerClient:
        tls: TLSConfig | bool = False
        if self._tls is not None:
            ca, certificate, key = map(str, self._tls)
            tls = TLSConfig(client_cert=(certificate, key), ca_cert=ca, verify=True)

        def client(version: str) -> docker.DockerClient:
            made = docker.DockerClient(
                base_url=self.url, version=version, timeout=CONNECT_TIMEOUT, tls=tls, use_ssh_client=True
            )
            # REQUESTS_CA_BUNDLE would count more than our own ca, and a proxy is for other machines.
            made.api.trust_env = False
            return made

        try:
            first = client(DEFAULT_DOCKER_API_VERSION)  # not "auto": that asks before anything can be set
            try:
                self._version = first.api.version(api_version=False)
            finally:
                first.close()
            second = client(str(self._version["ApiVersion"]))
        except (DockerException, requests.RequestException, OSError) as error:
            raise self._away(error) from error
        second.api.timeout = TIMEOUT
        return second

    def _away(self, error: BaseException) -> EngineError:
        reason, hint = docker_errors.unreachable(self.url, error)
        return EngineError(f"The Docker Engine of {self.name} cannot be reached at {self.url}: {reason}.", hint)

    @contextlib.contextmanager
    def told(self, what: str = "") -> Iterator[None]:
        """Docker's errors as ours. A connection that broke is made anew the next time."""
        try:
            yield
        except APIError as error:
            text = docker_errors.plain(str(error.explanation or error))
            message = f"{what}: {text}." if what else f"Docker on {self.name} says: {text}."
            taken = error.status_code == 409 and "name" in text
            raise (Conflict if taken else EngineError)(message, docker_errors.cure(text)) from error
        except (DockerException, requests.RequestException, OSError) as error:
            self.close()
            raise self._away(error) from error

    def _found(self, row: dict[str, Any], adopted: Adopted | None = None) -> Found:
        labels, state = row["Config"].get("Labels") or {}, row["State"]
        if adopted is None:
            backend, spec, facts = labels.get(BACKEND, ""), labels.get(SPEC, ""), _facts(labels.get(FACTS, ""))
        else:
            backend, spec, facts = adopted.backend, adopted.hash, dict(adopted.facts)
        return Found(
            id=row["Id"],
            name=row["Name"].lstrip("/"),
            host=self.name,
            backend=backend,
            hash=spec,
            state=state["Status"],
            facts=facts,
            image_id=row.get("Image", ""),
            exit_code=state.get("ExitCode"),
            out_of_memory=bool(state.get("OOMKilled")),
            started=_seconds(state.get("StartedAt", "")),
            finished=_seconds(state.get("FinishedAt", "")),
            listen=published(row),
        )

    def _image_id(self, image: str) -> str:
        try:
            return str(self._api.inspect_image(image)["Id"])
        except (ImageNotFound, NotFound):
            return ""

    def _pull(self, image: str, progress: Progress, silence: float) -> None:
        """Raises EngineError, also for errors that come within an answer of 200."""
        title = f"Pulling {image} on {self.name}"
        pull = Pull()
        progress(title)
        with self.told(f"{self.name} cannot pull {image}"):
            for line in ticking(self._api.pull(image, stream=True, decode=True)):
                if pull.silent_for() > silence:
                    why = f"nothing new came for {seconds_text(silence)}"
                    raise EngineError(
                        f"{self.name} cannot pull {image}: {why}.", docker_errors.silent(self.name, image)
                    )
                if line is not None and "error" in line:
                    text = docker_errors.plain(str(line["error"]))
                    raise EngineError(f"{self.name} cannot pull {image}: {text}.", docker_errors.cure(text))
                if line is not None:
                    pull.feed(line)
                if pull.total:
                    progress(title, f"{size_text(pull.done)} of {size_text(pull.total)}", pull.done / pull.total)
                else:
                    progress(title)  # whoever listens may want to end it


def published(row: dict[str, Any]) -> tuple[str, int] | None:
    """The first address and port that a container (as Docker describes it) opens on its host."""
    bindings = (row.get("HostConfig") or {}).get("PortBindings") or {}
    for entries in bindings.values():
        for entry in entries or ():
            if str(entry.get("HostPort", "")).isdecimal():
                return str(entry.get("HostIp") or "0.0.0.0"), int(entry["HostPort"])
    return None


def _foreign(row: dict[str, Any]) -> Foreign:
    ports = tuple((str(port.get("IP", "")), int(port["PublicPort"])) for port in row.get("Ports") or ()
                  if port.get("PublicPort") and port.get("Type") == "tcp")  # fmt: skip
    name = (row.get("Names") or [""])[0].lstrip("/")
    return Foreign(row["Id"], name, row.get("Image", ""), row.get("State", ""), ports)


def _facts(text: str) -> dict[str, Any]:
    try:
        facts = json.loads(text)
    except ValueError:
        return {}
    return facts if isinstance(facts, dict) else {}


def _seconds(text: str) -> float:
    """Docker's time (nanoseconds, UTC) in Unix seconds; 0 for never."""
    if not text or text.startswith("0001"):
        return 0.0
    try:
        return datetime.fromisoformat(text[:26].rstrip("Z") + "+00:00").timestamp()
    except ValueError:
        return 0.0
