"""`Submissions`: follows the objects of a cluster that the dispatcher is to run, and those of their jobs in the dispatcher's
Kubernetes API, and does for each pair what ``decisions`` says. It keeps nothing: a new process goes on where the last one ended.
"""

import asyncio
import logging
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from trainmaster.workload_kinds.kind import WorkloadKind
from trainmaster.workload_kinds.registry import KINDS
from trainmaster.workload_kinds.specification import ORIGIN_CLUSTER, ORIGIN_UID, QUEUE_KEY
from trainmaster_agent.containment import contain
from trainmaster_agent.kube.client import ApiServer
from trainmaster_agent.kube.errors import ConflictError, InvalidError, KubeError, NotFoundError, RefusedError
from trainmaster_agent.kube.paths import NAMESPACES, Resource
from trainmaster_agent.kube.watch import KubeWatch
from trainmaster_agent.runtime.kubernetes.worklist import Worklist
from trainmaster_agent.submissions.decisions import (
    SHARED_ANNOTATIONS,
    CreateJob,
    DeleteJob,
    LookForJob,
    ReportStatus,
    Step,
    SuspendJob,
    is_managed,
    is_misplaced,
    job_object_name,
    lost_job,
    refused_job,
    steps,
)
from trainmaster_agent.submissions.event_copies import EventCopies

log = logging.getLogger(__name__)

Wire = dict[str, Any]

_WORKERS = 8
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0
_NAMESPACES_SECONDS = 30.0
_RESYNC_SECONDS = 600.0
_MOST_MISTAKES = 5


class _Objects:
    """The objects of a kind, by the uid of the cluster's object: the cluster's own ones, or those of their jobs.

    Anybody who may use a queue can give a job the labels of another's object, so the name counts as well: see ``of``.
    """

    def __init__(self, owner: "Submissions", kind: WorkloadKind, *, is_remote: bool) -> None:
        self._owner = owner
        self._kind = kind
        self._is_remote = is_remote
        self._objects: dict[str, dict[str, Wire]] = {}
        """By uid and ``namespace/name``."""
        self._uids: dict[str, str] = {}
        """Uids by ``namespace/name``."""

    def of(self, uid: str, name: str | None = None) -> Wire | None:
        """Return an object, with ``name`` the one of this name."""
        found = self._objects.get(uid, {}).values()
        return next((one for one in found if name in (None, one["metadata"]["name"])), None)

    def put(self, obj: Wire) -> None:
        uid = self._uid(obj)
        key = _key(obj)
        if self._uids.get(key, uid) != uid:
            self._forget(key)
        if not uid or not (self._is_remote or is_managed(self._kind, obj)):
            self._forget(key)
            return
        self._uids[key] = uid
        self._objects.setdefault(uid, {})[key] = obj
        self._owner.look_at(self._kind, uid)

    def drop(self, obj: Wire) -> None:
        self._forget(_key(obj))
        if uid := self._uid(obj):
            # Also of one that was made and deleted between two looks of the dispatcher at its feed.
            self._owner.look_at(self._kind, uid)

    def listed(self, keys: set[str]) -> None:
        for key in [one for one in self._uids if one not in keys]:
            self._forget(key)

    def _uid(self, obj: Mapping[str, Any]) -> str:
        metadata = obj["metadata"]
        return str((metadata.get("labels") or {}).get(ORIGIN_UID, "") if self._is_remote else metadata["uid"])

    def _forget(self, key: str) -> None:
        uid = self._uids.pop(key, None)
        if uid is not None:
            of_uid = self._objects.get(uid, {})
            of_uid.pop(key, None)
            if not of_uid:
                self._objects.pop(uid, None)
            self._owner.look_at(self._kind, uid)


class _Namespaces:
    """The queues that namespaces of the cluster name, by namespace."""

    def __init__(self, owner: "Submissions") -> None:
        self._owner = owner
        self.queues: dict[str, str] = {}

    def put(self, obj: Wire) -> None:
        metadata = obj["metadata"]
        annotations, labels = (metadata.get(field) or {} for field in ("annotations", "labels"))
        queue = annotations.get(QUEUE_KEY) or str(labels.get(QUEUE_KEY, "")).replace(".", "/")
        if queue:
            self.queues[metadata["name"]] = queue
        else:
            self.queues.pop(metadata["name"], None)

    def drop(self, obj: Wire) -> None:
        self.queues.pop(obj["metadata"]["name"], None)

    def listed(self, keys: set[str]) -> None:
        for name in [one for one in self.queues if one not in keys]:
            del self.queues[name]


