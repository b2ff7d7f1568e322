"""Declared state as code over REST: documents applied in one transaction, owners of fields, pruning, history and rollback."""

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import httpx
import pytest

from tests.conftest import Service, job
from tests.fuzz.values import IS_DEEP
from tests.integration.rows import execute, picture, rows, value
from tests.integration.test_authorization import make_key
from tests.integration.test_conditions import OBJECTS
from trainmaster.protocol.declarations import MOST_DOCUMENTS
from trainmaster.protocol.documents import document_of
from trainmaster.protocol.resource_kinds import KINDS
from trainmaster_dispatcher.services import declarations, declared_kinds
from trainmaster_dispatcher.store.database import Transaction
from trainmaster_dispatcher.store.tables import metadata

Document = dict[str, Any]
_RECORDS = ("audit", "changes", "field_owners", "declared_revisions")


async def send(service: Service, *documents: Document, **fields: Any) -> httpx.Response:
    return await service.http.post("/v1/apply", json={"documents": list(documents), **fields})


async def applied(service: Service, *documents: Document, **fields: Any) -> dict[str, Any]:
    answer = await send(service, *documents, **fields)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def refused(service: Service, *documents: Document, **fields: Any) -> dict[str, Any]:
    """Return the problem of a call that changed nothing at all."""
    before = await contents(service)
    answer = await send(service, *documents, **fields)
    assert answer.status_code >= 400, answer.text
    assert await contents(service) == before
    found: dict[str, Any] = answer.json()
    return found


def outcomes(answer: dict[str, Any]) -> dict[str, str]:
    return {f"{one['kind']} {one['name']}": one["outcome"] for one in answer["objects"]}


