"""Lists of jobs by who, when and in which order; words for scripts; lists that are shown again; several jobs at once."""

import csv
import io
import itertools
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.unit.fake_api import OTHER, SPEC, Api, connected, run
from tests.unit.scripted import JOB, job, problem
from trainmaster.cli import refresh
from trainmaster.protocol.errors import Code
from trainmaster.protocol.states import Exit

ME = {"id": 7, "name": "ann", "role": "user", "queues": ["a"], "version": "9.9"}


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Api:
    fake = connected(monkeypatch, tmp_path)
    fake.on("GET /v1/whoami", ME)
    return fake


def listed(api: Api, *found: dict[str, Any]) -> None:
    api.on("GET /v1/jobs", {"jobs": [job("queued") | one for one in found], "next": None})


def test_jobs_by_who_and_when(api: Api) -> None:
    listed(api)
    assert run("jobs", "--mine", "--since", "2026-11-01", "--until", "2026-11-02T08:00:00Z").exit_code == 0
    sent = api.requests[-1].url.params
    assert (sent["submittedBy"], sent["since"], sent["until"]) == (
        "ann",
        "2026-11-01T00:00:00+00:00",
        "2026-11-02T08:00:00+00:00",
    )
    run("jobs", "--by", "bob")
    assert api.requests[-1].url.params["submittedBy"] == "bob"
    assert run("jobs", "--mine", "--by", "bob").exit_code == Exit.USAGE
    assert run("jobs", "--since", "soon").exit_code == Exit.USAGE


@pytest.mark.parametrize(
    ("sort", "order"),
    [
        ("submitted", ["c", "b", "a"]),
        ("started", ["a", "b", "c"]),
        ("ran", ["a", "b", "c"]),
        ("ended", ["b", "a", "c"]),
        ("priority", ["c", "a", "b"]),
        ("name", ["a", "b", "c"]),
        ("queue", ["b", "c", "a"]),
        ("state", ["c", "b", "a"]),
    ],
)
def test_jobs_are_sorted(api: Api, sort: str, order: list[str]) -> None:
    day = "2026-11-01T0{}:00:00Z"
    times = {"submittedAt": day.format(1), "startedAt": day.format(5), "endedAt": day.format(6), "ranSeconds": 3600.0}
    one = {"id": "a", "name": "a", "queue": "z", "priority": 5, "shownState": "succeeded", "state": "succeeded"} | times
    two = one | {
        "id": "b",
        "name": "b",
        "queue": "x",
        "priority": 1,
        "shownState": "running",
        "submittedAt": day.format(2),
    }
    # It was held for most of the time between its first run and its end.
    two |= {"startedAt": day.format(4), "endedAt": day.format(7), "ranSeconds": 60.0}
    three = {"id": "c", "name": "c", "queue": "y", "priority": 9, "submittedAt": day.format(3)}
    listed(api, three, two, one)
    assert run("jobs", "--sort", sort, "-o", "id").stdout.split() == order


def test_one_that_is_shown_is_told_from_more(api: Api) -> None:
    listed(api, {}, {})
    assert run("jobs", "--limit", "1").stderr.startswith("there are more jobs; this is the newest; -A")
    listed(api, {}, {}, {})
    assert run("jobs", "--limit", "2").stderr.startswith("there are more jobs; these are the newest 2; -A")


LISTS: dict[str, tuple[str, dict[str, Any], str, str]] = {
    "jobs": ("GET /v1/jobs", {"jobs": [job("held")], "next": None}, JOB, "bert"),
    f"job {JOB}": (f"GET /v1/jobs/{JOB}", job("held"), JOB, "bert"),
    "queues": ("GET /v1/queues", {"queues": [{"path": "a/b"}]}, "a/b", "a/b"),
    "clusters": ("GET /v1/clusters", {"clusters": [{"name": "west", "state": "ready"}]}, "west", "west"),
    "datasets": ("GET /v1/datasets", {"datasets": [{"name": "text", "size": "1Gi"}]}, "text", "text"),
    "burst": ("GET /v1/burst-policies", {"burstPolicies": [{"name": "o"}]}, "o", "o"),
    "keys": (
        "GET /v1/keys",
        {"keys": [{"id": 7, "name": "ann", "role": "admin", "createdAt": "2026-01-01T00:00:00Z"}]},
        "7",
        "ann",
    ),
    "clusters quarantined west": (
        "GET /v1/clusters/west/quarantined-runs",
        {"runs": [{"run": "a-r1", "state": "running", "since": "2026-01-01T00:00:00Z"}]},
        "a-r1",
        "a-r1",
    ),
}


