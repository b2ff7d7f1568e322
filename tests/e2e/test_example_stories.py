"""The examples that tell a story, as a person runs them: they hold what they claim, and leave nothing behind however they end."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.waiting import eventually_sync

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


class Story:
    """The example as a process whose temporary folder is in ``folder``."""

    def __init__(self, name: str, folder: Path) -> None:
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        self._output = folder / "output"
        with self._output.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, str(EXAMPLES / name / "run.py"), "--fast"],
                env=os.environ | {"TMPDIR": str(self.temporary)},
                cwd=folder,
                stdout=out,
                stderr=out,
            )

    @property
    def output(self) -> str:
        return self._output.read_text()

    def left_behind(self) -> list[str]:
        """Return the example's own folder, and processes that were told of it; a lock of the Postgres package is the machine's."""
        files = [str(path) for path in self.temporary.glob("trainmaster-*")]
        processes = [
            " ".join(process.info["cmdline"])
            for process in psutil.process_iter(["cmdline", "environ"])
            if str(self.temporary) in f"{process.info['cmdline']} {process.info['environ']}"
        ]
        return files + processes


@pytest.mark.parametrize("name", [pytest.param("fairness", marks=pytest.mark.deep), "burst"])
def test_every_claim_of_an_example_holds(name: str, tmp_path: Path) -> None:
    story = Story(name, tmp_path)
    assert story.process.wait(240) == 0, story.output
    found = re.fullmatch(r"(\d+) of (\d+) claims hold", story.output.splitlines()[-1])
    assert found is not None, story.output
    assert found[1] == found[2] != "0", story.output
    assert story.left_behind() == []


@pytest.mark.parametrize(
    ("name", "reached"),
    [
        ("fairness", "starting Postgres"),
        pytest.param("fairness", "1. greedy asks", marks=pytest.mark.deep),
        pytest.param("burst", "2. Four jobs", marks=pytest.mark.deep),
    ],
)
def test_ctrl_c_stops_everything(name: str, reached: str, tmp_path: Path) -> None:
    story = Story(name, tmp_path)
    eventually_sync(lambda: reached in story.output or story.process.poll() is not None, 120)
    story.process.send_signal(signal.SIGINT)
    assert story.process.wait(60) == 130, story.output
    assert "Traceback" not in story.output
    assert story.left_behind() == []
