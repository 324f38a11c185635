"""A client that sends only what is new, and names the response that it continues."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO

from aiohttp import ClientSession

from proxy.codec import Json, JsonObject, as_objects, as_text, dumps, loads
from proxy.dialects.sse import EventReader
from tests.upstream import Recorded, ScriptedUpstream
from tests.upstream_responses import RESPONSES_PATH, whole_input

TOOLS: list[Json] = [
    {"type": "function", "name": "read_file", "parameters": {"type": "object", "properties": {}}}
]


@dataclass(frozen=True, slots=True)
class Turned:
    """One request of a chain and what came of it."""

    sent: bytes = field(repr=False)
    status: int
    headers: Mapping[str, str] = field(repr=False)
    response: JsonObject = field(repr=False)
    """Or the error."""
    forwarded: Sequence[Recorded] = field(repr=False)
    """What reached the model for it, summaries aside."""

    @property
    def id(self) -> str:
        return as_text(self.response["id"])

    @property
    def output(self) -> Sequence[JsonObject]:
        return as_objects(self.response["output"])

    @property
    def calls(self) -> list[str]:
        return [as_text(i["call_id"]) for i in self.output if i["type"] == "function_call"]

    @property
    def arrived(self) -> Recorded:
        assert self.forwarded, f"nothing was forwarded (status {self.status})"
        return self.forwarded[-1]

    @property
    def passed(self) -> bool:
        """Whether it went on as it came."""
        return self.arrived.body == self.sent

    @property
    def marks(self) -> list[str]:
        return self.headers["x-foldgate-compaction"].split(", ")


class Chained:
    """A client of the Responses API; requests one after the other."""

    def __init__(
        self,
        http: ClientSession,
        url: str,
        up: ScriptedUpstream,
        *,
        stream: bool = False,
        key: str = "sk-ann",
        **fields: Json,
    ) -> None:
        self.url = url
        self.turns: list[Turned] = []
        self.headers: dict[str, str] = {}
        self._http = http
        self._up = up
        self._stream = stream
        self._key = key
        self._fields: JsonObject = {"instructions": "Be brief.", "tools": TOOLS, **fields}

    async def say(
        self, items: Sequence[JsonObject] | str, after: str | None = None, /, **fields: Json
    ) -> Turned:
        given: Json = items if isinstance(items, str) else [*items]
        body: JsonObject = {"model": "test-model", **self._fields, "input": given, **fields}
        if after is not None:
            body["previous_response_id"] = after
        if self._stream:
            body["stream"] = True
        sent, before = dumps(body), len(self._up.main)
        headers = {"content-type": "application/json", "authorization": f"Bearer {self._key}"}
        headers |= self.headers
        url = self.url + RESPONSES_PATH
        async with self._http.post(url, data=BytesIO(sent), headers=headers) as reply:
            data = await reply.read()
            response = _last_response(data) if self._stream and reply.status == 200 else loads(data)
            assert isinstance(response, dict)
            turned = Turned(sent, reply.status, reply.headers, response, self._up.main[before:])
        self.turns.append(turned)
        return turned

    def read_by_the_model(self, turned: Turned) -> list[JsonObject]:
        """The whole input that the upstream had for a request."""
        return whole_input(turned.arrived.json, self._up.stored)


def _last_response(data: bytes) -> Json:
    events = [loads(event) for event in EventReader().feed(data)]
    last = events[-1]
    assert isinstance(last, dict)
    return last["response"]
