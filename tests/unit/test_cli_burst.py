"""The command line: burst policies, how they stand, and what they would do."""

import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.unit.fake_api import SPEC, Api, connected, jobs_file, run
from tests.unit.scripted import JOB, problem
from trainmaster.protocol.bursting import BurstPolicySpec, PolicyStatus, Preview, Standing
from trainmaster.protocol.errors import Code
from trainmaster.protocol.states import Exit

ALL = "GET /v1/burst-policies"
NIGHTS = "/v1/burst-policies/nights"
TRY = "POST /v1/burst-policies/preview"
QUEUE = {"kind": "Queue", "path": "research"}


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Api:
    return connected(monkeypatch, tmp_path)


def written(name: str = "nights", **fields: Any) -> dict[str, Any]:
    """Return a policy as it is in a file."""
    return {"kind": "BurstPolicy", "name": name, "queues": ["research"], "budget": {"day": 100}, **fields}


def policy(name: str = "nights", status: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    """Return a policy as the API shows it."""
    spec = BurstPolicySpec.model_validate(written(name, **fields))
    shown = spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    return shown | ({} if status is None else {"status": status})


def status(*budgets: dict[str, Any], jobs: int = 0, closed: str = "") -> dict[str, Any]:
    """Return the status of a policy, as the API shows it."""
    found = [Standing.model_validate({"until": "2026-11-03T00:00:00Z", **one}) for one in budgets]
    model = PolicyStatus(name="", jobs=jobs, nodes=jobs / 2, budgets=tuple(found), closed=closed)
    return model.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={"name"})


def budget(spent: float, committed: float = 0, limit: float = 100, span: str = "day") -> dict[str, Any]:
    return {"span": span, "limit": limit, "spent": spent, "committed": committed}


def has(api: Api, *policies: dict[str, Any]) -> None:
    api.on(ALL, {"live": True, "currency": "EUR", "burstPolicies": list(policies)})


def cells(text: str) -> list[list[str]]:
    """Return the rows of a table, its columns first; cells are two spaces apart."""
    return [re.split(r" {2,}", line) for line in text.splitlines()]


# The list


def test_the_list_says_what_is_there_what_was_spent_and_whether_it_is_open(api: Api) -> None:
    has(
        api,
        policy(status=status(budget(12), jobs=3), when={"after": "10m"}, atMost={"jobs": 20}),
        policy("days", status(jobs=1, closed="opens at 2026-11-02T18:00Z"), queues=["a", "b/c"]),
    )
    assert cells(run("burst").stdout) == [
        ["NAME", "QUEUES", "AFTER", "JOBS", "BUDGETS", "STATE"],
        ["nights", "research", "10m", "3 of 20", "day 12.00 of 100.00", "open"],
        ["days", "a, b/c", "0s", "1", "day 100", "opens at 2026-11-02T18:00Z"],
    ]


STANDING: dict[str, tuple[tuple[dict[str, Any], ...], str]] = {
    "what was spent": ((budget(12.346),), "day 12.35 of 100.00"),
    "what is committed": ((budget(12, 30.5),), "day 12.00+30.50 of 100.00"),
    "the part that is used up, from half of it on": ((budget(50, 1),), "day 50.00+1.00 of 100.00 (50%)"),
    "no part below half": ((budget(49.99, 50),), "day 49.99+50.00 of 100.00"),
    "all of it": ((budget(100),), "day 100.00 of 100.00 (100%)"),
    "a budget of nothing": ((budget(0, limit=0),), "day 0.00 of 0.00 (100%)"),
    "what is expected beyond it": ((budget(30) | {"forecast": 120.5},), "day 30.00 of 100.00, 120.50 expected"),
    "nothing of what is expected below it": ((budget(30) | {"forecast": 100},), "day 30.00 of 100.00"),
    "nothing of what is expected once it is used up": (
        (budget(100) | {"forecast": 120},),
        "day 100.00 of 100.00 (100%)",
    ),
    "each budget": (
        (budget(1, span="hour", limit=2), budget(1, limit=20), budget(30, span="month", limit=300)),
        "hour 1.00 of 2.00 (50%), day 1.00 of 20.00, month 30.00 of 300.00",
    ),
}


