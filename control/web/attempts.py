"""How often a login may fail before it has to wait. Pure: the caller brings the time."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque

#: So many failures in so many seconds, of one address and of all together; so many addresses are remembered.
MOST, MOST_OF_ALL, WINDOW, ADDRESSES = 5, 50, 300.0, 1000
ALL = ""


class Attempts:
    """Failed logins by address."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._failed: OrderedDict[str, deque[float]] = OrderedDict()

    def begin(self, address: str, now: float) -> int:
        """Count an attempt as failed until ``succeeded``; else the seconds to wait, when there were too many.

        Counted before the password is looked at, so that many at the same time are not all let through.
        """
        with self._lock:
            waits = [self._wait(address, MOST, now), self._wait(ALL, MOST_OF_ALL, now)]
            if any(waits):
                return max(waits)
            for one in (address, ALL):
                self._failed.setdefault(one, deque(maxlen=MOST_OF_ALL)).append(now)
                self._failed.move_to_end(one)
            while len(self._failed) > ADDRESSES:
                oldest = next(one for one in self._failed if one != ALL)
                del self._failed[oldest]
            return 0

    def succeeded(self, address: str) -> None:
        """The last attempt of this address was right: its failures are forgotten."""
        with self._lock:
            self._failed.pop(address, None)
            if self._failed.get(ALL):
                self._failed[ALL].pop()

    def _wait(self, address: str, most: int, now: float) -> int:
        failed = self._failed.get(address, deque())
        while failed and failed[0] <= now - WINDOW:
            failed.popleft()
        return 0 if len(failed) < most else int(failed[-most] + WINDOW - now) + 1
