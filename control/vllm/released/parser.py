"""The flags of ``vllm serve`` in one release: its ``add_argument`` calls, followed through its source."""

from __future__ import annotations

import ast
from typing import Any

from control.vllm.released.deprecation import deprecation
from control.vllm.released.hints import Hints, rules_of
from control.vllm.released.modules import Modules, Read, body_at_run_time

ENGINE_ARGUMENTS = "vllm.engine.arg_utils"
SERVE_COMMAND = "vllm.entrypoints.cli.serve"

#: What a value is converted with → what it is.
_TYPES = {"str": "text", "nullable_str": "text", "int": "int", "float": "float", "bool": "text", "json.loads": "json",
          "human_readable_int": "size", "human_readable_int_or_auto": "size"}  # fmt: skip
_FORMS = {"argparse.BooleanOptionalAction": "pair", "store_true": "switch", "append": "append", "pair": "pair"}


class Opaque:
    """A value that only running vLLM would tell."""


OPAQUE = Opaque()


def flags(read: Read) -> dict[str, dict[str, Any]]:
    """Flag → what it takes, of the release whose files ``read`` gives.

    ``aliases``: other names; ``deprecated``, and what to use ``instead`` if its help says so.

    ``form``: switch (no value), pair (``--x`` and ``--no-x``, no value),
    value, append (may be repeated); ``type``: text, int, float, size (8192 or 8k), json; ``choices``: the values that
    it may have; ``nargs``: ``+``, ``?`` or a number. Raises ValueError when the source is not as any release had it.
    """
    modules = Modules(read)
    names = ("get_kwargs", "_compute_kwargs", "literal_to_kwargs", "optional_type")
    functions = [found.node for name in names if (found := modules.find(ENGINE_ARGUMENTS, name))]
    rules = rules_of([function for function in functions if isinstance(function, ast.FunctionDef)])
    walker = _Walker(modules, Hints(modules, rules))
    command = modules.find(SERVE_COMMAND, "ServeSubcommand")
    if command is not None and isinstance(command.node, ast.ClassDef):
        walker.method(SERVE_COMMAND, command.node, "subparser_init")
    walker.function(SERVE_COMMAND, "make_arg_parser")  # where it is imported; its own module has moved twice
    return dict(sorted(walker.flags.items()))


