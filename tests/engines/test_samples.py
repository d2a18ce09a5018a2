"""What engines use of their machines: texts of nvidia-smi and the DCGM exporter, the hour, and real processes."""

from __future__ import annotations

import http.server
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from control.engines import sampler
from control.engines.gpus import Gpu, chosen, from_dcgm, from_nvidia_smi, users
from control.engines.sampler import Sampler, Target
from control.engines.samples import KEPT, MINUTES, Hour, Sample, Spent, minutes, use, with_gpus
from tests.support.net import wait_until

MIB = 1024**2
#: As NVIDIA's documentation shows the exporter's answer, with a part of a GPU (MIG) and a value that it does not know.
DCGM = """\
# HELP DCGM_FI_DEV_GPU_UTIL GPU utilization (in %).
# TYPE DCGM_FI_DEV_GPU_UTIL gauge
DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-34319582-d595",device="nvidia0",Hostname="ub20-a100-k8s"} 97
DCGM_FI_DEV_GPU_UTIL{gpu="1",UUID="GPU-7a9c3f00-11aa",device="nvidia1",Hostname="ub20-a100-k8s"} 3
DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-34319582-d595",device="nvidia0",GPU_I_PROFILE="1g.5gb",GPU_I_ID="13"} 1
# HELP DCGM_FI_DEV_POWER_USAGE Power draw (in W).
# TYPE DCGM_FI_DEV_POWER_USAGE gauge
DCGM_FI_DEV_POWER_USAGE{gpu="0",UUID="GPU-34319582-d595",device="nvidia0",Hostname="ub20-a100-k8s"} 409.692000
DCGM_FI_DEV_POWER_USAGE{gpu="1",UUID="GPU-7a9c3f00-11aa",device="nvidia1",Hostname="ub20-a100-k8s"} 9223372036854775794
# TYPE DCGM_FI_DEV_FB_FREE gauge
DCGM_FI_DEV_FB_FREE{gpu="0",UUID="GPU-34319582-d595",device="nvidia0",Hostname="ub20-a100-k8s"} 35690
# TYPE DCGM_FI_DEV_FB_USED gauge
DCGM_FI_DEV_FB_USED{gpu="0",UUID="GPU-34319582-d595",device="nvidia0",Hostname="ub20-a100-k8s"} 4845
"""


def test_lines_of_nvidia_smi() -> None:
    line = "1, GPU-5a1b, 93, 20125, 24564, 310.55\r"
    assert from_nvidia_smi(line) == Gpu(1, "GPU-5a1b", 93, 20125 * MIB, 24564 * MIB, 310.55)
    unknown = from_nvidia_smi("0, GPU-1, [N/A], 20125, 24564, [Not Supported]")
    assert unknown is not None and unknown.percent is None and unknown.power is None and unknown.memory == 20125 * MIB
    for other in ("", "No devices were found", "NVIDIA-SMI has failed because it couldn't communicate, a, b, c, d, e"):
        assert from_nvidia_smi(other) is None
    assert users("4711, GPU-1\n4711, GPU-2\nno running processes\n12, GPU-1\n") == {
        4711: {"GPU-1", "GPU-2"},
        12: {"GPU-1"},
    }


def test_the_exporters_text() -> None:
    first, second = from_dcgm(DCGM)
    assert first == Gpu(0, "GPU-34319582-d595", 97, 4845 * MIB, (4845 + 35690) * MIB, 409.692)
    assert second == Gpu(1, "GPU-7a9c3f00-11aa", 3)
    assert chosen([first, second], (1,)) == [second] and chosen([first, second], ("GPU-34319582-d595",)) == [first]
    assert from_dcgm("") == []
    with pytest.raises(ValueError):
        from_dcgm('DCGM_FI_DEV_GPU_UTIL{gpu="0" 97\n')


