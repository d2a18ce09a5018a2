"""Failures for lack of memory, and sizes that would fit, computed from the numbers in vLLM's own messages. Pure."""

from __future__ import annotations

import math
import re
from re import Match

from control.engines.diagnosis import Cause, Situation
from control.engines.phases import LOADING, STARTING

_GIB, _MIB = 1024**3, 1024**2
#: gpu_memory_utilization of vLLM 0.30 to 0.32 when nothing is asked (config/cache.py).
USUAL_UTILIZATION = 0.92
#: More than this leaves the driver and other programs nothing.
MOST_UTILIZATION = 0.98
_NEGATIVE = re.compile(r"Available KV cache memory: -(?P<gib>[\d.]+) GiB")


def _too_long(match: Match[str], situation: Situation) -> tuple[str, str]:
    """One request of max_model_len does not fit the KV cache."""
    length, fits = int(match["length"]), int(match["fits"] or 0)
    needed, there = float(match["needed"]), float(match["there"])
    if not fits and needed:
        fits = int(length * there / needed)
    cures = [f"set {situation.key('max_model_len')} to {fits} or less"] if fits else []
    asked = situation.asked("kv_cache_memory")
    if isinstance(asked, int):
        # vLLM's estimate of the length leaves one block out, so a cache larger by this ratio always suffices.
        enough = asked * length / fits if fits else needed * _GIB * 1.02
        cures.append(f"set {situation.key('kv_cache_memory')} to {_size(enough)} or more")
    else:
        cures.append(_more_utilization(max(0.0, needed - there), situation))
    sizes = f" ({there:g} of the {needed:g} GiB that it takes)" if needed else ""
    sentence = f"The KV cache has no room for one request of {length} tokens, which max_model_len allows{sizes}."
    return sentence, _sentence(cures)


def _no_blocks(match: Match[str], situation: Situation) -> tuple[str, str]:
    """Nothing is left for the KV cache at all."""
    found = next(filter(None, map(_NEGATIVE.search, situation.texts)), None)
    short = float(found["gib"]) if found else 0.0
    lack = f": {short:g} GiB are lacking even for what the model computes with" if short else ""
    cures = [_more_utilization(short + 1.0, situation)]
    if isinstance(asked := situation.asked("kv_cache_memory"), int):
        cures = [f"set {situation.key('kv_cache_memory')} to more than {_size(asked)}"]
    cures.append("take a smaller or quantized model, or more GPUs by tensor_parallel_size")
    return f"The model leaves no memory for the KV cache{lack}.", _sentence(cures)


def _gpu_is_used(match: Match[str], situation: Situation) -> tuple[str, str]:
    """Somebody else uses the GPU: the share that is asked for is not free."""
    free, total = float(match["free"]), float(match["total"])
    fits = math.floor((free / total - 0.01) * 100) / 100
    sentence = (
        f"Only {free:g} of the {total:g} GiB of {match['device']} are free, but gpu_memory_utilization "
        f"{match['share']} asks for {match['asked']} GiB: another program uses this GPU."
    )
    cure = f"set {situation.key('gpu_memory_utilization')} to {fits:g} or less" if fits >= 0.05 else ""
    return sentence, _sentence(["end what else runs on that GPU (nvidia-smi shows it)", cure])


def _machine_is_used(match: Match[str], situation: Situation) -> tuple[str, str]:
    """On CPU: the machine has not as much memory free as the KV cache is to have."""
    free, asked = float(match["free"]), float(match["asked"])
    sentence = f"The machine has {free:g} GiB of memory free, but the KV cache is to have {asked:g} GiB."
    if asked <= 0:
        sentence = "The share of the machine's memory that the engine may take is used up before its KV cache."
    fits = f"set {situation.key('kv_cache_memory')} to {_size(free * 0.8 * _GIB, down=True)} or less"
    if situation.asked("kv_cache_memory") is None:
        fits += " (it is not set, so the engine takes gpu_memory_utilization of all memory)"
    return sentence, _sentence([fits])