@pytest.mark.parametrize("command", LISTS)
def test_each_list_is_available_in_each_form(api: Api, command: str) -> None:
    call, value, key, name = LISTS[command]
    api.on(call, value)
    assert run(*command.split(), "-o", "id").stdout == f"{key}\n"
    assert run(*command.split(), "-o", "name").stdout == f"{name}\n"
    as_json, as_yaml = run(*command.split(), "-o", "json").stdout, run(*command.split(), "-o", "yaml").stdout
    assert json.loads(as_json) == yaml.safe_load(as_yaml)


def test_what_has_no_id_says_so(api: Api) -> None:
    line = {"at": "2026-11-01T00:00:00Z", "actor": "ann", "action": "put queue", "target": "a"}
    api.on("GET /v1/audit", {"audit": [line], "next": None})
    assert run("audit", "-o", "id").exit_code == Exit.USAGE


def test_the_audit_as_csv_holds_no_formula(api: Api) -> None:
    def line(target: str, **details: object) -> dict[str, object]:
        return {
            "at": "2026-11-01T08:00:00Z",
            "actor": "ann",
            "action": "put queue",
            "target": target,
            "details": details,
        }

    targets = ["=cmd|' /C calc'!A0", "+1", "-1", "@sum", "\tx", 'plain, "quoted"\nlines', "a=b"]
    pages = [
        {"audit": [line(target) for target in targets[:3]], "next": "bmV4dA"},
        {"audit": [*(line(target) for target in targets[3:]), line("last", after={"weight": 2})], "next": None},
    ]
    api.on("GET /v1/audit", lambda request: httpx.Response(200, json=pages["cursor" in request.url.params]))
    done = run("audit", "-o", "csv")
    header, *rows = csv.reader(io.StringIO(done.stdout))
    assert header == ["at", "actor", "action", "target", "address", "request_id", "details"]
    assert [row[3] for row in rows] == [*(f"'{target}" for target in targets[:5]), *targets[5:], "last"]
    assert rows[-1][0] == "2026-11-01T08:00:00Z"
    assert json.loads(rows[-1][-1]) == {"after": {"weight": 2}}
    assert len(list(csv.reader(io.StringIO(run("audit", "-o", "csv", "--limit", "2").stdout)))) == 3


@pytest.mark.parametrize("command", ["keys make ann --role admin", "clusters join west", "webhooks rotate a"])
def test_a_secret_that_is_shown_once_is_never_left_out(api: Api, command: str) -> None:
    done = run(*command.split(), "-o", "id")
    assert (done.exit_code, api.calls()) == (Exit.USAGE, [])


