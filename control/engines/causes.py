"""All failures that are known by their text, in the order in which they are looked for. Pure."""

from __future__ import annotations

import re
from re import Match

from control.engines import causes_machine, causes_memory, causes_model
from control.engines.diagnosis import Cause, Situation, cut
from control.vllm.flags import UnknownRelease, flags_of, parse_version

#: Arguments that older articles name and nothing has replaced: what is spelled like them means something else.
_GONE = frozenset({"--disable-log-requests", "--num-scheduler-steps", "--swap-space", "--use-v2-block-manager"})


def _nearest(flag: str, situation: Situation) -> str | None:
    """The argument that was probably meant, of the release that runs or that was asked for."""
    if flag in _GONE:
        return None
    try:
        version = situation.facts.version or situation.spec.engine.version or ""
        return flags_of(parse_version(version)).nearest(flag)
    except UnknownRelease:
        return None


def _unknown_flag(match: Match[str], situation: Situation) -> tuple[str, str]:
    word = match["words"].split()[0]
    flag = word.partition("=")[0]
    place = situation.key("extra_args" if situation.spec.engine.command is None else "command")
    if not flag.startswith("-"):
        sentence = f"vLLM does not know what to do with {word!r}: the argument before it takes no value."
        return sentence, f"Take {word!r} out of {place}; a switch is --NAME or --no-NAME."
    nearest = _nearest(flag, situation)
    cure = f"Write {nearest} instead" if nearest else "Take it out"
    return f"This version of vLLM has no argument {flag}.", f"{cure}, in {place}."


def _bad_value(match: Match[str], situation: Situation) -> tuple[str, str]:
    names, what = match["name"], match["what"].rstrip(".")
    if "ignored explicit argument" in what:
        sentence = f"{names.partition('/')[0]} is a switch of vLLM and takes no value."
        return sentence, f"In {situation.key('extra_args')}, write it without a value, or its --no- form."
    field = names.partition("/")[0].lstrip("-").replace("-", "_")
    known = field in type(situation.spec.engine).model_fields
    sentence = f"vLLM refuses the value of {names}: {cut(what, 300)}."
    return sentence, f"Correct {situation.key(field if known else 'extra_args')}."


def _heads(match: Match[str], situation: Situation) -> tuple[str, str]:
    heads, asked = int(match["heads"]), int(match["size"])
    fit = [size for size in range(1, min(heads, 64) + 1) if heads % size == 0]
    lower = max(size for size in fit if size < asked or size == 1)
    return (
        f"The model's {heads} attention heads cannot be shared out evenly among {asked} GPUs.",
        f"Set tensor_parallel_size to {lower} ({', '.join(map(str, fit))} are possible).",
    )


def _dtype(match: Match[str], situation: Situation) -> tuple[str, str]:
    sentence = f"The model does not run with the number format that was asked for: {cut(match[0], 200)}."
    return sentence, f"Correct {situation.key('dtype')} (or quantization); auto takes the model's own."


def _half(match: Match[str], situation: Situation) -> tuple[str, str]:
    return "This GPU does not compute bfloat16.", f"Set {situation.key('dtype')} to float16."


def _setting(match: Match[str], situation: Situation) -> tuple[str, str]:
    return f"vLLM refuses the settings: {cut(match[0], 400)}", f"Correct models.{situation.spec.model}.engine."


#: Arguments first: argparse ends vLLM before anything else is looked at.
_ARGUMENTS = (
    Cause("argument", re.compile(r"error: unrecognized arguments: (?P<words>.+)"), _unknown_flag),
    Cause("argument", re.compile(r"error: argument (?P<name>[^:]+): (?P<what>.+)"), _bad_value),
)

_SETTINGS = (
    Cause(
        "parallel",
        re.compile(
            r"Total number of attention heads \((?P<heads>\d+)\) must be divisible by "
            r"tensor parallel size \((?P<size>\d+)\)"
        ),
        _heads,
    ),
    Cause("dtype", re.compile(r"Bfloat16 is only supported on GPUs"), _half),
    Cause(
        "dtype",
        re.compile(
            r"The model type '[^']+' does not support float16|Unknown dtype: \S+"
            r"|torch\.\w+ is not supported for quantization method \w+"
        ),
        _dtype,
    ),
    Cause(
        "settings",
        re.compile(
            r"User-specified max_model_len .*|max_num_batched_tokens \(\d+\) .*"
            r"|.* cannot be greater than the max_model_len .*"
        ),
        _setting,
    ),
)

CAUSES: tuple[Cause, ...] = (
    *_ARGUMENTS,
    *causes_memory.CAUSES,
    *causes_machine.CAUSES,
    *causes_model.CAUSES,
    *_SETTINGS,
)
