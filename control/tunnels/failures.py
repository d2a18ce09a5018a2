"""Why ssh ended, in one sentence and with the cure, from what it said. Pure.

The texts are those of OpenSSH's client (ssh.c, sshconnect.c, sshconnect2.c, clientloop.c, channels.c, readconf.c).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from control.tunnels.arguments import ALIVE_COUNT, ALIVE_SECONDS, Tunnel, place

#: The engine does not listen: the tunnel is well.
NOBODY = re.compile(r"channel \d+: open failed: connect failed")
#: The other side wants no forwarding.
FORBIDDEN = re.compile(r"channel \d+: open failed: administratively prohibited")
_OPEN = re.compile(r"channel \d+: open failed: ")
_NO_USE = re.compile(r"^\s*$|^Warning: Permanently added|^Authenticated to |^Pseudo-terminal|^\*\*|^debug\d:")


@dataclass(frozen=True)
class Failure:
    """``by_hand``: only a person can change it, so that trying again soon would only fill the other side's log."""

    message: str
    cure: str
    by_hand: bool = False

    def __str__(self) -> str:
        return f"{self.message}. {self.cure}".strip()


def explain(lines: Iterable[str], tunnel: Tunnel, ending: str = "") -> Failure:
    """What the last lines of ssh mean. ``ending``: how it ended, for when it said nothing."""
    said = [line.strip() for line in lines if not _NO_USE.search(line)]
    text = "\n".join(said)
    for pattern, make in _KNOWN:
        match = re.search(pattern, text, re.MULTILINE)
        if match is not None:
            return make(match, tunnel)
    last = next((line for line in reversed(said) if not _OPEN.match(line)), "")
    return Failure(_plain(f"ssh to {tunnel.target} ended: {last or ending or 'it says nothing'}"), "")


def _plain(text: str) -> str:
    return text.rstrip(". ")


def _unknown_key(_: re.Match[str], tunnel: Tunnel) -> Failure:
    message = f"the host key of {tunnel.target} is not known on this machine"
    return Failure(message, f"Connect once by hand and compare the fingerprint: {tunnel.target.command()}", True)


def _changed_key(_: re.Match[str], tunnel: Tunnel) -> Failure:
    target = tunnel.target
    name = f"[{target.host}]:{target.port}" if target.port not in (None, 22) else target.host
    cure = f"If the machine was made anew: ssh-keygen -R '{name}', then connect once by hand: {target.command()}"
    return Failure(f"{target} has another host key than before: it may be another machine", cure, True)


def _denied(match: re.Match[str], tunnel: Tunnel) -> Failure:
    cure = (
        f"Give it this user's public key (`{tunnel.target.command('ssh-copy-id')}`); a key with a passphrase needs "
        f"ssh-agent. `{tunnel.target.command()}` must get in without a question."
    )
    return Failure(f"{tunnel.target} does not let this user in (it takes: {match[1]})", cure, True)


def _key_file(match: re.Match[str], tunnel: Tunnel) -> Failure:
    cure = f"Others may read it: chmod 600 {match[1]}"
    return Failure(f"ssh does not use the key {match[1]}, so {tunnel.target} lets nobody in", cure, True)


def _too_many(_: re.Match[str], tunnel: Tunnel) -> Failure:
    cure = f"Name the right key in ssh_config: Host {tunnel.target.host}, IdentityFile ..., IdentitiesOnly yes"
    return Failure(f"ssh offered {tunnel.target} too many keys", cure, True)


def _forbidden(_: re.Match[str], tunnel: Tunnel) -> Failure:
    message = f"the SSH server of {tunnel.target} does not forward to {place(tunnel.remote)}"
    cure = "Allow it in its sshd_config (AllowTcpForwarding yes, PermitOpen any), and in authorized_keys."
    return Failure(message, cure, True)


def _local(match: re.Match[str], tunnel: Tunnel) -> Failure:
    if "in use" in match[0]:
        return Failure(f"{place(tunnel.local)} is in use on this machine", _other_port(tunnel))
    return Failure(f"this user may not listen on {place(tunnel.local)}", _other_port(tunnel), True)


def _other_port(tunnel: Tunnel) -> str:
    return f"Give {tunnel.id} another port, or its host another loopback address (address: 127.0.0.2)."


def _refused(match: re.Match[str], tunnel: Tunnel) -> Failure:
    cure = "Does the machine run, is this its SSH port, and does sshd run there?"
    return Failure(f"nothing listens at {match[1]} port {match[2]} (connection refused)", cure)


def _silent(match: re.Match[str], tunnel: Tunnel) -> Failure:
    cure = "Does the machine run, and does a firewall let this machine in?"
    return Failure(f"{match[1]} port {match[2]} cannot be reached ({match[3].lower()})", cure)


def _no_name(match: re.Match[str], tunnel: Tunnel) -> Failure:
    cure = "Correct it under hosts in fleet.yaml, or add it to ssh_config."
    return Failure(f"there is no machine called {match[1]}: {_plain(match[2].lower())}", cure)


def _lost(_: re.Match[str], tunnel: Tunnel) -> Failure:
    return Failure(f"{tunnel.target} has not answered for {ALIVE_SECONDS * ALIVE_COUNT} s", "Does its network work?")


def _closed(_: re.Match[str], tunnel: Tunnel) -> Failure:
    cure = "Its sshd ended, or refuses so many logins at once (MaxStartups, a ban after failed logins)."
    return Failure(f"{tunnel.target} closed the connection", cure)


def _option(match: re.Match[str], tunnel: Tunnel) -> Failure:
    return Failure(f"ssh does not take its configuration: {_plain(match[0])}", "Correct that file.", True)


#: What stands first counts: ssh often says two things, and the second is the consequence.
_KNOWN = (
    (r"Bad configuration option.*|Bad owner or permissions on .*|terminating, \d+ bad configuration options", _option),
    (r"REMOTE HOST IDENTIFICATION HAS CHANGED|REVOKED HOST KEY", _changed_key),
    (r"^Host key verification failed", _unknown_key),
    (r"^Load key \"(.+)\": bad permissions", _key_file),
    (r"Permission denied \((.+)\)", _denied),
    (r"Too many authentication failures", _too_many),
    (FORBIDDEN.pattern, _forbidden),
    (r"^bind .*: (?:Address already in use|Permission denied)|^Privileged ports can only be forwarded", _local),
    (r"Could not resolve hostname ([^:]+): (.*)", _no_name),
    (r"connect to host (\S+) port (\d+): Connection refused", _refused),
    (r"connect to host (\S+) port (\d+): (.+)", _silent),
    (r"Connection to (\S+) port (\d+) (timed out)", _silent),
    (r"Timeout, server \S+ not responding", _lost),
    (r"closed by remote host|Connection (?:closed|reset) by|Connection reset|Broken pipe|banner exchange", _closed),
)
