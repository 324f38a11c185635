"""The memo of parsed prefixes: exact, bounded, apart for each scope."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.dialects import memo as memo_module
from proxy.dialects.memo import NODE_OVERHEAD_BYTES, Node, PrefixMemo
from proxy.transcript import Item, Kind

HEAD = b'{"messages":['
SCOPE = b"scope"


def item(raw: bytes) -> Item:
    return Item(Kind.USER, "user", raw, 0, 0)


def items(*raws: bytes) -> list[Item]:
    return [item(raw) for raw in raws]


def body_of(*raws: bytes, head: bytes = HEAD) -> bytes:
    return head + b",".join(raws) + b"]}"


def learn(memo: PrefixMemo, *raws: bytes, head: bytes = HEAD, scope: bytes = SCOPE) -> None:
    """Remember a body as the dialect does: only what is new in it."""
    known = memo.match(scope, body_of(*raws, head=head))
    start = len(known.items) if known is not None else 0
    memo.remember(scope, head, known if start else None, items(*raws[start:]))


def known_of(
    memo: PrefixMemo, *raws: bytes, head: bytes = HEAD, scope: bytes = SCOPE
) -> list[bytes]:
    found = memo.match(scope, body_of(*raws, head=head))
    return [] if found is None else [known.raw for known in found.items]


def _nodes(root: Node) -> Iterator[Node]:
    stack = [*root.children]
    while stack:
        node = stack.pop()
        yield node
        stack += node.children


def recount(memo: PrefixMemo) -> int:
    """The bytes of the tree, counted anew; every end of a branch must be due for eviction."""
    used = 0
    for heads in memo._scopes.values():
        for head, root in heads.items():
            used += len(head) + NODE_OVERHEAD_BYTES
            for node in _nodes(root):
                assert node.item is not None
                used += len(node.item.raw) + NODE_OVERHEAD_BYTES
                assert node.parent is not None
                assert (node in memo._tips) == (not node.children)
    ends = [
        node
        for heads in memo._scopes.values()
        for root in heads.values()
        for node in _nodes(root)
        if not node.children
    ]
    assert len(memo._tips) == len(ends)
    return used


def test_nothing_is_known_at_first() -> None:
    memo = PrefixMemo(100_000)
    assert memo.match(SCOPE, body_of(b"{}")) is None
    assert memo.used_bytes == 0


def test_a_longer_body_is_known_as_far_as_it_was_seen() -> None:
    memo = PrefixMemo(100_000)
    learn(memo, b'{"a":1}', b'{"b":2}')

    found = memo.match(SCOPE, body_of(b'{"a":1}', b'{"b":2}', b'{"c":3}'))

    assert found is not None
    assert [known.raw for known in found.items] == [b'{"a":1}', b'{"b":2}']
    assert found.end == len(HEAD + b'{"a":1},{"b":2}')
    assert found.head == HEAD


def test_white_space_between_items_is_skipped() -> None:
    memo = PrefixMemo(100_000)
    learn(memo, b"{}", b"[ ]")
    body = HEAD + b" \n{} \t, \r\n[ ]\n ]}"
    found = memo.match(SCOPE, body)
    assert found is not None
    assert [known.raw for known in found.items] == [b"{}", b"[ ]"]
    assert body[found.end :] == b"\n ]}"


def test_one_changed_byte_ends_what_is_known() -> None:
    memo = PrefixMemo(100_000)
    learn(memo, b'{"a":1}', b'{"b":2}', b'{"c":3}')
    assert known_of(memo, b'{"a":1}', b'{"b":9}', b'{"c":3}') == [b'{"a":1}']
    assert known_of(memo, b'{"a":1} ', b'{"b":2}') == [b'{"a":1}', b'{"b":2}']
    assert known_of(memo, b'{"a": 1}', b'{"b":2}') == []


def test_branches_are_both_known() -> None:
    memo = PrefixMemo(100_000)
    learn(memo, b"{}", b"[1]", b"[2]")
    learn(memo, b"{}", b"[3]")
    assert known_of(memo, b"{}", b"[1]", b"[2]") == [b"{}", b"[1]", b"[2]"]
    assert known_of(memo, b"{}", b"[3]", b"[4]") == [b"{}", b"[3]"]
    assert memo.used_bytes == recount(memo)


def test_scopes_never_share() -> None:
    memo = PrefixMemo(100_000)
    learn(memo, b"{}", b"[1]", scope=b"one")
    assert memo.match(b"two", body_of(b"{}", b"[1]")) is None
    learn(memo, b"{}", b"[2]", scope=b"two")
    assert known_of(memo, b"{}", b"[1]", scope=b"two") == [b"{}"]
    assert known_of(memo, b"{}", b"[1]", scope=b"one") == [b"{}", b"[1]"]
    first = memo.match(b"one", body_of(b"{}"))
    second = memo.match(b"two", body_of(b"{}"))
    assert first is not None
    assert second is not None
    assert first.items[0] is not second.items[0]


def test_another_head_is_another_tree() -> None:
    memo = PrefixMemo(100_000)
    other = b'{"model":"m","messages":['
    learn(memo, b"{}", b"[1]")
    assert memo.match(SCOPE, body_of(b"{}", head=other)) is None
    learn(memo, b"{}", b"[2]", head=other)
    assert known_of(memo, b"{}", b"[1]", head=other) == [b"{}"]


def test_a_limit_of_nothing_remembers_nothing() -> None:
    memo = PrefixMemo(0)
    learn(memo, b"{}")
    assert (memo.used_bytes, memo.match(SCOPE, body_of(b"{}"))) == (0, None)


def test_what_can_never_fit_is_not_remembered() -> None:
    memo = PrefixMemo(5000)
    learn(memo, b"{}")
    learn(memo, b'"' + b"x" * 6000 + b'"', head=b'{"m":1,"messages":[')
    assert known_of(memo, b"{}") == [b"{}"]
    assert memo.used_bytes == recount(memo)


def test_a_head_that_never_fits_leaves_nothing_behind() -> None:
    memo = PrefixMemo(5000)
    learn(memo, b"{}", head=b'{"m":"' + b"x" * 9000 + b'","messages":[')
    assert memo.used_bytes == recount(memo) == 0


def test_the_conversation_used_longest_ago_goes_first() -> None:
    memo = PrefixMemo(4 * NODE_OVERHEAD_BYTES + 100)
    learn(memo, b'{"a":1}')
    learn(memo, b'{"b":1}')
    assert known_of(memo, b'{"a":1}') == [b'{"a":1}']  # used again

    learn(memo, b'{"c":1}')
    learn(memo, b'{"d":1}')

    kept = [raw for raw in (b'{"a":1}', b'{"b":1}', b'{"c":1}', b'{"d":1}') if known_of(memo, raw)]
    assert kept == [b'{"a":1}', b'{"c":1}', b'{"d":1}']
    assert memo.used_bytes == recount(memo)


def test_forgetting_a_branch_keeps_what_others_share() -> None:
    memo = PrefixMemo(5 * NODE_OVERHEAD_BYTES + 100)
    learn(memo, b"{}", b"[1]", b"[11]")
    learn(memo, b"{}", b"[2]")
    learn(memo, b"{}", b"[2]", b"[22]")
    assert known_of(memo, b"{}", b"[1]", b"[11]") == [b"{}"]
    assert known_of(memo, b"{}", b"[2]", b"[22]") == [b"{}", b"[2]", b"[22]"]
    assert memo.used_bytes == recount(memo)


def test_branches_and_heads_are_bounded_in_number() -> None:
    memo = PrefixMemo(10_000_000)
    for number in range(memo_module.MAX_CHILDREN + 3):
        learn(memo, b"{}", b"[%d]" % number, b"[0]")
    assert known_of(memo, b"{}", b"[0]") == [b"{}"]
    assert known_of(memo, b"{}", b"[10]", b"[0]") == [b"{}", b"[10]", b"[0]"]
    for number in range(memo_module.MAX_HEADS + 3):
        learn(memo, b"{}", head=b'{"n":%d,"messages":[' % number)
    assert len(memo._scopes[SCOPE]) == memo_module.MAX_HEADS
    assert memo.used_bytes == recount(memo)


_RAWS = st.sampled_from([b"{}", b'{"a":1}', b"[1]", b"[1, 2]", b'"' + b"x" * 700 + b'"', b"null"])
_HEADS = st.sampled_from([HEAD, b'{"m":1,"messages":[', b'{"m":"' + b"y" * 900 + b'","messages":['])
_STEPS = st.tuples(
    st.sampled_from([b"one", b"two"]), _HEADS, st.lists(_RAWS, min_size=1, max_size=6)
)


@given(
    st.lists(_STEPS, max_size=30),
    st.sampled_from([0, 700, 1500, 3000, 6000, 20_000, 1_000_000]),
    st.sampled_from([1, 2, 8]),
    st.sampled_from([1, 2, 32]),
)
def test_any_use_stays_within_the_limit_and_counts_right(
    steps: list[tuple[bytes, bytes, list[bytes]]], limit: int, children: int, heads: int
) -> None:
    memo = PrefixMemo(limit)
    seen: dict[bytes, list[tuple[bytes, list[bytes]]]] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memo_module, "MAX_CHILDREN", children)
        patch.setattr(memo_module, "MAX_HEADS", heads)
        for scope, head, raws in steps:
            known = known_of(memo, *raws, head=head, scope=scope)
            assert known == raws[: len(known)]
            assert not known or any(
                earlier_head == head and earlier[: len(known)] == known
                for earlier_head, earlier in seen.get(scope, [])
            )
            learn(memo, *raws, head=head, scope=scope)
            seen.setdefault(scope, []).append((head, raws))
            assert memo.used_bytes == recount(memo)
            assert memo.used_bytes <= limit
