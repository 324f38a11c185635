"""The digest chain that names a prefix."""

from hypothesis import given
from hypothesis import strategies as st

from proxy.codec import JsonObject
from proxy.compaction import fingerprint
from tests.builders import assistant, call, chat_body, developer, result, system, user
from tests.strategies import DIALECT, ORIGIN, continuations, conversations, to_transcript


def test_exact_digests_do_not_change_without_a_new_version() -> None:
    origin = fingerprint.origin("tenant", "chat")
    assert fingerprint.CANONICAL_VERSION == 1
    assert origin.hex() == "f74460dba7370af47f451071de7a65b643c164ad"
    assert fingerprint.extend(origin, b"item").hex() == "65cdf28c6d65b123a76ba692b64124c2e2e89a9f"


def test_tenant_and_dialect_are_part_of_the_name() -> None:
    names = [("a", "chat"), ("b", "chat"), ("a", "responses"), ("", "chat"), ("chat", "a")]
    assert len({fingerprint.origin(*name) for name in names}) == len(names)


@given(st.lists(st.binary(max_size=8), min_size=1, max_size=6), st.data())
def test_every_item_and_its_place_count(items: list[bytes], data: st.DataObject) -> None:
    def chain(parts: list[bytes]) -> bytes:
        digest = ORIGIN
        for part in parts:
            digest = fingerprint.extend(digest, part)
        return digest

    at = data.draw(st.integers(0, len(items) - 1))
    changed = [*items[:at], items[at] + b"!", *items[at + 1 :]]
    assert chain(items) == chain([*items])
    assert chain(changed) != chain(items)
    assert chain([*items, b""]) != chain(items)
    assert len(chain(items)) == fingerprint.DIGEST_BYTES


@given(conversations(odd=True, max_chars=100), st.data())
def test_digests_of_a_prefix_do_not_change_when_items_are_added(
    messages: list[JsonObject], data: st.DataObject
) -> None:
    before = to_transcript(messages).items
    after = to_transcript([*messages, *data.draw(continuations(messages))]).items
    assert len(after) > len(before)
    assert [item.digest for item in after[: len(before)]] == [item.digest for item in before]
    assert after[len(before)].digest not in {item.digest for item in before}


@given(conversations(max_chars=100), st.data())
def test_a_changed_message_changes_every_digest_from_there_on(
    messages: list[JsonObject], data: st.DataObject
) -> None:
    items = to_transcript(messages).items
    skipped = len(messages) - len(items)
    at = data.draw(st.integers(0, len(items) - 1))
    edited = [*messages]
    edited[skipped + at] = {**edited[skipped + at], "content": "edited afterwards"}
    after = to_transcript(edited).items
    same = [one.digest == two.digest for one, two in zip(items, after, strict=True)]
    assert same == [True] * at + [False] * (len(items) - at)


@given(conversations(max_chars=100))
def test_leading_instructions_are_not_part_of_the_name(messages: list[JsonObject]) -> None:
    first = to_transcript([system("one"), *messages]).items
    second = to_transcript([developer("two"), system("three"), *messages]).items
    assert [item.digest for item in first] == [item.digest for item in second]


def test_new_call_ids_give_the_same_name_but_another_pairing_does_not() -> None:
    def conversation(first: str, second: str, answered: str) -> bytes:
        calls = [call(first, "read_file", "{}"), call(second, "read_file", "{}")]
        messages = [user("a"), assistant(None, calls), result(answered, "x")]
        return to_transcript(messages).items[-1].digest

    assert conversation("1", "2", "2") == conversation("8", "9", "9")
    assert conversation("1", "2", "2") != conversation("1", "2", "1")


def test_the_same_conversation_of_two_tenants_has_two_names() -> None:
    body = chat_body([user("a")])
    other = DIALECT.parse(body, fingerprint.origin("another", "chat"))
    mine = DIALECT.parse(body, ORIGIN)
    assert mine is not None
    assert other is not None
    assert mine.transcript.anchor != other.transcript.anchor
