"""How the demo is shown: a table that grows on a terminal, lines elsewhere, JSON for programs."""

import sys
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

import typer

from proxy import codec
from proxy.commands.demo_play import WINDOW, Answer, Demo, Turn
from proxy.sessions.store_check import counted

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

_REQUEST_CHARS = 34
_WIDTHS = (4, _REQUEST_CHARS, 6, 12, 16, 11, 6)
_FRAME_LINES = 4
_LEAST_CHARS = 8
_OTHER_CHARS = sum(_WIDTHS) - _REQUEST_CHARS + 2 * (len(_WIDTHS) - 1)
_COLUMNS = "{:>4}  {:34}  {:>6}  {:12}  {:16}  {:>11}  {:>6}"
HEADINGS = (
    "turn",
    "request",
    "tokens",
    "direct",
    "through Foldgate",
    "compactions",
    "cached",
)


class View(Protocol):
    """Shows a run as it goes."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def tell(self, words: str) -> None:
        """Say what is going on."""
        ...

    def show(self, turn: Turn) -> None:
        """Show a turn."""
        ...

    def close(self, demo: Demo) -> None:
        """Show what came of it."""
        ...


_ABOUT_MODEL = (
    "(The model is tiny and its summaries are poor. What the user said is carried over by code, "
    "word for word.)"
)


def make_view(*, json_output: bool) -> View:
    """Return the view that fits where the output goes."""
    if json_output:
        return JsonView()
    return LiveView() if sys.stdout.isatty() else LineView()


class _Plain:
    """A view that has nothing to set up."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass

    def tell(self, words: str) -> None:
        pass


class JsonView(_Plain):
    """One JSON line for each turn, one for the checkpoint, one for the result."""

    def show(self, turn: Turn) -> None:
        """Write a line of type `turn`."""
        self._write({"type": "turn", **turn.to_json()})

    def close(self, demo: Demo) -> None:
        """Write lines of type `checkpoint` and `result`."""
        self._write({"type": "checkpoint", "text": demo.checkpoint})
        self._write({"type": "result", **demo.result()})

    @staticmethod
    def _write(line: codec.JsonObject) -> None:
        typer.echo(codec.dumps(line))


class LineView(_Plain):
    """A line for each turn, for logs and pipes."""

    def __init__(self) -> None:
        """Nothing is shown yet."""
        self._begun = False

    def tell(self, words: str) -> None:
        """Say it on stderr, but not each step of each turn."""
        if not words.startswith("turn "):
            typer.echo(f"… {words}", err=True)

    def show(self, turn: Turn) -> None:
        """Write a line."""
        if not self._begun:
            self._begun = True
            typer.echo(_COLUMNS.format(*HEADINGS).rstrip())
        typer.echo(_COLUMNS.format(*cells(turn)).rstrip())

    def close(self, demo: Demo) -> None:
        """Write the checkpoint and what came of it."""
        typer.echo(f"\nThe checkpoint, as the model gets it:\n\n{demo.checkpoint.strip()}\n")
        typer.echo(f"{_ABOUT_MODEL}\n")
        for line in closing(demo):
            typer.echo(line)


class LiveView:
    """A table that grows, with a line below it about what is going on."""

    def __init__(self) -> None:
        """Nothing is shown yet."""
        from rich.spinner import Spinner

        self._turns: list[Turn] = []
        self._spinner = Spinner("dots")
        self._live: Live | None = None

    def __enter__(self) -> Self:
        from rich.live import Live

        self._live = Live(self._drawn(), refresh_per_second=8)
        self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.update(self._table(self._turns), refresh=True)
            self._live.stop()

    def tell(self, words: str) -> None:
        """Show it below the table."""
        self._spinner.update(text=words)
        self._refresh()

    def show(self, turn: Turn) -> None:
        """Add a row."""
        self._turns.append(turn)
        self._refresh()

    def close(self, demo: Demo) -> None:
        """Show the checkpoint in a frame, and what came of it."""
        from rich.console import Console
        from rich.panel import Panel
        from rich.text import Text

        console = Console()
        title = "the checkpoint, as the model gets it"
        console.print(Panel(Text(demo.checkpoint.strip()), title=title, border_style="green"))
        console.print(Text(f"{_ABOUT_MODEL}\n", style="dim"))
        for line in closing(demo):
            console.print(Text(line))

    def _refresh(self) -> None:
        if self._live is not None:
            self._live.update(self._drawn())

    def _drawn(self) -> "RenderableType":
        from rich import get_console
        from rich.console import Group

        # What is taller than the terminal would lose its newest rows.
        rows = max(get_console().height - _FRAME_LINES, 1)
        return Group(self._table(self._turns[-rows:]), self._spinner)

    def _table(self, turns: Sequence[Turn]) -> "RenderableType":
        from rich import get_console
        from rich.table import Table
        from rich.text import Text

        title = f"one session, a window of {WINDOW:,} tokens"
        table = Table(title=title, title_justify="left", box=None, pad_edge=False)
        for heading, width in zip(HEADINGS, _WIDTHS, strict=True):
            right = heading in {"turn", "tokens", "compactions", "cached"}
            if heading == "request":
                # The rest says what happened, so this is what gives way.
                width = max(_LEAST_CHARS, min(width, get_console().width - _OTHER_CHARS))
            table.add_column(
                heading,
                justify="right" if right else "left",
                no_wrap=True,
                overflow="ellipsis",
                width=width,
            )
        for turn in turns:
            row = [Text(cell) for cell in cells(turn)]
            row[3].stylize("green" if turn.direct.is_ok else "bold red")
            row[4].stylize("green" if turn.through.is_ok else "bold red")
            table.add_row(*row)
        return table


def cells(turn: Turn) -> tuple[str, ...]:
    """Return a turn as text, in the order of `HEADINGS`."""
    request = turn.request
    if len(request) > _REQUEST_CHARS:
        request = request[: _REQUEST_CHARS - 1] + "…"
    return (
        str(turn.number),
        request,
        f"{turn.direct.tokens:,}",
        _outcome(turn.direct, ""),
        _outcome(turn.through, f", {turn.through.tokens:,} tokens"),
        str(turn.compactions),
        f"{turn.through.cached:,}",
    )


def _outcome(answer: Answer, more: str) -> str:
    if answer.is_ok:
        return f"ok{more}"
    return f"{answer.status} overflow" if answer.overflow else f"{answer.status}"


def closing(demo: Demo) -> list[str]:
    """Return what came of a run, in two lines or three."""
    total = len(demo.turns)
    direct = sum(turn.direct.is_ok for turn in demo.turns)
    through = sum(turn.through.is_ok for turn in demo.turns)
    lines = [
        f"Straight to the model: {direct} of {total} requests answered, "
        f"{counted(demo.overflows, 'overflow')}.",
        f"Through Foldgate: {through} of {total} answered, "
        f"{counted(demo.compactions, 'compaction')}.",
    ]
    if demo.is_fine:
        lines.append("Your own client: foldgate run -- CLIENT, or see the recipes in the README.")
    return lines
