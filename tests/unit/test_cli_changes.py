"""The command line: steering jobs one by one and in bulk, and applying what files declare."""

import json
from pathlib import Path

import httpx
import pytest

from tests.unit.fake_api import OTHER, SPEC, Api, connected, jobs_file, run
from tests.unit.scripted import JOB, job, problem
from trainmaster.protocol.errors import Code
from trainmaster.protocol.states import Exit


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Api:
    return connected(monkeypatch, tmp_path)


# Steering


def test_one_that_cannot_be_cancelled_does_not_stop_the_others(api: Api) -> None:
    api.on(f"POST /v1/jobs/{JOB}/retry", problem(Code.WRONG_STATE, "the job is running"))
    api.on(f"POST /v1/jobs/{OTHER}/retry", {"id": OTHER, "changed": True, "state": "queued"})
    done = run("retry", JOB, OTHER)
    assert (done.exit_code, done.stdout) == (Exit.CONFLICT, f"{OTHER}  queued\n")


@pytest.mark.parametrize(
    ("words", "says", "code", "acted"),
    [
        (("--yes",), None, 0, True),
        ((), "y\n", 0, True),
        ((), "n\n", 0, False),
        ((), "", Exit.USAGE, False),
        (("--dry-run",), None, 0, False),
    ],
)
def test_bulk_actions_count_first_and_ask(api: Api, words: tuple[str, ...], says: str, code: int, acted: bool) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        dry = json.loads(request.content)["dryRun"]
        return httpx.Response(200, json={"matched": 3, "changed": 0 if dry else 3, "dryRun": dry})

    api.on("POST /v1/jobs/cancel", answer)
    done = run("cancel", "--queue", "a", *words, says=says)
    assert done.exit_code == code
    assert [json.loads(request.content)["dryRun"] for request in api.requests] == [True, False][: 1 + acted]
    assert api.sent("POST /v1/jobs/cancel")["filter"]["queue"] == "a"
    assert ("cancel: 3 of 3 jobs" in done.stdout) is acted


def test_ids_and_filters_are_not_mixed_and_one_of_them_is_needed(api: Api) -> None:
    for words in (("cancel",), ("cancel", JOB, "--all"), ("change", JOB), ("cancel", JOB, "--dry-run")):
        assert run(*words).exit_code == Exit.USAGE
    assert api.calls() == []


def test_a_change_of_priority(api: Api) -> None:
    api.on(f"PATCH /v1/jobs/{JOB}", job("queued") | {"priority": -5})
    assert run("change", JOB, "--priority", "-5").stdout == f"{JOB}  priority -5 in class normal\n"
    assert api.sent(f"PATCH /v1/jobs/{JOB}") == {"priority": -5}


# Applying


def tenants(folder: Path) -> str:
    return jobs_file(
        folder,
        {"kind": "Queue", "path": "a/b", "weight": 3, "limits": {"cpu": 8, "memory": "4Gi"}},
        {"kind": "Queue", "path": "a"},
        {"kind": "PriorityClass", "name": "batch", "value": 100},
        SPEC,
    )


def has_tenants(api: Api) -> None:
    present = {
        "kind": "Queue",
        "path": "a/b",
        "weight": 2.0,
        "resources": {"cpu": {"limit": "9"}},
        "isLeaf": True,
        "jobs": {},
        "warnings": ["9 cpu are guaranteed to it, the clusters have 8"],
    }
    batch = {"kind": "PriorityClass", "name": "batch", "value": 100, "preemptible": True, "default": False}
    api.on("GET /v1/queues", {"queues": [present]})
    api.on("GET /v1/priority-classes", {"priorityClasses": [batch]})


def test_apply_shows_the_change_and_makes_it_parents_first(api: Api, tmp_path: Path) -> None:
    has_tenants(api)
    api.on("PUT /v1/queues/a", httpx.Response(201, json={}, headers={"Location": "/v1/queues/a"}))
    api.on("PUT /v1/queues/a/b", httpx.Response(200, json={}))
    api.on("POST /v1/jobs", {"jobs": [{"id": JOB}]})
    done = run("apply", "-f", tenants(tmp_path), says="y\n")
    assert done.exit_code == 0
    assert done.stdout.startswith(
        "= PriorityClass batch  unchanged\n+ Queue a  create\n~ Queue a/b  change\n    weight: 2 -> 3\n"
        "    resources.cpu.limit: 9 -> 8\n    resources.memory.limit: none -> 4Gi\n+ Job bert  submit\n"
    )
    assert "make 2 changes and submit 1 job? [y/N]" in done.stderr
    assert api.calls()[2:] == ["PUT /v1/queues/a", "PUT /v1/queues/a/b", "GET /v1/queues", "POST /v1/jobs"]
    assert "warning: queue a/b: 9 cpu are guaranteed to it, the clusters have 8" in done.stderr
    assert api.sent("PUT /v1/queues/a/b") == {
        "path": "a/b",
        "weight": 3.0,
        "resources": {"cpu": {"limit": "8"}, "memory": {"limit": "4Gi"}},
    }


@pytest.mark.parametrize(("words", "says"), [(("--dry-run",), None), ((), "n\n")])
def test_apply_changes_nothing_unless_told_to(api: Api, tmp_path: Path, words: tuple[str, ...], says: str) -> None:
    has_tenants(api)
    assert run("apply", "-f", tenants(tmp_path), *words, says=says).exit_code == 0
    assert api.calls() == ["GET /v1/priority-classes", "GET /v1/queues"]


def test_apply_tells_all_mistakes_of_all_documents_before_it_asks_anything(api: Api, tmp_path: Path) -> None:
    file = jobs_file(tmp_path, {"kind": "Queue", "path": "A", "wight": 1}, {"kind": "Pod"}, SPEC | {"name": "B"})
    done = run("apply", "-f", file)
    assert done.exit_code == Exit.BAD_REQUEST
    assert f"{file} document 1: path: " in done.stderr
    assert f"{file} document 1: wight: this field is not known; did you mean weight?" in done.stderr
    assert f"{file} document 2: kind: must be one of PriorityClass," in done.stderr
    assert "document 3: name: " in done.stderr
    assert api.calls() == []
