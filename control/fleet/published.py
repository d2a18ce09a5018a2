"""fleet.schema.json, for editors. Written anew by ``python -m control.fleet.published > fleet.schema.json``."""

from __future__ import annotations

import json
import sys
from typing import Any

from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import CoreSchema

from control.fleet.schema import Fleet

FILE_NAME = "fleet.schema.json"


class _Generator(GenerateJsonSchema):
    """Without titles that only repeat the key ("Max Body"): editors would show them before the description."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def generate(self, schema: CoreSchema, mode: Any = "validation") -> dict[str, Any]:
        body = super().generate(schema, mode)
        head = {
            "$schema": self.schema_dialect,
            "$id": f"urn:signalbox:{FILE_NAME}",
            "title": "Signalbox fleet",
            "description": "One fleet of vLLM servers behind one address: the edge, the hosts, the models.",
        }
        return head | {key: value for key, value in body.items() if key not in head}


def schema_json() -> str:
    """The JSON Schema of fleet.yaml as the text of ``fleet.schema.json``."""
    schema = _plain(Fleet.model_json_schema(schema_generator=_Generator))
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def _plain(value: Any) -> Any:
    """Finishing touches for editors.

    Docstrings mark code with double backquotes, Markdown with single ones. And pydantic leaves names that do not fit
    their pattern open in the schema, although it refuses them.
    """
    if isinstance(value, dict):
        closed = {"additionalProperties": False} if "patternProperties" in value else {}
        return {key: _plain(item) for key, item in value.items()} | closed
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value.replace("``", "`") if isinstance(value, str) else value


if __name__ == "__main__":
    sys.stdout.write(schema_json())