@pytest.mark.parametrize("command", ["jobs", f"job {JOB}", "queues", "clusters"])
def test_a_list_is_shown_again_when_it_has_changed(api: Api, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    call, value, _, _ = LISTS[command]
    looks = itertools.count()

    def pause() -> None:
        look = next(looks)
        if look == 1:
            text = json.dumps(value).replace("held", "succeeded").replace("a/b", "c").replace("west", "east")
            api.on(call, json.loads(text))
        if look == 3:
            raise KeyboardInterrupt

    api.on(call, value)
    monkeypatch.setattr(refresh, "pause", pause)
    done = run(*command.split(), "--watch", "-o", "json")
    assert done.exit_code == 130
    pages = done.stdout.replace("]\n[", "]\0[").replace("}\n{", "}\0{").split("\0")
    assert len(pages) == 2, "unchanged looks print nothing"
    assert json.loads(pages[0]) != json.loads(pages[1])


def test_wait_takes_a_filter(api: Api) -> None:
    api.on("GET /v1/jobs", {"jobs": [job("failed"), job("succeeded") | {"id": OTHER}], "next": None})
    api.has_job("failed", message="exit 3")
    api.has_job("succeeded", OTHER)
    done = run("wait", "--label", "sweep=7")
    assert (done.exit_code, done.stdout) == (Exit.JOB_FAILED, f"{OTHER}  succeeded\n{JOB}  failed: exit 3\n")
    assert api.requests[0].url.params["label"] == "sweep=7"
    assert [one["state"] for one in json.loads(run("wait", "--mine", "-o", "json").stdout)] == ["succeeded", "failed"]
    for words in ([], [JOB, "--label", "a=b"]):
        assert run("wait", *words).exit_code == Exit.USAGE


def test_logs_take_a_filter(api: Api) -> None:
    api.on("GET /v1/jobs", {"jobs": [job("failed"), job("succeeded") | {"id": OTHER}], "next": None})
    for one in (JOB, OTHER):
        api.has_job("succeeded", one)
        piece = {"role": "main", "index": 0, "data": "hi\n", "offset": 0, "next": 3}
        text = json.dumps(piece) + "\n" + json.dumps({"end": "succeeded"}) + "\n"
        api.on(f"GET /v1/jobs/{one}/logs", httpx.Response(200, text=text))
    assert run("logs", "--queue", "q").stdout == f"{OTHER} main-0 | hi\n{JOB} main-0 | hi\n"
    done = run("logs", "-f", "--queue", "q")
    assert (done.exit_code, "-f follows one job, 2 match" in done.stderr) == (Exit.USAGE, True)


@pytest.mark.parametrize(
    ("ended", "yet"),
    [
        (timedelta(seconds=3), " yet: its cluster may still be sending them"),
        (timedelta(hours=1), ""),
        (None, ""),
    ],
)
def test_output_that_is_not_there_is_named_in_bytes(api: Api, ended: timedelta | None, yet: str) -> None:
    state = "running" if ended is None else "succeeded"
    api.has_job(state, endedAt=None if ended is None else (datetime.now(UTC) - ended).isoformat())
    pieces = [
        {"role": "main", "index": 0, "data": data, "offset": at, "next": at + 2, "missed": missed}
        for data, at, missed in (("a\n", 0, 0), ("z\n", 1502, 1500))
    ]
    text = "".join(json.dumps(piece) + "\n" for piece in pieces)
    api.on(f"GET /v1/jobs/{JOB}/logs", httpx.Response(200, text=text))
    done = run("logs", JOB)
    assert done.stdout == "a\nz\n"
    assert done.stderr == f"1,500 bytes of output of main-0 are not available here{yet}\n"


def _failed(api: Api) -> None:
    members = [
        {"role": "worker", "index": 0, "state": "failed", "signal": 15},
        {"role": "worker", "index": 1, "state": "failed", "exitCode": 3},
    ]
    ran = {"id": f"{JOB}-r2", "attempt": 2, "cluster": "edge", "state": "failed", "leasedAt": "2026-01-01T00:00:00Z"}
    template = {"command": ["python", "train.py", "a b"], "image": "img:1", "resources": {"cpu": "2"}}
    spec = SPEC | {"roles": [{"name": "worker", "replicas": 2, "template": template}]}
    api.has_job("failed", spec=spec, parameters={"lr": 0.1}, runs=[ran | {"exitCode": 3, "members": members}])
    text = "".join(f"line {number}\n" for number in range(30)) + "\x1b[31mboom\n"
    piece = {"role": "worker", "index": 1, "data": text, "offset": 0, "next": len(text)}
    api.on(f"GET /v1/jobs/{JOB}/logs", httpx.Response(200, text=json.dumps(piece) + '\n{"end": "failed"}\n'))
    reason = {"job": JOB, "state": "failed", "token": "Ended", "tier": "not waiting", "sentence": "It has failed."}
    api.on(f"GET /v1/jobs/{JOB}/why", reason)


@pytest.mark.parametrize("command", ["job", "why"])
def test_the_last_lines_of_the_member_that_failed_are_shown(api: Api, command: str) -> None:
    _failed(api)
    done = run(command, JOB)
    assert done.stdout.endswith(
        "last output of worker-1\n" + "".join(f"  line {n}\n" for n in range(21, 30)) + "   [31mboom\n"
    )
    sent = api.requests[-1].url.params
    assert (sent["role"], sent["index"], sent["attempt"]) == ("worker", "1", "2")
    assert "boom" not in run(command, JOB, "-o", "json").stdout
    api.on(f"GET /v1/jobs/{JOB}/logs", problem(Code.FORBIDDEN, "no"))
    assert "the output of worker-1 cannot be shown" in run(command, JOB).stderr


def test_a_job_shows_what_it_runs(api: Api) -> None:
    _failed(api)
    text = run("job", JOB).stdout
    assert "parameters  lr=0.1\n" in text
    assert "worker  cpu 2      img:1  python train.py 'a b'\n" in text


def test_usage_is_narrowed_to_labels_users_and_clusters(api: Api) -> None:
    rows = [
        {
            "since": "2026-11-01T00:00:00Z",
            "of": {"queue": queue, "label:team": team, "cluster": "west"},
            "runs": 2,
            "cpu": 1.5,
        }
        | {"cost": "3", "charge": "4.5", "devices": {"gpu": 1.0}}
        for queue, team in (("a", "vision"), ("a", "speech"), ("b", "vision"))
    ]
    api.on("GET /v1/usage", {"currency": "EUR", "begin": "2026-11-01T00:00:00Z", "end": "2026-11-02T00:00:00Z",
                             "rows": [*rows, rows[0]], "total": {"since": "2026-11-01T00:00:00Z"}})  # fmt: skip
    found = json.loads(run("usage", "--label", "team=vision", "-o", "json").stdout)
    assert [(row["of"], row["runs"], row["cost"]) for row in found["rows"]] == [
        ({"queue": "a"}, 4, "6"),
        ({"queue": "b"}, 2, "3"),
    ]
    assert [row["charge"] for row in found["rows"]] == ["9.0", "4.5"]
    assert found["total"]["charge"] == "13.5"
    assert (found["total"]["cpu"], found["total"]["devices"]) == (4.5, {"gpu": 3.0})
    assert api.requests[-1].url.params.get_list("by") == ["queue", "label:team"]
    api.on("GET /v1/clusters", {"clusters": [{"name": "west", "state": "ready"}]})
    done = run("usage", "--cluster", "wset")
    assert (done.exit_code, "did you mean 'west'?" in done.stderr) == (Exit.NOT_FOUND, True)


@pytest.mark.parametrize(("charge", "is_shown"), [("4.5", True), ("3", False), (None, False)])
def test_the_charge_is_shown_where_it_is_not_the_cost(api: Api, charge: str | None, is_shown: bool) -> None:
    row = {"since": "2026-11-01T00:00:00Z", "of": {"class": "high"}, "runs": 2, "cost": "3", "charge": charge}
    times = {"begin": "2026-11-01T00:00:00Z", "end": "2026-11-02T00:00:00Z"}
    api.on("GET /v1/usage", {"currency": "EUR", **times, "rows": [row], "total": row})
    shown = run("usage", "--by", "class").stdout
    assert ("CHARGE EUR" in shown, "4.50" in shown) == (is_shown, is_shown)
    assert run("usage", "--by", "class", "-o", "csv").stdout.splitlines()[1].endswith(f",3,{charge or 3}")


def test_attainment_is_shown_by_month_queue_and_class(api: Api) -> None:
    row = {
        "since": "2026-11-01T00:00:00Z",
        "queue": "a",
        "priorityClass": "normal",
        "promise": "30m",
        "met": 970,
        "missed": 30,
    }
    row |= {
        "held": 2,
        "attained": 0.97,
        "meanSecondsLate": 310.5,
        "mostSecondsLate": 1804.0,
        "waiting": 12,
        "overdue": 1,
    }
    other = {"since": "2026-11-01T00:00:00Z", "queue": "b", "priorityClass": "low", "promise": "2h", "waiting": 1}
    times = {"begin": "2026-11-01T00:00:00Z", "end": "2026-12-01T00:00:00Z"}
    api.on("GET /v1/attainment", {**times, "rows": [row, other]})
    lines = run("attainment", "--queue", "a").stdout.splitlines()
    assert dict(api.requests[-1].url.params) == {"queue": "a"}
    assert lines[1].split() == ["2026-11", "a", "normal", "30m", "970", "30", "97.0%", "5m10s", "30m4s", "12", "1"]
    assert lines[2].split() == ["2026-11", "b", "low", "2h", "0", "0", "-", "-", "-", "1", "0"]
    assert (
        run("attainment", "-o", "csv").stdout.splitlines()[1] == "2026-11,a,normal,30m,970,30,2,0.97,310.5,1804.0,12,1"
    )
    api.on("GET /v1/attainment", {**times, "rows": []})
    assert "no job of a class with a longestWait" in run("attainment", "--since", "2026-10-01").stderr


def test_the_key_in_use_is_revoked_only_when_agreed(api: Api) -> None:
    api.on("DELETE /v1/keys/7", httpx.Response(204))
    api.on("DELETE /v1/keys/8", httpx.Response(204))
    done = run("keys", "revoke", "7", says="n\n")
    assert ("is the one in use" in done.stderr, "nothing was changed" in done.stderr) == (True, True)
    assert run("keys", "revoke", "7").exit_code == Exit.USAGE, "nobody can be asked"
    assert "DELETE /v1/keys/7" not in api.calls()
    assert run("keys", "revoke", "7", "--yes").stdout == "key 7  revoked\n"
    assert run("keys", "revoke", "8").stdout == "key 8  revoked\n"
    run("keys", "revoke", "8", "--force", says="y\n")
    assert dict(api.requests[-1].url.params) == {"force": "true"}
