"""Fuzz both body scanners at length and write docs/figures/fuzz.json.

FUZZ_DOCUMENTS (default 200,000, for each scanner) and FUZZ_SEED as in the tests. Exit status 1 on a mismatch, with
nothing written.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.fuzz import judge

TARGET = judge.ROOT / "docs" / "figures" / "fuzz.json"
SCANNERS = ("lua/edge/json_scan.lua", "lua/edge/multipart.lua", "tests/fuzz")


def output_of(*command: str) -> str:
    """Return what a command prints."""
    return subprocess.run(command, cwd=judge.ROOT, check=True, capture_output=True, text=True).stdout.strip()


def figures(tally: judge.Tally) -> dict[str, Any]:
    """Return one run's counts for the file."""
    return {
        "documents": tally.documents,
        "valid": tally.valid,
        "mismatches": len(tally.mismatches),
        "refusals": {code: count for code, count in sorted(tally.refusals.items()) if code[0] != "("},
        "not_valid": {code: count for code, count in sorted(tally.refusals.items()) if code[0] == "("},
        "seed": tally.seed,
        "seconds": round(tally.seconds, 1),
    }


def main() -> int:
    """Run, print, and write the figures; return the exit status."""
    count = int(os.environ.get("FUZZ_DOCUMENTS", "200000"))
    seed = judge.seed_from_environment()
    with tempfile.TemporaryDirectory() as folder:
        print(f"json_scan against json.loads, {count} documents, FUZZ_SEED={seed}", flush=True)
        documents = judge.fuzz_json(count, seed, Path(folder))
        print(f"multipart against Starlette, {count} forms, FUZZ_SEED={seed}", flush=True)
        forms = judge.fuzz_forms(count, seed, Path(folder))
    result = {
        "json": figures(documents),
        "multipart": figures(forms),
        "commit": output_of("git", "rev-parse", "HEAD"),
        "scanners_changed_since_commit": bool(output_of("git", "status", "--porcelain", *SCANNERS)),
        "versions": {
            "luajit": output_of(judge.luajit(), "-v").split(" -- ")[0],
            "python": platform.python_version(),
            "starlette": version("starlette"),
            "python-multipart": version("python-multipart"),
        },
        "machine": {"system": platform.platform(terse=True), "processors": os.cpu_count()},
    }
    print(json.dumps(result, indent=2))
    if mismatches := documents.mismatches + forms.mismatches:
        print("\n".join(mismatches[:10]), file=sys.stderr)
        return 1
    TARGET.write_text(json.dumps(result, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
