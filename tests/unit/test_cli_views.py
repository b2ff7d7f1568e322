"""The command line: what tables, data and reasons look like."""

import json
from pathlib import Path

import httpx
import pytest
import yaml

from tests.unit.fake_api import Api, connected, run
from tests.unit.scripted import JOB, job
from trainmaster.cli.effects import show_warnings
from trainmaster.protocol.resource_kinds import Kind
from trainmaster.protocol.states import Exit


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Api:
    return connected(monkeypatch, tmp_path)


def test_jobs_as_a_table_and_as_data(api: Api) -> None:
    api.on("GET /v1/jobs", {"jobs": [job("held") | {"holdCause": "backOff", "labels": {"a": "[bold]"}}], "next": None})
    table = run("jobs", "--state", "held", "--label", "a=b", "-o", "wide").stdout.splitlines()
    assert table[0].split()[:4] == ["ID", "QUEUE", "STATE", "CLUSTER"]
    assert " held (backOff) " in table[1]
    assert "a=[bold]" in table[1]
    assert dict(api.requests[-1].url.params) == {"state": "held", "label": "a=b", "limit": "51"}
    assert json.loads(run("jobs", "-o", "json").stdout)[0]["submittedAt"] == "2026-01-01T00:00:00.000Z"
    assert yaml.safe_load(run("jobs", "-o", "yaml").stdout)[0]["id"] == JOB


def test_a_limit_says_that_there_is_more(api: Api) -> None:
    api.on("GET /v1/jobs", {"jobs": [job("queued"), job("queued")], "next": "c"})
    done = run("jobs", "--limit", "1")
    assert done.stdout.count(JOB) == 1
    assert "-A shows all" in done.stderr


def test_why_reads_like_a_person_would_say_it(api: Api) -> None:
    reason = {"job": JOB, "state": "queued", "token": "InsufficientCapacity", "tier": "capacity"}
    reason |= {"sentence": "It waits\x1b[31m for free capacity.", "advice": "It starts when enough is freed."}
    verdict = {"cluster": "edge", "check": "noRoom", "sentence": "needs 4 cpu, 2 are free"}
    api.on(f"GET /v1/jobs/{JOB}/why", reason | {"verdicts": [verdict]})
    done = run("why", JOB)
    assert f"{JOB} is queued: InsufficientCapacity (capacity)\n\nIt waits [31m for free capacity.\n" in done.stdout
    assert "It starts when enough is freed.\n" in done.stdout
    assert "edge     noRoom  needs 4 cpu, 2 are free" in done.stdout


def test_a_job_shows_runs_members_and_scores(api: Api) -> None:
    table = [{"kind": 1.0, "score": 2.5, "cluster": "edge"}]
    ran = {"id": f"{JOB}-r1", "attempt": 1, "cluster": "edge", "state": "failed", "exitCode": 3, "category": "exit"}
    ran |= {"leasedAt": "2026-01-01T00:00:00Z", "whyHere": "it is the only one", "scores": {"table": table}}
    ran |= {"members": [{"role": "main", "index": 0, "state": "failed", "exitCode": 3}]}
    api.has_job("failed", runs=[ran])
    done = run("job", JOB, "-o", "wide").stdout
    assert "where      edge: it is the only one\n" in done
    assert "main-0  failed  -     3     0         -\n" in done
    assert "CLUSTER  SCORE  KIND\nedge     2.5    1.0\n" in done


def test_a_job_shows_its_results_and_the_long_ones_whole_in_the_wide_form_alone(api: Api) -> None:
    api.has_job("succeeded", results={"accuracy": 0.93, "best": ["é\x9b", None], "log": "x" * 300}, resultsError="")
    done = run("job", JOB).stdout
    assert 'RESULT    VALUE\naccuracy  0.93\nbest      ["é ", null]\nlog       "xxx' in done
    assert " ..." in done
    assert "x" * 300 not in done.replace("\n", "").replace(" ", "")
    assert "x" * 300 in run("job", JOB, "-o", "wide").stdout.replace("\n", "").replace(" ", "")
    assert json.loads(run("job", JOB, "-o", "json").stdout)["results"]["accuracy"] == 0.93


def test_a_job_says_what_it_has_cost_and_the_charge_where_that_is_another(api: Api) -> None:
    for charge, words in (("12.5", "cost       12.50 EUR\n"), ("18.75", "cost       12.50 EUR, charged 18.75 EUR\n")):
        api.has_job("running", cost={"cost": "12.5", "charge": charge, "currency": "EUR"})
        assert words in run("job", JOB).stdout
    api.has_job("running")
    assert "cost" not in run("job", JOB).stdout


def test_a_job_says_why_its_results_cannot_be_read(api: Api) -> None:
    api.has_job("succeeded", resultsError="the results of main-0 have more than 4096 bytes")
    done = run("job", JOB).stdout
    assert "results    the results of main-0 have more than 4096 bytes\n" in done
    assert "RESULT " not in done


