"""Hypothesis strategies for lists of Responses items, and what must hold of their rewrites.

`inputs()` are well formed: every call is answered, except asynchronous ones, and reasoning is
followed by what it led to. With `odd=True` they also hold what real clients send besides.
"""

from collections.abc import Sequence

from hypothesis import strategies as st

from proxy import codec
from proxy.codec import Json, JsonObject
from proxy.compaction import fingerprint, measure
from proxy.compaction.plan import State
from proxy.compaction.policy import CompactionPolicy, Window
from proxy.dialects.bodies import Annotators, Dialect, ParsedRequest
from proxy.dialects.memo import PrefixMemo
from proxy.dialects.responses import Responses
from proxy.transcript import Item, Keep, Kind, Piece, Transcript
from tests import items as b
from tests import strategies
from tests.strategies import Run, ask, call_pairs, texts

ANNOTATORS = Annotators(measure.size_of, fingerprint.extend, measure.text_size)
DIALECT: Dialect = Responses(ANNOTATORS, PrefixMemo(0))
ORIGIN = fingerprint.origin("tenant", "responses")

Items = list[JsonObject]


def to_request(items: str | Sequence[JsonObject], **fields: Json) -> ParsedRequest:
    """Read a list through the Responses dialect."""
    request = DIALECT.parse(b.body(items, **fields), ORIGIN)
    assert request is not None
    return request


def to_transcript(items: Sequence[JsonObject]) -> Transcript:
    return to_request(items).transcript


def raw_items(body: bytes) -> list[bytes]:
    return codec.split_array(codec.split_object(body)["input"])


def run(
    items: Sequence[JsonObject],
    policy: CompactionPolicy | None = None,
    window: Window | None = None,
    *,
    force: bool = False,
    state: State | None = None,
) -> Run:
    """Plan, compact and plan again."""
    request = to_request(items, instructions="Be careful.")
    question = ask(request, policy, window, force=force, dialect=DIALECT)
    return strategies.run(request, question, state, dialect=DIALECT)


_SMALL = {size: st.integers(0, size) for size in range(12)}
_BOOL = st.booleans()
_KIND = st.sampled_from(["function", "function", *b.PAIRS])
_BETWEEN: Items = [
    b.easy("developer", "From now on answer in French."),
    b.message("system", "Plan mode is on: " + "do not write files. " * 6),
    *b.DEFINITIONS,
    *b.UNKNOWN,
]
_ODD: Items = [
    {"role": "observer", "content": "an unknown role"},
    {"role": "user", "content": 5},
    {"type": "function_call", "name": "broken"},
    b.output("nobody", "a result without a call"),
    b.easy("user", "by the way"),
    b.easy("assistant", ""),
    b.reasoning("1", "left alone", 0),
    b.call("never", "read_file"),
    *b.tool_search("never_found")[:1],
    b.approval("never_allowed", approve=True)[0],
    *b.approval("allowed_only", approve=True)[:2],
]


