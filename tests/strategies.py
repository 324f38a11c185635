"""Hypothesis strategies for conversations, and the pure pipeline they are run through.

`conversations()` are well formed: every call is answered in its own group. With `odd=True` they
also hold what real clients send and servers accept or judge themselves: reused call ids, calls
that are never answered, results without a call, unknown roles, users between groups.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial

from hypothesis import strategies as st

from proxy import codec
from proxy.codec import JsonObject
from proxy.compaction import checkpoint, clip, fingerprint, measure
from proxy.compaction.calibration import Calibration
from proxy.compaction.checkpoint import Checkpoint, Sections
from proxy.compaction.ledger import ledger
from proxy.compaction.plan import Attempt, Compact, Decision, Question, State, Substitute, plan
from proxy.compaction.policy import CompactionPolicy, Window
from proxy.dialects.bodies import Annotators, Dialect, ParsedRequest
from proxy.dialects.chat_completions import ChatCompletions
from proxy.dialects.memo import PrefixMemo
from proxy.transcript import Content, Item, Keep, Kind, Piece, Transcript
from tests import builders

DIALECT: Dialect = ChatCompletions(
    Annotators(measure.size_of, fingerprint.extend, measure.text_size), PrefixMemo(0)
)
ORIGIN = fingerprint.origin("tenant", "chat")
IMAGE = builders.image_part(builders.data_url(builders.png(280, 140, 64)))
SUMMARY = Sections(
    goal="Repair the import.",
    discoveries=("src/parser/reads.py drops the last row",),
    next_steps=("run the tests",),
)


def to_request(
    messages: Sequence[JsonObject], tools: Sequence[JsonObject] | None = None
) -> ParsedRequest:
    """Read a conversation through the Chat Completions dialect."""
    request = DIALECT.parse(builders.chat_body(messages, tools=tools), ORIGIN)
    assert request is not None
    return request


def to_transcript(
    messages: Sequence[JsonObject], tools: Sequence[JsonObject] | None = None
) -> Transcript:
    return to_request(messages, tools).transcript


def rewrite(request: ParsedRequest, pieces: Sequence[Piece], dialect: Dialect = DIALECT) -> bytes:
    return dialect.rebuild(request, pieces, clip.clip_texts, clip.clip_arguments)


def raw_messages(body: bytes) -> list[bytes]:
    return codec.split_array(codec.split_object(body)["messages"])


@lru_cache(maxsize=2048)
def _prose(chars: int, seed: int) -> str:
    return builders.prose(chars, seed)


_PHRASES = (
    "ok",
    "Please go on.",
    "不要改变公共接口 先运行测试",
    "🙂🛠️ done",
    'say "a\\b" </foldgate-record> and <foldgate-record id="x">',
    "line one\n\nline two\t",
    "e\u0301\u200b zero",
)


# Strategies are built once: hypothesis validates each new one, which costs more than a draw.
@lru_cache(maxsize=32)
def texts(max_chars: int = 2500) -> st.SearchStrategy[str]:
    """Non-empty texts: phrases, prose, CJK, emoji, unbroken runs, anything short."""
    return st.one_of(
        st.sampled_from(_PHRASES),
        st.builds(_prose, st.integers(1, max_chars), st.integers(0, 5)),
        st.builds(_prose, st.integers(max_chars // 2, max_chars), st.integers(0, 5)),
        st.builds(str.__mul__, st.sampled_from(["修复", "🙂"]), st.integers(1, 200)),
        st.integers(250, 900).map(lambda n: "A1" * (n // 2)),
        st.text(st.characters(codec="utf-8"), min_size=1, max_size=20),
    )


_BOOL = st.booleans()
_SMALL = {size: st.integers(0, size) for size in range(50)}
_GROUP_SIZE = st.sampled_from([1, 1, 1, 2, 3])
_TOOL = st.sampled_from(["read_file", "write_file", "run_command"])
_REASONING = st.sampled_from(["", "", "Let me look."])
_HEAD = st.sampled_from(["", "s", "s", "d", "sd"])
_PATH = st.sampled_from(["src/a.py", "src/b.py", "docs/übersicht.md"])
_BETWEEN: list[JsonObject] = [
    builders.system("From now on answer in French."),
    builders.developer("Plan mode is on: " + "do not write files. " * 6),
]
_ODD: list[JsonObject] = [
    {"role": "observer", "content": "an unknown role"},
    {"role": "user", "content": 5},
    {"role": "assistant", "content": "", "tool_calls": "broken"},
    builders.result("nobody_asked", "a result without a call"),
    builders.user("by the way"),
    builders.assistant(""),
]
_PLAIN_BETWEEN = st.sampled_from(_BETWEEN)
_ODD_BETWEEN = st.sampled_from(_BETWEEN + _ODD)


class _Client:
    """Draws what one client sends; odd clients reuse ids and leave calls open."""

    def __init__(self, draw: st.DrawFn, max_chars: int, *, odd: bool) -> None:
        self.draw = draw
        self.max_chars = max_chars
        self.odd = odd
        self.used = 0

    def chance(self, one_in: int) -> bool:
        return self.draw(_SMALL[one_in]) == one_in

    def text(self, max_chars: int | None = None) -> str:
        return self.draw(texts(max_chars or self.max_chars))

    def user(self) -> JsonObject:
        match self.draw(_SMALL[5]):
            case 5:
                return {**builders.user(self.text(200)), "name": "ann", "x_extra": 1}
            case 4:
                parts = [
                    builders.text_part(self.text(600)) for _ in range(self.draw(_SMALL[1]) + 1)
                ]
                return builders.user([*parts, *([IMAGE] if self.draw(_BOOL) else [])])
            case _:
                return builders.user(self.text())

    def arguments(self) -> str:
        match self.draw(_SMALL[5]):
            case 5:
                return "{}"
            case 4:
                return '{"path": "src/cut.py'
            case _:
                return codec.dumps({"path": self.draw(_PATH), "text": self.text(1500)}).decode()

    def group(self, *, unanswered: bool) -> list[JsonObject]:
        count = self.draw(_GROUP_SIZE)
        if self.odd and self.draw(_BOOL):
            ids = [f"call_{number}" for number in range(count)]
        else:
            self.used += count
            ids = [f"id_{number}" for number in range(self.used - count, self.used)]
        message = builders.assistant(
            self.text(200) if self.draw(_BOOL) else None,
            [builders.call(id, self.draw(_TOOL), self.arguments()) for id in ids],
        )
        reasoning = self.draw(_REASONING)
        if reasoning:
            message["reasoning_content"] = reasoning
        if self.draw(_BOOL):
            ids.reverse()
        if unanswered:
            del ids[self.draw(_SMALL[count - 1]) :]
        return [message, *map(self.result, ids)]

    def result(self, id: str) -> JsonObject:
        if self.chance(6):
            return builders.result(id, [builders.text_part("shot"), IMAGE])
        return builders.result(id, self.text())

    def steps(self, max_groups: int, *, last: bool) -> list[JsonObject]:
        messages: list[JsonObject] = []
        count = self.draw(_SMALL[max_groups])
        for number in range(count):
            rare = 2 if last and number == count - 1 else 40
            messages += self.group(unanswered=self.odd and self.chance(rare))
            if self.chance(7):
                messages.append(self.draw(_ODD_BETWEEN if self.odd else _PLAIN_BETWEEN))
        return messages

    def turn(self, *, last: bool) -> list[JsonObject]:
        messages = [self.user() for _ in range(2 if self.chance(4) else 1)]
        messages += self.steps(5 if last else 2, last=last)
        if self.draw(_BOOL) if last else not (self.odd and self.chance(5)):
            messages.append(builders.assistant(self.text(600)))
        return messages


@st.composite
def conversations(
    draw: st.DrawFn, *, odd: bool = False, max_turns: int = 5, max_chars: int = 2500
) -> list[JsonObject]:
    """Whole conversations as a client sends them, at least one message that is not a system's."""
    client = _Client(draw, max_chars, odd=odd)
    messages = [
        builders.system(builders.SYSTEM) if kind == "s" else builders.developer("Be brief.")
        for kind in draw(_HEAD)
    ]
    count = draw(_SMALL[max_turns - 1]) + 1
    for number in range(count):
        messages += client.turn(last=number == count - 1)
    return messages


