"""A thread of the control plane: a Redis that begins anew, or was away when the fleet changed, is told of it later."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from control.errors import SignalboxError
from control.fleet.load import LoadedFleet
from control.paths import StatePaths
from control.sharing.publish import repeat

log = logging.getLogger(__name__)

#: Seconds between two looks at what Redis has.
EVERY = 5.0


class Repeater:
    """Runs until ``close``. ``loaded`` gives the fleet as it is then."""

    def __init__(self, loaded: Callable[[], LoadedFleet], paths: StatePaths) -> None:
        self._loaded = loaded
        self._paths = paths
        self._over = threading.Event()
        self._trouble = ""
        self._thread = threading.Thread(target=self._run, name="publisher", daemon=True)

    def start(self) -> None:
        """Begin to look, for the first time after EVERY seconds."""
        self._thread.start()

    def close(self) -> None:
        """Look no more."""
        self._over.set()

    def _run(self) -> None:
        while not self._over.wait(EVERY):
            try:
                said = repeat(self._loaded(), self._paths)
                trouble = ""
            except (SignalboxError, OSError) as error:
                said, trouble = "", str(error)
            if trouble and trouble != self._trouble:
                log.warning("Other edges cannot be told of the fleet: %s", trouble)
            self._trouble = trouble
            if said:
                log.info("%s", said)
