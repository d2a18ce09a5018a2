"""vLLM's own verdict on settings, run by the Python of its runtime: its parser, its configuration. No model is loaded.

Standard input: JSON, ``settings`` with cases {config, arguments, environment}, ``devices`` with {memory, name}.
Standard output: JSON, for each case what vLLM ``said`` against it (null where it would start) and the tokens and
sequences of its ``step``; for each device the step that it chooses there.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

os.environ.update(VLLM_LOGGING_LEVEL="ERROR", HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1")

from vllm.engine.arg_utils import AsyncEngineArgs, EngineArgs
from vllm.entrypoints.cli.serve import ServeSubcommand
from vllm.platforms import current_platform
from vllm.usage.usage_lib import UsageContext
from vllm.utils.argparse_utils import FlexibleArgumentParser

Verdict = dict[str, Any]


def verdicts(cases: list[dict[str, Any]]) -> list[Verdict]:
    """What vLLM says to each case."""
    parser = FlexibleArgumentParser()
    ServeSubcommand().subparser_init(parser.add_subparsers(required=True, dest="subparser"))
    return [_verdict(parser, case) for case in cases]


def choices(devices: list[dict[str, Any]]) -> list[list[int]]:
    """Tokens and sequences that a server chooses on GPUs of this memory and name."""
    found = []
    for device in devices:
        with (
            mock.patch.object(current_platform, "is_cpu", lambda: False),
            mock.patch.object(current_platform, "get_device_total_memory", lambda own=device: own["memory"]),
            mock.patch.object(current_platform, "get_device_name", lambda own=device: own["name"]),
        ):
            both = EngineArgs.get_batch_defaults(1)
        found.append([one[UsageContext.OPENAI_API_SERVER] for one in both])
    return found


def _verdict(parser: Any, case: dict[str, Any]) -> Verdict:
    said = io.StringIO()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(said):
        (Path(folder) / "config.json").write_text(json.dumps(case["config"]))
        os.environ.update(case["environment"])
        try:
            arguments = parser.parse_args(["serve", folder, "--skip-tokenizer-init", *case["arguments"]])
            arguments.model = arguments.model_tag
            server = UsageContext.OPENAI_API_SERVER
            scheduler = AsyncEngineArgs.from_cli_args(arguments).create_engine_config(server).scheduler_config
        except SystemExit:
            return {"said": said.getvalue().strip().splitlines()[-1], "step": None}
        except Exception as error:
            return {"said": f"{type(error).__name__}: {error}", "step": None}
        finally:
            for name in case["environment"]:
                del os.environ[name]
    return {"said": None, "step": [scheduler.max_num_batched_tokens, scheduler.max_num_seqs]}


if __name__ == "__main__":
    asked = json.load(sys.stdin)
    answers = {"settings": verdicts(asked["settings"]), "devices": choices(asked["devices"])}
    sys.stdout.write("\n" + json.dumps(answers))
