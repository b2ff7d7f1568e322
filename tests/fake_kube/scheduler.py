"""A scheduler on the store: pods one by one in order of creation, gangs of a PodGroup all together or not at all.

Wakes with the changes that may let a pod be bound, and works in a turn of the event loop of its own.
"""

import asyncio
import itertools

from tests.fake_kube.fitting import NodeSpace, PodInfo, Surroundings, obstacles, unavailable
from tests.fake_kube.objects import Object, is_deleting, is_finished, node_of, set_condition
from tests.fake_kube.resources import NODES, PODS, Table
from tests.fake_kube.store import Change, Key, Store
from tests.fake_kube.verbs import Verbs

_NAME = "default-scheduler"


class Scheduler:
    """Binds pods whose ``schedulerName`` is the default one."""

    def __init__(self, store: Store, table: Table, verbs: Verbs) -> None:
        self._store = store
        self._table = table
        self._verbs = verbs
        self._node_spaces: dict[str, NodeSpace] = {}
        self._waiting: dict[Key, int] = {}
        """Pods that are to be bound, with their places in the order of creation."""
        self._active: set[Key] = set()
        """Those of them for which something has changed since they were looked at."""
        self._places = itertools.count()
        self._woken = False
        self.close = store.listen(self._follow)

    def _follow(self, change: Change) -> None:
        if change.key.resource == PODS.id:
            self._follow_pod(change)
        elif change.key.resource == NODES.id:
            self._follow_node(change)
        elif change.key.resource in [resource.id for resource in self._table.pod_groups()] and _is_new(change):
            self._look_again()
        if self._active and not self._woken:
            self._woken = True
            asyncio.get_running_loop().call_soon(self._schedule)

    def _follow_pod(self, change: Change) -> None:
        key, pod = change.key, change.new
        if pod is not None and not node_of(pod) and not is_deleting(pod) and pod["spec"].get("schedulerName") == _NAME:
            if _is_new(change):
                self._waiting.setdefault(key, next(self._places))
                self._active.add(key)
            return
        self._waiting.pop(key, None)
        self._active.discard(key)
        space = self._node_spaces.get(node_of(pod or change.value))
        if space is None:
            return
        if pod is not None and not is_finished(pod):
            space.occupy(key, PodInfo.of(pod))
        elif key in space.pod_infos:
            space.release(key)
            self._look_again()

    def _follow_node(self, change: Change) -> None:
        name = change.key.name
        if change.new is None:
            self._node_spaces.pop(name, None)
        elif name in self._node_spaces:
            self._node_spaces[name].renew(change.new)
        else:
            space = self._node_spaces[name] = NodeSpace(change.new)
            for key, pod in self._store.scan(PODS.id).items():
                if node_of(pod) == name and not is_finished(pod):
                    space.occupy(key, PodInfo.of(pod))
        self._look_again()

    def _look_again(self) -> None:
        self._active.update(self._waiting)

    def _schedule(self) -> None:
        self._woken = False
        for key in sorted(self._active, key=lambda one: self._waiting[one]):
            pod = self._store.peek(key)
            if key not in self._active or pod is None:
                continue  # bound, or judged with the rest of its gang
            self._active.discard(key)
            if pod["spec"].get("schedulingGates"):
                message = "Scheduling is blocked due to non-empty scheduling gates"
                self._refuse(key, message, "SchedulingGated")
            elif name := (pod["spec"].get("schedulingGroup") or {}).get("podGroupName"):
                self._schedule_member(key, pod, name)
            else:
                self._schedule_alone(key, pod)

    def _schedule_alone(self, key: Key, pod: Object) -> None:
        space, message = self._choose(pod)
        if space is None:
            self._refuse(key, message)
        else:
            self._bind(key, space)

    def _schedule_member(self, key: Key, pod: Object, name: str) -> None:
        group_key = self._find_group(key.namespace, name)
        group = self._store.peek(group_key) if group_key else None
        if group_key is None or group is None:
            self._refuse(key, f'waiting for pod group "{name}" to appear')
            return
        gang = (group["spec"].get("schedulingPolicy") or {}).get("gang")
        if gang is None:
            self._schedule_alone(key, pod)
        else:
            self._schedule_gang(group_key, gang["minCount"])

    def _schedule_gang(self, group_key: Key, least: int) -> None:
        members = sorted(
            (key for key in self._waiting if self._is_member(key, group_key)), key=self._waiting.__getitem__
        )
        self._active.difference_update(members)
        bound = sum(self._is_member(key, group_key) for space in self._node_spaces.values() for key in space.pod_infos)
        if bound + len(members) < least:
            for key in members:
                self._refuse(key, f"waiting for minCount pods from a gang to appear: {bound + len(members)} of {least}")
            return
        places: dict[Key, NodeSpace] = {}
        refusals: dict[Key, str] = {}
        for key in members:
            pod = self._store.peek(key)
            assert pod is not None
            space, message = self._choose(pod)
            if space is None:
                refusals[key] = message
            else:
                space.occupy(key, PodInfo.of(pod))
                places[key] = space
        if bound + len(places) >= least:
            for key, space in places.items():
                self._bind(key, space)
            self._tell_group(group_key, "True", "Scheduled", f"{bound + len(places)} pods of the group are scheduled")
        else:
            for key, space in places.items():
                space.release(key)
            why = f"room for {bound + len(places)} of {least} pods: {next(iter(refusals.values()))}"
            refusals.update(dict.fromkeys(places, f"pod group is unschedulable, {why}"))
            self._tell_group(group_key, "False", "Unschedulable", why)
        for key, message in refusals.items():
            self._refuse(key, message)

    def _is_member(self, key: Key, group_key: Key) -> bool:
        pod = self._store.peek(key)
        if pod is None or key.namespace != group_key.namespace or pod["spec"].get("schedulingGates"):
            return False
        named: object = (pod["spec"].get("schedulingGroup") or {}).get("podGroupName")
        return named == group_key.name

    def _find_group(self, namespace: str, name: str) -> Key | None:
        keys = [Key(*resource.id, namespace, name) for resource in self._table.pod_groups()]
        return next((key for key in keys if self._store.peek(key) is not None), None)

    def _choose(self, pod: Object) -> tuple[NodeSpace | None, str]:
        pod_info, around = PodInfo.of(pod), Surroundings(self._node_spaces.values())
        found = [(space, obstacles(pod_info, space, around)) for space in around.node_spaces]
        fitting = [space for space, against in found if not against]
        if not fitting:
            return None, unavailable(against for _, against in found)
        return min(fitting, key=lambda space: space.load_with(pod_info)), ""

    def _bind(self, key: Key, space: NodeSpace) -> None:
        self._verbs.bind(key.namespace, key.name, {"target": {"kind": "Node", "name": space.node["metadata"]["name"]}})

    def _refuse(self, key: Key, message: str, reason: str = "Unschedulable") -> None:
        if pod := self._store.get(key):
            set_condition(pod["status"], "PodScheduled", "False", reason, message)
            self._store.update(key, pod)

    def _tell_group(self, key: Key, value: str, reason: str, message: str) -> None:
        if group := self._store.get(key):
            set_condition(group.setdefault("status", {}), "PodGroupScheduled", value, reason, message)
            self._store.update(key, group)


def _is_new(change: Change) -> bool:
    """Return whether the change is of the desired state, and not only of the status."""
    return change.old is None or change.new is None or change.old["spec"] != change.new["spec"]
