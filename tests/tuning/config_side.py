"""vLLM's own verdict on settings, run by the Python of its runtime: its parser, its configuration. No model is loaded.

Standard input: a JSON list of cases {config, arguments, environment}; standard output: for each what vLLM said against
it, null where it would start.
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

os.environ.update(VLLM_LOGGING_LEVEL="ERROR", HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1")

from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.cli.serve import ServeSubcommand
from vllm.usage.usage_lib import UsageContext
from vllm.utils.argparse_utils import FlexibleArgumentParser


def verdicts(cases: list[dict[str, Any]]) -> list[str | None]:
    """What vLLM says against each case."""
    parser = FlexibleArgumentParser()
    ServeSubcommand().subparser_init(parser.add_subparsers(required=True, dest="subparser"))
    return [_verdict(parser, case) for case in cases]


def _verdict(parser: Any, case: dict[str, Any]) -> str | None:
    said = io.StringIO()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(said):
        (Path(folder) / "config.json").write_text(json.dumps(case["config"]))
        os.environ.update(case["environment"])
        try:
            arguments = parser.parse_args(["serve", folder, "--skip-tokenizer-init", *case["arguments"]])
            arguments.model = arguments.model_tag
            AsyncEngineArgs.from_cli_args(arguments).create_engine_config(usage_context=UsageContext.OPENAI_API_SERVER)
        except SystemExit:
            return said.getvalue().strip().splitlines()[-1]
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        finally:
            for name in case["environment"]:
                del os.environ[name]
    return None


if __name__ == "__main__":
    sys.stdout.write("\n" + json.dumps(verdicts(json.load(sys.stdin))))
