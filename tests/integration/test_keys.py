"""API keys: who calls, unique names, the last use, and the last key of an admin."""

import asyncio
from datetime import datetime
from typing import Any

import httpx
import pytest

from tests.conftest import ADMIN_KEY, Service
from tests.integration.rows import execute
from tests.waiting import eventually
from trainmaster import __version__


async def make(service: Service, name: str, role: str = "admin", **fields: Any) -> httpx.Response:
    return await service.http.post("/v1/keys", json={"name": name, "role": role, **fields})


async def shown(service: Service, name: str) -> dict[str, Any]:
    """Return the newest key of this name."""
    every = (await service.http.get("/v1/keys")).json()["keys"]
    found: dict[str, Any] = [key for key in every if key["name"] == name][-1]
    return found


async def test_a_key_is_told_its_own_rights(service: Service) -> None:
    me = (await service.http.get("/v1/whoami")).json()
    assert (me["name"], me["role"], me["queues"], me["version"]) == ("admin", "admin", [], __version__)
    made = (await make(service, "ann", "user", queues=["default"], expiresIn="1h")).json()
    async with service.as_key(made["key"]) as ann:
        me = (await ann.get("/v1/whoami")).json()
    assert (me["id"], me["name"], me["role"], me["queues"]) == (made["id"], "ann", "user", ["default"])
    assert me["expiresAt"] == (await shown(service, "ann"))["expiresAt"]


@pytest.mark.parametrize("time", ["0d", "0s", 0])
async def test_a_key_that_would_be_invalid_at_once_is_refused(service: Service, time: str | int) -> None:
    refused = await make(service, "bob", "user", queues=["default"], expiresIn=time)
    assert refused.status_code == 422
    (mistake,) = refused.json()["mistakes"]
    assert (mistake["path"], mistake["message"]) == ("expiresIn", "must be above 0s: the key would be invalid at once")
    assert "bob" not in [key["name"] for key in (await service.http.get("/v1/keys")).json()["keys"]]


async def test_valid_keys_have_different_names(service: Service) -> None:
    answers = await asyncio.gather(*(make(service, "bob") for _ in range(4)))
    assert sorted(answer.status_code for answer in answers) == [201, 409, 409, 409]
    refused = next(answer.json() for answer in answers if answer.status_code == 409)
    key_id = (await shown(service, "bob"))["id"]
    assert (refused["code"], f"revoke key {key_id} first" in refused["detail"]) == ("conflict", True)
    assert (await service.http.delete(f"/v1/keys/{key_id}")).status_code == 204
    assert (await make(service, "bob")).status_code == 201
    await execute(service.stores, "UPDATE api_keys SET expires_at = now() - interval '1 s' WHERE name = 'bob'")
    assert (await make(service, "bob")).status_code == 201


async def test_an_agent_has_several_keys_of_its_name(service: Service) -> None:
    for _ in range(2):
        assert (await service.http.post("/v1/clusters/private/rotate", json={})).status_code == 201
        assert (await make(service, "agent-private", "agent", cluster="private")).status_code == 201


async def test_the_last_key_of_an_admin_is_revoked_only_by_force(service: Service) -> None:
    own = (await service.http.get("/v1/whoami")).json()["id"]
    refused = await service.http.delete(f"/v1/keys/{own}")
    assert (refused.status_code, refused.json()["code"]) == (409, "in-use")
    other = (await make(service, "second")).json()
    async with service.as_key(other["key"]) as second:
        answers = await asyncio.gather(service.http.delete(f"/v1/keys/{other['id']}"), second.delete(f"/v1/keys/{own}"))
        left = [
            key for key in (await _keys(service, other["key"])) if key["role"] == "admin" and not key.get("revokedAt")
        ]
    assert len(left) == 1, "one of two that revoke each other stays"
    assert sorted(answer.status_code for answer in answers) in ([204, 401], [204, 409])
    secret = ADMIN_KEY if left[0]["id"] == own else other["key"]
    async with service.as_key(secret) as last:
        assert (await last.delete(f"/v1/keys/{left[0]['id']}")).status_code == 409
        assert (await last.delete(f"/v1/keys/{left[0]['id']}?force=true")).status_code == 204


async def _keys(service: Service, other: str) -> list[dict[str, Any]]:
    """Return the keys as one of the two admins sees them who is still one."""
    for key in (ADMIN_KEY, other):
        async with service.as_key(key) as http:
            answer = await http.get("/v1/keys")
        if answer.status_code == 200:
            found: list[dict[str, Any]] = answer.json()["keys"]
            return found
    raise AssertionError("no admin is left")


async def test_the_last_use_of_a_key_is_shown(service: Service) -> None:
    secret = (await make(service, "carl", "user", queues=["default"])).json()["key"]
    assert (await shown(service, "carl")).get("lastUsedAt") is None
    async with service.as_key(secret) as carl:
        assert (await carl.get("/v1/jobs")).status_code == 200

    async def is_noted() -> bool:
        return (await shown(service, "carl")).get("lastUsedAt") is not None

    await eventually(is_noted)


async def test_a_rotated_key_has_the_same_rights_and_the_old_secret_ends(service: Service) -> None:
    old = (await make(service, "rita", "submitter", queues=["default"], onBehalfOf=["x-*"], expiresIn="2h")).json()
    http = service.as_key(old["key"])
    answer = await http.post(f"/v1/keys/{old['id']}/rotate", json={"overlap": "1h"})
    assert answer.status_code == 201, answer.text
    new = answer.json()
    assert (new["name"], new["role"]) == ("rita", "submitter")
    rights = [(await service.as_key(one["key"]).get("/v1/whoami")).json() for one in (old, new)]
    assert [{key: one[key] for key in ("name", "roles", "onBehalfOf")} for one in rights] == [
        {"name": "rita", "roles": [{"role": "submitter", "queues": ["default"]}], "onBehalfOf": ["x-*"]}
    ] * 2
    listed = {one["id"]: one for one in (await service.http.get("/v1/keys")).json()["keys"]}
    ends = [datetime.fromisoformat(listed[one["id"]]["expiresAt"]) for one in (old, new)]
    made = datetime.fromisoformat(listed[new["id"]]["createdAt"])
    assert [round((one - made).total_seconds() / 60) for one in ends] == [60, 120]
    assert (await service.http.post(f"/v1/keys/{new['id']}/rotate", json={"overlap": "0s"})).status_code == 201

    async def ended() -> bool:
        return (await service.as_key(new["key"]).get("/v1/whoami")).status_code == 401

    await eventually(ended)


async def test_nobody_rotates_the_key_of_another(service: Service) -> None:
    mine = (await make(service, "rolf", "submitter", queues=["default"])).json()
    theirs = (await make(service, "rosa", "submitter", queues=["default"])).json()
    http = service.as_key(mine["key"])
    assert (await http.post(f"/v1/keys/{theirs['id']}/rotate")).status_code == 403
    assert (await http.post("/v1/keys/999999/rotate")).status_code == 403
    assert (await service.http.post("/v1/keys/999999/rotate")).status_code == 404
    agent = next(one for one in (await service.http.get("/v1/keys")).json()["keys"] if one["role"] == "agent")
    refused = await service.http.post(f"/v1/keys/{agent['id']}/rotate")
    assert (refused.status_code, "clusters rotate" in refused.text) == (422, True)
    for wrong in ({"overlap": "31d"}, {"expiresIn": "0s"}, {"overlap": "soon"}):
        assert (await service.http.post(f"/v1/keys/{mine['id']}/rotate", json=wrong)).status_code == 422
