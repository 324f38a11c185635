"""What requests really cost is learned: when to compact, and what fits, in the model's tokens."""

import base64
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pytest

from proxy.codec import JsonObject, dumps, loads
from tests.builders import assistant, data_url, image_part, png, system, text_part, user
from tests.counting_upstream import CountingUpstream
from tests.e2e.apis import APIS, CHAT, RESPONSES, Api
from tests.e2e.running import Running
from tests.upstream import Recorded, Reply

WINDOW = 16_384
TURNS = 40
THRESHOLD = 0.85
SETTLED = 5
"""Turns until what is learned must be right."""

_HAN = (
    "在去年的会议上委员会决定把新桥的计划推迟到明年春天因为河水的水位"
    "一直没有下降农民们失去了大部分收成"
)
_EMOJI = "😀😂🤣😍🙏🔥✨🎉🚀👍💯🤔😎🥳🌍🍕🐍🧪🦊🪐"
_WORDS = ["the", "plan", "for", "a", "new", "bridge", "would", "have", "to", "wait", "until"]


def _prose(rng: random.Random, chars: int) -> str:
    text = ""
    while len(text) < chars:
        text += " ".join(rng.choice(_WORDS) for _ in range(12)) + ". "
    return text[:chars]


def chinese(rng: random.Random) -> str:
    return "".join(rng.choice(_HAN) + ("," if rng.random() < 0.1 else "") for _ in range(600))


def base64_in_text(rng: random.Random) -> str:
    encoded = base64.encodebytes(rng.randbytes(700)).decode()
    return f"{_prose(rng, 300)}\n```\n{encoded}```\n{_prose(rng, 100)}"


def hex_dump(rng: random.Random) -> str:
    rows = [rng.randbytes(16) for _ in range(16)]
    return "\n".join(f"{16 * n:04x}: {row.hex(' ')}" for n, row in enumerate(rows))


def minified_json(rng: random.Random) -> str:
    return dumps(
        [
            {"id": rng.randrange(10**6), "name": rng.choice(_WORDS), "at": rng.random()}
            for _ in range(24)
        ]
    ).decode()


def emoji(rng: random.Random) -> str:
    return " ".join(
        rng.choice(_WORDS) if rng.random() < 0.4 else rng.choice(_EMOJI) * rng.randrange(1, 5)
        for _ in range(220)
    )


KINDS = (chinese, base64_in_text, hex_dump, minified_json, emoji)

_CUT = re.compile(r" ?[A-Za-z]+|[0-9]{1,3}| ?[^\sA-Za-z0-9]+|\s+")


def by_bytes(text: str) -> int:
    return len(text.encode()) // 3 + 1


