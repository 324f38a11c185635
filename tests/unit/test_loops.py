"""Sessions of every shape, played against the planner: compaction never runs in a circle.

The shell is played here with what it stores and nothing else, so thousands of sessions can be.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.codec import JsonObject
from proxy.compaction import cutpoints
from proxy.compaction.checkpoint import Checkpoint
from proxy.compaction.choice import gains
from proxy.compaction.clip import Clipped
from proxy.compaction.layout import Cut, arrange, size_of_layout
from proxy.compaction.plan import Attempt, Compact, Decision, Refuse, State, plan
from proxy.compaction.policy import CompactionPolicy, Window, budget
from proxy.dialects.bodies import ParsedRequest
from proxy.transcript import Size, total
from tests import builders as b
from tests.strategies import ask, make_checkpoint, to_request

BODIES = {
    "short": "The import fails in src/parser/reads.py.",
    "huge": "The import fails in src/parser/reads.py and " + b.prose(60_000, 7),
    "nothing": "",
}
"""What summarisers write; an answer that is nothing becomes an extract of nothing."""


@dataclass
class Shell:
    """What the compactor remembers of a session, and how often it asked the summariser."""

    body: str
    calls: int = 0
    wasted: int = 0
    checkpoints: dict[bytes, Checkpoint] = field(default_factory=dict)
    clips: dict[bytes, dict[int, Clipped]] = field(default_factory=dict)
    attempted: bytes = b""
    budget_tried: bytes = b""

    def handle(
        self,
        messages: Sequence[JsonObject],
        policy: CompactionPolicy,
        window: Window,
        tools: Sequence[JsonObject] | None = None,
        *,
        force: bool = False,
    ) -> Decision:
        return self.answer(to_request(messages, tools), policy, window, force=force)

    def answer(
        self,
        request: ParsedRequest,
        policy: CompactionPolicy,
        window: Window,
        *,
        force: bool = False,
    ) -> Decision:
        attempt = Attempt()
        for _ in range(4):
            question = replace(ask(request, policy, window, force=force), attempt=attempt)
            decision = plan(question, self._state(request))
            if not isinstance(decision, Compact):
                return decision
            self.calls += not decision.extractive_only
            attempt = self._compacted(request, decision, attempt)
        raise AssertionError("there is no end to it")

    def _state(self, request: ParsedRequest) -> State:
        found = [self.checkpoints.get(item.digest) for item in request.transcript.items[:-1]]
        deepest = next((c for c in reversed(found) if c is not None), None)
        return State(deepest, attempted=self.attempted, budget_tried=self.budget_tried)

    def _compacted(self, request: ParsedRequest, compact: Compact, attempt: Attempt) -> Attempt:
        made = make_checkpoint(request, compact, id=f"cp{self.calls}", body=self.body)
        before, after = compact.outlook.after.tokens, _size_after(request, compact, made)
        by_budget = compact.reason == "budget"
        good = after < before if by_budget else gains(before, after, compact.limits.fit)
        if by_budget:
            self.budget_tried = request.transcript.items[-1].digest
        if good:
            self.checkpoints[made.cut_digest] = made
            self.attempted = b""
            return Attempt("completed", by_budget=attempt.by_budget or by_budget)
        self.wasted += 1
        self.attempted = compact.frontier
        return Attempt("skipped", "no_gain", by_budget=attempt.by_budget or by_budget)


def _size_after(request: ParsedRequest, compact: Compact, made: Checkpoint) -> int:
    transcript = request.transcript
    cut = Cut(made.cut_length, made.kept, made.front, made.pinned)
    pieces = arrange(transcript.items, cut, made.rendered)
    base = total(transcript.instructions) + transcript.catalogue
    size = size_of_layout(pieces, Size(made.chars, made.tokens), compact.clipped)
    return (base + size).tokens


def steps(messages: Sequence[JsonObject]) -> list[list[JsonObject]]:
    ends = [n for n, m in enumerate(messages, 1) if m["role"] in {"user", "tool"}]
    return [[*messages[:end]] for end in ends]


def frontier(request: ParsedRequest) -> bytes:
    items = request.transcript.items
    front = cutpoints.frontier(cutpoints.legal_cuts(items), len(items))
    return items[front - 1].digest if front else b""


_POLICIES = st.builds(
    CompactionPolicy,
    threshold=st.sampled_from([0.3, 0.6, 0.85]),
    keep_turns=st.integers(0, 2),
    target=st.sampled_from([0.2, 0.4, 0.8]),
    max_context_chars=st.sampled_from([8000, 40_000, 800_000]),
    hard_limit_explicit=st.booleans(),
)
_WINDOWS = st.sampled_from([None, 1500, 6000, 12_000, 30_000]).map(lambda n: Window(n, "test"))
_SHARE = st.sampled_from([0.0, 0.1, 0.4, 0.7, 0.88, 1.1])
_IMAGE = b.image_part(b.data_url(b.png(900, 700, 64)))


@st.composite
def _sessions(draw: st.DrawFn, chars: int = 40_000) -> list[JsonObject]:
    """Turns of calls, or one turn that does not end, that come to about so many characters.

    Some of it can be neither clipped nor replaced: reasoning, images, large tasks.
    """
    system = b.prose(max(1, int(draw(_SHARE) * chars)), 9)
    count = draw(st.integers(2, 9))
    each = int(draw(st.sampled_from([0.3, 1.0, 1.6])) * chars / count)
    if draw(st.booleans()):
        messages = b.tool_session(count, result_chars=each, system=system)
    else:
        messages = b.turn_session(count, 1, result_chars=each, system=system)
    kept = draw(st.sampled_from(["", "", "task", "reasoning", "images"]))
    if kept == "task":
        messages[1] = b.user(b.prose(chars // 2, 4))
    for message in messages if kept in {"reasoning", "images"} else []:
        if kept == "images" and message["role"] == "tool":
            message["content"] = [b.text_part("shot"), _IMAGE]
        elif kept == "reasoning" and message["role"] == "assistant":
            message["reasoning_content"] = b.prose(each // 2 + 1, 5)
    return messages


@st.composite
def _plays(draw: st.DrawFn) -> tuple[list[JsonObject], Window, list[JsonObject]]:
    """A session, a window of about its size, and a catalogue of any size."""
    window = draw(_WINDOWS)
    chars = 4 * (window.tokens or 10_000)
    tools = int(draw(_SHARE) * chars / 340)
    return draw(_sessions(chars)), window, b.catalogue(tools, 200)


@given(_plays(), _POLICIES, st.sampled_from(sorted(BODIES)))
def test_no_session_runs_in_a_circle(
    play: tuple[list[JsonObject], Window, list[JsonObject]], policy: CompactionPolicy, body: str
) -> None:
    messages, window, catalogue = play
    shell = Shell(BODIES[body])
    seen: set[bytes] = set()
    for step in steps(messages):
        request = to_request(step, catalogue)
        before, wasted = shell.calls, shell.wasted
        shell.answer(request, policy, window)
        asked = shell.calls - before
        # One by a rule and one by the budget, and only for what is new.
        assert asked <= 2
        front = frontier(request)
        assert asked <= 1 or front not in seen
        seen.add(front)
        assert shell.wasted - wasted <= 1
        for _ in range(2):
            again = shell.calls
            shell.answer(request, policy, window)
            assert shell.calls == again
    # After one result that did not keep what the estimate promised, estimates are careful.
    assert shell.wasted <= len(shell.checkpoints) + 1


@given(_plays(), _POLICIES)
def test_what_leaves_no_room_asks_for_nothing(
    play: tuple[list[JsonObject], Window, list[JsonObject]], policy: CompactionPolicy
) -> None:
    """Whatever the size of instructions and catalogue: over the window, and nothing is tried."""
    messages, window, catalogue = play
    shell = Shell(BODIES["short"])
    for step in steps(messages):
        request = to_request(step, catalogue)
        limits = budget(policy, window, request.transcript)
        before = shell.calls
        decision = shell.answer(request, policy, window)
        if limits.overhead:
            assert shell.calls == before
            due = decision.outlook.reason
            assert decision.outlook.skipped == ("fixed_overhead" if due else "")


@pytest.mark.parametrize("body", BODIES)
def test_a_system_prompt_that_grows_each_turn(body: str) -> None:
    """Past the trigger it moves to the last moment; past the window nothing is tried any more."""
    shell = Shell(BODIES[body])
    window, policy = Window(8000, "test"), CompactionPolicy()
    turns = b.turn_session(40, 1, result_chars=700, system=None)
    skipped, calls = [], []
    for number, step in enumerate(steps(turns)):
        messages = [b.system(b.prose(400 * number + 1, 3)), *step]
        decision = shell.handle(messages, policy, window)
        skipped.append(decision.outlook.skipped)
        calls.append(shell.calls)
    over = skipped.index("fixed_overhead")
    assert set(skipped[over:]) == {"fixed_overhead"}
    assert calls[over] == calls[-1]
    assert 1 <= calls[-1] <= 16


def test_a_catalogue_that_changes_each_turn() -> None:
    shell = Shell(BODIES["short"])
    window, policy = Window(8000, "test"), CompactionPolicy()
    turns = b.turn_session(30, 1, result_chars=900, system="s")
    for number, step in enumerate(steps(turns)):
        shell.handle(step, policy, window, b.catalogue(2 + number % 7, 300))
    assert shell.wasted == 0
    assert len(shell.checkpoints) == shell.calls <= 12


def test_a_model_with_a_smaller_window_in_between() -> None:
    """Two models take turns: what is made for the one serves the other."""
    shell = Shell(BODIES["short"])
    policy = CompactionPolicy()
    windows = (Window(16_000, "test"), Window(5000, "test"))
    turns = b.turn_session(30, 1, result_chars=900, system="s")
    for number, step in enumerate(steps(turns)):
        before = shell.calls
        shell.handle(step, policy, windows[number % 2])
        after = shell.calls
        shell.handle(step, policy, windows[number % 2])
        assert shell.calls == after <= before + 2
    assert shell.wasted == 0
    assert shell.calls <= 12


def test_a_window_that_shrinks_with_every_request() -> None:
    shell = Shell(BODIES["short"])
    policy = CompactionPolicy()
    for number, step in enumerate(steps(b.turn_session(20, 1, result_chars=900, system="s"))):
        before = shell.calls
        shell.handle(step, policy, Window(16_000 - 600 * number, "test"))
        assert shell.calls <= before + 2
    assert shell.wasted <= 1


def test_one_call_group_that_grows_is_tried_once() -> None:
    """Many calls at once, whose results come in one by one: nothing is complete meanwhile."""
    shell = Shell(BODIES["huge"])
    window, policy = Window(4000, "test"), CompactionPolicy()
    calls = [b.call(f"c{n}", "read_file", "{}") for n in range(12)]
    messages = [
        b.system("s"),
        b.user(b.TASK),
        *b.tool_session(2, result_chars=600, system=None)[1:],
        b.assistant(None, calls),
    ]
    for number in range(12):
        messages.append(b.result(f"c{number}", b.prose(1500, number)))
        shell.handle(messages, policy, window)
    assert shell.calls <= 2


def test_a_huge_task_that_stays_does_not_thrash() -> None:
    """The user's own message is most of the window and is kept by every cut."""
    shell = Shell(BODIES["short"])
    window, policy = Window(8000, "test"), CompactionPolicy()
    session = b.tool_session(40, task=b.prose(20_000, 1), result_chars=400, system="s")
    for step in steps(session):
        shell.handle(step, policy, window)
    assert shell.wasted <= 1
    # Each makes room for several steps.
    assert shell.calls <= 14


