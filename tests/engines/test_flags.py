"""flags.json, its reading, and the script that reads vLLM's source."""

from __future__ import annotations

import re
import textwrap

import pytest

from control.vllm.flags import (
    FILE,
    UnknownRelease,
    flags_of,
    image_version,
    known_releases,
    parse_version,
    since,
    until,
    written,
)
from control.vllm.released.deprecation import deprecation
from control.vllm.released.parser import flags
from control.vllm.released.table import Table
from control.vllm.replaced import INSTEAD
from control.vllm.settings import OWNED, SETTINGS


@pytest.mark.parametrize(
    ("image", "version"),
    [
        ("vllm/vllm-openai:v0.30.1", (0, 30, 1)),
        ("vllm/vllm-openai:v0.30.1-x86_64", (0, 30, 1)),
        ("vllm/vllm-openai:v0.10.1.1", (0, 10, 1)),
        ("registry.lan:5000/vllm:0.32.0@sha256:0123", (0, 32, 0)),
        ("registry.lan:5000/vllm", None),
        ("vllm/vllm-openai:latest", None),
        ("vllm/vllm-openai:nightly", None),
        ("vllm/vllm-openai", None),
        ("vllm/vllm-openai@sha256:0.30.1", None),
    ],
)
def test_the_release_of_an_image(image: str, version: tuple[int, int, int] | None) -> None:
    assert image_version(image) == version


def test_every_minor_release_is_known_and_names_its_wheel() -> None:
    known = known_releases()
    assert known == sorted(known)
    assert {release[:2] for release in known} >= {(0, minor) for minor in range(8, 34)}
    table = Table.read(FILE.read_text(encoding="utf-8"))
    assert all(f"vllm-{release}-" in origin for release, origin in table.origins.items())


def test_the_file_is_what_the_script_would_write() -> None:
    text = FILE.read_text(encoding="utf-8")
    assert Table.read(text).text() == text


def test_adding_a_release_changes_only_the_lines_of_what_changed() -> None:
    table = Table()
    table.add("0.1.0", "a", {"--x": {"form": "switch"}, "--y": {"form": "pair"}})
    table.add("0.3.0", "c", {"--x": {"form": "switch"}, "--z": {"form": "pair"}})
    before = table.text().splitlines()
    table.add("0.2.0", "b", {"--x": {"form": "switch"}, "--y": {"form": "value", "type": "int"}})
    changed = [line for line in table.text().splitlines() if line not in before]
    assert changed == [
        '    "0.2.0": "b",',
        '    "--y": [',
        '      {"from": "0.1.0", "to": "0.1.0", "form": "pair"},',
        '      {"from": "0.2.0", "to": "0.2.0", "form": "value", "type": "int"}',
        "    ],",
    ]
    assert Table.read(table.text()) == table


def test_a_release_between_two_known_ones_has_the_flags_of_the_older() -> None:
    between = flags_of((0, 12, 7))
    assert (between.known, between.newer) == ((0, 12, 0), False)
    assert between.version == (0, 12, 7)


def test_a_release_newer_than_all_has_the_flags_of_the_newest() -> None:
    newest = known_releases()[-1]
    new = flags_of((9, 0, 0))
    assert (new.known, new.newer) == (newest, True)
    assert flags_of(None).known == newest and not flags_of(None).newer


def test_a_release_older_than_all_is_refused() -> None:
    with pytest.raises(UnknownRelease, match=r"vLLM 0\.7\.3 is older than 0\.8\.0"):
        flags_of((0, 7, 3))


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("--max_num_seqs", "--max-num-seqs"),
        ("--max-num-seqs=4", "--max-num-seqs"),
        ("-tp", "--tensor-parallel-size"),
        ("--no-enable-lora", "--enable-lora"),
        ("--compilation-config.level", "--compilation-config"),
        ("--chunked-prefill", None),
        ("--no-seed", None),
    ],
)
def test_how_a_flag_may_be_written(word: str, name: str | None) -> None:
    found = flags_of((0, 32, 0)).find(word)
    assert (found.name if found else None) == name


def test_what_changed_over_the_releases() -> None:
    """Facts that people stumble over, each seen in the release's source."""
    assert (until("--swap-space"), since("--swap-space")) == ((0, 17, 1), (0, 8, 0))
    assert since("--kv-cache-memory-bytes") == (0, 10, 2)
    assert since("--shutdown-timeout") == (0, 18, 0)
    assert since("--max-num-queued-reqs") == (0, 29, 0)
    assert until("--max-num-seqs") is None and since("--no-such-flag") is None
    old, new = flags_of((0, 8, 5)), flags_of((0, 32, 0))
    assert [release.by_spelling["--enforce-eager"].form for release in (old, new)] == ["switch", "pair"]
    assert old.find("--no-enforce-eager") is None and new.find("--no-enforce-eager") is not None
    assert flags_of((0, 8, 0)).by_spelling["--enable-chunked-prefill"].choices == ("false", "true")


