"""What argparse makes of a field's type, as vLLM's own ``get_kwargs`` has it, for each release's rules."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from control.vllm.released.modules import Modules

_BUILTIN = {"bool", "int", "float", "str"}
_GENERIC = {"list": "list", "List": "list", "tuple": "tuple", "Tuple": "tuple", "set": "set", "Set": "set",
            "dict": "dict", "Dict": "dict", "Mapping": "other", "Callable": "other", "type": "other", "Type": "other",
            "Sequence": "other"}  # fmt: skip
#: pydantic's constrained types are Annotated numbers at run time.
_PYDANTIC = {f"{sign}{kind.capitalize()}": kind
             for sign in ("Positive", "NonNegative", "Negative", "NonPositive", "Strict", "Finite")
             for kind in ("int", "float", "bool", "str")}  # fmt: skip


@dataclass(frozen=True)
class Hint:
    """One type of a union. ``kind``: bool, int, float, str, none, literal, list, tuple, set, dict, dataclass, other."""

    kind: str
    values: tuple[str | int, ...] = ()
    inner: frozenset[Hint] = frozenset()
    #: Of a tuple: how many values; 0 for as many as there are.
    count: int = 0


@dataclass(frozen=True)
class Rules:
    """What changed in ``get_kwargs`` from release to release."""

    #: Since 0.10.1 ``str | Literal[...]`` takes any text.
    open_literals: bool
    #: Since 0.9.1 ``dict`` beside other types takes text that is no JSON too, and dataclasses are JSON.
    open_dicts: bool
    #: Since 0.21 ``bool | str | None`` is a flag whose value may be left out.
    optional_values: bool
    #: Since 0.32 subclasses of dict are dicts.
    dict_classes: bool
    #: Numbers that may be written 8k.
    sizes: frozenset[str]


def rules_of(function: list[ast.FunctionDef]) -> Rules:
    """The rules that the source of ``get_kwargs`` and its helpers shows."""
    text = "\n".join(ast.unparse(part) for part in function)
    words = {node.value for part in function for node in ast.walk(part) if isinstance(node, ast.Constant)}
    return Rules(
        open_literals="'metavar'" in text,
        open_dicts="union_dict_and_str" in text,
        optional_values="'const'" in text,
        dict_classes="is_dict_subclass" in text,
        sizes=frozenset(word for word in words if isinstance(word, str) and word.startswith(("max_", "kv_", "safe"))),
    )


class Hints:
    """Types of one release, and what argparse gets for them."""

    def __init__(self, modules: Modules, rules: Rules) -> None:
        self._modules = modules
        self._rules = rules

    def fields(self, module: str, name: str) -> dict[str, dict[str, object]]:
        """``get_kwargs`` of the dataclass ``name``: field → keywords of add_argument."""
        found = self._modules.find(module, name)
        if found is None or not isinstance(found.node, ast.ClassDef):
            raise ValueError(f"{module} has no class {name}")
        keywords: dict[str, dict[str, object]] = {}
        for base in found.node.bases:
            if isinstance(base, ast.Name) and self._modules.find(found.module, base.id):
                keywords.update(self.fields(found.module, base.id))
        for statement, after in pairwise((*found.node.body, ast.Pass())):
            if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
                continue
            if not ast.unparse(statement.annotation).startswith(("ClassVar", "InitVar")):
                hints = self.hints(found.module, statement.annotation)
                keywords[statement.target.id] = self.keywords(statement.target.id, hints) | _help(after)
        return keywords

    def hints(self, module: str, node: ast.expr) -> frozenset[Hint]:
        """All types of an annotation."""
        return frozenset(self._walk(module, node))

    def values(self, module: str, name: str) -> list[object] | None:
        """The values of an enumeration, or of a Literal; None when it is neither."""
        found = self._modules.find(module, name)
        if found is None:
            return None
        if isinstance(found.node, ast.ClassDef):
            values = [statement.value for statement in found.node.body if isinstance(statement, ast.Assign)]
            return [value.value for value in values if isinstance(value, ast.Constant)]
        if isinstance(found.node, ast.expr):
            literal = [hint for hint in self.hints(found.module, found.node) if hint.kind == "literal"]
            return list(literal[0].values) if literal else None
        return None

    def _walk(self, module: str, node: ast.expr) -> Iterator[Hint]:
        if isinstance(node, ast.BinOp):
            yield from self._walk(module, node.left)
            yield from self._walk(module, node.right)
        elif isinstance(node, ast.Subscript):
            yield from self._generic(module, node)
        elif isinstance(node, ast.Constant) and node.value is None:
            yield Hint("none")
        elif isinstance(node, ast.Name):
            yield from self._name(module, node.id)
        else:
            yield Hint("other")

    def _generic(self, module: str, node: ast.Subscript) -> Iterator[Hint]:
        name = node.value.id if isinstance(node.value, ast.Name) else ast.unparse(node.value).rpartition(".")[2]
        inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if name == "Literal":
            yield Hint("literal", tuple(self._literals(module, inner)))
        elif name == "Optional":
            yield Hint("none")
            yield from self._walk(module, inner[0])
        elif name == "Union":
            for part in inner:
                yield from self._walk(module, part)
        elif name in ("Annotated", "SkipValidation"):
            yield from self._walk(module, inner[0])
        elif name in ("list", "List", "tuple", "Tuple", "set", "Set"):
            count = 0 if any(isinstance(part, ast.Constant) and part.value is ... for part in inner) else len(inner)
            yield Hint(_GENERIC[name], inner=self.hints(module, inner[0]), count=count)
        else:
            yield Hint(_GENERIC.get(name, "other"))

    def _literals(self, module: str, parts: list[ast.expr]) -> Iterator[str | int]:
        for part in parts:
            if isinstance(part, ast.Constant) and isinstance(part.value, str | int):
                yield part.value
            elif isinstance(part, ast.Name | ast.Starred):  # a Literal inside a Literal
                for hint in self.hints(module, part.value if isinstance(part, ast.Starred) else part):
                    yield from hint.values

    def _name(self, module: str, name: str) -> Iterator[Hint]:
        if name in _BUILTIN:
            yield Hint(name)
            return
        if name in ("dict", "list", "tuple", "set"):
            yield Hint(name, inner=frozenset({Hint("str")}))
            return
        found = self._modules.find(module, name)
        if found is None:
            constrained = _PYDANTIC.get(name) if self._modules.origin(module, name) == "pydantic" else None
            yield Hint(constrained or "other")
        elif isinstance(found.node, ast.expr):
            yield from self._walk(found.module, found.node)
        elif isinstance(found.node, ast.ClassDef):
            yield Hint(_kind_of_class(found.node, self._rules.dict_classes))
        else:
            yield Hint("other")

    def keywords(self, name: str, hints: frozenset[Hint]) -> dict[str, object]:
        """What argparse gets for a field. The order of the cases is vLLM's."""
        kinds = {hint.kind: hint for hint in sorted(hints, key=lambda hint: hint.kind)}
        optional = "none" in kinds
        if "dataclass" in kinds and self._rules.open_dicts:
            return {"type": "json"}
        if self._rules.optional_values and set(kinds) == {"bool", "str", "none"}:
            return {"type": "text", "nargs": "?"}
        if "bool" in kinds:
            return {"action": "pair"}
        if "literal" in kinds:
            return self._literal(kinds, optional)
        for kind in ("tuple", "list", "set"):
            if kind in kinds:
                return self._collection(kinds[kind], optional)
        if "int" in kinds:
            return {"type": "size" if name in self._rules.sizes else "int"}
        if "float" in kinds:
            return {"type": "float"}
        if "dict" in kinds:
            open_ = self._rules.open_dicts and {"str", "other"} & set(kinds)
            return {"type": "text" if open_ else "json"}
        return {"type": "text"}

    def _literal(self, kinds: dict[str, Hint], optional: bool) -> dict[str, object]:
        values = kinds["literal"].values
        keywords: dict[str, object] = {"type": "int" if isinstance(values[0], int) else "text"}
        if "str" not in kinds or not self._rules.open_literals:
            keywords["choices"] = [*sorted(values, key=lambda value: (str(type(value)), value)), *[None] * optional]
        return keywords

    def _collection(self, hint: Hint, optional: bool) -> dict[str, object]:
        many: dict[str, object] = {"nargs": hint.count if hint.kind == "tuple" and hint.count else "+"}
        kinds = {inner.kind: inner for inner in hint.inner}
        if "literal" in kinds and "str" not in kinds:
            return self._literal(kinds, optional) | many
        known = "text" if "str" in kinds or len(kinds) != 1 else next(iter(kinds))
        return {"type": known if known in ("int", "float") else "text"} | many


def _help(statement: ast.stmt) -> dict[str, object]:
    """The text below a field, which is the help of its flag."""
    value = statement.value if isinstance(statement, ast.Expr) else None
    return {"help": value.value} if isinstance(value, ast.Constant) and isinstance(value.value, str) else {}


def _kind_of_class(node: ast.ClassDef, dict_classes: bool) -> str:
    decorators = {ast.unparse(decorator).partition("(")[0].rpartition(".")[2] for decorator in node.decorator_list}
    bases = {ast.unparse(base).partition("[")[0] for base in node.bases}
    if decorators & {"dataclass", "config"}:
        return "dataclass"
    return "dict" if dict_classes and bases & {"dict", "UserDict"} else "other"
