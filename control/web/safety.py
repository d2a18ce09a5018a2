"""Who may ask and what the browser may do: Host allow-list, reading methods only, strict headers."""

from __future__ import annotations

from flask import Request, Response

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
METHODS = ("GET", "HEAD")


def allowed_hosts(host: str, port: int) -> frozenset[str]:
    """Values of the Host header that we answer, in lower case. Anything else may be a rebound DNS name."""
    own = f"[{host.strip('[]')}]" if ":" in host else host.lower()
    names = {own, "localhost", "127.0.0.1", "[::1]"}
    hosts = {f"{name}:{port}" for name in names}
    return frozenset(hosts | names if port == 80 else hosts)


def text_answer(status: int, text: str) -> Response:
    """A plain text answer of one line."""
    return Response(text + "\n", status=status, content_type="text/plain; charset=utf-8")


def refuse_strangers(request: Request, hosts: frozenset[str]) -> Response | None:
    """The refusal for a wrong Host, a method that writes, or another site's page calling the API; None when welcome."""
    if request.headers.get("Host", "").lower() not in hosts:
        return text_answer(
            403,
            "This page answers only under the address that it listens on: open http://"
            + min(hosts)  # digits sort first: 127.0.0.1
            + "/. Over SSH, forward the same port number.",
        )
    if request.method not in METHODS:
        answer = text_answer(405, "This page only shows things: use GET. Changes are made with the signalbox command.")
        answer.headers["Allow"] = ", ".join(METHODS)
        return answer
    site = request.headers.get("Sec-Fetch-Site", "none")
    if request.path.startswith("/api/") and site not in ("none", "same-origin"):
        return text_answer(403, "Another site's page asked for this. Open the address yourself.")
    return None


def with_safe_headers(response: Response) -> Response:
    """Add the headers that every answer carries."""
    headers = response.headers
    headers["Content-Security-Policy"] = CONTENT_SECURITY_POLICY
    headers["X-Content-Type-Options"] = "nosniff"
    headers["Referrer-Policy"] = "no-referrer"
    headers["Cross-Origin-Resource-Policy"] = "same-origin"
    headers["Cross-Origin-Opener-Policy"] = "same-origin"
    headers["Cache-Control"] = "no-cache" if response.mimetype in ("text/css", "text/javascript") else "no-store"
    return response
