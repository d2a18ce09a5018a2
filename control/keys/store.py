"""Makes and changes API keys in keys.yaml: one at a time under a lock, written atomically, readable for its owner."""

from __future__ import annotations

import contextlib
import copy
import fcntl
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError
from yaml.nodes import MappingNode

from control.errors import FleetError, KeysError
from control.fleet.load import LoadedFleet
from control.fleet.messages import did_you_mean, shown
from control.fleet.shapes import PATTERN_WORDS, Identifier
from control.fleet.source import build, compose_large, read
from control.keys.edit import CannotEdit, Patch, Value, add, apply, empty, mapping_at, quoted, remove, replace
from control.keys.load import KEYS, LoadedKeys, checked, keys_file, parse_keys
from control.keys.schema import Moment
from control.keys.secrets import hash_of, looks_secret, new_secret

DEFAULT_NAME = "keys.yaml"
#: Seconds to wait for another command, and how often an editor that saves meanwhile is waited for.
LOCK_TIMEOUT, TRIES = 10.0, 3
_HEAD = (
    "# API keys of clients: hashes only. `signalbox keys --help` changes them; docs/keys.md tells what may stand here."
)


@dataclass(frozen=True)
class Wishes:
    """What `signalbox keys create` may be told of a new key."""

    models: tuple[str, ...] = ()
    priority: str | None = None
    weight: int | None = None
    expires: str | None = None
    limits: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class _Edit:
    """What becomes of the text, and what it must say then."""

    patches: list[Patch]
    data: dict[str, Any]


_Change = Callable[[LoadedKeys], _Edit]


def locate(loaded: LoadedFleet) -> Path:
    """The keys.yaml of this fleet: the one that it names, or the usual one beside fleet.yaml."""
    return keys_file(loaded) or loaded.file(DEFAULT_NAME)


def read_keys(loaded: LoadedFleet) -> LoadedKeys:
    """The keys, also when fleet.yaml does not ask for them (yet). Raises KeysError when there is no file."""
    path = locate(loaded)
    if not path.exists():
        raise KeysError(f"there is no {path}, so there are no keys", "`signalbox keys create NAME` makes the first.")
    return parse_keys(read(path, KEYS), path, loaded.fleet)


def create(loaded: LoadedFleet, name: str, wishes: Wishes) -> tuple[str, LoadedKeys]:
    """Make a key; returns its secret, which is nowhere else, and all keys as they are now.

    Raises KeysError when the name is taken, FleetError when a wish cannot be.
    """
    _check_name(name)
    secret = new_secret()
    members: list[tuple[str, Value]] = [("hash", hash_of(secret)), ("ends", quoted(secret[-4:]))]
    if wishes.models:
        members.append(("models", "[" + ", ".join(quoted(model) for model in wishes.models) + "]"))
    members += [("priority", wishes.priority)] if wishes.priority else []
    members += [("weight", str(wishes.weight))] if wishes.weight else []
    members += [("limits", [(kind, str(count)) for kind, count in wishes.limits.items()])] if wishes.limits else []
    members += [("expires", quoted(wishes.expires))] if wishes.expires else []

    def change(old: LoadedKeys) -> _Edit:
        if name in old.keys:
            raise KeysError(
                f"there is a key {name!r} already", f"`signalbox keys rotate {name}` gives it a new secret."
            )
        data = _copy(old)
        data["keys"][name] = {"hash": hash_of(secret), "ends": secret[-4:]}
        optional = {"models": list(wishes.models), "priority": wishes.priority, "weight": wishes.weight,
                    "limits": dict(wishes.limits), "expires": wishes.expires}  # fmt: skip
        data["keys"][name] |= {key: value for key, value in optional.items() if value}
        flow = bool(mapping_at(old.root).flow_style)
        return _Edit(add(old.text, mapping_at(old.root, "keys"), name, members, flow=flow), data)

    return secret, _update(loaded, change)


def _check_name(name: str) -> None:
    if looks_secret(name):
        raise KeysError("a key's name stands in logs, and this one looks like a key itself", "Choose another name.")
    try:
        TypeAdapter(Identifier).validate_python(name)
    except ValidationError as error:
        wanted = PATTERN_WORDS[error.errors()[0]["ctx"]["pattern"]]
        raise KeysError(f"{shown(name)} cannot be the name of a key", f"It must be {wanted}.") from None


def revoke(loaded: LoadedFleet, name: str) -> LoadedKeys:
    """Remove a key. Raises KeysError when there is none of this name."""

    def change(old: LoadedKeys) -> _Edit:
        data = _copy(old)
        _entry(old, data, name)
        del data["keys"][name]
        mapping = mapping_at(old.root, "keys")
        if len(mapping.value) > 1:
            return _Edit(remove(old.text, mapping, name), data)
        return _Edit(empty(old.text, mapping_at(old.root), "keys"), data)

    return _update(loaded, change)


