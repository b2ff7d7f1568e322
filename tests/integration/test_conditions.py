"""ETag, If-Match and If-None-Match of declared objects: nobody overwrites what somebody else has changed meanwhile."""

import asyncio
from typing import Any

import pytest

from tests.conftest import Service
from tests.integration.test_authorization import make_key
from trainmaster.protocol.resource_kinds import KINDS
from trainmaster_dispatcher.services.declared import DeclaredKind

OBJECTS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "queue": ("/v1/queues/team", {"path": "team"}, {"path": "team", "weight": 3}),
    "priority class": (
        "/v1/priority-classes/vip",
        {"name": "vip", "value": 500},
        {"name": "vip", "value": 600},
    ),
    "cluster": (
        "/v1/clusters/west",
        {"name": "west", "clusterKind": "private"},
        {"name": "west", "clusterKind": "private", "labels": {"region": "eu"}},
    ),
    "reservation": (
        "/v1/reservations/night",
        {
            "name": "night",
            "queue": "default",
            "nodes": 1,
            "start": "2030-01-01T00:00:00Z",
            "end": "2030-01-02T00:00:00Z",
        },
        {
            "name": "night",
            "queue": "default",
            "nodes": 2,
            "start": "2030-01-01T00:00:00Z",
            "end": "2030-01-02T00:00:00Z",
        },
    ),
    "dataset": ("/v1/datasets/text", {"name": "text", "size": "1Gi"}, {"name": "text", "size": "2Gi"}),
    "price book": (
        "/v1/price-books/cheap",
        {"name": "cheap"},
        {"name": "cheap", "description": "since May"},
    ),
    "burst policy": (
        "/v1/burst-policies/over",
        {"name": "over", "queues": ["default"], "budget": {"day": 10}},
        {"name": "over", "queues": ["default"], "budget": {"day": 10}, "paused": True},
    ),
    "role binding": (
        "/v1/role-bindings/vision",
        {"name": "vision", "groups": ["vision"], "role": "user", "queues": ["default"]},
        {"name": "vision", "groups": ["vision", "nlp"], "role": "user", "queues": ["default"]},
    ),
}
"""Of each kind: an address, an object that can be there in a new installation, and a change of it."""


def test_each_kind_is_tested() -> None:
    assert set(OBJECTS) == {kind.name for kind in KINDS.values()}


@pytest.mark.parametrize(("name", "object_"), [(name, one[1]) for name, one in OBJECTS.items()], ids=OBJECTS)
async def test_an_object_is_made_listed_shown_and_removed(service: Service, name: str, object_: dict[str, Any]) -> None:
    http = service.http
    (kind,) = (one for one in KINDS.values() if one.name == name)
    address = f"{kind.address}/{kind.name_in(object_)}"
    made = await http.put(address, json=object_)
    assert (made.status_code, made.headers["location"]) == (201, address)
    same = await http.put(address, json=object_)
    assert (same.status_code, same.json()) == (200, made.json())
    assert "location" not in same.headers
    shown = (await http.get(address)).json()
    assert kind.spec.model_validate({key: shown[key] for key in object_}) == kind.spec.model_validate(object_)
    listed = (await http.get(kind.address)).json()[kind.member]
    # The state of a burst policy appears once the leading scheduler knows it.
    assert shown | {"status": None} in [one | {"status": None} for one in listed]
    assert (await http.delete(address)).status_code == 204
    missing = await http.delete(address)
    assert (missing.status_code, missing.json()["detail"]) == (404, f"there is no {name} {kind.name_in(object_)!r}")
    assert (await http.get(address)).json()["detail"] == f"there is no {name} {kind.name_in(object_)!r}"


@pytest.mark.parametrize(("address", "first", "second"), OBJECTS.values(), ids=OBJECTS)
async def test_a_change_that_expects_what_is_not_there_any_more_changes_nothing(
    service: Service, address: str, first: dict[str, Any], second: dict[str, Any]
) -> None:
    http = service.http
    missing = await http.put(address, json=first, headers={"If-Match": "*"})
    assert (missing.status_code, missing.json()["code"]) == (412, "precondition-failed")
    assert (await http.get(address)).status_code == 404
    made = await http.put(address, json=first, headers={"If-None-Match": "*"})
    assert made.status_code == 201, made.text
    etag = made.headers["etag"]
    assert (await http.get(address)).headers["etag"] == etag
    assert (await http.head(address)).headers["etag"] == etag
    again = await http.put(address, json=second, headers={"If-None-Match": "*"})
    assert again.status_code == 412
    changed = await http.put(address, json=second, headers={"If-Match": f'"0000000000000000", {etag}'})
    assert changed.status_code == 200
    assert changed.headers["etag"] != etag
    late = await http.put(address, json=first, headers={"If-Match": etag})
    assert late.status_code == 412
    assert changed.headers["etag"] in late.json()["detail"]
    assert (await http.get(address)).headers["etag"] == changed.headers["etag"]
    same = await http.put(address, json=second)
    assert same.headers["etag"] == changed.headers["etag"], "what did not change keeps its ETag"
    if "cluster" not in address:
        assert (await http.delete(address, headers={"If-Match": etag})).status_code == 412
        assert (await http.delete(address, headers={"If-Match": changed.headers["etag"]})).status_code == 204


async def test_of_changes_at_the_same_time_that_expect_the_same_one_is_done(service: Service) -> None:
    made = await service.http.put("/v1/queues/team", json={"path": "team"})

    async def change(weight: int) -> int:
        spec = {"path": "team", "weight": weight}
        answer = await service.http.put("/v1/queues/team", json=spec, headers={"If-Match": made.headers["etag"]})
        return answer.status_code

    statuses = await asyncio.gather(*[change(weight) for weight in range(2, 10)])
    assert sorted(statuses) == [200] + [412] * 7


