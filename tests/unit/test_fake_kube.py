"""The fake Kubernetes keeps the promises of a real API server that clients of it are built on."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import aiohttp
import orjson
import pytest
from kubernetes import client as kubernetes

from tests.fake_kube import FakeKube, FakeNodes, Key, Store
from tests.fake_kube.store import ExpiredError
from tests.waiting import eventually

Object = dict[str, Any]
PODS = "/api/v1/namespaces/default/pods"
MAPS = "/api/v1/namespaces/default/configmaps"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
MERGE = "application/merge-patch+json"
JSON = "application/json-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
SCHEDULING = "scheduling.k8s.io/v1alpha2"
GROUPS = f"/apis/{SCHEDULING}/namespaces/default/podgroups"


@dataclass
class Client:
    """Asks, and expects a code; reads watches line by line."""

    kube: FakeKube
    http: aiohttp.ClientSession
    watches: list["Watching"] = field(default_factory=list)

    async def ask(self, method: str, path: str, body: Any = None, code: int = 0, kind: str = "application/json") -> Any:
        data = None if body is None else orjson.dumps(body)
        async with self.http.request(method, self.kube.url + path, data=data, headers={"Content-Type": kind}) as answer:
            content = await answer.json(content_type=None) if "json" in answer.content_type else await answer.text()
            assert answer.status == code if code else answer.status < 300, content
            return content

    async def get(self, path: str, code: int = 0) -> Any:
        return await self.ask("GET", path, code=code)

    async def post(self, path: str, body: Object, code: int = 0) -> Any:
        return await self.ask("POST", path, body, code)

    async def put(self, path: str, body: Object, code: int = 0) -> Any:
        return await self.ask("PUT", path, body, code)

    async def patch(self, path: str, kind: str, body: Any, code: int = 0) -> Any:
        return await self.ask("PATCH", path, body, code, kind)

    async def delete(self, path: str, body: Object | None = None, code: int = 0) -> Any:
        return await self.ask("DELETE", path, body, code)

    async def watch(self, path: str, query: str = "") -> "Watching":
        answer = await self.http.get(f"{self.kube.url}{path}?watch=1&{query}")
        watching = Watching(answer)
        self.watches.append(watching)
        return watching

    async def is_gone(self, path: str) -> bool:
        async with self.http.get(self.kube.url + path) as answer:
            return answer.status == 404

    async def phase(self, name: str) -> str:
        return str((await self.get(f"{PODS}/{name}"))["status"]["phase"])


@dataclass
class Watching:
    answer: aiohttp.ClientResponse

    async def next(self) -> Object:
        async with asyncio.timeout(30):
            line = await self.answer.content.readline()
        assert line, "the watch has ended"
        event: Object = orjson.loads(line)
        return event

    async def next_event(self) -> tuple[str, str]:
        event = await self.next()
        return event["type"], event["object"]["metadata"]["name"]

    async def ends(self) -> bool:
        async with asyncio.timeout(30):
            return await self.answer.content.readline() == b""


@pytest.fixture
async def kube() -> AsyncIterator[FakeKube]:
    async with FakeKube(bookmark_seconds=0.05) as server:
        yield server


@pytest.fixture
async def client(kube: FakeKube) -> AsyncIterator[Client]:
    async with aiohttp.ClientSession() as http:
        client = Client(kube, http)
        yield client
        for watching in client.watches:
            watching.answer.close()


@pytest.fixture
async def nodes(kube: FakeKube) -> AsyncIterator[FakeNodes]:
    nodes = FakeNodes(kube)
    yield nodes
    nodes.close()


def pod(name: str, *command: str, cpu: str = "1", labels: Object | None = None, **spec: Any) -> Object:
    container = {"name": "main", "image": "i", "command": ["sim", *command], "resources": {"requests": {"cpu": cpu}}}
    return {
        "metadata": {"name": name, "labels": labels or {}},
        "spec": {"containers": [container], "restartPolicy": "Never", **spec},
    }


def config(name: str, labels: Object | None = None, **metadata: Any) -> Object:
    return {"metadata": {"name": name, "labels": labels or {}, **metadata}, "data": {"a": "1"}}


def version_of(value: Object) -> int:
    return int(value["metadata"]["resourceVersion"])


def exit_of(value: Object) -> Object:
    ended: Object = value["status"]["containerStatuses"][0]["state"]["terminated"]
    return ended


def condition(value: Object, kind: str = "PodScheduled") -> Object:
    held = value.get("status", {}).get("conditions", [])
    return next((one for one in held if one["type"] == kind), {})


class TestWrites:
    async def test_create_fills_in_what_the_server_owns(self, client: Client) -> None:
        first = await client.post(MAPS, config("a", uid="mine", creationTimestamp="2001-01-01T00:00:00Z"), 201)
        second = await client.post(MAPS, config("b"), 201)
        assert first["metadata"]["uid"] not in ("mine", second["metadata"]["uid"])
        assert first["metadata"]["creationTimestamp"] > "2020"
        assert (first["kind"], first["apiVersion"], first["metadata"]["namespace"]) == ("ConfigMap", "v1", "default")
        assert version_of(second) > version_of(first)

    async def test_fields_that_are_null_are_not_there(self, client: Client) -> None:
        assert "affinity" not in (await client.post(PODS, pod("a", "run", affinity=None)))["spec"]

    async def test_a_name_is_taken_once(self, client: Client) -> None:
        await client.post(MAPS, config("a"))
        refused = await client.post(MAPS, config("a"), 409)
        assert (refused["kind"], refused["reason"], refused["code"]) == ("Status", "AlreadyExists", 409)
        assert refused["message"] == 'configmaps "a" already exists'

    async def test_generated_names_differ(self, client: Client) -> None:
        names = {(await client.post(MAPS, {"metadata": {"generateName": "x-"}}))["metadata"]["name"] for _ in range(5)}
        assert len(names) == 5
        assert all(name.startswith("x-") and len(name) == 7 for name in names)

    @pytest.mark.parametrize(
        ("path", "body", "code", "reason"),
        [
            ("/api/v1/namespaces/none/configmaps", config("a"), 404, "NotFound"),
            (MAPS, config("Not A Name"), 422, "Invalid"),
            (MAPS, {"metadata": {}}, 422, "Invalid"),
            (MAPS, {"kind": "Pod", **config("a")}, 400, "BadRequest"),
            (MAPS, config("a", namespace="other"), 400, "BadRequest"),
            ("/api/v1/namespaces/default/nothings", config("a"), 404, "NotFound"),
            ("/api/v1/configmaps", config("a"), 405, "MethodNotAllowed"),
            (PODS, {"metadata": {"name": "a"}, "spec": {"containers": []}}, 422, "Invalid"),
            (PODS, pod("a", "run", priorityClassName="none"), 403, "Forbidden"),
        ],
    )
    async def test_create_refuses(self, client: Client, path: str, body: Object, code: int, reason: str) -> None:
        assert (await client.post(path, body, code))["reason"] == reason

    async def test_put_with_a_stale_version_conflicts(self, client: Client) -> None:
        held = await client.post(MAPS, config("a"))
        newer = await client.put(f"{MAPS}/a", {**held, "data": {"a": "2"}})
        assert (await client.put(f"{MAPS}/a", {**held, "data": {"a": "3"}}, 409))["reason"] == "Conflict"
        assert newer["metadata"]["generation"] == 2
        del newer["metadata"]["resourceVersion"]
        await client.put(f"{MAPS}/a", {**newer, "data": {"a": "4"}}, 200)

    async def test_a_lease_is_never_put_blindly(self, client: Client) -> None:
        held = await client.post(LEASES, {"metadata": {"name": "l"}, "spec": {"holderIdentity": "a"}})
        await client.put(f"{LEASES}/l", {"metadata": {"name": "l"}, "spec": {"holderIdentity": "b"}}, 422)
        await client.put(f"{LEASES}/l", {**held, "spec": {"holderIdentity": "b"}}, 200)
        assert (await client.put(f"{LEASES}/l", {**held, "spec": {"holderIdentity": "c"}}, 409))["reason"] == "Conflict"

    async def test_of_two_who_put_the_same_version_one_wins(self, client: Client) -> None:
        held = await client.post(LEASES, {"metadata": {"name": "l"}, "spec": {"holderIdentity": ""}})

        async def take(holder: str) -> int:
            body = orjson.dumps({**held, "spec": {"holderIdentity": holder}})
            async with client.http.put(f"{client.kube.url}{LEASES}/l", data=body) as answer:
                return answer.status

        assert sorted(await asyncio.gather(*(take(f"h{number}") for number in range(5)))) == [200, 409, 409, 409, 409]

    async def test_a_write_that_changes_nothing_is_none(self, client: Client) -> None:
        held = await client.post(MAPS, config("a"))
        assert await client.patch(f"{MAPS}/a", MERGE, {"data": {"a": "1"}}) == held

    async def test_status_and_the_rest_are_written_apart(self, client: Client) -> None:
        created = await client.post(PODS, {**pod("a", "run"), "status": {"phase": "Running"}})
        assert created["status"]["phase"] == "Pending"
        patched = await client.patch(
            f"{PODS}/a/status", MERGE, {"status": {"phase": "Failed"}, "metadata": {"labels": {"x": "y"}}}
        )
        assert patched["status"]["phase"] == "Failed"
        assert "x" not in patched["metadata"]["labels"]
        assert patched["metadata"]["generation"] == 1
        kept = await client.patch(
            f"{PODS}/a", MERGE, {"status": {"phase": "Running"}, "metadata": {"labels": {"x": "y"}}}
        )
        assert (kept["status"]["phase"], kept["metadata"]["labels"]["x"]) == ("Failed", "y")

    async def test_dry_run_creates_nothing(self, client: Client) -> None:
        await client.post(f"{MAPS}?dryRun=All", config("a"), 201)
        await client.get(f"{MAPS}/a", 404)


class TestPodChanges:
    async def test_the_spec_is_immutable_but_for_gates_deadline_and_more_tolerations(self, client: Client) -> None:
        await client.post(PODS, pod("a", "run", schedulingGates=[{"name": "x"}, {"name": "y"}]))
        refused = await client.patch(f"{PODS}/a", MERGE, {"spec": {"hostname": "h"}}, 422)
        assert "pod updates may not change fields" in refused["message"]
        await client.patch(f"{PODS}/a", MERGE, {"spec": {"schedulingGates": [{"name": "x"}, {"name": "z"}]}}, 422)
        await client.patch(f"{PODS}/a", MERGE, {"spec": {"schedulingGates": [{"name": "y"}]}}, 200)
        await client.patch(f"{PODS}/a", MERGE, {"spec": {"nodeSelector": {"zone": "a"}}}, 200)
        opened = await client.patch(f"{PODS}/a", MERGE, {"spec": {"schedulingGates": None}})
        await client.patch(f"{PODS}/a", MERGE, {"spec": {"nodeSelector": {"zone": "b"}}}, 422)
        await client.patch(f"{PODS}/a", MERGE, {"spec": {"activeDeadlineSeconds": 9}}, 200)
        await client.patch(f"{PODS}/a", MERGE, {"spec": {"activeDeadlineSeconds": 10}}, 422)
        more = [*opened["spec"]["tolerations"], {"key": "k", "operator": "Exists"}]
        await client.patch(f"{PODS}/a", MERGE, {"spec": {"tolerations": more}}, 200)
        await client.patch(f"{PODS}/a", MERGE, {"spec": {"tolerations": []}}, 422)

    async def test_a_pod_is_bound_once(self, client: Client) -> None:
        await client.post(PODS, pod("a", "run"))
        await client.post(f"{PODS}/a/binding", {"target": {"kind": "Node", "name": "n1"}}, 201)
        assert (await client.post(f"{PODS}/a/binding", {"target": {"name": "n2"}}, 409))["reason"] == "Conflict"
        held = await client.get(f"{PODS}/a")
        assert (held["spec"]["nodeName"], condition(held)["status"]) == ("n1", "True")
        await client.post(PODS, pod("gated", "run", schedulingGates=[{"name": "x"}]))
        await client.post(f"{PODS}/gated/binding", {"target": {"name": "n1"}}, 409)

    async def test_a_scheduling_group_is_dropped_where_no_pod_groups_are_served(self, client: Client) -> None:
        group = {"podGroupName": "g"}
        assert "schedulingGroup" not in (await client.post(PODS, pod("a", "run", schedulingGroup=group)))["spec"]
        client.kube.serve(SCHEDULING, ["podgroups"])
        assert (await client.post(PODS, pod("b", "run", schedulingGroup=group)))["spec"]["schedulingGroup"] == group


class TestPatches:
    async def test_a_merge_patch_removes_with_null_and_replaces_lists(self, client: Client) -> None:
        await client.post(MAPS, {**config("a", {"x": "1", "y": "2"}), "list": [{"name": "p"}]})
        patched = await client.patch(f"{MAPS}/a", MERGE, {"metadata": {"labels": {"x": None}}, "list": [{"name": "q"}]})
        assert (patched["metadata"]["labels"], patched["list"]) == ({"y": "2"}, [{"name": "q"}])

    async def test_a_patch_with_a_version_is_held_to_it(self, client: Client) -> None:
        held = await client.post(MAPS, config("a"))
        versioned = {"metadata": {"resourceVersion": held["metadata"]["resourceVersion"]}, "data": {"a": "2"}}
        await client.patch(f"{MAPS}/a", MERGE, versioned, 200)
        await client.patch(f"{MAPS}/a", MERGE, versioned | {"data": {"a": "3"}}, 409)
        await client.patch(f"{MAPS}/a", MERGE, {"metadata": {"uid": "other"}}, 409)

    async def test_a_json_patch_applies_whole_or_not_at_all(self, client: Client) -> None:
        await client.post(MAPS, {**config("a"), "list": [1, 2]})
        path = f"{MAPS}/a"
        patched = await client.patch(
            path,
            JSON,
            [
                {"op": "test", "path": "/data/a", "value": "1"},
                {"op": "replace", "path": "/data/a", "value": "2"},
                {"op": "add", "path": "/metadata/labels/a~1b", "value": "c"},
                {"op": "add", "path": "/list/-", "value": 3},
                {"op": "remove", "path": "/list/0"},
            ],
        )
        assert (patched["data"], patched["metadata"]["labels"], patched["list"]) == ({"a": "2"}, {"a/b": "c"}, [2, 3])
        failing = [{"op": "remove", "path": "/list/0"}, {"op": "test", "path": "/data/a", "value": "1"}]
        assert (await client.patch(path, JSON, failing, 422))["reason"] == "Invalid"
        await client.patch(path, JSON, [{"op": "remove", "path": "/data/none"}], 422)
        await client.patch(path, JSON, {"op": "remove"}, 400)
        assert (await client.get(path))["list"] == [2, 3]

    async def test_a_strategic_patch_merges_lists_by_their_keys(self, client: Client) -> None:
        await client.post(PODS, pod("a", "run"))
        await client.patch(f"{PODS}/a/status", STRATEGIC, {"status": {"conditions": [{"type": "A", "status": "True"}]}})
        both = {"status": {"conditions": [{"type": "B", "status": "True"}, {"type": "A", "status": "False"}]}}
        patched = await client.patch(f"{PODS}/a/status", STRATEGIC, both)
        assert {one["type"]: one["status"] for one in patched["status"]["conditions"]} == {"A": "False", "B": "True"}
        patched = await client.patch(f"{PODS}/a", STRATEGIC, {"spec": {"containers": [{"name": "main", "image": "j"}]}})
        assert patched["spec"]["containers"][0]["command"] == ["sim", "run"]
        gone = {"status": {"conditions": [{"type": "B", "$patch": "delete"}]}}
        patched = await client.patch(f"{PODS}/a/status", STRATEGIC, gone)
        assert [one["type"] for one in patched["status"]["conditions"]] == ["A"]
        for name in ("f/1", "f/2"):
            patched = await client.patch(f"{PODS}/a", STRATEGIC, {"metadata": {"finalizers": [name]}})
        assert patched["metadata"]["finalizers"] == ["f/1", "f/2"]
        patched = await client.patch(
            f"{PODS}/a", STRATEGIC, {"metadata": {"$deleteFromPrimitiveList/finalizers": ["f/1"]}}
        )
        assert patched["metadata"]["finalizers"] == ["f/2"]

    async def test_custom_resources_take_no_strategic_patch_and_nobody_takes_other_kinds(self, client: Client) -> None:
        client.kube.serve("kueue.x-k8s.io/v1beta2", ["localqueues"])
        queues = "/apis/kueue.x-k8s.io/v1beta2/namespaces/default/localqueues"
        await client.post(queues, {"metadata": {"name": "q"}, "spec": {}})
        await client.patch(f"{queues}/q", STRATEGIC, {"spec": {"a": 1}}, 415)
        await client.patch(f"{queues}/q", MERGE, {"spec": {"a": 1}}, 200)
        await client.patch(f"{queues}/q", "application/apply-patch+yaml", {"spec": {"a": 1}}, 415)


class TestLists:
    async def test_pages_are_of_one_snapshot(self, client: Client) -> None:
        for name in ("a", "b", "c", "d", "e"):
            await client.post(MAPS, config(name))
        first = await client.get(f"{MAPS}?limit=2")
        await client.delete(f"{MAPS}/c")
        await client.post(MAPS, config("bb"))
        await client.patch(f"{MAPS}/d", MERGE, {"data": {"a": "9"}})
        second = await client.get(f"{MAPS}?limit=2&continue={first['metadata']['continue']}")
        third = await client.get(f"{MAPS}?limit=2&continue={second['metadata']['continue']}")
        pages = [[one["metadata"]["name"] for one in page["items"]] for page in (first, second, third)]
        assert pages == [["a", "b"], ["c", "d"], ["e"]]
        assert second["items"][1]["data"] == {"a": "1"}
        assert {version_of(page) for page in (first, second, third)} == {version_of(first)}
        assert first["metadata"]["remainingItemCount"] == 3
        assert "continue" not in third["metadata"]
        now = await client.get(MAPS)
        assert [one["metadata"]["name"] for one in now["items"]] == ["a", "b", "bb", "d", "e"]

    async def test_a_page_of_a_forgotten_snapshot_is_gone_and_offers_to_go_on(self, client: Client) -> None:
        for name in ("a", "b", "c"):
            await client.post(MAPS, config(name))
        first = await client.get(f"{MAPS}?limit=1")
        await client.delete(f"{MAPS}/b")
        client.kube.expire_history()
        gone = await client.get(f"{MAPS}?limit=1&continue={first['metadata']['continue']}", 410)
        assert gone["reason"] == "Expired"
        rest = await client.get(f"{MAPS}?limit=5&continue={gone['metadata']['continue']}")
        assert [one["metadata"]["name"] for one in rest["items"]] == ["c"]

    async def test_a_list_at_an_exact_version_shows_what_was(self, client: Client) -> None:
        await client.post(MAPS, config("a"))
        then = version_of(await client.get(MAPS))
        await client.delete(f"{MAPS}/a")
        query = f"{MAPS}?resourceVersionMatch=Exact&resourceVersion="
        assert len((await client.get(f"{query}{then}"))["items"]) == 1
        assert len((await client.get(f"{MAPS}?resourceVersion={then}&resourceVersionMatch=NotOlderThan"))["items"]) == 0
        client.kube.expire_history()
        await client.get(f"{query}{then}", 410)
        ahead = await client.get(f"{MAPS}?resourceVersion=99999", 504)
        assert ahead["details"]["causes"][0]["reason"] == "ResourceVersionTooLarge"
        await client.get(f"{MAPS}?resourceVersion=abc", 400)

    @pytest.mark.parametrize(
        ("selector", "names"),
        [
            ("app=x", "ab"),
            ("app==x,tier=1", "a"),
            ("app!=x", "cd"),
            ("app in (x, y)", "abc"),
            ("app notin (x)", "cd"),
            ("tier", "ac"),
            ("!tier", "bd"),
            ("app in (x),!tier", "b"),
            ("", "abcd"),
        ],
    )
    async def test_label_selectors(self, client: Client, selector: str, names: str) -> None:
        labels = {"a": {"app": "x", "tier": "1"}, "b": {"app": "x"}, "c": {"app": "y", "tier": "2"}, "d": {}}
        for name, held in labels.items():
            await client.post(MAPS, config(name, held))
        async with client.http.get(client.kube.url + MAPS, params={"labelSelector": selector}) as answer:
            listed = await answer.json()
        assert "".join(one["metadata"]["name"] for one in listed["items"]) == names

    async def test_field_selectors_and_all_namespaces(self, client: Client) -> None:
        client.kube.add_namespace("other")
        for name in ("a", "b"):
            await client.post(PODS, pod(name, "run"))
            await client.post("/api/v1/namespaces/other/pods", pod(name, "run"))
        await client.post(f"{PODS}/a/binding", {"target": {"name": "n"}})

        async def names(selector: str) -> list[str]:
            found = await client.get(f"/api/v1/pods?fieldSelector={selector}")
            return [f"{one['metadata']['namespace']}/{one['metadata']['name']}" for one in found["items"]]

        assert await names("spec.nodeName=n") == ["default/a"]
        assert await names("spec.nodeName=,metadata.name!=b") == ["other/a"]
        assert await names("metadata.namespace=other,status.phase=Pending") == ["other/a", "other/b"]
        await client.get("/api/v1/pods?fieldSelector=spec.hostname=h", 400)
        await client.get("/api/v1/pods?labelSelector=a%3D%3D%3Db", 400)

    async def test_items_of_built_in_kinds_do_not_name_their_kind(self, client: Client) -> None:
        await client.post(MAPS, config("a"))
        found = await client.get(MAPS)
        assert found["kind"] == "ConfigMapList"
        assert "kind" not in found["items"][0]
        assert (await client.get(f"{MAPS}/a"))["kind"] == "ConfigMap"


class TestWatches:
    async def test_nothing_is_missed_between_a_list_and_its_watch(self, client: Client) -> None:
        await client.post(MAPS, config("before"))
        since = version_of(await client.get(MAPS))
        await client.post(MAPS, config("a"))
        watching = await client.watch(MAPS, f"resourceVersion={since}")
        await client.patch(f"{MAPS}/a", MERGE, {"data": {"a": "2"}})
        await client.delete(f"{MAPS}/a")
        events = [await watching.next() for _ in range(3)]
        assert [one["type"] for one in events] == ["ADDED", "MODIFIED", "DELETED"]
        versions = [version_of(one["object"]) for one in events]
        assert versions == sorted(set(versions))
        assert events[2]["object"]["data"] == {"a": "2"}
        assert events[0]["object"]["kind"] == "ConfigMap"

    async def test_without_a_version_a_watch_begins_with_what_there_is(self, client: Client) -> None:
        await client.post(MAPS, config("a"))
        for query in ("", "resourceVersion=0"):
            watching = await client.watch(MAPS, query)
            assert await watching.next_event() == ("ADDED", "a")

    async def test_a_selector_turns_changes_into_coming_and_going(self, client: Client) -> None:
        since = version_of(await client.get(MAPS))
        watching = await client.watch(MAPS, f"labelSelector=on=1&resourceVersion={since}")
        await client.post(MAPS, config("other", {"on": "2"}))
        await client.post(MAPS, config("a", {"on": "2"}))
        for value in ("1", "1", "2", "2", "1"):
            stamp = {"labels": {"on": value}, "annotations": {"n": str(client.kube.store.version)}}
            await client.patch(f"{MAPS}/a", MERGE, {"metadata": stamp})
        await client.delete(f"{MAPS}/a")
        await client.delete(f"{MAPS}/other")
        events = [await watching.next() for _ in range(5)]
        assert [one["type"] for one in events] == ["ADDED", "MODIFIED", "DELETED", "ADDED", "DELETED"]
        left = events[2]["object"]
        assert left["metadata"]["labels"] == {"on": "1"}, "the last state that matched"
        assert version_of(left) > version_of(events[1]["object"]), "at the version of the change"

    async def test_a_field_selector_and_a_namespace_narrow_a_watch(self, client: Client) -> None:
        client.kube.add_namespace("other")
        watching = await client.watch(PODS, "fieldSelector=spec.nodeName=n")
        await client.post("/api/v1/namespaces/other/pods", pod("x", "run", nodeName="n"))
        await client.post(PODS, pod("a", "run"))
        await client.post(f"{PODS}/a/binding", {"target": {"name": "n"}})
        assert await watching.next_event() == ("ADDED", "a")

    async def test_a_forgotten_version_is_gone(self, client: Client) -> None:
        since = version_of(await client.get(MAPS))
        await client.post(MAPS, config("a"))
        client.kube.expire_history()
        event = await (await client.watch(MAPS, f"resourceVersion={since}")).next()
        assert (event["type"], event["object"]["code"], event["object"]["reason"]) == ("ERROR", 410, "Expired")
        client.kube.expired_as_status = True
        await client.get(f"{MAPS}?watch=1&resourceVersion={since}", 410)
        fresh = await client.watch(MAPS, f"resourceVersion={version_of(await client.get(MAPS))}")
        await client.delete(f"{MAPS}/a")
        assert await fresh.next_event() == ("DELETED", "a")

    async def test_a_running_watch_survives_that_history_is_forgotten(self, client: Client) -> None:
        watching = await client.watch(MAPS, f"resourceVersion={client.kube.store.version}")
        client.kube.expire_history()
        await client.post(MAPS, config("a"))
        assert await watching.next_event() == ("ADDED", "a")

    async def test_bookmarks_bring_a_quiet_watch_forward(self, client: Client) -> None:
        watching = await client.watch(PODS, f"resourceVersion={client.kube.store.version}&allowWatchBookmarks=true")
        latest = version_of(await client.post(MAPS, config("a")))
        version = 0
        async with asyncio.timeout(30):
            while version < latest:
                event = await watching.next()
                assert (event["type"], event["object"]["kind"]) == ("BOOKMARK", "Pod")
                version = version_of(event["object"])
        client.kube.expire_history()
        again = await client.watch(PODS, f"resourceVersion={version}")
        await client.post(PODS, pod("p", "run"))
        assert await again.next_event() == ("ADDED", "p")

    async def test_no_bookmarks_unless_asked_and_a_timeout_ends_cleanly(self, client: Client) -> None:
        watching = await client.watch(MAPS, "timeoutSeconds=1")
        assert await watching.ends()
        await eventually(lambda: _true(client.kube.watching == 0))

    async def test_watches_end_when_told_to_and_break_when_cut(self, client: Client) -> None:
        ended = await client.watch(MAPS)
        client.kube.end_watches()
        assert await ended.ends()
        cut = await client.watch(MAPS)
        client.kube.drop_connections()
        with pytest.raises(aiohttp.ClientError):
            await cut.next()
        await client.post(MAPS, config("a"), 201)

    async def test_a_client_that_leaves_leaves_nothing_behind(self, client: Client) -> None:
        watching = await client.watch(MAPS)
        assert client.kube.watching == 1
        watching.answer.close()
        await eventually(lambda: _true(client.kube.watching == 0))

    async def test_writes_of_listeners_are_told_in_order(self, kube: FakeKube) -> None:
        store = Store()
        key, other = Key("v1", "configmaps", "default", "a"), Key("v1", "configmaps", "default", "b")
        changes: list[tuple[str, int]] = []
        store.listen(lambda change: None if store.peek(other) else (store.create(other, {}), None)[1])
        store.listen(lambda change: changes.append((change.key.name, change.version)))
        store.create(key, {})
        assert changes == [("a", 2), ("b", 3)]

    async def test_the_ring_forgets_the_oldest_first(self) -> None:
        store = Store(history=2)
        key = Key("v1", "configmaps", "default", "a")
        store.create(key, {})
        for number in range(3):
            store.update(key, {"data": number})
        assert [change.version for change in store.since(key.resource, store.version - 2)] == [4, 5]
        with pytest.raises(ExpiredError):
            store.since(key.resource, store.version - 3)


class TestDeletion:
    async def test_an_unbound_pod_goes_at_once(self, client: Client) -> None:
        await client.post(PODS, pod("a", "run"))
        assert (await client.delete(f"{PODS}/a"))["metadata"]["name"] == "a"
        await client.get(f"{PODS}/a", 404)

    async def test_a_bound_pod_stays_until_it_is_deleted_without_grace(self, client: Client) -> None:
        await client.post(PODS, pod("a", "run", nodeName="n"))
        deleted = await client.delete(f"{PODS}/a")
        assert deleted["metadata"]["deletionGracePeriodSeconds"] == 30
        assert deleted["metadata"]["deletionTimestamp"] > deleted["metadata"]["creationTimestamp"]
        longer = await client.delete(f"{PODS}/a", {"gracePeriodSeconds": 60})
        assert longer["metadata"]["resourceVersion"] == deleted["metadata"]["resourceVersion"]
        shorter = await client.delete(f"{PODS}/a?gracePeriodSeconds=5")
        assert shorter["metadata"]["deletionGracePeriodSeconds"] == 5
        assert shorter["metadata"]["deletionTimestamp"] < deleted["metadata"]["deletionTimestamp"]
        await client.delete(f"{PODS}/a", {"gracePeriodSeconds": 0})
        await client.get(f"{PODS}/a", 404)

    async def test_preconditions_hold_a_deletion_to_the_object_that_was_meant(self, client: Client) -> None:
        first = await client.post(PODS, pod("a", "run"))
        await client.delete(f"{PODS}/a", {"preconditions": {"uid": first["metadata"]["uid"]}})
        second = await client.post(PODS, pod("a", "run"))
        await client.delete(f"{PODS}/a", {"preconditions": {"uid": first["metadata"]["uid"]}}, 409)
        await client.delete(f"{PODS}/a", {"preconditions": {"resourceVersion": "1"}}, 409)
        await client.delete(f"{PODS}/a", {"preconditions": {"uid": second["metadata"]["uid"]}}, 200)

    async def test_finalizers_hold_until_the_last_is_gone(self, client: Client) -> None:
        await client.post(MAPS, config("a", finalizers=["x/1", "x/2"]))
        watching = await client.watch(MAPS, f"resourceVersion={client.kube.store.version}")
        assert (await client.delete(f"{MAPS}/a"))["metadata"]["deletionTimestamp"]
        await client.patch(f"{MAPS}/a", MERGE, {"metadata": {"finalizers": ["x/1", "x/3"]}}, 422)
        await client.patch(f"{MAPS}/a", MERGE, {"metadata": {"finalizers": ["x/1"]}}, 200)
        await client.patch(f"{MAPS}/a", MERGE, {"metadata": {"finalizers": None}}, 200)
        await client.get(f"{MAPS}/a", 404)
        assert [(await watching.next_event())[0] for _ in range(3)] == ["MODIFIED", "MODIFIED", "DELETED"]

    async def test_a_pod_with_a_finalizer_outlives_its_grace(self, client: Client) -> None:
        await client.post(PODS, {**pod("a", "run", nodeName="n"), "metadata": {"name": "a", "finalizers": ["x/1"]}})
        await client.delete(f"{PODS}/a")
        await client.delete(f"{PODS}/a", {"gracePeriodSeconds": 0})
        assert (await client.get(f"{PODS}/a"))["metadata"]["deletionGracePeriodSeconds"] == 0
        await client.patch(f"{PODS}/a", JSON, [{"op": "remove", "path": "/metadata/finalizers/0"}])
        await client.get(f"{PODS}/a", 404)

    async def test_a_collection_is_deleted_by_label(self, client: Client) -> None:
        for name, job in (("a", "1"), ("b", "1"), ("c", "2")):
            await client.post(PODS, pod(name, "run", labels={"job": job}))
        deleted = await client.delete(f"{PODS}?labelSelector=job=1")
        assert [one["metadata"]["name"] for one in deleted["items"]] == ["a", "b"]
        assert [one["metadata"]["name"] for one in (await client.get(PODS))["items"]] == ["c"]

    async def test_dependents_go_with_the_last_of_their_owners(self, client: Client) -> None:
        owners = [_reference(await client.post(MAPS, config(name))) for name in ("a", "b")]
        await client.post(PODS, {**pod("p", "run"), "metadata": {"name": "p", "ownerReferences": owners}})
        await client.delete(f"{MAPS}/a")

        async def one_owner() -> bool:
            return bool((await client.get(f"{PODS}/p"))["metadata"]["ownerReferences"] == owners[1:])

        await eventually(one_owner)
        await client.delete(f"{MAPS}/b")
        await eventually(lambda: client.is_gone(f"{PODS}/p"))

    async def test_what_is_born_to_an_owner_that_is_gone_goes_too(self, client: Client) -> None:
        owner = _reference(await client.post(MAPS, config("a")))
        await client.delete(f"{MAPS}/a")
        await client.post(PODS, {**pod("p", "run"), "metadata": {"name": "p", "ownerReferences": [owner]}})
        await eventually(lambda: client.is_gone(f"{PODS}/p"))

    async def test_orphans_stay_and_foreground_owners_wait(self, client: Client) -> None:
        for name, kept in (("a", True), ("b", False)):
            owner = _reference(await client.post(MAPS, config(name))) | {"blockOwnerDeletion": True}
            child = {"name": f"{name}-child", "ownerReferences": [owner], "finalizers": ["x/1"]}
            await client.post(MAPS, {"metadata": child})
            await client.delete(f"{MAPS}/{name}", {"propagationPolicy": "Orphan" if kept else "Foreground"})
        assert (await client.get(f"{MAPS}/a-child"))["metadata"]["ownerReferences"] == []
        await client.get(f"{MAPS}/a", 404)

        async def child_goes() -> bool:
            return "deletionTimestamp" in (await client.get(f"{MAPS}/b-child"))["metadata"]

        await eventually(child_goes)
        assert (await client.get(f"{MAPS}/b"))["metadata"]["finalizers"] == ["foregroundDeletion"]
        await client.patch(f"{MAPS}/b-child", MERGE, {"metadata": {"finalizers": None}})
        await eventually(lambda: client.is_gone(f"{MAPS}/b"))

    async def test_a_namespace_takes_all_in_it_along_and_takes_in_nothing_more(self, client: Client) -> None:
        client.kube.add_namespace("x")
        inside = "/api/v1/namespaces/x"
        await client.post(f"{inside}/pods", pod("bound", "run", nodeName="n"))
        await client.post(f"{inside}/configmaps", config("a"))
        await client.delete(inside)
        await eventually(lambda: client.is_gone(f"{inside}/configmaps/a"))
        assert (await client.get(inside))["status"]["phase"] == "Terminating"
        refused = await client.post(f"{inside}/pods", pod("late", "run"), 403)
        assert refused["details"]["causes"][0]["reason"] == "NamespaceTerminating"
        await client.delete(f"{inside}/pods/bound", {"gracePeriodSeconds": 0})
        await eventually(lambda: client.is_gone(inside))

    async def test_a_disruption_budget_refuses_evictions(self, client: Client) -> None:
        await client.post(PODS, pod("a", "run", labels={"x": "y"}))
        budgets = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
        await client.post(budgets, {"metadata": {"name": "b"}, "spec": {"selector": {"matchLabels": {"x": "y"}}}})
        await client.post(f"{PODS}/a/eviction", {"metadata": {"name": "a"}}, 429)
        await client.patch(f"{budgets}/b/status", MERGE, {"status": {"disruptionsAllowed": 1}})
        await client.post(f"{PODS}/a/eviction", {"metadata": {"name": "a"}}, 201)
        await client.get(f"{PODS}/a", 404)


class TestQuota:
    async def test_pods_beyond_the_quota_are_forbidden_until_some_are_over(self, client: Client) -> None:
        quotas = "/api/v1/namespaces/default/resourcequotas"
        await client.post(quotas, {"metadata": {"name": "q"}, "spec": {"hard": {"pods": "2", "requests.cpu": "10"}}})
        for name in ("a", "b"):
            await client.post(PODS, pod(name, "run", cpu="1500m"))
        refused = await client.post(PODS, pod("c", "run"), 403)
        wanted = "exceeded quota: q, requested: pods=1, used: pods=2, limited: pods=2"
        assert refused["message"] == f'pods "c" is forbidden: {wanted}'
        assert (await client.get(f"{quotas}/q"))["status"]["used"] == {"pods": "2", "requests.cpu": "3"}
        await client.patch(f"{PODS}/a/status", MERGE, {"status": {"phase": "Succeeded"}})
        refused = await client.post(PODS, pod("c", "run", cpu="9"), 403)
        assert "requested: requests.cpu=9, used: requests.cpu=1500m, limited: requests.cpu=10" in refused["message"]
        await client.post(PODS, pod("c", "run", cpu="8"), 201)

    async def test_a_quota_of_cpu_asks_every_pod_for_its_requests(self, client: Client) -> None:
        quotas = "/api/v1/namespaces/default/resourcequotas"
        await client.post(quotas, {"metadata": {"name": "q"}, "spec": {"hard": {"requests.cpu": "10"}}})
        bare = {"metadata": {"name": "a"}, "spec": {"containers": [{"name": "main"}]}}
        assert "must specify requests.cpu for: main" in (await client.post(PODS, bare, 403))["message"]


class TestDiscovery:
    async def test_what_is_served_can_change(self, client: Client) -> None:
        assert (await client.get("/api"))["versions"] == ["v1"]
        assert (await client.get("/version"))["gitVersion"] == "v1.35.0"
        await client.get(f"/apis/{SCHEDULING}", 404)
        await client.get(GROUPS, 404)
        client.kube.serve(SCHEDULING, ["podgroups", "workloads"])
        served = await client.get(f"/apis/{SCHEDULING}")
        assert {"podgroups", "podgroups/status", "workloads"} <= {one["name"] for one in served["resources"]}
        group = await client.get("/apis/scheduling.k8s.io")
        assert [one["version"] for one in group["versions"]] == ["v1", "v1alpha2"]
        names = {one["name"] for one in (await client.get("/apis"))["groups"]}
        assert {"scheduling.k8s.io", "coordination.k8s.io", "policy"} <= names
        created = await client.post(GROUPS, {"metadata": {"name": "g"}, "spec": {}})
        assert created["kind"] == "PodGroup"
        client.kube.withdraw(SCHEDULING)
        await client.get(f"{GROUPS}/g", 404)

    async def test_subresources_are_told(self, client: Client) -> None:
        verbs = {one["name"]: one["verbs"] for one in (await client.get("/api/v1"))["resources"]}
        assert verbs["pods/binding"] == ["create"]
        assert verbs["pods/exec"] == ["create", "get"]
        assert "watch" in verbs["pods"]

    async def test_the_official_client_can_read_it(self, client: Client) -> None:
        await client.post(PODS, pod("a", "run"))

        def use() -> None:
            api = kubernetes.ApiClient(kubernetes.Configuration(host=client.kube.url))
            core = kubernetes.CoreV1Api(api)
            assert kubernetes.VersionApi(api).get_code().git_version == "v1.35.0"
            assert "pods" in [one.name for one in core.get_api_resources().resources]
            assert "policy" in [one.name for one in kubernetes.ApisApi(api).get_api_versions().groups]
            assert [one["status"]["phase"] for one in core.list_namespaced_pod("default").to_dict()["items"]] == [
                "Pending"
            ]
            spec = kubernetes.V1LeaseSpec(holder_identity="a", renew_time=datetime.now(UTC))
            lease = kubernetes.V1Lease(metadata=kubernetes.V1ObjectMeta(name="l"), spec=spec)
            leases = kubernetes.CoordinationV1Api(api)
            assert leases.create_namespaced_lease("default", lease).to_dict()["spec"]["holder_identity"] == "a"
            core.delete_namespaced_pod("a", "default", grace_period_seconds=0)
            with pytest.raises(kubernetes.ApiException) as refused:
                core.read_namespaced_pod("a", "default")
            assert refused.value.status == 404

        await asyncio.to_thread(use)


class TestFaults:
    async def test_throttling_passes(self, client: Client) -> None:
        client.kube.throttle(2, retry_after=3)
        async with client.http.get(client.kube.url + MAPS) as answer:
            assert (answer.status, answer.headers["Retry-After"]) == (429, "3")
        assert (await client.get("/version", 429))["reason"] == "TooManyRequests"
        await client.get(MAPS, 200)

    async def test_a_failure_meets_its_verb_and_does_nothing(self, client: Client) -> None:
        client.kube.fail_next("create", "configmaps", 500)
        await client.get(MAPS, 200)
        assert (await client.post(MAPS, config("a"), 500))["reason"] == "InternalError"
        await client.post(MAPS, config("a"), 201)
        client.kube.fail_next("update", "pods/status", 503, times=2)
        await client.post(PODS, pod("p", "run"))
        for code in (503, 503, 200):
            await client.put(f"{PODS}/p/status", pod("p", "run"), code)

    async def test_an_answer_can_be_lost_after_the_deed(self, client: Client) -> None:
        client.kube.lose_next_answer("create", "configmaps")
        with pytest.raises(aiohttp.ClientError):
            await client.post(MAPS, config("a"))
        await client.get(f"{MAPS}/a", 200)

    async def test_denials_are_told_by_reviews_too(self, client: Client) -> None:
        reviews = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        review = {"spec": {"resourceAttributes": {"verb": "create", "resource": "pods", "namespace": "default"}}}
        assert (await client.post(reviews, review, 201))["status"]["allowed"] is True
        client.kube.deny("create", "pods")
        assert (await client.post(reviews, review))["status"]["allowed"] is False
        refused = await client.post(PODS, pod("a", "run"), 403)
        assert 'cannot create resource "pods" in API group "" in the namespace "default"' in refused["message"]
        client.kube.allow("create", "pods")
        await client.post(PODS, pod("a", "run"), 201)

    async def test_a_server_that_comes_back_has_its_port_and_its_objects(self, client: Client) -> None:
        held = await client.post(MAPS, config("a"))
        watching = await client.watch(MAPS)
        await watching.next()
        url = client.kube.url
        await client.kube.stop()
        with pytest.raises(aiohttp.ClientError):
            await watching.next()
        with pytest.raises(aiohttp.ClientError):
            await client.get(MAPS)
        await client.kube.start()
        assert client.kube.url == url
        assert await client.get(f"{MAPS}/a") == held
        again = await client.watch(MAPS, f"resourceVersion={version_of(held)}")
        await client.delete(f"{MAPS}/a")
        assert await again.next_event() == ("DELETED", "a")

    async def test_calls_are_noted(self, client: Client) -> None:
        await client.post(PODS, pod("a", "run"))
        await client.get(f"{PODS}/a")
        assert [(call.verb, call.resource, call.name) for call in client.kube.calls] == [
            ("create", "pods", ""),
            ("get", "pods", "a"),
        ]


class TestKubelet:
    @pytest.fixture(autouse=True)
    async def _node(self, nodes: FakeNodes) -> None:
        nodes.add_node("n1", {"cpu": 64, "memory": "64Gi"})

    @pytest.mark.parametrize(
        ("command", "phase", "ended"),
        [
            (("succeed",), "Succeeded", {"exitCode": 0, "reason": "Completed"}),
            (("sleep", "0.05"), "Succeeded", {"exitCode": 0, "reason": "Completed"}),
            (("exit", "7"), "Failed", {"exitCode": 7, "reason": "Error"}),
            (("exit", "0"), "Succeeded", {"exitCode": 0, "reason": "Completed"}),
            (("signal", "9"), "Failed", {"exitCode": 137, "reason": "Error"}),
            (("oom",), "Failed", {"exitCode": 137, "reason": "OOMKilled"}),
        ],
    )
    async def test_containers_end_as_told(
        self, client: Client, command: tuple[str, ...], phase: str, ended: Object
    ) -> None:
        await client.post(PODS, pod("a", *command))
        watching = await client.watch(PODS, "resourceVersion=1")
        phases: list[str] = []
        while not phases or phases[-1] not in ("Succeeded", "Failed"):
            value = (await watching.next())["object"]
            phases.append(value["status"]["phase"])
        assert [one for one in phases if one == "Running"] == ["Running"]
        assert phases[-1] == phase
        terminated = exit_of(value)
        assert terminated["startedAt"] <= terminated["finishedAt"]
        assert {name: terminated[name] for name in ended} == ended
        assert condition(value, "Ready")["status"] == "False"

    async def test_a_running_pod_tells_where_and_since_when(self, client: Client, nodes: FakeNodes) -> None:
        await client.post(PODS, pod("a", "run"))
        await self._until(client, "a", "Running")
        held = await client.get(f"{PODS}/a")
        assert held["spec"]["nodeName"] == "n1"
        assert held["status"]["podIP"]
        assert held["status"]["startTime"]
        assert held["status"]["containerStatuses"][0]["state"]["running"]["startedAt"]
        assert condition(held, "Ready")["status"] == "True"
        assert [(start.name, start.uid, start.node) for start in nodes.starts] == [("a", held["metadata"]["uid"], "n1")]
        assert [one["metadata"]["name"] for one in nodes.living()] == ["a"]

    @pytest.mark.parametrize(
        ("word", "code", "phase"), [("run", 143, "Failed"), ("peaceful", 0, "Succeeded"), ("stubborn", 137, "Failed")]
    )
    async def test_a_deleted_pod_tells_its_end_before_it_goes(
        self, client: Client, nodes: FakeNodes, word: str, code: int, phase: str
    ) -> None:
        await client.post(PODS, pod("a", word))
        await self._until(client, "a", "Running")
        watching = await client.watch(PODS, f"resourceVersion={client.kube.store.version}")
        loop = asyncio.get_running_loop()
        began = loop.time()
        await client.delete(f"{PODS}/a", {"gracePeriodSeconds": 1 if word == "stubborn" else 300})
        events = [await watching.next() for _ in range(4)]
        assert [one["type"] for one in events] == ["MODIFIED", "MODIFIED", "MODIFIED", "DELETED"]
        assert exit_of(events[1]["object"])["exitCode"] == code
        assert events[1]["object"]["status"]["phase"] == phase
        assert word != "stubborn" or loop.time() - began >= 0.95
        assert nodes.living() == []

    async def test_a_shorter_grace_and_force_end_the_stubborn(self, client: Client, nodes: FakeNodes) -> None:
        for name in ("a", "b"):
            await client.post(PODS, pod(name, "stubborn"))
            await self._until(client, name, "Running")
            await client.delete(f"{PODS}/{name}")
        assert len(nodes.living()) == 2
        await client.delete(f"{PODS}/a", {"gracePeriodSeconds": 1})
        await eventually(lambda: client.is_gone(f"{PODS}/a"))
        await client.delete(f"{PODS}/b", {"gracePeriodSeconds": 0})
        await client.get(f"{PODS}/b", 404)
        assert nodes.living() == []

    async def test_a_command_that_does_not_exist_never_runs_and_says_why(
        self, client: Client, nodes: FakeNodes
    ) -> None:
        await client.post(PODS, pod("a", "no-such-command"))
        await self._until(client, "a", "Failed")
        terminated = exit_of(await client.get(f"{PODS}/a"))
        assert (terminated["exitCode"], terminated["reason"], terminated["startedAt"]) == (
            128,
            "StartError",
            "1970-01-01T00:00:00Z",
        )
        assert terminated["message"].endswith("no such file or directory: unknown")
        assert nodes.starts == []

    async def test_a_crashed_node_is_silent_until_it_is_up_again_and_then_knows_little(
        self, client: Client, nodes: FakeNodes
    ) -> None:
        await client.post(PODS, pod("a", "run"))
        await self._until(client, "a", "Running")
        nodes.write_log("default", "a", "said before")
        nodes.crash_node("n1")
        nodes.evict_from("n1")
        held = await client.get(f"{PODS}/a")
        assert (held["status"]["phase"], "deletionTimestamp" in held["metadata"]) == ("Running", True)
        assert condition(held, "DisruptionTarget")["reason"] == "DeletionByTaintManager"
        assert nodes.living() == []
        await client.get(f"{PODS}/a/log", 500)
        watching = await client.watch(PODS, f"resourceVersion={client.kube.store.version}")
        nodes.boot_node("n1")
        events = [await watching.next() for _ in range(3)]
        assert [one["type"] for one in events] == ["MODIFIED", "MODIFIED", "DELETED"]
        terminated = exit_of(events[0]["object"])
        assert (terminated["exitCode"], terminated["reason"]) == (255, "Unknown")

    async def test_output_from_before_a_crash_is_gone_and_the_kubelet_says_so_as_if_it_were_output(
        self, client: Client, nodes: FakeNodes
    ) -> None:
        await client.post(PODS, pod("a", "run"))
        await self._until(client, "a", "Running")
        nodes.write_log("default", "a", "said before")
        nodes.crash_node("n1")
        nodes.boot_node("n1")
        await self._until(client, "a", "Failed")
        said = await client.get(f"{PODS}/a/log")
        assert said.startswith("unable to retrieve container logs for containerd://")

    async def test_a_pod_deleted_before_it_began_is_told_an_end_that_was_none(self, client: Client) -> None:
        await client.post(PODS, pod("a", "image-error"))
        await self._until(client, "a", "Pending")
        watching = await client.watch(PODS, f"resourceVersion={client.kube.store.version}")
        await client.delete(f"{PODS}/a", {"gracePeriodSeconds": 30})
        while (event := await watching.next())["type"] != "DELETED":
            last = event["object"]
        terminated = exit_of(last)
        assert (terminated["exitCode"], terminated["reason"], terminated["startedAt"]) == (
            137,
            "ContainerStatusUnknown",
            None,
        )

    async def test_gates_open_once_for_all(self, client: Client, nodes: FakeNodes) -> None:
        await client.post(PODS, pod("a", "gate", "x"))
        await client.post(PODS, pod("b", "gate", "y"))
        await self._until(client, "b", "Running")
        nodes.open_gate("x")
        await self._until(client, "a", "Succeeded")
        await client.post(PODS, pod("late", "gate", "x"))
        await self._until(client, "late", "Succeeded")
        assert [one["metadata"]["name"] for one in nodes.living(lambda one: True)] == ["b"]

    @pytest.mark.parametrize(
        ("word", "reason"), [("image-error", "ImagePullBackOff"), ("config-error", "CreateContainerConfigError")]
    )
    async def test_a_container_that_cannot_start_waits_with_its_reason(
        self, client: Client, nodes: FakeNodes, word: str, reason: str
    ) -> None:
        await client.post(PODS, pod("a", word))

        async def waits() -> bool:
            statuses = (await client.get(f"{PODS}/a"))["status"].get("containerStatuses", [{}])
            return bool(statuses[0].get("state", {}).get("waiting", {}).get("reason") == reason)

        await eventually(waits)
        assert await client.phase("a") == "Pending"
        assert "waiting to start" in (await client.get(f"{PODS}/a/log", 400))["message"]
        await client.delete(f"{PODS}/a")
        await eventually(lambda: client.is_gone(f"{PODS}/a"))
        assert nodes.starts == []

    async def test_a_deadline_ends_a_pod_with_its_reason(self, client: Client) -> None:
        await client.post(PODS, pod("a", "run", activeDeadlineSeconds=1))
        watching = await client.watch(PODS)
        while (event := await watching.next())["object"]["status"]["phase"] != "Failed":
            pass
        assert event["object"]["status"]["reason"] == "DeadlineExceeded"

    async def test_logs_are_read_and_followed(self, client: Client, nodes: FakeNodes) -> None:
        await client.post(PODS, pod("p", "print", "one\ntwo\nthree"))
        await self._until(client, "p", "Succeeded")
        assert await client.get(f"{PODS}/p/log") == "one\ntwo\nthree\n"
        assert await client.get(f"{PODS}/p/log?tailLines=1") == "three\n"
        assert await client.get(f"{PODS}/p/log?limitBytes=5") == "one\nt"
        stamped = (await client.get(f"{PODS}/p/log?timestamps=true")).splitlines()
        assert [line.split(" ")[1] for line in stamped] == ["one", "two", "three"]
        after = stamped[2].split(" ")[0]
        assert (await client.get(f"{PODS}/p/log?sinceTime={after}")).endswith("three\n")
        await client.get(f"{PODS}/p/log?container=other", 400)
        await client.post(PODS, pod("a", "gate", "x"))
        await self._until(client, "a", "Running")
        async with client.http.get(f"{client.kube.url}{PODS}/a/log?follow=true") as answer:
            nodes.write_log("default", "a", "hello")
            assert await answer.content.readline() == b"hello\n"
            nodes.open_gate("x")
            assert await answer.content.read() == b""

    async def test_a_removed_node_takes_its_pods_along(self, client: Client, nodes: FakeNodes) -> None:
        await client.post(PODS, pod("a", "stubborn"))
        await self._until(client, "a", "Running")
        nodes.remove_node("n1")
        await client.get(f"{PODS}/a", 404)
        assert nodes.living() == []

    async def _until(self, client: Client, name: str, phase: str) -> None:
        async def reached() -> bool:
            return await client.phase(name) == phase

        await eventually(reached)


class TestScheduler:
    async def test_what_does_not_fit_says_why_and_waits_for_room(self, client: Client, nodes: FakeNodes) -> None:
        await client.post(PODS, pod("first", "run", cpu="3"))
        assert await self._refused(client, "first") == "no nodes available to schedule pods"
        nodes.add_node("n1", {"cpu": "4", "memory": "4Gi"})
        nodes.add_node("n2", {"cpu": "2", "memory": "4Gi"})
        await self._bound(client, "first", "n1")
        await client.post(PODS, pod("second", "run", cpu="3"))
        assert await self._refused(client, "second") == "0/2 nodes are available: 2 Insufficient cpu."
        await client.delete(f"{PODS}/first", {"gracePeriodSeconds": 0})
        await self._bound(client, "second", "n1")

    async def test_a_finished_pod_makes_room(self, client: Client, nodes: FakeNodes) -> None:
        nodes.add_node("n1", {"cpu": "1", "nvidia.com/gpu": 1})
        await client.post(PODS, pod("a", "gate", "x"))
        await client.post(PODS, pod("b", "run"))
        assert await self._refused(client, "b") == "0/1 nodes are available: 1 Insufficient cpu."
        nodes.open_gate("x")
        await self._bound(client, "b", "n1")

    async def test_gated_pods_wait_for_their_gates(self, client: Client, nodes: FakeNodes) -> None:
        nodes.add_node("n1", {"cpu": 4})
        created = await client.post(PODS, pod("a", "run", schedulingGates=[{"name": "x"}]))
        assert condition(created)["reason"] == "SchedulingGated"
        await client.post(PODS, pod("b", "run"))
        await self._bound(client, "b", "n1")
        assert "nodeName" not in (await client.get(f"{PODS}/a"))["spec"]
        await client.patch(f"{PODS}/a", MERGE, {"spec": {"schedulingGates": None}})
        await self._bound(client, "a", "n1")

    @pytest.mark.parametrize(
        ("operator", "values", "node"),
        [
            ("In", ["b", "c"], "n2"),
            ("NotIn", ["a"], "n2"),
            ("Exists", None, "n1"),
            ("DoesNotExist", None, ""),
            ("Gt", ["5"], "n2"),
            ("Lt", ["5"], "n1"),
        ],
    )
    async def test_required_node_affinity(
        self, client: Client, nodes: FakeNodes, operator: str, values: list[str] | None, node: str
    ) -> None:
        for name, zone, size in (("n1", "a", "4"), ("n2", "b", "8")):
            nodes.add_node(name, {"cpu": 4}, {"zone": zone, "size": size})
        key = "size" if operator in ("Gt", "Lt") else "zone"
        term = {"matchExpressions": [{"key": key, "operator": operator, **({"values": values} if values else {})}]}
        affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}
        await client.post(PODS, pod("a", "run", affinity=affinity))
        if node:
            await self._bound(client, "a", node)
        else:
            message = "0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector."
            assert await self._refused(client, "a") == message

    async def test_selectors_taints_and_extended_resources(self, client: Client, nodes: FakeNodes) -> None:
        taint = {"key": "gpu", "value": "yes", "effect": "NoSchedule"}
        nodes.add_node("n1", {"cpu": 4})
        nodes.add_node("n2", {"cpu": 4, "nvidia.com/gpu": 2}, {"kind": "gpu"}, [taint])
        await client.post(PODS, pod("a", "run", nodeSelector={"kind": "gpu"}))
        assert await self._refused(client, "a") == (
            "0/2 nodes are available: 1 node(s) didn't match Pod's node affinity/selector, "
            "1 node(s) had untolerated taint {gpu: yes}."
        )
        tolerations = [{"key": "gpu", "operator": "Equal", "value": "yes", "effect": "NoSchedule"}]
        wanting = pod("b", "run", tolerations=tolerations)
        wanting["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": 2}}
        await client.post(PODS, wanting)
        await self._bound(client, "b", "n2")

    async def test_anti_affinity_holds_both_ways(self, client: Client, nodes: FakeNodes) -> None:
        nodes.add_node("n1", {"cpu": 8})
        term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "x"}}}
        affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
        await client.post(PODS, pod("a", "run", affinity=affinity))
        await self._bound(client, "a", "n1")
        await client.post(PODS, pod("b", "run", labels={"app": "x"}))
        assert "existing pods anti-affinity" in await self._refused(client, "b")
        nodes.add_node("n2", {"cpu": 8})
        await self._bound(client, "b", "n2")
        await client.post(PODS, pod("c", "run", affinity=affinity, nodeSelector={"kubernetes.io/hostname": "n2"}))
        assert "1 node(s) didn't match pod anti-affinity rules" in await self._refused(client, "c")

    async def test_a_gang_is_bound_all_together_or_not_at_all(self, client: Client, nodes: FakeNodes) -> None:
        client.kube.serve(SCHEDULING, ["podgroups"])
        nodes.add_node("n1", {"cpu": 2})
        group = {"podGroupName": "g"}
        await client.post(PODS, pod("a", "run", schedulingGroup=group))
        assert "pod group" in await self._refused(client, "a")
        await client.post(GROUPS, {"metadata": {"name": "g"}, "spec": {"schedulingPolicy": {"gang": {"minCount": 3}}}})
        for name in ("b", "c"):
            await client.post(PODS, pod(name, "run", schedulingGroup=group))

        async def is_reported(status: str) -> bool:
            return bool(condition(await client.get(f"{GROUPS}/g"), "PodGroupScheduled").get("status") == status)

        await eventually(lambda: is_reported("False"))
        refused = condition(await client.get(f"{GROUPS}/g"), "PodGroupScheduled")
        assert refused["reason"] == "Unschedulable"
        assert "room for 2 of 3 pods: 0/1 nodes are available: 1 Insufficient cpu." in refused["message"]
        assert nodes.starts == []
        await client.post(PODS, pod("alone", "run", cpu="2"))
        await self._bound(client, "alone", "n1")
        nodes.add_node("n2", {"cpu": 3})
        await eventually(lambda: is_reported("True"))
        for name in ("a", "b", "c"):
            await self._bound(client, name, "n2")

    async def _bound(self, client: Client, name: str, node: str) -> None:
        async def bound() -> bool:
            return bool((await client.get(f"{PODS}/{name}"))["spec"].get("nodeName") == node)

        await eventually(bound)

    async def _refused(self, client: Client, name: str) -> str:
        async def refused() -> bool:
            return bool(condition(await client.get(f"{PODS}/{name}")).get("reason") == "Unschedulable")

        await eventually(refused)
        return str(condition(await client.get(f"{PODS}/{name}"))["message"])


async def _true(value: bool) -> bool:
    return value


def _reference(owner: Object) -> Object:
    return {"apiVersion": "v1", "kind": "ConfigMap", "name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"]}
