"""All tunnels of a fleet, as the control plane keeps them."""

from __future__ import annotations

import threading

from control.engines.drain import Gate
from control.engines.policy import Policy
from control.engines.recorded import Leaver, Leavers, close_all, folders
from control.fleet.load import LoadedFleet
from control.paths import StatePaths
from control.tunnels.arguments import Tunnel, tunnels
from control.tunnels.keeper import TUNNELS, Keeper, TunnelStatus


class Tunnels:
    """One keeper for each backend on a host with ``tunnel``. May be used by several threads."""

    def __init__(
        self, loaded: LoadedFleet, paths: StatePaths, policy: Policy = TUNNELS, gate: Gate | None = None
    ) -> None:
        """Without ``gate`` nobody is waited for before a tunnel ends."""
        self._paths = paths
        self._policy = policy
        self._gate = gate
        self._lock = threading.Lock()
        self._keepers = {tunnel.id: self._keeper(tunnel) for tunnel in tunnels(loaded)}
        self._leaving = Leavers()

    def start(self) -> None:
        """Bring all up, or take over those that are; the ssh of backends that left the fleet ends when it is idle."""
        with self._lock:
            for folder in folders(self._paths, "tunnels"):
                if folder.name not in self._keepers:
                    self._leave(folder.name, None)
            for keeper in self._keepers.values():
                keeper.thread.start()

    def status(self) -> list[TunnelStatus]:
        """The state of every tunnel, in the order of the fleet."""
        with self._lock:
            return [keeper.status for keeper in self._keepers.values()]

    def reload(self, loaded: LoadedFleet) -> None:
        """Follow a changed fleet; a tunnel that stays as it is and is up is not touched."""
        wanted = tunnels(loaded)
        with self._lock:
            old, self._keepers = self._keepers, {}
            for tunnel in wanted:
                keeper = old.pop(tunnel.id, None)
                if keeper is None:
                    keeper = self._keeper(tunnel, self._leaving.stays(tunnel.id))
                    keeper.thread.start()
                elif keeper.tunnel != tunnel or keeper.status.state != "up":
                    keeper.change(tunnel)
                self._keepers[tunnel.id] = keeper
            for identity, keeper in old.items():
                keeper.close(stop=False)
                self._leave(identity, keeper)

    def close(self, stop: bool) -> None:
        """End the keeping; ``stop``: the tunnels too, else the next control plane takes them over."""
        with self._lock:
            minders = [*self._keepers.values(), *self._leaving]
        close_all(minders, stop)

    def _keeper(self, tunnel: Tunnel, after: threading.Thread | None = None) -> Keeper:
        return Keeper(tunnel, self._paths, self._policy, self._gate, after)

    def _leave(self, identity: str, keeper: Keeper | None) -> None:
        after, seconds = (None, None) if keeper is None else (keeper.thread, keeper.tunnel.drain_seconds)
        folder = self._paths.tunnel(identity)
        self._leaving.add(Leaver(folder, self._gate, self._policy.drain, after, seconds, "tunnel"))
