"""Forms with files: routed by their model field wherever it stands, the file untouched."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator

import psutil
import pytest
import requests

from tests.support.client import check_error
from tests.support.edge import Edge
from tests.support.engine import ScriptedEngine
from tests.support.fleets import Alphabet, one_model

PATH = "/v1/audio/transcriptions"
BOUNDARY = "----edge-boundary-7f"


def field(name: str, value: str, extra: str = "") -> bytes:
    return f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"\r\n{extra}\r\n{value}\r\n'.encode()


def file(data: bytes, filename: str = "speech.wav") -> bytes:
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="{filename}"\r\n'
    return head.encode() + b"Content-Type: audio/wav\r\n\r\n" + data + b"\r\n"


def form(*parts: bytes) -> bytes:
    return b"".join(parts) + f"--{BOUNDARY}--\r\n".encode()


def send(edge: Edge, body: bytes | Iterator[bytes], path: str = PATH, boundary: str = BOUNDARY) -> requests.Response:
    return edge.post(path, data=body, headers={"Content-Type": f"multipart/form-data; boundary={boundary}"})


SIZES = {"10 KB": 10_000, "300 KB": 300_000, "5 MB": 5_000_000}


@pytest.mark.parametrize("place", ["first", "last", "between"])
@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_the_model_may_stand_anywhere(alphabet: Alphabet, size: int, place: str) -> None:
    """Clients put the file first; a reader that looks at the beginning only would miss the model."""
    data = os.urandom(size)
    model, upload, other = field("model", "alpha"), file(data), field("language", "en")
    parts = {"first": (model, upload, other), "last": (upload, other, model), "between": (other, model, upload)}[place]
    answer = send(alphabet.edge, form(*parts))
    assert answer.status_code == 200, answer.text
    seen = answer.json()
    assert seen["model"] == "alpha"
    expected = {"name": "speech.wav", "size": size, "sha256": hashlib.sha256(data).hexdigest()}
    assert seen["file"] == expected


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_an_alias_is_replaced_and_the_file_is_not_touched(alphabet: Alphabet, size: int) -> None:
    data = os.urandom(size)
    for name, real in (("alpha-chat", "alpha"), ("beta", "org/beta:v1")):
        answer = send(alphabet.edge, form(file(data), field("model", name), field("prompt", name)))
        assert answer.status_code == 200, answer.text
        seen = answer.json()
        assert seen["model"] == real
        assert seen["file"]["sha256"] == hashlib.sha256(data).hexdigest()


def test_translations_and_real_clients_work(alphabet: Alphabet) -> None:
    for path in (PATH, "/v1/audio/translations"):
        files = {"file": ("a.mp3", b"x" * 5000, "audio/mpeg")}
        answer = alphabet.edge.call("POST", path, data={"model": "alpha", "language": "en"}, files=files)
        assert answer.json()["file"]["size"] == 5000


def test_a_chunked_upload_is_routed(alphabet: Alphabet) -> None:
    body = form(file(b"y" * 700_000), field("model", "alpha"))
    answer = send(alphabet.edge, (body[start : start + 50_000] for start in range(0, len(body), 50_000)))
    assert answer.json()["file"]["size"] == 700_000


def test_a_stream_of_a_transcription_passes(alphabet: Alphabet) -> None:
    answer = send(alphabet.edge, form(field("model", "alpha"), field("stream", "true"), file(b"z" * 100)))
    assert answer.headers["Content-Type"].startswith("text/event-stream")
    assert answer.text.endswith("data: [DONE]\n\n")


DECOYS = {
    "in the file": file(b'\r\nContent-Disposition: form-data; name="model"\r\n\r\nbeta\r\n--' + b"x" * 100),
    "in the file's name": file(b"data", filename="name=model; x=beta"),
    "in another field": field("prompt", 'Content-Disposition: form-data; name="model"'),
    "a part with more headers": field("language", "en", 'X-Extra: name="model"\r\n'),
}


@pytest.mark.parametrize("decoy", DECOYS.values(), ids=DECOYS)
def test_decoys_are_not_the_model(alphabet: Alphabet, decoy: bytes) -> None:
    before = [engine.started(PATH) for engine in alphabet.engines]
    answer = send(alphabet.edge, form(decoy, field("model", "alpha")))
    assert answer.status_code == 200, answer.text
    after = [engine.started(PATH) for engine in alphabet.engines]
    assert sum(after[:2]) == sum(before[:2]) + 1 and after[2] == before[2]


def test_a_boundary_that_goes_on_is_refused(alphabet: Alphabet) -> None:
    """Parsers differ in whether it ends the part, so in which model they would read behind it."""
    decoy = b'\r\nContent-Disposition: form-data; name="model"\r\n\r\nbeta'
    body = form(file(f"a\r\n--{BOUNDARY}extra".encode() + decoy), field("model", "alpha"))
    check_error(send(alphabet.edge, body), 400, "invalid_multipart")


def test_a_form_without_a_model_is_refused(alphabet: Alphabet) -> None:
    check_error(send(alphabet.edge, form(file(b"abc"))), 400, "model_required")


def test_an_unknown_model_in_a_form_is_404(alphabet: Alphabet) -> None:
    check_error(send(alphabet.edge, form(file(b"abc"), field("model", "nobody"))), 404, "model_not_found")


def test_two_models_in_a_form_are_refused(alphabet: Alphabet) -> None:
    body = form(field("model", "alpha"), file(b"abc"), field("model", "beta"))
    check_error(send(alphabet.edge, body), 400, "duplicate_key")


@pytest.mark.parametrize(
    "content_type",
    [
        "multipart/form-data",
        "multipart/form-data; boundary=",
        'multipart/form-data; boundary="',
        "multipart/form-data; x=y",
    ],
)
def test_a_form_without_a_boundary_is_refused(alphabet: Alphabet, content_type: str) -> None:
    answer = alphabet.edge.post(PATH, data=b"whatever", headers={"Content-Type": content_type})
    assert answer.status_code == 400
    check_error(answer, 400, answer.json()["error"]["code"])


@pytest.mark.parametrize("body", [b"", b"--", b"no boundary at all", f"--{BOUNDARY}\r\n".encode() * 3])
def test_a_broken_form_is_refused(alphabet: Alphabet, body: bytes) -> None:
    answer = send(alphabet.edge, body)
    assert answer.status_code == 400
    check_error(answer, 400, answer.json()["error"]["code"])


def test_json_on_an_audio_path_is_415(alphabet: Alphabet) -> None:
    check_error(alphabet.edge.post(PATH, {"model": "alpha"}), 415, "unsupported_media_type")


def test_large_files_do_not_stay_in_memory(engine: ScriptedEngine) -> None:
    """The file waits on disk; a worker that read it into Lua would keep its size for long."""
    with Edge(one_model("alpha", engine)) as edge:
        body = form(file(b"w" * 40_000_000), field("model", "alpha"))
        send(edge, form(file(b"w"), field("model", "alpha")))
        before = {pid: psutil.Process(pid).memory_info().rss for pid in edge.workers()}
        for _ in range(2):
            assert send(edge, body).status_code == 200
        grown = max(psutil.Process(pid).memory_info().rss - size for pid, size in before.items())
    assert grown < 16 * 1024**2, f"{grown / 1024**2:.0f} MB"
