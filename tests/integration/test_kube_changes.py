"""Changes by the Kubernetes API: jobs and declared objects are created, applied, patched, replaced and deleted."""

import asyncio
from typing import Any

import httpx
import pytest

from tests.conftest import Service

GROUP = "/apis/trainmaster.dev/v1"
JOBS = f"{GROUP}/namespaces/default/jobs"
MERGE = {"Content-Type": "application/merge-patch+json"}
JSON_PATCH = {"Content-Type": "application/json-patch+json"}
APPLY = {"Content-Type": "application/apply-patch+yaml"}
TEMPLATE: dict[str, Any] = {"command": ["true"], "resources": {"cpu": 1}}
ROLES = [{"name": "main", "template": TEMPLATE}]


def job_manifest(name: str = "", labels: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    metadata = {"name": name} if name else {"generateName": "made-"}
    return {
        "apiVersion": "trainmaster.dev/v1",
        "kind": "Job",
        "metadata": metadata | ({"labels": labels} if labels else {}),
        "spec": {"roles": ROLES, **spec},
    }


def queue_manifest(name: str, **spec: Any) -> dict[str, Any]:
    return {"apiVersion": "trainmaster.dev/v1", "kind": "Queue", "metadata": {"name": name}, "spec": spec}


def value_of(answer: httpx.Response, status: int = 200) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    value: dict[str, Any] = answer.json()
    return value


async def test_a_job_has_the_name_that_it_is_given_and_is_written_as_it_was(service: Service) -> None:
    name = "a-name.that-is-longer-than-those-of-jobs"
    made = value_of(await service.http.post(JOBS, json=job_manifest(name, {"team": "a"})), 201)
    assert (made["metadata"]["name"], made["metadata"]["namespace"]) == (name, "default")
    assert made["spec"] == {"roles": ROLES}
    assert made["status"]["id"].startswith("a-name-that-is-longer-th-")
    shown = value_of(await service.http.get(f"{JOBS}/{name}"))
    assert without_reason(shown) == without_reason(made)
    assert (await service.job(shown["status"]["id"]))["labels"] == {"team": "a"}
    listed = value_of(await service.http.get(JOBS, params={"fieldSelector": f"metadata.name={name}"}))
    assert [one["metadata"]["resourceVersion"] for one in listed["items"]] == [made["metadata"]["resourceVersion"]]
    (manager,) = made["metadata"]["managedFields"]
    assert manager["operation"] == "Update"
    assert manager["fieldsV1"]["f:metadata"]["f:labels"] == {"f:team": {}}
    twice = value_of(await service.http.post(JOBS, json=job_manifest(name)), 409)
    assert (twice["reason"], "already exists" in twice["message"]) == ("AlreadyExists", True)
    audit = (await service.http.get("/v1/audit")).json()["audit"]
    assert [one["action"] for one in audit if one["action"] == "submit"] == ["submit"]


async def test_a_name_may_be_made_and_a_dry_run_stores_nothing(service: Service) -> None:
    made = value_of(await service.http.post(JOBS, json=job_manifest()), 201)
    assert made["metadata"]["name"] == made["status"]["id"]
    assert made["metadata"]["name"].startswith("made-")
    tried = value_of(await service.http.post(f"{JOBS}?dryRun=All", json=job_manifest("tried")), 201)
    assert tried["metadata"]["uid"]
    value_of(await service.http.get(f"{JOBS}/tried"), 404)
    taken = value_of(await service.http.post(JOBS, json=job_manifest(made["metadata"]["name"])), 409)
    assert taken["reason"] == "AlreadyExists"


@pytest.mark.parametrize(
    ("body", "headers", "code", "status", "field"),
    [
        (job_manifest("a", extra=1), {}, 422, "Invalid", "spec.extra"),
        (job_manifest("a", {"a b": "c"}), {}, 422, "Invalid", 'metadata.labels["a b"]'),
        (job_manifest("a") | {"kind": "Queue"}, {}, 422, "Invalid", "kind"),
        (job_manifest("a") | {"apiVersion": "batch/v1"}, {}, 422, "Invalid", "apiVersion"),
        (job_manifest("a") | {"extra": 1}, {}, 422, "Invalid", "extra"),
        (
            job_manifest("a") | {"metadata": {"name": "a", "finalizers": ["x"]}},
            {},
            422,
            "Invalid",
            "metadata.finalizers",
        ),
        (job_manifest("a") | {"metadata": {"name": "a", "labels": {"a": 1}}}, {}, 422, "Invalid", "metadata.labels"),
        (job_manifest("a") | {"metadata": {}}, {}, 422, "Invalid", "metadata.name"),
        (job_manifest("A_b"), {}, 422, "Invalid", "metadata.name"),
        (job_manifest("a") | {"metadata": {"generateName": "a/"}}, {}, 422, "Invalid", "metadata.generateName"),
        (job_manifest("a", queue="other/queue"), {}, 422, "Invalid", "spec.queue"),
        (job_manifest("a", roles=[]), {}, 422, "Invalid", "spec"),
        ([], {}, 400, "BadRequest", ""),
        (job_manifest("a"), {"Content-Type": "application/vnd.kubernetes.protobuf"}, 400, "BadRequest", ""),
        (job_manifest("a"), {"Content-Type": "application/cbor"}, 415, "UnsupportedMediaType", ""),
    ],
)
async def test_a_manifest_with_a_mistake_is_refused_with_its_path(
    service: Service, body: Any, headers: dict[str, str], code: int, status: str, field: str
) -> None:
    found = value_of(await service.http.post(JOBS, json=body, headers=headers), code)
    assert found["reason"] == status
    assert field in [cause.get("field", "") for cause in found["details"]["causes"]]
    assert value_of(await service.http.get(JOBS))["items"] == []


@pytest.mark.parametrize("validation", ["Warn", "Ignore"])
async def test_unknown_fields_are_left_out_with_a_warning_where_the_client_wants_that(
    service: Service, validation: str
) -> None:
    wanted = {"fieldValidation": validation}
    roles = [{**ROLES[0], "colour": "red", "template": TEMPLATE | {"a.b": 1}}]
    body = job_manifest("a", roles=roles, ttl=3) | {"more": 1}
    made = await service.http.post(JOBS, json=body, params=wanted)
    assert value_of(made, 201)["spec"] == {"roles": ROLES}
    paths = ["more", "spec.roles[0].colour", 'spec.roles[0].template[\\"a.b\\"]', "spec.ttl"]
    warnings = made.headers.get_list("warning", split_commas=True)
    assert sorted(warnings) == [f'299 - "unknown field \\"{path}\\""' for path in paths]
    queue = await service.http.post(f"{GROUP}/queues", json=queue_manifest("q", weigth=2, weight=3), params=wanted)
    assert value_of(queue, 201)["spec"] == {"weight": 3}
    assert queue.headers["warning"] == '299 - "unknown field \\"spec.weigth\\""'
    patch = {"metadata": {"labels": {"a": "b"}}, "spec": {"sped": 1}}
    changed = await service.http.patch(f"{JOBS}/a", json=patch, headers=MERGE, params=wanted)
    assert value_of(changed)["metadata"]["labels"] == {"a": "b"}
    assert "spec.sped" in changed.headers["warning"]
    refused = await service.http.post(JOBS, json=job_manifest("b", roles=[{"colour": 1}]), params=wanted)
    assert value_of(refused, 422)["details"]["causes"][0]["field"] == "spec.roles[0].name"
    strict = await service.http.post(JOBS, json=body, params={"fieldValidation": "Strict"})
    assert value_of(strict, 422)["reason"] == "Invalid"
    assert [one["metadata"]["name"] for one in value_of(await service.http.get(JOBS))["items"]] == ["a"]


async def test_a_namespace_without_a_queue_takes_no_jobs(service: Service) -> None:
    found = value_of(await service.http.post(f"{GROUP}/namespaces/none/jobs", json=job_manifest("a")), 404)
    assert 'namespaces "none" not found' in found["message"]


async def test_a_waiting_job_is_patched_and_all_else_of_it_is_fixed(service: Service) -> None:
    value_of(await service.http.post(JOBS, json=job_manifest("a", {"team": "a"})), 201)

    async def patch(body: Any, status: int = 200, headers: dict[str, str] = MERGE, **parameters: str) -> dict[str, Any]:
        return value_of(await service.http.patch(f"{JOBS}/a", json=body, headers=headers, params=parameters), status)

    before = (await patch({}))["metadata"]["resourceVersion"]
    assert (await patch({"spec": {"priority": 7}}))["spec"]["priority"] == 7
    assert (await patch({"metadata": {"labels": {"team": None, "tier": "x"}}}))["metadata"]["labels"] == {"tier": "x"}
    assert (await patch({"metadata": {"annotations": {"note": "n"}}}))["metadata"]["annotations"] == {"note": "n"}
    held = await patch([{"op": "add", "path": "/spec/suspend", "value": True}], headers=JSON_PATCH)
    assert [one["type"] for one in held["status"]["conditions"]] == ["Queued", "Suspended"]
    assert (await patch({"spec": {"suspend": False}}))["status"]["state"] == "queued"
    dry = await patch({"spec": {"priority": 9}}, dryRun="All")
    assert dry["spec"]["priority"] == 9
    shown = value_of(await service.http.get(f"{JOBS}/a"))
    assert shown["spec"]["priority"] == 7
    assert int(shown["metadata"]["resourceVersion"]) > int(before)
    fixed = await patch({"spec": {"timeLimit": "5m"}}, 422)
    assert fixed["details"]["causes"][0]["field"] == "spec.timeLimit"
    wrong = await patch({"spec": {"priority": 70_000}}, 422)
    assert wrong["details"]["causes"][0]["field"] == "spec.priority"
    stale = await patch({"metadata": {"resourceVersion": before}, "spec": {"priority": 1}}, 409)
    assert "the object has been modified" in stale["message"]
    failed = await patch([{"op": "test", "path": "/spec/priority", "value": 1}], 422, JSON_PATCH)
    assert "a test of the patch fails" in failed["message"]
    assert (await patch([{"op": "jump", "path": "/a"}], 422, JSON_PATCH))["reason"] == "Invalid"
    strategic = await patch({}, 415, {"Content-Type": "application/strategic-merge-patch+json"})
    assert "application/merge-patch+json" in strategic["message"]
    events = (await service.http.get(f"/v1/jobs/{shown['status']['id']}/events")).json()["events"]
    changes = [one.get("details") for one in events if one["kind"] == "changed"]
    assert {"labels": {"tier": "x"}, "labelsBefore": {"team": "a"}} in changes
    assert {"annotations": ["note"]} in changes


async def test_a_job_is_replaced_by_what_differs(service: Service) -> None:
    made = value_of(await service.http.post(JOBS, json=job_manifest("a")), 201)
    made["spec"]["priority"] = 3
    made["metadata"]["labels"] = {"x": "y"}
    after = value_of(await service.http.put(f"{JOBS}/a", json=made))
    assert (after["spec"]["priority"], after["metadata"]["labels"]) == (3, {"x": "y"})
    stale = value_of(await service.http.put(f"{JOBS}/a", json=made), 409)
    assert stale["reason"] == "Conflict"
    other = value_of(await service.http.put(f"{JOBS}/b", json=made), 422)
    assert other["details"]["causes"][0]["field"] == "metadata.name"


async def test_an_apply_creates_changes_nothing_twice_and_conflicts(service: Service) -> None:
    async def apply(body: Any, manager: str, status: int = 200, **more: str) -> dict[str, Any]:
        parameters = {"fieldManager": manager, **more}
        return value_of(await service.http.patch(f"{JOBS}/a", json=body, headers=APPLY, params=parameters), status)

    first = await apply(job_manifest("a", {"team": "a"}, priority=1), "one", 201)
    again = await apply(job_manifest("a", {"team": "a"}, priority=1), "one")
    # Its status is why it waits, which the scheduler may have found out meanwhile.
    assert [again[part] for part in ("metadata", "spec")] == [first[part] for part in ("metadata", "spec")]
    conflict = await apply(job_manifest("a", priority=2), "two", 409)
    assert conflict["message"] == "Apply failed with 1 conflict: conflict with 'one': .spec.priority"
    assert conflict["details"]["causes"][0]["field"] == "spec.priority"
    forced = await apply(job_manifest("a", priority=2), "two", force="true")
    assert forced["spec"]["priority"] == 2
    given_up = await apply(job_manifest("a"), "one")
    assert "labels" not in given_up["metadata"]
    nameless = await service.http.patch(f"{JOBS}/a", json=job_manifest("a"), headers=APPLY)
    assert nameless.status_code == 422
    text = "apiVersion: trainmaster.dev/v1\nkind: Job\nmetadata: {name: a, labels: {from: yaml}}\n"
    yaml = await service.http.patch(f"{JOBS}/a?fieldManager=y", content=text, headers=APPLY)
    assert value_of(yaml)["metadata"]["labels"] == {"from": "yaml"}
    broken = await service.http.patch(f"{JOBS}/a?fieldManager=y", content="a: [", headers=APPLY)
    assert "not YAML" in value_of(broken, 400)["message"]


async def test_a_deleted_job_is_cancelled_gone_and_its_name_free(service: Service) -> None:
    made = value_of(await service.http.post(JOBS, json=job_manifest("a")), 201)
    wrong = {"preconditions": {"uid": "other"}}
    value_of(await service.http.request("DELETE", f"{JOBS}/a", json=wrong), 409)
    value_of(await service.http.delete(f"{JOBS}/a?dryRun=All"))
    value_of(await service.http.get(f"{JOBS}/a"))
    done = value_of(await service.http.delete(f"{JOBS}/a"))
    assert (done["status"], done["details"]["uid"]) == ("Success", made["metadata"]["uid"])
    value_of(await service.http.get(f"{JOBS}/a"), 404)
    value_of(await service.http.delete(f"{JOBS}/a"), 404)
    assert value_of(await service.http.get(JOBS))["items"] == []
    assert (await service.job(made["status"]["id"]))["state"] == "cancelled"
    again = value_of(await service.http.post(JOBS, json=job_manifest("a")), 201)
    assert again["metadata"]["uid"] != made["metadata"]["uid"]
    # A job that is tried again exists again, by its id, as its name is given to another.
    retried = await service.http.post(f"/v1/jobs/{made['status']['id']}/retry")
    assert retried.status_code == 200, retried.text
    value_of(await service.http.get(f"{JOBS}/{made['status']['id']}"))
    plain = await service.submit("plain")
    value_of(await service.http.delete(f"{JOBS}/{plain}"))
    value_of(await service.http.get(f"{JOBS}/{plain}"), 404)


async def test_nobody_changes_a_job_of_another_or_an_object_without_the_right(service: Service) -> None:
    value_of(await service.http.post(JOBS, json=job_manifest("a")), 201)
    made = await service.http.post("/v1/keys", json={"name": "u", "role": "user", "queues": ["default"]})
    async with service.as_key(made.json()["key"]) as user:
        refused = value_of(await user.patch(f"{JOBS}/a", json={"spec": {"priority": 1}}, headers=MERGE), 403)
        assert refused["reason"] == "Forbidden"
        labels = {"metadata": {"labels": {"a": "b"}}}
        value_of(await user.patch(f"{JOBS}/a", json=labels, headers=MERGE), 403)
        value_of(await user.delete(f"{JOBS}/a"), 403)
        value_of(await user.post(JOBS, json=job_manifest("own")), 201)
        value_of(await user.delete(f"{JOBS}/own"))
        value_of(await user.post(f"{GROUP}/queues", json=queue_manifest("new")), 403)
        value_of(await user.delete(f"{GROUP}/queues/default"), 403)


async def test_declared_objects_are_changed_with_their_revisions(service: Service) -> None:
    queues = f"{GROUP}/queues"
    made = value_of(await service.http.post(queues, json=queue_manifest("team", weight=2)), 201)
    assert made["spec"] == {"weight": 2}
    value_of(await service.http.post(queues, json=queue_manifest("team.a", resources={"cpu": {"limit": 4}})), 201)
    assert (await service.http.get("/v1/queues/team/a")).json()["resources"]["cpu"]["limit"] == "4"
    taken = value_of(await service.http.post(queues, json=queue_manifest("team")), 409)
    assert taken["reason"] == "AlreadyExists"

    async def patch(body: Any, status: int = 200, headers: dict[str, str] = MERGE, **parameters: str) -> dict[str, Any]:
        path = f"{queues}/team.a"
        return value_of(await service.http.patch(path, json=body, headers=headers, params=parameters), status)

    same = await patch({"spec": {"resources": {"cpu": {"limit": 4}}}})
    assert same["metadata"]["resourceVersion"] == (await patch({}))["metadata"]["resourceVersion"]
    noted = await patch({"metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}}})
    assert (noted["metadata"]["labels"], noted["metadata"]["annotations"]) == ({"a": "b"}, {"c": "d"})
    changed = await patch({"spec": {"weight": 5}}, fieldManager="kubectl-edit")
    assert changed["spec"] == {"resources": {"cpu": {"limit": 4}}, "weight": 5}
    assert "kubectl-edit" in [one["manager"] for one in changed["metadata"]["managedFields"]]
    stale = await patch(
        {"metadata": {"resourceVersion": noted["metadata"]["resourceVersion"]}, "spec": {"weight": 6}}, 409
    )
    assert "has been modified" in stale["message"]
    assert (await patch({"spec": {"weight": -1}}, 422))["details"]["causes"][0]["field"] == "spec.weight"
    conflict = await patch(queue_manifest("team.a", weight=9), 409, APPLY, fieldManager="other")
    assert conflict["message"].startswith("Apply failed with 1 conflict: .spec.weight")
    forced = await patch(queue_manifest("team.a", weight=9), 200, APPLY, fieldManager="other", force="true")
    assert forced["spec"]["weight"] == 9
    dry = value_of(await service.http.put(f"{queues}/team?dryRun=All", json=queue_manifest("team", weight=8)))
    assert dry["spec"] == {"weight": 8}
    assert value_of(await service.http.get(f"{queues}/team"))["spec"] == {"weight": 2}
    replaced = value_of(await service.http.put(f"{queues}/team", json=queue_manifest("team", weight=8)))
    assert replaced["spec"] == {"weight": 8}
    history = (await service.http.get("/v1/history", params={"kind": "Queue", "name": "team"})).json()
    assert [one["action"] for one in history["revisions"]] == ["put", "put"]
    refused = value_of(await service.http.delete(f"{queues}/team"), 409)
    assert "still has queues below it" in refused["message"]
    value_of(await service.http.delete(f"{queues}/team.a"))
    value_of(await service.http.delete(f"{queues}/team"))
    value_of(await service.http.get(f"{queues}/team"), 404)
    again = value_of(await service.http.post(queues, json=queue_manifest("team")), 201)
    assert "labels" not in again["metadata"]
    value_of(await service.http.delete(f"{GROUP}/clusters/private"), 405)
    misnamed = value_of(await service.http.post(queues, json=queue_manifest("x", path="y")), 422)
    assert misnamed["details"]["causes"][0]["field"] == "spec.path"


async def test_many_objects_are_created_at_once_each_with_its_own_answer(service: Service) -> None:
    """Their answers are read together; one that is refused takes no other with it."""
    names = [f"many-{number % 30}" for number in range(33)]
    answers = await asyncio.gather(*(service.http.post(JOBS, json=job_manifest(name, {"n": name})) for name in names))
    made = [answer.json() for answer in answers if answer.status_code == 201]
    refused = [answer.json() for answer in answers if answer.status_code != 201]
    assert sorted(one["metadata"]["name"] for one in made) == sorted(set(names))
    assert [(one["reason"], one["code"]) for one in refused] == [("AlreadyExists", 409)] * 3
    for one in made:
        name = one["metadata"]["name"]
        assert one["metadata"]["labels"] == {"n": name}
        assert without_reason(one) == without_reason(value_of(await service.http.get(f"{JOBS}/{name}")))


def without_reason(item: dict[str, Any]) -> dict[str, Any]:
    """Return an object without why its job waits, which another cycle may have found since."""
    status = {field: value for field, value in item["status"].items() if field not in ("why", "conditions")}
    annotations = item["metadata"].get("annotations", {})
    kept = {key: value for key, value in annotations.items() if key != "trainmaster.dev/why"}
    return {**item, "metadata": {**item["metadata"], "annotations": kept}, "status": status}


async def test_a_name_that_is_an_id_of_another_job_is_taken(service: Service) -> None:
    text = await service.submit("plain")
    refused = await service.http.post(JOBS, json=job_manifest(text))
    assert (refused.status_code, refused.json()["reason"]) == (409, "AlreadyExists")


async def test_a_queue_can_be_used_as_soon_as_it_is_there(service: Service) -> None:
    jobs = f"{GROUP}/namespaces/fresh/jobs"
    assert (await service.http.post(jobs, json=job_manifest("early"))).status_code == 404
    value_of(await service.http.post(f"{GROUP}/queues", json=queue_manifest("fresh")), 201)
    value_of(await service.http.post(jobs, json=job_manifest("early")), 201)


async def test_a_collection_is_deleted_by_its_selectors(service: Service) -> None:
    for number in range(4):
        value_of(await service.http.post(JOBS, json=job_manifest(f"j{number}", {"odd": str(number % 2)})), 201)
    dry = {"labelSelector": "odd=1", "dryRun": "All"}
    assert value_of(await service.http.delete(JOBS, params=dry))["status"] == "Success"
    assert len(value_of(await service.http.get(JOBS))["items"]) == 4
    refused = value_of(await service.http.delete(JOBS, params={"fieldSelector": "spec.color=red"}), 422)
    assert "spec.color" in refused["message"]
    done = value_of(await service.http.delete(JOBS, params={"labelSelector": "odd=1"}))
    assert (done["kind"], done["details"]["kind"]) == ("Status", "jobs")
    left = value_of(await service.http.get(JOBS))["items"]
    assert sorted(one["metadata"]["name"] for one in left) == ["j0", "j2"]
    states = {one["name"]: one["state"] for one in (await service.http.get("/v1/jobs")).json()["jobs"]}
    assert states == {"j0": "queued", "j1": "cancelled", "j2": "queued", "j3": "cancelled"}
    audit = (await service.http.get("/v1/audit")).json()["audit"]
    assert sorted(one["details"]["deleted"] for one in audit if one["action"] == "cancel") == ["j1", "j3"]
    value_of(await service.http.delete(JOBS, params={"fieldSelector": "metadata.name=j0"}))
    assert [one["metadata"]["name"] for one in value_of(await service.http.get(JOBS))["items"]] == ["j2"]


RESERVATIONS = f"{GROUP}/reservations"


def reservation_manifest(name: str, labels: dict[str, str] | None = None) -> dict[str, Any]:
    spec = {"queue": "default", "nodes": 4, "start": "2030-01-01T20:00:00Z", "end": "2030-01-02T06:00:00Z"}
    metadata: dict[str, Any] = {"name": name, "labels": labels or {}}
    return {"apiVersion": "trainmaster.dev/v1", "kind": "Reservation", "metadata": metadata, "spec": spec}


async def test_the_nodes_of_a_reservation_are_scaled(service: Service) -> None:
    value_of(await service.http.post(RESERVATIONS, json=reservation_manifest("night", {"team": "a"})), 201)
    scale = f"{RESERVATIONS}/night/scale"
    shown = value_of(await service.http.get(scale))
    assert (shown["apiVersion"], shown["kind"], shown["spec"]) == ("autoscaling/v1", "Scale", {"replicas": 4})
    assert shown["metadata"]["resourceVersion"]
    patched = await service.http.patch(scale, headers=MERGE, content=b'{"spec": {"replicas": 6}}')
    assert value_of(patched)["spec"] == {"replicas": 6}
    stale = await service.http.put(scale, json=shown | {"spec": {"replicas": 2}})
    assert value_of(stale, 409)["reason"] == "Conflict"
    one = await service.http.patch(
        scale, headers=JSON_PATCH, json=[{"op": "test", "path": "/spec/replicas", "value": 6}]
    )
    assert value_of(one)["spec"] == {"replicas": 6}
    fresh = value_of(await service.http.get(scale))
    value_of(await service.http.put(f"{scale}?dryRun=All", json=fresh | {"spec": {"replicas": 9}}))
    assert value_of(await service.http.put(scale, json=fresh | {"spec": {"replicas": 3}}))["spec"] == {"replicas": 3}
    item = value_of(await service.http.get(f"{RESERVATIONS}/night"))
    assert (item["spec"]["nodes"], item["metadata"]["labels"]) == (3, {"team": "a"})
    audit = (await service.http.get("/v1/audit")).json()["audit"]
    assert [one["action"] for one in audit if one["target"] == "night"] == [
        "put reservation",
        "patch reservation",
        "put reservation",
    ]


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ({"replicas": 0}, "spec.nodes"),
        ({"replicas": "3"}, "spec.replicas"),
        ({"replicas": True}, "spec.replicas"),
        ({"nodes": 3}, "spec.nodes"),
    ],
)
async def test_a_scale_that_is_wrong_changes_nothing(service: Service, spec: dict[str, Any], path: str) -> None:
    value_of(await service.http.post(RESERVATIONS, json=reservation_manifest("night")), 201)
    answer = await service.http.patch(f"{RESERVATIONS}/night/scale", headers=MERGE, json={"spec": spec})
    refused = value_of(answer, 422)
    assert refused["details"]["causes"][0]["field"] == path
    assert value_of(await service.http.get(f"{RESERVATIONS}/night"))["spec"]["nodes"] == 4


async def test_what_has_no_number_is_not_scaled(service: Service) -> None:
    for address in (f"{GROUP}/queues/default/scale", f"{RESERVATIONS}/none/scale", f"{GROUP}/nothing/none/scale"):
        value_of(await service.http.get(address), 404)
    for address in (f"{GROUP}/queues/default/scale", f"{RESERVATIONS}/none/scale"):
        value_of(await service.http.patch(address, headers=MERGE, json={"spec": {"replicas": 2}}), 404)
