"""URLs in prose, Markdown, JSON, HTML and scripts without spaces."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.compaction.ledger import urls


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("See https://a.example/x.", ["https://a.example/x"]),
        ("(https://a.example/x).", ["https://a.example/x"]),
        ("[it](https://a.example/x_(y)), then", ["https://a.example/x_(y)"]),
        ("[https://a.example/x](https://a.example/x)", ["https://a.example/x"]),
        ("<https://a.example/x>", ["https://a.example/x"]),
        ("**https://a.example/x**", ["https://a.example/x"]),
        ("https://a.example/?ids=1,2;3&x[y]=z!", ["https://a.example/?ids=1,2;3&x[y]=z"]),
        ('{"url": "https://a.example/x", "n": 1}', ["https://a.example/x"]),
        (r'{"url":"https:\/\/a.example\/x?a=1\u0026b=2"}', ["https://a.example/x?a=1&b=2"]),
        (r"a\nhttps://a.example/x\nb", ["https://a.example/x"]),
        ("<a href='https://a.example/x'>", ["https://a.example/x"]),
        ("https://a.example/x&quot;&gt;", ["https://a.example/x"]),
        ("見よhttps://a.example/xを参照。", ["https://a.example/x"]),
        ("「https://a.example/x」。", ["https://a.example/x"]),
        ("“https://a.example/x”…", ["https://a.example/x"]),
        ("https://zh.example.org/wiki/北京市。", ["https://zh.example.org/wiki/北京市"]),
        ("| https://a.example/x | 2 |", ["https://a.example/x"]),
        ("http://localhost:3000/health, ok", ["http://localhost:3000/health"]),
        ("http://[::1]:8080/x", ["http://[::1]:8080/x"]),
        ("wss://a.example/s and s3://bucket/key", ["wss://a.example/s", "s3://bucket/key"]),
        ("postgres://db.internal:5432/app", ["postgres://db.internal:5432/app"]),
        ("git@github.com:o/r.git", []),
        ("https://${HOST}/x http://{host}/y https://<id>/z", []),
        ("https://api.example/users/{id}", []),
        ('<svg xmlns="http://www.w3.org/2000/svg">', []),
        ('"$schema": "https://json-schema.org/draft-07/schema"', []),
        ("http:// and https://", []),
        ("file:///etc/passwd x:// http//a", []),
        ("https://a.example/" + "x" * 600, []),
        ("https://a.example/x https://a.example/x", ["https://a.example/x"]),
    ],
)
def test_where_a_url_begins_and_ends(text: str, found: list[str]) -> None:
    assert urls.find(text) == found


@given(st.text(alphabet="htps:/.a(b)[]<>\"'&;,。を北 \n", max_size=300))
def test_every_url_is_part_of_the_text(text: str) -> None:
    assert all(url in text and not url.endswith((".", ",")) for url in urls.find(text))
