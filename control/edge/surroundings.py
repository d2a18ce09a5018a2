"""What rendering must know of this machine: who we are, how many files we may open, who answers DNS."""

from __future__ import annotations

import grp
import ipaddress
import os
import pwd
import resource
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

RESOLV_CONF = Path("/etc/resolv.conf")


@dataclass(frozen=True)
class User:
    """The account that workers run as when the master is root."""

    name: str
    group: str


@dataclass(frozen=True)
class Surroundings:
    """Facts of the machine. Tests give their own, so that a rendering depends on nothing else."""

    user: User | None
    open_files: int | None
    nameservers: tuple[str, ...]


def here(fleet_file: Path, worker_files: Iterable[Path]) -> Surroundings:
    """The facts of this machine. ``worker_files``: what workers must reach (Lua, engine keys, the state folder)."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return Surroundings(
        user=worker_user(fleet_file, worker_files),
        open_files=None if hard == resource.RLIM_INFINITY else hard,
        nameservers=nameservers(RESOLV_CONF),
    )


def worker_user(fleet_file: Path, worker_files: Iterable[Path]) -> User | None:
    """Who the workers run as; None when we are not root, since nginx can then only stay who it is.

    A master that is root reads the admin token and the TLS key, then its workers become somebody else: the owner of
    fleet.yaml, or ``nobody`` when that is root. Workers read engine keys (also rotated ones, while running) and write
    request bodies below the state folder, so where neither can reach those, as in a checkout below /root, they stay
    root: an edge that fails on its first large body is no safer.
    """
    if os.geteuid() != 0:
        return None
    files = [path.resolve() for path in worker_files]
    for account in (_account(fleet_file.stat().st_uid), _account_named("nobody")):
        if account is not None and account.pw_uid != 0 and all(_can_read(account, path) for path in files):
            return User(account.pw_name, grp.getgrgid(account.pw_gid).gr_name)
    return User("root", "root")


def _account(uid: int) -> pwd.struct_passwd | None:
    """The account, when both it and its group have names here (a file from another machine may have neither)."""
    try:
        account = pwd.getpwuid(uid)
        grp.getgrgid(account.pw_gid)
    except KeyError:
        return None
    return account


def _account_named(name: str) -> pwd.struct_passwd | None:
    try:
        return _account(pwd.getpwnam(name).pw_uid)
    except KeyError:
        return None


def _can_read(account: pwd.struct_passwd, path: Path) -> bool:
    """Whether ``account`` can reach and read ``path``. What does not exist yet is made by us, readable."""
    for folder in path.parents:
        if folder.exists() and not _allows(account, folder, 0o1):
            return False
    return not path.exists() or _allows(account, path, 0o1 if path.is_dir() else 0o4)


def _allows(account: pwd.struct_passwd, path: Path, bit: int) -> bool:
    status = path.stat()
    if status.st_uid == account.pw_uid:
        return bool(status.st_mode & (bit << 6))
    if status.st_gid == account.pw_gid:
        return bool(status.st_mode & (bit << 3))
    return bool(status.st_mode & bit)


def nameservers(resolv_conf: Path) -> tuple[str, ...]:
    """The servers of resolv.conf as nginx writes them; without any this machine itself, as resolv.conf(5) says."""
    try:
        lines = resolv_conf.read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    found = []
    for line in lines:
        words = line.split()
        if len(words) >= 2 and words[0] == "nameserver":
            try:
                address = ipaddress.ip_address(words[1])
            except ValueError:
                continue
            if address.version == 6:
                if address.scope_id is None:  # nginx cannot name an interface
                    found.append(f"[{address}]:53")
            else:
                found.append(f"{address}:53")
    return tuple(found) or ("127.0.0.1:53",)
