"""One edge that takes its fleet from others: its own settings, their models, backends and keys."""

from __future__ import annotations

from dataclasses import dataclass

from control.edge.render import Rendered, render
from control.edge.site import Site, open_site
from control.errors import SharingError
from control.fleet.address import is_loopback, split_listen
from control.fleet.load import LoadedFleet
from control.keys.entries import Entries
from control.sharing import document
from control.sharing.document import Document


@dataclass(frozen=True)
class FollowerSite(Site):
    """A site whose fleet.json and keys are those of ``document``; the rest is its own file's."""

    document: Document | None = None

    def render(self) -> Rendered:
        """Render both files. Raises SharingError when the document does not fit this machine, and as Site does."""
        assert self.document is not None
        told = document.taken(self.document, self.loaded.folder)
        _check_keys(self.loaded, self.document)
        for backend in told.backends:
            if backend.ca is not None and not backend.ca.exists():
                raise SharingError(
                    f"{backend.id}: there is no {backend.ca} on this machine", "Copy the authority there."
                )
        return render(
            self.loaded, self.paths, self.engine.profile, sources=self.sources, surroundings=self.surroundings,
            taken=told,
        )  # fmt: skip

    def keys(self) -> Entries | None:
        """The keys of the document."""
        return self.document.keys if self.document else None

    def cautions(self) -> list[str]:
        """What will not work here, though the fleet as such is right."""
        assert self.document is not None
        told = document.taken(self.document, self.loaded.folder)
        lines = document.missing_files(told)
        here = document.only_here(told.backends)
        if here:
            what = "is an address that leads each machine to itself; give the host its own in fleet.yaml"
            lines.append(f"{', '.join(here[:10])}: 127.0.0.1 {what}")
        return lines


def follower_site(loaded: LoadedFleet, content: Document | None = None) -> FollowerSite:
    """The site of an edge-only file. Raises EdgeError when there is no usable nginx."""
    site = open_site(loaded)
    return FollowerSite(site.loaded, site.paths, site.engine, site.sources, site.surroundings, content)


def _check_keys(loaded: LoadedFleet, content: Document) -> None:
    """Nobody gets in without a key from other machines because a fleet was meant for one machine only."""
    edge = loaded.fleet.edge
    open_to_all = content.keys is None and edge.keys is None
    if open_to_all and not is_loopback(split_listen(edge.listen)[0]):
        raise SharingError(
            f"the fleet asks for no API keys, and {edge.listen} can be reached from other machines",
            f"Make the fleet ask for keys (keys: keys.yaml), or write 'keys: none' under edge in {loaded.path} if the "
            "network is trusted.",
        )