@pytest.mark.parametrize("sentence", STANDING)
def test_of_budgets_is_told(api: Api, sentence: str) -> None:
    budgets, shown = STANDING[sentence]
    has(api, policy(status=status(*budgets)))
    assert cells(run("burst").stdout)[1][4] == shown


@pytest.mark.parametrize(
    ("paused", "known", "state"),
    [
        (False, status(), "open"),
        (False, status(closed="it runs 5 of at most 5 jobs"), "it runs 5 of at most 5 jobs"),
        (True, status(closed="paused"), "paused"),
        (True, None, "paused"),
        (False, None, "unknown: the scheduler did not report it"),
    ],
)
def test_the_state_of_a_policy_in_a_word_or_a_sentence(
    api: Api, paused: bool, known: dict[str, Any] | None, state: str
) -> None:
    has(api, policy(status=known, paused=paused))
    assert cells(run("burst").stdout)[1][5] == state


@pytest.mark.parametrize(
    ("is_open", "paused", "state"),
    [
        (True, False, "open"),
        (False, False, "closed now"),
        (True, True, "paused"),
        (None, False, "unknown: the scheduler did not report it"),
    ],
)
def test_of_a_policy_of_other_queues_too_the_state_is_shown_and_no_counts(
    api: Api, is_open: bool | None, paused: bool, state: str
) -> None:
    written = policy(atMost={"jobs": 5}, budget={"day": 20}, paused=paused)
    has(api, written | {"shared": True} | ({} if is_open is None else {"open": is_open}))
    row = cells(run("burst").stdout)[1]
    assert row[3:] == ["not shown to your key", "day 20", state]


def test_where_no_scheduler_answers_the_list_shows_what_admins_wrote(api: Api) -> None:
    limits = {"hour": 5, "day": "20.50", "month": 300, "job": 7}
    api.on(
        ALL,
        {
            "live": False,
            "currency": "EUR",
            "burstPolicies": [policy(budget=limits), policy("days", atMost={"jobs": 4})],
        },
    )
    done = run("burst")
    assert done.exit_code == Exit.SUCCEEDED
    assert [row[3:5] for row in cells(done.stdout)[1:]] == [
        ["?", "hour 5, day 20.5, month 300, job 7"],
        ["? of 4", "day 100"],
    ]


def test_without_any_policy_it_is_said_what_that_means(api: Api) -> None:
    has(api)
    done = run("burst")
    assert (done.exit_code, done.stdout) == (Exit.SUCCEEDED, "")
    assert "no job goes to a public cluster" in done.stderr
    assert "trainmaster apply -f FILE" in done.stderr
    assert json.loads(run("burst", "-o", "json").stdout) == []


def test_the_list_as_data_is_what_the_api_said(api: Api) -> None:
    one = policy(status=status(budget(1), jobs=2))
    has(api, one)
    assert json.loads(run("burst", "-o", "json").stdout) == [one]
    assert yaml.safe_load(run("burst", "-o", "yaml").stdout) == [one]


def test_a_policy_that_may_not_be_seen_is_denied(api: Api) -> None:
    api.on(ALL, problem(Code.FORBIDDEN, "this key is an agent's"))
    done = run("burst")
    assert (done.exit_code, done.stdout) == (Exit.DENIED, "")


# One policy


def test_one_policy_is_shown_with_how_it_stands(api: Api) -> None:
    one = policy(status=status(budget(12, 3), jobs=2))
    has(api, policy("days"), one)
    for words in ((), ("-o", "yaml"), ("-o", "table"), ("-o", "wide")):
        assert yaml.safe_load(run("burst", "show", "nights", *words).stdout) == one
    assert json.loads(run("burst", "show", "nights", "-o", "json").stdout) == one


