"""The parts of contents, whichever dialect they come from."""

import pytest

from proxy.codec import Json, JsonObject
from proxy.dialects.parts import (
    audio_of,
    file_of,
    image_of,
    read_parts,
    text_key,
    text_of,
)
from proxy.transcript import Binary
from tests import builders as b

PNG = b.data_url(b.png(280, 140, 64))


def named(part: JsonObject) -> Binary:
    return Binary(str(part["type"]))


@pytest.mark.parametrize(
    ("content", "texts", "kinds"),
    [
        (None, [], []),
        ("hi", ["hi"], []),
        ("", [""], []),
        ([], [], []),
        ([{"type": "text", "text": "a"}, {"text": "b"}], ["a", "b"], []),
        ([{"type": "refusal", "refusal": "no"}], ["no"], []),
        ([{"type": "image"}, {"text": "a"}, {"type": "file"}], ["a"], ["image", "file"]),
        ([{"type": "odd", "text": 7}], [], ["odd"]),
    ],
)
def test_texts_and_the_rest(content: Json, texts: list[str], kinds: list[str]) -> None:
    found = read_parts(content, named)
    assert found == (texts, [Binary(kind) for kind in kinds])


@pytest.mark.parametrize("content", [7, {"text": "a"}, ["a"], [{"text": "a"}, None], True])
def test_other_shapes_are_not_interpreted(content: Json) -> None:
    assert read_parts(content, named) is None


def test_the_member_with_the_text() -> None:
    assert text_key({"text": "a", "refusal": "b"}) == "text"
    assert text_key({"text": None, "refusal": "b"}) == "refusal"
    assert text_key({"type": "x"}) is None
    assert text_key("text") is None
    assert (text_of({"text": "a"}, "text"), text_of({"text": 1}, "text"), text_of(3, "text")) == (
        "a",
        "",
        "",
    )


@pytest.mark.parametrize("source", [PNG, {"url": PNG}])
def test_images_are_measured_by_their_head(source: Json) -> None:
    image = image_of(source, low_detail=False)
    assert (image.kind, image.media_type, image.width, image.height) == (
        "image",
        "image/png",
        280,
        140,
    )
    assert image.size_bytes > 64
    assert image_of(source, low_detail=True).low_detail


@pytest.mark.parametrize("source", ["https://host/a.png", {"url": "https://host/a.png"}, None, 5])
def test_an_image_elsewhere_has_no_size(source: Json) -> None:
    assert image_of(source, low_detail=False) == Binary("image")


def test_sounds_and_files() -> None:
    assert audio_of({"data": "AAAA", "format": "wav"}) == Binary("audio", "wav", size_bytes=3)
    assert audio_of({}) == Binary("audio")
    data = "data:application/pdf;base64,AAAA"
    assert file_of({"file_data": data}).media_type == "application/pdf"
    assert file_of({"file_id": "file-1"}) == Binary("file")
    assert file_of({"file_id": "file-1", "filename": "a.pdf"}) == Binary("file", name="a.pdf")