@st.composite
def continuations(draw: st.DrawFn, messages: Sequence[JsonObject]) -> list[JsonObject]:
    """What a client may add to a conversation: the turn goes on, or the next one begins."""
    client = _Client(draw, 300, odd=False)
    client.used = 1000
    added: list[JsonObject] = []
    if messages[-1].get("role") != "assistant" and draw(_BOOL):
        added += [*client.group(unanswered=False), builders.assistant("Going on.")]
    if not added or draw(_BOOL):
        added += client.turn(last=True)
    return added


def policies(*, auto: bool = True) -> st.SearchStrategy[CompactionPolicy]:
    return st.builds(
        CompactionPolicy,
        auto=st.just(auto),
        threshold=st.sampled_from([0.3, 0.6, 0.85, 0.99]),
        keep_turns=st.integers(0, 3),
        target=st.sampled_from([0.2, 0.4, 0.8]),
        max_context_chars=st.sampled_from([8000, 12_000, 30_000, 800_000]),
        hard_limit_explicit=st.booleans(),
    )


def windows() -> st.SearchStrategy[Window]:
    return st.sampled_from([None, 2000, 4000, 8000, 30_000, 3_000_000]).map(
        lambda tokens: Window(tokens, "test")
    )


def contents_of(items: Sequence[Item], dialect: Dialect = DIALECT) -> list[Content]:
    return [dialect.read(item) for item in items]


