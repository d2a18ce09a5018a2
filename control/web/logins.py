"""Who may open the page: a file of names with password hashes, one ``NAME:HASH`` per line."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path

from werkzeug.security import check_password_hash, generate_password_hash

from control.edge.files import write
from control.errors import ControlError

#: A name stands in the audit log and on the page.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_HASH = re.compile(r"scrypt:\d+:\d+:\d+\$[^$\s]+\$[0-9a-f]+")
SHORTEST = 10
_HEAD = "# Who may open the page. `signalbox page-login NAME` adds and changes a line, --remove takes it out.\n"
#: Compared when the name is unknown: an answer must not tell by its time which names there are.
_NOBODY = generate_password_hash("nobody")


def read_logins(path: Path) -> dict[str, str]:
    """Name → hash. Raises ControlError for a file that cannot be read, is empty, or has a line that is no login."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ControlError(f"the logins in {path} cannot be read: {error}", "Correct control.login.") from error
    found: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.startswith("#"):
            continue
        name, _, hashed = line.strip().partition(":")
        if not _NAME.fullmatch(name) or not _HASH.fullmatch(hashed):
            hint = "`signalbox page-login NAME` writes such lines; a password itself does not belong here."
            raise ControlError(f"{path}:{number} is no login (NAME:HASH)", hint)
        found[name] = hashed
    if not found:
        raise ControlError(f"{path} has no login", "`signalbox page-login NAME` adds one.")
    return found


def set_login(path: Path, name: str, password: str | None) -> None:
    """Give ``name`` a password, or with None take its line out. Raises ControlError, having changed nothing."""
    if not _NAME.fullmatch(name):
        raise ControlError(f"{name[:80]!r} cannot be a login's name", "Use letters, digits and any of . _ @ - in it.")
    if password is not None and len(password) < SHORTEST:
        raise ControlError(f"the password is shorter than {SHORTEST} characters", "Choose a longer one.")
    found = read_logins(path) if path.exists() and _has_lines(path) else {}
    if password is not None:
        found[name] = generate_password_hash(password)
    elif found.pop(name, None) is None:
        raise ControlError(f"there is no login {name!r} in {path}", f"There are: {', '.join(found) or 'none'}.")
    write(path, _HEAD + "".join(f"{one}:{hashed}\n" for one, hashed in found.items()), mode=0o600)


def _has_lines(path: Path) -> bool:
    return any(line.strip() and not line.startswith("#") for line in path.read_text(encoding="utf-8").splitlines())


def right(logins: Mapping[str, str], name: str, password: str) -> bool:
    """Whether this is the password of ``name``; takes as long for a name that is not there."""
    return check_password_hash(logins.get(name, _NOBODY), password) and name in logins


def mark(hashed: str) -> str:
    """Names a password in a session: a session of an older password ends."""
    return hashlib.sha256(hashed.encode()).hexdigest()[:16]
