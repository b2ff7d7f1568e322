"""ETag, If-Match and If-None-Match of declared objects: nobody overwrites what somebody else has changed meanwhile."""

import asyncio
from typing import Any

import pytest

from tests.conftest import Service
from tests.integration.test_authorization import make_key
from trainmaster.protocol.resource_kinds import KINDS

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
    assert (await http.get(address)).json()["detail"] == f"{name} {kind.name_in(object_)!r} does not exist"


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


async def test_a_weak_etag_matches_nothing(service: Service) -> None:
    made = await service.http.put("/v1/queues/team", json={"path": "team"})
    weak = await service.http.put(
        "/v1/queues/team", json={"path": "team"}, headers={"If-Match": f"W/{made.headers['etag']}"}
    )
    assert weak.status_code == 412


async def test_a_user_may_read_a_priority_class_and_not_change_it(service: Service) -> None:
    secret = await make_key(service, "user", queues=["default"])
    headers = {"Authorization": f"Bearer {secret}"}
    shown = await service.http.get("/v1/priority-classes/normal", headers=headers)
    assert shown.status_code == 200
    answer = await service.http.put(
        "/v1/priority-classes/normal", json=shown.json(), headers=headers | {"If-Match": shown.headers["etag"]}
    )
    assert answer.status_code == 403
