"""The edge's Lua must run on Debian's nginx and on OpenResty: calls that only one of them has are forbidden."""

from __future__ import annotations

import re

import pytest

from tests.support.net import REPOSITORY

FORBIDDEN = {
    r"enable_keepalive": "absent in Debian's lua-nginx-module",
    r"set_upstream_tls": "absent in Debian's lua-nginx-module",
    r"ngx\.pipe": "needs a patched nginx",
    r"privileged_agent": "needs a patched nginx",
    r"get_body_data\(\s*[^)\s]": "takes no limit in Debian's version",
    r"set_current_peer\([^,()]+,[^,()]+,": "the third argument is new",
    r"sleep\(0\)": "logs a warning on Debian",
    r"empty_array|array_mt|encode_empty_table|escape_forward_slash": "Debian's cjson has none of it",
    r"require *\(?[\"']resty\.(http|lock|limit|string|lrucache)": "not everywhere installed",
}


@pytest.mark.parametrize("pattern", FORBIDDEN, ids=lambda pattern: re.sub(r"\W+", " ", pattern).strip())
def test_no_module_uses(pattern: str) -> None:
    found = []
    for path in sorted((REPOSITORY / "lua").rglob("*.lua")):
        code = re.sub(r"--.*", "", path.read_text())
        if re.search(pattern, code):
            found.append(path.name)
    assert not found, f"{found}: {FORBIDDEN[pattern]}"


def test_the_balancer_answers_nothing_itself() -> None:
    """ngx.exit(503) in the balancer phase gives 500 without OpenResty's patch: refusals belong to the access phase."""
    code = (REPOSITORY / "lua" / "edge" / "balancer.lua").read_text()
    assert not re.search(r"exit\(\s*(ngx\.HTTP_\w+|[3-5]\d\d)", code)