def test_whatever_signalbox_sets_is_a_flag_of_some_release() -> None:
    assert [name for name in OWNED if since(name) is None] == []
    newest = flags_of(None)
    assert [names[0] for names in SETTINGS.values() if newest.find(names[0]) is None] == []


SOURCE = {
    "vllm/entrypoints/cli/serve.py": "from vllm.entrypoints.somewhere import make_arg_parser\n",
    "vllm/entrypoints/somewhere.py": """
        from vllm.engine.arg_utils import AsyncEngineArgs, get_kwargs, optional_type
        from vllm.config import config
        @config
        class FrontendArgs:
            host: str | None = None
            origins: list[str] = None
            chat_format: Format = "auto"
            verbose: bool = False
            @classmethod
            def _customize_cli_kwargs(cls, frontend_kwargs):
                frontend_kwargs["origins"]["type"] = json.loads
                del frontend_kwargs["origins"]["nargs"]
                return frontend_kwargs
            @classmethod
            def add_cli_args(cls, parser):
                frontend_kwargs = get_kwargs(cls)
                frontend_kwargs = cls._customize_cli_kwargs(frontend_kwargs)
                group = parser.add_argument_group(title="Frontend")
                for key, value in frontend_kwargs.items():
                    group.add_argument(f"--{key.replace('_', '-')}", **value)
                return parser
        def make_arg_parser(parser):
            parser.add_argument("model_tag", type=str, nargs="?")
            parser.add_argument("--headless", action="store_true", help="none")
            parser.add_argument("--old", action="store_true", deprecated=True)
            for arg, type in [("--gone-a", str), ("--gone-b", bool)]:
                parser.add_argument(arg, type=type, deprecated=True)
            parser = FrontendArgs.add_cli_args(parser)
            return AsyncEngineArgs.add_cli_args(parser)
    """,
    "vllm/config/__init__.py": "from vllm.config.model import Load, ModelConfig, Names\n",
    "vllm/config/model.py": """
        from typing import TYPE_CHECKING, Literal
        from pydantic import PositiveInt
        if TYPE_CHECKING:
            from elsewhere import Quantization
        else:
            Quantization = Any
        Size = Literal[8, 16]
        Names = Literal["b", "a"]
        @config
        class Load:
            format: str = "auto"
        class Kind(Enum):
            ONE = "one"
            TWO = "two"
        @config
        class ModelConfig:
            size: Size | None = None
            names: Names = "a"
            open_names: str | Names = "a"
            seed: PositiveInt = 1
            max_model_len: int = None
            share: float | None = 0.9
            eager: bool | None = None
            load: Load = field(default_factory=Load)
            overrides: dict[str, int] = field(default_factory=dict)
            either: dict | str = ""
            quantization: Quantization | None = None
            pair: tuple[int, int] = (1, 2)
            many: tuple[str, ...] = ()
            left_out: ClassVar[int] = 3
    """,
    "vllm/engine/arg_utils.py": """
        from vllm.config import ModelConfig
        from vllm.config.model import Kind
        OLD_LOG = (
            "--old-log is deprecated. "
            "Use --log."
        )
        def optional_type(kind): ...
        def literal_to_kwargs(hints): return {"metavar": 1}
        def get_kwargs(cls):
            if name == "max_model_len": kind = union_dict_and_str
        class EngineArgs:
            @staticmethod
            def add_cli_args(parser):
                model_kwargs = get_kwargs(ModelConfig)
                model_kwargs["names"]["choices"].remove("b")
                if not ("serve" in sys.argv and "--help" in sys.argv):
                    parser.add_argument("--model", **model_kwargs["open_names"])
                parser.add_argument("--size", "-s", **model_kwargs["size"])
                parser.add_argument("--old-log", type=str, help=OLD_LOG)
                parser.add_argument("--names", **model_kwargs["names"])
                parser.add_argument("--seed", **{**model_kwargs["seed"], "default": None})
                parser.add_argument("--max-model-len", **model_kwargs["max_model_len"])
                parser.add_argument("--share", **model_kwargs["share"])
                parser.add_argument("--eager", **model_kwargs["eager"])
                parser.add_argument("--load", **model_kwargs["load"])
                parser.add_argument("--overrides", **model_kwargs["overrides"])
                parser.add_argument("--either", **model_kwargs["either"])
                parser.add_argument("--quantization", **model_kwargs["quantization"])
                parser.add_argument("--pair", **model_kwargs["pair"])
                parser.add_argument("--many", **model_kwargs["many"])
                parser.add_argument("--kind", type=str, choices=[k.value for k in Kind])
                backend = model_kwargs["names"]
                backend["type"] = lambda s: s.lower()
                parser.add_argument("--backend", **backend)
                return parser
        class AsyncEngineArgs(EngineArgs):
            @staticmethod
            def add_cli_args(parser, async_args_only=False):
                if not async_args_only:
                    parser = EngineArgs.add_cli_args(parser)
                parser.add_argument("--enable-log-requests", action=argparse.BooleanOptionalAction)
                return parser
    """,
}


