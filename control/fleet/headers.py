"""Headers of requests that fleet.yaml may not speak of, and those that need no word."""

from __future__ import annotations

#: Headers that say who somebody is, how a connection is handled, or what only the edge may say.
_OWN = {
    "authorization", "proxy-authorization", "proxy-authenticate", "x-api-key", "api-key", "cookie", "set-cookie",
    "host", "connection", "proxy-connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "expect",
    "content-length", "content-encoding", "accept-encoding", "forwarded", "via", "x-real-ip", "x-data-parallel-rank",
    "x-vllm-priority",
}  # fmt: skip
_OWN_PREFIXES = ("x-forwarded-", "x-signalbox-")
_PASSED_ANYWAY = {
    "accept", "content-type", "user-agent", "x-request-id", "traceparent", "tracestate", "anthropic-version",
    "anthropic-beta",
}  # fmt: skip


def is_edges_own(header: str) -> bool:
    """Whether a header is the edge's own business, in any spelling: no engine gets it, no rule reads it."""
    name = header.lower()
    return name in _OWN or name.startswith(_OWN_PREFIXES)


def passes_anyway(header: str) -> bool:
    """Whether engines get a header without being told so, in any spelling."""
    return header.lower() in _PASSED_ANYWAY
