"""Changes one place of a YAML text and leaves every other byte as it is: comments, order, quotes, line ends.

Works on the node tree of that text, whose nodes know where they stand, and makes patches for it. Who changes a text
compares what it says afterwards with what it should say (see ``store``): anchors and other rare things show there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

#: A scalar as it is written, or the members of a mapping in their order.
Value = str | Sequence[tuple[str, "Value"]]


#: From, to (of the text as it was), and what stands there instead.
Patch = tuple[int, int, str]


class CannotEdit(Exception):
    """The text is written in a way that this module does not know."""


def quoted(text: str) -> str:
    """Text as YAML never takes for anything else: 1e10, true and null are fine ends of a key."""
    return json.dumps(text)


def mapping_at(root: Node | None, *path: str) -> MappingNode:
    """The mapping at a path of keys. Raises CannotEdit when there is none."""
    node = root
    for name in path:
        found = _member(node, name) if isinstance(node, MappingNode) else None
        node = found[1] if found else None
    if not isinstance(node, MappingNode):
        raise CannotEdit(f"no mapping at {'.'.join(path)}")
    return node


def apply(text: str, patches: list[Patch]) -> str:
    """``text`` with all patches, which do not overlap."""
    for start, end, new in sorted(patches, reverse=True):
        text = text[:start] + new + text[end:]
    return text


def replace(mapping: MappingNode, key: str, value: str) -> list[Patch]:
    """Gives ``key`` of ``mapping``, which has a scalar there, another one."""
    found = _member(mapping, key)
    if found is None or not isinstance(found[1], ScalarNode):
        raise CannotEdit(f"no scalar at {key}")
    start, end = found[1].start_mark.index, found[1].end_mark.index
    return [(start, end, " " + value if start == end else value)]


def remove(text: str, mapping: MappingNode, key: str) -> list[Patch]:
    """Takes ``key`` out of ``mapping``, which has it. In a block its lines go, comments around them stay."""
    members = mapping.value
    index = next(at for at, (name, _) in enumerate(members) if name.value == key)
    name, value = members[index]
    start, end = name.start_mark.index, _end(text, value)
    if mapping.flow_style:
        if index + 1 < len(members):
            end = members[index + 1][0].start_mark.index
        elif index > 0:
            start = _end(text, members[index - 1][1])
        return [(start, end, "")]
    line = text.rfind("\n", 0, start) + 1
    if text[line:start].strip():
        raise CannotEdit("something stands before the key")
    return [(line, _after_line(text, end), "")]


def empty(text: str, parent: MappingNode, key: str) -> list[Patch]:
    """Takes the only member out of the mapping at ``key`` of ``parent``."""
    mapping = mapping_at(parent, key)
    patches = remove(text, mapping, mapping.value[0][0].value)
    if not mapping.flow_style:
        name = next(name for name, value in parent.value if value is mapping)
        colon = text.index(":", name.end_mark.index) + 1
        patches.append((colon, colon, " {}"))
    return patches


def _member(mapping: MappingNode, key: str) -> tuple[Node, Node] | None:
    members: list[tuple[Node, Node]] = mapping.value
    return next(((name, value) for name, value in members if name.value == key), None)


def add(text: str, mapping: MappingNode, key: str, value: Value, *, flow: bool = False) -> list[Patch]:
    """Makes ``key`` the last member of ``mapping``, in the manner of the others; ``flow``: the file has no blocks."""
    members = mapping.value
    start, stop = mapping.start_mark.index, mapping.end_mark.index
    if not mapping.flow_style:
        indent = members[0][0].start_mark.column
        return [_insert(text, _end(text, members[-1][1]), _block(key, value, indent, _step(members)))]
    if text[start : start + 1] != "{" or text[stop - 1 : stop] != "}":
        raise CannotEdit("a mapping with an anchor or a tag")
    if members:
        end = _end(text, members[-1][1])
        return [(end, end, f", {key}: {_flow(value)}")]
    if flow:
        return [(start + 1, stop - 1, f"{key}: {_flow(value)}")]
    colon = text.rindex(":", 0, start) + 1
    if text[colon:start].strip(" "):
        raise CannotEdit("an empty mapping in a line of its own")
    # "{}" becomes a block below its line; a comment behind it stays there.
    return [(colon, stop, ""), _insert(text, stop, _block(key, value, 2, 2))]


def _step(members: list[tuple[Node, Node]]) -> int:
    """By how many columns the file goes in."""
    for name, value in members:
        if isinstance(value, MappingNode) and not value.flow_style and value.value:
            return max(1, int(value.value[0][0].start_mark.column) - int(name.start_mark.column))
    return 2


def _insert(text: str, end: int, lines: list[str]) -> Patch:
    """``lines`` after the line that ``end`` is in."""
    newline = "\r\n" if "\r\n" in text else "\n"
    at = _after_line(text, end)
    before = "" if text[at - 1 : at] == "\n" else newline
    return at, at, before + "".join(line + newline for line in lines)


def _after_line(text: str, index: int) -> int:
    found = text.find("\n", index)
    return len(text) if found < 0 else found + 1


def _end(text: str, node: Node) -> int:
    """Where the last thing of a node ends; PyYAML lets blocks end where the next thing begins."""
    last = max(one.end_mark.index for one in _leaves(node))
    return len(text[:last].rstrip())


def _leaves(node: Node) -> Iterator[Node]:
    children: list[Node] = []
    if isinstance(node, MappingNode):
        children = [one for pair in node.value for one in pair]
    elif isinstance(node, SequenceNode):
        children = list(node.value)
    if not children or getattr(node, "flow_style", False):
        yield node
    for child in children:
        yield from _leaves(child)


def _flow(value: Value) -> str:
    if isinstance(value, str):
        return value
    return "{" + ", ".join(f"{key}: {_flow(one)}" for key, one in value) + "}"


def _block(key: str, value: Value, indent: int, step: int) -> list[str]:
    """A member as lines: one level of block, flow below it."""
    if isinstance(value, str) or not value:
        return [f"{' ' * indent}{key}: {_flow(value)}"]
    return [f"{' ' * indent}{key}:", *(f"{' ' * (indent + step)}{name}: {_flow(one)}" for name, one in value)]
