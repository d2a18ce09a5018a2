"""How much a step may hold where nobody says it: what vLLM chooses by the device. Pure.

Source: ``get_batch_defaults`` and ``_set_default_max_num_seqs_and_batched_tokens_args`` of vllm/engine/arg_utils.py,
for a server; the same from 0.28 to 0.33. (Before, GPUs of 160 GiB and more had what those of 70 GiB have.)
"""

from __future__ import annotations

from dataclasses import dataclass

GIB = 1024**3


@dataclass(frozen=True)
class Device:
    """Where an engine runs. ``memory``: bytes of one GPU, or of the machine when it runs on ``cpu``."""

    memory: int
    name: str = ""
    cpu: bool = False


@dataclass(frozen=True)
class Step:
    """Tokens and sequences of one step of the scheduler; None: hangs on what is not known."""

    tokens: int | None
    sequences: int | None


def tier(device: Device, gpus: int = 1) -> tuple[int, int]:
    """Tokens and sequences for this device. ``gpus``: those of one engine; only CPUs count them."""
    if device.cpu:
        return 2048 * gpus, 128 * gpus
    if device.memory >= 160 * GIB:
        return 16_384, 1024
    if device.memory >= 70 * GIB and "a100" not in device.name.lower():
        return 8192, 1024
    return 2048, 256


def step(
    tokens: int | None,
    sequences: int | None,
    *,
    length: int | None,
    chunked: bool,
    device: Device | None,
    gpus: int = 1,
) -> Step:
    """The step that comes of what is given (``tokens``, ``sequences``). ``length``: ``max_model_len`` in the end."""
    if (tokens is not None and sequences is not None) or device is None:
        return Step(tokens, sequences)
    own_tokens, own_sequences = tier(device, gpus)
    if tokens is None:
        if length is None:
            return Step(None, sequences)
        tokens = own_tokens if chunked else max(length, own_tokens)
        tokens = min(tokens, (sequences or own_sequences) * length)
    return Step(tokens, sequences or min(own_sequences, tokens))