def test_several_gpus_are_one_sample_and_its_words() -> None:
    sample = with_gpus(Sample(1.0, cpu=104.4, memory=3_200_000_000), from_dcgm(DCGM))
    assert (sample.gpu, sample.power, sample.gpu_memory) == (50, 409.692, 4845 * MIB)
    assert sample.words() == "GPU 50 %, 5.1 GB of 42.5 GB, 410 W; CPU 104 %, 3.2 GB"
    assert Sample(1.0, cpu=7).words() == "CPU 7 %" and Sample(1.0).words() == ""
    assert with_gpus(Sample(1.0), []) == Sample(1.0)


def test_cpu_is_counted_between_two_looks() -> None:
    assert Spent(10, 100).percent_since(None) is None
    assert Spent(15, 110).percent_since(Spent(10, 100)) == 50
    assert Spent(1, 110).percent_since(Spent(10, 100)) == 0  # a child ended, and its time is not in the sum any more
    assert Spent(1, 100).percent_since(Spent(1, 100)) is None


def test_an_hour_is_kept_and_a_silence_is_a_gap() -> None:
    hour = Hour()
    end = 1_700_000_070.0
    for index in range(KEPT + 100):
        at = end - 5 * (KEPT + 99 - index)
        if not end - 600 < at <= end - 300:  # nobody answered for five minutes
            hour.add(Sample(at, cpu=50))
    assert hour.now(end) is not None and hour.now(end + 16) is None
    shown = use(hour, end)
    assert shown.field == "cpu" and len(shown.hour) == MINUTES and shown.hour.count(None) == 4
    assert all(value in (None, 50) for value in shown.hour) and shown.hour[-1] == 50
    assert len(hour.since(0)) == KEPT
    assert minutes([Sample(end, gpu=10), Sample(end - 40, gpu=30)], "gpu", end)[-2:] == (30, 10)


@pytest.fixture
def busy() -> Iterator[subprocess.Popen[bytes]]:
    """A process whose child computes without end."""
    child = "x = bytearray(50_000_000)\nwhile True: pass"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    process = subprocess.Popen([sys.executable, "-c", parent], start_new_session=True)
    yield process
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def test_processes_of_this_machine(
    busy: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = tmp_path / "nvidia-smi"
    fake.write_text(
        "#!/bin/sh\ncase $1 in\n"
        f"*apps*) pgrep -P {busy.pid} | sed 's/$/, GPU-b/';;\n"
        "*) echo '0, GPU-a, 1, 10, 100, 20'; echo '1, GPU-b, 90, 50, 100, 200';;\nesac\n"
    )
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    targets = [Target("m-1", busy.pid), Target("gone", 2**22 - 1)]
    looking = Sampler(lambda: targets, 0.3)
    looking.start()
    try:
        wait_until("several looks", lambda: len(looking.samples("m-1")) > 4, 20)
        first, *_, last = looking.samples("m-1")
        assert first.cpu is None and last.cpu is not None and 5 < last.cpu < 400
        assert last.memory is not None and last.memory > 60_000_000
        assert (last.gpu, last.gpu_memory, last.power) == (90, 50 * MIB, 200)
        assert looking.uses().keys() == {"m-1"} and looking.uses()["m-1"].now is not None
        assert looking.samples("gone") == []
    finally:
        looking.close()


def test_the_exporter_is_asked_and_one_that_hangs_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    class Exporter(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/slow":
                time.sleep(1)
            self.send_response(200 if self.path == "/metrics" else 500)
            self.end_headers()
            self.wfile.write(DCGM.encode())

        def log_message(self, *args: object) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Exporter)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(sampler, "ANSWER_SECONDS", 0.3)
    try:
        assert [gpu.percent for gpu in sampler.exporter(f"{url}/metrics")] == [97, 3]
        assert sampler.exporter(f"{url}/broken") == []
        began = time.monotonic()
        assert sampler.exporter(f"{url}/slow") == [] and time.monotonic() - began < 0.9
    finally:
        server.shutdown()
        server.server_close()