def differences(answer: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    return {one["field"]: (one["before"], one["after"]) for of in answer["objects"] for one in of["fields"]}


def places(problem: dict[str, Any]) -> dict[str, str]:
    return {one["path"]: one["message"] for one in problem["mistakes"]}


async def contents(service: Service) -> dict[str, Any]:
    """Return the declared objects with their records: equal contents mean that nothing was changed."""
    shown: dict[str, Any] = {}
    for kind in KINDS.values():
        listed = (await service.http.get(kind.address)).json()[kind.member]
        shown[kind.kind] = [document_of(kind, one) for one in listed]
    counts = (await picture(service.stores))["rows"]
    return shown | {name: counts[name] for name in _RECORDS}


async def shown(service: Service, address: str) -> dict[str, Any]:
    found: dict[str, Any] = (await service.http.get(address)).json()
    return found


async def exported(service: Service) -> list[Document]:
    found = await contents(service)
    return [one for kind in KINDS for one in sorted(found[kind], key=lambda one: str(one.get("path")).count("/"))]


def folder(many: int) -> list[Document]:
    """Return documents of all kinds that refer to each other, in an order in which they cannot be made one by one."""
    teams = [f"org/team-{number}" for number in range(many)]
    return [
        {
            "kind": "Reservation",
            "name": "night",
            "queue": "org/team-0",
            "clusters": ["cloud"],
            "nodes": 1,
            "start": "2036-01-01T00:00:00Z",
            "end": "2036-01-02T00:00:00Z",
        },
        {"kind": "BurstPolicy", "name": "over", "queues": teams[:2], "clusters": ["cloud"], "budget": {"day": 10}},
        {"kind": "Dataset", "name": "images", "size": "1Gi", "clusters": ["cloud"]},
        {"kind": "Cluster", "name": "cloud", "clusterKind": "public", "priceBook": "list"},
        {"kind": "PriceBook", "name": "list", "onDemand": {"cpu": 0.04}},
        *(
            {"kind": "Queue", "path": path, "weight": number + 1, "defaultPriorityClass": "gold", "limits": {"cpu": 8}}
            for number, path in enumerate(teams)
        ),
        {"kind": "Queue", "path": "org"},
        {"kind": "PriorityClass", "name": "gold", "value": 900},
    ]


# -- one transaction


async def test_a_name_that_is_mistyped_in_a_field_is_answered_with_the_nearest(service: Service) -> None:
    assert (await service.http.put("/v1/queues/research", json={"path": "research"})).status_code in (200, 201)
    budget, window = {"day": "5"}, {"start": "2099-01-01T00:00:00Z", "end": "2099-01-02T00:00:00Z"}
    documents = [
        {"kind": "BurstPolicy", "name": "p", "queues": ["researhc"], "clusters": ["pubic"], "budget": budget},
        {"kind": "Cluster", "name": "c", "clusterKind": "private", "onlyQueues": ["reserch"]},
        {"kind": "Dataset", "name": "d", "size": "1Gi", "clusters": ["privat"]},
        {"kind": "Reservation", "name": "r", "queue": "resarch", "clusters": ["edg"], "nodes": 1, **window},
    ]
    answer = await service.http.post("/v1/apply", json={"documents": documents, "dryRun": True})
    said = {one["path"]: one["message"] for one in answer.json()["mistakes"]}
    assert said == {
        "documents[0]: queues[0]": "there is no queue 'researhc'; did you mean 'research'?",
        "documents[0]: clusters[0]": "there is no cluster 'pubic'; did you mean 'public'?",
        "documents[1]: onlyQueues[0]": "there is no queue 'reserch'; did you mean 'research'?",
        "documents[2]: clusters[0]": "there is no cluster 'privat'; did you mean 'private'?",
        "documents[3]: queue": "there is no queue 'resarch'; did you mean 'research'?",
        "documents[3]: clusters[0]": "there is no cluster 'edg'; did you mean 'edge'?",
    }


async def test_a_folder_is_applied_at_once_and_again_without_a_trace(service: Service) -> None:
    documents = folder(293)
    assert len(documents) == 300
    made = await applied(service, *documents, applier="git")
    assert set(outcomes(made).values()) == {"created"}
    assert len(made["objects"]) == 300
    before = await contents(service)
    assert before["audit"] == await value(service.stores, "SELECT count(*) FROM audit")
    again = await applied(service, *documents, applier="git")
    assert set(outcomes(again).values()) == {"unchanged"}
    assert differences(again) == {}
    assert await contents(service) == before, "no line of the audit, no row of the feed, no revision"


async def test_the_number_of_statements_does_not_depend_on_the_number_of_documents(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    await applied(service, *folder(3), applier="git")
    execute, apply = Transaction._execute, declarations.apply_documents
    statements: list[str] = []
    counting: list[Transaction] = []

    async def counted(self: Transaction, sql: str, *rest: Any) -> Any:
        if self in counting:
            statements.append(sql)
        return await execute(self, sql, *rest)

    async def noted(tx: Transaction, *rest: Any) -> declarations.AppliedDocuments:
        counting.append(tx)
        done = await apply(tx, *rest)
        counting.remove(tx)
        return done

    monkeypatch.setattr(Transaction, "_execute", counted)
    monkeypatch.setattr(declarations, "apply_documents", noted)

    async def applying(many: int, description: str) -> tuple[int, int]:
        names = [(kind, f"{description}-{number}") for kind in KINDS for number in range(many)]
        more: dict[str, Document] = {
            "Cluster": {"priceBook": "list", "onlyQueues": ["org/team-0"], "clusterKind": "public"},
            "PriorityClass": {"value": 5},
            "Dataset": {"size": "1Gi", "clusters": ["cloud"]},
            "BurstPolicy": {"queues": ["org/team-0"], "clusters": ["cloud"], "budget": {"day": 1}},
            "Reservation": {
                "queue": "org/team-0",
                "nodes": 1,
                "start": "2036-01-01T00:00:00Z",
                "end": "2036-01-02T00:00:00Z",
            },
            "RoleBinding": {"groups": ["all"], "role": "user", "queues": ["org/team-0"]},
        }
        made = [{"kind": kind, "name": name} | more.get(kind, {}) for kind, name in names if kind != "Queue"]
        made += [{"kind": "Queue", "path": f"org/{name}"} for kind, name in names if kind == "Queue"]
        statements.clear()
        answer = await applied(service, *made, applier="git")
        assert set(outcomes(answer).values()) == {"created"}
        return sum("declared_revisions" in one for one in statements), len(statements)

    few, many = await applying(2, "few"), await applying(20, "many")
    assert few == many
    assert few[0] == 2, "statements of this apply were counted: the last revisions are read, and new ones written"


async def test_each_changed_object_is_audited_as_a_put_is(service: Service) -> None:
    await applied(service, {"kind": "Queue", "path": "a", "weight": 2}, applier="git")
    await applied(service, {"kind": "Queue", "path": "a", "weight": 3}, applier="git")
    lines = (await service.http.get("/v1/audit", params={"target": "a"})).json()["audit"]
    changed, made = (one["details"] for one in lines)
    assert changed == {"before": {"weight": 2.0}, "after": {"weight": 3.0}, "applier": "git"}
    assert (made["before"], made["after"]["weight"]) == (None, 2.0)
    assert {(one["action"], one["actor"], one["address"]) for one in lines} == {("apply queue", "admin", "127.0.0.1")}


async def test_all_mistakes_of_all_documents_are_told_and_nothing_is_applied(service: Service) -> None:
    await service.submit(queue="default")
    problem = await refused(
        service,
        {"kind": "Queue", "path": "good"},
        {"kind": "Queue", "path": "nowhere/child"},
        {"kind": "Queue", "path": "classless", "defaultPriorityClass": "nosuch", "priorityClasses": ["normal", "none"]},
        {"kind": "Cluster", "name": "west", "priceBook": "nosuch"},
        {"kind": "Queue", "path": "default/child"},
        {"kind": "Queue", "path": "wrong", "weight": "heavy"},
        {"kind": "Queue", "path": "wrong/child"},
        {"kind": "Pod", "name": "x"},
        {"kind": "Queue"},
        {"kind": "Queue", "path": "good", "weight": 2},
        {"kind": "Dataset", "name": "d", "size": "1Gi", "clusters": ["west", "atlantis"]},
        {"kind": "BurstPolicy", "name": "p", "queues": ["good", "gone"], "budget": {"day": 1}},
        {
            "kind": "Reservation",
            "name": "r",
            "queue": "missing",
            "nodes": 1,
            "start": "2036-01-01T00:00:00Z",
            "end": "2036-01-02T00:00:00Z",
        },
    )
    assert (problem["code"], problem["status"]) == ("invalid-spec", 422)
    said = places(problem)
    assert list(said) == [
        "documents[1]: path",
        "documents[2]: defaultPriorityClass",
        "documents[2]: priorityClasses[1]",
        "documents[3]: priceBook",
        "documents[4]: path",
        "documents[5]: weight",
        "documents[7]: kind",
        "documents[8]: path",
        "documents[9]: path",
        "documents[10]: clusters[1]",
        "documents[11]: queues[1]",
        "documents[12]: queue",
    ], "in the order of the documents; a name of a document with a mistake is no further mistake"
    assert said["documents[1]: path"] == "there is no queue 'nowhere'; make the parent first"
    assert "'default' holds jobs" in said["documents[4]: path"]
    assert said["documents[9]: path"] == "Queue 'good' is declared already, by documents[0]"


@pytest.mark.parametrize(
    ("document", "code", "path"),
    [
        ({"kind": "Queue", "path": "no/child"}, "unknown-queue", "path"),
        ({"kind": "Cluster", "name": "west", "priceBook": "no"}, "unknown-price-book", "priceBook"),
        (
            {"kind": "Queue", "path": "q", "defaultPriorityClass": "no"},
            "unknown-priority-class",
            "defaultPriorityClass",
        ),
        ({"kind": "Queue", "path": "default/child"}, "in-use", "path"),
        ({"kind": "Dataset", "name": "d", "size": "1Gi", "clusters": ["no"]}, "unknown-cluster", "clusters[0]"),
    ],
)
async def test_a_dry_run_finds_a_wrong_reference(service: Service, document: Document, code: str, path: str) -> None:
    await service.submit()
    for dry_run in (True, False):
        problem = await refused(service, {"kind": "Queue", "path": "ok"}, document, dryRun=dry_run)
        assert (problem["code"], list(places(problem))) == (code, [f"documents[1]: {path}"])


async def test_a_mistyped_reference_is_told_with_the_name_that_is_most_similar(service: Service) -> None:
    problem = await refused(
        service,
        {"kind": "PriceBook", "name": "spot-west", "onDemand": {"cpu": 1}},
        {"kind": "Cluster", "name": "west", "priceBook": "spot-wset"},
        {"kind": "Queue", "path": "q", "defaultPriorityClass": "nromal"},
    )
    said = places(problem)
    assert said["documents[1]: priceBook"] == "there is no price book 'spot-wset'; did you mean 'spot-west'?"
    assert "'nromal'; did you mean normal?; there are: " in said["documents[2]: defaultPriorityClass"]


async def test_fields_of_the_api_beside_a_declaration_are_refused_with_the_way_to_a_document(service: Service) -> None:
    (queue,) = (await service.http.get("/v1/queues")).json()["queues"]
    problem = await refused(service, queue)
    assert set(places(problem)) == {"documents[0]: isLeaf", "documents[0]: jobs"}
    assert all("trainmaster export" in message for message in places(problem).values())


@pytest.mark.parametrize(
    "body",
    [
        {"documents": []},
        {"documents": [{"kind": "Queue", "path": f"q{number}"} for number in range(MOST_DOCUMENTS + 1)]},
        {"documents": [{"kind": "Queue", "path": "q"}], "applier": ""},
        {"documents": [{"kind": "Queue", "path": "q"}], "prune": "a\nb"},
        {"documents": [{"kind": "Queue", "path": "q"}], "dryrun": True},
        {"documents": ["Queue"]},
    ],
    ids=["none", "too many", "no applier", "a line", "an unknown field", "no document"],
)
async def test_a_body_beyond_its_bounds_is_refused(service: Service, body: dict[str, Any]) -> None:
    answer = await service.http.post("/v1/apply", json=body)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid-spec")


@pytest.mark.parametrize("depth", [40, 400])
async def test_documents_and_patches_that_are_nested_too_deep_are_refused(service: Service, depth: int) -> None:
    deep: Any = 1
    for _ in range(depth):
        deep = {"a": deep}
    problem = await refused(service, {"kind": "Queue", "path": "q", "resources": deep})
    assert "deeper than" in problem["detail"]
    answer = await service.http.patch("/v1/queues/default", json={"resources": deep})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid-spec")


async def test_an_apply_with_an_idempotency_key_is_done_once(service: Service) -> None:
    body = {"documents": [{"kind": "Queue", "path": "once"}]}
    first, second = [
        await service.http.post("/v1/apply", json=body, headers={"Idempotency-Key": "k"}) for _ in range(2)
    ]
    assert (first.json(), second.headers["idempotency-replayed"]) == (second.json(), "true")
    other = await service.http.post("/v1/apply", json=body | {"force": True}, headers={"Idempotency-Key": "k"})
    assert other.json()["code"] == "idempotency-key-reused"


# -- owners of fields


async def test_a_document_changes_only_the_fields_that_it_has(service: Service) -> None:
    book = {"kind": "PriceBook", "name": "cloud"}
    whole = {"kind": "Cluster", "name": "public", "clusterKind": "public", "priceBook": "cloud"}
    await applied(service, book, whole, applier="platform")
    alone = await applied(service, {"kind": "Cluster", "name": "public"}, applier="other")
    assert outcomes(alone) == {"Cluster public": "unchanged"}
    labelled = await applied(service, {"kind": "Cluster", "name": "public", "labels": {"tier": "x"}}, applier="other")
    assert differences(labelled) == {"labels.tier": (None, "x")}
    reset = await applied(service, {"kind": "Cluster", "name": "public"}, applier="new", replace=True, force=True)
    assert differences(reset) == {
        "clusterKind": ("public", "private"),
        "priceBook": ("cloud", None),
        "labels.tier": ("x", None),
    }


async def test_two_appliers_of_one_object_change_each_their_own_fields(service: Service) -> None:
    base = {"kind": "Queue", "path": "q"}
    await applied(service, base | {"weight": 2, "limits": {"cpu": 8}}, applier="platform")
    await applied(service, base | {"maxRunning": 5, "limits": {"memory": "1Gi"}}, applier="team")
    problem = await refused(service, base | {"maxRunning": 5, "limits": {"cpu": 9}}, applier="team")
    assert (problem["code"], problem["status"]) == ("conflict", 409)
    assert places(problem) == {"documents[0]: resources.cpu.limit": "is owned by 'platform'"}
    assert problem["conflicts"] == [
        {"kind": "Queue", "name": "q", "field": "resources.cpu.limit", "owners": ["platform"]}
    ]
    forced = await applied(service, base | {"maxRunning": 5, "limits": {"cpu": 9}}, applier="team", force=True)
    assert differences(forced) == {"resources.cpu.limit": ("8", "9"), "resources.memory.limit": ("1Gi", None)}
    lost = await refused(service, base | {"weight": 2, "limits": {"cpu": 8}}, applier="platform")
    assert list(places(lost)) == ["documents[0]: resources.cpu.limit"]
    queue = await shown(service, "/v1/queues/q")
    assert (queue["weight"], queue["maxRunning"], queue["resources"]) == (2, 5, {"cpu": {"limit": "9"}})


async def test_a_field_that_is_left_out_gets_its_default_unless_another_applier_owns_it_too(service: Service) -> None:
    base = {"kind": "Queue", "path": "q"}
    await applied(service, base | {"weight": 2, "maxRunning": 5, "description": "x"}, applier="one")
    await applied(service, base | {"weight": 2}, applier="two")
    given_up = await applied(service, base, applier="one")
    assert differences(given_up) == {"maxRunning": (5, None), "description": ("x", "")}
    changed = await applied(service, base | {"weight": 3}, applier="two")
    assert differences(changed) == {"weight": (2, 3)}, "it is the only owner now"


async def test_equal_values_are_owned_by_both_and_changed_by_neither_alone(service: Service) -> None:
    document = {"kind": "Queue", "path": "q", "weight": 2}
    await applied(service, document, applier="one")
    assert outcomes(await applied(service, document, applier="two")) == {"Queue q": "unchanged"}
    for applier, other in (("one", "two"), ("two", "one")):
        problem = await refused(service, document | {"weight": 3}, applier=applier)
        assert problem["conflicts"][0]["owners"] == [other]
    await applied(service, document | {"weight": 3}, applier="two", force=True)
    await applied(service, document | {"weight": 4}, applier="two")


async def test_a_list_is_one_field(service: Service) -> None:
    base = {"kind": "Cluster", "name": "west"}
    await applied(service, {"kind": "Queue", "path": "more"})
    await applied(service, base | {"onlyQueues": ["default"]}, applier="one")
    problem = await refused(service, base | {"onlyQueues": ["default", "more"]}, applier="two")
    assert problem["conflicts"][0]["field"] == "onlyQueues"


async def test_a_put_owns_its_fields_by_force(service: Service) -> None:
    base = {"kind": "Queue", "path": "q"}
    await applied(service, base | {"weight": 2, "maxRunning": 5}, applier="git")
    assert (await service.http.put("/v1/queues/q", json={"path": "q", "weight": 7, "maxRunning": 5})).is_success
    problem = await refused(service, base | {"weight": 2, "maxRunning": 5}, applier="git")
    assert problem["conflicts"] == [{"kind": "Queue", "name": "q", "field": "weight", "owners": ["admin"]}]
    patched = await service.http.patch("/v1/queues/q", json={"maxRunning": 6})
    assert (patched.status_code, patched.json()["maxRunning"], patched.json()["weight"]) == (200, 6, 7)
    problem = await refused(service, base | {"weight": 2, "maxRunning": 5}, applier="git")
    assert [one["field"] for one in problem["conflicts"]] == ["weight", "maxRunning"]
    assert outcomes(await applied(service, base | {"weight": 2}, applier="git", force=True)) == {"Queue q": "changed"}


async def test_objects_from_before_owners_were_recorded_are_anybodys(service: Service) -> None:
    await service.http.put("/v1/queues/old", json={"path": "old", "weight": 5})
    await execute(service.stores, "DELETE FROM field_owners")
    changed = await applied(service, {"kind": "Queue", "path": "old", "weight": 6}, applier="new")
    assert differences(changed) == {"weight": (5, 6)}
    whole = await applied(service, {"kind": "Queue", "path": "default", "maxRunning": 3}, applier="new")
    assert differences(whole) == {"maxRunning": (None, 3)}, "nor those that an installation begins with"


async def test_an_object_of_defaults_alone_is_a_field(service: Service) -> None:
    base = {"kind": "PriceBook", "name": "b"}
    await applied(service, base | {"spot": {}}, applier="one")
    problem = await refused(service, base | {"spot": {"cpu": "0.1"}}, applier="two")
    assert problem["conflicts"][0]["field"] == "spot.cpu"
    await applied(service, base | {"onDemand": {"devices": {}}}, applier="two")
    again = await applied(service, base | {"spot": {}, "onDemand": {"devices": {"nvidia.com/gpu": 2}}}, applier="one")
    assert differences(again) == {"onDemand.devices.nvidia.com/gpu": (None, "2")}


async def test_short_forms_and_flavors_are_the_fields_that_they_stand_for(service: Service) -> None:
    flavors = ("nvidia.com/gpu@kind=public,product=H100", "nvidia.com/gpu@product=H100,kind=public")
    first, second = ({"kind": "Queue", "path": "q", "limits": {flavor: 4}, "held": True} for flavor in flavors)
    await applied(service, first, applier="one")
    assert outcomes(await applied(service, second, applier="one")) == {"Queue q": "unchanged"}
    problem = await refused(service, {"kind": "Queue", "path": "q", "state": "open"}, applier="two")
    assert problem["conflicts"][0]["field"] == "state"
    twice = await refused(service, {"kind": "Queue", "path": "r", "limits": dict.fromkeys(flavors, "4")})
    assert "same flavor" in twice["detail"]
    unknown = await refused(service, {"kind": "Queue", "path": "q", "max_running": 4})
    assert list(places(unknown)) == ["documents[0]: max_running"]


async def test_two_documents_together_need_what_neither_has_alone(service: Service) -> None:
    base = {"kind": "Queue", "path": "q"}
    await applied(service, base | {"resources": {"cpu": {"guaranteed": 8}}}, applier="one")
    lent = await applied(service, base | {"resources": {"cpu": {"lendingLimit": 4}}}, applier="two")
    assert differences(lent) == {"resources.cpu.lendingLimit": (None, "4")}
    problem = await refused(service, base, applier="one")
    assert "lendingLimit 4 is more than guaranteed" in problem["detail"]


# -- the default class


async def test_another_default_class_is_told_as_a_change_of_the_old_one(service: Service) -> None:
    normal = await shown(service, "/v1/priority-classes/normal")
    assert normal["default"] is True
    gold = {"kind": "PriorityClass", "name": "gold", "value": 5, "default": True}
    answer = await applied(service, gold, {"kind": "PriorityClass", "name": "normal", "description": "old"})
    assert outcomes(answer) == {"PriorityClass normal": "changed", "PriorityClass gold": "created"}
    assert differences({"objects": answer["objects"][:1]}) == {"description": ("", "old"), "default": (True, False)}
    both = await refused(service, gold, {"kind": "PriorityClass", "name": "normal", "default": True})
    assert list(places(both)) == ["documents[1]: default"]
    back = await applied(service, {"kind": "PriorityClass", "name": "normal", "default": True}, applier="x", force=True)
    assert [one["fields"] for one in back["objects"]] == [
        [{"field": "default", "before": False, "after": True}],
        [{"field": "default", "before": True, "after": False}],
    ]
    assert outcomes(back) == {"PriorityClass normal": "changed", "PriorityClass gold": "changed"}


# -- prune


async def test_what_an_owner_no_longer_declares_is_removed_in_reverse_order(service: Service) -> None:
    documents = folder(3)
    await applied(service, *documents, applier="git")
    await applied(service, {"kind": "Queue", "path": "others"}, applier="else")
    before = await contents(service)
    rest = {"kind": "PriceBook", "name": "list", "onDemand": {"cpu": 0.04}}
    kept = await applied(service, rest, applier="git")
    assert (outcomes(kept), await contents(service)) == ({"PriceBook list": "unchanged"}, before), "not without prune"
    pruned = await applied(service, rest, applier="git", prune="git")
    names = [f"{one['kind']} {one['name']}" for one in pruned["objects"] if one["outcome"] == "removed"]
    teams = [f"Queue org/team-{number}" for number in range(3)]
    others = ["Reservation night", "BurstPolicy over", "Dataset images", "Cluster cloud"]
    assert names == [*others, *teams, "Queue org", "PriorityClass gold"]
    after = await contents(service)
    assert [one["path"] for one in after["Queue"]] == ["default", "others"]
    assert await value(service.stores, "SELECT count(*) FROM field_owners WHERE applier = 'git'") == 1
    assert outcomes(await applied(service, rest, applier="git", prune="git")) == {"PriceBook list": "unchanged"}


async def test_a_class_that_a_queue_or_a_policy_names_is_in_use(service: Service) -> None:
    classes = [{"kind": "PriorityClass", "name": name, "value": value} for value, name in enumerate(("one", "two"))]
    queue = {"kind": "Queue", "path": "q", "priorityClasses": ["one"]}
    policy = {"kind": "BurstPolicy", "name": "p", "queues": ["q"], "when": {"classAtLeast": "two"}}
    await applied(service, *classes, queue, policy | {"budget": {"day": 1}}, applier="git")
    problem = await refused(service, queue, policy | {"budget": {"day": 1}}, applier="git", prune="git")
    assert (problem["code"], set(places(problem))) == ("in-use", {"PriorityClass one", "PriorityClass two"})
    for name in ("one", "two"):
        assert (await service.http.delete(f"/v1/priority-classes/{name}")).status_code == 409
    await applied(service, {"kind": "Queue", "path": "q"}, applier="git", prune="git")


async def test_an_object_in_use_refuses_the_whole(service: Service) -> None:
    await applied(service, {"kind": "Queue", "path": "a"}, {"kind": "Queue", "path": "b"}, applier="git")
    await service.submit(queue="a")
    problem = await refused(
        service, {"kind": "Queue", "path": "b", "weight": 2}, {"kind": "Queue", "path": "c"}, applier="git", prune="git"
    )
    assert (problem["code"], list(places(problem))) == ("in-use", ["Queue a"])


async def test_an_object_that_another_applier_has_fields_of_is_removed_only_by_force(service: Service) -> None:
    queue, other = {"kind": "Queue", "path": "q"}, {"kind": "Queue", "path": "stays"}
    await applied(service, queue | {"weight": 2}, other, applier="git")
    await applied(service, queue | {"maxRunning": 2}, applier="team")
    problem = await refused(service, other, applier="git", prune="git")
    assert (problem["code"], list(places(problem))) == ("conflict", ["Queue q"])
    assert "team" in problem["mistakes"][0]["message"]
    forced = await applied(service, other, applier="git", prune="git", force=True)
    assert outcomes(forced) == {"Queue stays": "unchanged", "Queue q": "removed"}


async def test_a_put_under_the_same_name_makes_no_object_one_to_prune(service: Service) -> None:
    await service.http.put("/v1/queues/mine", json={"path": "mine"})
    answer = await applied(service, {"kind": "Queue", "path": "q"}, applier="admin", prune="admin")
    assert outcomes(answer) == {"Queue q": "created"}


async def test_a_cluster_whose_agent_is_in_contact_is_not_pruned(service: Service) -> None:
    await applied(service, {"kind": "Cluster", "name": "private"}, {"kind": "Queue", "path": "q"}, applier="git")
    agent = service.agent()
    await agent.connect()
    problem = await refused(service, {"kind": "Queue", "path": "q"}, applier="git", prune="git")
    assert (problem["code"], list(places(problem))) == ("cluster-in-contact", ["Cluster private"])
    await agent.http.aclose()


# -- export


async def test_what_is_exported_changes_nothing_when_it_is_applied(service: Service) -> None:
    await applied(service, *folder(5), applier="git")
    for _, first, second in OBJECTS.values():
        address = next(one[0] for one in OBJECTS.values() if one[1] is first)
        await service.http.put(address, json=first)
        await service.http.put(address, json=second)
    documents = await exported(service)
    answer = await applied(service, *documents, applier="another")
    assert set(outcomes(answer).values()) == {"unchanged"}
    assert set(outcomes(await applied(service, *documents, applier="another", replace=True)).values()) == {"unchanged"}


# -- history


async def history(service: Service, kind: str, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    cursor: dict[str, Any] = {}
    while True:
        answer = await service.http.get("/v1/history", params={"kind": kind, "name": name, "limit": 2, **cursor})
        assert answer.status_code == 200, answer.text
        found += answer.json()["revisions"]
        if answer.json()["next"] is None:
            return found
        cursor = {"cursor": answer.json()["next"]}


@pytest.mark.parametrize("cursor", [0, 1, 2**63 - 1])
async def test_any_number_is_a_cursor_of_a_history(service: Service, cursor: int) -> None:
    await service.http.put("/v1/queues/q", json={"path": "q"})
    parameters: dict[str, str | int] = {"kind": "Queue", "name": "q", "cursor": cursor}
    answer = await service.http.get("/v1/history", params=parameters)
    assert answer.status_code == 200, answer.text
    assert [one["revision"] for one in answer.json()["revisions"]] == ([1] if cursor > 1 else [])


@pytest.mark.parametrize("key", ["", "k" * 201])
@pytest.mark.parametrize(
    ("path", "body"),
    [("apply", {"documents": [{"kind": "Queue", "path": "q"}]}), ("rollback", {"kind": "Queue", "name": "q"})],
)
async def test_a_dry_run_refuses_an_idempotency_key_that_the_real_run_would_refuse(
    service: Service, path: str, body: dict[str, Any], key: str
) -> None:
    for dry in (True, False):
        headers = {"Idempotency-Key": key}
        answer = await service.http.post(f"/v1/{path}", json={**body, "dryRun": dry}, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid-parameter"), answer.text


async def test_each_change_of_an_object_is_a_revision(service: Service) -> None:
    http = service.http
    await http.put("/v1/queues/q", json={"path": "q", "weight": 2})
    await http.put("/v1/queues/q", json={"path": "q", "weight": 2})
    await applied(service, {"kind": "Queue", "path": "q", "maxRunning": 4}, applier="git")
    await http.patch("/v1/queues/q", json={"maxRunning": None})
    await http.delete("/v1/queues/q")
    await applied(service, {"kind": "Queue", "path": "q"}, applier="git")
    found = await history(service, "Queue", "q")
    steps = [(one["revision"], one["action"], one["actor"], one["applier"]) for one in found]
    assert steps == [
        (5, "apply", "admin", "git"),
        (4, "delete", "admin", "admin"),
        (3, "patch", "admin", "admin"),
        (2, "apply", "admin", "git"),
        (1, "put", "admin", "admin"),
    ]
    assert found[1]["spec"] is None
    assert found[3]["fields"] == [{"field": "maxRunning", "before": None, "after": 4}]
    assert found[3]["spec"] == {"kind": "Queue", "path": "q", "weight": 2.0, "maxRunning": 4}
    assert found[4]["fields"] == [{"field": "weight", "before": None, "after": 2.0}]


async def test_a_rollback_returns_to_a_revision_and_back(service: Service) -> None:
    for weight in (1, 2, 3):
        await service.http.put("/v1/queues/q", json={"path": "q", "weight": weight})

    async def roll_back(**fields: Any) -> dict[str, Any]:
        answer = await service.http.post("/v1/rollback", json={"kind": "Queue", "name": "q", **fields})
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    tried = await roll_back(dryRun=True)
    assert (await shown(service, "/v1/queues/q"))["weight"] == 3
    done = await roll_back()
    assert tried | {"dryRun": False} == done
    assert (done["revision"], (await shown(service, "/v1/queues/q"))["weight"]) == (2, 2)
    assert (await roll_back(revision=1))["object"]["fields"] == [{"field": "weight", "before": 2.0, "after": 1.0}]
    assert (await roll_back(revision=1))["object"]["outcome"] == "unchanged"
    never = await service.http.post("/v1/rollback", json={"kind": "Queue", "name": "nowhere"})
    assert (never.status_code, never.json()["detail"]) == (404, "there is no queue 'nowhere', and it has no history")
    missing = await service.http.post("/v1/rollback", json={"kind": "Queue", "name": "q", "revision": 99})
    assert (missing.status_code, missing.json()["code"]) == (404, "not-found")
    line = (await service.http.get("/v1/audit", params={"action": "rollback queue"})).json()["audit"][-1]
    assert line["details"] == {"before": {"weight": 3.0}, "after": {"weight": 2.0}, "revision": 2}


@pytest.mark.parametrize(("address", "first", "second"), OBJECTS.values(), ids=OBJECTS)
async def test_a_removed_object_of_each_kind_is_restored(
    service: Service, address: str, first: dict[str, Any], second: dict[str, Any]
) -> None:
    kind = next(one for one in KINDS.values() if address.startswith(f"{one.address}/"))
    for body in (first, second):
        assert (await service.http.put(address, json=body)).is_success
    before = await shown(service, address)
    assert (await service.http.delete(address)).status_code == 204
    found = await history(service, kind.kind, kind.name_in(first))
    assert [one["action"] for one in found] == ["delete", "put", "put"]
    answer = await service.http.post("/v1/rollback", json={"kind": kind.kind, "name": kind.name_in(first)})
    assert (answer.status_code, answer.json()["object"]["outcome"]) == (200, "created")
    assert document_of(kind, await shown(service, address)) == document_of(kind, before)
    third = await service.http.post(
        "/v1/rollback", json={"kind": kind.kind, "name": kind.name_in(first), "revision": 1}
    )
    assert third.json()["object"]["outcome"] == "changed"


async def test_a_rollback_that_names_what_is_gone_is_refused(service: Service) -> None:
    await applied(service, {"kind": "PriceBook", "name": "b"}, {"kind": "Cluster", "name": "w", "priceBook": "b"})
    await service.http.patch("/v1/clusters/w", json={"priceBook": None})
    assert (await service.http.delete("/v1/price-books/b")).status_code == 204
    answer = await service.http.post("/v1/rollback", json={"kind": "Cluster", "name": "w"})
    assert (answer.status_code, answer.json()["code"]) == (422, "unknown-price-book")


async def test_a_change_that_was_not_recorded_is_a_revision_of_its_own(service: Service) -> None:
    """An older release beside this one, for example, changes objects without recording it."""
    await service.http.put("/v1/queues/q", json={"path": "q", "weight": 2})
    await execute(service.stores, "UPDATE queues SET spec = spec || '{\"weight\": 9}' WHERE path = 'q'")
    await execute(service.stores, "DELETE FROM declared_revisions WHERE name = 'default'")
    for path in ("q", "default"):
        await service.http.patch(f"/v1/queues/{path}", json={"maxRunning": 1})
    steps = {
        path: [(one["action"], one["spec"].get("weight")) for one in await history(service, "Queue", path)]
        for path in ("q", "default")
    }
    assert steps == {
        "q": [("patch", 9), ("unrecorded", 9), ("put", 2)],
        "default": [("patch", None), ("unrecorded", None)],
    }
    restored = await service.http.post("/v1/rollback", json={"kind": "Queue", "name": "q", "revision": 2})
    assert restored.json()["object"]["fields"] == [{"field": "maxRunning", "before": 1, "after": None}]


async def test_the_history_of_nothing_is_not_found(service: Service) -> None:
    missing = await service.http.get("/v1/history", params={"kind": "Queue", "name": "none"})
    assert (missing.status_code, missing.json()["code"]) == (404, "not-found")
    wrong = await service.http.get("/v1/history", params={"kind": "Pod", "name": "none"})
    assert (wrong.status_code, wrong.json()["code"]) == (422, "invalid-parameter")


# -- merge patches


async def test_a_patch_changes_some_fields_unless_somebody_has_changed_the_object(service: Service) -> None:
    http, address = service.http, "/v1/queues/q"
    etag = (await http.put(address, json={"path": "q", "weight": 2, "limits": {"cpu": 4, "memory": "1Gi"}})).headers[
        "etag"
    ]
    done = await http.patch(address, json={"maxRunning": 3, "resources": {"cpu": None}}, headers={"If-Match": etag})
    assert (done.status_code, done.json()["resources"]) == (200, {"memory": {"limit": "1Gi"}})
    assert (done.json()["weight"], done.json()["maxRunning"]) == (2, 3)
    assert done.headers["etag"] == (await http.get(address)).headers["etag"] != etag
    late = await http.patch(address, json={"maxRunning": 4}, headers={"If-Match": etag})
    assert (late.status_code, late.json()["code"]) == (412, "precondition-failed")
    reset = await http.patch(address, json={"maxRunning": None, "weight": None})
    assert (reset.json()["weight"], "maxRunning" in reset.json()) == (1, False)
    line = (await http.get("/v1/audit", params={"action": "patch queue"})).json()["audit"][0]
    assert line["details"] == {
        "before": {"maxRunning": 3, "weight": 2.0},
        "after": {"maxRunning": None, "weight": 1.0},
    }


@pytest.mark.parametrize(
    ("patch", "path"),
    [
        ({"weight": -1}, "weight"),
        ({"path": "other"}, "path"),
        ({"wight": 1}, "wight"),
        ({"wight": None}, "wight"),
        ({"limts": {"cpu": None}}, "limts"),
        ({"max_running": 1}, "max_running"),
        ({"limits": {"cpu": 1}, "resources": {"cpu": {"limit": 2}}}, "patch"),
    ],
)
async def test_a_patch_that_leads_to_a_mistake_is_refused(service: Service, patch: dict[str, Any], path: str) -> None:
    before = await contents(service)
    answer = await service.http.patch("/v1/queues/default", json=patch)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid-spec")
    assert list(places(answer.json())) == [path]
    assert await contents(service) == before


async def test_a_patch_of_nothing_is_not_found(service: Service) -> None:
    assert (await service.http.patch("/v1/queues/none", json={"weight": 1})).status_code == 404
    assert (await service.http.patch("/v1/queues/default", json=[1])).status_code == 422


# -- many at once


async def test_two_appliers_at_once_are_done_one_after_the_other(service: Service) -> None:
    documents = folder(20)
    reversed_ = list(reversed(documents))
    answers = await asyncio.gather(
        *(send(service, *each, applier=f"applier-{number}") for number, each in enumerate([documents, reversed_] * 3))
    )
    assert [answer.status_code for answer in answers] == [200] * 6
    created = [answer for answer in answers if set(outcomes(answer.json()).values()) == {"created"}]
    assert len(created) == 1
    weights = await asyncio.gather(
        *(
            send(service, {"kind": "Queue", "path": "org/team-0", "weight": 50 + n}, applier=f"w{n}", force=True)
            for n in range(4)
        )
    )
    assert [answer.status_code for answer in weights] == [200] * 4
    steps = [differences(answer.json())["weight"] for answer in weights]
    assert len({before for before, _ in steps}) == 4, "each has seen the result of the one before"


async def test_applies_puts_and_submissions_at_once_do_not_deadlock(service: Service) -> None:
    documents = [one for one in folder(8) if one["kind"] in ("Queue", "PriorityClass")]
    await applied(service, *documents, applier="git")
    users = [f"org/team-{number}" for number in range(8)]

    async def put(number: int) -> httpx.Response:
        body = {"path": users[number % 8], "weight": number + 1}
        return await service.http.put(f"/v1/queues/{users[number % 8]}", json=body)

    async def apply(number: int) -> httpx.Response:
        changed = [one | ({"weight": number + 1} if one["kind"] == "Queue" else {}) for one in documents]
        random.Random(number).shuffle(changed)
        return await send(service, *changed, applier="git", force=True)

    async def submit(number: int) -> httpx.Response:
        jobs = [job(queue=users[(number + place) % 8]) for place in range(4)]
        return await service.http.post("/v1/jobs", json={"jobs": jobs})

    calls = [call(number) for number in range(8) for call in (put, apply, submit)]
    assert {answer.status_code for answer in await asyncio.gather(*calls)} <= {200, 201}


@pytest.mark.parametrize("kind", ["queue", "priority class"])
async def test_what_others_change_meanwhile_is_no_effect_of_an_apply(
    service: Service, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    others: dict[str, tuple[str, Document]] = {
        "queue": ("/v1/queues/other", {"path": "other"}),
        "priority class": ("/v1/priority-classes/other", {"name": "other", "value": 3}),
    }
    own: dict[str, Document] = {
        "queue": {"kind": "Queue", "path": "q"},
        "priority class": {"kind": "PriorityClass", "name": "p", "value": 2},
    }
    address, body = others[kind]
    write = declarations._Application._write

    async def write_beside_another(self: declarations._Application) -> None:
        await write(self)
        assert (await service.http.put(address, json=body)).status_code == 201

    monkeypatch.setattr(declarations._Application, "_write", write_beside_another)
    answer = await applied(service, own[kind])
    assert len(answer["objects"]) == 1
    monkeypatch.undo()
    lines = (await service.http.get("/v1/audit", params={"target": "other"})).json()["audit"]
    assert [one["action"] for one in lines] == [f"put {kind}"]


async def test_a_put_that_expects_what_an_apply_has_changed_is_refused(service: Service) -> None:
    made = await service.http.put("/v1/queues/q", json={"path": "q"})

    async def put(weight: int) -> httpx.Response:
        headers = {"If-Match": made.headers["etag"]}
        return await service.http.put("/v1/queues/q", json={"path": "q", "weight": weight}, headers=headers)

    first, second, third = await asyncio.gather(
        put(2), send(service, {"kind": "Queue", "path": "q", "weight": 3}, force=True, applier="git"), put(4)
    )
    assert second.status_code == 200
    assert sorted((first.status_code, third.status_code)) in ([200, 412], [412, 412])
    revisions = [one["spec"].get("weight") for one in await history(service, "Queue", "q")]
    assert len(revisions) == 2 + [first.status_code, third.status_code].count(200)


# -- a dry run is the real run


def random_documents(chance: random.Random) -> list[Document]:
    """Return a few documents, of which many are wrong: parents, price books, classes and clusters that do not exist, wrong values."""
    found: list[Document] = []
    names = ("a", "b", "c")
    for _ in range(chance.randint(1, 7)):
        name, other = chance.choice(names), chance.choice(names)
        one: Document
        match chance.randrange(5):
            case 0:
                one = {"kind": "Queue", "path": name if chance.random() < 0.5 else f"{name}/{other}"}
                optional: dict[str, Any] = {
                    "weight": chance.choice((1, 2, 3)),
                    "limits": {"cpu": chance.choice((1, 2))},
                    "defaultPriorityClass": chance.choice((other, "normal", None)),
                    "description": chance.choice(("", "x")),
                }
            case 1:
                one = {"kind": "Cluster", "name": name}
                optional = {
                    "priceBook": chance.choice((other, None)),
                    "labels": {other: chance.choice(names)},
                    "clusterKind": chance.choice(("private", "public", "moon" if chance.random() < 0.1 else "edge")),
                }
            case 2:
                one = {"kind": "PriceBook", "name": name}
                optional = {"onDemand": {"cpu": chance.choice((1, 2))}, "spot": chance.choice(({}, None))}
            case 3:
                one = {"kind": "PriorityClass", "name": name, "value": chance.choice((1, 2))}
                optional = {"default": chance.random() < 0.3, "preemptible": chance.random() < 0.5}
            case _:
                one = {"kind": "Dataset", "name": name, "size": chance.choice(("1Gi", "2Gi"))}
                optional = {"clusters": [chance.choice((*names, "private"))], "remote": chance.random() < 0.5}
        kept = {key: given for key, given in optional.items() if chance.random() < 0.5}
        found.append(one | kept)
    return found


def without_time(answer: httpx.Response) -> dict[str, Any]:
    varying = ("requestId", "dryRun")
    return {key: one for key, one in answer.json().items() if key not in varying} | {"status": answer.status_code}


async def fingerprint(service: Service) -> Any:
    """Return what is declared and recorded, in one statement."""
    specs = " UNION ALL ".join(
        f"SELECT '{one.table.table}' || {one.kind.key} || spec::text AS line FROM {one.table.table}"
        for one in declared_kinds.KINDS
    )
    counts = ", ".join(f"(SELECT count(*) FROM {name}) AS {name}" for name in _RECORDS)
    sql = f"SELECT (SELECT string_agg(line, ' ' ORDER BY line) FROM ({specs}) AS s) AS specs, {counts}"
    return tuple((await rows(service.stores, sql))[0])


async def test_a_dry_run_answers_what_the_real_run_answers(service: Service) -> None:
    chance = random.Random(20)
    statuses = []
    for _ in range(400 if IS_DEEP else 60):
        documents = random_documents(chance)
        terms: dict[str, Any] = {
            "applier": chance.choice(("one", "two")),
            "force": chance.random() < 0.4,
            "replace": chance.random() < 0.2,
        }
        if chance.random() < 0.3:
            terms["prune"] = terms["applier"]
        before = await fingerprint(service)
        tried = await send(service, *documents, **terms, dryRun=True)
        assert await fingerprint(service) == before
        done = await send(service, *documents, **terms)
        assert without_time(tried) == without_time(done), (documents, terms)
        if done.status_code != 200:
            assert await fingerprint(service) == before
        else:
            again = await send(service, *documents, **terms)
            assert set(outcomes(again.json()).values()) <= {"unchanged"}, (documents, terms, again.text)
        statuses.append(done.status_code)
    assert {200, 409, 422} <= set(statuses)
    assert statuses.count(200) > 10


async def test_warnings_are_those_of_the_state_after_the_change(service: Service) -> None:
    agent = service.agent()
    await agent.connect(cpu=4)
    queue = {"kind": "Queue", "path": "big", "resources": {"cpu": {"guaranteed": 1000}}}
    for dry_run in (True, False):
        answer = await applied(service, queue, dryRun=dry_run)
        assert [one["name"] for one in answer["warnings"]] == ["big"], answer
    await agent.http.aclose()


async def test_a_limit_on_a_resource_that_no_cluster_has_is_warned_of(service: Service) -> None:
    queue = {"kind": "Queue", "path": "lab", "resources": {"memroy": {"limit": "5Gi"}, "cpu": {"limit": "5"}}}
    assert (await applied(service, queue, dryRun=True))["warnings"] == []
    agent = service.agent()
    await agent.connect(cpu=4)
    answer = await applied(service, queue | {"limitsPerUser": {"cpus": "2"}})
    assert [(one["name"], one["message"]) for one in answer["warnings"]] == [
        ("lab", "limits cpus, which no cluster has now; did you mean 'cpu'?"),
        ("lab", "limits memroy, which no cluster has now; did you mean 'memory'?"),
    ]
    await agent.http.aclose()


async def test_a_reservation_of_more_nodes_than_any_cluster_has_is_warned_of(service: Service) -> None:
    agent = service.agent()
    await agent.connect(cpu=4, nodes=5)
    window = {"start": "2036-01-01T00:00:00Z", "end": "2036-01-02T00:00:00Z"}
    night = {"kind": "Reservation", "name": "night", "queue": "default", **window}
    for dry_run in (True, False):
        answer = await applied(service, night | {"nodes": 1000}, dryRun=dry_run)
        (warning,) = answer["warnings"]
        assert (warning["kind"], warning["name"]) == ("Reservation", "night")
        assert (
            "reserves 1000 nodes on each of its clusters, and none of them has as many: the most has"
            in (warning["message"])
        )
    assert (await applied(service, night | {"nodes": 5}))["warnings"] == []
    await agent.http.aclose()


async def test_only_admins_apply_look_back_and_patch(service: Service) -> None:
    user = service.as_key(await make_key(service, "user", queues=["default"]))
    calls: Sequence[tuple[str, str, Any]] = (
        ("POST", "/v1/apply", {"documents": [{"kind": "Queue", "path": "default"}]}),
        ("GET", "/v1/history?kind=Queue&name=default", None),
        ("POST", "/v1/rollback", {"kind": "Queue", "name": "default"}),
        ("PATCH", "/v1/queues/default", {"weight": 2}),
    )
    for method, address, body in calls:
        assert (await user.request(method, address, json=body)).status_code == 403, address
    await user.aclose()


async def test_records_of_declared_state_are_in_tables_of_their_own(service: Service) -> None:
    assert set(_RECORDS) <= {table.name for table in metadata.sorted_tables}
    kept = await rows(service.stores, "SELECT action FROM declared_revisions WHERE name = 'default'")
    assert [row.action for row in kept] == ["make"]
