"""fleet.yaml as plain data with line numbers.

YAML is read as its 1.2 core has it: ``yes`` and ``on`` are text, ``010`` and ``12:30`` are no numbers, dates are text.
Everything that could grow is bounded here, before anything else looks at the data.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from control.errors import FleetError, Problem

KeyPath = tuple[str | int, ...]

MAX_BYTES = 1024**2
MAX_DEPTH = 32
MAX_NODES = 100_000  # after aliases are followed: no "billion laughs"

#: Line breaks to PyYAML, but to no editor: they would shift every line number after them.
_STRANGE_BREAK = re.compile("[\x85\u2028\u2029]")
_TAG = "tag:yaml.org,2002:"

#: What PyYAML says → what it means for somebody who writes fleet.yaml.
_PLAIN_WORDS = (
    (r"character '\\t'", "there is a tab here; YAML wants spaces (outside of quotes)"),
    (r"character '[@`%]'", "a value cannot begin with this character; put the value in quotes"),
    (r"mapping values are not allowed", "a ':' stands where no key can be; check the indentation or use quotes"),
    (r"could not find expected ':'", "a key without ':' after it"),
    (r"expected <block end>", "the indentation does not fit the lines above, or something follows a closed value"),
    (r"expected ',' or '[\]}]'", "a ',' or a closing bracket is missing"),
    (r"unexpected end of stream", "the file ends inside a quoted text"),
    (r"unexpected document separator", "a quoted text is not closed"),
    (r"undefined alias", "a '*name' without an '&name' before it; if it is text, put it in quotes"),
    (r"duplicate anchor", "the same '&name' is given twice"),
    (r"unknown escape character", "a backslash in double quotes begins an escape that YAML does not know"),
    (r"expected a single document", "the file holds more than one document ('---'); fleet.yaml is one"),
)


@dataclass(frozen=True)
class Kind:
    """What is read: its name and first key for messages, and how large it may be."""

    name: str
    first: str
    max_bytes: int = MAX_BYTES
    max_nodes: int = MAX_NODES


FLEET = Kind("fleet.yaml", "'models:' with one model")


@dataclass
class Source:
    """What the file says. ``lines`` maps a key path to its line (from 1); ``()`` is the file itself.

    ``unread``: places whose value could not be read; ``problems`` tells why, and ``data`` has None there.
    """

    data: dict[str, object]
    lines: dict[KeyPath, int]
    problems: list[Problem] = field(default_factory=list)
    unread: set[KeyPath] = field(default_factory=set)


def dotted(path: KeyPath) -> str:
    """A key path as people write it: ``models.a.backends[0].url``."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += ("." if text else "") + (part if part.isprintable() else repr(part))[:300]
    return text


def holds(place: object, part: str | int) -> bool:
    """Whether ``place[part]`` is there, whatever ``place`` is."""
    if isinstance(place, dict):
        return part in place
    return isinstance(place, list) and isinstance(part, int) and 0 <= part < len(place)


def line_of(lines: Mapping[KeyPath, int], path: KeyPath) -> int:
    """The line (from 1) of a key, or of the nearest one above it that is written in the file."""
    while path and path not in lines:
        path = path[:-1]
    return lines.get(path, 1)


def read(path: Path, kind: Kind = FLEET) -> str:
    """The text of the file. ``FleetError`` when there is none that could be a fleet.yaml (or of another ``kind``)."""
    try:
        if path.exists() and not path.is_file():
            raise _failure(path, "this is a folder or a device, not a file.", f"Give the path of a {kind.name}.")
        with path.open("rb") as file:
            content = file.read(kind.max_bytes + 1)
    except FileNotFoundError:
        raise _failure(path, "there is no such file.", f"Give the path of a {kind.name}, or write one.") from None
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise _failure(path, f"the file cannot be read: {reason}.", "Look at its path and permissions.") from None
    if len(content) > kind.max_bytes:
        most = f"{kind.max_bytes // 1024**2} MiB"
        raise _failure(path, f"the file is larger than {most}, which no {kind.name} needs.", "Is it the right file?")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise _failure(path, "the file is not UTF-8 text.", "Save it as UTF-8.", line) from None


def parse(text: str, path: Path, kind: Kind = FLEET) -> Source:
    """The data in ``text``; ``path`` is for messages. Duplicate keys and wrong tags are collected as problems.

    ``FleetError`` when the text is no YAML or not a mapping.
    """
    return build(compose(text, path), path, kind)


