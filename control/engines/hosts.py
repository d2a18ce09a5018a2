"""All Docker hosts of a fleet: opened, looked at and closed together."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import TracebackType
from typing import Self

from control.engines import left_hosts
from control.engines.containers import docker_backends
from control.engines.docker import DockerHost
from control.engines.ownership import adopted, fleet_id
from control.engines.plan import Seen
from control.engines.progress import Progress
from control.errors import EngineError
from control.fleet.load import LoadedFleet
from control.paths import StatePaths


class Hosts:
    """``with Hosts(loaded, paths) as hosts``: the hosts with ``docker``, by name.

    With those that have left fleet.yaml while containers of ours were there (``left_hosts.py``).
    """

    def __init__(self, loaded: LoadedFleet, paths: StatePaths) -> None:
        fleet = fleet_id(paths)
        self._paths = paths
        self.by_name = {
            name: DockerHost(name, loaded, fleet)
            for name, host in loaded.fleet.hosts.items()
            if host.docker is not None
        }
        self._present = {name: loaded.fleet.hosts[name] for name in self.by_name}
        self._left = left_hosts.left(paths, self._present)
        self.by_name |= {name: DockerHost(name, loaded, fleet, host) for name, host in self._left.items()}
        #: The images that engines on each host need.
        self._images: dict[str, set[str]] = {}
        for backend in docker_backends(loaded):
            if backend.machine is not None and backend.engine is not None and backend.engine.image is not None:
                self._images.setdefault(backend.machine, set()).add(backend.engine.image)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for host in self.by_name.values():
            host.close()

    def pull(self, progress: Progress) -> None:
        """Ask the registries for newer images, host after host. Raises EngineError when an image is nowhere."""
        for name, images in self._images.items():
            for image in sorted(images):
                self.by_name[name].need_image(image, progress, pull=True)

    def see(self, names: Iterable[str] | None = None) -> tuple[dict[str, Seen], dict[str, EngineError]]:
        """Look at the hosts, all at once: what each has, and why one cannot be asked."""
        wanted = list(self.by_name if names is None else names)
        ours = adopted(self._paths)
        seen: dict[str, Seen] = {}
        problems: dict[str, EngineError] = {}

        def one(name: str) -> Seen | EngineError:
            try:
                return self.by_name[name].see(self._images.get(name, set()), ours)
            except EngineError as error:
                return error

        with ThreadPoolExecutor(max(1, len(wanted)), thread_name_prefix="host") as pool:
            for name, answer in zip(wanted, pool.map(one, wanted), strict=True):
                if isinstance(answer, Seen):
                    seen[name] = answer
                else:
                    problems[name] = answer
        self._keep_track(seen, problems)
        return seen, problems

    def remember(self, name: str) -> None:
        """This host is about to get containers of ours. Raises OSError."""
        left_hosts.remember(self._paths, name, self._present[name])

    def _keep_track(self, seen: dict[str, Seen], problems: dict[str, EngineError]) -> None:
        """Remember where containers of ours are, and forget hosts that have left and have none any more."""
        here = {found.id for name in self._present if name in seen for found in seen[name].ours}
        for name in self._present:
            if name in seen and seen[name].ours:
                self.remember(name)
        away = [name for name in self._present if name in problems]
        for name, host in self._left.items():
            if name in seen:
                # The same engine reached in another way: its containers are those of a host of fleet.yaml.
                there = tuple(found for found in seen[name].ours if found.id not in here)
                if away and there:  # or of one that does not answer just now
                    problems[name] = EngineError(
                        f"{name} has left fleet.yaml, and has {len(there)} containers of this fleet.",
                        f"They are ended when {', '.join(away)} answers: it may be the same machine.",
                    )
                    del seen[name]
                    continue
                seen[name] = replace(seen[name], ours=there)
                if not there:
                    left_hosts.forget(self._paths, name, host)
            elif name in problems:
                error = problems[name]
                message = f"{name} has left fleet.yaml with containers of this fleet. {error.message}"
                problems[name] = EngineError(message, f"{error.hint} {left_hosts.how_to_forget(self._paths)}".strip())
