"""What is read of a summariser's reply, and where reading ends."""

from proxy import codec
from proxy.codec import JsonObject
from proxy.upstream.summary_reply import MAX_CHARS_PER_TOKEN, Collected

LIMIT = 100


def _chunk(text: str) -> bytes:
    event: JsonObject = {"choices": [{"index": 0, "delta": {"content": text}}]}
    return b"data: " + codec.dumps(event) + b"\n\n"


def _delta(text: str) -> bytes:
    event: JsonObject = {"type": "response.output_text.delta", "delta": text}
    return b"data: " + codec.dumps(event) + b"\n\n"


def test_a_stream_that_passes_over_the_output_limit_is_left() -> None:
    for event in (_chunk, _delta):
        collected = Collected(LIMIT)
        most = MAX_CHARS_PER_TOKEN * LIMIT
        assert not collected.take(event("x" * most))
        assert collected.take(event("x") * 9)
        result = collected.result()
        assert result.cut
        assert len(result.text) == most + 1
