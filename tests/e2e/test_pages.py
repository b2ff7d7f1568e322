"""The commands of README, tutorial and how-tos, run as they are written on one running system, page after page."""

import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.docs.pages import Block, blocks_of, user_pages
from tests.docs.session import complaints, run_page
from tests.e2e.test_up import MARK, Starter
from trainmaster import Client, ProblemError
from trainmaster.protocol.resource_kinds import KINDS, Kind
from trainmaster_dispatcher.cli.embedded import free_port

_SECONDS = 180.0
_LAST = (
    "share-a-fleet.md",
    "why-does-it-wait.md",
    "group-jobs.md",
    "run-arrays-of-jobs.md",
    "run-a-workflow.md",
    "work-in-a-session.md",
    "run-many-short-tasks.md",
    "run-python-functions.md",
    "tune-hyper-parameters.md",
    "run-jobs-in-order.md",
    "return-results.md",
    "submit-a-sweep.md",
    "quick-start.md",
)
"""Pages with jobs in queues that other pages create, in this order: a queue that has had jobs is not removed."""
PAGES = {
    path.name: blocks_of(path)
    for path in sorted(user_pages(), key=lambda path: _LAST.index(path.name) if path.name in _LAST else -1)
    if any(block.is_run for block in blocks_of(path))
}


@dataclass
class System:
    """A running ``trainmaster up``, and what it had when it was new."""

    folder: Path
    url: str
    key: str
    mark: str
    """Of the processes that belong to it, in their environment."""
    declared: list[dict[str, Any]] = field(default_factory=list)
    keys: frozenset[int] = frozenset()

    def client(self) -> Client:
        return Client(self.url, self.key)

    def home(self, name: str) -> Path:
        """Create the home folder of a page's reader, whose command line knows the system."""
        config = self.folder / name / "home/.config/trainmaster/config.yaml"
        config.parent.mkdir(parents=True)
        config.write_text(
            yaml.safe_dump({"current": "local", "contexts": {"local": {"url": self.url, "key": self.key}}})
        )
        config.chmod(0o600)
        home = config.parents[2]
        (home / ".trainmaster").symlink_to(self.folder / "data")
        return home

    def clean(self) -> None:
        """End what a page has left running and remove what it has declared."""
        with self.client() as client:
            live = [job.id for job in client.jobs() if not job.state.is_terminal]
            for job in live:
                client.cancel(job, grace="0s")
            client.wait(live, timeout=_SECONDS)
            kept = {self._name(one) for one in self.declared}
            for one in reversed(client.export()):
                kind, name = self._name(one)
                if (kind, name) not in kept:
                    self._remove(client, kind, name)
            client.apply(self.declared, force=True, replace=True)
            every = client.keys()
            for key in every:
                if key.id not in self.keys and key.revoked_at is None:
                    client.revoke_key(key.id)

    @staticmethod
    def _remove(client: Client, kind: Kind, name: str) -> None:
        if kind == "Cluster":
            client.remove_cluster(name, force=True)
            return
        try:
            client.delete(kind, name)
        except ProblemError:  # it has had jobs, and stays: a queue as if it were new
            if kind == "Queue":
                client.apply([{"kind": "Queue", "path": name}], force=True, replace=True)

    @staticmethod
    def _name(document: dict[str, Any]) -> tuple[Kind, str]:
        kind: Kind = document["kind"]
        return kind, str(document[KINDS[kind].key])


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    folder = tmp_path_factory.mktemp("pages")
    starter, port = Starter(folder), free_port()
    as_root = ["--trust-submitters"] if os.geteuid() == 0 else []  # members read files of the temporary folder
    process = starter.up(folder / "data", port, *as_root, TRAINMASTER_USAGE_LABELS="team,project")
    made = System(folder, f"http://127.0.0.1:{port}", (folder / "data/keys/admin").read_text(), starter.mark)
    with made.client() as client:
        made.declared = client.export()
        every = client.keys()
        made.keys = frozenset(key.id for key in every)
    yield made
    process.send_signal(signal.SIGTERM)
    process.wait(60)
    for left in starter.living():
        left.kill()


@pytest.mark.parametrize("name", PAGES)
def test_every_command_of_a_page_does_and_shows_what_the_page_says(system: System, name: str) -> None:
    blocks: list[Block] = PAGES[name]
    env = {
        MARK: system.mark,
        "HOME": str(system.home(name)),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "LANG": "C.UTF-8",
        "COLUMNS": "160",
        "PYTHONUNBUFFERED": "1",  # what is printed to stdout and stderr comes in the order that a terminal shows
        "UP_URL": system.url,
    }
    try:
        ran = run_page(blocks, system.folder / name, env, _SECONDS)
    finally:
        system.clean()
    found = list(complaints(ran))
    assert not found, "\n\n".join(found)
