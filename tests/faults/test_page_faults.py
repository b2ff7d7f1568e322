"""Open pages know of all jobs that end, in the end, while the api and Postgres are killed and started again."""

import contextlib
import random
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import orjson
import pytest

from tests.conftest import NO_TLS
from tests.faults.stage import Stage, started
from tests.waiting import eventually_sync

pytestmark = pytest.mark.faults

_FAULTS = 4
_JOBS_AT_ONCE = 5
_BACK_SECONDS = 60
_SPEC = {
    "kind": "Job",
    "name": "tiny",
    "queue": "default",
    "roles": [{"name": "main", "template": {"command": ["true"], "resources": {"cpu": "10m", "memory": "16Mi"}}}],
}


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with started(tmp_path_factory.mktemp("pages") / "stage") as built:
        yield built


class Page(threading.Thread):
    """A page as a browser has it: its stream goes on after the last id; after ``reset`` it reads its list again."""

    def __init__(self, stage: Stage) -> None:
        super().__init__(daemon=True)
        self._url = f"http://127.0.0.1:{stage.api_ports[0]}"
        self._headers = {"Authorization": "Bearer tmk_admin"}
        self._last_id = ""
        self.over = threading.Event()
        self.states: dict[str, str] = {}
        self.connections = self.resets = 0

    def run(self) -> None:
        while not self.over.is_set():
            with contextlib.suppress(httpx.HTTPError):
                self._read()
            time.sleep(0.2)

    def _read(self) -> None:
        headers = self._headers | ({"Last-Event-ID": self._last_id} if self._last_id else {})
        timeout = httpx.Timeout(5, read=40)
        with httpx.stream(
            "GET", f"{self._url}/v1/changes?every=1", headers=headers, timeout=timeout, verify=NO_TLS
        ) as answer:
            answer.raise_for_status()
            self.connections += 1
            kind = ""
            for line in answer.iter_lines():
                name, _, text = line.partition(": ")
                if name == "event":
                    kind = text
                elif name == "data" and kind == "changes":
                    self._take(orjson.loads(text))
                elif name == "data" and kind == "reset":
                    self.resets += 1
                    self._list()
                if name == "id":
                    self._last_id = text
                if self.over.is_set():
                    return

    def _take(self, data: dict[str, Any]) -> None:
        self.states |= {one["id"]: one["state"] for one in data["jobs"]}
        if data["more"]:
            self._list()

    def _list(self) -> None:
        answer = httpx.get(f"{self._url}/v1/jobs?limit=1000", headers=self._headers, timeout=10, verify=NO_TLS)
        answer.raise_for_status()
        self.states |= {one["id"]: one["shownState"] for one in answer.json()["jobs"]}


def test_pages_know_what_has_become_of_each_job_whoever_is_killed(stage: Stage) -> None:
    chance = random.Random(3)
    page = Page(stage)
    page.start()
    eventually_sync(lambda: page.connections > 0, _BACK_SECONDS)
    submitted: list[str] = []

    def submit() -> None:
        answer = stage.request("POST", "/v1/jobs", json={"jobs": [_SPEC] * _JOBS_AT_ONCE})
        assert answer.status_code == 201, answer.text
        submitted.extend(one["id"] for one in answer.json()["jobs"])

    for number in range(_FAULTS):
        submit()
        time.sleep(chance.random() * 2)
        if number % 2 == 0:
            stage.kill("api-0")
            submit()
            time.sleep(chance.random())
            stage.revive("api-0")
        else:
            stage.restart_postgres("immediate")
        submit()
    for job in submitted:
        stage.until(job, "succeeded")

    def knows_all() -> bool:
        return {page.states.get(job) for job in submitted} == {"succeeded"}

    eventually_sync(knows_all, _BACK_SECONDS)
    assert page.connections > 1, "the api was killed"
    page.over.set()
