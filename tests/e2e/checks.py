"""Talking to the proxy as an agent does, and what must hold of everything that it forwarded."""

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO

from aiohttp import ClientSession

from proxy.codec import Json, JsonObject, as_text, dumps, loads, split_array, split_object
from proxy.compaction.checkpoint import TAG
from proxy.compaction.clip import MARKER
from tests.e2e.apis import CHAT, RESPONSES, Api
from tests.upstream import Recorded, ScriptedUpstream
from tests.upstream_responses import RESPONSES_PATH, as_messages
from tests.upstream_rules import message_texts

PEERS: Mapping[str, Json] = {
    "compaction.threshold": 0.67,
    "compaction.max_output_tokens": 1024,
    "compaction.background": False,
}
"""The settings of the sessions in facts/peers.md."""

REQUEST_ID = "x-test-request"
MARK = re.compile(r"mark\d+n\d{5}z|MARK-\w+")
"""A word that says where it came from."""

_INSTRUCTIONS = ("system", "developer")
_NUMBERS = itertools.count(1)


def make_strict(up: ScriptedUpstream, window: int | None) -> None:
    """Switch every rule of the upstream on."""
    up.window = window
    up.strict_pairing = up.one_system = up.alternate = up.first_user = up.json_arguments = True


def remembers_marks(request: Recorded) -> str:
    """A summary that repeats every mark of what it was shown, so that a leak is seen."""
    marks: list[Json] = [*dict.fromkeys(MARK.findall(request.decoded.decode()))]
    return dumps({"goal": "Repair the import.", "discoveries": marks}).decode()


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request as the client sent it, its reply, and what the upstream got for it."""

    sent: bytes = field(repr=False)
    status: int
    headers: Mapping[str, str] = field(repr=False)
    reply: bytes = field(repr=False)
    forwarded: Recorded | None = field(repr=False)

    @property
    def arrived(self) -> bytes:
        assert self.forwarded is not None, f"nothing was forwarded (status {self.status})"
        return self.forwarded.body

    @property
    def marks(self) -> list[str]:
        """The words of the compaction header."""
        return self.headers["x-foldgate-compaction"].split(", ")

    @property
    def tokens(self) -> tuple[int, int]:
        """Before and after, as the reply header says."""
        before, _, after = self.headers["x-foldgate-tokens"].partition(", ")
        return int(before.removeprefix("before=")), int(after.removeprefix("after="))

    @property
    def session(self) -> str:
        return self.headers.get("x-foldgate-session", "")

    @property
    def text(self) -> str:
        """All text that was forwarded, decoded."""
        assert self.forwarded is not None
        messages = self.forwarded.messages
        if self.forwarded.path == RESPONSES_PATH:
            messages = as_messages(messages)
        return "\n".join(t for m in messages for t in message_texts(m))

    @property
    def error(self) -> JsonObject:
        value = loads(self.reply)
        assert isinstance(value, dict)
        error = value["error"]
        assert isinstance(error, dict)
        return error


class Agent:
    """A client of one of the APIs; `exchanges` holds everything it did."""

    def __init__(
        self,
        http: ClientSession,
        url: str,
        up: ScriptedUpstream,
        headers: Mapping[str, str] | None = None,
        *,
        api: Api = CHAT,
        **fields: Json,
    ) -> None:
        self.exchanges: list[Exchange] = []
        self.url = url
        self.api = api
        self._http = http
        self._up = up
        self._headers = dict(headers or {})
        self._fields = fields

    async def say(self, messages: Sequence[JsonObject], **headers: str) -> Exchange:
        return await self.post(self.api.body(messages, **self._fields), headers)

    async def post(self, body: bytes, headers: Mapping[str, str] | None = None) -> Exchange:
        number = str(next(_NUMBERS))
        sent = {"content-type": "application/json", **self._headers, REQUEST_ID: number}
        sent.update({name.replace("_", "-"): value for name, value in (headers or {}).items()})
        url = self.url + self.api.path
        async with self._http.post(url, data=BytesIO(body), headers=sent) as reply:
            content = await reply.read()
            # Several main calls for one request never happen, so the first match is the only one.
            exchange = Exchange(body, reply.status, reply.headers, content, self.arrived(number))
        self.exchanges.append(exchange)
        return exchange

    def arrived(self, number: str) -> Recorded | None:
        return next((r for r in self._up.main if r.headers.get(REQUEST_ID) == number), None)

    async def play(self, messages: Sequence[JsonObject]) -> list[Exchange]:
        """Send every request that led to this conversation; returns their exchanges."""
        return [await self.say(step) for step in steps(messages)]


class ItemAgent(Agent):
    """A client of the Responses API that says items, and nothing besides that it is not told to."""

    def __init__(
        self,
        http: ClientSession,
        url: str,
        up: ScriptedUpstream,
        headers: Mapping[str, str] | None = None,
        **fields: Json,
    ) -> None:
        super().__init__(http, url, up, headers, api=RESPONSES, **fields)

    async def say(self, messages: Sequence[JsonObject], **headers: str) -> Exchange:
        body: JsonObject = {"model": "test-model", "input": [*messages], **self._fields}
        return await self.post(dumps(body), headers)


def steps(messages: Sequence[JsonObject]) -> Iterator[Sequence[JsonObject]]:
    """The lists that a client sent on its way to `messages`: each ends where the model goes on.

    They are messages of a chat, or items.
    """
    for end in range(1, len(messages) + 1):
        last = messages[end - 1]
        turn = not _is_models(last) and last.get("role") not in _INSTRUCTIONS
        if turn and (end == len(messages) or _is_models(messages[end])):
            yield messages[:end]


def _is_models(item: JsonObject) -> bool:
    made = not as_text(item.get("type")).endswith("_output")
    return made and item.get("role", "assistant") == "assistant"


def raw_messages(body: bytes) -> list[bytes]:
    """The messages of a body, or its items, as their own bytes."""
    members = split_object(body)
    return split_array(members["messages"] if "messages" in members else members["input"])


def others(body: bytes) -> dict[str, bytes]:
    """Everything of a body but its messages or items, as bytes."""
    return {k: v for k, v in split_object(body).items() if k not in {"messages", "input"}}


def decoded(raw: bytes) -> JsonObject:
    value = loads(raw)
    assert isinstance(value, dict)
    return value


def carries(raw: bytes) -> bool:
    """Whether a message carries a checkpoint."""
    message = decoded(raw)
    return message.get("role") == "user" and any(
        text.startswith(f"<{TAG} ") for text in message_texts(message)
    )


def record_of(exchange: Exchange) -> str:
    """The checkpoint that a forwarded request carries; empty when there is none."""
    for raw in raw_messages(exchange.arrived):
        if carries(raw):
            text = message_texts(decoded(raw))[0]
            end = text.rindex(f"</{TAG} ")
            return text[: text.index("\n", end)]
    return ""


def record_id(record: str) -> str:
    """The nonce of a checkpoint, which nothing else holds."""
    return record.partition('"')[2].partition('"')[0]


def assert_fine(exchanges: Sequence[Exchange], up: ScriptedUpstream) -> None:
    """Everything was answered, nothing was refused, and everything forwarded was faithful."""
    assert up.violations == []
    assert [e.status for e in exchanges if e.status != 200] == []
    for exchange in exchanges:
        assert_faithful(exchange)


def assert_faithful(exchange: Exchange) -> None:
    """What arrived is the client's own bytes but for one carrier and clipped texts."""
    sent, arrived = raw_messages(exchange.sent), raw_messages(exchange.arrived)
    assert others(exchange.sent) == others(exchange.arrived)
    if exchange.headers.get("x-foldgate-compaction") == "none":
        assert exchange.arrived == exchange.sent
    carriers = [raw for raw in arrived if carries(raw)]
    client_carriers = [raw for raw in sent if carries(raw)]
    assert len(carriers) <= 1 + len(client_carriers)
    assert _is_same(arrived[-1], sent[-1]) or carries(arrived[-1])
    leading = list(itertools.takewhile(_is_instruction, sent))
    assert arrived[: len(leading)] == leading
    _assert_order([raw for raw in arrived if _is_instruction(raw)], sent)
    _assert_order([raw for raw in arrived if not _is_instruction(raw)], sent)


