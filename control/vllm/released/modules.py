"""Modules of a vLLM release as syntax trees: where a name is defined, through imports and aliases."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

#: A file of the release by its path (``vllm/config.py``) → its text, None when there is none.
Read = Callable[[str], str | None]


@dataclass(frozen=True)
class Found:
    """A definition: a class, a function, or the expression that a name was assigned."""

    module: str
    node: ast.ClassDef | ast.FunctionDef | ast.expr


def body_at_run_time(statements: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements of a module as Python runs them: not those for type checkers; of any other ``if`` the first branch."""
    for statement in statements:
        if isinstance(statement, ast.If):
            checked = "TYPE_CHECKING" in ast.unparse(statement.test)
            yield from body_at_run_time(statement.orelse if checked else statement.body)
        elif isinstance(statement, ast.Try):
            yield from body_at_run_time(statement.body)
        else:
            yield statement


class Modules:
    """Reads modules of one release as they are asked for."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._loaded: dict[str, tuple[str, dict[str, ast.stmt]] | None] = {}

    def find(self, module: str, name: str) -> Found | None:
        """Where ``name``, as ``module`` knows it, is defined inside vLLM; None for what comes from elsewhere."""
        for _ in range(20):
            loaded = self._load(module)
            statement = loaded[1].get(name) if loaded else None
            if statement is None or loaded is None:
                return None
            if isinstance(statement, ast.ClassDef | ast.FunctionDef):
                return Found(module, statement)
            if isinstance(statement, ast.ImportFrom):
                module, name = _source(statement, loaded[0]), _original(statement, name)
                continue
            value = getattr(statement, "value", None)
            return Found(module, value) if isinstance(value, ast.expr) else None
        return None

    def origin(self, module: str, name: str) -> str:
        """The module that ``name`` was imported from, as it is written; empty when it was not imported."""
        loaded = self._load(module)
        statement = loaded[1].get(name) if loaded else None
        return (statement.module or "") if isinstance(statement, ast.ImportFrom) else ""

    def _load(self, module: str) -> tuple[str, dict[str, ast.stmt]] | None:
        """The package that relative imports of ``module`` start at, and its names."""
        if module not in self._loaded:
            self._loaded[module] = self._parse(module)
        return self._loaded[module]

    def _parse(self, module: str) -> tuple[str, dict[str, ast.stmt]] | None:
        if module.partition(".")[0] != "vllm":
            return None
        path = module.replace(".", "/")
        for file, package in ((f"{path}.py", module.rpartition(".")[0]), (f"{path}/__init__.py", module)):
            text = self._read(file)
            if text is not None:
                return package, _names(ast.parse(text))
        return None


def _names(tree: ast.Module) -> dict[str, ast.stmt]:
    names: dict[str, ast.stmt] = {}
    for statement in body_at_run_time(tree.body):
        if isinstance(statement, ast.ClassDef | ast.FunctionDef):
            names[statement.name] = statement
        elif isinstance(statement, ast.ImportFrom):
            names.update({alias.asname or alias.name: statement for alias in statement.names})
        elif isinstance(statement, ast.Assign):
            names.update({target.id: statement for target in statement.targets if isinstance(target, ast.Name)})
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            names[statement.target.id] = statement
    return names


def _source(statement: ast.ImportFrom, package: str) -> str:
    if not statement.level:
        return statement.module or ""
    parts = package.split(".")
    base = parts[: len(parts) - statement.level + 1]
    return ".".join([*base, statement.module] if statement.module else base)


def _original(statement: ast.ImportFrom, name: str) -> str:
    return next(alias.name for alias in statement.names if (alias.asname or alias.name) == name)
