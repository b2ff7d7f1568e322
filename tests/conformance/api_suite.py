"""What the agent relies on of an API server: one suite, run on the fake one and on real ones, through the agent's own client.

A subclass provides the fixture ``testbed``.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.conformance.runtime_suite import eventually
from tests.waiting import eventually as comes_true
from trainmaster_agent.kube.client import ApiServer
from trainmaster_agent.kube.errors import ConflictError, ForbiddenError, InvalidError, NotFoundError
from trainmaster_agent.kube.paths import CONFIG_MAPS, LEASES, PODS, RESOURCE_QUOTAS, SERVICES, Resource, key_of
from trainmaster_agent.kube.watch import KubeWatch

_JSON_PATCH = "application/json-patch+json"


@dataclass
class Environment:
    """``add_node`` makes a ready node that plays kubelet; ``outage`` takes the API server away and brings it back."""

    api: ApiServer
    namespace: str
    add_node: Callable[[str], Awaitable[None]]
    outage: Callable[[], Awaitable[None]]


@dataclass
class Copy:
    """What a watch reports, as a handler."""

    objects: dict[str, dict[str, Any]] = field(default_factory=dict)
    lists: int = 0

    def put(self, obj: dict[str, Any]) -> None:
        self.objects[key_of(obj)] = obj

    def drop(self, obj: dict[str, Any]) -> None:
        self.objects.pop(key_of(obj), None)

    def listed(self, keys: set[str]) -> None:
        self.lists += 1
        for key in self.objects.keys() - keys:
            del self.objects[key]

    @property
    def names(self) -> set[str]:
        return {key.partition("/")[2] for key in self.objects}


def config_map(name: str, **labels: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": labels}, "data": {"a": "1"}}


def pod(name: str, *words: str, **spec: Any) -> dict[str, Any]:
    container = {"name": "main", "image": "sim", "command": ["sim", *words], "resources": {"requests": {"cpu": "1"}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"restartPolicy": "Never", "containers": [container], "terminationGracePeriodSeconds": 30, **spec},
    }


@asynccontextmanager
async def watched(testbed: Environment, handler: Copy, selector: str = "") -> AsyncIterator[KubeWatch]:
    watch = KubeWatch(testbed.api, CONFIG_MAPS, handler, namespace=testbed.namespace, selector=selector)
    task = asyncio.create_task(watch.run())
    try:
        async with asyncio.timeout(20):
            await watch.listed.wait()
        yield watch
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def phase(testbed: Environment, name: str) -> str:
    return str((await testbed.api.get(PODS, testbed.namespace, name)).get("status", {}).get("phase"))


async def until_phase(testbed: Environment, name: str, wanted: str) -> None:
    async def is_there() -> bool:
        return await phase(testbed, name) == wanted

    await comes_true(is_there, 30)


async def until_gone(testbed: Environment, resource: Resource, name: str) -> None:
    async def is_gone() -> bool:
        try:
            await testbed.api.get(resource, testbed.namespace, name)
        except NotFoundError:
            return True
        return False

    await comes_true(is_gone, 60)


class ApiConformance:
    """Subclass this with a fixture ``testbed``."""

    async def test_what_is_there_is_not_created_again(self, testbed: Environment) -> None:
        first = await testbed.api.create(CONFIG_MAPS, testbed.namespace, config_map("a"))
        assert first["metadata"]["uid"]
        assert first["metadata"]["creationTimestamp"].endswith("Z")
        with pytest.raises(ConflictError) as caught:
            await testbed.api.create(CONFIG_MAPS, testbed.namespace, config_map("a"))
        assert caught.value.reason == "AlreadyExists"

    async def test_what_is_not_there_is_not_found_and_neither_is_anything_in_a_namespace_that_is_not_there(
        self, testbed: Environment
    ) -> None:
        with pytest.raises(NotFoundError):
            await testbed.api.get(CONFIG_MAPS, testbed.namespace, "nobody")
        with pytest.raises(NotFoundError):
            await testbed.api.create(CONFIG_MAPS, "no-such-namespace", config_map("a"))

    async def test_an_object_that_is_none_is_invalid(self, testbed: Environment) -> None:
        body = pod("bad")
        body["spec"]["containers"] = []
        with pytest.raises(InvalidError):
            await testbed.api.create(PODS, testbed.namespace, body)

    async def test_a_patch_of_an_old_version_is_a_conflict(self, testbed: Environment) -> None:
        made = await testbed.api.create(CONFIG_MAPS, testbed.namespace, config_map("a"))
        old = {"metadata": {"resourceVersion": made["metadata"]["resourceVersion"]}, "data": {"b": "2"}}
        changed = await testbed.api.patch(CONFIG_MAPS, testbed.namespace, "a", old)
        assert changed["data"] == {"a": "1", "b": "2"}
        assert int(changed["metadata"]["resourceVersion"]) > int(made["metadata"]["resourceVersion"])
        with pytest.raises(ConflictError):
            await testbed.api.patch(CONFIG_MAPS, testbed.namespace, "a", old)

    async def test_a_lease_is_replaced_only_by_who_read_the_newest(self, testbed: Environment) -> None:
        body = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": "l"},
            "spec": {"holderIdentity": "x"},
        }
        made = await testbed.api.create(LEASES, testbed.namespace, body)
        await testbed.api.replace(LEASES, testbed.namespace, "l", {**made, "spec": {"holderIdentity": "y"}})
        with pytest.raises(ConflictError):
            await testbed.api.replace(LEASES, testbed.namespace, "l", {**made, "spec": {"holderIdentity": "z"}})

    async def test_only_the_very_object_is_deleted(self, testbed: Environment) -> None:
        made = await testbed.api.create(SERVICES, testbed.namespace, service("s"))
        with pytest.raises(ConflictError):
            await testbed.api.delete(SERVICES, testbed.namespace, "s", uid="00000000-0000-0000-0000-000000000000")
        await testbed.api.delete(SERVICES, testbed.namespace, "s", uid=made["metadata"]["uid"])
        with pytest.raises(NotFoundError):
            await testbed.api.delete(SERVICES, testbed.namespace, "s")

    async def test_pages_hold_everything_once(self, testbed: Environment) -> None:
        for number in range(7):
            await testbed.api.create(CONFIG_MAPS, testbed.namespace, config_map(f"page-{number}", of="pages"))
        found, versions = [], set()
        async for items, version in testbed.api.pages(CONFIG_MAPS, testbed.namespace, selector="of=pages", page=3):
            assert len(items) <= 3
            found += [one["metadata"]["name"] for one in items]
            versions.add(version)
        assert found == [f"page-{number}" for number in range(7)]
        assert len(versions) == 1

    async def test_a_watch_tells_each_change_and_what_stops_matching(self, testbed: Environment) -> None:
        await testbed.api.create(CONFIG_MAPS, testbed.namespace, config_map("old", of="watch"))
        copy = Copy()
        async with watched(testbed, copy, "of=watch"):
            assert copy.names == {"old"}
            await testbed.api.create(CONFIG_MAPS, testbed.namespace, config_map("new", of="watch"))
            await testbed.api.create(CONFIG_MAPS, testbed.namespace, config_map("other", of="else"))
            await eventually(lambda: copy.names == {"old", "new"}, "the new one is seen")
            await testbed.api.patch(CONFIG_MAPS, testbed.namespace, "new", {"metadata": {"labels": {"of": "else"}}})
            await eventually(lambda: copy.names == {"old"}, "what matches no more is gone")
            await testbed.api.delete(CONFIG_MAPS, testbed.namespace, "old")
            await eventually(lambda: copy.names == set(), "what was deleted is gone")
            assert copy.lists == 1

    async def test_a_watch_goes_on_after_an_outage(self, testbed: Environment) -> None:
        copy = Copy()
        async with watched(testbed, copy, "of=outage"):
            await testbed.api.create(CONFIG_MAPS, testbed.namespace, config_map("before", of="outage"))
            await eventually(lambda: copy.names == {"before"}, "it is seen")
            await testbed.outage()
            await testbed.api.create(CONFIG_MAPS, testbed.namespace, config_map("after", of="outage"))
            await eventually(lambda: copy.names == {"before", "after"}, "what came after the outage is seen")

    async def test_a_pod_that_is_deleted_stays_until_it_has_ended(self, testbed: Environment) -> None:
        await testbed.add_node("node")
        made = await testbed.api.create(PODS, testbed.namespace, pod("p", "stubborn"))
        await until_phase(testbed, "p", "Running")
        await testbed.api.delete(PODS, testbed.namespace, "p", uid=made["metadata"]["uid"], grace=30)
        leaving = await testbed.api.get(PODS, testbed.namespace, "p")
        assert "deletionTimestamp" in leaving["metadata"]
        assert leaving["metadata"]["deletionGracePeriodSeconds"] == 30
        await testbed.api.delete(PODS, testbed.namespace, "p", grace=1)
        await until_gone(testbed, PODS, "p")

    async def test_a_gate_keeps_a_pod_from_its_node_and_is_taken_off_with_a_narrower_selector(
        self, testbed: Environment
    ) -> None:
        await testbed.add_node("node")
        gated = pod("g", "run", schedulingGates=[{"name": "trainmaster.dev/gang"}])
        await testbed.api.create(PODS, testbed.namespace, gated)
        await asyncio.sleep(0.5)
        held = await testbed.api.get(PODS, testbed.namespace, "g")
        assert "nodeName" not in held["spec"]
        opened = {"spec": {"schedulingGates": None, "nodeSelector": {"kubernetes.io/hostname": "node"}}}
        await testbed.api.patch(PODS, testbed.namespace, "g", opened)
        await until_phase(testbed, "g", "Running")
        with pytest.raises(InvalidError):
            await testbed.api.patch(PODS, testbed.namespace, "g", {"spec": {"nodeSelector": {"other": "label"}}})

    async def test_all_of_a_kind_with_a_label_go_in_one_call(self, testbed: Environment) -> None:
        for number in range(3):
            await testbed.api.create(CONFIG_MAPS, testbed.namespace, config_map(f"some-{number}", of="some"))
        await testbed.api.create(CONFIG_MAPS, testbed.namespace, config_map("stays", of="stays"))
        await testbed.api.delete_all(CONFIG_MAPS, testbed.namespace, "of=some")
        left = [
            one["metadata"]["name"]
            async for items, _ in testbed.api.pages(CONFIG_MAPS, testbed.namespace)
            for one in items
        ]
        assert "stays" in left
        assert not any(name.startswith("some-") for name in left)

    async def test_what_its_owner_leaves_behind_goes_with_it(self, testbed: Environment) -> None:
        owner = await testbed.api.create(CONFIG_MAPS, testbed.namespace, config_map("owner"))
        reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["metadata"]["uid"]}
        owned = config_map("owned")
        owned["metadata"]["ownerReferences"] = [reference]
        await testbed.api.create(CONFIG_MAPS, testbed.namespace, owned)
        await testbed.api.delete(CONFIG_MAPS, testbed.namespace, "owner")
        await until_gone(testbed, CONFIG_MAPS, "owned")

    async def test_a_quota_that_is_used_up_forbids_the_next_pod_and_says_so(self, testbed: Environment) -> None:
        quota = {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "few"},
            "spec": {"hard": {"pods": "1"}},
        }
        await testbed.api.create(RESOURCE_QUOTAS, testbed.namespace, quota)

        async def is_counted() -> bool:
            stored = await testbed.api.get(RESOURCE_QUOTAS, testbed.namespace, "few")
            return bool(stored.get("status", {}).get("hard"))

        await comes_true(is_counted, 30)
        await testbed.api.create(PODS, testbed.namespace, pod("one", "run", schedulingGates=[{"name": "x.dev/y"}]))
        with pytest.raises(ForbiddenError, match="exceeded quota: few") as caught:
            await testbed.api.create(PODS, testbed.namespace, pod("two", "run"))
        assert caught.value.is_quota

    async def test_a_json_patch_is_taken_as_one(self, testbed: Environment) -> None:
        await testbed.api.create(CONFIG_MAPS, testbed.namespace, config_map("a"))
        patch = [{"op": "test", "path": "/data/a", "value": "1"}, {"op": "replace", "path": "/data/a", "value": "2"}]
        assert (await testbed.api.patch(CONFIG_MAPS, testbed.namespace, "a", patch, _JSON_PATCH))["data"] == {"a": "2"}
        with pytest.raises(InvalidError):
            await testbed.api.patch(CONFIG_MAPS, testbed.namespace, "a", patch, _JSON_PATCH)


def service(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"clusterIP": "None", "selector": {"a": "b"}},
    }