def test_huge_pinned_images_do_not_thrash() -> None:
    shell = Shell(BODIES["short"])
    window, policy = Window(8000, "test"), CompactionPolicy()
    image = b.image_part(b.data_url(b.png(1600, 1200, 64)))
    session = b.tool_session(30, result_chars=500, system="s")
    session[3]["content"] = [b.text_part("shot"), image]
    session[1] = b.user([b.text_part(b.TASK), image])
    for step in steps(session):
        shell.handle(step, policy, window)
    assert shell.wasted <= 1
    assert shell.calls <= 10


@pytest.mark.parametrize("body", BODIES)
def test_forcing_each_request_asks_for_what_is_new_only(body: str) -> None:
    """A client that always asks for it; the same request again makes nothing new."""
    shell = Shell(BODIES[body])
    window, policy = Window(30_000, "test"), CompactionPolicy()
    for step in steps(b.turn_session(12, 1, result_chars=900, system="s")):
        before = shell.calls
        shell.handle(step, policy, window, force=True)
        assert shell.calls <= before + 1
        after = shell.calls
        for _ in range(4):
            shell.handle(step, policy, window, force=True)
        # What was made may be outdone once by a cut nearer to the end, never for ever.
        assert shell.calls <= after + 1
    assert shell.wasted <= len(shell.checkpoints) + 1


