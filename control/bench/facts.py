"""Facts of this machine and checkout, as run.json keeps them."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

import psutil

from control.bench.results import Machine
from control.paths import REPOSITORY


def machine() -> Machine:
    """This machine. Its name is left out: figures are shown to others."""
    return Machine(
        cpu=_processor(),
        cores=os.cpu_count() or 1,
        memory=psutil.virtual_memory().total,
        system=f"{platform.system()} {platform.release()}",
        load_before=round(os.getloadavg()[0], 2),
        gpus=_gpus(),
    )


def commit() -> str:
    """The checkout's commit, with + behind it when files were changed; empty where there is no git."""
    try:
        head, changed = (
            subprocess.run(["git", *words], cwd=REPOSITORY, capture_output=True, text=True)
            for words in (["rev-parse", "--short=12", "HEAD"], ["status", "--porcelain", "-uno"])
        )
    except OSError:
        return ""
    return head.stdout.strip() + ("+" if changed.stdout.strip() else "") if head.returncode == 0 else ""


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _gpus() -> list[str]:
    try:
        told = subprocess.run(
            ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line.strip() for line in told.stdout.splitlines() if line.strip()] if told.returncode == 0 else []
