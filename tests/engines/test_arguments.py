"""Argument lists for five releases of vLLM: as they were written down, and as each release's flags allow."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import pytest

from control.fleet.schema import Engine
from control.vllm.flags import flags_of, parse_version
from control.vllm.settings import SETTINGS
from tests.support.vllm_cases import ALONE, CASES, RELEASES, list_of, rebuilt_parser

GOLDEN = Path(__file__).parent / "golden" / "vllm_arguments.json"

#: Settings that a release does not have, and what is said then.
REFUSED = {
    ("0.8.5", "kv_cache_memory alone"): "vLLM 0.8.5 has no such setting.\nIt is there since vLLM 0.10.2.",
    ("0.10.0", "kv_cache_memory alone"): "vLLM 0.10.0 has no such setting.\nIt is there since vLLM 0.10.2.",
    ("0.8.5", "chunked_prefill off"): "vLLM 0.8.5 always cuts long prompts, whatever it is told.",
    ("0.10.0", "chunked_prefill off"): "vLLM 0.10.0 always cuts long prompts, whatever it is told.",
}


def test_every_setting_of_the_schema_is_tried_alone() -> None:
    assert set(SETTINGS) <= set(ALONE)
    assert set(SETTINGS) <= set(Engine.model_fields)


def test_the_lists_are_as_written_down() -> None:
    lists = {release: {name: list_of(case, release) for name, case in CASES.items()} for release in RELEASES}
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.parent.mkdir(exist_ok=True)
        GOLDEN.write_text(_text(lists), encoding="utf-8")
    assert lists == json.loads(GOLDEN.read_text(encoding="utf-8")), "UPDATE_GOLDEN=1 writes them anew"


def _text(lists: dict[str, dict[str, Any]]) -> str:
    releases = []
    for release, cases in lists.items():
        lines = ",\n".join(f"    {json.dumps(name)}: {json.dumps(case)}" for name, case in cases.items())
        releases.append(f"  {json.dumps(release)}: {{\n{lines}\n  }}")
    return "{\n" + ",\n".join(releases) + "\n}\n"


@pytest.mark.parametrize("release", RELEASES)
def test_each_list_is_one_that_the_release_takes(release: str) -> None:
    parser = rebuilt_parser(flags_of(parse_version(release)))
    for name, case in CASES.items():
        arguments = list_of(case, release)
        if (release, name) in REFUSED:
            assert REFUSED[release, name] in arguments
            continue
        assert isinstance(arguments, list), f"{name}: {arguments}"
        parsed, rest = parser.parse_known_args(arguments)
        assert rest == [], name
        assert (parsed.model_tag, parsed.served_model_name) == ("/models/m", ["m", "alias"]), name
        assert (parsed.host, parsed.port) == ("127.0.0.1", 8101), name
        for field, value in case.items():
            if field in SETTINGS:
                said = getattr(parsed, SETTINGS[field][0][2:].replace("-", "_"))
                assert said == (512 * 1024**2 if field == "kv_cache_memory" else value), (name, field)


def test_the_rebuilt_parser_refuses_what_a_release_does_not_know() -> None:
    old, new = (rebuilt_parser(flags_of(parse_version(release))) for release in ("0.8.5", "0.32.0"))
    assert old.parse_known_args(["m", "--swap-space", "4"])[1] == []
    assert new.parse_known_args(["m", "--swap-space", "4"])[1] == ["--swap-space", "4"]
    with pytest.raises(argparse.ArgumentError, match="invalid choice"):
        old.parse_known_args(["--block-size", "7"])
    assert new.parse_known_args(["--chunked-prefill"])[1] == ["--chunked-prefill"]
