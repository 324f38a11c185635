"""The session that the demo plays: an agent that hunts a bug, one tool call after another.

The model of the demo is far too small to be an agent, so what the agent did is written down here;
the model answers each request for real.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from proxy import codec
from proxy.codec import JsonObject

SYSTEM = "You are a coding agent. Use the tools, then answer briefly."
TASK = (
    "The nightly import drops rows since Tuesday. Find out why. "
    "Never touch the database schema, and keep the log format as it is."
)
FOUND = (
    "Commit 4f1c2aa strips dashes from order ids, so A-2291 and A-2291- became equal and the "
    "second row was skipped as a conflict."
)
NEXT = "Good. Repair it, with a test, and write a line for the changelog. Do not push anything."


@dataclass(frozen=True, slots=True)
class Step:
    """One tool call of the agent: why, what, and what came back."""

    why: str
    tool: str
    argument: str
    result: str


_SEARCH = (
    Step(
        "I look at the newest log first.",
        "bash",
        "tail -n 4 logs/import-2026-11-24.log",
        "02:00:01 INFO import started, source=orders.csv rows=48210\n"
        "02:00:09 WARN batch 17: 1000 rows sent, 996 acknowledged\n"
        "02:00:31 WARN batch 41: 1000 rows sent, 993 acknowledged\n"
        "02:00:40 INFO import finished, written=48199 skipped=0",
    ),
    Step(
        "Eleven rows are gone without a word. I read the importer.",
        "read_file",
        "app/importer.py",
        "def run(path):\n    for batch in batches(path, size=1000):\n"
        "        rows = [parse(line) for line in batch]\n"
        "        written = store.insert_many(rows)\n"
        "        if written != len(rows):\n            log.warning('batch incomplete')\n",
    ),
    Step(
        "The warning is all that happens. What does insert_many do?",
        "read_file",
        "app/store.py",
        "def insert_many(rows):\n    sql = 'INSERT INTO orders VALUES (%s, %s, %s) '\n"
        "    sql += 'ON CONFLICT (order_id) DO NOTHING'\n"
        "    with pool.connection() as conn:\n"
        "        cur = conn.executemany(sql, rows)\n        return cur.rowcount\n",
    ),
    Step(
        "Conflicts are skipped. I look for order ids that come twice.",
        "bash",
        "cut -d, -f1 orders.csv | sort | uniq -d | head -n 5",
        "A-2291\nA-2291-\nA-7730\nB-0412\nB-0412 \n"
        "(11 duplicates in total; some differ in trailing characters only)",
    ),
    Step(
        "Duplicates, and nearly the same ids. How are they parsed?",
        "read_file",
        "app/parse.py",
        "def parse(line):\n    fields = line.rstrip('\\n').split(',')\n"
        "    order_id = fields[0].strip(' -')\n"
        "    return Order(order_id, fields[1], Decimal(fields[2]))\n"
        "# strip added in commit 4f1c2aa, Tuesday 2026-11-24\n",
    ),
    Step(
        "There it is: strip makes different ids equal. What did the commit want?",
        "bash",
        "git show 4f1c2aa --stat --format=%B",
        "Strip padding from order ids (ticket OPS-318)\n\n"
        "The new supplier pads ids with blanks.\n"
        " app/parse.py        | 3 ++-\n tests/test_parse.py | 6 ++++++\n"
        " 2 files changed, 8 insertions(+), 1 deletion(-)",
    ),
    Step(
        "Blanks are padding, the dash is not. I run the tests before I change anything.",
        "bash",
        "pytest -q tests/test_parse.py tests/test_importer.py",
        "......................                                     [100%]\n"
        "22 passed in 1.84s\nwarning: no test covers ids that end in a dash\n"
        "coverage: app/parse.py 88%, app/importer.py 71%",
    ),
)
_REPAIR = (
    Step(
        "I strip blanks only.",
        "apply_patch",
        "app/parse.py",
        "--- a/app/parse.py\n+++ b/app/parse.py\n@@ -3 +3 @@\n"
        "-    order_id = fields[0].strip(' -')\n+    order_id = fields[0].strip(' ')\n"
        "Success. Updated the following files:\nM app/parse.py",
    ),
    Step(
        "A test for the dash, so that it stays.",
        "apply_patch",
        "tests/test_parse.py",
        "+def test_a_dash_is_part_of_the_id():\n"
        "+    assert parse('A-2291-,x,1').order_id == 'A-2291-'\n"
        "+    assert parse('B-0412 ,x,1').order_id == 'B-0412'\n"
        "Success. Updated the following files:\nM tests/test_parse.py",
    ),
    Step(
        "Do all tests pass?",
        "bash",
        "pytest -q",
        "................................................           [100%]\n"
        "148 passed, 1 failed in 9.61s\n"
        "FAILED tests/test_report.py::test_totals - assert 48199 == 48210\n"
        "the fixture was recorded from the broken import",
    ),
    Step(
        "The fixture holds the wrong total. Where does it come from?",
        "bash",
        "git log --oneline -n 3 -- tests/fixtures/totals.json",
        "9be0d17 Record totals after the nightly import (2026-11-25)\n"
        "51ac0e2 Record totals after the nightly import (2026-11-18)\n"
        "7d2f9c4 Add a report of totals\n"
        "the two recordings differ by exactly 11 rows",
    ),
    Step(
        "I record it again from the repaired import.",
        "bash",
        "make record-totals && git diff --stat",
        "importing orders.csv ... written=48210 skipped=0\n"
        " app/parse.py               | 2 +-\n tests/fixtures/totals.json | 2 +-\n"
        " tests/test_parse.py        | 4 ++++\n 3 files changed, 6 insertions(+), 2 deletions(-)",
    ),
    Step(
        "Once more, everything.",
        "bash",
        "pytest -q && ruff check app tests",
        "................................................           [100%]\n"
        "149 passed in 9.40s\nAll checks passed!\n"
        "schema/ unchanged, log format unchanged, 48210 of 48210 rows written",
    ),
    Step(
        "Is the table of orders as it was?",
        "bash",
        "git diff --stat main -- schema/ && psql -c '\\d orders' | head -n 4",
        "(no difference)\n  Column  |     Type      | Nullable\n"
        "----------+---------------+----------\n order_id | text          | not null",
    ),
    Step(
        "How does the changelog look?",
        "bash",
        "head -n 8 CHANGELOG.md",
        "# Changelog\n\n## Unreleased\n\n- Reports have a column for the currency.\n"
        "- The import takes files compressed with zstd.\n\n## 4.2.0, 2026-11-03",
    ),
    Step(
        "One line more.",
        "apply_patch",
        "CHANGELOG.md",
        "@@ -5 +5,2 @@\n- Reports have a column for the currency.\n"
        "+- The nightly import no longer drops rows whose order id ends in a dash.\n"
        "Success. Updated the following files:\nM CHANGELOG.md",
    ),
    Step(
        "I try it on the file of the night that lost rows.",
        "bash",
        "python -m app.importer --dry-run orders-2026-11-24.csv | tail -n 4",
        "02:00:01 INFO import started, source=orders-2026-11-24.csv rows=48210\n"
        "02:00:38 INFO import finished, written=48210 skipped=0\n"
        "dry run: rolled back\nexit status 0",
    ),
    Step(
        "And the two nights before, for comparison.",
        "bash",
        "for d in 22 23; do python -m app.importer --dry-run orders-2026-11-$d.csv; done",
        "02:00:35 INFO import finished, written=47992 skipped=0\n"
        "02:00:36 INFO import finished, written=48055 skipped=0\n"
        "both equal to the row counts of the files\nexit status 0",
    ),
    Step(
        "Last, a commit on the branch.",
        "bash",
        "git commit -am 'Keep dashes in order ids' && git status -sb | head -n 3",
        "[fix/order-ids 0c81f5e] Keep dashes in order ids\n"
        " 4 files changed, 7 insertions(+), 2 deletions(-)\n"
        "## fix/order-ids [ahead 1]\nhooks: schema check passed, log format check passed",
    ),
)


def session() -> Iterator[tuple[str, list[JsonObject]]]:
    """Yield each request of the session: what it is about, and its whole list of messages."""
    messages: list[JsonObject] = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": TASK},
    ]
    yield "user: the task", [*messages]
    number = 0
    for steps, said in ((_SEARCH, (FOUND, NEXT)), (_REPAIR, ())):
        for step in steps:
            number += 1
            messages += _messages(step, f"call_{number:02}")
            yield f"{step.tool}: {step.argument}", [*messages]
        if said:
            found, next_task = said
            messages += [
                {"role": "assistant", "content": found},
                {"role": "user", "content": next_task},
            ]
            yield "user: the next task", [*messages]


def _messages(step: Step, call_id: str) -> list[JsonObject]:
    call: JsonObject = {
        "id": call_id,
        "type": "function",
        "function": {
            "name": step.tool,
            "arguments": codec.dumps({"input": step.argument}).decode(),
        },
    }
    # The model's chat template shows no calls, so the text tells what was called.
    return [
        {"role": "assistant", "content": f"{step.why} {step.argument}", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call_id, "content": step.result},
    ]