class _Client:
    """Draws what one client sends."""

    def __init__(self, draw: st.DrawFn, max_chars: int, *, odd: bool) -> None:
        self.draw = draw
        self.max_chars = max_chars
        self.odd = odd
        self.used = 0
        self.waiting: list[str] = []

    def chance(self, one_in: int) -> bool:
        return self.draw(_SMALL[one_in]) == one_in

    def text(self, max_chars: int | None = None) -> str:
        return self.draw(texts(max_chars or self.max_chars))

    def id(self) -> str:
        self.used += 1
        return f"call_{self.used}"

    def user(self) -> JsonObject:
        match self.draw(_SMALL[5]):
            case 5:
                return b.message("user", self.text(200), id="msg_9", x_extra=1)
            case 4:
                parts = [b.text_part(self.text(600)), b.IMAGE]
                return b.easy("user", parts)
            case _:
                return b.easy("user", self.text())

    def thought(self) -> Items:
        match self.draw(_SMALL[3]):
            case 3:
                return [b.reasoning("1", self.text(100), 112), b.reasoning("1", "", 0)]
            case 2:
                return [b.reasoning("1", self.text(100), 0)]
            case 1:
                return [b.reasoning("1", "", 4 * self.draw(_SMALL[9]))]
            case _:
                return []

    def calls(self) -> tuple[Items, Items]:
        """Calls side by side and their outputs."""
        asked: Items = []
        answered: Items = []
        for number in range(self.draw(_SMALL[2]) + 1):
            if number:
                asked += self.thought() if self.chance(3) else []
            first, second = b.pair(self.draw(_KIND), self.id(), self.text(800), self.text())
            if self.chance(6) and first["type"] == "function_call":
                second["output"] = [b.text_part("shot"), b.IMAGE]
            asked.append(first)
            answered.append(second)
        return asked, answered[::-1] if self.draw(_BOOL) else answered

    def rare(self) -> Items:
        """Something besides calls that the model or its server did."""
        id = self.id()
        match self.draw(_SMALL[5]):
            case 0:
                return [*self.thought(), *b.tool_search(id if self.draw(_BOOL) else None)]
            case 1:
                return [self.draw(st.sampled_from(b.self_contained("found")))]
            case 2:
                inner = b.pair("function", self.id(), "a", self.text(200))
                return b.program(id, inner, self.text(200))
            case 3:
                return b.approval(id, approve=self.draw(_BOOL), result=self.text(200))
            case 4:
                self.waiting.append(id)
                return [*self.thought(), {**b.call(id, "build"), "async": True}]
            case _:
                return [self.draw(st.sampled_from(b.COMPACTIONS))]

    def late(self) -> Items:
        """Outputs that nobody waited for, or that the tool began by itself."""
        arrives = self.draw(_BOOL)
        if self.waiting and arrives:
            return [b.output(self.waiting.pop(), self.text(200))]
        return [b.output(None, self.text(100), name="watch")] if self.chance(6) else []

    def step(self) -> Items:
        items = self.thought()
        if self.draw(_BOOL):
            items.append(b.answer(self.text(200), phase="commentary"))
        asked, answered = self.calls()
        items += asked
        if self.chance(7):
            items.append(self.draw(st.sampled_from(b.UNKNOWN)))
        items += [*answered, *self.late()]
        if self.chance(4):
            items += self.rare()
        if self.chance(7):
            items.append(self.draw(st.sampled_from(_BETWEEN + (_ODD if self.odd else []))))
        return items

    def turn(self, *, last: bool) -> Items:
        items = [self.user() for _ in range(2 if self.chance(4) else 1)]
        for _ in range(self.draw(_SMALL[5 if last else 2])):
            items += self.step()
        if self.draw(_BOOL) if last else not (self.odd and self.chance(5)):
            items += [*self.thought(), b.answer(self.text(600))]
        return items


@st.composite
def inputs(
    draw: st.DrawFn, *, odd: bool = False, max_turns: int = 5, max_chars: int = 2500
) -> Items:
    """Whole lists as a client sends them; the leading developer message may be missing."""
    client = _Client(draw, max_chars, odd=odd)
    items: Items = [b.easy("developer", "Be brief.")] if draw(_BOOL) else []
    count = draw(_SMALL[max_turns - 1]) + 1
    for number in range(count):
        items += client.turn(last=number == count - 1)
    return items


@st.composite
def continuations(draw: st.DrawFn, items: Sequence[JsonObject]) -> Items:
    """What a client may add: the turn goes on, or the next one begins."""
    client = _Client(draw, 300, odd=False)
    client.used = 1000
    added: Items = []
    if items[-1].get("role") != "assistant" and draw(_BOOL):
        added = [*client.step(), b.answer("Going on.")]
    if not added or draw(_BOOL):
        added += client.turn(last=True)
    return added