async def test_jobs_of_a_queue_do_not_change_its_etag(service: Service) -> None:
    before = (await service.http.get("/v1/queues/default")).headers["etag"]
    await service.submit(cpu="64")
    assert (await service.http.get("/v1/queues/default")).headers["etag"] == before


@pytest.mark.parametrize("text", ["abc", '"abc', "", 'x"abc"', '"a" "b"x', '"' + "a" * 2000 + '"'])
async def test_a_condition_that_is_none_is_refused(service: Service, text: str) -> None:
    answer = await service.http.put("/v1/queues/team", json={"path": "team"}, headers={"If-Match": text})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid-parameter")
    assert "If-Match" in answer.json()["detail"]
    assert (await service.http.get("/v1/queues/team")).status_code == 404


@pytest.mark.parametrize(("condition", "status"), [("If-Match", 412), ("If-None-Match", 412)])
async def test_a_weak_etag_forbids_a_change_by_either_condition(service: Service, condition: str, status: int) -> None:
    made = await service.http.put("/v1/queues/team", json={"path": "team"})
    weak = {condition: f"W/{made.headers['etag']}"}
    answer = await service.http.put("/v1/queues/team", json={"path": "team", "weight": 2}, headers=weak)
    assert answer.status_code == status
    assert (await service.http.get("/v1/queues/team")).json()["weight"] == 1


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize(("address", "first", "second"), OBJECTS.values(), ids=OBJECTS)
async def test_who_has_seen_an_object_gets_it_only_once_it_has_changed(
    service: Service, method: str, address: str, first: dict[str, Any], second: dict[str, Any]
) -> None:
    http = service.http
    etag = (await http.put(address, json=first)).headers["etag"]
    for seen in (etag, f"W/{etag}", f'"0000000000000000", {etag}', "*"):
        same = await http.request(method, address, headers={"If-None-Match": seen})
        assert (same.status_code, same.content, same.headers["etag"]) == (304, b"", etag), seen
        assert "content-type" not in same.headers
    changed = (await http.put(address, json=second)).headers["etag"]
    for seen in (etag, f"W/{etag}"):
        other = await http.request(method, address, headers={"If-None-Match": seen})
        assert (other.status_code, other.headers["etag"]) == (200, changed)


async def test_an_object_is_shown_by_if_match_only_as_it_is_expected(service: Service) -> None:
    http, address = service.http, "/v1/queues/team"
    etag = (await http.put(address, json={"path": "team"})).headers["etag"]
    for expected in (etag, "*"):
        shown = await http.get(address, headers={"If-Match": expected})
        assert (shown.status_code, shown.headers["etag"]) == (200, etag)
    for expected in ('"0000000000000000"', f"W/{etag}"):
        refused = await http.get(address, headers={"If-Match": expected, "If-None-Match": etag})
        assert (refused.status_code, refused.json()["code"]) == (412, "precondition-failed"), expected
        assert (await http.head(address, headers={"If-Match": expected})).status_code == 412
    assert (await http.get("/v1/queues/other", headers={"If-Match": "*"})).status_code == 404


async def test_conditions_do_not_show_a_user_which_objects_exist(service: Service) -> None:
    etag = (await service.http.put("/v1/queues/team", json={"path": "team"})).headers["etag"]
    async with service.as_key(await make_key(service, "user", queues=["default"])) as user:
        for headers in ({"If-None-Match": etag}, {"If-Match": "*"}, {"If-Match": '"0000000000000000"'}):
            assert (await user.get("/v1/queues/team", headers=headers)).status_code == 404


@pytest.mark.parametrize("at", [1, 2, 3])
async def test_a_change_while_an_object_is_read_is_never_overwritten_unseen(
    service: Service, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """The change happens before, between or after the two reads of which the answer consists."""
    http, address = service.http, "/v1/queues/team"
    await http.put(address, json={"path": "team", "weight": 1})
    reads, find, every = 0, DeclaredKind.find, DeclaredKind.every
    is_reading = True

    async def change_before_read() -> None:
        nonlocal reads, is_reading
        reads += 1
        if reads == at and is_reading:
            is_reading = False  # reads of the change itself go on
            assert (await http.put(address, json={"path": "team", "weight": 2})).status_code == 200

    async def found(self: Any, tx: Any, name: str) -> Any:
        if is_reading:
            await change_before_read()
        return await find(self, tx, name)

    async def listed(self: Any, stores: Any, leader: Any, caller: Any) -> Any:
        if is_reading:
            await change_before_read()
        return await every(self, stores, leader, caller)

    monkeypatch.setattr(DeclaredKind, "find", found)
    monkeypatch.setattr(DeclaredKind, "every", listed)
    seen = await http.get(address)
    if is_reading:
        is_reading = False
        await http.put(address, json={"path": "team", "weight": 2})
    written = await http.put(address, json={"path": "team", "weight": 3}, headers={"If-Match": seen.headers["etag"]})
    assert seen.json()["weight"] == 2 or written.status_code == 412
    weights = {1: (2, 200), 2: (2, 412), 3: (1, 412)}
    assert (seen.json()["weight"], written.status_code) == weights[at]


async def test_a_user_may_read_a_priority_class_and_not_change_it(service: Service) -> None:
    secret = await make_key(service, "user", queues=["default"])
    headers = {"Authorization": f"Bearer {secret}"}
    shown = await service.http.get("/v1/priority-classes/normal", headers=headers)
    assert shown.status_code == 200
    answer = await service.http.put(
        "/v1/priority-classes/normal", json=shown.json(), headers=headers | {"If-Match": shown.headers["etag"]}
    )
    assert answer.status_code == 403