@pytest.mark.parametrize("command", ["show", "pause", "resume"])
def test_one_that_is_not_there_is_not_found_and_nothing_is_changed(api: Api, command: str) -> None:
    has(api, policy("days"))
    done = run("burst", command, "nights")
    assert (done.exit_code, done.stdout) == (Exit.NOT_FOUND, "")
    assert "'nights'" in done.stderr
    assert api.calls() == [ALL]


# Previews


def previewed(**fields: Any) -> dict[str, Any]:
    """Return the preview of equivalent jobs, as the API gives it."""
    common = {"job": JOB, "jobs": 3, "queue": "research", "waitedSeconds": 754.0, "policy": "nights", "goes": False}
    said = {**common, "sentence": "It may not.", **fields}
    return Preview.model_validate(said).model_dump(mode="json", by_alias=True, exclude_none=True)


def would(api: Api, *found: dict[str, Any]) -> None:
    api.on(TRY, {"live": True, "currency": "EUR", "lookedAt": len(found), "previews": list(found)})


GOES = previewed(goes=True, cluster="rented", pricePerHour=3.5, atMost="1234.567", sentence="It is the cheapest.")
STAYS = previewed(job="vit-0000002", jobs=1, waitedSeconds=20, sentence="By policy nights it may go at 18:00.")


def test_a_preview_says_what_goes_where_at_what_price_and_what_stays_and_why(api: Api) -> None:
    would(api, GOES, STAYS)
    done = run("burst", "preview")
    assert cells(done.stdout) == [
        ["JOB", "JOBS", "QUEUE", "WAITED", "POLICY", "GOES", "AN HOUR EUR", "AT MOST", "WHY"],
        [JOB, "3", "research", "12m34s", "nights", "rented", "3.50", "1,234.57", "It is the cheapest."],
        ["vit-0000002", "1", "research", "20s", "nights", "-", "-", "-", "By policy nights it may go at 18:00."],
    ]
    assert api.calls() == [TRY]
    assert api.sent(TRY) == {"policies": []}, "the policies that are there"


def test_a_price_is_shown_for_what_would_go_but_may_not(api: Api) -> None:
    would(api, previewed(cluster="rented", pricePerHour="0.004", atMost="0.1", sentence="The budget is used up."))
    assert cells(run("burst", "preview").stdout)[1][5:8] == ["-", "0.004", "0.10"]


def test_a_preview_of_nothing_says_why_there_is_none(api: Api) -> None:
    would(api)
    done = run("burst", "preview")
    assert (done.exit_code, done.stdout) == (Exit.SUCCEEDED, "")
    assert "no waiting job is subject to a burst policy" in done.stderr


def test_a_preview_as_data_is_what_the_api_said(api: Api) -> None:
    would(api, GOES, STAYS)
    data = json.loads(run("burst", "preview", "-o", "json").stdout)
    assert data == {"live": True, "currency": "EUR", "lookedAt": 2, "previews": [GOES, STAYS]}
    assert yaml.safe_load(run("burst", "preview", "-o", "yaml").stdout) == data


def test_policies_of_a_file_are_tried_out_and_its_other_documents_are_left_aside(api: Api, tmp_path: Path) -> None:
    would(api, GOES)
    nights = written(when={"after": "10m"}, budget={"day": 12.5}, clusters=["rented"], choose="order")
    done = run("burst", "preview", "-f", jobs_file(tmp_path, QUEUE, nights, SPEC, written("days", timeLimit=60)))
    assert done.exit_code == Exit.SUCCEEDED
    assert api.calls() == [TRY], "nothing is made"
    posted = [BurstPolicySpec.model_validate(one) for one in api.sent(TRY)["policies"]]
    assert posted == [
        BurstPolicySpec.model_validate(nights),
        BurstPolicySpec.model_validate(written("days", timeLimit="60s")),
    ]


def test_a_file_may_be_read_from_stdin_with_values_set(api: Api) -> None:
    would(api)
    text = yaml.safe_dump(written(when={"after": "@AFTER@"}))
    assert run("burst", "preview", "-f", "-", "--set", "AFTER=15m", says=text).exit_code == Exit.SUCCEEDED
    assert api.sent(TRY)["policies"][0]["when"] == {"after": "15m"}


