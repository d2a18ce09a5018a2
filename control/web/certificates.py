"""What stands for longer than a poll: when certificates of the edge end, a fleet.yaml or a reload that was refused."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from pathlib import Path

from cryptography import x509

from control.fleet.load import LoadedFleet
from control.web.troubles import Standing

log = logging.getLogger(__name__)

#: Seconds between two looks at the files: they are renewed without us.
LOOK_EVERY = 60.0
MAX_TEXT = 1000


class Certificates:
    """Called once a second, reads once a minute."""

    def __init__(self, loaded: LoadedFleet, refused: Path | None = None) -> None:
        """``refused``: where a reload of the edge that was refused leaves its reason."""
        self._reload_refused = refused
        self._standing = Standing()
        self._read_at = float("-inf")
        self._files: dict[str, Path] = {}
        self.reload(loaded)

    def __call__(self) -> Standing:
        if time.monotonic() - self._read_at >= LOOK_EVERY:
            self._read_at = time.monotonic()
            ends = {name: end for name, path in self._files.items() if (end := ends_at(path)) is not None}
            self._standing = Standing(ends, self._standing.refused)
        return replace(self._standing, reload_refused=self._edge_refused())

    def _edge_refused(self) -> str:
        try:
            return self._reload_refused.read_text(errors="replace")[:MAX_TEXT] if self._reload_refused else ""
        except OSError:
            return ""

    def reload(self, loaded: LoadedFleet) -> None:
        """Another fleet.yaml is in force."""
        tls = loaded.fleet.edge.tls
        written = [tls.certificate, *(other.certificate for other in tls.others)] if tls else []
        self._files = {name: loaded.folder / name for name in written}
        self._standing, self._read_at = Standing(), float("-inf")

    def refused(self, problem: str) -> None:
        """fleet.yaml was read again and cannot be used."""
        self._standing = Standing(self._standing.certificates, problem[:MAX_TEXT])


def ends_at(path: Path) -> float | None:
    """When the first certificate of a PEM file ends, in Unix seconds; None when it cannot be read (nginx says why)."""
    try:
        return x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc.timestamp()
    except (OSError, ValueError) as error:
        log.debug("%s: %s", path, error)
        return None
