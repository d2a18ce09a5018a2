"""Rules that can match, and that name what there is."""

from __future__ import annotations

from collections.abc import Iterator

from control.fleet.address import is_host_pattern
from control.fleet.headers import is_edges_own
from control.fleet.messages import Finding, did_you_mean
from control.fleet.schema import Fleet, Rule
from control.fleet.source import KeyPath, dotted

#: First parts of the paths that the edge serves, as in lua/edge/routes.lua: a rule must not hide them.
SERVED = ("v1", "v2", "rerank", "score", "pooling", "classify", "tokenize", "detokenize")


def check_rules(fleet: Fleet) -> Iterator[Finding]:
    """Everything wrong with ``rules`` whose types are right."""
    for index, rule in enumerate(fleet.rules):
        path: KeyPath = ("rules", index)
        yield from _conditions(path, rule)
        yield from _model(path, rule, fleet)
        yield from _pool(path, rule, fleet)
        earlier = next((at for at in range(index) if _covers(fleet.rules[at], rule)), None)
        if earlier is not None:
            first: KeyPath = ("rules", earlier)
            message = f"this rule never matches: {dotted(first)} takes every request that it would."
            yield Finding(path, message, "Put it before that one, or remove it.", (first,))


def _conditions(path: KeyPath, rule: Rule) -> Iterator[Finding]:
    root = (rule.path or "").split("/")[1:2]
    if root and root[0] in SERVED:
        message = f"{rule.path!r} would hide the API's own paths, which begin with /{root[0]}."
        yield Finding((*path, "path"), message, "Take another first part, such as /team-a.")
    if rule.host is not None and not is_host_pattern(rule.host):
        message = f"{rule.host!r} is no host name."
        yield Finding((*path, "host"), message, "Write chat.example.com, or *.example.com.")
    if rule.header is not None and is_edges_own(rule.header.name):
        host_hint = "Use 'host:' instead." if rule.header.name.lower() == "host" else "Take a header of your own."
        message = f"the header {rule.header.name!r} is the edge's own business; no rule sees it."
        yield Finding((*path, "header", "name"), message, host_hint)


def _model(path: KeyPath, rule: Rule, fleet: Fleet) -> Iterator[Finding]:
    names = _models_by_name(fleet)
    if rule.model is not None and rule.model not in names:
        message = f"there is no model, alias or LoRA adapter {rule.model!r}."
        yield Finding((*path, "model"), message, did_you_mean(rule.model, names), (("models",),))


def _pool(path: KeyPath, rule: Rule, fleet: Fleet) -> Iterator[Finding]:
    """A pool that some backend is in: of the rule's model, if it names one."""
    if rule.pool is None:
        return
    all_names = {backend.pool for model in fleet.models.values() for backend in model.backends if backend.pool}
    model = _models_by_name(fleet).get(rule.model or "")
    here = {backend.pool for backend in fleet.models[model].backends if backend.pool} if model else all_names
    if rule.pool in here:
        return
    whose = f"no backend of model {model!r}" if model else "no backend"
    hint = did_you_mean(rule.pool, sorted(here), f"Write 'pool: {rule.pool}' at the backends that are meant.")
    yield Finding((*path, "pool"), f"{whose} is in pool {rule.pool!r}.", hint, (("models",), (*path, "model")))


def _models_by_name(fleet: Fleet) -> dict[str, str]:
    """Every name that a client may send, and the model that it stands for."""
    return {
        name: model for model, settings in fleet.models.items() for name in (model, *settings.aliases, *settings.loras)
    }


def _covers(one: Rule, other: Rule) -> bool:
    """Whether every request that ``other`` matches is one that ``one`` matches."""
    return (
        (one.path is None or f"{other.path or ''}/".startswith(f"{one.path}/"))
        and (one.host is None or _covers_host(one.host.lower(), (other.host or "").lower()))
        and (one.header is None or _header(one) == _header(other))
    )


def _covers_host(one: str, other: str) -> bool:
    return one == other or (one.startswith("*.") and other.removeprefix("*").endswith(one[1:]))


def _header(rule: Rule) -> tuple[str, str] | None:
    return (rule.header.name.lower(), rule.header.value) if rule.header is not None else None
