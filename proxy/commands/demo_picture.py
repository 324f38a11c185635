"""A picture of a demo: prompt size over the turns, with and without the proxy.

Plain SVG, readable on light and dark pages. The figures it was drawn from are inside, so anybody
can draw it again from the picture itself.
"""

from collections.abc import Sequence
from xml.sax.saxutils import escape

from proxy import codec
from proxy.commands.demo_play import WINDOW, Answer, Turn

WIDTH, HEIGHT = 860, 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 24, 66, 46
_STEP_TOKENS = 512
_STYLE = """
  text { font: 13px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #24292f }
  .title { font-size: 17px; font-weight: 600 }
  .small { font-size: 12px; fill: #57606a }
  .page { fill: #ffffff }
  .full { fill: #cf222e; fill-opacity: .07 }
  .grid { stroke: #d0d7de; stroke-width: 1 }
  .window { stroke: #57606a; stroke-width: 1.5; stroke-dasharray: 6 4 }
  .direct { stroke: #cf222e; fill: none; stroke-width: 2.5 }
  .through { stroke: #1a7f37; fill: none; stroke-width: 2.5 }
  .cross { stroke: #cf222e; stroke-width: 2.5; fill: none }
  .dot { fill: #1a7f37 }
  .red { fill: #cf222e; font-weight: 600 }
  .green { fill: #1a7f37; font-weight: 600 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 } .small { fill: #9198a1 } .page { fill: #0d1117 }
    .grid { stroke: #30363d } .window { stroke: #9198a1 }
    .full { fill: #f85149; fill-opacity: .12 }
    .direct, .cross { stroke: #f85149 } .red { fill: #f85149 }
    .through { stroke: #3fb950 } .dot, .green { fill: #3fb950 }
  }
"""


def picture(turns: Sequence[Turn]) -> str:
    """Return the SVG of a run, which must have at least one turn."""
    top = max(WINDOW, *(turn.direct.tokens for turn in turns))
    top = -(-top // _STEP_TOKENS) * _STEP_TOKENS
    frame = _Frame(len(turns), top)
    died = next((turn for turn in turns if not turn.direct.is_ok), None)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        'aria-labelledby="title description">',
        f'<title id="title">{_title(turns)}</title>',
        f'<desc id="description">{escape(_description(turns))}</desc>',
        f"<metadata>{escape(codec.dumps([t.to_json() for t in turns]).decode())}</metadata>",
        f"<style>{_STYLE}</style>",
        f'<rect class="page" width="{WIDTH}" height="{HEIGHT}"/>',
        f'<text class="title" x="{_LEFT}" y="28">{_title(turns)}</text>',
        f'<text class="small" x="{_LEFT}" y="48">prompt tokens of each request; '
        "llama.cpp with a small model, measured by foldgate demo</text>",
        *_axes(frame),
        _line("direct", frame, [(turn.number, turn.direct.tokens) for turn in turns]),
        *(_cross(frame, turn) for turn in turns if not turn.direct.is_ok),
        _line("through", frame, [(turn.number, turn.through.tokens) for turn in turns]),
        *_compactions(frame, turns),
    ]
    last = turns[-1]
    right = f'x="{frame.x(last.number):.1f}" text-anchor="end"'
    if died is not None:
        parts.append(
            f'<text class="red" {right} y="{frame.y(last.direct.tokens) - 14:.1f}">'
            f"without: HTTP {died.direct.status} from turn {died.number} on</text>"
        )
    if all(turn.through.is_ok for turn in turns):
        parts.append(
            f'<text class="green" {right} y="{frame.y(0) - 10:.1f}">'
            "with Foldgate: every request answered</text>"
        )
    return "\n".join([*parts, "</svg>", ""])


def turns_of(svg: str) -> list[Turn]:
    """Return the turns that a picture was drawn from.

    Raises:
        ValueError: when it holds none.
    """
    begin, end = svg.find("<metadata>"), svg.find("</metadata>")
    if begin < 0 or end < begin:
        raise ValueError("the picture holds no figures")
    text = svg[begin + len("<metadata>") : end]
    for entity, character in (("&lt;", "<"), ("&gt;", ">"), ("&amp;", "&")):
        text = text.replace(entity, character)
    return [_turn(entry) for entry in codec.as_objects(codec.loads(text.encode()))]