def test_a_file_without_a_policy_is_a_mistake(api: Api, tmp_path: Path) -> None:
    file = jobs_file(tmp_path, QUEUE, SPEC)
    done = run("burst", "preview", "-f", file)
    assert (done.exit_code, done.stdout) == (Exit.USAGE, "")
    assert f"there is no BurstPolicy in {file}" in done.stderr
    assert run("burst", "preview", "-f", str(tmp_path / "nowhere.yaml")).exit_code == Exit.USAGE
    assert api.requests == []


def test_mistakes_of_a_policy_are_told_by_file_and_document(api: Api, tmp_path: Path) -> None:
    file = jobs_file(tmp_path, written(), written("days", budget={"job": 1}, when={"afer": "5m"}))
    done = run("burst", "preview", "-f", file)
    assert done.exit_code == Exit.BAD_REQUEST
    assert f"  {file} document 2: when.afer: this field is not known; did you mean after?\n" in done.stderr
    assert f"  {file} document 2: budget: a budget needs at least one of hour, day and month" in done.stderr
    assert api.requests == []


def test_a_preview_that_no_scheduler_answers_has_an_exit_code_of_its_own(api: Api) -> None:
    api.on(
        TRY,
        problem(
            Code.STORE_AWAY, "the burst preview needs the leading scheduler, which did not answer: no scheduler leads"
        ),
    )
    done = run("burst", "preview")
    assert (done.exit_code, done.stdout) == (Exit.STORE_AWAY, "")
    assert "no scheduler leads" in done.stderr


# Pausing, resuming, removing


@pytest.mark.parametrize(("command", "said", "paused"), [("pause", "paused", True), ("resume", "resumed", False)])
@pytest.mark.parametrize("before", [True, False])
def test_pausing_and_resuming_change_nothing_else(
    api: Api, command: str, said: str, paused: bool, before: bool
) -> None:
    fields: dict[str, Any] = {
        "paused": before,
        "when": {"after": "10m"},
        "atMost": {"jobs": 4},
        "hours": [{"days": ["sat"]}],
    }
    has(api, policy("days"), policy(status=status(budget(12), jobs=2), **fields))
    api.on(f"PUT {NIGHTS}", policy(**fields))
    done = run("burst", command, "nights")
    assert (done.exit_code, done.stdout) == (Exit.SUCCEEDED, f"nights  {said}\n")
    assert api.calls() == [ALL, f"PUT {NIGHTS}"]
    sent = BurstPolicySpec.model_validate(api.sent(f"PUT {NIGHTS}"))
    assert sent == BurstPolicySpec.model_validate(written(**fields | {"paused": paused}))


def test_a_pause_that_is_refused_is_not_said_to_be_done(api: Api) -> None:
    has(api, policy())
    api.on(f"PUT {NIGHTS}", problem(Code.FORBIDDEN, "only admins may"))
    done = run("burst", "pause", "nights")
    assert (done.exit_code, done.stdout) == (Exit.DENIED, "")


def test_removing_asks_for_that_policy_alone(api: Api) -> None:
    api.on(f"DELETE {NIGHTS}", httpx.Response(204))
    unconfirmed = run("burst", "remove", "nights")
    assert (unconfirmed.exit_code, unconfirmed.stdout.strip(), api.calls()) == (Exit.USAGE, "", [])
    assert "remove burst policy nights?" in unconfirmed.stderr
    done = run("burst", "remove", "nights", "--yes")
    assert (done.exit_code, done.stdout) == (Exit.SUCCEEDED, "nights  removed\n")
    assert api.calls() == [f"DELETE {NIGHTS}"]


def test_removing_one_that_is_not_there_says_so(api: Api) -> None:
    api.on(f"DELETE {NIGHTS}", problem(Code.NOT_FOUND, "there is no burst policy 'nights'"))
    done = run("burst", "remove", "nights", "--yes")
    assert (done.exit_code, done.stdout) == (Exit.NOT_FOUND, "")
    assert "there is no burst policy 'nights'" in done.stderr
