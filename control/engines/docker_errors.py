"""What Docker's own error texts mean, and what to do about them. Pure."""

from __future__ import annotations

import re

#: A part of Docker's text → what to do next. The first that fits counts.
_CURES: tuple[tuple[str, str], ...] = (
    (
        r"could not select device driver|unknown or invalid runtime name: nvidia",
        "This host lacks NVIDIA's container toolkit: install nvidia-container-toolkit there, "
        "`nvidia-ctk runtime configure --runtime=docker`, restart Docker. `gpus: []` starts the engine without a GPU.",
    ),
    (
        r"nvidia-container-cli.*(unknown device|device error)|no such device|invalid device",
        "The host has no such GPU: `nvidia-smi -L` there lists them. Correct gpus in fleet.yaml.",
    ),
    (
        r"no adapters were found|GPU access blocked by the operating system",
        "Windows shows WSL no GPU: update NVIDIA's driver for Windows, then `wsl --update`, `wsl --shutdown`. A driver "
        "of Linux does not belong into WSL.",
    ),
    (
        r"unsatisfied condition: cuda",
        "The image needs a newer GPU driver than that host has: update it, or take an image for an older CUDA.",
    ),
    (
        r"invoking the NVIDIA Container Runtime Hook directly",
        "NVIDIA's toolkit there is set to CDI alone: `sudo nvidia-ctk config --in-place --set "
        "nvidia-container-runtime.mode=auto`, then restart Docker.",
    ),
    (r"nvidia-container-cli", "The GPU driver of the host does not work in containers: run `nvidia-smi` there first."),
    (
        r"port is already allocated|address already in use|failed to bind|ports are not available",
        "Another program listens there (`ss -ltnp` on that host names it). Stop it, or give the backend another port.",
    ),
    (
        r"cannot assign requested address",
        "`address` of the host in fleet.yaml is no address of that machine: `ip address` there lists them.",
    ),
    (
        r"bind source path does not exist",
        "Correct the volume in fleet.yaml, or make that folder on the Docker host.",
    ),
    (
        r"executable file not found|no such file or directory.*(exec|init)|exec format error",
        "The image cannot run this: is it an image of vLLM (`vllm serve` in it), for this kind of CPU?",
    ),
    (
        r"referrers index|unexpected media type text/html",
        "Docker's containerd image store asks the image's own registry for more about it, past any mirror, and got a "
        "web page. An image that is there is used without that: leave out --pull. To pull it, set "
        '`"features": {"containerd-snapshotter": false}` in /etc/docker/daemon.json of the host (Docker Desktop: '
        "Settings, General) and restart Docker, or load it by hand: docker save IMAGE | ssh HOST docker load. What a "
        "broken pull has left goes with `docker image rm IMAGE`.",
    ),
    (
        r"invalid character '<'",
        "Something between Docker and the registry answers with a web page (a proxy, a mirror): look at "
        "registry-mirrors in the host's /etc/docker/daemon.json, "
        "or load the image by hand: docker save IMAGE | ssh HOST docker load.",
    ),
    (
        r"no space left on device",
        "The host's disk is full: `docker system df` there says what may go; `docker image prune` frees some of it.",
    ),
    (
        r"manifest unknown|manifest for .* not found|repository does not exist|access denied|denied: |unauthorized",
        "Is the name right, with its tag? For a private image: `docker login` as the user who runs signalbox.",
    ),
    (
        r"no such host|i/o timeout|connection refused|handshake timeout|network is unreachable|Client\.Timeout",
        "That host does not reach the registry. Load the image by hand: docker save IMAGE | ssh HOST docker load.",
    ),
    (r"toomanyrequests|rate limit", "The registry limits pulls: `docker login`, or wait, or load the image by hand."),
    (r"client version .* is too (old|new)", "This Docker Engine speaks no API version of ours: bring it up to date."),
    (r"no such image", "It vanished meanwhile; run the same command again."),
)


def cure(text: str) -> str:
    """What to do about an error text of Docker; empty when nothing is known."""
    return next((words for pattern, words in _CURES if re.search(pattern, text, re.IGNORECASE | re.DOTALL)), "")


def silent(host: str, image: str) -> str:
    """What to do about a pull of which nothing comes any more."""
    return (
        f"What {host} has of it is kept. Try it there: docker pull {image}. A proxy or mirror that hangs is the usual "
        "reason, and Docker's own log there names it; the same command goes on, or load the image by hand: "
        "docker save IMAGE | ssh HOST docker load."
    )


def plain(text: str) -> str:
    """Docker's text on one line, without the wrapping that its parts put around each other."""
    line = " ".join(text.split())
    line = re.sub(r"^(Error response from daemon: |failed to create task for container: )+", "", line)
    return line.rstrip(".")[:600]


def unreachable(url: str, error: BaseException) -> tuple[str, str]:
    """Why a Docker Engine cannot be asked, and what to do."""
    text = _innermost(error)
    if url.startswith("ssh://"):
        target = url.removeprefix("ssh://")
        return text, f"Does this work without a question: ssh {target} docker version? (A key, the host's key known.)"
    if "Permission" in text:
        return text, "Add this user to the group docker on this machine (and log in again), or use sudo."
    if "CERTIFICATE" in text.upper() or "certificate" in text:
        return text, "Do hosts.*.tls name the right files, and is the address in the Docker Engine's certificate?"
    if url.startswith("unix://"):
        return text, "Is Docker running (`systemctl status docker`), and is that its socket?"
    return text, "Is Docker running there, and does it listen on that address?"


def _innermost(error: BaseException) -> str:
    text = str(error)
    while error.__cause__ is not None or error.__context__ is not None:
        error = error.__cause__ or error.__context__  # type: ignore[assignment]
        if isinstance(error, OSError) and error.strerror:
            return error.strerror
        text = str(error) or text
    return plain(text)