@pytest.mark.parametrize("explicit", [False, True])
def test_instructions_over_the_limit_of_characters(explicit: bool) -> None:
    """They alone are more than characters may cost, in a window with all the room of the world."""
    shell = Shell(BODIES["short"])
    policy = CompactionPolicy(max_context_chars=20_000, hard_limit_explicit=explicit)
    reasons = set()
    for step in steps(b.turn_session(8, 1, result_chars=900, system=b.prose(21_000, 2))):
        decision = shell.handle(step, policy, Window(200_000, "test"))
        reasons.add((decision.outlook.skipped, decision.outlook.reason))
        assert isinstance(decision, Refuse) is explicit
    assert shell.calls == 0
    assert reasons == {("fixed_overhead", "characters")}


def test_instructions_near_the_limit_of_characters_do_not_thrash() -> None:
    """They are over the trigger alone: it is compacted at the last moment, not every turn."""
    shell = Shell(BODIES["short"])
    policy = CompactionPolicy(max_context_chars=40_000)
    for step in steps(b.turn_session(24, 1, result_chars=900, system=b.prose(33_000, 2))):
        shell.handle(step, policy, Window(200_000, "test"))
    assert 1 <= shell.calls <= 12
    assert shell.wasted <= 1


@given(_plays(), _POLICIES, st.sampled_from(sorted(BODIES)))
def test_the_last_item_is_tried_by_budget_once(
    play: tuple[list[JsonObject], Window, list[JsonObject]], policy: CompactionPolicy, body: str
) -> None:
    messages, window, _ = play
    shell = Shell(BODIES[body])
    chars = 3 * (window.tokens or 10_000)
    policy = replace(policy, hard_limit_explicit=True, max_context_chars=max(8000, chars))
    for step in steps(messages):
        request = to_request(step)
        shell.answer(request, policy, window)
        after = shell.calls
        for _ in range(3):
            shell.answer(request, policy, window)
        assert shell.calls == after
