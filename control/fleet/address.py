"""Addresses as fleet.yaml writes them, taken apart."""

from __future__ import annotations

import ipaddress
import re

_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?")
_DEFAULT_PORTS = {"http": 80, "https": 443, "redis": 6379, "rediss": 6379}
_EVERYWHERE = {"0.0.0.0", "::"}


def split_listen(text: str) -> tuple[str, int]:
    """``HOST:PORT`` or ``[V6]:PORT`` as host (without brackets) and port."""
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)


def split_url(url: str) -> tuple[str, str, int]:
    """Scheme, host (without brackets) and port of a backend's url; the port is the scheme's own when none is given."""
    scheme, _, rest = url.rstrip("/").partition("://")
    match = re.fullmatch(r"(\[[^\]]*\]|[^:]*)(?::([0-9]+))?", rest)
    if match is None:
        raise ValueError(f"{url!r} is not a backend url")
    return scheme, match[1].strip("[]"), int(match[2]) if match[2] else _DEFAULT_PORTS[scheme]


def ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The IP address that ``host`` is, or None for a name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach ``host``."""
    address = ip(host)
    return host.lower() == "localhost" if address is None else address.is_loopback


def is_host(host: str) -> bool:
    """Whether ``host`` is an IP address or can be a host name. ``999.1.1.1`` is neither."""
    if ip(host) is not None:
        return True
    labels = host.split(".")
    return len(host) <= 253 and all(map(_LABEL.fullmatch, labels)) and not labels[-1].isdigit()


def is_host_pattern(text: str) -> bool:
    """Whether ``text`` is a host name or an IP address, or ``*.`` and a host name."""
    host = text.removeprefix("*.")
    return is_host(host) and (host == text or ip(host) is None)


def overlap(one: str, other: str) -> bool:
    """Whether listening on both hosts, with one port, is impossible on one machine."""
    first, second = (str(ip(_plain(host)) or host.lower()) for host in (one, other))
    return first == second or bool({first, second} & _EVERYWHERE)


def _plain(host: str) -> str:
    return "127.0.0.1" if host.lower() == "localhost" else host