def by_words(text: str) -> int:
    """Much as cl100k does it."""
    tokens = 0
    for piece in _CUT.findall(text):
        wide = len(piece.encode()) - len(piece)
        tokens += 1 + (len(piece) // 5 if piece.strip().isascii() else wide // 2)
    return tokens


def by_letters(text: str) -> int:
    """As a small vocabulary does it: digits one by one, and three letters at a time."""
    tokens = 0
    for piece in _CUT.findall(text):
        if piece.isdigit():
            tokens += len(piece)
        else:
            tokens += 1 + len(piece) // 4 if piece.isascii() else len(piece.encode()) // 2
    return tokens


TOKENIZERS = (by_bytes, by_words, by_letters)


@dataclass
class Talk:
    """A conversation through the proxy, and where it was compacted."""

    api: Api
    up: CountingUpstream
    fold: Running
    http: aiohttp.ClientSession
    stream: bool = False
    messages: list[JsonObject] = field(default_factory=lambda: [system("Answer briefly.")])
    due: list[tuple[int, int, int]] = field(default_factory=list)
    """Of each compaction: the turn, what the request would have had, and the one before it had."""

    async def say(self, text: str, answer: str, **fields: int) -> Recorded:
        """Take one turn; return what went upstream."""
        sent, reads = len(self.up.main), self.up.main[-1].json if self.up.main else None
        self.messages.append(user(text))
        self.up.reply = lambda _: Reply(text=answer)
        body = self.api.body(self.messages, stream=self.stream, **fields)
        async with self.http.post(f"{self.fold.url}{self.api.path}", data=body) as reply:
            received = await reply.read()
            assert reply.status == 200, received
            marks = reply.headers["x-foldgate-compaction"]
        if self.stream:
            self.api.events(received)
        new = self.up.main[sent:]
        assert len(new) == 1, "an overflow that had to be cured"
        if "compacted" in marks and reads is not None:
            before = self.up.count(reads)
            added = self.up.count({"messages": [*self.messages[-2:]]})
            self.due.append((len(self.messages) // 2, before + added, before))
        self.messages.append(assistant(answer))
        return new[0]


async def talk(
    talk: Talk, kind: Callable[[random.Random], str], turns: int = TURNS, seed: int = 1
) -> None:
    rng = random.Random(seed)
    for _ in range(turns):
        await talk.say(kind(rng), kind(rng)[: rng.randrange(40, 400)])


def _fold(up: CountingUpstream, folder: Path) -> Running:
    return Running(up.base_url, folder, **{"limits.max_context_chars": 4_000_000})


@pytest.mark.parametrize(
    "stream", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["whole", "stream"]
)
@pytest.mark.parametrize("api", APIS, ids=str)
@pytest.mark.parametrize("tokenizer", TOKENIZERS)
@pytest.mark.parametrize("kind", KINDS)
async def test_a_dense_session_fits_and_is_compacted_in_time(
    tmp_path: Path,
    kind: Callable[[random.Random], str],
    tokenizer: Callable[[str], int],
    api: Api,
    stream: bool,
) -> None:
    async with (
        CountingUpstream(tokenizer=tokenizer, limit=WINDOW, timings=True) as up,
        _fold(up, tmp_path) as fold,
        aiohttp.ClientSession() as http,
    ):
        one = Talk(api, up, fold, http, stream)
        await talk(one, kind)
    sizes = [up.prompt_tokens(record) for record in up.main]
    assert not up.rejections
    assert max(sizes) <= WINDOW
    assert one.due
    for turn, would_have, before in one.due:
        if turn > SETTLED:
            assert would_have >= 0.9 * THRESHOLD * WINDOW, "too early"
        assert before <= 1.1 * THRESHOLD * WINDOW, "too late"


@pytest.mark.parametrize("api", APIS, ids=str)
async def test_the_header_tells_what_the_model_counts(tmp_path: Path, api: Api) -> None:
    async with (
        CountingUpstream(tokenizer=by_bytes, limit=WINDOW) as up,
        _fold(up, tmp_path) as fold,
        aiohttp.ClientSession() as http,
    ):
        one = Talk(api, up, fold, http)
        await talk(one, hex_dump, 4)
        one.messages.append(user("Go on."))
        async with http.post(f"{fold.url}{api.path}", data=api.body(one.messages)) as reply:
            told = re.findall(r"\d+", reply.headers["x-foldgate-tokens"])
    counted = up.prompt_tokens(up.main[-1])
    assert [int(number) for number in told] == pytest.approx([counted] * 2, rel=0.06)


_ODD: Sequence[Callable[[int], int | None]] = (
    lambda _: 0,
    lambda _: 1,
    lambda counted: 10 * counted,
    lambda _: 300,
    lambda counted: counted // 3,
    lambda _: None,
)


@pytest.mark.parametrize("api", APIS, ids=str)
@pytest.mark.parametrize("odd", _ODD)
async def test_odd_replies_change_nothing(
    tmp_path: Path, odd: Callable[[int], int | None], api: Api
) -> None:
    async with (
        CountingUpstream(tokenizer=by_words, limit=WINDOW) as up,
        _fold(up, tmp_path) as fold,
        aiohttp.ClientSession() as http,
    ):
        told: list[int] = []

        def tells(counted: int) -> int | None:
            told.append(counted)
            return odd(counted) if len(told) % 4 == 0 else counted

        up.tells = tells
        one = Talk(api, up, fold, http)
        await talk(one, chinese)
    assert not up.rejections
    assert one.due
    for turn, would_have, before in one.due:
        if turn > SETTLED:
            assert would_have >= 0.9 * THRESHOLD * WINDOW
        assert before <= 1.1 * THRESHOLD * WINDOW
    assert {event["window_source"] for event in fold.events.of_type("compaction_started")} == {
        "models"
    }


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_server_that_drops_old_messages_is_found_out(tmp_path: Path, stream: bool) -> None:
    """From then on nothing is lost; whatever it says of its model, it reads 4,096 tokens."""
    limit = 4096
    async with (
        CountingUpstream(tokenizer=by_bytes, limit=limit, drops=True) as up,
        _fold(up, tmp_path) as fold,
        aiohttp.ClientSession() as http,
    ):
        up.advertise_window, up.timings = False, True
        one = Talk(CHAT, up, fold, http, stream)
        rng = random.Random(2)
        for _ in range(TURNS):
            await one.say(_prose(rng, rng.randrange(300, 1500)), _prose(rng, 200))
        lost = [up.read(record.json) < up.count(record.json) for record in up.main]
    started = fold.events.of_type("compaction_started")
    assert started
    assert {event["window_source"] for event in started} == {"truncation"}
    first = lost.index(True)
    found_out = len(lost) - lost[::-1].index(True)
    assert found_out - first <= 10, "it takes a while to be sure"
    assert len(lost) - found_out >= 10


async def test_a_server_that_reports_what_it_had_not_cached_is_not_taken_for_one(
    tmp_path: Path,
) -> None:
    async with (
        CountingUpstream(tokenizer=by_bytes, limit=WINDOW) as up,
        _fold(up, tmp_path) as fold,
        aiohttp.ClientSession() as http,
    ):
        last = 0

        def tells(counted: int) -> int:
            nonlocal last
            new, last = counted - last, counted
            return new

        up.tells = tells
        one = Talk(CHAT, up, fold, http)
        rng = random.Random(2)
        for _ in range(TURNS):
            await one.say(_prose(rng, rng.randrange(300, 1500)), _prose(rng, 200))
    assert not up.rejections
    assert not fold.events.of_type("compaction_started")


def _whole(turns: int, kind: Callable[[random.Random], str]) -> list[JsonObject]:
    rng = random.Random(3)
    messages = [system("Answer briefly.")]
    for _ in range(turns):
        messages += [user(kind(rng)), assistant(kind(rng)[:200])]
    return [*messages, user("And now?")]


async def _sent_at_once(
    up: CountingUpstream, fold: Running, http: aiohttp.ClientSession, api: Api, share: float
) -> tuple[str, int]:
    """Send a whole session that has about this share of the trigger by the estimate.

    Return how it went and what it counts.
    """
    turns, counted, messages = 0, 0, _whole(0, chinese)
    while counted < share * THRESHOLD * up.limit:
        turns += 1
        messages = _whole(turns, chinese)
        counted = up.count(loads_object(api.body(messages)))
    async with http.post(f"{fold.url}{api.path}", data=api.body(messages)) as reply:
        assert reply.status == 200
        return reply.headers["x-foldgate-compaction"], counted


def loads_object(body: bytes) -> JsonObject:
    value = loads(body)
    assert isinstance(value, dict)
    return value


def _han(text: str) -> int:
    """Close to the estimate, but not the same."""
    return int(1.12 * sum(ord(char) > 0x7F for char in text)) + len(text) // 40


@pytest.mark.parametrize(
    ("api", "counter", "paths"),
    [
        (CHAT, "input_tokens", ["/v1/chat/completions/input_tokens"]),
        (RESPONSES, "input_tokens", ["/v1/responses/input_tokens"]),
        (
            CHAT,
            "tokenize",
            ["/v1/chat/completions/input_tokens", "/apply-template", "/tokenize"],
        ),
        (CHAT, "", ["/v1/chat/completions/input_tokens", "/apply-template"]),
        (RESPONSES, "", ["/v1/responses/input_tokens"]),
    ],
)
async def test_near_the_trigger_an_upstream_that_counts_is_asked(
    tmp_path: Path, api: Api, counter: str, paths: list[str]
) -> None:
    async with (
        CountingUpstream(tokenizer=_han, limit=WINDOW, key="sk-one", counter=counter) as up,
        _fold(up, tmp_path) as fold,
        aiohttp.ClientSession(headers={"Authorization": "Bearer sk-one"}) as http,
    ):
        far, _ = await _sent_at_once(up, fold, http, api, 0.5)
        assert (far, up.counted) == ("none", [])
        near, counted = await _sent_at_once(up, fold, http, api, 0.97)
        assert [record.path for record in up.counted] == paths
        assert {record.headers["Authorization"] for record in up.counted} == {"Bearer sk-one"}
        again, _ = await _sent_at_once(up, fold, http, api, 0.97)
    assert counted < THRESHOLD * WINDOW
    if counter:
        assert (near, again) == ("none", "none")
    # It is known by now: from the reply, or that there is no counter.
    assert len(up.counted) == len(paths)


async def test_no_compaction_is_made_that_a_count_shows_not_to_be_due(tmp_path: Path) -> None:
    async with (
        # Large steps lead past what is near the trigger.
        CountingUpstream(
            tokenizer=by_bytes, limit=WINDOW, tells=lambda _: None, counter="input_tokens"
        ) as up,
        _fold(up, tmp_path) as fold,
        aiohttp.ClientSession() as http,
    ):
        one = Talk(CHAT, up, fold, http)
        await talk(one, lambda rng: base64_in_text(rng) * 3, 12)
    assert one.due
    assert min(would_have for _, would_have, _ in one.due) >= 0.9 * THRESHOLD * WINDOW


async def test_a_counter_that_does_not_answer_holds_nobody_up(tmp_path: Path) -> None:
    async with (
        CountingUpstream(tokenizer=_han, limit=WINDOW, counter="hangs") as up,
        _fold(up, tmp_path) as fold,
        aiohttp.ClientSession() as http,
    ):
        await _sent_at_once(up, fold, http, CHAT, 0.5)
        await _sent_at_once(up, fold, http, CHAT, 0.97)
    assert len(up.counted) == 1
    assert len(up.main) == 2


async def test_what_images_cost_is_known_from_the_reports(tmp_path: Path) -> None:
    """Each is taken for five times what it costs; the text beside it is not."""
    picture = image_part(data_url(png(1092, 1092)))
    async with (
        CountingUpstream(tokenizer=by_words, limit=WINDOW) as up,
        _fold(up, tmp_path) as fold,
        aiohttp.ClientSession() as http,
    ):
        one = Talk(CHAT, up, fold, http)
        rng = random.Random(6)
        for turn in range(30):
            if turn in {2, 3, 9}:
                one.messages += [user([text_part("See."), picture]), assistant("I see.")]
            await one.say(minified_json(rng), "Yes.")
    assert not up.rejections
    turn, would_have, before = one.due[0]
    assert turn > SETTLED
    assert would_have >= 0.9 * THRESHOLD * WINDOW
    assert before <= 1.1 * THRESHOLD * WINDOW


async def test_after_a_restart_it_is_learned_anew(tmp_path: Path) -> None:
    async with (
        CountingUpstream(tokenizer=by_letters, limit=WINDOW) as up,
        aiohttp.ClientSession() as http,
    ):
        one: Talk | None = None
        for part in range(3):
            async with _fold(up, tmp_path) as fold:
                if one is None:
                    one = Talk(CHAT, up, fold, http)
                one.fold = fold
                await talk(one, minified_json, TURNS // 2, seed=part)
    assert not up.rejections
    assert one is not None
    assert one.due