@pytest.mark.parametrize("message", ["", "it is being stopped"])
def test_a_run_whose_agent_is_away_says_since_when_beside_its_message(api: Api, message: str) -> None:
    ran = {"id": f"{JOB}-r1", "attempt": 1, "cluster": "edge", "state": "running", "message": message}
    ran |= {"leasedAt": "2026-01-01T00:00:00Z", "silentSince": "2026-01-01T00:01:00Z"}
    api.has_job("running", runs=[ran])
    said = " ".join(run("job", JOB).stdout.split())
    assert f"{message}; its agent was last in contact".removeprefix("; ") in said
    assert ("being stopped" in said) == bool(message)


def test_queues_are_a_tree_whose_counts_add_up(api: Api) -> None:
    leaf = {"path": "a/b", "weight": 3.0, "resources": {"cpu": {"limit": "8"}}, "isLeaf": True, "jobs": {"queued": 4}}
    api.on("GET /v1/queues", {"queues": [leaf, {"path": "a", "state": "held", "isLeaf": False, "jobs": {}}]})
    rows = [line.split() for line in run("queues").stdout.splitlines()]
    assert rows[1] == ["a", "(held)", "1", "-", "0", "4", "0", "0"]
    assert rows[2] == ["a/b", "3", "cpu", "<=", "8", "0", "4", "0", "0"]


def test_the_wide_list_of_queues_has_whole_quotas_and_warnings_are_told_apart(api: Api) -> None:
    quota = {"guaranteed": "8", "limit": "12", "borrowingLimit": "3", "lendingLimit": "2", "weight": 2.5}
    queue = {"path": "a", "resources": {"cpu": quota}, "jobs": {}, "warnings": ["8 cpu are guaranteed to it"]}
    api.on("GET /v1/queues", {"queues": [queue]})
    done = run("queues", "-o", "wide")
    assert "cpu 8..12 (borrows 3, lends 2, weight 2.5)" in done.stdout
    assert (
        "warning: queue a: 8 cpu are guaranteed to it; the part of a guarantee beyond that cannot be honoured"
        in done.stderr
    )
    assert "borrows" not in run("queues").stdout


def test_the_wide_list_of_queues_tells_what_is_in_use(api: Api) -> None:
    usage = {"running": 2, "used": {"cpu": "5", "cpu@kind=edge": "3"}, "share": 0.375, "shareBeyondGuarantee": 0.025}
    api.on("GET /v1/queues", {"live": True, "queues": [{"path": "a", "jobs": {}, "usage": usage}]})
    done = run("queues", "-o", "wide")
    assert "cpu 5, cpu@kind=edge 3" in done.stdout
    assert "37.5%" in done.stdout
    api.on("GET /v1/queues", {"live": False, "queues": [{"path": "a", "jobs": {}}]})
    done = run("queues", "-o", "wide")
    assert "usage is not shown: no leading scheduler answered" in done.stderr


def test_reservations_are_listed_and_removed(api: Api) -> None:
    over = {"kind": "Reservation", "name": "old", "queue": "a", "nodes": 2, "clusters": ["private"]}
    over |= {"start": "2020-01-01T00:00:00.000Z", "end": "2020-01-02T00:00:00.000Z", "nodeSelector": {"gpu": "h100"}}
    open_ = over | {"name": "now", "clusters": [], "end": "2999-01-01T00:00:00.000Z"}
    later = open_ | {"name": "later", "start": "2998-01-01T00:00:00.000Z"}
    api.on("GET /v1/reservations", {"reservations": [over, open_, later]})
    api.on("DELETE /v1/reservations/old", httpx.Response(204))
    rows = [line.split() for line in run("reservations").stdout.splitlines()]
    assert [(row[0], row[3], row[6]) for row in rows[1:]] == [
        ("old", "private", "over"),
        ("now", "all", "now"),
        ("later", "all", "to"),
    ]
    assert "gpu=h100" in run("reservations", "-o", "wide").stdout
    assert run("reservations", "remove", "old", "--yes").stdout == "old  removed\n"


def test_datasets_are_listed_shown_and_removed(api: Api) -> None:
    text = {"kind": "Dataset", "name": "text", "size": "1Gi", "clusters": ["a", "b"], "regions": [], "remote": True}
    api.on("GET /v1/datasets", {"datasets": [text, text | {"name": "images", "clusters": [], "remote": False}]})
    api.on("DELETE /v1/datasets/text", httpx.Response(204))
    assert [line.split() for line in run("datasets").stdout.splitlines()] == [
        ["NAME", "SIZE", "CLUSTERS", "REGIONS", "MAY", "BE", "MOVED"],
        ["text", "1Gi", "a,", "b", "all", "yes"],
        ["images", "1Gi", "-", "all", "no"],
    ]
    assert yaml.safe_load(run("datasets", "show", "text").stdout) == text
    assert json.loads(run("datasets", "-o", "json").stdout)[0] == text
    assert run("datasets", "remove", "text", "-y").stdout == "text  removed\n"
    api.on("GET /v1/datasets", {"datasets": []})
    assert run("datasets").stderr == "no data is declared; an admin does so with: trainmaster apply -f FILE\n"