def problems(request: ParsedRequest, pieces: Sequence[Piece], body: bytes) -> list[str]:
    """Everything that design section 1 forbids and that this rewritten body does."""
    transcript, raws = request.transcript, raw_items(body)
    items = transcript.items
    listed = [item.raw for item in transcript.instructions if item.raw]
    head = len(listed)
    if raws[:head] != listed or len(raws) != head + len(pieces):
        return ["instructions changed, or another number of items"]
    found = []
    sources = [_sources(piece) for piece in pieces]
    for piece, raw in zip(pieces, raws[head:], strict=True):
        whole = isinstance(piece, Keep) and piece.caps.text is None and piece.caps.arguments is None
        if whole and isinstance(piece, Keep) and raw != items[piece.index].raw:
            found.append(f"item {piece.index} changed")
    stay = [index for source in sources for index in source]
    if not stay or stay[-1] != len(items) - 1:
        found.append("the last item is not the client's")
    found += [f"{i} was not pinned" for i, item in enumerate(items) if _lost(item, i, stay)]
    found += _pair_problems(items, stay) + _order_problems(items, stay)
    after = DIALECT.parse(body, ORIGIN)
    assert after is not None
    if _ids([items[i] for i in stay]) != _ids(after.transcript.items):
        found.append("call ids changed")
    kept = {name: raw for name, raw in request.fields.items() if name != "input"}
    if kept != {name: raw for name, raw in after.fields.items() if name != "input"}:
        found.append("another member changed")
    return found + _role_problems(items, sources, after.transcript.items)


def _sources(piece: Piece) -> list[int]:
    return [piece.index] if isinstance(piece, Keep) else [kept.index for kept in piece.onto]


def _lost(item: Item, index: int, stay: Sequence[int]) -> bool:
    return item.kind is Kind.OPAQUE and index not in stay


def _ids(items: Sequence[Item]) -> list[tuple[tuple[str, ...], str | None]]:
    return [(item.calls, item.answers) for item in items if item.calls or item.answers]


def _pair_problems(items: Sequence[Item], stay: Sequence[int]) -> list[str]:
    found = []
    for asked, answer in call_pairs(items):
        if answer is not None and (asked in stay) != (answer in stay):
            found.append(f"call {asked} lost its result {answer}")
        if answer is None and asked not in stay:
            found.append(f"open call {asked} was replaced")
    return found + [
        problem
        for first, second in _led_neighbours(items)
        for problem in _led_problems(first, second, stay, leads=items[first].leads)
    ]


def _led_neighbours(items: Sequence[Item]) -> list[tuple[int, int]]:
    """Neighbours in a run of model output that begins with reasoning."""
    found = []
    led = False
    for index, item in enumerate(items):
        goes_on = led and item.kind in {Kind.ASSISTANT, Kind.OPAQUE}
        if goes_on and (items[index - 1].leads or not item.leads):
            found.append((index - 1, index))
        led = item.leads or goes_on
    return found


def _led_problems(first: int, second: int, stay: Sequence[int], *, leads: bool) -> list[str]:
    if second in stay and first not in stay:
        return [f"{second} lost the reasoning that led to it"]
    if first not in stay:
        return []
    if second not in stay:
        return [f"reasoning {first} lost what it led to"] if leads else []
    together = stay.index(second) == stay.index(first) + 1
    return [] if together else [f"something came between {first} and {second}"]


def _order_problems(items: Sequence[Item], stay: Sequence[int]) -> list[str]:
    pinnable = (Kind.INSTRUCTION, Kind.OPAQUE)
    rest = [index for index in stay if items[index].kind not in pinnable]
    orders = [rest, *([i for i in stay if items[i].kind is kind] for kind in pinnable)]
    return ["order changed or items repeated" for o in orders if o != sorted(set(o))]


def _role_problems(
    items: Sequence[Item], sources: Sequence[Sequence[int]], after: Sequence[Item]
) -> list[str]:
    found = []
    roles = [item.role for item in after]
    # Pinned system items may have become leading ones.
    lead = len(sources) - len(roles)
    for at in range(1, len(roles)):
        before, here = sources[at - 1 + lead], sources[at + lead]
        adjacent = bool(before and here) and before[-1] + 1 == here[0]
        if roles[at] == roles[at - 1] and roles[at] in {"user", "assistant"} and not adjacent:
            found.append(f"two {roles[at]} messages became neighbours")
    own = next((item.role for item in items if item.kind is not Kind.INSTRUCTION), "user")
    first = next((item.role for item in after if item.kind is not Kind.INSTRUCTION), "user")
    if first not in {"user", own}:
        found.append(f"the first message became {first}")
    return found