def test_the_script_reads_types_choices_and_exceptions_out_of_source() -> None:
    source = {path: textwrap.dedent(text) for path, text in SOURCE.items()}
    text = {"form": "value", "type": "text"}
    assert flags(source.get) == {
        "--backend": {"form": "value", "type": "any"},
        "--chat-format": text,
        "--eager": {"form": "pair"},
        "--either": text,
        "--enable-log-requests": {"form": "pair"},
        "--gone-a": text | {"deprecated": True},
        "--gone-b": text | {"deprecated": True},
        "--headless": {"form": "switch"},
        "--host": text,
        "--kind": text | {"choices": ["one", "two"]},
        "--load": {"form": "value", "type": "json"},
        "--many": text | {"nargs": "+"},
        "--max-model-len": {"form": "value", "type": "size"},
        "--model": text,
        "--names": text | {"choices": ["a"]},
        "--old": {"form": "switch", "deprecated": True},
        "--old-log": text | {"deprecated": True, "instead": "Use --log."},
        "--origins": {"form": "value", "type": "json"},
        "--overrides": {"form": "value", "type": "json"},
        "--pair": {"form": "value", "type": "int", "nargs": 2},
        "--quantization": text,
        "--seed": {"form": "value", "type": "int"},
        "--share": {"form": "value", "type": "float"},
        "--size": {"form": "value", "type": "int", "choices": [8, 16, None], "aliases": ["-s"]},
        "--verbose": {"form": "pair"},
    }


def test_what_is_written_instead_is_a_flag_of_the_releases_that_lack_the_old_one() -> None:
    for name, words in INSTEAD.items():
        last = until(name)
        assert last is not None, name
        later = flags_of(next(release for release in known_releases() if release > last))
        assert later.find(name) is None
        for flag in re.findall(r"--[a-z0-9-]+", words):
            assert later.find(flag) is not None, (name, flag)


@pytest.mark.parametrize(
    ("text", "goes", "instead"),
    [
        ("--x is deprecated and will be removed in v0.33.0. Use --y.z instead.", True, "Use --y.z instead."),
        ("[DEPRECATED] The seed.\n  Please use\n  --y.", True, "Please use --y."),
        ("[DEPRECATED] The task to use the model for. A model may do many.", True, ""),
        ("DEPRECATED: Use `b` instead. It is kept.", True, "Use `b` instead."),
        ("Device type. This parameter is deprecated and will be removed in 0.10.", True, ""),
        ("Whether to allow deprecated quantization methods.", False, ""),
        ("Enable deprecated Prometheus metrics that have been hidden since the version.", False, ""),
        ("Ranks. It will be deprecated when PCP is supported. Use it.", False, ""),
    ],
)
def test_what_the_help_of_a_flag_says_of_its_end(text: str, goes: bool, instead: str) -> None:
    assert deprecation(text) == (goes, instead)


def test_the_script_says_what_it_cannot_read() -> None:
    source = {path: textwrap.dedent(text) for path, text in SOURCE.items()}
    source["vllm/entrypoints/somewhere.py"] = "def make_arg_parser(p):\n    p.add_argument(NAME, type=str)\n"
    with pytest.raises(ValueError, match="only running vLLM would tell"):
        flags(source.get)
    with pytest.raises(ValueError, match=r"vllm\.entrypoints\.cli\.serve has no function make_arg_parser"):
        flags({}.get)


def test_versions_as_text() -> None:
    assert written((0, 30, 1)) == "0.30.1"
    assert [parse_version(text) for text in ("0.30.1", "v1.2.3rc1", "1.2", "")] == [(0, 30, 1), (1, 2, 3), None, None]
