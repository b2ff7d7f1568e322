"""What PUT refuses is refused by every other way to declare an object, and what is taken can be read again for a simulation."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.conftest import Service
from tests.integration.rows import execute
from tests.integration.test_conditions import OBJECTS
from trainmaster.protocol.documents import Document, Item, document_of, in_place_of, read_declared
from trainmaster.protocol.errors import Code, ProblemError
from trainmaster.protocol.resource_kinds import KINDS
from trainmaster.protocol.tenants import QueueSpec
from trainmaster_dispatcher.services import bootstrap
from trainmaster_dispatcher.whatif import installation

_VALUES: tuple[Any, ...] = ([], {}, "", 0, -1, "x", ["x"], True, {"x": 1})
"""Values that most fields may not have."""
_OF_OTHERS_TOO = {"default"}
"""Fields that change other objects of the kind."""
_NO_KIND = {"path": "team", "allowedKinds": []}
"""A queue that its model takes, and that can never mean anything."""


def _kind(address: str) -> Any:
    return next(one for one in KINDS.values() if address.startswith(f"{one.address}/"))


def _variants(kind: Any, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for name, info in kind.spec.model_fields.items():
        field = info.alias or name
        if field in ("kind", kind.key) or field in _OF_OTHERS_TOO:
            continue
        for value in _VALUES:
            yield body | {field: value}
        if info.is_required():
            yield {key: value for key, value in body.items() if key != field}
    yield body | {"nosuch": 1}
    yield body


@pytest.mark.parametrize(("address", "body", "_second"), OBJECTS.values(), ids=OBJECTS)
async def test_apply_and_its_dry_run_refuse_what_put_refuses(
    service: Service, address: str, body: dict[str, Any], _second: dict[str, Any]
) -> None:
    kind = _kind(address)
    taken = refused = 0
    for variant in _variants(kind, body):
        documents = [{"kind": kind.kind, **variant}]
        tried = await service.http.post("/v1/apply", json={"documents": documents, "dryRun": True})
        put = await service.http.put(address, json=variant)
        assert (tried.status_code < 300) == (put.status_code < 300), (variant, tried.text, put.text)
        if put.is_success:
            taken += 1
            shown = (await service.http.get(kind.address)).json()[kind.member]
            (own,) = (one for one in shown if kind.name_in(one) == kind.name_in(body))
            read_declared(installation.documents_of({kind.kind: [own]}))
            read_declared([Document(document_of(kind, own), "")])
            assert (await service.http.delete(address)).status_code == 204
            continue
        refused += 1
        done = await service.http.post("/v1/apply", json={"documents": documents})
        for other in (tried, done):
            assert other.status_code == put.status_code, (variant, other.text, put.text)
            assert other.json()["code"] == put.json()["code"], variant
            named = [one["path"].removeprefix("documents[0]").removeprefix(": ") for one in other.json()["mistakes"]]
            assert named == [one["path"] for one in put.json()["mistakes"]], (variant, other.text, put.text)
        assert (await service.http.get(address)).status_code == 404
    assert taken > 0
    assert refused > 10


async def test_a_patch_and_a_rollback_refuse_what_put_refuses(service: Service) -> None:
    for weight in (1, 2):
        assert (await service.http.put("/v1/queues/team", json={"path": "team", "weight": weight})).is_success
    put = await service.http.put("/v1/queues/team", json=_NO_KIND)
    patch = await service.http.patch("/v1/queues/team", json={"allowedKinds": []})
    await execute(
        service.stores,
        "UPDATE declared_revisions SET spec = spec || '{\"allowedKinds\": []}' WHERE name = 'team' AND revision = 1",
    )
    rolled_back = await service.http.post("/v1/rollback", json={"kind": "Queue", "name": "team", "revision": 1})
    for answer in (put, patch, rolled_back):
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid-spec"), answer.text
        assert [one["path"] for one in answer.json()["mistakes"]] == ["allowedKinds"]
    assert (await service.http.get("/v1/queues/team")).json()["allowedKinds"] == ["private", "edge"]


async def test_a_bootstrap_refuses_what_put_refuses(service: Service) -> None:
    spec = QueueSpec.model_validate(_NO_KIND)
    with pytest.raises(ProblemError) as refused:
        await bootstrap.make_what_is_missing(service.settings, [Item("Queue", "team", spec, "a.yaml")], [])
    assert refused.value.code is Code.INVALID_SPEC
    assert [one.path for one in refused.value.mistakes] == ["a.yaml: allowedKinds"]
    assert (await service.http.get("/v1/queues/team")).status_code == 404


async def test_what_an_older_release_stored_is_read_for_a_simulation(service: Service) -> None:
    await service.http.put("/v1/queues/team", json={"path": "team"})
    await execute(service.stores, "UPDATE queues SET spec = spec || '{\"allowedKinds\": []}' WHERE path = 'team'")
    shown = (await service.http.get("/v1/queues")).json()["queues"]
    documents = installation.documents_of({"Queue": shown})
    assert {one.name for one in read_declared(documents)} == {"default", "team"}
    given = [Document({"kind": "Queue", **_NO_KIND}, "a.yaml")]
    with pytest.raises(ProblemError, match="must name at least one of"):
        read_declared(in_place_of(documents, given))