def rotate(loaded: LoadedFleet, name: str, grace: int = 0) -> tuple[str, LoadedKeys]:
    """Give a key a new secret, and return it; the one before lets in for ``grace`` more seconds.

    Of one before that nothing is left. Raises KeysError when there is no key of this name.
    """
    secret = new_secret()
    until = Moment(int(time.time()) + grace).text()

    def change(old: LoadedKeys) -> _Edit:
        data = _copy(old)
        entry = _entry(old, data, name)
        mapping = mapping_at(old.root, "keys", name)
        previous = {"hash": entry["hash"], "until": until}
        patches = replace(mapping, "hash", hash_of(secret))
        patches += _set(old.text, mapping, "ends", quoted(secret[-4:]), "ends" in entry)
        patches += remove(old.text, mapping, "previous") if entry.pop("previous", None) is not None else []
        entry |= {"hash": hash_of(secret), "ends": secret[-4:]}
        if grace:
            entry["previous"] = previous
            patches += add(old.text, mapping, "previous", list(previous.items()))
        return _Edit(patches, data)

    return secret, _update(loaded, change)


def set_enabled(loaded: LoadedFleet, name: str, enabled: bool) -> LoadedKeys:
    """Switch a key on or off. Raises KeysError when there is no key of this name."""

    def change(old: LoadedKeys) -> _Edit:
        data = _copy(old)
        entry = _entry(old, data, name)
        if old.keys[name].enabled == enabled:
            return _Edit([], data)
        mapping, there = mapping_at(old.root, "keys", name), "enabled" in entry
        entry["enabled"] = enabled
        return _Edit(_set(old.text, mapping, "enabled", "true" if enabled else "false", there), data)

    return _update(loaded, change)


def _set(text: str, mapping: MappingNode, key: str, value: str, there: bool) -> list[Patch]:
    return replace(mapping, key, value) if there else add(text, mapping, key, value)


def _copy(old: LoadedKeys) -> dict[str, Any]:
    return copy.deepcopy(old.data)


def _entry(old: LoadedKeys, data: dict[str, Any], name: str) -> dict[str, Any]:
    if name not in old.keys:
        raise KeysError(f"there is no key {name!r}", did_you_mean(name, old.keys, "`signalbox keys list` shows all."))
    entry: dict[str, Any] = data["keys"][name]
    return entry


def _update(loaded: LoadedFleet, change: _Change) -> LoadedKeys:
    """Apply ``change`` to keys.yaml, which is made when there is none; again when somebody else saved it meanwhile."""
    path = locate(loaded).resolve()  # a link stays one
    with _locked(path):
        for _ in range(TRIES):
            before = read(path, KEYS) if path.exists() else None
            old = parse_keys(f"{_HEAD}\nkeys: {{}}\n" if before is None else before, path, loaded.fleet)
            new = _changed(old, change, loaded)
            if new.text == before or _write(path, new.text, before):
                return new
    raise KeysError(f"{path} was changed by somebody else again and again", "Close it in your editor, then try again.")


def _changed(old: LoadedKeys, change: _Change, loaded: LoadedFleet) -> LoadedKeys:
    """The keys after ``change``; what the new text says is compared with what it should say."""
    by_hand = KeysError(
        f"{old.path} is written in a way that this command cannot change (anchors, tags, unusual blocks)",
        "Change it by hand, then run `signalbox reload`; docs/keys.md tells what may stand there.",
    )
    try:
        edit = change(old)
        text = apply(old.text, edit.patches)
        root = compose_large(text, old.path)
        source = build(root, old.path, KEYS)
    except (CannotEdit, FleetError):
        raise by_hand from None
    if source.data != edit.data or source.problems:
        raise by_hand
    try:
        return checked(text, root, source, old.path, loaded.fleet)
    except FleetError as error:  # the command asked for what cannot be, a model that is not there for example
        said = [f"{problem.key}: {problem.message} {problem.suggestion}".strip() for problem in error.problems]
        raise KeysError("\n".join(said), f"Nothing was written to {old.path}.") from None


def _write(path: Path, text: str, before: str | None) -> bool:
    """Put ``text`` in place of ``before``; False, and nothing done, when the file says something else by now."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", newline="") as file:
            owner = path.stat() if path.exists() else path.parent.stat()
            if os.geteuid() == 0:  # who owns fleet.yaml goes on owning its keys
                os.fchown(file.fileno(), owner.st_uid, owner.st_gid)
            if before is not None:  # a group that could read it still can, others never
                os.fchmod(file.fileno(), owner.st_mode & 0o660 | 0o600)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if (read(path, KEYS) if path.exists() else None) != before:
            return False
        temporary.replace(path)
        return True
    except OSError as error:
        hint = "Check that folder, its permissions and its free space."
        raise KeysError(f"{path} could not be written: {error.strerror}", hint) from error
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock beside keys.yaml: commands that change it come one after the other."""
    try:
        file = path.with_name(f".{path.name}.lock").open("a")
    except OSError as error:
        raise KeysError(
            f"{path} could not be written: {error.strerror}", "Check its folder and permissions."
        ) from error
    with file:
        deadline = time.monotonic() + LOCK_TIMEOUT
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise KeysError(f"another command is changing {path}", "Wait for it, then try again.") from None
                time.sleep(0.05)
        yield