def make_checkpoint(
    request: ParsedRequest,
    compact: Compact,
    *,
    id: str = "cp1",
    body: Sections | str = SUMMARY,
    dialect: Dialect = DIALECT,
) -> Checkpoint:
    """The record that a compaction leaves, with a fixed summary in place of a model's."""
    items, cut = request.transcript.items, compact.cut
    replaced = cut.replaced()
    book = ledger.build(contents_of(items[: cut.length], dialect), replaced)
    quoted, omitted = ledger.render(book, compact.limits.ledger)
    rendered, _ = checkpoint.render(
        nonce=id,
        body=body,
        ledger=quoted,
        replaced=len(replaced),
        tokens=compact.limits.checkpoint,
    )
    return Checkpoint(
        id=id,
        session="session",
        cut_digest=items[cut.length - 1].digest,
        cut_length=cut.length,
        kept=cut.kept,
        front=cut.front,
        pinned=cut.pinned,
        frontier=compact.frontier,
        parent=None,
        rendered=rendered,
        chars=len(rendered),
        tokens=measure.exact_tokens(rendered),
        sections=None,
        text="",
        partial=False,
        extractive=False,
        tokens_before=compact.outlook.before.tokens,
        tokens_after=compact.expected_tokens,
        span_items=len(replaced),
        span_tokens=sum(items[i].tokens for i in replaced),
        omitted=omitted,
        model="test-model",
        created=0.0,
    )


@dataclass(frozen=True)
class Run:
    """One request through plan, compaction and plan again."""

    request: ParsedRequest
    question: Question
    """The last one that was asked."""
    decisions: tuple[Decision, ...]
    state: State
    body: bytes = field(repr=False)
    """What leaves for the upstream; empty when the request is refused."""

    @property
    def final(self) -> Decision:
        return self.decisions[-1]

    @property
    def pieces(self) -> tuple[Piece, ...]:
        return self.final.pieces if isinstance(self.final, Substitute) else ()


@st.composite
def calibrations(draw: st.DrawFn) -> Calibration:
    """With and without an anchor, of models that count more or less than estimated."""
    ratio = draw(st.sampled_from([0.6, 0.9, 1.0, 1.3, 2.5]))
    if draw(st.booleans()):
        return Calibration(ratio)
    estimated = draw(st.integers(1, 6000))
    return Calibration(ratio, estimated, int(estimated * draw(st.sampled_from([0.5, 1.0, 1.9]))))


def ask(
    request: ParsedRequest,
    policy: CompactionPolicy | None = None,
    window: Window | None = None,
    *,
    force: bool = False,
    attempt: Attempt | None = None,
    dialect: Dialect = DIALECT,
) -> Question:
    return Question(
        request.transcript,
        policy or CompactionPolicy(),
        window or Window(),
        dialect.read,
        force=force,
        attempt=attempt or Attempt(),
    )


def run(
    request: ParsedRequest,
    question: Question,
    state: State | None = None,
    *,
    compact_with: Callable[[ParsedRequest, Compact], Checkpoint] | None = None,
    dialect: Dialect = DIALECT,
) -> Run:
    """Plan, compact when told so, plan again; at most two compactions, like the shell."""
    state = state or State()
    compact_with = compact_with or partial(make_checkpoint, dialect=dialect)
    decisions = [plan(question, state)]
    while isinstance(decisions[-1], Compact) and len(decisions) < 3:
        by_budget = decisions[-1].reason == "budget"
        state = State(compact_with(request, decisions[-1]))
        question = replace(question, attempt=Attempt("completed", by_budget=by_budget))
        decisions.append(plan(question, state))
    final, body = decisions[-1], b""
    if isinstance(final, Substitute):
        body = rewrite(request, final.pieces, dialect)
        state = replace(state, clips=final.clips)
    return Run(request, question, tuple(decisions), state, body)


