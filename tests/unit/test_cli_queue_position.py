"""The command line: a job's place in its queue, what it goes by, and dry runs."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.fake_api import SPEC, Api, connected, jobs_file, run
from tests.unit.scripted import JOB, job, problem
from trainmaster.protocol.errors import Code, Mistake
from trainmaster.protocol.states import Exit

REASON = {
    "job": JOB,
    "state": "queued",
    "token": "InsufficientCapacity",
    "tier": "capacity",
    "sentence": "It waits for free capacity.",
    "advice": "It starts when enough is freed.",
}
FACTORS: dict[str, Any] = {
    "urgent": False,
    "priorityClass": "normal",
    "classValue": 100,
    "submittedAt": "2026-01-01T00:00:00Z",
    "priority": 5,
    "secondsEarlier": 300,
    "queues": [
        {"queue": "research", "weight": 2, "shareBeyondGuarantee": 0.1, "share": 0.25, "rank": 2, "siblings": 3},
        {"queue": "research/vision", "weight": 1, "shareBeyondGuarantee": 0, "share": 0.125, "rank": 1, "siblings": 1},
    ],
}


def place(position: int = 3, many: int = 120) -> dict[str, Any]:
    return {
        "queue": "research/vision",
        "position": position,
        "jobsAhead": position - 1,
        "jobsInQueue": many,
        "factors": FACTORS,
    }


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Api:
    monkeypatch.setenv("TZ", "UTC")
    return connected(monkeypatch, tmp_path)


# why


@pytest.mark.parametrize(
    ("position", "many", "said"),
    [
        (1, 120, "1st of 120 in research/vision: it is next"),
        (2, 2, "2nd of 2 in research/vision: 1 job is ahead"),
        (3, 120, "3rd of 120 in research/vision: 2 jobs are ahead"),
        (11, 120, "11th of 120 in research/vision: 10 jobs are ahead"),
        (112, 120, "112th of 120 in research/vision: 111 jobs are ahead"),
        (205_591, 1_000_000, "205,591st of 1,000,000 in research/vision: 205,590 jobs are ahead"),
    ],
)
def test_why_says_the_place(api: Api, position: int, many: int, said: str) -> None:
    api.on(f"GET /v1/jobs/{JOB}/why", REASON | {"live": True} | place(position, many))
    done = run("why", JOB)
    assert f"\n{said}\n" in done.stdout
    assert "FACTOR" not in done.stdout, "that is for -o wide"


FORECAST = {"halfBy": "2026-03-01T14:00:00Z", "mostBy": "2026-03-01T17:20:00Z", "jobs": 83}
LIKELY = (
    "Of jobs like it, half start by 2026-03-01 14:00:00, and nine of ten by 2026-03-01 17:20:00 (computed from the waits of 83"
    " jobs)."
)


def test_why_says_by_when_jobs_like_it_start(api: Api) -> None:
    api.on(f"GET /v1/jobs/{JOB}/why", REASON | {"live": True} | place() | {"forecast": FORECAST})
    assert LIKELY in " ".join(run("why", JOB).stdout.split())


@pytest.mark.parametrize(
    ("many", "said"),
    [(1, "; 1 job cannot run as it is written"), (1200, "; 1,200 jobs cannot run as they are written")],
)
def test_why_says_how_many_jobs_nobody_waits_for(api: Api, many: int, said: str) -> None:
    api.on(f"GET /v1/jobs/{JOB}/why", REASON | {"live": True} | place(1, 3000) | {"jobsThatCannotRun": many})
    assert f"\n1st of 3,000 in research/vision: it is next{said}\n" in run("why", JOB).stdout


def test_why_says_that_a_job_that_can_never_run_has_no_turn(api: Api) -> None:
    answer = REASON | {"tier": "cannot run as written", "token": "TooLarge", "live": True} | place()
    api.on(
        f"GET /v1/jobs/{JOB}/why", {key: value for key, value in answer.items() if key not in ("position", "jobsAhead")}
    )
    said = run("why", JOB).stdout
    assert "it has no turn in research/vision, as it cannot run as it is written; other jobs do not wait for it" in said
    assert "next" not in said


def test_why_shows_what_the_place_goes_by(api: Api) -> None:
    api.on(f"GET /v1/jobs/{JOB}/why", REASON | {"live": True} | place())
    lines = run("why", JOB, "-o", "wide").stdout.splitlines()
    assert "urgent     never: its class has no longest wait" in lines
    assert "class      normal (100)" in lines
    assert "priority   5, as if submitted 5m earlier" in lines
    queues = [line.split() for line in lines[lines.index("QUEUE            TURN    WEIGHT  BEYOND GUARANTEE  SHARE") :]]
    assert queues[1] == ["research", "2", "of", "3", "2", "0.1000", "0.2500"]
    assert queues[2] == ["research/vision", "1", "of", "1", "1", "0.0000", "0.1250"]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"urgent": True, "urgentAt": "2026-01-02T00:00:00Z"}, "urgent     yes, since 2026-01-0"),
        ({"urgentAt": "2026-01-02T00:00:00Z"}, "urgent     no, from 2026-01-0"),
        ({"priority": 0, "secondsEarlier": 0}, "priority   0\n"),
        ({"priority": -2, "secondsEarlier": -120}, "priority   -2, as if submitted 2m later\n"),
        ({"byDeadline": True}, "urgent     never: its queue goes by deadlines\n"),
        ({"byDeadline": True}, "deadline   none\n"),
        ({"byDeadline": True, "deadline": "2026-01-02T00:00:00Z"}, "deadline   2026-01-0"),
        ({"byDeadline": True, "deadline": "2026-01-02T00:00:00Z"}, "priority   5, as if due 5m earlier\n"),
    ],
)
def test_factors_in_words(api: Api, fields: dict[str, Any], said: str) -> None:
    api.on(f"GET /v1/jobs/{JOB}/why", REASON | {"live": True} | place() | {"factors": FACTORS | fields})
    assert said in run("why", JOB, "-o", "wide").stdout


def test_why_says_that_nobody_has_answered_and_how_old_the_verdict_is(api: Api) -> None:
    stored = {"live": False, "ageSeconds": 75.2, "cycle": 7, "at": "2026-01-01T00:00:00Z"}
    api.on(f"GET /v1/jobs/{JOB}/why", REASON | stored)
    done = run("why", JOB, "-o", "wide")
    assert " of " not in done.stdout
    assert done.stderr == "its place is unknown, as no leading scheduler answered; this was stored 1m15s ago\n"
    api.on(f"GET /v1/jobs/{JOB}/why", REASON | {"live": False})
    assert run("why", JOB).stderr == "its place is unknown, as no leading scheduler answered\n"


def test_a_verdict_that_still_holds_says_since_when(api: Api) -> None:
    api.on(f"GET /v1/jobs/{JOB}/why", REASON | {"live": True, "cycle": 7, "at": "2026-01-01T00:00:00Z"} | place())
    assert run("why", JOB).stderr.startswith("since cycle 7, ")


def test_data_has_the_fields_of_the_api(api: Api) -> None:
    answer = REASON | {"live": True} | place()
    api.on(f"GET /v1/jobs/{JOB}/why", answer)
    data = json.loads(run("why", JOB, "-o", "json").stdout)
    assert data.keys() == answer.keys()
    assert data["factors"]["queues"][0]["shareBeyondGuarantee"] == 0.1


def test_a_job_that_waits_shows_its_place(api: Api) -> None:
    api.has_job("queued")
    api.on(f"GET /v1/jobs/{JOB}/why", REASON | {"live": True} | place())
    assert "place      3rd of 120 in research/vision: 2 jobs are ahead\n" in run("job", JOB).stdout
    api.on(f"GET /v1/jobs/{JOB}", job("held"))
    api.on(f"GET /v1/jobs/{JOB}/why", REASON | {"state": "held"})
    assert "place" not in run("job", JOB).stdout


# submit --dry-run

STARTS = {"couldRun": True, "startsNow": True, "why": "alpha is the only cluster where it fits now", "cluster": "alpha"}
STARTS |= {"fitsNow": ["alpha"], "fitsEmpty": ["alpha", "beta"], "place": place(1)}
WAITS = {"couldRun": True, "startsNow": False, "why": REASON["sentence"], "place": place(), "reason": REASON}
NEVER = WAITS | {"couldRun": False, "why": "It fits on no cluster.", "reason": REASON | {"advice": "Make it smaller."}}


def tried(
    api: Api, tmp_path: Path, *trials: dict[str, Any] | None, held: bool = False, words: tuple[str, ...] = ()
) -> Any:
    jobs = [
        {"name": "bert", "queue": "research/vision", "held": held} | ({"trial": one} if one else {}) for one in trials
    ]
    api.on("POST /v1/jobs", {"live": trials[0] is not None, "jobs": jobs})
    return run("submit", "--dry-run", jobs_file(tmp_path, *[SPEC] * len(trials)), *words)


def test_a_dry_run_says_by_when_jobs_like_it_start(api: Api, tmp_path: Path) -> None:
    done = tried(api, tmp_path, WAITS | {"place": place() | {"forecast": FORECAST}})
    assert done.stdout.splitlines()[0].endswith(f"It starts when enough is freed. {LIKELY}")


def test_a_dry_run_says_of_each_job_what_would_become_of_it(api: Api, tmp_path: Path) -> None:
    expected = {"cluster": "alpha", "expectedStart": "2026-01-02T03:04:05Z"}
    done = tried(api, tmp_path, STARTS, WAITS, WAITS | expected, NEVER)
    first, second, third, fourth = done.stdout.splitlines()
    assert first == "bert would start now: alpha is the only cluster where it fits now."
    assert second == (
        "bert would wait as 3rd of 120 in research/vision: It waits for free capacity. It starts when enough is freed."
    )
    assert third.startswith(f"{second} It would start by 2026-01-0")
    assert third.endswith(" on alpha if runs keep to their time limits.")
    assert fourth == "bert could never run: It fits on no cluster. Make it smaller."
    assert done.stderr == "nothing was submitted\n"
    assert done.exit_code == Exit.BAD_REQUEST
    assert dict(api.requests[-1].url.params) == {"dryRun": "true"}
    assert "idempotency-key" not in api.requests[-1].headers


def test_a_dry_run_of_jobs_that_could_run_succeeds(api: Api, tmp_path: Path) -> None:
    assert tried(api, tmp_path, STARTS, WAITS).exit_code == Exit.SUCCEEDED


def test_wide_shows_where_there_is_room(api: Api, tmp_path: Path) -> None:
    verdict = {"cluster": "alpha", "check": "noRoom", "sentence": "needs 4 cpu on one node, the best node has 2"}
    done = tried(api, tmp_path, STARTS, WAITS | {"reason": REASON | {"verdicts": [verdict]}}, words=("-o", "wide"))
    assert "\n  fits now on alpha; without any run on alpha, beta\n" in done.stdout
    assert "\n  fits now on no cluster; without any run on no cluster\n" in done.stdout
    assert "\n  alpha    noRoom  needs 4 cpu on one node, the best node has 2\n" in done.stdout


def test_a_job_that_is_submitted_held_would_be_held_first(api: Api, tmp_path: Path) -> None:
    assert tried(api, tmp_path, STARTS, held=True).stdout.startswith(
        "bert would be held; after a resume it would start now: "
    )


def test_without_a_leader_only_the_check_was_made(api: Api, tmp_path: Path) -> None:
    done = tried(api, tmp_path, None)
    assert done.stdout == "bert is valid; whether it could start is unknown, as no leading scheduler answered\n"
    assert done.exit_code == Exit.SUCCEEDED


def test_a_dry_run_as_data(api: Api, tmp_path: Path) -> None:
    data = json.loads(tried(api, tmp_path, WAITS, words=("-o", "json")).stdout)
    assert data[0]["trial"]["place"]["jobsAhead"] == 2


def test_mistakes_of_a_dry_run_are_told_by_file_and_document(api: Api, tmp_path: Path) -> None:
    mistakes = (Mistake(path="jobs[0].roles[0].name", message="a name has at most 12 characters"),)
    api.on("POST /v1/jobs", problem(Code.INVALID_SPEC, "no", mistakes=mistakes))
    file = jobs_file(tmp_path, SPEC)
    done = run("submit", "--dry-run", file)
    assert done.exit_code == Exit.BAD_REQUEST
    assert f"  {file}: roles[0].name: a name has at most 12 characters\n" in done.stderr


def test_a_table_of_parameters_is_tried_as_one(api: Api, tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text("a\n1\n2\n")
    api.on("POST /v1/jobs", {"live": True, "jobs": [{"name": "bert", "queue": "q", "count": 2, "trial": WAITS}]})
    done = run("submit", "--dry-run", jobs_file(tmp_path, SPEC), "--parameters", str(tmp_path / "table.csv"))
    assert done.stdout.startswith("bert (one of 2) would wait")
    assert [len(json.loads(request.content)["parameters"]) for request in api.requests] == [2]


@pytest.mark.parametrize("word", ["--wait", "--follow"])
def test_a_dry_run_goes_with_nothing_that_needs_jobs(api: Api, tmp_path: Path, word: str) -> None:
    done = run("submit", "--dry-run", word, jobs_file(tmp_path, SPEC))
    assert done.exit_code == Exit.USAGE
    assert api.requests == []