def test_priority_classes_are_listed(api: Api) -> None:
    high = {"name": "high", "value": 500, "default": False, "preemptible": True, "description": "for releases"}
    api.on("GET /v1/priority-classes", {"priorityClasses": [high | {"longestWait": "1h"}, high | {"name": "low"}]})
    rows = [line.split() for line in run("priority-classes").stdout.splitlines()]
    assert rows[1:] == [["high", "500", "no", "yes", "1h"], ["low", "500", "no", "yes", "-"]]
    assert "for releases" in run("priority-classes", "-o", "wide").stdout
    api.on("GET /v1/priority-classes", {"priorityClasses": []})
    said = "there is no priority class; an admin makes one with: trainmaster apply -f FILE\n"
    assert run("priority-classes").stderr == said


def test_price_books_are_listed_with_the_clusters_that_name_them(api: Api) -> None:
    book = {"name": "cloud", "onDemand": {"cpu": "0.03", "devices": {"nvidia.com/gpu": "2"}}, "spot": None}
    api.on("GET /v1/price-books", {"priceBooks": [book]})
    api.on("GET /v1/clusters", {"clusters": [{"name": "west", "priceBook": "cloud"}, {"name": "own"}]})
    (row,) = run("price-books").stdout.splitlines()[1:]
    assert row.split() == ["cloud", "0.03", "-", "nvidia.com/gpu", "2", "-", "west"]


def test_clusters_are_listed_and_cordoned(api: Api) -> None:
    api.on("GET /v1/clusters", {"clusters": [{"name": "edge", "state": "never connected", "lastContact": None}]})
    api.on("POST /v1/clusters/edge/cordon", {"name": "edge", "cordoned": True})
    assert "never connected" in run("clusters").stdout
    assert run("clusters", "cordon", "edge").stdout == "edge  cordoned\n"


def test_the_secret_of_a_new_key_is_all_that_stdout_gets(api: Api) -> None:
    api.on("POST /v1/keys", {"id": 7, "name": "bob", "role": "user", "key": "tmk_secret"})
    done = run("keys", "make", "bob", "--queue", "a/b")
    assert done.stdout == "tmk_secret\n"
    assert api.sent("POST /v1/keys") == {"name": "bob", "role": "submitter", "queues": ["a/b"]}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("keys", "make", "bob", "--expires-in", "soon"), "--expires-in: 'soon' is not a duration"),
        (
            ("cancel", "job-1", "--grace", "5"),
            "--grace: '5' is not a duration; write for example 500ms, 30s, 10m, 1h30m or 2d; it has no unit: "
            "did you mean 5s, 5m, 5h or 5d?",
        ),
        (("webhooks", "rotate", "a/b", "--overlap", "1x"), "--overlap: '1x' is not a duration"),
    ],
)
def test_a_wrong_duration_is_told_by_the_name_of_its_option(api: Api, words: tuple[str, ...], says: str) -> None:
    done = run(*words)
    assert (done.exit_code, says in " ".join(done.stderr.split()), api.calls()) == (Exit.USAGE, True, []), done.stderr


def test_the_audit_is_listed_by_actor_and_time(api: Api) -> None:
    change = {"before": {"weight": 1}, "after": {"weight": 2}}
    line = {"at": "2026-11-01T00:00:00Z", "actor": "ann", "action": "put queue", "target": "a", "address": "10.0.0.9"}
    api.on("GET /v1/audit", {"audit": [line | {"requestId": "r1", "details": change}], "next": None})
    done = run("audit", "--actor", "ann", "--since", "2026-10-01", "-o", "wide")
    assert ("put queue" in done.stdout, "10.0.0.9" in done.stdout, '"weight": 2' in done.stdout) == (True,) * 3
    assert json.loads(run("audit", "-o", "json").stdout)[0]["details"] == change
    api.on("GET /v1/audit", {"audit": [], "next": None})
    assert "no entry of the audit matches" in run("audit").stderr


def test_a_finding_of_many_queues_is_one_warning(capsys: pytest.CaptureFixture[str]) -> None:
    queues = [*((f"q{n}", "240 cpu are guaranteed") for n in range(5)), ("a", "x"), ("b", "x")]
    classes: list[tuple[Kind, str, str]] = [
        ("PriorityClass", "c", "no longestWait"),
        ("PriorityClass", "d", "no longestWait"),
    ]
    show_warnings([*(("Queue", name, finding) for name, finding in queues), *classes[:1]])
    end = "the part of a guarantee beyond that cannot be honoured"
    assert capsys.readouterr().err.splitlines() == [
        f"warning: queues q0, q1, q2 and 2 more: 240 cpu are guaranteed; {end}",
        f"warning: queues a, b: x; {end}",
        "warning: priority class c: no longestWait",
    ]
    show_warnings(classes)
    assert capsys.readouterr().err == "warning: priority classes c, d: no longestWait\n"