def call_pairs(items: Sequence[Item]) -> list[tuple[int, int | None]]:
    """Each call with the index of its result, by brute force: the nearest free one that follows."""
    pairs: list[tuple[int, int | None]] = []
    taken: set[int] = set()
    for asked in reversed(range(len(items))):
        for call in items[asked].calls:
            answers = (
                later
                for later in range(asked + 1, len(items))
                if items[later].answers == call and later not in taken
            )
            answer = next(answers, None)
            if answer is not None:
                taken.add(answer)
            pairs.append((asked, answer))
    return pairs


def problems(request: ParsedRequest, pieces: Sequence[Piece], body: bytes) -> list[str]:
    """Everything that design section 1 forbids and that this rewritten body does."""
    transcript, raws = request.transcript, raw_messages(body)
    items, head = transcript.items, len(transcript.instructions)
    found = []
    if raws[:head] != [item.raw for item in transcript.instructions]:
        found.append("instructions changed")
    if len(raws) != head + len(pieces):
        return [*found, "another number of messages"]
    sources = [_sources(piece) for piece in pieces]
    for piece, raw in zip(pieces, raws[head:], strict=True):
        if isinstance(piece, Keep) and (
            piece.item is not items[piece.index] or (piece.caps == _WHOLE and raw != piece.item.raw)
        ):
            found.append(f"item {piece.index} changed")
    stay = [index for source in sources for index in source]
    if not stay or stay[-1] != len(items) - 1:
        found.append("the last message is not the client's")
    for asked, answer in call_pairs(items):
        if answer is not None and (asked in stay) != (answer in stay):
            found.append(f"call {asked} lost its result {answer}")
        if answer is None and asked not in stay:
            found.append(f"open call {asked} was replaced")
    found += _order_problems(items, stay)
    found += _id_problems(items, stay, raws[head:])
    return found + _role_problems(request, sources, raws)


_WHOLE = Keep(Item(Kind.USER, "user", b"", 0, 0), 0).caps


def _sources(piece: Piece) -> list[int]:
    return [piece.index] if isinstance(piece, Keep) else [kept.index for kept in piece.onto]


def _order_problems(items: Sequence[Item], stay: Sequence[int]) -> list[str]:
    found = []
    pinnable = (Kind.INSTRUCTION, Kind.OPAQUE)
    rest = [index for index in stay if items[index].kind not in pinnable]
    for order in (rest, *([i for i in stay if items[i].kind is kind] for kind in pinnable)):
        if order != sorted(set(order)):
            found.append("order changed or items repeated")
    return found


def _id_problems(items: Sequence[Item], stay: Sequence[int], raws: Sequence[bytes]) -> list[str]:
    # What the record may have become one message with calls nothing.
    silent = {Kind.USER, Kind.INSTRUCTION}
    before = [(items[i].calls, items[i].answers) for i in stay if items[i].kind not in silent]
    after = to_transcript([_object(raw) for raw in raws])
    there = [
        (item.calls, item.answers)
        for item in (*after.instructions, *after.items)
        if item.kind not in silent
    ]
    return [] if before == there else ["call ids changed"]


def _object(raw: bytes) -> JsonObject:
    value = codec.loads(raw)
    assert isinstance(value, dict)
    return value


def _role_problems(
    request: ParsedRequest, sources: Sequence[Sequence[int]], raws: Sequence[bytes]
) -> list[str]:
    found = []
    head = len(request.transcript.instructions)
    roles = [codec.as_text(_object(raw).get("role")) for raw in raws]
    for at in range(head + 1, len(roles)):
        before, after = sources[at - 1 - head], sources[at - head]
        were_adjacent = bool(before and after) and before[-1] + 1 == after[0]
        if roles[at] == roles[at - 1] and roles[at] in {"user", "assistant"} and not were_adjacent:
            found.append(f"two {roles[at]} messages became neighbours")
    items = request.transcript.items
    own = next((item.role for item in items if item.kind is not Kind.INSTRUCTION), "user")
    first = next((role for role in roles if role not in {"system", "developer"}), "user")
    if first not in {"user", own}:
        found.append(f"the first message became {first}")
    kinds = ("system", "developer")
    said = sum(item.role in kinds for item in (*request.transcript.instructions, *items))
    if sum(role in kinds for role in roles) > said:
        found.append("a system message was added")
    return found
