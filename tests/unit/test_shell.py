"""What the words of a command line name."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.compaction.ledger import shell

BODY = "x = 1\n" * 20


@pytest.mark.parametrize(
    ("command", "read", "written"),
    [
        ("cat src/a.py", ["src/a.py"], []),
        ("sed -n '1,200p' src/a.py | head -20", ["src/a.py"], []),
        ("sed -i 's/a.b/c.d/' src/a.py", [], ["src/a.py"]),
        ("sed -i.bak -e 's/x/y/' a.py b.py", [], ["a.py", "b.py"]),
        ("perl -pi -e 's/a/b/' src/x.pl", [], ["src/x.pl"]),
        ("grep -rn 'foo/bar.py' src/x.py", ["src/x.py"], []),
        ("rg pattern.x", [], []),
        (f"cat > src/new.py <<'EOF'\n{BODY}open('inner.py')\nEOF", [], ["src/new.py"]),
        ("cat <<EOF >> notes.md\nhi\nEOF\nwc -l other.md", ["other.md"], ["notes.md"]),
        ("echo hi | tee -a log/out.txt > /dev/null 2>&1", [], ["log/out.txt"]),
        ("make 2> err.log && tail -n 5 err.log", ["err.log"], ["err.log"]),
        ("mv old.py pkg/new.py", [], ["old.py", "pkg/new.py"]),
        ("git mv old.py new.py; git rm gone.py", [], ["old.py", "new.py", "gone.py"]),
        ("cp a.json b.json", ["a.json"], ["b.json"]),
        ("sudo rm -f build/x.o", [], ["build/x.o"]),
        (
            "cd web && FOO=1 timeout 60 cat 'My File.ts' \"other one.ts\"",
            ["My File.ts", "other one.ts"],
            [],
        ),
        ("cat My\\ File.ts", ["My File.ts"], []),
        (r"type C:\work\app\Mod.cs", [r"C:\work\app\Mod.cs"], []),
        ("cat src/*.py $FILE ${X}/a.py", [], []),
        ("cat Makefile README .gitignore /dev/stdin", ["Makefile", "README", ".gitignore"], []),
        ("sort < in.txt > out.txt", ["in.txt"], ["out.txt"]),
        ("curl -s https://a.example/b.txt -o c.txt", [], ["c.txt"]),
        ("bash -lc 'cd /r && sed -i s/a/b/ src/x.py'", [], ["src/x.py"]),
        ("python src/run.py --config conf/x.yaml", [], []),
        ("head -1.5 v1.2 3.14", [], []),
        ("cat 'unclosed src/a.py", ["src/a.py"], []),
        ("", [], []),
    ],
)
def test_files_that_a_command_line_names(command: str, read: list[str], written: list[str]) -> None:
    named = shell.files_of(command)
    assert (named.read, named.written) == (read, written)


def test_a_here_document_is_no_part_of_the_command() -> None:
    command = f"cat > a.py <<'EOF'\n{BODY}EOF\nmake test"
    assert shell.without_documents(command) == "cat > a.py <<'EOF' … EOF\nmake test"
    assert shell.without_documents("cat <<< word\nx") == "cat <<< word\nx"
    assert shell.without_documents("cat <<E\nx\nE") == "cat <<E\nx\nE"
    assert shell.without_documents(f"cat <<E\n{BODY}").endswith("<<E … ")
    assert "make" in shell.without_documents(f"cat <<-E\n{BODY}EOF\n\tE\nmake")


@pytest.mark.parametrize(
    ("command", "is_view"),
    [
        ("cat a.py", True),
        ("cd x && sed -n 1,5p a.py", True),
        ("git log -3", True),
        ("sudo tail -f log", True),
        ("/usr/bin/grep x y", True),
        ("bash -lc 'cd /r && cat a.py | sort'", True),
        ("bash -lc 'sed -i s/a/b/ x.py && pytest -q'", False),
        ("cat a.py && make", False),
        ("pytest -q", False),
        ("", False),
    ],
)
def test_commands_that_only_show_files(command: str, is_view: bool) -> None:
    assert shell.is_view(command) is is_view


def test_the_directory_and_the_operands() -> None:
    assert shell.directory_of("cd /repo/web && npm test") == "/repo/web"
    assert shell.directory_of("npm test") == ""
    assert shell.directory_of("cd") == ""
    assert shell.operands_of("cd /x && pytest -q tests/a.py | tail -3") == "pytest tests/a.py"


@given(st.text(alphabet="ab/.'\"\\ ;|&<>()\n$E-", max_size=200))
def test_any_text_may_be_a_command(command: str) -> None:
    named = shell.files_of(command)
    plain = command.replace("\\", "").replace("'", "").replace('"', "")
    assert all(path.replace("\\", "") in plain for path in named.read + named.written)