def _is_instruction(raw: bytes) -> bool:
    return decoded(raw).get("role") in _INSTRUCTIONS


def _assert_order(arrived: Sequence[bytes], sent: Sequence[bytes]) -> None:
    position = 0
    for raw in arrived:
        if carries(raw) and raw not in sent:
            position = _after_carrier(raw, sent, position)
            continue
        found = next((i for i in range(position, len(sent)) if _is_same(raw, sent[i])), None)
        assert found is not None, f"not the client's, or out of order: {raw[:200]!r}"
        position = found + 1


def _after_carrier(raw: bytes, sent: Sequence[bytes], position: int) -> int:
    # What follows the record is the content of one user message or of several, joined.
    texts = message_texts(decoded(raw))
    end = texts[0].rindex(f"</{TAG} ")
    own = texts[0][texts[0].index("\n", end) :].removeprefix("\n\n")
    rest = [own, *texts[1:]] if own else texts[1:]
    if not rest:
        assert set(decoded(raw)) - {"type"} == {"role", "content"}
        return position
    wanted = "\n\n".join(rest)
    users = [i for i in range(position, len(sent)) if decoded(sent[i]).get("role") == "user"]
    for first in range(len(users)):
        for count in (1, 2, 3):
            chosen = users[first : first + count]
            said = [t for i in chosen for t in message_texts(decoded(sent[i]))]
            joined = "\n\n".join(said)
            if joined == wanted or (MARKER in wanted and _is_clip(wanted, joined)):
                return chosen[-1] + 1
    raise AssertionError(f"the carrier's own text is nobody's: {wanted[:200]!r}")


