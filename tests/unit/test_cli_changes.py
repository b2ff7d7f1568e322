"""The command line: steering jobs one by one and in bulk, and applying what files declare."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.unit.fake_api import OTHER, SPEC, Api, connected, jobs_file, run
from tests.unit.scripted import JOB, job, problem
from trainmaster.cli.declared_objects import kind_of
from trainmaster.protocol.errors import Code, Mistake
from trainmaster.protocol.resource_kinds import KINDS
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


def field(name: str, before: Any, after: Any) -> dict[str, Any]:
    return {"field": name, "before": before, "after": after}


def has_tenants(api: Api) -> None:
    objects = [
        {"kind": "PriorityClass", "name": "batch", "outcome": "unchanged"},
        {"kind": "Queue", "name": "a", "outcome": "created"},
        {
            "kind": "Queue",
            "name": "a/b",
            "outcome": "changed",
            "fields": [
                field("weight", 2.0, 3.0),
                field("resources.cpu.limit", "9", "8"),
                field("resources.memory.limit", None, "4Gi"),
            ],
        },
    ]
    warning = {"kind": "Queue", "name": "a/b", "message": "9 cpu are guaranteed to it, the clusters have 8"}

    def answer(request: httpx.Request) -> httpx.Response:
        dry = json.loads(request.content).get("dryRun", False)
        body = {"dryRun": dry, "applier": "admin", "objects": objects, "warnings": [warning]}
        return httpx.Response(200, json=body)

    api.on("POST /v1/apply", answer)


def test_apply_shows_the_change_and_makes_it_in_one_call(api: Api, tmp_path: Path) -> None:
    has_tenants(api)
    api.on("POST /v1/jobs", {"jobs": [{"id": JOB}]})
    done = run("apply", "-f", tenants(tmp_path), says="y\n")
    assert done.exit_code == 0
    assert done.stdout.startswith(
        "= PriorityClass batch  unchanged\n+ Queue a  create\n~ Queue a/b  change\n    weight: 2 -> 3\n"
        "    resources.cpu.limit: 9 -> 8\n    resources.memory.limit: (unset) -> 4Gi\n+ Job bert  submit\n"
    )
    assert "make 2 changes and submit 1 job? [y/N]" in done.stderr
    assert "Queue a  created\nQueue a/b  changed\n" in done.stdout
    assert api.calls() == ["POST /v1/apply", "POST /v1/apply", "POST /v1/jobs"]
    assert "warning: queue a/b: 9 cpu are guaranteed to it, the clusters have 8" in done.stderr
    assert api.sent("POST /v1/apply") == {
        "documents": [
            {"kind": "Queue", "path": "a/b", "weight": 3, "limits": {"cpu": 8, "memory": "4Gi"}},
            {"kind": "Queue", "path": "a"},
            {"kind": "PriorityClass", "name": "batch", "value": 100},
        ]
    }
    tried, made = (json.loads(request.content).get("dryRun") for request in api.requests[:2])
    assert (tried, made) == (True, None)
    keys = [request.headers.get("idempotency-key") for request in api.requests[:2]]
    assert keys[0] is None
    assert keys[1]


@pytest.mark.parametrize(("words", "says"), [(("--dry-run",), None), ((), "n\n")])
def test_apply_changes_nothing_unless_told_to(api: Api, tmp_path: Path, words: tuple[str, ...], says: str) -> None:
    has_tenants(api)
    assert run("apply", "-f", tenants(tmp_path), *words, says=says).exit_code == 0
    assert [json.loads(request.content)["dryRun"] for request in api.requests] == [True]


def test_apply_names_job_among_the_kinds_that_it_takes(api: Api, tmp_path: Path) -> None:
    message = "must be one of PriorityClass, Queue, not 'Queu'"
    mistakes = (Mistake(path="documents[0]: kind", message=message), Mistake(path="documents[1]: path", message="x"))
    detail = f"2 mistakes; the first: documents[0]: kind: {message}"
    api.on("POST /v1/apply", problem(Code.INVALID_SPEC, detail, mistakes=mistakes))
    done = run("apply", "-f", jobs_file(tmp_path, {"kind": "Queu", "path": "a"}, {"kind": "Queue"}), "--dry-run")
    said = " ".join(done.stderr.split())
    assert done.exit_code == Exit.BAD_REQUEST
    assert f"{list(KINDS)[-1]}, Job, Session, not 'Queu'; did you mean Queue?" in said
    assert "document 2: path: x" in said
    assert message not in said


def test_apply_tells_all_mistakes_of_all_documents_before_it_asks_anything(api: Api, tmp_path: Path) -> None:
    mistakes = (
        Mistake(path="documents[0]: wight", message="this field is not known"),
        Mistake(path="documents[1]: kind", message="'Pod' is not one of Queue"),
        Mistake(path="documents[1]: path", message="Queue 'x' is declared already, by documents[0]"),
    )
    refusal = problem(Code.INVALID_SPEC, "documents[0]: wight: this field is not known", mistakes=mistakes)
    api.on("POST /v1/apply", refusal)
    file = jobs_file(tmp_path, {"kind": "Queue", "path": "A", "wight": 1}, {"kind": "Pod"}, SPEC | {"name": "B"})
    done = run("apply", "-f", file)
    assert done.exit_code == Exit.BAD_REQUEST
    assert f"{file} document 1: wight: this field is not known" in done.stderr
    assert f"{file} document 2: kind: must be one of" in done.stderr
    assert f"is declared already, by {file} document 1" in done.stderr
    assert f"{file} document 3: name: " in done.stderr
    assert len(api.requests) == 1


def test_mistakes_of_jobs_alone_are_told_before_anything_is_applied(api: Api, tmp_path: Path) -> None:
    has_tenants(api)
    done = run("apply", "-f", jobs_file(tmp_path, {"kind": "Queue", "path": "a"}, SPEC | {"name": "B"}), "--yes")
    assert (done.exit_code, len(api.requests)) == (Exit.BAD_REQUEST, 1)
    assert "document 2: name: " in done.stderr


def test_a_folder_is_read_in_the_order_of_names_without_what_is_hidden(api: Api, tmp_path: Path) -> None:
    has_tenants(api)
    (tmp_path / "tree/b").mkdir(parents=True)
    (tmp_path / "tree/.github").mkdir()
    files = {"a.yaml": "1", "b/x.yml": "2", "c.json": "3", "b/notes.md": "no", ".github/ci.yaml": "no"}
    for name, path in files.items():
        (tmp_path / "tree" / name).write_text(json.dumps({"kind": "Queue", "path": path}))
    done = run("apply", "-f", str(tmp_path / "tree"), "--yes", "--prune", "--owner", "git", "--force", "--replace")
    assert done.exit_code == 0, done.stderr
    sent = api.sent("POST /v1/apply")
    assert [one["path"] for one in sent.pop("documents")] == ["1", "2", "3"]
    assert sent == {"applier": "git", "prune": "git", "force": True, "replace": True}
    (tmp_path / "empty").mkdir()
    for words, says in (
        (("-f", str(tmp_path / "empty")), "has no file that ends in .yaml"),
        (("-f", str(tmp_path / "tree"), "--prune"), "--prune needs --owner"),
        (("-f", jobs_file(tmp_path, SPEC), "--prune", "--owner", "git"), "at least one object"),
    ):
        refused = run("apply", *words)
        assert (refused.exit_code, says in refused.stderr) == (Exit.USAGE, True), refused.stderr


def test_a_conflict_names_field_and_owner(api: Api, tmp_path: Path) -> None:
    mistakes = (Mistake(path="documents[0]: weight", message="is owned by 'platform'"),)
    detail = "1 change concerns fields of other appliers"
    api.on("POST /v1/apply", problem(Code.CONFLICT, detail, mistakes=mistakes))
    file = jobs_file(tmp_path, {"kind": "Queue", "path": "a", "weight": 2})
    done = run("apply", "-f", file)
    assert done.exit_code == Exit.CONFLICT
    assert done.stderr == f"error: {detail}\n  {file}: weight: is owned by 'platform'\n"


@pytest.mark.parametrize(
    ("outcome", "code"), [("unchanged", 0), ("changed", Exit.DIFFERENT), ("removed", Exit.DIFFERENT)]
)
def test_diff_tells_by_its_exit_code_whether_anything_differs(
    api: Api, tmp_path: Path, outcome: str, code: int
) -> None:
    one = {"kind": "Queue", "name": "a", "outcome": outcome, "fields": [field("weight", 2.0, 3.0)]}
    api.on("POST /v1/apply", {"dryRun": True, "applier": "x", "objects": [one]})
    done = run("diff", "-f", jobs_file(tmp_path, {"kind": "Queue", "path": "a"}, SPEC))
    assert done.exit_code == code
    shown = {"unchanged": "", "changed": "~ Queue a  change\n    weight: 2 -> 3\n", "removed": "- Queue a  remove\n"}
    assert done.stdout == shown[outcome]
    assert api.sent("POST /v1/apply")["dryRun"] is True
    assert "not compared" in done.stderr


@pytest.mark.parametrize(
    "word", ["Queue", "queue", "queues", "BurstPolicy", "burst-policies", "price book", "PRICE-BOOK"]
)
def test_a_kind_may_be_named_in_several_ways(word: str) -> None:
    assert kind_of(word).kind in ("Queue", "BurstPolicy", "PriceBook")


def test_a_kind_that_does_not_exist_is_refused_with_those_that_do(api: Api) -> None:
    for words in (("get", "pods"), ("delete", "pod", "x"), ("history", "", "x"), ("export", "job")):
        done = run(*words)
        assert (done.exit_code, "there are: PriorityClass, Queue" in done.stderr) == (Exit.USAGE, True)
    assert api.calls() == []


@pytest.mark.parametrize(
    ("word", "meant"),
    [("burst", "BurstPolicy"), ("price", "PriceBook"), ("Queu", "Queue"), ("Cluser", "Cluster"), ("Qeuue", "Queue")],
)
def test_a_kind_named_by_its_beginning_or_mistyped_is_suggested(api: Api, word: str, meant: str) -> None:
    done = run("history", word, "x")
    assert (done.exit_code, done.stderr.endswith(f"; did you mean {meant}?\n")) == (Exit.USAGE, True), done.stderr


@pytest.mark.parametrize("text", ["", "{", "[1]", "3", "{}"])
def test_a_patch_has_to_be_an_object_in_json_with_a_field(api: Api, text: str) -> None:
    done = run("patch", "queue", "a", "-p", text)
    assert (done.exit_code, "--patch" in done.stderr, api.calls()) == (Exit.USAGE, True, [])


def test_a_removal_is_confirmed(api: Api) -> None:
    api.on("DELETE /v1/queues/a/b", httpx.Response(204))
    assert run("delete", "queue", "a/b", says="n\n").exit_code == 0
    assert api.calls() == []
    assert run("delete", "queue", "a/b", "--yes").stdout == "Queue a/b  removed\n"
