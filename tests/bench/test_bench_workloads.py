"""Workload files and what is made of them: pure."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
import yaml

from control.bench import prompts, workload
from control.bench.prompts import dataset
from control.bench.slo import parse_slo
from control.bench.variants import Ports, choices, measured_fleet
from control.bench.watch import client
from control.errors import BenchRunError, FleetError
from control.paths import REPOSITORY
from tests.bench.test_bench_figures import one

NAMES = sorted(path.stem for path in workload.FOLDER.glob("*.yaml"))


def test_there_are_the_five_that_the_documentation_names() -> None:
    assert NAMES == ["agent", "burst", "chat", "mixed", "rag"]


#: All but agent at full scale: 300 MB of bodies, which take seconds and say no more than those at --scale cpu.
CASES = [(name, scale) for name in NAMES for scale in ("full", "cpu", "tiny") if (name, scale) != ("agent", "full")]


@pytest.mark.parametrize(("name", "scale"), CASES)
def test_each_has_its_scales_and_sends_what_it_says(name: str, scale: str) -> None:
    sent = workload.load(workload.find(name), scale)
    rate = 5.0 if sent.times_capacity else None
    data = dataset(sent, "m", 1, 2, 1.0, rate)
    made = sum(len([turn for turn in line.get("turns", [1]) if turn == 1 or turn.get("role") != "system"])
               for line in data.lines)  # fmt: skip
    assert made >= data.warm_up + sent.requests
    assert len({json.dumps(line) for line in data.lines}) == len(data.lines), "nothing is sent twice"
    if scale == "cpu":
        assert sent.longest <= 4096, "the model of `make run` takes no more"


def test_mixed_has_32_at_a_time_and_long_prompts_of_2000_tokens() -> None:
    sent = workload.load(workload.find("mixed"))
    data = dataset(sent, "m", 1, 2, 1.0)
    lengths = Counter[str]()
    for line in data.lines[data.warm_up :]:
        words = len(line["payload"]["messages"][0]["content"].split())
        lengths["long" if words >= 2000 else "short"] += 1
        assert words >= 2000 or words <= 300
        assert line["payload"]["max_tokens"] == 512
    assert sent.concurrency == 32
    assert 0.11 < lengths["long"] / lengths.total() < 0.14


def test_the_shape_is_the_same_for_all_variants_and_the_words_never_are() -> None:
    sent = workload.load(workload.find("mixed"), "cpu")
    first, second, other = (dataset(sent, "m", shape, text).lines for shape, text in ((1, 2), (1, 3), (2, 2)))
    lengths = [[len(line["payload"]["messages"][0]["content"].split()) for line in lines[4:]]
               for lines in (first, second, other)]  # fmt: skip
    assert lengths[0] == lengths[1] != lengths[2]
    beginnings = [{" ".join(line["payload"]["messages"][0]["content"].split()[:6]) for line in lines[4:]}
                  for lines in (first, second)]  # fmt: skip
    assert not beginnings[0] & beginnings[1]
    assert dataset(sent, "m", 1, 2).lines == first, "pinned seeds give the same again"


def test_chat_shares_its_system_prompt_and_leaves_history_to_the_engine() -> None:
    sent = workload.load(workload.find("chat"), "cpu")
    lines = dataset(sent, "m", 1, 2, 1.0).lines[4:]
    assert len({line["turns"][0]["text"] for line in lines}) == 1 and lines[0]["turns"][0]["role"] == "system"
    assert all(len(line["turns"]) == 5 for line in lines)


def test_rag_shares_documents() -> None:
    sent = workload.load(workload.find("rag"), "cpu")
    lines = dataset(sent, "m", 1, 2, 1.0).lines[4:]
    shared = {line["payload"]["messages"][0]["content"].split("\n\n")[0] for line in lines}
    assert len(shared) == 4


def test_agents_send_a_megabyte_and_their_history() -> None:
    sent = workload.load(workload.find("agent"), "cpu")
    lines = dataset(sent, "m", 1, 2, 1.0).lines[4:]
    bodies = [line["payload"] for line in lines if line["session_id"] == "agent:00000"]
    assert [len(body["messages"]) for body in bodies] == [2, 4, 6]
    assert all(len(json.dumps(body)) >= 1024**2 for body in bodies)
    assert bodies[0]["tools"] == bodies[2]["tools"] and bodies[2]["messages"][:4] == bodies[1]["messages"]


def test_a_burst_arrives_at_its_rate() -> None:
    sent = workload.load(workload.find("burst"))
    lines = dataset(sent, "m", 1, 2, 1.0, rate=20.0).lines
    assert len(lines) == sent.requests
    assert lines[-1]["timestamp"] / 1000 == pytest.approx(sent.requests / 20, rel=0.2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"requests": 0}, r"requests"),
        ({"concurency": 3}, r"Did you mean .concurrency."),
        ({"times_capacity": 4}, r"either concurrency or times_capacity"),
        ({"groups": {}}, r"groups"),
        ({"scales": {"cpu": {"requests": "many"}}}, r"scales.cpu.requests"),
        ({"groups": {"a": {"prompt": [9, 3], "output": 1}}}, r"groups.a.prompt"),
        ({"groups": {"a": {"kind": "chat", "prompt": 1, "output": 1}, "b": {"prompt": 1, "output": 1}}}, r"chat can"),
    ],
)  # fmt: skip
def test_mistakes_are_told_with_their_place(tmp_path: Path, change: dict, message: str) -> None:
    data = {"title": "t", "requests": 3, "concurrency": 1, "groups": {"a": {"prompt": 1, "output": 1}}, **change}
    file = tmp_path / "w.yaml"
    file.write_text(yaml.safe_dump(data))
    with pytest.raises(FleetError, match=message):
        workload.load(file)


def test_unknown_names_are_told_with_those_that_there_are() -> None:
    with pytest.raises(BenchRunError, match="no workload 'fast'") as error:
        workload.find("fast")
    assert "burst, chat, mixed" in error.value.hint
    with pytest.raises(BenchRunError, match="no scale 'gpu'"):
        workload.load(workload.find("mixed"), "gpu")


def test_limits_have_units() -> None:
    limits = parse_slo("ttft=1.5s, tpot=60ms")
    assert (limits.ttft, limits.tpot, limits.e2e) == (1.5, 0.06, None)
    for wrong in ("ttft=1.5", "ttft", "speed=1s", "ttft=-1s", "ttft=1s,ttft=2s"):
        with pytest.raises(BenchRunError):
            parse_slo(wrong)


def test_variants_as_they_are_written() -> None:
    found = choices("default,tuned,tuned+edge,small:max_num_seqs=4,chunked_prefill=true+edge", "mixed")
    assert [(one.name, one.way, dict(one.settings)) for one in found] == [
        ("default", "direct", {}),
        ("tuned", "direct", {"profile": "mixed"}),
        ("tuned+edge", "edge", {"profile": "mixed"}),
        ("small+edge", "edge", {"max_num_seqs": 4, "chunked_prefill": True}),
    ]
    assert found[1].start == found[2].start, "one start serves both ways"
    for wrong in ("", "fast", "a:speed=1", "default,default"):
        with pytest.raises(BenchRunError):
            choices(wrong, "mixed")


def test_a_measured_fleet_has_its_own_ports_and_nothing_that_is_not_measured() -> None:
    data = yaml.safe_load((REPOSITORY / "fleet.yaml").read_text())
    data["edge"] |= {"keys": "keys.yaml"}
    ports = Ports(1001, 1002, 1003, [1004, 1005])
    default = choices("default", "mixed")[0]
    found = measured_fleet(data, Path("/x"), "smollm2", default, ports, "site")
    assert found["edge"] == {"max_body": "64m", "listen": "127.0.0.1:1001", "admin": "127.0.0.1:1002"}
    assert [backend["port"] for backend in found["models"]["smollm2"]["backends"]] == [1004, 1005]
    engine = found["models"]["smollm2"]["engine"]
    assert "max_num_seqs" not in engine and engine["max_model_len"] == 4096
    tuned = measured_fleet(data, Path("/x"), "smollm2", choices("tuned", "mixed")[0], ports, "site")
    assert tuned["models"]["smollm2"]["engine"]["max_num_seqs"] == 16
    assert tuned["models"]["smollm2"]["engine"]["profile"] == "mixed"
    data["models"]["smollm2"]["backends"] = [{"url": "http://198.51.100.1:8000"}]
    with pytest.raises(BenchRunError, match="no process of this machine"):
        measured_fleet(data, Path("/x"), "smollm2", default, ports, "site")


def test_a_client_that_does_not_keep_up_is_told() -> None:
    good = client([one()] * 20, [0.2, 0.3], [0.4])
    assert good.overloaded == []
    busy = client([one()] * 20, [0.99, 1.0, 1.0], [1.2])
    assert len(busy.overloaded) == 1 and "of a core" in busy.overloaded[0]
    late = client([one(due=-0.5)] * 20, [0.1], [0.1])
    assert len(late.overloaded) == 1 and "after they were due" in late.overloaded[0]


def test_warm_up_has_long_ones_and_is_no_stream() -> None:
    bodies = prompts.warm_up(workload.load(workload.find("mixed")), "m", 5, 1.0, 8)
    assert len(bodies) == 8 and max(len(body["messages"][0]["content"].split()) for body in bodies) >= 2000
    assert not any(body["stream"] for body in bodies)