class _Walker:
    """Runs the few kinds of statements that these functions have."""

    def __init__(self, modules: Modules, hints: Hints) -> None:
        self._modules = modules
        self._hints = hints
        self.flags: dict[str, dict[str, Any]] = {}

    def function(self, module: str, name: str) -> None:
        found = self._modules.find(module, name)
        if found is None or not isinstance(found.node, ast.FunctionDef):
            raise ValueError(f"{module} has no function {name}")
        self._run(found.module, found.node.body, {})

    def method(self, module: str, owner: ast.ClassDef, name: str, scope: dict[str, Any] | None = None) -> None:
        """Runs a method of the class, or of the first base that has it."""
        scope = {"cls": owner.name} if scope is None else scope
        for statement in owner.body:
            if isinstance(statement, ast.FunctionDef) and statement.name == name:
                self._run(module, statement.body, scope | {"super": (module, owner)})
                return
        for base in owner.bases:
            found = self._modules.find(module, base.id) if isinstance(base, ast.Name) else None
            if found is not None and isinstance(found.node, ast.ClassDef):
                self.method(found.module, found.node, name, scope)
                return

    def _run(self, module: str, statements: list[ast.stmt], scope: dict[str, Any]) -> None:
        for statement in body_at_run_time(statements):
            self._statement(module, statement, scope)

    def _statement(self, module: str, statement: ast.stmt, scope: dict[str, Any]) -> None:
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            self._call(module, statement.value, scope)
        elif isinstance(statement, ast.Assign):
            self._assign(module, statement.targets[0], statement.value, scope)
        elif isinstance(statement, ast.AugAssign):
            self._assign(module, statement.target, None, scope)
        elif isinstance(statement, ast.Delete):
            for target in statement.targets:
                place = self._value(module, target.value, scope) if isinstance(target, ast.Subscript) else None
                if isinstance(place, dict) and isinstance(target, ast.Subscript):
                    place.pop(self._value(module, target.slice, scope), None)
        elif isinstance(statement, ast.For):
            self._for(module, statement, scope)
        elif isinstance(statement, ast.Return) and isinstance(statement.value, ast.Call):
            self._call(module, statement.value, scope)

    def _for(self, module: str, loop: ast.For, scope: dict[str, Any]) -> None:
        """``for key, value in kwargs.items()``, or over a list of literals."""
        items = self._value(module, loop.iter, scope)
        if not isinstance(items, list) or not isinstance(loop.target, ast.Tuple):
            raise ValueError(f"{module}: a loop that this script does not know: {ast.unparse(loop.iter)}")
        names = [target.id for target in loop.target.elts if isinstance(target, ast.Name)]
        for item in items:
            self._run(module, loop.body, scope | dict(zip(names, item, strict=True)))

    def _call(self, module: str, call: ast.Call, scope: dict[str, Any]) -> Any:
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        if name == "add_argument":
            self._add(module, call, scope)
        elif name in ("add_cli_args", "_customize_cli_kwargs"):
            return self._follow(module, call, name, scope)
        elif isinstance(call.func, ast.Attribute) and name in ("remove", "append", "pop"):
            place = self._value(module, call.func.value, scope)
            arguments = [self._value(module, argument, scope) for argument in call.args]
            if name == "pop" and isinstance(place, dict):
                return place.pop(*arguments)
            if name == "remove" and isinstance(place, list) and arguments[0] in place:
                place.remove(arguments[0])
        return OPAQUE

    def _follow(self, module: str, call: ast.Call, name: str, scope: dict[str, Any]) -> Any:
        """``SomeArgs.add_cli_args(parser)``, ``cls._customize_cli_kwargs(kwargs)``, ``super()...``."""
        assert isinstance(call.func, ast.Attribute)
        arguments = [self._value(module, argument, scope) for argument in call.args]
        inner = None if name == "add_cli_args" else {**scope, "frontend_kwargs": arguments[0]}
        owner = ast.unparse(call.func.value)
        if owner == "super()":
            where, cls = scope["super"]
            for base in cls.bases:
                found = self._modules.find(where, base.id) if isinstance(base, ast.Name) else None
                if found is not None and isinstance(found.node, ast.ClassDef):
                    self.method(found.module, found.node, name, inner)
        else:
            found = self._modules.find(module, scope["cls"] if owner == "cls" else owner)
            if found is not None and isinstance(found.node, ast.ClassDef):
                self.method(found.module, found.node, name, inner)
        return arguments[0] if arguments else OPAQUE

    def _value(self, module: str, node: ast.expr, scope: dict[str, Any]) -> Any:
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            return scope.get(node.id, self._named(module, node.id))
        if isinstance(node, ast.List | ast.Tuple):
            return self._list(module, node.elts, scope)
        if isinstance(node, ast.Subscript):
            place, key = self._value(module, node.value, scope), self._value(module, node.slice, scope)
            return place[key] if isinstance(place, dict) else OPAQUE
        if isinstance(node, ast.Dict):
            return self._dict(module, node, scope)
        if isinstance(node, ast.JoinedStr):
            return self._text(module, node, scope)
        if isinstance(node, ast.ListComp):  # [f.value for f in SomeEnum]
            values = self._hints.values(module, ast.unparse(node.generators[0].iter))
            return OPAQUE if values is None else values
        if isinstance(node, ast.Call):
            return self._called(module, node, scope)
        return OPAQUE

    def _named(self, module: str, name: str) -> Any:
        """A constant of the module."""
        found = self._modules.find(module, name)
        if found is None or not isinstance(found.node, ast.expr):
            return OPAQUE
        return self._value(found.module, found.node, {})

    def _list(self, module: str, parts: list[ast.expr], scope: dict[str, Any]) -> Any:
        values: list[Any] = []
        for part in parts:
            value = self._value(module, part.value if isinstance(part, ast.Starred) else part, scope)
            if value is OPAQUE and isinstance(part, ast.Starred):
                return OPAQUE
            values += value if isinstance(part, ast.Starred) else [value]
        return values

    def _dict(self, module: str, node: ast.Dict, scope: dict[str, Any]) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            if key is None:
                spread = self._value(module, value, scope)
                result |= spread if isinstance(spread, dict) else {}
            else:
                result[str(self._value(module, key, scope))] = self._value(module, value, scope)
        return result

    def _text(self, module: str, node: ast.JoinedStr, scope: dict[str, Any]) -> Any:
        """``f"--{key.replace('_', '-')}"``."""
        parts: list[str] = []
        for part in node.values:
            value = self._value(module, part.value if isinstance(part, ast.FormattedValue) else part, scope)
            if not isinstance(value, str):
                return OPAQUE
            parts.append(value)
        return "".join(parts)

    def _called(self, module: str, call: ast.Call, scope: dict[str, Any]) -> Any:
        name = ast.unparse(call.func)
        if name == "get_kwargs":
            written = ast.unparse(call.args[0])
            return self._hints.fields(module, scope["cls"] if written == "cls" else written)
        if name == "get_args":
            values = self._hints.values(module, ast.unparse(call.args[0]))
            return OPAQUE if values is None else values
        if name in ("list", "sorted"):
            return self._value(module, call.args[0], scope)
        if name.endswith(".items") and isinstance(call.func, ast.Attribute):
            place = self._value(module, call.func.value, scope)
            return list(place.items()) if isinstance(place, dict) else OPAQUE
        if name.endswith(".replace") and isinstance(call.func, ast.Attribute):
            text = self._value(module, call.func.value, scope)
            arguments = [self._value(module, argument, scope) for argument in call.args]
            return text.replace(*arguments) if isinstance(text, str) else OPAQUE
        return self._call(module, call, scope)

    def _assign(self, module: str, target: ast.expr, node: ast.expr | None, scope: dict[str, Any]) -> None:
        """``name = value``, ``kwargs["x"]["type"] = value``; without a node the value is not known."""
        if isinstance(target, ast.Name):
            scope[target.id] = OPAQUE if node is None else self._value(module, node, scope)
        elif isinstance(target, ast.Subscript):
            place, key = self._value(module, target.value, scope), self._value(module, target.slice, scope)
            if isinstance(place, dict):
                place[key] = OPAQUE if node is None else self._keyword(module, str(key), node, scope)

    def _keyword(self, module: str, name: str, node: ast.expr, scope: dict[str, Any]) -> Any:
        """The value of one keyword of add_argument."""
        if name == "type" and not (isinstance(node, ast.Name) and node.id in scope):
            return _type(node)
        if name == "type":
            return _TYPES["str"]  # the loop over deprecated flags, which take any text
        if name == "action":
            return node.value if isinstance(node, ast.Constant) else ast.unparse(node)
        return self._value(module, node, scope) if name in ("nargs", "choices", "deprecated", "help") else OPAQUE

    def _add(self, module: str, call: ast.Call, scope: dict[str, Any]) -> None:
        names = self._list(module, call.args, scope)
        given: dict[str, Any] = {}
        for keyword in call.keywords:
            if keyword.arg is not None:
                given[keyword.arg] = self._keyword(module, keyword.arg, keyword.value, scope)
                continue
            spread = self._value(module, keyword.value, scope)
            if not isinstance(spread, dict):
                raise ValueError(f"{module}: no keywords for {names}: {ast.unparse(keyword.value)}")
            given |= spread
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise ValueError(f"{module}: a flag whose name only running vLLM would tell: {ast.unparse(call)[:200]}")
        main = next((name for name in names if name.startswith("--")), None)
        if main is not None:  # the other one is the positional model
            self.flags[main] = _facts(given, [name for name in names if name != main])


