"""Where everything of one fleet lies on disk: one folder beside fleet.yaml, named by ``control.state_dir``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

#: The checkout: lua/, templates/ and requirements/ are read from here.
REPOSITORY = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class StatePaths:
    """All paths below the state folder. Nothing is created here."""

    root: Path

    # The edge: nginx's prefix is ``edge``; ``next`` is what render wrote, ``conf`` what runs, ``last`` the last good.
    @property
    def edge(self) -> Path:
        return self.root / "edge"

    @property
    def conf(self) -> Path:
        return self.edge / "conf"

    @property
    def next(self) -> Path:
        return self.edge / "next"

    @property
    def last(self) -> Path:
        return self.edge / "last"

    @property
    def reload_refused(self) -> Path:
        """Why the last reload was refused; not there after one that was not."""
        return self.edge / "refused"

    @property
    def keys_json(self) -> Path:
        """What the edge is told of API keys: hashes, mode 0600. Never put back with ``last``."""
        return self.conf / "keys.json"

    @property
    def edge_pid(self) -> Path:
        return self.edge / "run" / "nginx.pid"

    @property
    def foreground(self) -> Path:
        """The socket of an edge that runs in the foreground, for ``signalbox reload``."""
        return self.edge / "run" / "foreground.sock"

    @property
    def admin_token(self) -> Path:
        """The edge admin listener's bearer token, mode 0600, made at the first start."""
        return self.edge / "run" / "admin.token"

    @property
    def edge_logs(self) -> Path:
        return self.edge / "logs"

    # The control plane and the engines that it starts.
    @property
    def control_pid(self) -> Path:
        return self.root / "control" / "control.pid"

    @property
    def control_reload(self) -> Path:
        """Made by a ``signalbox reload`` that cannot signal the daemon, which runs in another container."""
        return self.root / "control" / "reload"

    @property
    def control_log(self) -> Path:
        return self.root / "control" / "control.log"

    @property
    def page_token(self) -> Path:
        """What programs of this machine show to the page, mode 0600; sessions of browsers are signed with it."""
        return self.root / "control" / "page.token"

    @property
    def audit_log(self) -> Path:
        """Who did what on the page, one JSON object per line, mode 0600."""
        return self.root / "control" / "audit.log"

    @property
    def published(self) -> Path:
        """The fleet and keys as other machines are given them, mode 0600."""
        return self.root / "control" / "published.json"

    @property
    def taken(self) -> Path:
        """On a machine with an edge only: the last good fleet and keys that it took, mode 0600."""
        return self.root / "control" / "taken.json"

    @property
    def following(self) -> Path:
        """There too: what ``signalbox edge`` last did, for ``signalbox status``."""
        return self.root / "control" / "following.json"

    def engine(self, backend_id: str) -> Path:
        """Folder of one local engine: ``process.json``, ``startup.json`` and ``engine.log``."""
        return self.root / "engines" / backend_id

    def tunnel(self, backend_id: str) -> Path:
        """Folder of the SSH tunnel to one backend: ``process.json``, ``status.json`` and ``ssh.log``."""
        return self.root / "tunnels" / backend_id

    @property
    def runtimes(self) -> Path:
        """Virtual environments that engines run in, one per runtime and version."""
        return self.root / "runtimes"

    @property
    def models(self) -> Path:
        """Model folders prepared by Signalbox."""
        return self.root / "models"
