"""The edge as the supervisor of engines needs it: what runs at an address, and nothing new for a backend."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator

from control.edge.admin import AdminClient, EdgeRefused
from control.edge.process import present, running
from control.edge.site import client
from control.errors import EdgeError
from control.paths import StatePaths

log = logging.getLogger(__name__)

#: Seconds between two repetitions of a wish; the edge forgets one after 30 s.
RENEW = 10.0


class EdgeGate:
    """Holds backends out of rotation for the control plane. Each call asks whatever edge runs then."""

    def __init__(self, paths: StatePaths) -> None:
        self._paths = paths
        self._lock = threading.Lock()
        self._held: set[str] = set()
        self._renewing = False

    def running(self, address: str) -> tuple[int, list[str]] | None:
        """How many sequences run at ``HOST:PORT``, and the ids of the backends of the edge's fleet there.

        None when no edge runs. Raises EdgeError when it does not answer as it should.
        """
        if not present(self._paths):
            return None
        with self._client() as edge:
            state = edge.state()
        try:
            here = [row for row in state["backends"] if row["address"] == address]
            # An edge that runs since before an update tells nothing of those that left.
            left = [row for row in state.get("leaving") or () if row["address"] == address]
            return sum(int(row["in_flight"]) for row in (*here, *left)), [str(row["id"]) for row in here]
        except (KeyError, TypeError, ValueError) as error:
            raise EdgeError(f"the edge's state cannot be read: {error!r}") from error

    def states(self) -> dict[str, tuple[str, str]] | None:
        """Model and state of each backend of the edge's fleet; None when no edge runs. Raises EdgeError."""
        if not present(self._paths):
            return None
        with self._client() as edge:
            state = edge.state()
        try:
            return {str(row["id"]): (str(row["model"]), str(row["state"])) for row in state["backends"]}
        except (KeyError, TypeError) as error:
            raise EdgeError(f"the edge's state cannot be read: {error!r}") from error

    def hold(self, backend: str) -> bool:
        """Let nothing new in, until ``release`` or the end of this process; True when that is news.

        Raises EdgeError.
        """
        with self._lock:
            if backend in self._held:
                return False
            with self._client() as edge:
                edge.hold(backend)
            self._held.add(backend)
            if not self._renewing:
                self._renewing = True
                threading.Thread(target=self._renew, name="edge holds", daemon=True).start()
            return True

    def release(self, backend: str) -> None:
        """Let requests in again, if no operator keeps them out. An edge that cannot be asked forgets by itself."""
        with self._lock:
            self._held.discard(backend)
            with contextlib.suppress(EdgeError), self._client() as edge:
                edge.release(backend)

    def undo(self) -> None:
        """Take back the wishes of a control plane that was killed."""
        try:
            if not running(self._paths):
                return
            with self._client() as edge:
                rows = edge.state()["backends"]
                left = [str(row["id"]) for row in rows if "control" in (row.get("drained_by") or ())]
                for backend in left:
                    edge.release(backend)
        except (EdgeError, KeyError, TypeError) as error:
            log.info("The edge was not asked for what an earlier control plane has drained: %s", error)
            return
        if left:
            log.info("An earlier control plane had drained %s: resumed.", ", ".join(left))

    def _renew(self) -> None:
        """Repeat the wishes while there are any."""
        pause = threading.Event()
        while True:
            pause.wait(RENEW)
            with self._lock:
                if not self._held:
                    self._renewing = False
                    return
                held = sorted(self._held)
            try:
                for backend in held:
                    self._repeat(backend)
            except EdgeError as error:
                log.warning("The edge cannot be asked to go on draining %s: %s", ", ".join(held), error.message)

    def _repeat(self, backend: str) -> None:
        with self._lock:
            if backend not in self._held:
                return
            try:
                with self._client() as edge:
                    edge.hold(backend)
            except EdgeRefused:  # it has left the edge's fleet
                self._held.discard(backend)

    @contextlib.contextmanager
    def _client(self) -> Iterator[AdminClient]:
        edge = client(self._paths)
        try:
            yield edge
        finally:
            edge.close()
