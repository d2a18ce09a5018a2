"""Two real vLLM engines on CPU behind the edge, talked to by the official clients."""

from __future__ import annotations

import concurrent.futures
import json
import re
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import psutil
import pytest
import requests
import yaml

from control.engines.processes import Record
from tests.support.net import wait_until
from tests.vllm.conftest import Stack

QUESTION = "What is the capital of France?"


@pytest.fixture
def client(stack: Stack) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{stack.url}/v1", api_key="none", max_retries=0, timeout=60)


@pytest.fixture
def claude(stack: Stack) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=stack.url, api_key="none", max_retries=0, timeout=60)


def test_a_second_start_takes_less_than_a_minute(stack: Stack) -> None:
    """Everything is installed: this is the start that `make run` makes every day."""
    print(f"signalbox run took {stack.seconds:.1f} s")
    assert stack.seconds < 60


def test_the_printed_curl_streams_an_answer(stack: Stack) -> None:
    done = subprocess.run(["sh", "-c", stack.curl], capture_output=True, text=True, timeout=60)
    events = [line.removeprefix("data: ") for line in done.stdout.splitlines() if line]
    assert events[-1] == "[DONE]"
    text = "".join(json.loads(event)["choices"][0]["delta"].get("content") or "" for event in events[:-1])
    assert len(events) > 5 and text.strip()


def test_streaming_chat_with_the_openai_client(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="smollm2",
        messages=[{"role": "user", "content": QUESTION}],
        stream=True,
        stream_options={"include_usage": True},
        temperature=0,
        max_tokens=40,
    )
    text, usage, finish = "", None, None
    for chunk in stream:
        if chunk.choices:
            text += chunk.choices[0].delta.content or ""
            finish = chunk.choices[0].finish_reason or finish
        usage = chunk.usage or usage
    assert "Paris" in text
    assert finish in ("stop", "length")
    assert usage is not None and usage.prompt_tokens > 10 and 0 < usage.completion_tokens <= 40


def test_an_answer_in_one_piece_by_the_alias(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="smollm2-135m", messages=[{"role": "user", "content": QUESTION}], temperature=0, max_tokens=40
    )
    assert "Paris" in (answer.choices[0].message.content or "")
    assert answer.usage is not None and answer.usage.completion_tokens > 0


def test_completions_and_responses(client: openai.OpenAI) -> None:
    completion = client.completions.create(model="smollm2", prompt="The capital of France is", max_tokens=8)
    assert completion.choices[0].text
    response = client.responses.create(model="smollm2", input=QUESTION, max_output_tokens=16)
    assert response.output_text


def test_streaming_messages_with_the_anthropic_client(claude: anthropic.Anthropic) -> None:
    with claude.messages.stream(
        model="smollm2", max_tokens=40, messages=[{"role": "user", "content": QUESTION}]
    ) as stream:
        text = "".join(stream.text_stream)
        message = stream.get_final_message()
    assert text.strip() and message.usage.output_tokens > 0
    assert message.stop_reason in ("end_turn", "max_tokens")


def test_a_message_in_one_piece_and_its_token_count(claude: anthropic.Anthropic) -> None:
    message = claude.messages.create(model="smollm2", max_tokens=16, messages=[{"role": "user", "content": QUESTION}])
    assert message.content[0].type == "text" and message.content[0].text
    counted = claude.messages.count_tokens(model="smollm2", messages=[{"role": "user", "content": QUESTION}])
    assert counted.input_tokens == message.usage.input_tokens


def test_both_engines_work(stack: Stack, client: openai.OpenAI) -> None:
    before = [stack.metric(engine, "vllm:request_success_total") for engine in stack.engine_urls]

    def ask(number: int) -> None:
        client.completions.create(model="smollm2", prompt=f"Number {number}:", max_tokens=4)

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(ask, range(8)))
    after = [stack.metric(engine, "vllm:request_success_total") for engine in stack.engine_urls]
    done = [new - old for new, old in zip(after, before, strict=True)]
    assert sum(done) == 8 and min(done) >= 2, done


def test_models_are_listed(client: openai.OpenAI) -> None:
    names = [model.id for model in client.models.list()]
    assert names == ["smollm2", "smollm2-135m"]
    assert client.models.retrieve("smollm2").id == "smollm2"


def test_an_unknown_model_is_refused_by_the_edge(client: openai.OpenAI, claude: anthropic.Anthropic) -> None:
    with pytest.raises(openai.NotFoundError) as error:
        client.chat.completions.create(model="nope", messages=[{"role": "user", "content": QUESTION}])
    assert error.value.code == "model_not_found" and "smollm2" in error.value.message
    with pytest.raises(anthropic.NotFoundError):
        claude.messages.create(model="nope", max_tokens=5, messages=[{"role": "user", "content": QUESTION}])


@pytest.mark.parametrize("stream", [False, True])
def test_too_long_a_prompt_is_the_engines_400(stack: Stack, client: openai.OpenAI, stream: bool) -> None:
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(
            model="smollm2",
            messages=[{"role": "user", "content": "word " * 5000}],
            stream=stream,
            extra_headers={"X-Request-Id": f"too-long-{stream}"},
        )
    assert "maximum context length is 4096 tokens" in error.value.message
    line = stack.logged(f"too-long-{stream}")
    assert (line["status"], line["model"]) == (400, "smollm2") and line["backend"] and line["bytes_in"] > 25_000


