"""A model folder that cannot be served is told before vLLM is started."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from control.engines.model import require_folder
from control.errors import EngineError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model-1.safetensors").write_bytes(b"\x10\x00")
    return tmp_path


def index(folder: Path, *files: str) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": dict(enumerate(files))}))


def test_a_whole_folder_is_taken(folder: Path) -> None:
    assert require_folder("m", folder) == folder
    index(folder, "model-1.safetensors")
    assert require_folder("m", folder) == folder
    (folder / "model.safetensors.index.json").write_text("no JSON: vLLM will say so")
    assert require_folder("m", folder) == folder


def test_weights_that_the_index_names_and_nobody_copied(folder: Path) -> None:
    index(folder, "model-1.safetensors", *(f"model-{number}.safetensors" for number in range(2, 7)))
    with pytest.raises(EngineError) as error:
        require_folder("m", folder)
    assert error.value.message == (
        f"The model m lacks model-2.safetensors, model-3.safetensors, model-4.safetensors and 2 more in {folder}."
    )


def test_a_git_lfs_pointer_is_no_model(folder: Path) -> None:
    (folder / "model-2.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:1\n")
    with pytest.raises(EngineError, match="is a git-lfs pointer, not the weights of the model m"):
        require_folder("m", folder)


def test_a_link_to_nowhere_is_named(folder: Path) -> None:
    (folder / "model-2.safetensors").symlink_to(folder / "gone")
    with pytest.raises(EngineError, match="of the model m cannot be read: No such file"):
        require_folder("m", folder)
