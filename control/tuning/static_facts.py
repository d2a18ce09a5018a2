"""What is known of an engine before it starts: what rules_static.py and rules_memory.py look at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from control.tuning.architecture import Architecture
from control.tuning.cards import Card
from control.tuning.memory import Budget, budget
from control.tuning.settings import Settings
from control.tuning.weights import Weights
from control.vllm.flags import Flags
from control.vllm.refusals import ModelBounds, Told, told


@dataclass(frozen=True)
class Expected:
    """What the requests will be like, where somebody says it. In tokens; ``lengths``: prompt and answer together."""

    prompts: tuple[int, ...] = ()
    lengths: tuple[int, ...] = ()


#: Nobody says it.
UNKNOWN = Expected()


@dataclass(frozen=True)
class Surroundings:
    """What the fleet says around the engine. ``limits``: of its backends, None for one without."""

    limits: tuple[int | None, ...] = ()
    policy: str = "least_loaded"
    kv_budget: bool = True


#: No fleet is around it.
ALONE = Surroundings()


@dataclass(frozen=True)
class StaticFacts:
    """Settings; and where the model's files are there, the model and its budget on one card."""

    told: Told
    settings: Settings
    flags: Flags
    extra_args: tuple[str, ...] = ()
    model: Architecture | None = None
    weights: Weights | None = None
    budget: Budget | None = None
    expected: Expected = UNKNOWN
    around: Surroundings = ALONE

    @property
    def tokens(self) -> int | None:
        """Tokens of a step, vLLM's own choice for this card included; None when that is not known."""
        return self.told.step.tokens

    @property
    def sequences(self) -> int | None:
        """``max_num_seqs``, likewise."""
        return self.told.step.sequences

    @property
    def length(self) -> int | None:
        """``max_model_len``, likewise."""
        return self.told.length


def bounds(model: Architecture, stored_elsewhere: bool = False) -> ModelBounds:
    """What vLLM checks of a model. ``stored_elsewhere``: another file of its folder says how it is quantised."""
    heads = next((model.text[name] for name in ("num_attention_heads", "n_head", "n_heads") if model.text.get(name)), 0)
    longer = model.text.get("model_max_length")
    method = str(model.quantization.get("quant_method") or "") if model.quantization else ""
    return ModelBounds(
        max_length=max(model.max_length, longer if isinstance(longer, int) else 0), attention_heads=int(heads),
        model_type=str(model.text.get("model_type", "")),
        quantization=None if stored_elsewhere and not method else method,
    )  # fmt: skip


def facts_of(
    given: Mapping[str, object], settings: Settings, flags: Flags, *, environment: Mapping[str, str] | None = None,
    extra_args: Sequence[str] = (), model: Architecture | None = None, weights: Weights | None = None,
    card: Card | None = None, expected: Expected = UNKNOWN, around: Surroundings = ALONE,
    stored_elsewhere: bool = False,
) -> StaticFacts:  # fmt: skip
    """The facts about one engine on one card; ``given``: field → value, as vLLM is told, ``settings`` the same.

    Raises TuningError where the memory cannot be calculated.
    """
    facts = told(
        given, flags.version, model=bounds(model, stored_elsewhere) if model else None,
        device=card.device if card else None, environment=environment,
    )  # fmt: skip
    found = budget(model, weights, settings, card) if model and weights and card else None
    return StaticFacts(facts, settings, flags, tuple(extra_args), model, weights, found, expected, around)
