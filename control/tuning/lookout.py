"""A thread of the control plane: it looks at engines and edge now and then, and keeps what all rules find."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Any

from control.fleet.load import LoadedFleet
from control.fleet.resolve import resolve_backends
from control.tuning.advice import Starts, last_starts, of_fleet_and_starts
from control.tuning.advise import Finding, worst_first
from control.tuning.observe import Observer, edge_metrics

log = logging.getLogger(__name__)

#: Seconds between two looks, and over which findings are made. A look costs 5 ms of CPU time per engine (70 KB);
#: what changes by the second comes from the /state that the page's poller asks for anyway.
EVERY, WINDOW = 15.0, 60.0
#: Seconds of a look's interval for each engine: in large fleets looks are rarer, so that they take no core.
EACH = 0.1


class Lookout:
    """Runs until ``close``. ``findings`` is of the last WINDOW seconds, or as long as it has run."""

    def __init__(self, loaded: LoadedFleet, every: float = EVERY) -> None:
        self._loaded = loaded
        self._least = every
        self._observer = Observer(loaded, lambda: edge_metrics(self._loaded), WINDOW)
        self._findings: tuple[Finding, ...] = ()
        #: What settings and last starts give, and of which fleet and starts.
        self._standing: tuple[Finding, ...] = ()
        self._seen: tuple[LoadedFleet, Starts] | None = None
        self._every = self._interval()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lookout", daemon=True)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What the last look found, and what settings and starts give, the worst first."""
        return self._findings

    def start(self) -> None:
        """Begin to look, at once."""
        self._thread.start()

    def close(self) -> None:
        """Look no more."""
        self._over.set()

    def set_fleet(self, loaded: LoadedFleet) -> None:
        """Another fleet.yaml: from the next look on, as if just begun."""
        self._loaded = loaded
        self._every = self._interval()
        self._observer.set_fleet(loaded)
        self._findings = ()

    def note(self, state: Mapping[str, Any]) -> None:
        """Take up the gauges of an answer to the edge's GET /state."""
        self._observer.note(state)

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                self._stand()
                self._observer.look()
                self._findings = tuple(worst_first([*self._standing, *self._observer.findings()]))
            except Exception:  # the thread must live; advice is no reason to end the control plane
                log.exception("A look at the engines failed; the next one follows in %.0f s.", self._every)
            self._over.wait(self._every)

    def _stand(self) -> None:
        """What does not change by itself is found anew only for another fleet, or when an engine has started."""
        now = (self._loaded, last_starts(self._loaded))
        if self._seen is None or now[0] is not self._seen[0] or now[1] != self._seen[1]:
            self._standing = of_fleet_and_starts(*now).findings
            self._seen = now

    def _interval(self) -> float:
        return max(self._least, EACH * len(resolve_backends(self._loaded)))
