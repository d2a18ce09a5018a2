"""What can only be seen from within a container of a Docker host: its disk, shared memory, listeners, GPUs and models.

The text of this file is run there by the image's own python3, so it uses the standard library alone, and nothing newer
than Python 3.8. On this machine ``lacking`` serves model folders.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.gguf")
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "tekken.json")
#: What Git leaves in place of a large file that was not fetched.
_POINTER = b"version https://git-lfs"
#: Before the answer, because programs of the image may print too.
MARK = "signalbox-doctor:"
#: Seconds after which a look that hangs (a broken driver, a network disk) ends itself.
LONGEST = 40
#: ``index`` and ``uuid`` are what fleet.yaml may name; memory in MiB.
GPU_FIELDS = "index,uuid,name,memory.total,memory.free,driver_version,compute_cap"
_LISTENING = "0A"


def lacking(folder: Path) -> list[str]:
    """What a model's folder lacks, in words: shards of an index, weights, a tokenizer, what pointers stand for."""
    found = []
    for index in sorted(folder.glob("*.index.json")):
        try:
            shards = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        except (OSError, ValueError, KeyError, AttributeError, TypeError):
            found.append(f"{index.name} cannot be read")
            continue
        found += [f"{shard} is missing" for shard in shards if not (folder / str(shard)).is_file()]
    weights = weight_files(folder)
    if not weights and not found:
        found.append("it has no weights (*.safetensors)")
    found += [f"{path.name} is empty" for path in weights if path.stat().st_size == 0]
    if not any((folder / name).is_file() for name in TOKENIZERS):
        found.append("it has no tokenizer")
    small = [path for path in folder.iterdir() if path.is_file() and path.stat().st_size < 1024]
    found += [f"{path.name} is only Git's pointer to it" for path in sorted(small) if _is_pointer(path)]
    unfinished = [path.name for path in folder.rglob("*.incomplete")]
    return found + [f"{name} was not downloaded to its end" for name in sorted(unfinished)]


def weight_files(folder: Path) -> list[Path]:
    """The files that may hold weights."""
    return [path for pattern in WEIGHTS for path in sorted(folder.glob(pattern))]


def _is_pointer(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_POINTER)) == _POINTER


def model(folder: Path) -> dict[str, Any]:
    """``lacks``: what is wrong with the folder, in words; ``bytes`` of its weights."""
    try:
        if not folder.is_dir():
            return {"lacks": ["there is no such folder"], "bytes": 0}
        if not (folder / "config.json").is_file():
            return {"lacks": ["it has no config.json"], "bytes": 0}
        return {"lacks": lacking(folder), "bytes": sum(path.stat().st_size for path in weight_files(folder))}
    except OSError as error:
        return {"lacks": [f"{error.filename or folder}: {error.strerror}"], "bytes": 0}


def space(path: str) -> dict[str, int] | None:
    """``free`` and ``total`` bytes of the file system at ``path``. In a container, ``/`` lies where images lie."""
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    return {"free": found.f_bavail * found.f_frsize, "total": found.f_blocks * found.f_frsize}


def listeners(text: str) -> list[tuple[str, int]]:
    """Addresses and ports of /proc/net/tcp or tcp6 on which somebody listens."""
    found = []
    for line in text.splitlines()[1:]:
        words = line.split()
        if len(words) > 3 and words[3] == _LISTENING:
            address, _, port = words[1].partition(":")
            found.append((_address(address), int(port, 16)))
    return found


def _address(digits: str) -> str:
    """Hexadecimal 32-bit words, each in the byte order of the machine."""
    packed = b"".join(
        int(digits[start : start + 8], 16).to_bytes(4, sys.byteorder) for start in range(0, len(digits), 8)
    )
    if packed.startswith(b"\0" * 10 + b"\xff\xff"):  # IPv4 on a socket of IPv6
        packed = packed[12:]
    return socket.inet_ntop(socket.AF_INET if len(packed) == 4 else socket.AF_INET6, packed)


def _all_listeners() -> list[tuple[str, int]]:
    found = []
    for name in ("tcp", "tcp6"):
        try:
            found += listeners(Path("/proc/net", name).read_text())
        except OSError:
            continue
    return found


def _is_ours(address: str) -> bool:
    """Whether the address is one of this machine (of the network that the container is in)."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True


def _gpus() -> dict[str, str]:
    """``text``: one line for each GPU; ``details``: of the driver; ``error``: why there is none."""
    found = _nvidia_smi(f"--query-gpu={GPU_FIELDS}", "--format=csv,noheader,nounits")
    return {**found, "details": "" if found["error"] else _nvidia_smi("-q")["text"]}


def _nvidia_smi(*arguments: str) -> dict[str, str]:
    try:
        done = subprocess.run(
            ("nvidia-smi", *arguments), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=LONGEST / 3
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"text": "", "error": str(error)}
    text = done.stdout.decode(errors="replace")
    return {"text": text, "error": "" if done.returncode == 0 else text.strip() or f"exit code {done.returncode}"}


def look(asked: dict[str, Any]) -> dict[str, Any]:
    """``asked``: ``addresses``, ``models`` (folders), and whether there should be ``gpus``."""
    return {
        "disk": space("/"),
        "shm": space("/dev/shm"),
        "listeners": _all_listeners(),
        "ours": [address for address in asked["addresses"] if _is_ours(address)],
        "models": {folder: model(Path(folder)) for folder in asked["models"]},
        "gpus": _gpus() if asked["gpus"] else None,
    }


if __name__ == "__main__":
    # As the first process of a container it would not get a signal that it does not ask for.
    signal.signal(signal.SIGALRM, lambda *_: os._exit(1))
    signal.alarm(LONGEST)
    print(MARK + json.dumps(look(json.loads(sys.argv[1]))), flush=True)
