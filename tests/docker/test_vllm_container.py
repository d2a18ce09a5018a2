"""Real vLLM on CPU in a container: brought up, changed under live streams, and ended when it is empty.

One container, because each start takes half a minute; test_up.py changes two in turn.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from typing import Any

import pytest
import requests
import yaml

from control.edge.site import state_paths
from control.engines.install import runtime_folder
from control.engines.model import packaged_folder
from control.fleet.load import load
from control.fleet.schema import PackagedModel
from control.paths import REPOSITORY
from tests.docker.conftest import Place
from tests.support.dockerd import Dockerd, volumes

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]  # a fresh checkout installs the runtime first

STREAMS, TOKENS = 20, 100


def vllm_place(dockerd: Dockerd) -> Place:
    """A container with the runtime and the model of the root's fleet.yaml, which are made if they are missing."""
    subprocess.run([sys.executable, "-m", "control", "prepare"], cwd=REPOSITORY, check=True, timeout=1800)
    loaded = load(REPOSITORY / "fleet.yaml")
    (model,) = loaded.fleet.models.values()
    assert model.engine is not None and model.engine.version is not None and isinstance(model.source, PackagedModel)
    runtime = runtime_folder(state_paths(loaded), model.engine.version).resolve()
    folder = packaged_folder(state_paths(loaded), model.source).resolve()
    image = dockerd.image("vllm-cpu:latest", path=f"{runtime}/bin:/usr/bin:/bin")
    place = Place(dockerd, backends=1)
    place.fleet["hosts"]["box"]["volumes"] = [*volumes(runtime), f"{folder}:/models/smollm2"]
    written = yaml.safe_load((REPOSITORY / "fleet.yaml").read_text())["models"]["smollm2"]["engine"]
    settings = {
        "image": image, "max_model_len": 2048, "max_num_seqs": 32, "kv_cache_memory": "256MiB",
        "environment": {**written["environment"], "HOME": "/root"}, "extra_args": written["extra_args"],
        "start_timeout": "3m", "stop_timeout": "20s",
    }  # fmt: skip
    place.fleet["models"]["m"] |= {"source": "/models/smollm2", "engine": settings}
    place.write()
    return place


class Stream(threading.Thread):
    """A chat that streams; ``text`` and ``end`` are what came of it."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.url, self.tokens, self.end, self.first = url, 0, "", threading.Event()

    def run(self) -> None:
        body: dict[str, Any] = {"model": "m", "stream": True, "max_tokens": TOKENS, "ignore_eos": True}
        body["messages"] = [{"role": "user", "content": "Tell a very long story."}]
        try:
            with requests.post(f"{self.url}/v1/chat/completions", json=body, stream=True, timeout=300) as answer:
                assert answer.status_code == 200, answer.text
                for line in answer.iter_lines():
                    if line == b"data: [DONE]":
                        self.end = "whole"
                    elif line:
                        self.tokens += bool(json.loads(line[6:])["choices"][0]["delta"].get("content"))
                        self.first.set()
        except (requests.RequestException, AssertionError, ValueError, LookupError) as error:
            self.end = repr(error)
        self.first.set()


def test_up_change_under_streams_and_down(dockerd: Dockerd) -> None:
    place = vllm_place(dockerd)
    try:
        assert "/models/smollm2" not in (said := place.call("doctor", "box", code=1)) and "is complete (0." in said
        output = place.call("up", timeout=300)
        assert "m-1: starting: loading weights" in output or "sizing KV cache" in output
        assert "m-1: ready: serving" in output
        (model,) = load(REPOSITORY / "fleet.yaml").fleet.models.values()
        version = model.engine.version if model.engine is not None else None
        asked = json.loads((place.paths.root / "images.json").read_text())
        assert list(asked.values()) == [f"{version}+cpu"]  # which no tag says
        question = [{"role": "user", "content": "What is the capital of France?"}]
        body = {"model": "m", "messages": question, "temperature": 0, "max_tokens": 20}
        answer = requests.post(f"{place.url}/v1/chat/completions", json=body, timeout=60).json()
        assert answer["choices"][0]["message"]["content"].strip() and answer["usage"]["completion_tokens"] > 1

        streams = [Stream(place.url) for _ in range(STREAMS)]
        for one in streams:
            one.start()
        assert all(one.first.wait(60) for one in streams)
        place.engine["max_num_seqs"] = 24
        place.write()
        output = place.call("up", timeout=300)
        assert "--max-num-seqs: 32 → 24" in output and "draining (waiting for" in output
        for one in streams:
            one.join(200)
        assert [one.end for one in streams] == ["whole"] * STREAMS
        assert [_after(row, "--max-num-seqs") for row in place.containers()] == ["24"]

        last = Stream(place.url)
        last.start()
        assert last.first.wait(60)
        place.call("down", "m", timeout=120)
        last.join(60)
        assert last.end == "whole" and place.names() == []
    finally:
        left = place.end()
    assert left == []


def _after(row: dict[str, Any], flag: str) -> str:
    words: list[str] = row["Config"]["Cmd"]
    return words[words.index(flag) + 1]
