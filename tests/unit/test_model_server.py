"""What the model server says before any model is loaded."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("xllamacpp")

from proxy.commands import model_server
from proxy.commands.model_server import NoModelServer


def test_another_model_is_served_under_the_name_of_its_file() -> None:
    assert model_server.model_name() == model_server.MODEL
    assert model_server.model_name(Path("/models/tiny-1b.q4.gguf")) == "tiny-1b.q4"


def test_a_file_that_is_there_is_taken(tmp_path: Path) -> None:
    file = tmp_path / "other.gguf"
    file.write_bytes(b"GGUF")
    assert model_server.model_path(file) == file


@pytest.mark.parametrize("name", ["absent.gguf", "."], ids=["absent", "folder"])
async def test_a_model_that_is_not_there_is_named(name: str, tmp_path: Path) -> None:
    file = tmp_path / name
    with pytest.raises(NoModelServer, match="no model file") as refused:
        async with model_server.model_server(512, model=file):
            raise AssertionError("it started")
    assert str(file) in str(refused.value)


def test_the_program_says_in_one_line_that_the_file_is_not_there(tmp_path: Path) -> None:
    file = tmp_path / "absent.gguf"
    done = subprocess.run(
        [sys.executable, "-P", model_server.__file__, "--window", "512", "--model", str(file)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"there is no model file {file}\n"