class _Frame:
    """Where a turn and a number of tokens are on the page."""

    def __init__(self, turns: int, top: int) -> None:
        self.turns = turns
        self.top = top

    def x(self, turn: int) -> float:
        share = (turn - 1) / max(self.turns - 1, 1)
        return _LEFT + 12 + share * (WIDTH - _LEFT - _RIGHT - 24)

    def y(self, tokens: int) -> float:
        return HEIGHT - _BOTTOM - tokens / self.top * (HEIGHT - _TOP - _BOTTOM)


def _axes(frame: _Frame) -> list[str]:
    right, bottom = WIDTH - _RIGHT, HEIGHT - _BOTTOM
    window = frame.y(WINDOW)
    parts = [
        f'<rect class="full" x="{_LEFT}" y="{_TOP}" width="{right - _LEFT}" '
        f'height="{window - _TOP:.1f}"/>'
    ]
    for tokens in range(0, frame.top + 1, _STEP_TOKENS):
        y = frame.y(tokens)
        parts += [
            f'<line class="grid" x1="{_LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>',
            f'<text class="small" x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">'
            f"{tokens:,}</text>",
        ]
    parts += [
        f'<line class="window" x1="{_LEFT}" x2="{right}" y1="{window:.1f}" y2="{window:.1f}"/>',
        f'<text class="small" x="{_LEFT + 8}" y="{window - 7:.1f}">'
        f"the window: {WINDOW:,} tokens</text>",
    ]
    step = 1 if frame.turns <= 25 else -(-frame.turns // 25)
    parts += [
        f'<text class="small" x="{frame.x(turn):.1f}" y="{bottom + 18}" '
        f'text-anchor="middle">{turn}</text>'
        for turn in range(1, frame.turns + 1, step)
    ]
    parts.append(
        f'<text class="small" x="{(_LEFT + right) / 2:.1f}" y="{HEIGHT - 8}" '
        'text-anchor="middle">turn</text>'
    )
    return parts


def _line(name: str, frame: _Frame, points: Sequence[tuple[int, int]]) -> str:
    drawn = " ".join(f"{frame.x(turn):.1f},{frame.y(tokens):.1f}" for turn, tokens in points)
    return f'<polyline class="{name}" points="{drawn}"/>'


def _cross(frame: _Frame, turn: Turn) -> str:
    x, y, r = frame.x(turn.number), frame.y(turn.direct.tokens), 4.5
    return (
        f'<path class="cross" d="M{x - r:.1f} {y - r:.1f}L{x + r:.1f} {y + r:.1f}'
        f'M{x - r:.1f} {y + r:.1f}L{x + r:.1f} {y - r:.1f}"/>'
    )


def _compactions(frame: _Frame, turns: Sequence[Turn]) -> list[str]:
    parts, before = [], 0
    for turn in turns:
        if turn.compactions > before:
            x, y = frame.x(turn.number), frame.y(turn.through.tokens)
            parts += [
                f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="5"/>',
                f'<text class="small" x="{x + 10:.1f}" y="{y + 5:.1f}">checkpoint</text>',
            ]
        before = turn.compactions
    return parts


def _title(turns: Sequence[Turn]) -> str:
    return f"One agent session of {len(turns)} requests, without and with Foldgate"


def _description(turns: Sequence[Turn]) -> str:
    direct = sum(turn.direct.is_ok for turn in turns)
    through = sum(turn.through.is_ok for turn in turns)
    return (
        f"Without Foldgate the prompt grows to {turns[-1].direct.tokens:,} tokens and {direct} of "
        f"{len(turns)} requests are answered; with it the prompt stays below the window of "
        f"{WINDOW:,} tokens and {through} are."
    )


def _turn(entry: codec.JsonObject) -> Turn:
    return Turn(
        int(str(entry["turn"])),
        codec.as_text(entry["request"]),
        _answer(entry["direct"]),
        _answer(entry["foldgate"]),
        int(str(entry["compactions"])),
    )


def _answer(entry: codec.Json) -> Answer:
    members = entry if isinstance(entry, dict) else {}
    return Answer(
        int(str(members["status"])),
        int(str(members["tokens"])),
        int(str(members["cached"])),
        members["overflow"] is True,
    )
