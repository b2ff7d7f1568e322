"""Programs as users run them on a local installation: JupyterLab in a real browser, and a gang of ``torchrun``.

``tests.programs`` fetches them.
"""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests import browser
from tests.browser import Browser, Tab
from tests.e2e.test_up import Starter
from tests.programs import PROGRAMS, needed
from tests.waiting import eventually_sync
from trainmaster import Client
from trainmaster_dispatcher.cli.embedded import free_port

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
CELL = "import os; print('cell of', os.environ['TRAINMASTER_JOB_ID'], 6 * 7)"
CELL_IN_FOCUS = (
    "(document.querySelector('.jp-Notebook .cm-content').focus(), document.activeElement.matches('.jp-Notebook *'))"
)
OUTPUT = "document.querySelector('.jp-OutputArea-output')?.innerText"
FILES = "document.querySelector('.jp-DirListing-content')?.innerText"

pytestmark = pytest.mark.wheel


@dataclass(frozen=True)
class Local:
    """A running ``trainmaster up`` that finds the programs by its PATH."""

    starter: Starter
    url: str
    key: str

    @property
    def cli(self) -> dict[str, str]:
        return {"TRAINMASTER_URL": self.url, "TRAINMASTER_API_KEY": self.key}

    def run(self, *words: str | Path) -> str:
        """Return what a command of the command line prints."""
        done = self.starter.run(*words, **self.cli)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def client(self) -> Client:
        return Client(self.url, self.key)


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Local]:
    folder = tmp_path_factory.mktemp("users")
    (folder / "home").mkdir()
    starter, port, data = Starter(folder), free_port(), folder / "data"
    path = [*(str(one.bin) for one in PROGRAMS.values()), os.environ["PATH"]]
    as_root = ["--trust-submitters"] if os.geteuid() == 0 else []  # members read files of the temporary folder
    up = starter.up(data, port, *as_root, PATH=os.pathsep.join(path), HOME=str(folder / "home"))
    made = Local(starter, f"http://127.0.0.1:{port}", (data / "keys/admin").read_text())
    yield made
    made.run("cancel", "--all", "--yes", "--grace", "0s")
    for process in (up, *starter.started):
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            process.wait(60)
    for left in starter.living():
        left.kill()


def members(job: str, word: str) -> list[psutil.Process]:
    """Return the processes of a job with ``word`` in their command."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        try:
            if word in " ".join(process.info["cmdline"] or ()) and process.environ().get("TRAINMASTER_JOB_ID") == job:
                found.append(process)
        except psutil.Error:
            continue
    return found


# -- a notebook


@dataclass(frozen=True)
class Desk:
    """A session with JupyterLab."""

    local: Local
    job: str

    @property
    def kernels(self) -> list[psutil.Process]:
        return members(self.job, "ipykernel_launcher")


@pytest.fixture
def chromium(tmp_path: Path) -> Iterator[Browser]:
    needed("chromium")
    with browser.started(PROGRAMS["chromium"].bin / "chromium", tmp_path / "profile") as made:
        yield made


@pytest.fixture
def desk(chromium: Browser, local: Local) -> Iterator[Desk]:
    needed("jupyter")
    command = local.starter.start("jupyter", "--port", str(free_port()), "--queue", "default", **local.cli)
    eventually_sync(lambda: "until Ctrl-C" in local.starter.said(command) or command.poll() is not None, 120)
    assert command.poll() is None, local.starter.said(command)
    yield Desk(local, local.run("sessions", "-o", "id"))
    stop(command)


def stop(command: "subprocess.Popen[bytes]") -> None:
    if command.poll() is None:
        command.send_signal(signal.SIGINT)
        command.wait(60)


def run_cell(tab: Tab) -> str:
    """Make a new notebook, run a cell in it, and return the output that the page shows."""
    tab.click('.jp-LauncherCard[data-category="Notebook"]')
    tab.until("document.body.innerText.includes('| Idle')")
    tab.until(CELL_IN_FOCUS)
    tab.type(CELL)
    tab.press_shift_enter()
    return str(tab.until(OUTPUT)).strip()


def test_a_cell_is_run_in_a_browser_and_what_others_and_later_ones_see_is_clear(desk: Desk, chromium: Browser) -> None:
    link = desk.local.run("open", desk.job)
    host = f"http://web--{desk.job}.sessions.localhost:"
    assert link.startswith(host)
    tab = chromium.tab(link)
    assert tab.url.startswith(host)
    assert tab.url.endswith("/lab"), "the link leads to the page itself, and Jupyter asks for no token"
    assert run_cell(tab) == f"cell of {desk.job} 42"
    sockets = [one["url"] for one in tab.events("Network.webSocketCreated")]
    assert any("/api/kernels/" in url for url in sockets), sockets
    answers = [one["response"] for one in tab.events("Network.responseReceived")]
    assert [(one["status"], one["url"]) for one in answers if one["status"] >= 400] == []
    assert tab.events("Network.webSocketFrameError") == []
    assert len(desk.kernels) == 1

    second = chromium.tab(tab.url)
    assert "Untitled.ipynb" in second.until(FILES)

    other = chromium.tab(tab.url, apart=True)
    assert "This browser has no access to the page" in other.text
    assert f"trainmaster open {desk.job} web" in other.text
    other.go(link)
    assert "This link was used already" in other.text

    desk.local.run("cancel", desk.job, "--yes")
    eventually_sync(lambda: desk.kernels == [], 60)
    until = time.monotonic() + 30
    while "is cancelled" not in tab.text and time.monotonic() < until:
        tab.reload()
    assert f"{desk.job} is cancelled, and its run 1 has ended" in tab.text
    assert "trainmaster open" not in tab.text, "no link helps any more"


# -- a gang


def kill(job: str, rank: int) -> None:
    """Kill the process that ``torchrun`` has started in the member of a rank."""
    (process,) = [one for one in members(job, "ddp/train.py") if _is_started_by_torchrun(one.environ(), rank)]
    process.kill()


def _is_started_by_torchrun(variables: dict[str, str], rank: int) -> bool:
    return "TORCHELASTIC_RUN_ID" in variables and variables["RANK"] == str(rank)


def test_a_gang_of_torchrun_goes_on_from_its_checkpoint_after_a_member_was_killed(local: Local, tmp_path: Path) -> None:
    needed("torch")
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    local.run("apply", "--yes", "-f", EXAMPLES / "tenants.yaml")
    settings = ("--set", f"EXAMPLES={EXAMPLES}", "--set", f"CHECKPOINTS={folder}")
    job = local.run("submit", EXAMPLES / "ddp/job.yaml", *settings, "-o", "id")
    with local.client() as client:
        eventually_sync(lambda: (folder / f"{job}.pt").exists() or client.job(job).state.is_terminal, 120)
        kill(job, rank=1)
        (ended,) = client.wait([job], timeout=120)
        output = "".join(getattr(piece, "data", "") for piece in client.logs(job))
    assert (ended.state.value, ended.attempt) == ("succeeded", 1), output
    results = ended.results
    assert results is not None, output
    assert (results["processes"], results["steps"]) == (2, 2000)
    assert 100 <= results["resumedAt"] < 2000, output
    assert f"go on after step {results['resumedAt']} of 2000" in output
    assert results["loss"] < results["firstLoss"] / 4
    assert "the weights of all ranks are equal" in output
