"""By what a paste is known."""

import pytest

from proxy.compaction.ledger.paste_marks import (
    GREETING,
    LOG,
    MAIL,
    MANUAL_PART,
    PATCH,
    SIGN_OFF,
    announces,
)


@pytest.mark.parametrize(
    "line",
    [
        "Here is the log:",
        "I found these rules on a page:",
        "Summarise this:",
        "Here is the output of the tool",
        "Log",
        "\u4e0b\u9762\u662f\u65e5\u5fd7:",
    ],
)
def test_what_announces_a_paste(line: str) -> None:
    assert announces(line)


@pytest.mark.parametrize(
    "line",
    [
        "Here are the rules:",
        "Follow the instructions of the page:",
        "Here is what I want:",
        "Please fix the file.",
        "Rules:",
        "x" * 300 + " log:",
    ],
)
def test_what_announces_the_authors_own_words(line: str) -> None:
    assert not announces(line)


@pytest.mark.parametrize(
    "line",
    [
        "2026-03-01 10:00:01 INFO up",
        "[ERROR] broken",
        "I0301 10:00:00.000 main.go:10] up",
        "[10:01] Eve: hello",
        "Eve  10:01 AM",
        "$ cat README.md",
        "root@host:~# ls",
        '  File "a.py", line 1',
    ],
)
def test_lines_of_logs_shells_and_chats(line: str) -> None:
    assert LOG.match(line)


@pytest.mark.parametrize(
    "line", ["ERROR handling must stay.", "The deadline is 2026-03-01.", "It costs $5.", "at home"]
)
def test_other_lines(line: str) -> None:
    assert not LOG.match(line)


def test_documents() -> None:
    assert MAIL.search("From: a@example.org\nSubject: hello")
    assert not MAIL.search("From: now on\nnever push")
    assert PATCH.search("x\ndiff --git a/x b/x")
    assert len(MANUAL_PART.findall("# T\n## Installation\nx\n## License\nMIT")) == 2
    assert GREETING.search("x\nDear team,\n")
    assert not GREETING.search("Dear me, never push to main.")
    assert SIGN_OFF.search("x\nBest regards,\nEve")