def build(root: Node | None, path: Path, kind: Kind = FLEET) -> Source:
    """The data of a node tree that ``compose`` made. ``FleetError`` when it is not a mapping."""
    if root is None:
        raise _failure(path, "the file is empty.", f"It needs at least {kind.first}.")
    if not isinstance(root, MappingNode):
        found = "a list" if isinstance(root, SequenceNode) else "plain text"
        reason = f"the file must be a mapping ('key: value' lines), not {found}."
        raise _failure(
            path, reason, f"It begins with keys such as {kind.first.partition(' ')[0]}.", root.start_mark.line + 1
        )
    builder = _Builder(path, kind.max_nodes)
    data = builder.mapping(root, ())
    return Source(data, builder.lines, builder.problems, builder.unread)


def _failure(path: Path, message: str, suggestion: str = "", line: int = 1, column: int = 0) -> FleetError:
    return FleetError([Problem(path, line, "", message, suggestion, column)])


def _character(path: Path, text: str, position: int) -> FleetError:
    line = text.count("\n", 0, position) + 1
    column = position - text.rfind("\n", 0, position)
    reason = f"the character U+{ord(text[position]):04X} is not allowed in this file."
    return _failure(path, reason, "Remove it.", line, column)


class _TooDeep(yaml.MarkedYAMLError):
    """Brackets or indentation deeper than any fleet needs."""


class _Composer(yaml.SafeLoader):
    """SafeLoader that resolves as YAML 1.2 does and stops at a depth instead of overflowing the stack."""

    # The class attribute of the parent is shared with every user of PyYAML: never add to it.
    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012
    depth = 0

    def compose_node(self, parent: Node | None, index: int) -> Node | None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise _TooDeep(problem="too deep", problem_mark=self.peek_event().start_mark)  # type: ignore[no-untyped-call]
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1


for _name, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?(?:0|[1-9][0-9]{0,17})", "-+0123456789"),
    ("float", r"[-+]?(?:0|[1-9][0-9]{0,17})(?:\.[0-9]*)?(?:[eE][-+]?[0-9]{1,3})?", "-+0123456789"),
    ("null", r"null|Null|NULL|~|", ["n", "N", "~", ""]),
    ("merge", r"<<", "<"),
):
    _Composer.add_implicit_resolver(_TAG + _name, re.compile(f"(?:{_pattern})\\Z"), list(_first))


def compose(text: str, path: Path) -> Node | None:
    """The node tree; every way in which PyYAML can fail ends in a ``FleetError``."""
    strange = _STRANGE_BREAK.search(text)
    if strange is not None:
        raise _character(path, text, strange.start())
    try:
        loader = _Composer(text)
    except yaml.reader.ReaderError as error:
        raise _character(path, text, error.position) from None
    try:
        node: Node | None = loader.get_single_node()
        return node
    except _TooDeep as error:
        reason = f"this is nested more than {MAX_DEPTH} levels deep, which no fleet needs."
        raise _marked(path, error, reason) from None
    except yaml.MarkedYAMLError as error:
        raise _marked(path, error, _plain(error)) from None
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError):
        # PyYAML turns "\UFFFFFFFF" into chr() without looking.
        reason = "YAML cannot read this; an escape such as \\U in double quotes may be wrong."
        raise _failure(path, reason, "", loader.line + 1, loader.column + 1) from None
    finally:
        loader.dispose()