def _type(node: ast.expr) -> str:
    """What a value is; "any" when a function of vLLM's own reads it."""
    if isinstance(node, ast.Call) and node.args:  # optional_type(str)
        return _type(node.args[0])
    return _TYPES.get(ast.unparse(node), "any")


def _order(choice: object) -> tuple[bool, int, str]:
    """Numbers by size, texts by letters, None last."""
    return choice is None, choice if isinstance(choice, int) else 0, str(choice)


def _facts(given: dict[str, Any], aliases: list[str]) -> dict[str, Any]:
    """The keywords of add_argument as flags.json has them."""
    form = _FORMS.get(str(given.get("action")), "value")
    facts: dict[str, Any] = {"form": form}
    if form in ("value", "append"):
        facts["type"] = given.get("type", "text")
        if given.get("action") == "StoreBoolean":
            facts |= {"nargs": "?", "choices": ["false", "true"]}
            given = {**given, "nargs": None, "choices": None}
        if isinstance(given.get("nargs"), str | int):
            facts["nargs"] = given["nargs"]
        choices = given.get("choices")
        if isinstance(choices, list) and OPAQUE not in choices and facts["type"] != "any":
            facts["choices"] = sorted(choices, key=_order)
    if aliases:
        facts["aliases"] = aliases
    said = given.get("help")
    goes, instead = deprecation(said) if isinstance(said, str) else (False, "")
    if goes or given.get("deprecated") is True:
        facts["deprecated"] = True
        if instead:
            facts["instead"] = instead
    return facts