class Submissions:
    """``cluster``: the name by which the dispatcher's jobs say where they come from; it must stay the same."""

    def __init__(self, local: ApiServer, dispatcher: ApiServer, cluster: str) -> None:
        self._local_api = local
        self._remote_api = dispatcher
        self._cluster = cluster
        self._kinds = {kind.name: kind for kind in KINDS if kind.manager_path and kind.may_name_dispatcher}
        self._locals = {name: _Objects(self, kind, is_remote=False) for name, kind in self._kinds.items()}
        self._remotes = {name: _Objects(self, kind, is_remote=True) for name, kind in self._kinds.items()}
        self._namespaces = _Namespaces(self)
        self._work = Worklist(lambda _: False)
        self._pauses: dict[str, float] = {}
        self._watches: dict[str, tuple[KubeWatch, KubeWatch]] = {}
        self._events = EventCopies(local, dispatcher)
        self._places: dict[str, str] = {}
        """Namespaces of the dispatcher's queues, by the queues' paths."""
        self._places_at = -1e9

    def look_at(self, kind: WorkloadKind, uid: str) -> None:
        """Let a worker look at an object and its job."""
        self._work.add(f"{kind.name}|{uid}")

    async def run(self, stop: asyncio.Event) -> None:
        """Follow both sides until stopped."""
        async with asyncio.TaskGroup() as tasks:
            namespaces = KubeWatch(self._local_api, NAMESPACES, self._namespaces, resync=_RESYNC_SECONDS)
            running = [tasks.create_task(namespaces.run(), name="watch namespaces")]
            for name, kind in self._kinds.items():
                resource = Resource(kind.api_version, kind.plural, kind.kind)
                local = KubeWatch(
                    self._local_api, resource, self._locals[name], resync=_RESYNC_SECONDS, is_needed=False
                )
                selector = f"{ORIGIN_CLUSTER}={self._cluster}"
                remote = KubeWatch(
                    self._remote_api, resource, self._remotes[name], selector=selector, resync=_RESYNC_SECONDS
                )
                self._watches[name] = local, remote
                running += [tasks.create_task(one.run(), name=f"watch {name}") for one in (local, remote)]
            running += [tasks.create_task(self._worker(namespaces), name=f"worker-{n}") for n in range(_WORKERS)]
            log.info("takes objects of %s that the dispatcher is to run", self._cluster)
            await stop.wait()
            for task in running:
                task.cancel()

    async def _worker(self, namespaces: KubeWatch) -> None:
        await namespaces.listed.wait()
        while True:
            key = await self._work.take()
            try:
                await self._settle(key)
                self._pauses.pop(key, None)
            except KubeError as error:
                self._later(key, str(error))
            except Exception as error:  # noqa: BLE001 - contained: nothing else ends with it
                self._later(key, contain("submission", error, key))
            finally:
                self._work.done(key)

    def _later(self, key: str, why: str) -> None:
        """Look at an object again after a pause, which grows with each failure in a row."""
        pause = self._pauses[key] = min(_LONGEST_PAUSE, 2 * self._pauses.get(key, _FIRST_PAUSE / 2))
        log.info("%s is tried again in %.0f s: %s", key, pause, why)
        asyncio.get_running_loop().call_later(pause, self._work.add, key)

    async def _settle(self, key: str) -> None:
        """Do what has to be done for one object. Raises KubeError."""
        name, _, uid = key.partition("|")
        kind = self._kinds[name]
        # Before both lists are known, an object or a job that exists would be taken for one that is gone.
        for watch in self._watches[name]:
            if not watch.listed.is_set():
                asyncio.get_running_loop().call_later(_FIRST_PAUSE, self._work.add, key)
                return
        local = self._locals[name].of(uid)
        remote = self._remotes[name].of(uid, None if local is None else job_object_name(self._cluster, local))
        of_namespace = None if local is None else self._namespaces.queues.get(local["metadata"]["namespace"])
        for step in steps(kind, self._cluster, local, remote, of_namespace, _now()):
            await self._do(_Pair(kind, local, remote, of_namespace), step)

    async def _do(self, pair: "_Pair", step: Step) -> None:
        match step:
            case CreateJob():
                await self._create(pair, step)
            case DeleteJob():
                await self._delete(pair)
            case SuspendJob(patch):
                await self._remote_api.patch(pair.resource, *pair.remote_place, patch)
            case ReportStatus():
                await self._report(pair, step)
            case LookForJob():
                await self._look_for_job(pair)

    async def _create(self, pair: "_Pair", step: CreateJob) -> None:
        local = pair.existing
        if is_misplaced(step.queue, pair.of_namespace):
            why = f"its namespace is of the queue {pair.of_namespace!r}, and it names {step.queue.value!r}"  # type: ignore[union-attr]
            await self._refuse(pair, why)
            return
        manifest = step.manifest
        if step.queue is not None:
            manifest["metadata"]["annotations"][QUEUE_KEY] = step.queue.value
        try:
            place = await self._place(local, step)
            try:
                made = await self._remote_api.create(pair.resource, place, manifest)
            except ConflictError:
                # A process before this one made it, and ended before it knew.
                made = await self._remote_api.get(pair.resource, place, manifest["metadata"]["name"])
                if (made["metadata"].get("labels") or {}).get(ORIGIN_UID) != local["metadata"]["uid"]:
                    raise
        except InvalidError as error:
            await self._refuse(pair, _mistakes_of(error))
            return
        except RefusedError as error:
            await self._events.warn(
                pair.kind, pair.existing, "NotSubmitted", f"the dispatcher does not take it: {error}"
            )
            raise
        log.info("submitted %s", _key(local))
        annotations = made["metadata"].get("annotations") or {}
        await self._annotate(pair, {key: annotations[key] for key in SHARED_ANNOTATIONS if key in annotations})

    async def _place(self, local: Mapping[str, Any], step: CreateJob) -> str:
        """Return the namespace in the dispatcher: that of the queue that is named, or else of the same name. Raises KubeError."""
        if step.queue is None:
            return str(local["metadata"]["namespace"])
        queue = step.queue.value
        if queue not in self._places and time.monotonic() > self._places_at + _NAMESPACES_SECONDS:
            self._places_at = time.monotonic()
            self._places = {}
            async for items, _ in self._remote_api.pages(NAMESPACES):
                for one in items:
                    queues = (one["metadata"].get("annotations") or {}).get("trainmaster.dev/queues", "")
                    self._places |= dict.fromkeys(filter(None, queues.split(",")), one["metadata"]["name"])
        return self._places.get(queue, queue.replace("/", "-"))

    async def _refuse(self, pair: "_Pair", why: str) -> None:
        log.info("%s is refused: %s", _key(pair.existing), why)
        await self._events.warn(pair.kind, pair.existing, "Refused", f"the dispatcher refuses it: {why}")
        await self._report(pair, refused_job(pair.kind, pair.existing, why, _now()))

    async def _delete(self, pair: "_Pair") -> None:
        with suppress(NotFoundError):
            await self._remote_api.delete(pair.resource, *pair.remote_place)
            log.info("deleted the job of an object that is gone: %s", pair.remote_place[1])

    async def _look_for_job(self, pair: "_Pair") -> None:
        """Fail an object whose job was deleted in the dispatcher; one whose job exists is told of it by the watch."""
        local = pair.existing
        found = await self._remote_api.call(
            "GET",
            pair.resource.path(),
            query={"labelSelector": f"{ORIGIN_UID}={local['metadata']['uid']}"},
        )
        own = job_object_name(self._cluster, local)
        if own not in [one["metadata"]["name"] for one in found.get("items") or ()]:
            await self._report(pair, lost_job(pair.kind, local, _now()))

    async def _report(self, pair: "_Pair", step: ReportStatus) -> None:
        """Write the status of the job to its object. Raises KubeError."""
        if step.annotations:
            await self._annotate(pair, step.annotations)
        if step.status is not None:
            local = pair.existing
            path = pair.resource.path(local["metadata"]["namespace"], local["metadata"]["name"], "status")
            now = await self._local_api.call("GET", path)
            if now["metadata"]["uid"] == local["metadata"]["uid"] and now.get("status") != step.status:
                try:
                    await self._local_api.call("PUT", path, body={**now, "status": step.status})
                except InvalidError as error:
                    # The rules of the kind for a status, such as counts that never fall, though a new run began: a later one fits.
                    log.warning("the status of %s is refused: %s", _key(local), error)
        if pair.remote is not None:
            await self._events.copy(pair.kind, pair.existing, pair.remote)

    async def _annotate(self, pair: "_Pair", annotations: Mapping[str, str | None]) -> None:
        metadata = pair.existing["metadata"]
        body = {"metadata": {"uid": metadata["uid"], "annotations": dict(annotations)}}
        with suppress(NotFoundError):
            await self._local_api.patch(pair.resource, metadata["namespace"], metadata["name"], body)


