"""What one control plane gives to edges elsewhere (pure): fleet.json and the keys as rendered, with a version.

No secret is in it: of engines' API keys the names of their files, relative to fleet.yaml; of clients' keys the hashes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from control.edge.render import Taken
from control.edge.snapshot import OWN_TO_A_MACHINE, Snapshot, without_version
from control.errors import SharingError
from control.fleet.resolve import ResolvedBackend
from control.fleet.shapes import EnvironmentName, Identifier, ModelName
from control.keys.entries import Entries

#: Of the document's form: an edge takes no other.
FORMAT = 1


@dataclass(frozen=True)
class Document:
    """``version`` grows with every change. ``release``: of the Signalbox that has rendered it. ``source``: whose it is.

    ``keys`` is None when the fleet asks for none.
    """

    version: int
    release: str
    source: str
    fleet: Snapshot
    keys: Entries | None

    def digest(self) -> str:
        """SHA-256 of all but the version: two of the same content need no second one."""
        content = [self.release, without_version(self.fleet), self.keys]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def encode(self) -> str:
        """One text for one document."""
        return json.dumps(
            {
                "format": FORMAT, "version": self.version, "release": self.release, "source": self.source,
                "fleet": self.fleet, "keys": self.keys,
            }
        )  # fmt: skip


class _Loose(BaseModel):
    """Newer control planes may say more; the edge itself judges the rest when it is told."""

    model_config = ConfigDict(extra="ignore", strict=True)


class _Backend(_Loose):
    """What this machine renders into nginx.conf, or opens, must have its exact form."""

    model: ModelName
    scheme: Literal["http", "https"]
    host: Annotated[str, Field(pattern=r"^[0-9A-Za-z:._-]{1,253}$")]
    port: Annotated[int, Field(ge=1, le=65535)]
    name: str
    served: list[str]
    key_file: str | None = None
    key_env: EnvironmentName | None = None
    ca: str | None = None
    limit: int | None = None
    weight: int = 1
    tier: int = 1
    pool: Identifier | None = None


class _Fleet(_Loose):
    version: int
    names: dict[str, str]
    models: Annotated[dict[str, dict[str, Any]], Field(min_length=1)]
    backends: dict[Identifier, _Backend]


class _Document(_Loose):
    format: int
    version: Annotated[int, Field(ge=1)]
    release: str
    source: str
    fleet: _Fleet
    keys: dict[Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")], dict[str, Any]] | None


def written(version: int, release: str, source: str, fleet: Snapshot, backends: Iterable[ResolvedBackend],
            keys: Entries | None, folder: Path) -> Document:  # fmt: skip
    """The document of a fleet that was rendered in ``folder``: paths below it become relative."""
    content = {
        name: {key: value for key, value in entry.items() if key not in OWN_TO_A_MACHINE}
        for name, entry in fleet["backends"].items()
    }
    for backend in backends:
        for name, path in (("key_file", backend.key_file), ("ca", backend.ca)):
            if path is not None and backend.id in content:
                inside = path.is_relative_to(folder)
                content[backend.id][name] = path.relative_to(folder).as_posix() if inside else str(path)
    shared = {key: value for key, value in fleet.items() if key != "dns"}
    return Document(version, release, source, {**shared, "version": version, "backends": content}, keys)


def read(text: str) -> Document:
    """The document in ``text``. Raises SharingError with what is wrong with it."""
    try:
        data = json.loads(text)
        if isinstance(data, dict) and data.get("format") != FORMAT:
            raise SharingError(
                f"it has the form {data.get('format')!r}, and this release reads {FORMAT}",
                "Give this machine and the control plane's the same release of Signalbox.",
            )
        _Document.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise SharingError(
            f"it is damaged at {place or 'its root'}: {first['msg']}", "Publish it anew: `signalbox reload`."
        ) from None
    except ValueError:
        raise SharingError("it is no JSON", "Publish it anew: `signalbox reload` where the control plane is.") from None
    return Document(data["version"], data["release"], data["source"], data["fleet"], data["keys"])


def taken(document: Document, folder: Path) -> Taken:
    """The fleet of a document as the machine resolves it whose edge file lies in ``folder``.

    Raises SharingError when it names a file that is not below ``folder``: whoever may write to Redis must not be able
    to send any file of this machine to an engine of theirs.
    """
    backends = [_resolved(name, entry, folder) for name, entry in document.fleet["backends"].items()]
    return Taken({**document.fleet, "version": document.version, "published": document.version}, tuple(backends))


def missing_files(told: Taken) -> list[str]:
    """Files of engines that this machine lacks, in words; CAs apart: without those nginx does not start at all."""
    return [
        f"{backend.id}: there is no {backend.key_file} with its API key on this machine"
        for backend in told.backends
        if backend.key_file is not None and not backend.key_file.exists()
    ]


def only_here(backends: Sequence[ResolvedBackend]) -> list[str]:
    """Ids of backends whose address leads every machine to itself."""
    return [
        backend.id for backend in backends if backend.host.startswith("127.") or backend.host in ("localhost", "::1")
    ]


def _resolved(identity: str, entry: dict[str, Any], folder: Path) -> ResolvedBackend:
    def file(name: str) -> Path | None:
        value = entry.get(name)
        if value is None:
            return None
        path = PurePosixPath(value)
        if path.is_absolute() or ".." in path.parts:
            raise SharingError(
                f"the {name} of {identity}, {value}, is not below the fleet's folder",
                "Where the control plane is, put it beside or below fleet.yaml, and name it relative to that.",
            )
        return folder / path

    return ResolvedBackend(
        id=identity, model=entry["model"], scheme=entry["scheme"], host=entry["host"], port=entry["port"], ours=False,
        name=entry["name"], served=tuple(entry["served"]), key_file=file("key_file"), key_env=entry.get("key_env"),
        ca=file("ca"), limit=entry.get("limit"), weight=entry.get("weight", 1), tier=entry.get("tier", 1),
        pool=entry.get("pool"),
    )  # fmt: skip
