"""Programs for tests are fetched once, and one that is not available skips in one line what needs it."""

import subprocess
from pathlib import Path

import pytest

from tests import programs
from tests.programs import Program, UnavailableError


@pytest.fixture(autouse=True)
def place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(programs, "PLACE", tmp_path / "programs")
    return tmp_path / "programs"


def test_a_program_is_made_once_and_again_when_what_it_is_made_of_changes() -> None:
    made, stamp = [], "1"

    def make(folder: Path) -> str:
        made.append(list(folder.iterdir()))
        (folder / "bin/hello").touch()
        return f"hello {len(made)}"

    program = Program("hello", lambda: stamp, make)
    assert program.version == ""
    for _ in range(2):
        program.fetch()
        assert program.version == "hello 1"
    stamp = "2"
    program.fetch()
    assert program.version == "hello 2"
    assert made == [[program.bin], [program.bin]], "each time from nothing"
    assert not (program.bin / "STAMP").exists()


def test_one_that_is_not_available_is_tried_once_and_skips_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def make(folder: Path) -> str:
        tried.append(folder)
        raise UnavailableError("hello is not available: no network")

    program = Program("hello", str, make)
    monkeypatch.setattr(programs, "PROGRAMS", {"hello": program})
    for _ in range(2):
        with pytest.raises(pytest.skip.Exception, match=r"^hello is not available: no network$"):
            programs.needed("hello")
    assert len(tried) == 1
    assert programs.programs_met() == "none; hello is not available: no network"


def test_a_machine_without_apt_and_one_without_the_package_say_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(UnavailableError, match="this machine has no apt-get"):
        programs._unpack("hello", tmp_path)
    apt = tmp_path / "bin/apt-get"
    apt.write_text("#!/bin/sh\necho 'Reading lists'\necho 'E: Unable to locate package hello' >&2\nexit 100\n")
    apt.chmod(0o755)
    with pytest.raises(UnavailableError, match=r"^hello is not available: E: Unable to locate package hello$"):
        programs._unpack("hello", tmp_path)


def test_a_written_program_has_its_variables_and_passes_words_on(tmp_path: Path) -> None:
    path = tmp_path / "say"
    programs._write_program(path, [("WORD", "it's")], "sh", "-c", 'echo "$WORD $1"', "sh")
    assert subprocess.run([path, "a  b"], capture_output=True, text=True, check=True).stdout == "it's a  b\n"
