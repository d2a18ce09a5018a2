"""Who may ask and what the browser may do: Host allow-list, origins, strict headers (login.py has the rest)."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from flask import Request, Response

from control.fleet.address import ip, is_loopback

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
)
READING = ("GET", "HEAD")


@dataclass(frozen=True)
class Addresses:
    """The values of the Host header that the page answers to. Any other name may be a rebound DNS name.

    ``host`` (no brackets) and ``port`` are where it listens, ``url`` where a proxy with TLS offers it.
    """

    host: str
    port: int
    url: str | None = None

    @property
    def names(self) -> frozenset[str]:
        """Allowed values in lower case. On port 80 browsers leave the port out."""
        own = f"[{self.host.strip('[]')}]" if ":" in self.host else self.host.lower()
        names = {own, "localhost", "127.0.0.1", "[::1]"}
        hosts = {f"{name}:{self.port}" for name in names} | (names if self.port == 80 else set())
        return frozenset(hosts | ({self.proxy} if self.proxy else set()))

    @property
    def proxy(self) -> str:
        """The Host header that comes through the proxy; empty without one."""
        if self.url is None:
            return ""
        parts = urlsplit(self.url)
        usual = {"http": 80, "https": 443}[parts.scheme]
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else str(parts.hostname)
        return host if parts.port in (None, usual) else f"{host}:{parts.port}"

    def welcome(self, host: str) -> bool:
        """Whether we answer to this Host. Bound to every address, each of them is ours: only names can be rebound."""
        name, _, port = host.lower().rpartition(":")
        literal = ip(name.strip("[]")) is not None and port == str(self.port)
        return host.lower() in self.names or (literal and not is_loopback(self.host))

    def secure(self, host: str) -> bool:
        """Whether a request with this Host came over TLS, so that its cookie never has to leave it."""
        return str(self.url).startswith("https:") and self.through_proxy(host)

    def through_proxy(self, host: str) -> bool:
        """Whether a request with this Host came through the proxy."""
        return self.url is not None and host.lower() == self.proxy

    def own_origin(self, origin: str) -> bool:
        """Whether a request that changes something comes from a page of ours (its Origin header)."""
        return self.welcome(urlsplit(origin).netloc)


def text_answer(status: int, text: str) -> Response:
    """A plain text answer of one line."""
    return Response(text + "\n", status=status, content_type="text/plain; charset=utf-8")


def refuse_strangers(request: Request, addresses: Addresses) -> Response | None:
    """The refusal for a wrong Host or for another site's page that asks; None when welcome."""
    if not addresses.welcome(request.headers.get("Host", "")):
        return text_answer(
            403,
            "This page answers only under the address that it listens on: open http://"
            + min(addresses.names)  # digits sort first: 127.0.0.1
            + "/. Over SSH, forward the same port number; behind a proxy, name its address in control.url.",
        )
    site = request.headers.get("Sec-Fetch-Site", "none")
    foreign = site not in ("none", "same-origin")
    if request.method not in READING:
        origin = request.headers.get("Origin")
        foreign = foreign or (origin is not None and not addresses.own_origin(origin))
    if foreign and (request.path.startswith("/api/") or request.method not in READING):
        return text_answer(403, "Another site's page asked for this. Open the address yourself.")
    return None


def with_safe_headers(response: Response) -> Response:
    """Add the headers that every answer carries."""
    headers = response.headers
    headers["Content-Security-Policy"] = CONTENT_SECURITY_POLICY
    headers["X-Content-Type-Options"] = "nosniff"
    headers["Referrer-Policy"] = "same-origin"  # with no-referrer, forms of ours would come without an origin
    headers["Cross-Origin-Resource-Policy"] = "same-origin"
    headers["Cross-Origin-Opener-Policy"] = "same-origin"
    headers["Cache-Control"] = "no-cache" if response.mimetype in ("text/css", "text/javascript") else "no-store"
    return response
