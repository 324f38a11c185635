"""Remembering parsed prefixes, so that a request costs what is new in it.

Clients send the whole conversation again with a few items added. The memo keeps, per scope
(tenant and dialect), a tree of items whose edges are the items' own bytes. A new body is walked
along the tree by comparing bytes; only what is left is parsed. The comparison is exact, so the
memo can be wrong about nothing: a body that differs in one byte leaves the tree there.

Bounded by bytes: the conversation that was used longest ago goes first.
"""

import re
from collections import OrderedDict
from dataclasses import dataclass, field

from proxy.transcript import Item, Kind

NODE_OVERHEAD_BYTES = 600
"""About what an item and its node cost besides the raw bytes."""

MAX_CHILDREN = 8
MAX_HEADS = 32
MIN_BODY_BYTES = 1024
"""Smaller bodies are parsed faster than they are looked up."""

LARGE_BODY_BYTES = 16 * 1024
"""From here on a body belongs to the large memo."""

_SPACE = re.compile(rb"[ \t\r\n]*")
_COMMA = ord(",")
_SPACE_BYTE = ord(" ")


@dataclass(slots=True, eq=False)
class Node:
    """One item at one place in one conversation."""

    item: Item | None
    parent: "Node | None"
    anchor: bytes = b""
    """Fingerprint through the first user item on the way here; empty before there is one."""
    chars: int = 0
    tokens: int = 0
    """Size of all items on the way here together."""
    children: "list[Node]" = field(default_factory=list)


@dataclass(slots=True)
class Match:
    """How far a body is known."""

    head: bytes
    node: Node
    items: list[Item]
    end: int
    """Offset in the body right after the last known item (or after the head)."""


class PrefixMemo:
    """The tree of known prefixes of one process."""

    def __init__(self, limit_bytes: int) -> None:
        """Keep at most about `limit_bytes`; 0 remembers nothing."""
        self._limit = limit_bytes
        self._used = 0
        self._scopes: OrderedDict[bytes, OrderedDict[bytes, Node]] = OrderedDict()
        self._tips: OrderedDict[Node, None] = OrderedDict()

    @property
    def used_bytes(self) -> int:
        """What is remembered now, overhead included."""
        return self._used

    def match(self, scope: bytes, body: bytes) -> Match | None:
        """Walk `body` along what is known; None when not even its head is."""
        heads = self._scopes.get(scope)
        if heads is None:
            return None
        for head, root in heads.items():
            if body.startswith(head):
                return self._descend(head, root, body)
        return None

    def _descend(self, head: bytes, root: Node, body: bytes) -> Match:
        # Runs once per known item of every request, so it is written for speed: in compact JSON
        # the next item stands one comma further on, and no function is called.
        node, items, end = root, list[Item](), len(head)
        known_at, size = body.startswith, len(body)
        position = _skip_space(body, end)
        while True:
            for child in node.children:
                item = child.item
                if item is not None and known_at(item.raw, position):
                    break
            else:
                break
            node = child
            items.append(item)
            end = position = position + len(item.raw)
            if position < size and body[position] <= _SPACE_BYTE:
                position = _skip_space(body, position)
            if position >= size or body[position] != _COMMA:
                break
            position += 1
            if position < size and body[position] <= _SPACE_BYTE:
                position = _skip_space(body, position)
        if node in self._tips:
            self._tips.move_to_end(node)
        return Match(head, node, items, end)

    def remember(self, scope: bytes, head: bytes, known: Match | None, new: list[Item]) -> None:
        """Add the items that followed what was known."""
        if not new or sum(len(item.raw) + NODE_OVERHEAD_BYTES for item in new) > self._limit:
            return
        node = known.node if known is not None else self._root(scope, head)
        self._tips.pop(node, None)
        for item in new:
            anchor = node.anchor or (item.digest if item.kind is Kind.USER else b"")
            child = Node(item, node, anchor, node.chars + item.chars, node.tokens + item.tokens)
            # The newest branch is tried first; the oldest of too many is forgotten.
            node.children.insert(0, child)
            for forgotten in node.children[MAX_CHILDREN:]:
                self._forget_tree(forgotten)
            del node.children[MAX_CHILDREN:]
            self._used += len(item.raw) + NODE_OVERHEAD_BYTES
            node = child
        self._tips[node] = None
        while self._used > self._limit and self._tips:
            self._forget_tip()

    def _root(self, scope: bytes, head: bytes) -> Node:
        heads = self._scopes.setdefault(scope, OrderedDict())
        root = heads.get(head)
        if root is None:
            root = heads[head] = Node(None, None)
            heads.move_to_end(head, last=False)
            self._used += len(head) + NODE_OVERHEAD_BYTES
            if len(heads) > MAX_HEADS:
                old_head, old_root = heads.popitem()
                self._forget_root(old_head, old_root)
        return root

    def _forget_root(self, head: bytes, root: Node) -> None:
        self._used -= len(head) + NODE_OVERHEAD_BYTES
        self._tips.pop(root, None)
        for child in root.children:
            self._forget_tree(child)
        root.children.clear()

    def _forget_tree(self, node: Node) -> None:
        stack = [node]
        while stack:
            gone = stack.pop()
            stack += gone.children
            gone.children = []
            gone.parent = None
            self._tips.pop(gone, None)
            if gone.item is not None:
                self._used -= len(gone.item.raw) + NODE_OVERHEAD_BYTES

    def _forget_tip(self) -> None:
        node: Node | None
        node, _ = self._tips.popitem(last=False)
        while node is not None and node.item is not None and not node.children:
            parent = node.parent
            self._used -= len(node.item.raw) + NODE_OVERHEAD_BYTES
            node.parent = None
            if parent is not None:
                parent.children.remove(node)
                if parent in self._tips:
                    return
            node = parent
        if node is not None and node.item is None and not node.children:
            self._forget_empty_root(node)

    def _forget_empty_root(self, root: Node) -> None:
        for scope, heads in list(self._scopes.items()):
            for head, known in list(heads.items()):
                if known is root:
                    del heads[head]
                    self._used -= len(head) + NODE_OVERHEAD_BYTES
            if not heads:
                del self._scopes[scope]


def _skip_space(body: bytes, position: int) -> int:
    # Compact JSON has no white space here; the expression runs only when there is some.
    if position < len(body) and body[position] <= _SPACE_BYTE:
        found = _SPACE.match(body, position)
        return found.end() if found else position
    return position
