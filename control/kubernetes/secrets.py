"""Files and variables that are secret: manifests name them, and never hold them. Pure."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path

from control.kubernetes.shapes import Document

#: The Secrets that manifests refer to; ``secrets.sh`` makes them.
ADMIN, FILES, KEYS, VARIABLES = "signalbox-admin", "signalbox-files", "signalbox-keys", "signalbox-variables"
TLS = "signalbox-tls"
#: Where pods see the files.
MOUNTED = Path("/etc/signalbox")
#: Variables whose names say that nobody should read them.
_SECRET_NAME = re.compile(r"(^|_)(TOKEN|KEY|SECRET|PASSWORD|PASS|CREDENTIALS?)(_|$)", re.IGNORECASE)
_HEAD = """\
#!/bin/sh
# Makes or renews the Secrets that the manifests beside this file refer to. Run it where fleet.yaml is, with kubectl at
# the right cluster. It names files and variables, and holds no secret itself.
set -eu
umask 077
folder=$(mktemp -d)
trap 'rm -rf "$folder" "$folder.yaml"' EXIT
# $1: a file; $2: its name in the Secret. Without the newline at the end, which a variable would keep.
take() { printf %s "$(cat "$1")" >"$folder/$2"; }
# The words: what to make, or to renew.
make() {
    kubectl -n "$namespace" create secret "$@" --dry-run=client -o yaml >"$folder.yaml"
    kubectl apply --server-side --force-conflicts -f "$folder.yaml"
    rm -rf "${folder:?}"/* "$folder.yaml"
}
"""


@dataclass
class Secrets:
    """What the manifests of one fleet refer to. ``files``: key in the Secret to the file on this machine."""

    files: dict[str, Path] = field(default_factory=dict)
    tls: list[tuple[Path, Path]] = field(default_factory=list)
    variables: set[str] = field(default_factory=set)

    def file(self, path: Path) -> str:
        """The key under which the Secret ``FILES`` has this file."""
        for key, known in self.files.items():
            if known == path:
                return key
        plain = re.sub(r"[^A-Za-z0-9._-]", "-", path.name)
        key, number = plain, 2
        while key in self.files:
            key, number = f"{number}-{plain}", number + 1
        self.files[key] = path
        return key

    def mounted(self, path: Path) -> Path:
        """Where pods see this file."""
        return MOUNTED / "files" / self.file(path)

    def certificate(self, certificate: Path, key: Path) -> tuple[Path, Path]:
        """Where pods see a certificate and its key."""
        self.tls.append((certificate, key))
        folder = MOUNTED / "tls" / str(len(self.tls) - 1)
        return folder / "tls.crt", folder / "tls.key"

    def variable(self, name: str) -> Document:
        """An environment variable out of the Secret ``VARIABLES``."""
        self.variables.add(name)
        return from_secret(name, VARIABLES, name)

    def script(self, namespace: str, keys_json: str | None) -> str:
        """``secrets.sh``. ``keys_json``: the file beside it with the hashes of API keys, if the fleet asks for any."""
        lines = [
            f"namespace={shlex.quote(namespace)}",
            'kubectl get namespace "$namespace" >/dev/null 2>&1 || kubectl create namespace "$namespace"',
            "",
            "# The token of the edges' admin listener stays as it was made first.",
            f'if ! kubectl -n "$namespace" get secret {ADMIN} >/dev/null 2>&1; then',
            '    openssl rand -hex 32 >"$folder/admin.token"',
            f'    make generic {ADMIN} --from-file="$folder"',
            "fi",
        ]
        if self.files:
            lines += ["", *(f"take {shlex.quote(str(path))} {key}" for key, path in sorted(self.files.items()))]
            lines.append(f'make generic {FILES} --from-file="$folder"')
        for number, (certificate, key) in enumerate(self.tls):
            name, cert = f"{TLS}-{number}", shlex.quote(str(certificate))
            lines += ["", f"make tls {name} --cert={cert} --key={shlex.quote(str(key))}"]
        if self.variables:
            lines.append("")
            for name in sorted(self.variables):
                lines.append(f'printf %s "${{{name}:?set this variable first}}" >"$folder/{name}"')
            lines.append(f'make generic {VARIABLES} --from-file="$folder"')
        if keys_json is not None:
            lines += ["", f'make generic {KEYS} --from-file=keys.json="$(dirname "$0")/{keys_json}"']
        return _HEAD + "\n".join(lines) + "\n"


def secret_name(name: str) -> bool:
    """Whether a variable of this name should stand in no manifest."""
    return _SECRET_NAME.search(name) is not None


def from_secret(variable: str, secret: str, key: str) -> Document:
    """An environment variable whose value stands in a Secret."""
    return {"name": variable, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}