LONG = {
    "model": "smollm2",
    "messages": [{"role": "user", "content": "Tell a very long story."}],
    "max_tokens": 3000,
    "ignore_eos": True,
}


def test_a_reader_that_leaves_stops_the_engines_work_within_a_second(stack: Stack) -> None:
    url, headers = f"{stack.url}/v1/chat/completions", {"X-Request-Id": "reader-leaves"}
    with requests.post(url, json={**LONG, "stream": True}, headers=headers, stream=True, timeout=60) as answer:
        lines = answer.iter_lines()
        assert [next(lines) for _ in range(5)]
        wait_until("the engine to work", lambda: stack.requests_running() == 1)
    wait_until("the engine to stop", lambda: stack.requests_running() == 0, 1, 0.02)
    assert stack.logged("reader-leaves")["end"] == "client_left"


def test_a_client_that_gives_up_waiting_stops_the_engines_work_within_a_second(stack: Stack) -> None:
    url, headers = f"{stack.url}/v1/chat/completions", {"X-Request-Id": "gives-up"}
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(requests.post, url, json=LONG, headers=headers, timeout=1.5)
        wait_until("the engine to work", lambda: stack.requests_running() == 1, 1.4, 0.02)
        assert isinstance(waiting.exception(), requests.ReadTimeout)
    wait_until("the engine to stop", lambda: stack.requests_running() == 0, 1, 0.02)
    assert stack.logged("gives-up")["end"] == "client_left"


def test_the_access_log_knows_ttft_gaps_and_tokens(stack: Stack, client: openai.OpenAI) -> None:
    began = time.monotonic()
    first = None
    stream = client.chat.completions.create(
        model="smollm2",
        messages=[{"role": "user", "content": QUESTION}],
        stream=True,
        stream_options={"include_usage": True},
        max_tokens=30,
        extra_body={"ignore_eos": True},
        extra_headers={"X-Request-Id": "watched"},
    )
    for _ in stream:
        first = first or time.monotonic()
    assert first is not None
    total_ms = (time.monotonic() - began) * 1000
    line = stack.logged("watched")
    assert (line["status"], line["end"], line["completion_tokens"]) == (200, "complete", 30)
    assert line["prompt_tokens"] > 10
    assert 0 < line["ttft_ms"] <= (first - began) * 1000 + 5
    assert line["ttft_ms"] < line["total_ms"] <= total_ms + 5
    assert 0 < line["itl_mean_ms"] <= line["itl_max_ms"] < line["total_ms"]


@pytest.fixture
def counted(stack: Stack) -> Iterator[None]:
    """The edge counts the tokens of all streams while the test runs."""

    def switch(value: bool) -> None:
        stack.fleet["edge"]["count_usage"] = value
        (stack.folder / "fleet.yaml").write_text(yaml.safe_dump(stack.fleet, sort_keys=False))
        stack.signalbox("reload")

    switch(True)
    yield
    switch(False)


@pytest.mark.parametrize(
    ("path", "prompt"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": QUESTION}]}),
        ("/v1/completions", {"prompt": "The capital of France is"}),
    ],
)
def test_counting_tokens_takes_nothing_from_a_stream_but_its_usage(
    stack: Stack, counted: None, path: str, prompt: dict[str, Any]
) -> None:
    body = {"model": "smollm2", **prompt, "temperature": 0, "max_tokens": 12, "ignore_eos": True, "stream": True}
    name = "counted-" + path.split("/")[2]

    def ask(url: str, **extra: Any) -> list[str]:
        """The events, without the second at which they were made."""
        answer = requests.post(url + path, json={**body, **extra}, headers={"X-Request-Id": name}, timeout=60)
        assert answer.status_code == 200, answer.text
        return re.sub(r'"created":\d+,', "", answer.text).split("\n\n")

    through, plain = ask(stack.url), ask(stack.engine_urls[0])
    asked = ask(stack.engine_urls[0], stream_options={"include_usage": True})
    (event,) = [one for one in asked if '"choices":[],' in one]
    asked.remove(event)
    assert through == asked
    # vLLM moves its fingerprint into the usage event: the only difference to a stream that nobody counts.
    assert [re.sub(r',"system_fingerprint":"[^"]*"', "", one) for one in plain] == through
    usage = json.loads(event.removeprefix("data: "))["usage"]
    line = stack.logged(name)
    assert (line["prompt_tokens"], line["completion_tokens"]) == (usage["prompt_tokens"], usage["completion_tokens"])
    assert line["completion_tokens"] == 12 and line["end"] == "complete"


def test_a_killed_engine_is_replaced_while_the_other_one_answers(stack: Stack, client: openai.OpenAI) -> None:
    (identity, *_) = sorted(folder.name for folder in (stack.paths.root / "engines").iterdir())
    record = Record.load(stack.paths.engine(identity))
    assert record is not None
    family = psutil.Process(record.pid).children(recursive=True)
    assert family  # the engine core and its worker are processes of their own
    psutil.Process(record.pid).kill()
    # A request on a kept connection that dies at that very moment is answered 502: it may have started, so it is not
    # run again. Once the connections are closed, the other engine takes everything.
    time.sleep(0.5)
    for _ in range(5):
        client.completions.create(model="smollm2", prompt="Still here:", max_tokens=2)

    def replaced() -> bool:
        new = Record.load(stack.paths.engine(identity))
        return new is not None and new.pid != record.pid

    wait_until("a new engine", replaced, 30)
    assert not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in family)
    stack.signalbox("run")  # returns when all engines are ready again
