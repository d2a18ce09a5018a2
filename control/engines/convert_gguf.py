"""Turns a GGUF file of an installed package into a Hugging Face folder. Runs in a vLLM runtime, not in ours.

usage: convert_gguf.py PACKAGE VERSION FILE.gguf OUT_DIR      prints one line per step; exit 3: there is no such file
"""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path

MISSING = 3


def find(package: str, version: str, name: str) -> Path | None:
    """The GGUF file inside the installed package, or None."""
    try:
        distribution = metadata.distribution(package)
    except metadata.PackageNotFoundError:
        return None
    if distribution.version != version:
        return None
    for file in distribution.files or ():
        if file.name == name:
            return Path(str(distribution.locate_file(file)))
    return None


def main(package: str, version: str, name: str, out: str) -> int:
    """Convert; returns the exit code."""
    source = find(package, version, name)
    if source is None:
        print(f"{package} {version} with {name} is not installed in {sys.prefix}", file=sys.stderr)
        return MISSING
    print("loading torch and transformers", flush=True)
    import torch  # type: ignore[import-not-found, unused-ignore]
    from transformers import (  # type: ignore[import-not-found, unused-ignore]
        AutoModelForCausalLM,
        AutoTokenizer,
        GgufConfig,
    )

    print("reading the tokenizer", flush=True)
    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=name)
    print("unpacking the weights", flush=True)
    model = AutoModelForCausalLM.from_pretrained(
        source.parent, gguf_file=name, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
    )
    model.config.__dict__.pop("quantization_config", None)  # else save_pretrained refuses: they are not quantized now
    print("writing the model's folder", flush=True)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:5]))
