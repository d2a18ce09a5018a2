"""`signalbox doctor` about Docker hosts, from what Docker and nvidia-smi said on real machines."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from control.doctor import cuda, docker_needs, gpus
from control.doctor.container import Ask, without
from control.doctor.docker_engine import DockerEngine, engine, gives_gpus, gpus_refused, gpus_unseen, read
from control.doctor.docker_needs import Inside
from control.doctor.findings import Finding
from control.doctor.inside import listeners, look
from control.doctor.wanted import Wanted, wanted
from control.doctor.way import Way, way_to
from control.engines.plan import Foreign, Found, Seen
from control.errors import EngineError
from control.fleet.host_checks import on_host
from tests.support import docker_hosts as real
from tests.support.fleet_yaml import fleet_of

GIB = 1024**3
BOX = Way("box", "ssh://ops@10.0.0.1")
IMAGE = "vllm/vllm-openai:v0.30.1"
NOW = datetime.fromisoformat("2026-04-12T08:02:17+00:00").timestamp()


def one(name: str = "m-1", **changes: Any) -> Wanted:
    fields: dict[str, Any] = {
        "id": name, "model": "m", "image": IMAGE, "address": "10.0.0.1", "port": 8000, "gpus": (0,), "share": 0.92,
        "volumes": (("/data/models", "/models", False),), "folder": "/models/m",
    }  # fmt: skip
    return Wanted(**{**fields, **changes})


def said(info: real.Info, now: float = NOW) -> DockerEngine:
    return read(*info, now)


def worse(found: Iterable[Finding]) -> list[tuple[str, str]]:
    """Level and text of what is not well; each ends in a command that a shell understands."""
    bad = [finding for finding in found if finding.level != "ok"]
    assert all(shlex.split(finding.command, comments=True) for finding in bad)
    return [(finding.level, finding.text) for finding in bad]


@pytest.mark.parametrize("info", [real.NVIDIA, real.CDI, real.ROOTLESS])
def test_engines_that_do(info: real.Info) -> None:
    assert worse(engine(said(info), BOX, [one()])) == []


def test_what_is_read_of_an_engine() -> None:
    cdi, desktop, wsl = said(real.CDI), said(real.DESKTOP), said(real.WSL)
    assert cdi.gpus == ("0", "GPU-86fecce1-e02a-3e95-9654-71f934a03b8d", "all") and cdi.cdi and cdi.api == (1, 54)
    assert (desktop.desktop, desktop.wsl, desktop.gpus, desktop.containerd) == (True, True, (), True)
    assert (wsl.desktop, wsl.wsl, said(real.MAC).desktop, said(real.MAC).wsl) == (False, True, True, False)
    assert said(real.ROOTLESS).rootless and not wsl.rootless
    empty = read({}, {}, NOW)  # an engine that says nothing is no reason to fall over
    assert (empty.api, empty.clock, empty.memory) == ((), None, 0)


def test_versions_of_the_api() -> None:
    ((level, text),) = worse(engine(said(real.OLD), BOX, [one()]))
    assert level == "problem" and "API 1.39: containers get GPUs from API 1.40 on" in text
    assert worse(engine(said(real.OLD), BOX, [one(gpus=())]))[0][0] == "warning" and not gives_gpus(said(real.OLD))
    future = ({**real.CDI[0], "MinAPIVersion": "1.99"}, real.CDI[1])
    assert "no longer speaks 1.4" in worse(engine(said(future), BOX, [one()]))[0][1]


def test_its_clock() -> None:
    assert worse(engine(said(real.NVIDIA, NOW + 59), BOX, [])) == []
    ((level, text),) = worse(engine(said(real.NVIDIA, NOW + 120), BOX, []))
    assert level == "warning" and "differ by -120 s" in text


def test_docker_desktop_and_wsl() -> None:
    windows = one(volumes=(("/mnt/c/models", "/models", False), ("/mnt/data", "/x", False)))
    memory, folder = worse(engine(said(real.DESKTOP), BOX, [windows]))
    assert "has 2 GiB of memory" in memory[1] and ".wslconfig" in memory[1]
    assert "/mnt/c/models is a folder of Windows" in folder[1]
    ((_, text),) = worse(engine(said(real.WSL), BOX, [one()]))
    assert "10.0.0.1 is not reached from other machines unless networkingMode=mirrored" in text
    assert worse(engine(said(real.WSL), BOX, [one(address="127.0.0.1")])) == []
    mac = said(real.MAC)
    assert "Settings, Resources" in worse(engine(mac, BOX, [one()]))[0][1] and not gives_gpus(mac)
    (unseen,) = gpus_unseen(mac, BOX, [one()])
    assert unseen.level == "problem" and "WSL 2 only" in unseen.text


def test_who_gives_gpus() -> None:
    for info in (real.NVIDIA, real.CDI, real.DESKTOP):
        assert list(gpus_unseen(said(info), BOX, [one(), one("m-2", gpus=())])) == []
    assert list(gpus_unseen(said(real.NVIDIA), BOX, [one(gpus=(7,))])) == [], "nobody has listed its GPUs"
    ((level, text),) = worse(gpus_unseen(said(real.CDI), BOX, [one(gpus=("GPU-86fecce1-e02a", 1))]))
    assert level == "problem" and "knows no GPU GPU-86fecce1-e02a, 1 (CDI lists 0, GPU-86" in text
    (lacks,) = gpus_unseen(said(real.NO_NVIDIA), BOX, [one()])
    assert "lists no NVIDIA runtime" in lacks.text
    assert lacks.command.startswith("ssh ops@10.0.0.1 'sudo apt-get install -y nvidia-container-toolkit")
    toolkit = 'could not select device driver "nvidia" with capabilities: [[gpu]]'
    for info, text, words, command in (
        (real.NO_NVIDIA, toolkit, "toolkit is missing", "nvidia-ctk runtime configure"),
        (real.DESKTOP, "WSL environment detected but no adapters were found", "driver for Windows", "wsl --update"),
        (real.ROOTLESS, "nvidia-container-cli: mount error", "without root", "no-cgroups"),
        (real.NVIDIA, "nvidia-container-cli: initialization error: nvml error", "nvml error", "nvidia-smi"),
    ):
        found = gpus_refused(said(info), BOX, text)
        assert found.level == "problem" and words in found.text and command in found.command


# GPUs.


def looked(
    engines: list[Wanted], csv: str = real.TWO_4090, running: tuple[str, ...] = (), expected: int | None = None
) -> list[tuple[str, str]]:
    return worse(gpus.judge(gpus.read(csv, ""), BOX, engines, frozenset(running), expected))


def test_what_nvidia_smi_says() -> None:
    seen = gpus.read(real.TWO_4090, real.details("550.54.14", "12.4", "GeForce RTX"))
    assert [(gpu.index, gpu.total, gpu.free, gpu.capability) for gpu in seen.gpus] == [
        (0, 24564 * 1024**2, 24080 * 1024**2, 8.9), (1, 24564 * 1024**2, 3072 * 1024**2, 8.9),
    ]  # fmt: skip
    assert (seen.cuda, seen.brand) == ("12.4", "GeForce RTX")
    (first, *_) = gpus.judge(seen, BOX, [one()], frozenset(), 2)
    assert "GPU 0 (NVIDIA GeForce RTX 4090, 23.5 of 24.0 GiB free)" in first.text and "CUDA 12.4" in first.text
    assert looked([one()], real.UNIFIED) == [], "where memory is not told, nothing is guessed"
    assert looked([one()], "No devices were found\n") == [("problem", "nvidia-smi lists no GPU")]


@pytest.mark.parametrize(
    ("said", "words", "command"),
    [
        (
            "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 570.1",
            "restart",
            "reboot",
        ),
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", "communicate", "dmesg"),
        ("[Errno 2] No such file or directory: 'nvidia-smi'", "lays no driver into them", "nvidia-smi"),
    ],
)
def test_an_nvidia_smi_that_fails(said: str, words: str, command: str) -> None:
    found = gpus.failed(said, BOX)
    assert found.level == "problem" and words in found.text and command in found.command


def test_gpus_that_are_not_there() -> None:
    uuid = "GPU-c475e08b-0cc5-f5aa-4326-99699429b449"
    assert looked([one(gpus=(uuid,)), one("m-2", gpus=("GPU-86fecce1",), share=0.1)]) == []
    assert looked([one(gpus=("MIG-0a1b",))]) == [], "parts of a GPU are in no list"
    ((level, text),) = looked([one(gpus=(0, 2, "GPU-00"))])
    assert level == "problem" and "box has no GPU 2, GPU-00" in text
    assert looked([one()], expected=4)[0] == ("problem", "fleet.yaml gives it gpus: 4, but nvidia-smi lists 2")
    assert looked([one()], expected=1)[0][0] == "warning"


def test_memory_of_gpus() -> None:
    ((level, text),) = looked([one(share=0.5), one("m-2", share=0.6)])
    assert level == "problem" and "m-1 and m-2 want 110% of GPU 0" in text
    assert looked([one(share=0.5), one("m-2", share=0.45)]) == []
    ((level, text),) = looked([one(gpus=(0, 1))])
    assert level == "problem" and "GPU 1 has 3.0 of 24.0 GiB free, and m-1 takes 22.1 GiB at the start" in text
    assert looked([one(gpus=(1,))], running=("m-1",)) == [], "it has taken its memory already"
    assert looked([one(gpus=(1,), share=None)]) == [], "who knows what another program takes"
    seen = gpus.read(real.TWO_4090, "")
    assert worse(gpus.memory_said(seen, BOX, 23 * GIB)) == [] == worse(gpus.memory_said(seen, BOX, None))
    assert "says gpu_memory: 48.0GiB, but a GPU has 24.0 GiB" in worse(gpus.memory_said(seen, BOX, 48 * GIB))[0][1]


@pytest.mark.parametrize(
    ("image", "driver", "shown", "brand", "kind"),
    [
        (real.cuda_image("12.8.1", 470, 535, 550), "570.124.06", "12.8", "GeForce", "fits"),
        (real.cuda_image("12.8.1", 470, 535, 550), "580.95.05", "13.0", "NVIDIA", "fits"),
        (real.cuda_image("12.8.1", 470, 535, 550), "566.07", "12.7", "GeForce", "refused"),  # on WSL, as people met it
        (real.cuda_image("12.8.1", 470, 535, 550), "535.183.01", "12.2", "Tesla", "forward"),
        (real.cuda_image("12.8.1", 470, 535, 550), "535.183.01", "12.8", "GeForce", "refused"),  # shown: the image's
        (real.cuda_image("12.8.1", 470, 535, 550), "545.23.08", "12.3", "NVIDIA", "refused"),
        (real.cuda_image("13.0.2", 535, 550, 570), "570.124.06", "12.8", "NVIDIA RTX Virtual Workstation", "forward"),
        (real.cuda_image("13.0.2", 535, 550, 570), "570.124.06", "12.8", "GeForce", "too_old"),
        ({**real.cuda_image("12.8.1"), "NVIDIA_DISABLE_REQUIRE": "1"}, "550.54.14", "12.4", "GeForce", "minor"),
        ({"CUDA_VERSION": "12.9.1"}, "550.54.14", "12.4", "GeForce", "minor"),
        ({"CUDA_VERSION": "13.4.0"}, "615.10", "13.4", "GeForce", "fits"),  # newer than any table here
        ({"CUDA_VERSION": "12.8.1"}, "572.16", "12.8", "GeForce", "fits"),  # a number of Windows
        ({}, "550.54.14", "12.4", "GeForce", None),
        ({"CUDA_VERSION": "12.8.1"}, "", "", "", None),
    ],
)  # fmt: skip
def test_drivers_and_the_cuda_of_images(
    image: dict[str, str], driver: str, shown: str, brand: str, kind: str | None
) -> None:
    found = cuda.fit(image, driver, shown, brand)
    assert (found.kind if found else None) == kind


def test_what_is_said_of_a_driver() -> None:
    seen = gpus.read(real.TWO_4090, real.details("550.54.14", "12.4"))
    image = real.cuda_image("12.8.1", 470, 535)
    ((level, text),) = worse(gpus.drivers(seen, BOX, IMAGE, image, [one()]))
    assert level == "problem" and "driver 550.54.14 knows CUDA 12.4" in text and "does not start it" in text
    brave = one(environment={"NVIDIA_DISABLE_REQUIRE": "1"})
    assert worse(gpus.drivers(seen, BOX, IMAGE, image, [brave]))[0][0] == "warning"
    assert list(gpus.drivers(seen, BOX, IMAGE, image, [one(gpus=())])) == []
    old = gpus.read("0, GPU-1, Tesla P40, 24576, 24000, 580.95.05, 6.1\n", real.details("580.95.05", "13.0", "Tesla"))
    ((level, text),) = worse(gpus.drivers(old, BOX, IMAGE, image, [one()]))
    assert level == "problem" and "compute capability 6.1" in text and "needs 7" in text


# What a container is not given.


def test_what_docker_cannot_give_is_left_out() -> None:
    volumes = (("/data", "/models", False), ("/mnt/c/x", "/x", False), ("cache", "/root/.cache", True))
    ask = Ask(IMAGE, volumes, ("/models/m", "/x/n"), ("10.0.0.1",), gpus=True)
    docker = said(real.NO_NVIDIA)

    def after(text: str, ask: Ask = ask) -> tuple[Ask | None, list[str]]:
        findings: list[Finding] = []
        return without(ask, EngineError(text), BOX, docker, findings), [words for _, words in worse(findings)]

    smaller, texts = after('invalid mount config for type "bind": bind source path does not exist: /data.')
    assert smaller == replace(ask, volumes=volumes[1:], models=("/x/n",)) and "the folder /data of its" in texts[0]
    smaller, texts = after("bind source path does not exist: /run/desktop/mnt/host/c/x")
    assert smaller == replace(ask, volumes=volumes[2:], models=()) and "/run/desktop/mnt/host/c/x" in texts[0]
    smaller, texts = after("cannot share the host's network namespace when user namespaces are enabled")
    assert smaller == replace(ask, host=False) and texts == []
    smaller, texts = after('could not select device driver "nvidia" with capabilities: [[gpu]]')
    assert smaller == replace(ask, gpus=False) and "containers get no GPU" in texts[0]
    less = replace(ask, gpus=False)
    assert after("something else", less) == (replace(less, host=False), [])
    nothing, texts = after("something else", replace(less, host=False))
    assert nothing is None and "could not be looked at from within" in texts[0] and "something else" in texts[0]
    nothing, texts = after('exec: "python3": executable file not found in $PATH')
    assert nothing is None and "the image has no python3" in texts[0]


# What else an engine needs.


def test_images() -> None:
    row = {"Architecture": "amd64", "Size": 20 * GIB}
    assert docker_needs.image(IMAGE, row, None, BOX, "x86_64").text == f"{IMAGE} is there (20.0 GiB)"
    other = docker_needs.image(IMAGE, row, None, BOX, "aarch64")
    assert other.level == "problem" and "--platform linux/arm64" in other.command
    assert docker_needs.image(IMAGE, None, None, BOX, "x86_64").level == "warning"
    nowhere = docker_needs.image(IMAGE, None, ("manifest unknown", "Is the tag right?"), BOX, "x86_64")
    assert nowhere.level == "problem" and nowhere.text.endswith("not to be had: manifest unknown. Is the tag right?")
    assert nowhere.command == f"docker -H ssh://ops@10.0.0.1 pull {IMAGE}"


def test_disk() -> None:
    assert list(docker_needs.disk(None, [IMAGE], BOX)) == []
    for free, missing, levels in ((30, [], []), (30, [IMAGE], ["warning"]), (60, [IMAGE], []), (1, [], ["problem"])):
        assert [level for level, _ in worse(docker_needs.disk(free * GIB, missing, BOX))] == levels


def box(**fields: Any) -> Found:
    return Found(**{"id": "c0ffee" * 4, "name": "signalbox-m-1", "host": "box", "backend": "m-1", "hash": "h",
                    "state": "running", **fields})  # fmt: skip


def test_ports() -> None:
    foreign = Foreign("c0ffee" * 4, "grafana", "grafana/grafana", "running", (("0.0.0.0", 8000),))
    ((level, text),) = worse(docker_needs.ports([one()], Seen(foreign=(foreign,)), None, BOX))
    assert level == "problem" and "port 8000 of box is taken by the container grafana" in text
    assert worse(docker_needs.ports([one(port=8001)], Seen(foreign=(foreign,)), None, BOX)) == []
    for there, taken in ((("0.0.0.0", 8000), True), (("::", 8000), True), (("127.0.0.1", 8000), False)):
        assert bool(worse(docker_needs.ports([one()], Seen(), [there], BOX))) == taken, there
    mine = box(listen=("10.0.0.1", 8000))
    assert worse(docker_needs.ports([one()], Seen(ours=(mine,)), [("10.0.0.1", 8000)], BOX)) == [], "it is its own"
    ((level, text),) = worse(docker_needs.ports([one("m-2")], Seen(ours=(mine,)), [("10.0.0.1", 8000)], BOX))
    assert level == "warning" and "taken by the container of m-1" in text


def test_ports_that_are_open_to_the_world() -> None:
    wide = box(listen=("0.0.0.0", 8000))
    vllm = Foreign("d" * 24, "old", "vllm/vllm-openai:v0.9", "running", (("::", 8005),))
    ours, theirs = worse(docker_needs.ports([one()], Seen((wide,), (vllm,)), None, BOX))
    assert "opens port 8000 on all addresses of box" in ours[1] and "the container old" in theirs[1]
    gone = box(listen=("0.0.0.0", 8000), state="exited")
    assert worse(docker_needs.ports([one()], Seen((gone,)), None, BOX)) == []


def test_addresses() -> None:
    inside = Inside(listeners=(), ours=("127.0.0.1",))
    ((level, text),) = worse(docker_needs.address([one()], inside, False, BOX))
    assert level == "problem" and "10.0.0.1 is no address of that machine" in text
    assert worse(docker_needs.address([one()], inside, True, BOX)) == [], "Docker Desktop opens ports outside"
    assert worse(docker_needs.address([one()], Inside(), False, BOX)) == [], "not seen"


def test_whose_addresses_are_whose() -> None:
    asked = {"addresses": ["127.0.0.1", "::1", "192.0.2.1", "no address"], "models": [], "gpus": False}
    assert look(asked)["ours"] in (["127.0.0.1", "::1"], ["127.0.0.1"])  # not every machine has IPv6


def test_listeners_of_the_kernel() -> None:
    tcp = (
        "  sl  local_address rem_address   st tx_queue rx_queue\n"
        "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000\n"
        "   1: 00000000:0016 00000000:0000 0A 00000000:00000000\n"
        "   2: 0100007F:9C40 0100007F:1F90 01 00000000:00000000\n"
    )
    tcp6 = (
        "  sl  local_address                         remote_address                        st\n"
        "   0: 00000000000000000000000000000000:1F40 00000000000000000000000000000000:0000 0A\n"
        "   1: 0000000000000000FFFF00000100007F:1F41 00000000000000000000000000000000:0000 0A\n"
    )
    assert listeners(tcp) == [("127.0.0.1", 8080), ("0.0.0.0", 22)]
    assert listeners(tcp6) == [("::", 8000), ("127.0.0.1", 8001)]


def test_model_folders_and_shared_memory() -> None:
    inside = Inside(shared={"free": 32 * 1024**2}, models={"/models/m": {"lacks": ["it has no tokenizer"], "bytes": 0}})
    (finding,) = docker_needs.models([one(), one("m-2")], inside, BOX)
    assert finding.level == "problem" and finding.text.startswith("/data/models/m: it has no tokenizer")
    assert finding.command == "ssh ops@10.0.0.1 'ls -lL /data/models/m'"
    deep = one(volumes=(("/a", "/models", False), ("/b", "/models/m", False)))
    assert (
        on_host(deep.volumes, "/models/m/x") == "/b/x"
        and on_host(deep.volumes, "/models/n") == "/a/n"
        and on_host(deep.volumes, "/z") == "/z"
    )
    ((level, text),) = worse(docker_needs.shared_memory([one()], inside, BOX))
    assert level == "problem" and "has 32 MiB free" in text
    ((level, text),) = worse(docker_needs.shared_memory([one(ipc="private", parallel=2)], Inside(), BOX))
    assert level == "warning" and "its 2 processes share 64 MiB" in text
    assert worse(docker_needs.shared_memory([one(ipc="private", parallel=2, shm_size=8 * GIB)], Inside(), BOX)) == []


def test_what_a_fleet_wants_and_the_way_to_its_hosts(tmp_path: Path) -> None:
    for name in ("ca.pem", "c.pem", "k.pem"):
        (tmp_path / name).touch()
    loaded = fleet_of(
        tmp_path,
        {
            "hosts": {
                "a": {"docker": "ssh://ops@10.0.0.1:2222", "address": "10.0.0.1", "volumes": ["/data:/models"]},
                "b": {"docker": "tcp://10.0.0.2:2376", "address": "10.0.0.2", "tls": {"ca": "ca.pem",
                      "certificate": "c.pem", "key": "k.pem"}},
            },
            "models": {
                "m": {"source": "/models/m", "engine": {"image": IMAGE, "tensor_parallel_size": 2, "shm_size": "8GiB"},
                      "backends": [{"host": "a", "port": 8000, "gpus": [0, 1]}]},
                "n": {"source": "org/n", "engine": {"image": IMAGE, "gpu_memory_utilization": 0.5},
                      "backends": [{"host": "b", "port": 8000, "gpus": [0]}]},
            },
        },
    )  # fmt: skip
    (first,), (second,) = wanted(loaded, "a"), wanted(loaded, "b")
    assert (first.parallel, first.share, first.ipc, first.folder) == (2, 0.92, "private", "/models/m")
    assert (second.share, second.folder, second.ipc) == (0.5, None, "host")
    a, b = way_to(loaded, "a"), way_to(loaded, "b")
    assert a.there("nvidia-smi -L") == "ssh -p 2222 ops@10.0.0.1 'nvidia-smi -L'"
    assert b.docker("version") == (
        f"docker -H tcp://10.0.0.2:2376 --tlsverify --tlscacert {tmp_path}/ca.pem --tlscert {tmp_path}/c.pem "
        f"--tlskey {tmp_path}/k.pem version"
    )
    assert b.there("nvidia-smi") == "ssh 10.0.0.2 nvidia-smi" and Way("x", "unix:///x").there("df -h") == "df -h"