class _QuickComposer(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """libyaml, where PyYAML was built with it: the same nodes sixteen times as fast."""

    yaml_implicit_resolvers = _Composer.yaml_implicit_resolvers


def compose_large(text: str, path: Path) -> Node | None:
    """The same as ``compose`` for texts of thousands of lines. What libyaml refuses is read again for the reason."""
    if not text.startswith("\ufeff") and _STRANGE_BREAK.search(text) is None:  # with a BOM its places are one off
        loader = _QuickComposer(text)
        try:
            node: Node | None = loader.get_single_node()
            return node
        except (yaml.YAMLError, ValueError, OverflowError, RecursionError):
            pass
        finally:
            loader.dispose()
    return compose(text, path)


def _marked(path: Path, error: yaml.MarkedYAMLError, reason: str) -> FleetError:
    mark = error.problem_mark or error.context_mark
    return _failure(path, reason, "", mark.line + 1, mark.column + 1) if mark else _failure(path, reason)


def _plain(error: yaml.MarkedYAMLError) -> str:
    problem = error.problem or "it cannot be read"
    both = f"{error.context} {problem}"
    words = next((words for pattern, words in _PLAIN_WORDS if re.search(pattern, both)), "")
    context = f", {error.context}" if error.context else ""
    if error.context_mark is not None and error.problem_mark is not None:
        context += f" that began in line {error.context_mark.line + 1}" if error.context else ""
    said = f"{problem}{context}"[:300]
    return f"this is not valid YAML: {words} ({said})." if words else f"this is not valid YAML: {said}."


class _Builder:
    """Turns nodes into dict, list, str, int, float, bool and None, noting lines and problems on the way."""

    def __init__(self, path: Path, max_nodes: int) -> None:
        self.path = path
        self.max_nodes = max_nodes
        self.lines: dict[KeyPath, int] = {(): 1}
        self.problems: list[Problem] = []
        self.count = 0
        self.open: set[int] = set()
        self.merging = 0
        self.unread: set[KeyPath] = set()

    def note(self, path: KeyPath, line: int) -> None:
        if self.merging:
            self.lines.setdefault(path, line)
        else:
            self.lines[path] = line

    def problem(self, node: Node, path: KeyPath, message: str, suggestion: str = "") -> None:
        self.unread.add(path)
        self.problems.append(Problem(self.path, node.start_mark.line + 1, dotted(path), message, suggestion))

    def value(self, node: Node, path: KeyPath) -> object:
        self.count += 1
        if self.count > self.max_nodes or len(path) > MAX_DEPTH or id(node) in self.open:
            line, column = node.start_mark.line + 1, node.start_mark.column + 1
            reason = "aliases ('*name') make this endless or too large."
            raise _failure(self.path, reason, "Write it out instead.", line, column)
        self.open.add(id(node))
        try:
            if isinstance(node, MappingNode):
                return self.mapping(node, path)
            if isinstance(node, SequenceNode):
                return self.sequence(node, path)
            return self.scalar(node, path)
        finally:
            self.open.discard(id(node))

    def tagged(self, node: Node, path: KeyPath, allowed: tuple[str, ...]) -> bool:
        """Whether the node's tag fits its kind; a problem is noted when not."""
        if node.tag in {_TAG + name for name in allowed}:
            return True
        shown = node.tag.replace(_TAG, "!!")[:80]
        self.problem(node, path, f"the YAML tag {shown!r} is not allowed here.", "Write the plain value without a tag.")
        return False

    def mapping(self, node: MappingNode, path: KeyPath) -> dict[str, object]:
        self.tagged(node, path, ("map",))
        result: dict[str, object] = {}
        merged: dict[str, object] = {}
        seen: dict[Hashable, int] = {}
        for key_node, value_node in node.value:
            if key_node.tag == _TAG + "merge":
                merged = {**self.merge(value_node, path), **merged}
                continue
            key = self.key(key_node, path)
            line = key_node.start_mark.line + 1
            if key is None:
                continue
            if key in seen:
                here = dotted((*path, key))
                text = f"this key is given twice: in line {seen[key]} and in line {line}."
                self.problems.append(Problem(self.path, line, here, text, "Keep one of them."))
                continue
            seen[key] = line
            self.note((*path, key), line)
            result[key] = self.value(value_node, (*path, key))
        return {**merged, **result}

    def merge(self, node: Node, path: KeyPath) -> dict[str, object]:
        """What ``<<`` brings in. Lines are those of the anchored mapping, unless the key is given here too."""
        self.merging += 1
        value = self.value(node, path)
        self.merging -= 1
        if isinstance(value, dict):
            return value
        self.problem(node, path, "'<<' needs a mapping ('*name').", "Merge one mapping at a time.")
        return {}

    def key(self, node: Node, path: KeyPath) -> str | None:
        """The key's text. Plain numbers are fine as keys: a model may be called 7."""
        if not isinstance(node, ScalarNode):
            self.problem(node, path, "a list or mapping cannot be a key.", "If the key is text, put it in quotes.")
            return None
        if not node.value:
            self.problem(node, path, "a key is empty.", "Write its name before the ':'.")
            return None
        if not self.tagged(node, path, ("str", "int", "float", "bool", "null")) or not self.sound(node, path):
            return None
        return str(node.value)

    def sequence(self, node: SequenceNode, path: KeyPath) -> list[object]:
        self.tagged(node, path, ("seq",))
        result: list[object] = []
        for index, item in enumerate(node.value):
            self.note((*path, index), item.start_mark.line + 1)
            result.append(self.value(item, (*path, index)))
        return result

    def sound(self, node: ScalarNode, path: KeyPath) -> bool:
        if any("\ud800" <= character <= "\udfff" for character in node.value):
            self.problem(node, path, "half a character (a lone surrogate such as \\ud800) is not text.", "Remove it.")
            return False
        return True

    def scalar(self, node: Node, path: KeyPath) -> object:
        if not self.tagged(node, path, ("str", "int", "float", "bool", "null")):
            return None
        assert isinstance(node, ScalarNode)
        if not self.sound(node, path):
            return None
        text = str(node.value)
        kind = node.tag.removeprefix(_TAG)
        try:
            if kind == "null":
                return None
            if kind == "bool":
                return {"true": True, "false": False}[text.lower()]
            if kind == "int":
                return int(text)
            return float(text) if kind == "float" else text
        except (ValueError, KeyError):
            self.problem(node, path, f"the YAML tag '!!{kind}' does not fit this value.", "Remove the tag.")
            return None
