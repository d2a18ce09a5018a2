"""nginx_quote against a real nginx: what goes in comes out, or is refused."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import requests
from hypothesis import given
from hypothesis import strategies as st

from control.edge.binary import find_engine
from control.edge.ports import free_port
from control.edge.quoting import MAX_BYTES, nginx_quote
from control.errors import RenderError

HOSTILE = [
    "",
    " ",
    "plain",
    "a;b",
    "a; } server { listen 1; }",
    "#comment",
    "a#b",
    "{{ 7 * 7 }}",
    "{% raw %}",
    "{}",
    '"',
    "'",
    '";',
    "';",
    '"; } http { "',
    "\\",
    "\\\\",
    'end\\"',
    "end\\",
    "\\n",
    "\\t\\r",
    "\\;",
    "C:\\new\\table",
    "`id`",
    "$(id)".replace("$", ""),
    "ümlaut 模型 🚂",
    "\u2028line\u00a0space",
    "a" * (MAX_BYTES - 2),
    '"' * (MAX_BYTES // 2 - 1),
    "'\"" * 100,
]


@pytest.fixture(scope="module")
def echoed(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """Each hostile string as a real nginx reads it: returned as the body of one location each."""
    folder: Path = tmp_path_factory.mktemp("quoting")
    port = free_port()
    locations = "\n".join(f"location = /{n} {{ return 200 {nginx_quote(text)}; }}" for n, text in enumerate(HOSTILE))
    temp = "\n".join(f"{kind}_temp_path {kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    (folder / "nginx.conf").write_text(
        f"pid nginx.pid; daemon off; error_log stderr; events {{}}\n"
        f"http {{ access_log off; {temp} server {{ listen 127.0.0.1:{port};\n{locations}\n}} }}"
    )
    command = [str(find_engine().path), "-p", f"{folder}/", "-e", "stderr", "-c", "nginx.conf"]
    subprocess.run([*command, "-t"], check=True)
    server = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        with requests.Session() as session:
            session.trust_env = False
            session.mount(
                "http://", requests.adapters.HTTPAdapter(max_retries=requests.adapters.Retry(8, backoff_factor=0.05))
            )
            return [session.get(f"http://127.0.0.1:{port}/{n}", timeout=5).content for n in range(len(HOSTILE))]
    finally:
        server.terminate()
        server.wait(10)


@pytest.mark.parametrize("number", range(len(HOSTILE)))
def test_nginx_reads_back_what_was_quoted(echoed: list[bytes], number: int) -> None:
    assert echoed[number] == HOSTILE[number].encode()


@pytest.mark.parametrize(
    "text",
    [
        "$host",
        "a$",
        "${x}",
        "a\nb",
        "a\r",
        "\0",
        "\x1b[31m",
        "\x7f",
        "\x85",
        "\ud800",
        "a" * (MAX_BYTES - 1),
        "\\" * (MAX_BYTES // 2),
    ],
)
def test_what_nginx_cannot_hold_is_refused(text: str) -> None:
    with pytest.raises(RenderError):
        nginx_quote(text)


def test_only_text_is_quoted() -> None:
    with pytest.raises(RenderError, match="not int"):
        nginx_quote(7)  # type: ignore[arg-type]


@given(st.text(alphabet=st.characters(exclude_categories=("Cs", "Cc"), exclude_characters="$"), max_size=200))
def test_a_quote_never_ends_early(text: str) -> None:
    """Read the token as nginx does (ngx_conf_read_token): it ends at its last character and gives the text back."""
    token = nginx_quote(text)
    assert token[0] == '"'
    out, index = "", 1
    while token[index] != '"':
        if token[index] == "\\":
            index += 1
            assert token[index] in '"\\'
        out += token[index]
        index += 1
    assert index == len(token) - 1
    assert out == text
