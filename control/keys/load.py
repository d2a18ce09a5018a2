"""From keys.yaml to checked keys, or to everything that is wrong with it. No message repeats a secret or a hash."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import ValidationError
from yaml.nodes import Node

from control.errors import FleetError, Problem
from control.fleet.load import LoadedFleet
from control.fleet.messages import Finding, did_you_mean, translate
from control.fleet.schema import Fleet
from control.fleet.source import KeyPath, Kind, Source, build, compose_large, dotted, line_of, read
from control.keys.schema import Key, KeysFile
from control.keys.secrets import looks_secret, redact

#: 10,000 keys with everything are 4 MB.
KEYS = Kind("keys.yaml", "'keys:' (with '{}' as long as there is none)", 16 * 1024**2, 2_000_000)
#: What may hold a secret by mistake: its value is never quoted.
_PRIVATE = ("hash", "ends")
_NO_SECRETS = "keys.yaml has hashes only: if this is a key, remove it, and let `signalbox keys create NAME` make one."


@dataclass(frozen=True)
class LoadedKeys:
    """Keys that passed every check, and the text that they were read from. ``root`` is its node tree."""

    keys: dict[str, Key]
    path: Path
    text: str
    data: dict[str, object]
    root: Node | None


def keys_file(loaded: LoadedFleet) -> Path | None:
    """The keys.yaml that fleet.yaml names; None when no keys are asked for."""
    written = loaded.fleet.edge.keys
    return None if written in (None, "none") else loaded.file(str(written))


def load_keys(loaded: LoadedFleet) -> LoadedKeys | None:
    """The keys of this fleet; None when it asks for none. Raises FleetError with all that is wrong."""
    path = keys_file(loaded)
    if path is None:
        return None
    if not path.exists():
        line = loaded.line("edge", "keys")
        hint = "`signalbox keys create NAME` makes it, with a first key."
        raise FleetError([Problem(loaded.path, line, "edge.keys", f"there is no file {path}.", hint)])
    return parse_keys(read(path, KEYS), path, loaded.fleet)


def parse_keys(text: str, path: Path, fleet: Fleet) -> LoadedKeys:
    """The keys in ``text``; ``path`` is for messages. Raises FleetError with all that is wrong, in the file's order."""
    root = compose_large(text, path)
    return checked(text, root, build(root, path, KEYS), path, fleet)


def checked(text: str, root: Node | None, source: Source, path: Path, fleet: Fleet) -> LoadedKeys:
    """The second half of ``parse_keys``: ``root`` and ``source`` are those of ``text``."""
    try:
        keys = KeysFile.model_validate(source.data).keys
    except ValidationError as error:
        keys = {}
        findings = [_private(finding) for finding in translate(error.errors(include_url=False), source.data, KeysFile)]
    else:
        findings = [*_names(keys), *_models(keys, fleet), *_hashes(keys)]
    found = [_problem(finding, source, path) for finding in findings if finding.path not in source.unread]
    problems = [_redacted(problem) for problem in source.problems] + found
    if problems:
        raise FleetError(sorted(problems, key=lambda problem: problem.line))
    return LoadedKeys(keys, path, text, source.data, root)


def _problem(finding: Finding, source: Source, path: Path) -> Problem:
    line = line_of(source.lines, finding.path)
    return _redacted(Problem(path, line, dotted(finding.path), finding.message, finding.suggestion))


def _redacted(problem: Problem) -> Problem:
    return replace(
        problem,
        key=redact(problem.key),
        message=redact(problem.message),
        suggestion=_NO_SECRETS if looks_secret(str(problem)) else problem.suggestion,
    )


def _private(finding: Finding) -> Finding:
    """The same finding without the value that it quotes, where that may be a secret."""
    name = finding.path[-1] if finding.path else ""
    if name not in _PRIVATE or "missing" in finding.message:
        return finding
    what = "'sha256:' and the 64 hexadecimal digits of a key's SHA-256" if name == "hash" else "four characters, quoted"
    return Finding(finding.path, f"must be {what}; what stands here is something else.", _NO_SECRETS)


def _names(keys: dict[str, Key]) -> Iterator[Finding]:
    for name in keys:
        if looks_secret(name):
            yield Finding(("keys", name), "this name looks like a key.", _NO_SECRETS)


def _models(keys: dict[str, Key], fleet: Fleet) -> Iterator[Finding]:
    for name, key in keys.items():
        for index, model in enumerate(key.models or ()):
            yield from _model(("keys", name, "models", index), model, fleet)
        for model in key.limits.models:
            path: KeyPath = ("keys", name, "limits", "models", model)
            yield from _model(path, model, fleet)
            if key.models is not None and model not in key.models:
                yield Finding(path, f"{name} may not use {model!r}.", "Add it to the key's models, or remove this.")


def _model(path: KeyPath, model: str, fleet: Fleet) -> Iterator[Finding]:
    if model in fleet.models:
        return
    owner = next((own for own, its in fleet.models.items() if model in (*its.aliases, *its.loras)), None)
    otherwise = f"There are: {', '.join(list(fleet.models)[:20])}."
    hint = f"Write the model's own name, {owner!r}." if owner else did_you_mean(model, fleet.models, otherwise)
    yield Finding(path, f"there is no model {model!r} in the fleet.", hint)


def _hashes(keys: dict[str, Key]) -> Iterator[Finding]:
    """One secret must not have two names."""
    seen: dict[str, KeyPath] = {}
    for name, key in keys.items():
        written: list[tuple[KeyPath, str]] = [(("keys", name, "hash"), key.hash)]
        if key.previous is not None:
            written.append((("keys", name, "previous", "hash"), key.previous.hash))
        for path, hashed in written:
            if hashed in seen:
                yield Finding(
                    path, f"this hash stands at {dotted(seen[hashed])} too.", "Give each name a key of its own."
                )
            seen.setdefault(hashed, path)