def _is_same(raw: bytes, original: bytes) -> bool:
    if raw == original:
        return True
    # Only text and argument leaves may be shorter, and then they say so.
    if MARKER.encode() not in raw:
        return False
    return _is_shortened(decoded(raw), decoded(original))


def _is_shortened(value: Json, original: Json) -> bool:
    if value == original:
        return True
    if isinstance(value, str) and isinstance(original, str):
        return _is_clip(value, original) or _is_shorter_json(value, original)
    if isinstance(value, dict) and isinstance(original, dict):
        return list(value) == list(original) and all(
            _is_shortened(value[key], original[key]) for key in value
        )
    if isinstance(value, list) and isinstance(original, list):
        # Text parts that were emptied are left out.
        return len(value) <= len(original) and all(
            any(_is_shortened(member, other) for other in original) for member in value
        )
    return False


def _is_clip(text: str, original: str) -> bool:
    head, found, rest = text.partition(MARKER)
    return bool(found) and not rest and original.startswith(head) and len(text) <= len(original)


def _is_shorter_json(text: str, original: str) -> bool:
    if not text.startswith(("{", "[")):
        return False
    return _is_shortened(loads(text), loads(original))


def assert_in_every(text: str, exchanges: Sequence[Exchange]) -> None:
    """Something is said word for word in every forwarded request."""
    assert [i for i, e in enumerate(exchanges) if text not in e.text] == []


def rewrites(exchanges: Sequence[Exchange]) -> list[int]:
    """Numbers of the requests whose prompt does not begin with the previous request's prompt."""
    found = []
    for number, (before, after) in enumerate(itertools.pairwise(exchanges), 1):
        old, new = raw_messages(before.arrived), raw_messages(after.arrived)
        if new[: len(old)] != old:
            found.append(number)
    return found


def compactions(exchanges: Sequence[Exchange]) -> list[int]:
    """Numbers of the requests that a compaction was made for."""
    return [i for i, e in enumerate(exchanges) if "compacted" in e.marks]


def assert_stable(exchanges: Sequence[Exchange]) -> None:
    """Every prompt extends the one before, except where a compaction was made."""
    assert set(rewrites(exchanges)) <= set(compactions(exchanges))


def pretty(body: bytes) -> bytes:
    """A body with white space everywhere, as some clients send it."""
    return _indent(loads(body), 0).encode()


def _indent(value: Json, depth: int) -> str:
    pad = "\n" + "  " * (depth + 1)
    end = "\n" + "  " * depth
    if isinstance(value, dict) and value:
        members = (f"{dumps(k).decode()} : {_indent(v, depth + 1)}" for k, v in value.items())
        return "{" + pad + f",{pad}".join(members) + end + "}"
    if isinstance(value, list) and value:
        return "[" + pad + f" ,{pad}".join(_indent(v, depth + 1) for v in value) + end + "]"
    return dumps(value).decode()


def reasons(events: Sequence[JsonObject]) -> list[str]:
    """The reason words of events, in order."""
    return [as_text(event.get("reason")) for event in events]