def _weights(match: Match[str], situation: Situation) -> tuple[str, str]:
    """The weights do not fit the GPU; or, later, what the model computes with does not."""
    where = _gpu(situation)
    if situation.phase in (STARTING, LOADING) or "Failed to load model" in match[0]:
        cures = ["spread it over more GPUs by tensor_parallel_size", "take a quantized or smaller model"]
        return f"The model's weights do not fit into the memory of the GPU{where}.", _sentence(cures)
    share = situation.asked("gpu_memory_utilization") or situation.facts.gpu_memory_utilization or USUAL_UTILIZATION
    lower = math.floor((float(str(share)) - 0.05) * 100) / 100
    cures = [
        f"set {situation.key('gpu_memory_utilization')} to {lower:g}",
        f"lower {situation.key('max_num_seqs')} or max_num_batched_tokens",
    ]
    return f"The GPU ran out of memory beside the KV cache{where}.", _sentence(cures)


def _warm_up(match: Match[str], situation: Situation) -> tuple[str, str]:
    """vLLM tries out max_num_seqs requests at once before it serves."""
    count = int(match["requests"])
    lower = [f"set {situation.key('max_num_seqs')} to {max(1, count // 2)}"]
    lower.append("if that is too few, lower gpu_memory_utilization by 0.05")
    return f"The GPU has no memory to sample for {count} requests at once, as max_num_seqs allows.", _sentence(lower)


def _gpu(situation: Situation) -> str:
    pattern = r"GPU (\d+) has a total capacity of ([\d.]+ \w+) of which ([\d.]+ \w+) is free"
    match = next(filter(None, (re.search(pattern, text) for text in situation.texts)), None)
    return f" (GPU {match[1]}: {match[3]} of {match[2]} are free)" if match else ""


def _more_utilization(gib: float, situation: Situation) -> str:
    """How to give the engine ``gib`` more: a number where the size of the GPU is known."""
    share = situation.asked("gpu_memory_utilization") or situation.facts.gpu_memory_utilization or USUAL_UTILIZATION
    now, key = float(str(share)), situation.key("gpu_memory_utilization")
    if situation.gpu_memory is None:
        return f"raise {key} (now {now:g}) if the GPU has {gib:.1f} GiB more to give"
    wanted = math.ceil((now + gib * _GIB / situation.gpu_memory) * 100) / 100
    if wanted > MOST_UTILIZATION:
        return f"take a GPU with more memory: {key} would have to be {wanted:g}"
    return f"set {key} to {wanted:g} or more"


def _size(count: float, down: bool = False) -> str:
    """A size as fleet.yaml has it, rounded to whole MiB (or GiB from 8 of them on) so that it still suffices."""
    unit, name = (_GIB, "GiB") if count >= 8 * _GIB else (_MIB, "MiB")
    whole = count // unit if down else -(-count // unit)
    return f"{max(1, int(whole))}{name}"


def _sentence(cures: list[str]) -> str:
    """The ways out as one sentence."""
    text = ", or ".join(cure for cure in cures if cure)
    return f"{text[0].upper()}{text[1:]}."


CAUSES: tuple[Cause, ...] = (
    Cause(
        "kv_cache",
        re.compile(
            r"max seq len \((?P<length>\d+)\), \(?(?P<needed>[\d.]+) GiB KV cache is needed, which is larger than the "
            r"available KV cache memory \((?P<there>[\d.]+) GiB\)"
            r"(?:.*?estimated maximum model length is (?P<fits>\d+))?"
        ),
        _too_long,
    ),
    Cause("kv_cache", re.compile(r"No available memory for the cache blocks"), _no_blocks),
    Cause(
        "gpu_memory",
        re.compile(
            r"Free memory on device (?P<device>\S+) \((?P<free>[\d.]+)/(?P<total>[\d.]+) GiB\) on startup is less than "
            r".*?\((?P<share>[\d.]+), (?P<asked>[\d.]+) GiB\)"
        ),
        _gpu_is_used,
        final=False,  # what else runs there may end
    ),
    Cause(
        "kv_cache",
        re.compile(
            r"Available memory on node \d+ \((?P<free>[\d.]+)/[\d.]+ GiB\) on kv cache allocation is less than "
            r"requested memory for kv \((?P<asked>-?[\d.]+)"
        ),
        _machine_is_used,
        final=False,
    ),
    Cause("gpu_memory", re.compile(r"warming up sampler with (?P<requests>\d+) dummy requests"), _warm_up),
    Cause(
        "gpu_memory",
        re.compile(r"Failed to load model - not enough GPU memory|CUDA out of memory|CUDA error: out of memory"),
        _weights,
        final=False,
    ),
)
