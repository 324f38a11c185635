"""What the layout of the code promises."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PURE = ("compaction", "dialects")
MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for path in (ROOT / "proxy").rglob("*.py")
    if path.name != "__main__.py"
)


def test_every_module_imports_alone_and_says_nothing() -> None:
    """No cycle hides behind the order of imports, and no import has an effect."""
    script = (
        "import importlib, subprocess, sys\n"
        "names = sys.argv[1:]\n"
        "for name in names:\n"
        "    for loaded in [n for n in sys.modules if n == 'proxy' or n.startswith('proxy.')]:\n"
        "        del sys.modules[loaded]\n"
        "    importlib.import_module(name)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *MODULES],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("floor", PURE)
def test_every_pure_module_has_its_unit_test(floor: str) -> None:
    missing = [
        path.name
        for path in (ROOT / "proxy" / floor).rglob("*.py")
        if path.name != "__init__.py" and not (ROOT / f"tests/unit/test_{path.name}").exists()
    ]
    assert missing == []


def test_no_module_is_longer_than_four_hundred_lines() -> None:
    long = [
        str(path.relative_to(ROOT))
        for path in (ROOT / "proxy").rglob("*.py")
        if len(path.read_text().splitlines()) > 400
    ]
    assert long == []


def test_there_is_one_broad_except() -> None:
    found = [
        str(path.relative_to(ROOT))
        for path in (ROOT / "proxy").rglob("*.py")
        for line in path.read_text().splitlines()
        if re.match(r"\s*(except:|except \(?(Base)?Exception\b|.*isinstance\(error, Exc)", line)
    ]
    assert found == ["proxy/compactor/failing_open.py"]
