"""The cost benchmark: it runs, refuses invalid measurements, and the document says what the figures say."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from control.bench.edge import __main__ as edge
from control.bench.edge import client, report
from control.bench.edge.load import CPU_LOADS, EVENTS_PER_STREAM, KEY, chat_body, parse_wrk, run_wrk
from control.bench.edge.process import BenchError, Tree, two_cores
from control.bench.edge.rows import ROWS, failed, summarize
from control.bench.edge.stand import fake_engine, signalbox
from control.edge.site import client as admin_of
from control.edge.site import open_site
from control.fleet.load import load
from tests.support.net import wait_until

Repeat = dict[str, dict[str, float]]


@contextlib.contextmanager
def answering(answer: bytes) -> Iterator[int]:
    """A server on a free port that gives every request the same answer."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def one(connection: socket.socket) -> None:
            with connection, contextlib.suppress(OSError):
                while connection.recv(1 << 16):
                    connection.sendall(answer)

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    threading.Thread(target=one, args=(listener.accept()[0],), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


def repeat(signalbox: float, router: float, **rows: float) -> Repeat:
    """One repeat with the same values in every row; ``rows`` overrides Signalbox's."""
    return {row.id: {"nginx": 0.1, "signalbox": rows.get(row.id, signalbox), "vllm-router": router} for row in ROWS}


@pytest.mark.parametrize("size", [200, 1_000, 100_000])
def test_bodies_have_the_size_that_the_row_names(size: int) -> None:
    body = chat_body(size)
    assert len(body) == size
    assert json.loads(body)["model"] == "m1"


def test_wrk_output_with_failed_requests_is_refused() -> None:
    good = "  1200 requests in 1.00s, 1.2MB read\n"
    assert parse_wrk(good) == 1200
    for bad in (
        good + "  Non-2xx or 3xx responses: 1\n",
        good + "  Socket errors: connect 0, read 1, write 0, timeout 0\n",
        "",
    ):
        with pytest.raises(BenchError, match="Not a valid measurement"):
            parse_wrk(bad)


def test_a_real_load_that_is_answered_429_is_no_measurement(tmp_path: Path) -> None:
    refusal = b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 0\r\n\r\n"
    with answering(refusal) as port:
        tree = Tree("refusing", os.getpid(), port)
        with pytest.raises(BenchError, match=r"refusing, 1kb: .*Non-2xx"):
            run_wrk(tree, CPU_LOADS["1kb"], 0.1, core=two_cores().load, folder=tmp_path)
        with pytest.raises(BenchError, match=r"refusing answered 'HTTP/1\.1 429"):
            client.burst("refusing", port, b"{}", 2, 2)


def test_an_answer_that_is_cut_is_no_measurement() -> None:
    with answering(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabcde") as port:
        connection = client.Connection("whole", port)
        assert connection.exchange(b"x").endswith(b"abcde")
        connection.close()
    assert not client.complete(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabcd")
    assert not client.complete(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n")


def test_percentiles_are_nearest_rank() -> None:
    values = [float(value) for value in range(100, 0, -1)]
    assert [client.percentile(values, share) for share in (0.0, 0.5, 0.99, 1.0)] == [1.0, 50.0, 99.0, 100.0]
    assert client.percentile([7.0], 0.99) == 7.0


def test_ratios_are_taken_within_a_repeat() -> None:
    # Machine twice as slow in the second repeat: the ratio must not see it.
    rows = {row["id"]: row for row in summarize([repeat(20, 40), repeat(40, 80), repeat(30, 60)])}
    assert rows["cpu_1kb"]["ratios"]["vllm-router"] == {"median": 0.5, "min": 0.5, "max": 0.5, "repeats": [0.5] * 3}
    assert rows["cpu_1kb"]["values"]["signalbox"]["median"] == 30
    assert rows["chunk_p99"]["ratios"] == {}


@pytest.mark.parametrize(
    ("row", "held", "not_held"),
    [
        ("cpu_1kb", 40, 41),
        ("cpu_10kb", 40, 41),
        ("cpu_100kb", 36, 37),
        ("cpu_stream", 40, 41),
        ("chunk_p99", 0.5, 0.51),
        ("memory_growth", 64, 65),
    ],
)
def test_each_bound_decides(row: str, held: float, not_held: float) -> None:
    assert failed(summarize([repeat(0.1, 40, **{row: held})])) == []
    title = next(item.title for item in ROWS if item.id == row)
    assert failed(summarize([repeat(0.1, 40, **{row: not_held})])) == [title]


def test_where_plain_nginx_is_late_itself_the_other_router_is_the_bound() -> None:
    def judged(nginx: float, ours: float) -> dict[str, Any]:
        late = {**repeat(0.1, 40), "chunk_p99": {"nginx": nginx, "signalbox": ours, "vllm-router": 1.1}}
        found: dict[str, Any] = next(row for row in summarize([late]) if row["id"] == "chunk_p99")["bound"]
        return found

    assert judged(0.5, 0.9)["held"] is False
    assert judged(0.6, 0.9) == {"text": "≤ vllm-router (plain nginx is above 0.5 ms)", "limit": 1.1, "against": None,
                                "value": 0.9, "held": True}  # fmt: skip
    assert judged(0.6, 1.2)["held"] is False


def test_a_bound_without_its_peer_is_not_called_held() -> None:
    alone = {name: {"nginx": 10.0, "signalbox": 20.0} for name in (row.id for row in ROWS)}
    row = next(row for row in summarize([alone]) if row["id"] == "cpu_1kb")
    assert row["bound"]["held"] is None
    assert report.cells(row)[-1] == "not measured"


def test_the_document_says_what_the_figures_say(capsys: pytest.CaptureFixture[str]) -> None:
    assert report.main(["--check"]) == 0, capsys.readouterr().err


def test_the_figures_are_of_a_whole_run() -> None:
    figures = json.loads(report.FIGURES.read_text())
    assert [row["id"] for row in figures["rows"]] == [row.id for row in ROWS]
    assert figures["effort"] == asdict(edge.Effort()), "a short run is no proof: run make bench-edge on a quiet machine"
    for row in figures["rows"]:
        assert all(len(value["repeats"]) == 5 for value in row["values"].values())
        assert {"nginx", "signalbox", "vllm-router"} <= set(row["values"])


def test_a_table_out_of_date_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    document = tmp_path / "performance.md"
    document.write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n")
    monkeypatch.setattr(report, "DOCUMENT", document)
    assert report.main(["--check"]) == 1
    assert report.main([]) == 0
    assert report.main(["--check"]) == 0
    assert document.read_text().startswith("before\n") and document.read_text().endswith("\nafter\n")
    document.write_text("no markers")
    with pytest.raises(BenchError, match="No place for the table"):
        report.main([])


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_everything_is_on_in_the_edge_that_is_measured(tmp_path: Path) -> None:
    """A feature that is off by mistake would make the figures better."""
    tmp_path.chmod(0o755)
    with fake_engine(two_cores(), tmp_path) as stand, signalbox(stand) as tree:
        with socket.create_connection(("127.0.0.1", tree.port), timeout=10) as keyless:
            keyless.sendall(client.request_bytes(chat_body(1_000)).replace(KEY.encode(), b"no"))
            assert keyless.recv(1 << 16).startswith(b"HTTP/1.1 401 ")
        edge.verify(tree)
        connection = client.Connection("signalbox", tree.port)
        answer = connection.exchange(client.request_bytes(chat_body(1_000)))
        connection.close()
        assert b"x-ratelimit-limit-requests: " in answer and b"x-ratelimit-limit-tokens: " in answer
        site = open_site(load(tmp_path / "signalbox" / "fleet.yaml"))
        admin = admin_of(site.paths)
        wait_until("its caches to count", lambda: all(one["kv_tokens"] for one in admin.state()["backends"]))
        admin.close()

        def lines() -> list[dict[str, Any]]:
            site.process.reopen_logs()
            text = (site.paths.edge_logs / "access.log").read_text()
            return [json.loads(line) for line in text.splitlines() if '"stream":true' in line]

        streams = wait_until("the line of the stream", lines)
        assert [line["completion_tokens"] for line in streams] == [EVENTS_PER_STREAM]
        assert streams[0]["key"] == "bench"


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_a_quick_run_measures_every_row(tmp_path: Path) -> None:
    target = tmp_path / "figures.json"
    code = edge.main(["--quick", "--without", "vllm-router", "--output", str(target)])
    result = json.loads(target.read_text())
    assert [row["id"] for row in result["rows"]] == [row.id for row in ROWS]
    for row in result["rows"]:
        assert {"nginx", "signalbox"} <= set(row["values"]), row["id"]
    for row in result["rows"]:
        if row["id"].startswith("cpu_"):
            assert 1 < row["values"]["signalbox"]["median"] < 100_000
    assert code == int(bool(failed(result["rows"])))
    assert target.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
