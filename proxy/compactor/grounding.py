"""Checking what a summariser wrote against the conversation, before anything goes on from it."""

from collections.abc import Iterator, Sequence

from proxy.compaction.checkpoint import Sections, bound
from proxy.compaction.coverage import cover, cover_text
from proxy.compaction.leaks import Prompt
from proxy.compactor.material import Body, FoldJob, Material
from proxy.transcript import Content, Kind


def grounded(job: FoldJob, material: Material, body: Body, before: Body | None) -> Body:
    """Return a summary that claims nothing for the user and lost nothing of the one before.

    Args:
        job: the compaction; nothing of its leading instructions is in what is returned.
        material: what it replaces.
        body: what the summariser wrote.
        before: what it went on from; None when there is nothing to put back.
    """
    prompt = Prompt(job.prompt_texts(), lambda: _texts(material.contents))
    body = prompt.kept_out(body)
    quotes = material.book.quotes
    if isinstance(body, str):
        return cover_text(body, quotes, before or None, lambda: _printed(material.contents))
    return bound(cover(body, quotes, before or None, lambda: _printed(material.contents)))


def regrounded(material: Material, body: Body) -> Body:
    """Return an earlier summary without the instructions that hold no longer."""
    if isinstance(body, Sections):
        return bound(cover(body, material.book.quotes, None))
    return body


def _texts(contents: Sequence[Content]) -> Iterator[str]:
    for content in contents:
        yield from (content.text, content.notes)
        for call in content.calls:
            yield from (call.name, call.arguments)


def _printed(contents: Sequence[Content]) -> Iterator[str]:
    # What a user pasted is looked for, too; what a user said is never taken for it.
    for content in contents:
        if content.kind in {Kind.RESULT, Kind.USER}:
            yield from (content.text, content.notes)
        for call in content.calls:
            yield from (call.name, call.arguments)
