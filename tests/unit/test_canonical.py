"""What contents, arguments and extra members are reduced to."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy import codec
from proxy.codec import Json, JsonObject
from proxy.dialects.canonical import (
    arguments_form,
    content_form,
    data_form,
    extras_of,
    part_form,
)
from tests import builders
from tests import items as b

URL = builders.data_url(builders.png(4, 3))


@pytest.mark.parametrize(
    ("members", "left"),
    [
        ({"a": None, "b": "", "c": [], "d": 0, "e": False, "f": {}}, {"d": 0, "e": False, "f": {}}),
        ({"status": "x", "phase": "x", "annotations": [1], "logprobs": {}, "parsed_x": 1}, {}),
        ({"reasoning": "x", "thinking": "x", "cache_control": {"ttl": "1h"}}, {}),
        ({"id": "msg_1"}, {}),
        ({"id": "own"}, {"id": "own"}),
        ({"type": "message"}, {}),
        ({"type": "other"}, {"type": "other"}),
        ({"known": 1, "audio": {"id": "a", "data": "b", "expires_at": 1}}, {"audio": {"id": "a"}}),
    ],
)
def test_extra_members_that_count(members: JsonObject, left: JsonObject) -> None:
    assert extras_of(members, {"known"}) == left


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ('{"a": 1}', [{"a": 1}]),
        (" {}\n", [{}]),
        ('{"a"', '{"a"'),
        (" x ", "x"),
        ('"x"', ["x"]),
        ("", ""),
    ],
)
def test_arguments_lose_their_spelling(text: str, form: Json) -> None:
    assert arguments_form(text) == form


@given(st.recursive(st.integers(-9, 9) | st.text(max_size=4), st.lists, max_leaves=5))
def test_no_text_is_taken_for_arguments(value: Json) -> None:
    text = codec.dumps(value).decode()
    assert arguments_form(text) == [value]
    assert arguments_form(text) != arguments_form(text + ",")


@given(st.text(st.characters(codec="utf-8"), max_size=12), st.data())
def test_a_text_is_one_thing_however_it_is_split(text: str, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(text)))
    types = [data.draw(st.sampled_from(["text", "input_text", "output_text"])) for _ in range(2)]
    parts: list[Json] = [
        {"type": type_, "text": part}
        for type_, part in zip(types, (text[:cut], text[cut:]), strict=True)
    ]
    assert content_form(parts) == content_form(text)


def test_parts_that_are_not_plain_text_part_the_text() -> None:
    refusal: JsonObject = {"type": "refusal", "refusal": "no"}
    marked: JsonObject = {"type": "text", "text": "m", "x": 1}
    form = content_form([b.text_part(" a"), refusal, b.text_part("b "), marked])
    assert form == ["a", ["refusal", "no", {}], "b", ["text", "m", {"x": 1}]]
    assert content_form(None) == content_form(" ") == content_form([b.text_part("")]) == []


def test_an_image_is_its_data_whatever_shape_it_has() -> None:
    parts: list[JsonObject] = [
        b.image_part(URL),
        b.image_part(URL, detail="high"),
        {"type": "input_image", "image_url": {"url": URL}},
        builders.image_part(URL, "low"),
        {"type": "image_url", "image_url": URL},
    ]
    forms = [part_form(part) for part in parts]
    assert [form for form in forms if form != forms[0]] == []
    urls: list[JsonObject] = [{"url": "http://a"}, {"url": "http://b"}]
    assert len({codec.dumps(part_form({"type": "input_image", "image_url": u})) for u in urls}) == 2
    assert part_form(b.image_part(URL, file_id="f")) != forms[0]


def test_data_is_named_by_what_it_decodes_to() -> None:
    data = bytes(range(200))
    one = builders.data_url(data)
    wrapped = "data:image/png;base64," + base64.encodebytes(data).decode()
    assert data_form(one) == data_form(wrapped) == data_form(one.rstrip("="))
    assert data_form(one) != data_form(builders.data_url(data[:-1]))
    assert data_form("https://x/y.png") == "https://x/y.png"
    assert data_form("A" * 2000) != data_form("A" * 2001)
    assert data_form("data:image/svg+xml,<a 1.5>") != data_form("data:image/svg+xml,<a 15>")
