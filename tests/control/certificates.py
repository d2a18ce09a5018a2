"""Certificates for tests, made on the spot."""

from __future__ import annotations

from pathlib import Path

import trustme


def make_certificate(certificate: Path, key: Path, *names: str) -> None:
    """Write a new certificate for ``names`` (default 127.0.0.1), signed by an authority of its own, and its key."""
    certificate.parent.mkdir(parents=True, exist_ok=True)
    issued = trustme.CA().issue_cert(*(names or ("127.0.0.1",)))
    key.write_bytes(issued.private_key_pem.bytes())
    certificate.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
