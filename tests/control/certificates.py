"""Certificates for tests, made on the spot."""

from __future__ import annotations

from pathlib import Path

import trustme


def make_certificate(certificate: Path, key: Path, *, authority: Path | None = None) -> None:
    """Write a new certificate for 127.0.0.1 and its key; ``authority``: where to write the CA that signed it."""
    certificate.parent.mkdir(parents=True, exist_ok=True)
    ca = trustme.CA()
    issued = ca.issue_cert("127.0.0.1")
    key.write_bytes(issued.private_key_pem.bytes())
    certificate.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    if authority is not None:
        ca.cert_pem.write_to_path(str(authority))
