"""Filters of jobs by who submitted them and when, and names in filters that do not exist."""

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.conftest import Service, job
from tests.integration.rows import execute
from trainmaster_dispatcher.store import jobs as store


async def ids(http: httpx.AsyncClient, **parameters: str) -> set[str]:
    answer = await http.get("/v1/jobs", params=parameters)
    assert answer.status_code == 200, answer.text
    return {one["id"] for one in answer.json()["jobs"]}


async def user(service: Service, name: str, *queues: str) -> httpx.AsyncClient:
    answer = await service.http.post("/v1/keys", json={"name": name, "role": "user", "queues": queues})
    return service.as_key(answer.json()["key"])


async def submitted(http: httpx.AsyncClient, name: str = "job") -> str:
    return str((await http.post("/v1/jobs", json=job(name, "default", "1", suspend=True))).json()["id"])


async def test_jobs_are_found_by_who_submitted_them_also_with_an_earlier_key(service: Service) -> None:
    async with await user(service, "ann", "default") as ann:
        first = await submitted(ann)
        key_id = (await ann.get("/v1/whoami")).json()["id"]
    await service.http.delete(f"/v1/keys/{key_id}")
    other = await submitted(service.http)
    async with await user(service, "ann", "default") as ann:
        second = await submitted(ann)
        assert await ids(ann, submittedBy="ann") == {first, second}
    assert await ids(service.http, submittedBy="admin") == {other}
    assert await ids(service.http, submittedBy="nobody") == set()


async def test_jobs_are_found_by_the_time_of_their_submission(service: Service) -> None:
    early, late = await submitted(service.http, "early"), await submitted(service.http, "late")
    await execute(service.stores, "UPDATE jobs SET submitted_at = '2026-01-01T12:00:00Z' WHERE name = 'early'")
    assert await ids(service.http, since="2026-01-01T12:00:00Z", until="2026-01-02T00:00:00Z") == {early}
    assert await ids(service.http, until="2026-01-01T12:00:00Z") == set()
    assert await ids(service.http, since="2026-01-01T12:00:01Z") == {late}
    body = {"filter": {"submittedBy": "admin", "until": "2026-01-02T00:00:00Z"}, "dryRun": True}
    assert (await service.http.post("/v1/jobs/cancel", json=body)).json()["matched"] == 1


async def test_a_cluster_that_never_existed_is_refused_with_the_nearest(service: Service) -> None:
    refused = await service.http.get("/v1/jobs", params={"cluster": "privat"})
    assert (refused.status_code, refused.json()["code"]) == (404, "not-found")
    assert refused.json()["detail"] == "there is no cluster 'privat'; did you mean 'private'?"
    far = (await service.http.get("/v1/jobs", params={"cluster": "moon"})).json()["detail"]
    assert far == "there is no cluster 'moon'; there are: edge, private, public"
    await execute(service.stores, "UPDATE clusters SET removed_at = now() WHERE name = 'edge'")
    assert await ids(service.http, cluster="edge") == set(), "one that was removed has a history"


CASES: dict[str, tuple[str, dict[str, Any], str]] = {
    "a filter": ("GET /v1/jobs", {"params": {"queue": "defualt"}}, "did you mean 'default'?"),
    "a submission": ("POST /v1/jobs", {"json": job("a", "defualt", "1")}, "did you mean 'default'?"),
    "a class": ("POST /v1/jobs", {"json": job("a", "default", "1", priorityClass="norml")}, "did you mean 'normal'?"),
    "usage": (
        "GET /v1/usage",
        {"params": {"begin": "2026-01-01T00:00:00Z", "end": "2026-01-02T00:00:00Z", "queue": "defaults"}},
        "did you mean 'default'?",
    ),
}


@pytest.mark.parametrize("case", CASES)
async def test_a_typo_is_answered_with_the_nearest_name(service: Service, case: str) -> None:
    call, fields, said = CASES[case]
    await service.http.put("/v1/priority-classes/normal", json={"name": "normal", "value": 1})
    method, path = call.split()
    refused = await service.http.request(method, path, **fields)
    assert (refused.status_code, said in refused.json()["detail"]) == (422, True), refused.text


async def test_no_suggestion_names_what_the_caller_may_not_see(service: Service) -> None:
    for path in ("secret", "lab"):
        await service.http.put(f"/v1/queues/{path}", json={"path": path})
    await service.http.put("/v1/clusters/vault", json={"name": "vault", "onlyQueues": ["secret"]})
    async with await user(service, "ann", "lab") as ann:
        answers = [
            await ann.get("/v1/jobs", params={"queue": "secrets"}),
            await ann.post("/v1/jobs", json=job("a", "secrets", "1")),
            await ann.get("/v1/jobs", params={"cluster": "vaults"}),
        ]
    assert [answer.status_code for answer in answers] == [422, 403, 404]
    assert not any("'secret'" in answer.text or "vault'" in answer.text for answer in answers)


