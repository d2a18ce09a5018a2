"""What an image says of the vLLM in it."""

from __future__ import annotations

from typing import Any

import pytest

from control.engines.image_version import told_by


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({}, None),
        ({"Env": None, "Labels": None}, None),
        ({"Env": ["PATH=/bin", "VLLM_VERSION=0.11.0"]}, "0.11.0"),
        ({"Env": ["VLLM_VERSION=nightly", "ODD"]}, None),
        # Ubuntu's label, which every image made of it has.
        ({"Labels": {"org.opencontainers.image.version": "22.04.5"}}, None),
        (
            {
                "Labels": {
                    "org.opencontainers.image.version": "v0.12.0",
                    "org.opencontainers.image.source": "https://github.com/vllm-project/vllm",
                }
            },
            "v0.12.0",
        ),
    ],
)
def test_labels_and_variables(config: dict[str, Any], told: str | None) -> None:
    assert told_by({"Config": config}) == told