class _Pair:
    """An object of the cluster and that of its job, either of which may not exist."""

    def __init__(self, kind: WorkloadKind, local: Wire | None, remote: Wire | None, of_namespace: str | None) -> None:
        self.kind = kind
        self.resource = Resource(kind.api_version, kind.plural, kind.kind)
        self.local = local
        self.remote = remote
        self.of_namespace = of_namespace

    @property
    def existing(self) -> Wire:
        """Return the object of the cluster. Raises LookupError where it does not exist."""
        if self.local is None:
            raise LookupError("the object does not exist")
        return self.local

    @property
    def remote_place(self) -> tuple[str, str]:
        """Return namespace and name of the job's object. Raises LookupError where it does not exist."""
        if self.remote is None:
            raise LookupError("the job's object does not exist")
        return self.remote["metadata"]["namespace"], self.remote["metadata"]["name"]


def _mistakes_of(error: RefusedError) -> str:
    """Return what is wrong with an object, each mistake with its path."""
    causes = [one for one in error.details.get("causes") or () if one.get("field")]
    lines = [f"{one['field']}: {one.get('message', '')}" for one in causes[:_MOST_MISTAKES]]
    return "; ".join(lines) or str(error)


def _key(obj: Mapping[str, Any]) -> str:
    return f"{obj['metadata']['namespace']}/{obj['metadata']['name']}"


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