@pytest.mark.parametrize("window", [3, 20_000])
async def test_pages_by_labels_are_whole_wherever_the_jobs_are(
    service: Service, monkeypatch: pytest.MonkeyPatch, window: int
) -> None:
    """Jobs that are not among the newest come by the index of labels; pages are those of all jobs that match, newest first."""
    monkeypatch.setattr(store, "_WINDOW", window)
    for path in ("a", "b"):
        await service.http.put(f"/v1/queues/{path}", json={"path": path})
    labels: dict[str, dict[str, str]] = {}
    for number in range(24):
        own = {"team": f"t{number % 3}", "rare": "r"} if number in (1, 2, 11) else {"team": f"t{number % 3}"}
        text = await service.submit(f"j{number}", "ab"[number % 2], labels={} if number % 8 == 5 else own, suspend=True)
        labels[text] = {} if number % 8 == 5 else own
    newest_first = list(reversed(labels))
    cases: tuple[tuple[str, Callable[[dict[str, str]], bool]], ...] = (
        ("rare=r", lambda own: own.get("rare") == "r"),
        ("rare", lambda own: "rare" in own),
        ("team=t1", lambda own: own.get("team") == "t1"),
        ("team in (t0, t2),rare", lambda own: own.get("team") in ("t0", "t2") and "rare" in own),
        ("team!=t1,rare=r", lambda own: own.get("team") != "t1" and "rare" in own),
        ("!rare", lambda own: "rare" not in own),
        ("!team", lambda own: not own),
        ("team notin (t1)", lambda own: own.get("team") != "t1"),
        ("other", lambda own: "other" in own),
    )
    for selector, holds in cases:
        expected = [text for text in newest_first if holds(labels[text])]
        assert await pages(service.http, "/apis/trainmaster.dev/v1/jobs", labelSelector=selector) == expected, selector
    expected = [text for text in newest_first if labels[text].get("rare") == "r"]
    found = (await service.http.get("/v1/jobs", params={"label": "rare=r"})).json()["jobs"]
    assert [one["id"] for one in found] == expected
    in_a = await pages(service.http, "/apis/trainmaster.dev/v1/namespaces/a/jobs", labelSelector="rare")
    assert in_a == [text for text in expected if text.startswith("j2-")]


@pytest.mark.parametrize("window", [1, 20_000])
async def test_labels_and_all_other_filters_hold_together(
    service: Service, monkeypatch: pytest.MonkeyPatch, window: int
) -> None:
    monkeypatch.setattr(store, "_WINDOW", window)
    await service.http.put("/v1/queues/a", json={"path": "a"})
    await service.http.put("/v1/priority-classes/gold", json={"name": "gold", "value": 1})
    labels = {"team": "t1"}
    early = await service.submit("early", labels={**labels, "late": ""})
    await execute(service.stores, "UPDATE jobs SET submitted_at = '2026-01-01T12:00:00Z' WHERE name = 'early'")
    async with await user(service, "ann", "a") as ann:
        by_ann = str((await ann.post("/v1/jobs", json=job("by-ann", "a", "1", labels=labels))).json()["id"])
    golden = await service.submit("golden", "a", labels=labels, priorityClass="gold")
    held = await service.submit("held", labels=labels, suspend=True)
    for number in range(4):
        await service.submit(f"other{number}", labels={"team": "t2"}, suspend=True)
    cases: tuple[tuple[dict[str, str], set[str]], ...] = (
        ({}, {by_ann, golden, held, early}),
        ({"state": "held"}, {held}),
        ({"queue": "a"}, {by_ann, golden}),
        ({"queue": "a", "name": "by-*"}, {by_ann}),
        ({"priorityClass": "gold"}, {golden}),
        ({"submittedBy": "ann"}, {by_ann}),
        ({"until": "2026-01-02T00:00:00Z"}, {early}),
        ({"cluster": "private"}, set()),
    )
    for parameters, expected in cases:
        assert await ids(service.http, label="team=t1", **parameters) == expected, parameters
    found = await pages(service.http, "/apis/trainmaster.dev/v1/jobs", labelSelector="team=t1,!late")
    assert found == [held, golden, by_ann]
    await service.http.delete(f"/apis/trainmaster.dev/v1/namespaces/a/jobs/{golden}")
    in_a = await pages(service.http, "/apis/trainmaster.dev/v1/namespaces/a/jobs", labelSelector="team=t1,!late")
    assert in_a == [by_ann]


async def pages(http: httpx.AsyncClient, path: str, **parameters: str) -> list[str]:
    """Return the names of the objects of a list, read by pages of two."""
    found: list[str] = []
    following: dict[str, str] = {}
    while True:
        answer = await http.get(path, params={"limit": "2", **parameters, **following})
        assert answer.status_code == 200, answer.text
        found += [one["metadata"]["name"] for one in answer.json()["items"]]
        token = answer.json()["metadata"].get("continue")
        if not token:
            return found
        following = {"continue": token}
