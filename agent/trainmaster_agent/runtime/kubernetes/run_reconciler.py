"""`RunReconcilers`: bring each run to the state that its record wants, step by step, by calls to the API server.

A step assesses, writes down the decision, acts, and looks again. Each step may be interrupted anywhere and resumes from the cluster's
state. Before anything is created the Lease and the record are read again: an agent that was paused, or whose run has ended meanwhile,
creates nothing.
"""

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from trainmaster.cluster_model.numa_policies import STRICT_NUMA
from trainmaster.protocol.agent import RunEnd
from trainmaster.protocol.durations import parse_duration
from trainmaster.protocol.states import FailureCategory, RunState
from trainmaster_agent.capacity.node_index import AllowedNodes
from trainmaster_agent.capacity.shared_gpus import GpuSharing
from trainmaster_agent.containment import contain
from trainmaster_agent.kube.client import ApiServer
from trainmaster_agent.kube.errors import (
    ConflictError,
    ForbiddenError,
    KubeError,
    NotFoundError,
    RefusedError,
    UnavailableError,
)
from trainmaster_agent.kube.lease import LeaseKeeper
from trainmaster_agent.kube.paths import PODS, Resource
from trainmaster_agent.kube.pods import LABEL_INDEX, LABEL_ROUND, LABEL_RUN, PodSight, see
from trainmaster_agent.placement.port import GangState, PlacementPort
from trainmaster_agent.placement.requirements import waits_for_nodes
from trainmaster_agent.run_spans import note_created
from trainmaster_agent.runtime.kubernetes.checkpoint import send_checkpoint
from trainmaster_agent.runtime.kubernetes.config import KubernetesCluster
from trainmaster_agent.runtime.kubernetes.gate_opener import GateOpener
from trainmaster_agent.runtime.kubernetes.kai_config_maps import create_config_maps
from trainmaster_agent.runtime.kubernetes.manifests import Manifests
from trainmaster_agent.runtime.kubernetes.node_capacity import NodeCapacity
from trainmaster_agent.runtime.kubernetes.node_health import Unready
from trainmaster_agent.runtime.kubernetes.node_plan import find_nodes
from trainmaster_agent.runtime.kubernetes.object_warnings import read_warning, read_words
from trainmaster_agent.runtime.kubernetes.output import Outputs
from trainmaster_agent.runtime.kubernetes.reconcile import Assessment, ReconcileLimits, Sights, reconcile
from trainmaster_agent.runtime.kubernetes.record import (
    LABEL_AGENT,
    Progress,
    RecordedEnd,
)
from trainmaster_agent.runtime.kubernetes.record_store import PERMISSION_PATIENCE, RecordStore
from trainmaster_agent.runtime.kubernetes.resize import give_up, late_growth, take_resize
from trainmaster_agent.runtime.kubernetes.run_spec import Member
from trainmaster_agent.runtime.kubernetes.run_state import RunTracker
from trainmaster_agent.runtime.kubernetes.served_placement import words_on
from trainmaster_agent.runtime.kubernetes.untried_gangs import touch_object
from trainmaster_agent.runtime.kubernetes.workload_objects import (
    indexes_for,
    new_pod,
    object_name,
    resource_of,
    see_workload,
)
from trainmaster_agent.runtime.kubernetes.workload_reconcile import WorkloadLook

log = logging.getLogger(__name__)

_BATCH = 128
"""Members created between two checks of Lease and record; a multiple of the concurrent requests, so that none is left idle."""
_KEPT_OUTPUTS = 8
"""The most members of a stopping run whose last output is read before their pods are deleted."""
_MOST_STEPS = 50
_TOGETHER = 4
"""More pods than this, if they are all of a run's, are deleted in one call."""
Check = Callable[[RunTracker], str | None]
"""Returns why this cluster cannot run a run; None if it can."""


class RunReconcilers:
    """Acts on all runs of one agent. Calls ``on_status`` with each run whose status has changed, ``doubt`` with a namespace
    that refuses what it accepted before.
    """

    def __init__(
        self,
        api: ApiServer,
        lease: LeaseKeeper,
        config: KubernetesCluster,
        placement: PlacementPort,
        node_capacity: NodeCapacity,
        outputs: Outputs,
        *,
        levels: Callable[[], Mapping[str, str]],
        products: Callable[[Iterable[str]], Mapping[str, Sequence[str]]],
        group_of: Callable[[str], str | None],
        look_over: Check,
        record_store: RecordStore,
        lost_at: Callable[[RunTracker], tuple[float, float] | None],
        unready: Mapping[str, Unready],
        on_status: Callable[[RunTracker], None],
        doubt: Callable[[str], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._api = api
        self._lease = lease
        self._config = config
        self._placement = placement
        self._node_capacity = node_capacity
        self._outputs = outputs
        self._levels = levels
        self._products = products
        self._group_of = group_of
        self._look_over = look_over
        self._record_store = record_store
        self._lost_at = lost_at
        self._unready = unready
        self._on_status = on_status
        self._doubt = doubt
        self._clock = clock
        patience = config.patience
        self._limits = ReconcileLimits(
            image=parse_duration(patience.image),
            container=parse_duration(patience.container),
            start=parse_duration(patience.start),
            opened=parse_duration(patience.opened),
        )
        self.opener = GateOpener(
            api, node_capacity, placement, self._limits.opened, clock, config.placement.prefer_planned_nodes
        )
        self._creating = asyncio.Semaphore(config.parallel)
        """Creations wait here and not in the client, so that the Lease is checked right before each one is sent."""

    async def settle(self, tracker: RunTracker) -> None:
        """Take all steps that are possible now. Raises KubeError when the API server prevents one."""
        for _ in range(_MOST_STEPS):
            wished = self._wished(tracker)
            if wished is not None:
                await self._record_store.save(tracker, wished)
                continue
            if tracker.facts.workload is not None:
                await self._look_at_workload(tracker)
            else:
                fields = self._placement.explained_by_events(list(tracker.objects.values()))
                await read_words(self._api, tracker, fields, self._clock())
            await touch_object(self._api, tracker, self._untried(tracker), self._clock())
            found = self._assessment(tracker)
            due = min(tracker.warning_due, tracker.touch_due)
            tracker.next_look = min(found.wake_at or float("inf"), late_growth(tracker), due)
            if found.progress is not None:
                if found.progress.ended_at is not None and await self._has_unseen_pods(tracker):
                    continue
                await self._record_store.save(tracker, await self._with_output(tracker, found.progress))
                continue
            self._node_capacity.settle(tracker.run, tracker.pods.values(), has_run=tracker.has_run)
            self.tell(tracker, found)
            if found.over or not await self._act(tracker, found):
                return
        log.error(
            "run %s still changes after many steps in a row; it is tried again later",
            tracker.run,
            extra={"run_id": tracker.run},
        )

    def _untried(self, tracker: RunTracker) -> Resource | None:
        """Return the kind of the gang's object that has to change before its scheduler tries it again; None: nothing has to."""
        progress = tracker.record.progress
        if not progress.created or progress.verdict is not None or progress.stop is not None or tracker.has_run:
            return None
        gang = self._manifests(tracker).gang
        return self._placement_of(tracker).tries_again_after(gang, list(tracker.pods.values()))

    async def fail(self, tracker: RunTracker, words: str) -> None:
        """End a run that this agent cannot handle: ``failed``, category ``config``. Raises KubeError."""
        end = RunEnd(category=FailureCategory.CONFIG, message=f"the agent cannot handle this run: {words}")
        await self._end(tracker, RecordedEnd(RunState.FAILED, end.message, end))

    def look(self, tracker: RunTracker) -> None:
        """Report a run's state without acting."""
        if tracker.record.progress.verdict is None and tracker.record.progress.stop is None:
            self._manifests(tracker)
        found = self._assessment(tracker)
        if found.progress is None:
            self.tell(tracker, found)

    def _placement_of(self, tracker: RunTracker) -> PlacementPort:
        """Return the placement of a run's gang: of one whose pods another controller makes, the one for those if there is one."""
        other = None
        if tracker.facts.workload is not None:
            other = self._placement.for_workloads
        elif tracker.facts.is_placed_by_gates:
            other = self._placement.for_shared_claims
        return other or self._placement

    def _assessment(self, tracker: RunTracker) -> Assessment:
        return reconcile(
            tracker.facts,
            tracker.record.progress,
            tracker.sizes,
            self._sights(tracker),
            self._limits,
            self._clock(),
            None if tracker.facts.workload is None else WorkloadLook,
        )

    def tell(self, tracker: RunTracker, found: Assessment) -> None:
        if found.at_work:
            tracker.ran_in = tracker.record.progress.round
        if (due := tracker.take_object_status(self._clock())) is not None:
            tracker.next_look = min(tracker.next_look, due)
        if tracker.tell(found, self._lease.term, self._group_of):
            self._on_status(tracker)

    # -- reading

    def _sights(self, tracker: RunTracker) -> Sights:
        now = self._clock()
        start = tracker.record.start
        for pod in tracker.pods.values():
            if pod.stage == "bound" and pod.reason:
                tracker.trouble_since.setdefault(pod.uid, now)
            else:
                tracker.trouble_since.pop(pod.uid, None)
        gang = GangState()
        if tracker.manifests is not None and tracker.record.progress.verdict is None:
            gang = self._placement_of(tracker).read(
                tracker.manifests.gang, list(tracker.objects.values()), list(tracker.pods.values())
            )
        lost = self._lost_at(tracker)
        return Sights(
            pods=dict(tracker.pods),
            gang=gang,
            accepted_at=tracker.record.accepted_at,
            placement_timeout=start.placement_timeout_seconds,
            ours=frozenset(tracker.ours),
            trouble_since=tracker.trouble_since,
            lost_at=None if lost is None else lost[0],
            lost_grace=1.0 if lost is None else lost[1],
            waits_for=tracker.waits_for,
            prevented=tracker.prevented,
            unready=self._unready,
            last_seen=tracker.last_seen,
            opened_at=tracker.opened_at,
            workload=tracker.workload,
            warning=tracker.warning,
        )

    def _said(self, tracker: RunTracker, role: str, index: int) -> int:
        return tracker.record.progress.said.get(f"{role}-{index}", 0)

    async def _with_output(self, tracker: RunTracker, progress: Progress) -> Progress:
        """Read the output of members to restart before their pods are deleted; return the record with their sizes.

        Of a restarting gang only some ended members are read; of the others the cached output stays.
        """
        before = tracker.record.progress
        if progress.verdict is not None or progress.stop is not None:
            return progress
        ended = [
            pod
            for (role, index), pod in tracker.pods.items()
            if pod.is_over
            and pod.has_started
            and (progress.round != before.round or progress.again.get(f"{role}-{index}", ("", ""))[1] == pod.uid)
            and before.again.get(f"{role}-{index}", ("", ""))[1] != pod.uid
        ]
        ended = sorted(ended, key=lambda pod: (pod.stage != "failed", pod.role, pod.index))[:_KEPT_OUTPUTS]
        if not ended:
            return progress
        ends = await asyncio.gather(
            *(self._outputs.finish(pod, said=self._said(tracker, pod.role, pod.index)) for pod in ended)
        )
        said = {f"{pod.role}-{pod.index}": end for pod, end in zip(ended, ends, strict=True)}
        return replace(progress, said=progress.said | said)

    def _wished(self, tracker: RunTracker) -> Progress | None:
        """Return the record with the dispatcher's new orders; None if there are none."""
        progress = tracker.record.progress
        stop, tracker.wished_stop = tracker.wished_stop, None
        if (
            tracker.namespace_is_gone
            and progress.verdict is None
            and progress.stop is None
            and progress.ended_at is None
        ):
            words = f"preempted by the cluster: namespace {tracker.record.namespace} was deleted"
            return replace(progress, verdict=RecordedEnd(RunState.PREEMPTED, words))
        if stop is not None and progress.ended_at is None:
            return replace(
                progress, stop=stop, stopped_at=self._clock(), generation=max(stop.generation, progress.generation)
            )
        resize, tracker.wished_resize = tracker.wished_resize, None
        if resize is not None and progress.stop is None and progress.verdict is None:
            try:
                return take_resize(tracker, resize, self._node_capacity, self._manifests(tracker), self._clock())
            except Exception as error:  # noqa: BLE001 - contained: nothing else ends with it
                # Running members go on: only the resize fails.
                contain("resize", error, run=tracker.run)
                return replace(progress, generation=resize.generation, sizes=dict(tracker.sizes))
        if tracker.newcomers and progress.stop is None and progress.verdict is None:
            return give_up(tracker, self._clock())
        return None

    def _manifests(self, tracker: RunTracker) -> Manifests:
        key = tracker.record.progress.round, tuple(sorted(tracker.sizes.items()))
        if tracker.manifests is None or tracker.made_for != key:
            tracker.manifests = Manifests(
                tracker.record,
                tracker.facts,
                self._placement_of(tracker),
                agent=self._config.cluster,
                levels=self._levels(),
                policy=self._config.policy_of(tracker.record.start.queue),
                priority_class=self._config.placement.priority_class,
                port=self._config.port,
                run_as_user=self._config.run_as_user,
                await_names=self._config.await_names,
                files=self._config.files,
                entry_points=None if self._config.arrays is None else self._config.arrays.image_entry_points,
                holder=self._record_store.holder,
                products=self._products,
                prefers_nodes=self._config.placement.prefer_planned_nodes,
                gpu_parts=self._node_capacity.gpu_parts,
            )
            tracker.made_for = key
        return tracker.manifests

    # -- acting

    async def _act(self, tracker: RunTracker, found: Assessment) -> bool:
        """Act on an assessment; return whether to reconcile again at once."""
        if found.signal and not tracker.signalled:
            tracker.signalled = True
            await self._signal(tracker)
            if tracker.record.progress.not_told:
                return True  # no need to wait for those
        if found.removes_workload:
            return await self._remove_workload(tracker)
        if found.creates_workload:
            return await self._create_workload(tracker)
        if found.remove:
            await self._remove(tracker, found.remove)
            return False
        await self._fit(tracker, creates=bool(found.create))
        if found.create:
            return await self._create(tracker, found.create)
        if (
            tracker.record.progress.verdict is None
            and tracker.record.progress.stop is None
            and self._placement_of(tracker).emulated
            and (tracker.facts.workload is None or tracker.has_run or self._is_together(tracker))
        ):
            return await self._open(tracker)
        return False

    def _is_together(self, tracker: RunTracker) -> bool:
        """Return whether all pods that start together exist: a controller makes them one after the other."""
        wanted = (member for member in tracker.facts.wanted(tracker.sizes) if member[0] not in tracker.facts.late)
        number = tracker.record.progress.round
        return all((pod := tracker.pods.get(member)) is not None and pod.round == number for member in wanted)

    # -- objects whose controllers make the pods

    async def _look_at_workload(self, tracker: RunTracker) -> None:
        """Read what is decided on: the object where no watch has told of it, and the members that its new pods are."""
        progress, kind = tracker.record.progress, tracker.facts.workload
        is_expected = progress.created or progress.verdict is not None or progress.stop is not None
        if kind is not None and tracker.workload is None and is_expected and progress.ended_at is None:
            with contextlib.suppress(NotFoundError):
                stored = await self._api.get(resource_of(kind), tracker.record.namespace, object_name(tracker.run))
                tracker.workload = see_workload(kind, stored)
        if tracker.new_pods:
            await self._give_indexes(tracker)
        await read_warning(self._api, tracker, self._clock())

    async def _give_indexes(self, tracker: RunTracker) -> None:
        """Label pods that the object's controller has made with the members that they are."""
        await self._lease.confirm()
        for new, index in indexes_for(tracker.new_pods.values(), tracker.pods.values(), tracker.sizes):
            before = tracker.pods.get((new.role, index))
            if before is not None and before.is_over and before.has_started:
                await self._keep_output(tracker, before)
            body = {"metadata": {"uid": new.uid, "labels": {LABEL_INDEX: str(index)}}}
            try:
                stored = await self._api.patch(PODS, new.namespace, new.name, body)
            except (NotFoundError, ConflictError):
                stored = None  # it is gone, or another one has its name
            tracker.new_pods.pop(new.uid, None)
            sight = None if stored is None else see(stored)
            if sight is not None:
                tracker.note(sight)
            if stored is not None:
                await self._help_kai(stored)

    async def _help_kai(self, pod: Mapping[str, Any]) -> None:
        if self._node_capacity.gpu_parts.way is GpuSharing.KAI:
            await create_config_maps(self._api, pod)

    async def _has_unseen_pods(self, tracker: RunTracker) -> bool:
        """Return whether pods exist that were not seen yet: a controller may have made one just before its object was deleted."""
        if tracker.facts.workload is None or tracker.namespace_is_gone:
            return False
        selector = f"{LABEL_AGENT}={self._config.cluster},{LABEL_RUN}={tracker.run}"
        has_unseen = False
        async for items, _ in self._api.pages(PODS, tracker.record.namespace, selector=selector):
            for pod in items:
                new, sight = new_pod(pod), see(pod)
                if new is not None and new.uid not in tracker.gone and not _has_ended(pod):
                    tracker.new_pods[new.uid] = new
                    has_unseen = True
                elif sight is not None and not sight.is_over:
                    has_unseen = tracker.note(sight) or has_unseen
        return has_unseen

    async def _keep_output(self, tracker: RunTracker, pod: PodSight) -> None:
        """Read the output of an ended pod to its end: that of the next pod of the member follows it."""
        end = await self._outputs.finish(pod, said=self._said(tracker, pod.role, pod.index))
        progress = tracker.record.progress
        said = progress.said | {f"{pod.role}-{pod.index}": end}
        await self._record_store.save(tracker, replace(progress, said=said))

    async def _create_workload(self, tracker: RunTracker) -> bool:
        manifests = self._manifests(tracker)
        if not await self._may_create(tracker, manifests):
            return True
        try:
            await self._prepare(tracker, manifests)
            await self._lease.confirm()
            await self._record_store.confirm(tracker)
            nodes: dict[str, set[str]] = {}
            members = tracker.facts.wanted(tracker.sizes)
            for (role, _), node in self._find_nodes(tracker, manifests, members).items():
                nodes.setdefault(role, set()).add(node)
            resource, body = manifests.workload(nodes, among=self._allowed_nodes(tracker, manifests))
            # What was written for another version of the kind has to be told, and not to be dropped.
            stored = await self._create_once(tracker, resource, body, strict=True)
        except RefusedError as error:
            return await self._refused(tracker, error)
        tracker.forbidden_since = None
        note_created(tracker.run, tracker.record.namespace)
        if tracker.facts.workload is not None:
            tracker.workload = see_workload(tracker.facts.workload, stored)
        await self._record_store.save(tracker, replace(tracker.record.progress, created=True))
        return True

    async def _remove_workload(self, tracker: RunTracker) -> bool:
        """Delete the object; its pods go with it. A run that ends has the output of its members read first.

        Return whether to reconcile again at once: the object was gone already, so that no watch may tell of it any more.
        """
        kind, stored = tracker.facts.workload, tracker.workload
        if kind is None or stored is None:
            return False
        await self._lease.confirm()
        living = [pod for pod in tracker.pods.values() if not pod.is_over]
        for pod in living:
            tracker.ours.add(pod.uid)
        running = [pod for pod in living if pod.stage == "running" and not pod.deleting]
        for pod in sorted(running, key=lambda one: (one.role, one.index))[:_KEPT_OUTPUTS]:
            self._outputs.follow(pod, ended=False, said=self._said(tracker, pod.role, pod.index))
        # Kubernetes removes pods that have ended at once, such as the submitter of a RayJob, whose output is that of the job.
        ended = [pod for pod in tracker.pods.values() if pod.is_over and pod.has_started]
        ended = sorted(ended, key=lambda pod: (pod.stage != "failed", pod.role, pod.index))[:_KEPT_OUTPUTS]
        await asyncio.gather(
            *(self._outputs.finish(pod, said=self._said(tracker, pod.role, pod.index)) for pod in ended)
        )
        try:
            await self._api.delete(resource_of(kind), tracker.record.namespace, stored.name, uid=stored.uid)
        except (NotFoundError, ConflictError):
            tracker.workload = None
            return True
        return False

    async def _signal(self, tracker: RunTracker) -> None:
        """Send the checkpoint signal to all running members. A member that does not get it ends with the others."""
        stop = tracker.record.progress.stop
        if stop is None or not self._config.checkpoint:
            return
        pods = [pod for pod in tracker.pods.values() if pod.stage == "running" and not pod.deleting]
        not_told = await send_checkpoint(self._api, pods, stop.checkpoint_signal)
        if not_told:
            await self._record_store.save(tracker, replace(tracker.record.progress, not_told=not_told))

    async def _remove(self, tracker: RunTracker, pods: Sequence[tuple[PodSight, int]]) -> None:
        await self._lease.confirm()
        for pod, _ in pods:
            tracker.ours.add(pod.uid)
        running = [pod for pod, _ in pods if pod.stage == "running" and not pod.deleting]
        for pod in sorted(running, key=lambda one: (one.role, one.index))[:_KEPT_OUTPUTS]:
            self._outputs.follow(pod, ended=False, said=self._said(tracker, pod.role, pod.index))
        grace = pods[0][1]
        number = pods[0][0].round
        is_uniform = all(one == grace and pod.round == number for pod, one in pods)
        if len(pods) > _TOGETHER and len(pods) == len(tracker.pods) and is_uniform:
            # This round only: a late call must not affect the members of the next one.
            of_round = f"{LABEL_ROUND}={number}" if number else f"!{LABEL_ROUND}"
            selector = f"{LABEL_AGENT}={self._config.cluster},{LABEL_RUN}={tracker.run},{of_round}"
            await self._api.delete_all(PODS, tracker.record.namespace, selector, grace=grace)
        else:
            await asyncio.gather(*(self._delete(tracker, pod, grace) for pod, grace in pods))
        # After the pods, whose grace would else be that of their controller.
        for resource in self._placement_of(tracker).holders:
            with contextlib.suppress(NotFoundError):
                await self._api.delete(resource, tracker.record.namespace, tracker.run)

    async def _delete(self, tracker: RunTracker, pod: PodSight, grace: int) -> None:
        try:
            await self._api.delete(PODS, pod.namespace, pod.name, uid=pod.uid, grace=grace)
        except (NotFoundError, ConflictError):
            tracker.lose(pod)

    async def _create(self, tracker: RunTracker, members: Sequence[Member]) -> bool:
        manifests = self._manifests(tracker)
        if not await self._may_create(tracker, manifests):
            return True
        ends = self._ends_of_earlier_lives(tracker, members)
        nodes = self._find_nodes(tracker, manifests, members)
        among = self._allowed_nodes(tracker, manifests)
        try:
            await self._prepare(tracker, manifests)
            await self._list_members(tracker, manifests)
            for begin in range(0, len(members), _BATCH):
                await self._lease.confirm()
                await self._record_store.confirm(tracker)
                batch = members[begin : begin + _BATCH]
                # All calls finish before an error is handled: one in flight would create a pod of a run that is over.
                outcomes = await asyncio.gather(
                    *(self._create_pod(tracker, manifests, member, nodes.get(member, ""), among) for member in batch),
                    return_exceptions=True,
                )
                for outcome in outcomes:
                    if isinstance(outcome, BaseException):
                        raise outcome
        except RefusedError as error:
            return await self._refused(tracker, error)
        tracker.forbidden_since = None
        progress = tracker.record.progress
        complete = replace(progress, created=True, said=progress.said | ends)
        note_created(tracker.run, tracker.record.namespace)
        if progress.created or manifests.size == 1:
            # A single member is one creation: nothing can be half done, and a restarted agent checks whether it exists.
            tracker.record.progress = complete
        else:
            await self._record_store.save(tracker, complete)
        return True

    def _find_nodes(self, tracker: RunTracker, manifests: Manifests, members: Sequence[Member]) -> dict[Member, str]:
        """Return the nodes that new members prefer; none for those behind gates, whose nodes are found when these open."""
        is_gated = self._placement_of(tracker).emulated and waits_for_nodes(manifests.gang)
        facts = tracker.facts
        prefers = self._config.placement.prefer_planned_nodes or facts.is_exclusive or facts.shares_devices
        if is_gated or not prefers:
            return {}
        return find_nodes(tracker, manifests, members, self._node_capacity)

    def _allowed_nodes(self, tracker: RunTracker, manifests: Manifests) -> list[AllowedNodes]:
        """Return the nodes to which members have to be kept, as the scheduler does not see to that: all of these must allow a node."""
        level = tracker.facts.spec.topology.required
        of_level = None if level is None else self._node_capacity.of_level(level)
        return [one for one in (self._enforcing(tracker, manifests), of_level) if one is not None]

    def _enforcing(self, tracker: RunTracker, manifests: Manifests) -> AllowedNodes | None:
        """Return the only nodes that hold members to their NUMA policy; None: any node will do."""
        numa = manifests.gang.numa
        if (
            numa not in STRICT_NUMA
            or manifests.gang.awaits_nodes
            or not self._placement_of(tracker).follows_numa_of_nodes
        ):
            return None
        return self._node_capacity.enforcing(numa)

    async def _may_create(self, tracker: RunTracker, manifests: Manifests) -> bool:
        """Return whether anything may be created for a run; one that this cluster cannot run at all is returned. Raises KubeError."""
        if not tracker.looked_over:
            # Not once it has members: quotas already count them as used.
            why = None if tracker.pods or tracker.record.progress.created else self._refusal(tracker, manifests)
            tracker.looked_over = True
            if why is not None:
                await self._end(tracker, RecordedEnd(RunState.RETURNED, why))
                return False
        if not tracker.record.owner_uid:
            raise UnavailableError(f"namespace {tracker.record.namespace} has not been read yet")
        return True

    async def _refused(self, tracker: RunTracker, error: RefusedError) -> bool:
        """End a run whose objects the API server refuses, unless it may take them soon. Raises UnavailableError."""
        if tracker.record_is_gone:
            return True
        self._doubt(tracker.record.namespace)
        if isinstance(error, ForbiddenError) and error.is_permission:
            tracker.forbidden_since = tracker.forbidden_since or time.monotonic()
            if time.monotonic() - tracker.forbidden_since < PERMISSION_PATIENCE:
                raise UnavailableError(str(error)) from error
        workload = tracker.facts.workload
        await self._end(tracker, _refused(error, "pods" if workload is None else workload.kind))
        return True

    def _ends_of_earlier_lives(self, tracker: RunTracker, members: Sequence[Member]) -> dict[str, int]:
        """Return by member to recreate the end of its earlier lives' output, where that is cached."""
        if not tracker.record.progress.round:
            return {}
        ends = ((f"{role}-{index}", self._outputs.end_of((tracker.run, role, index))) for role, index in members)
        return {name: end for name, end in ends if end}

    def _refusal(self, tracker: RunTracker, manifests: Manifests) -> str | None:
        """Return why this cluster cannot run the run at all; None if it can."""
        mistakes = manifests.mistakes()
        if mistakes:
            return "this cluster does not admit its pod template: " + "; ".join(
                f"{one.path}: {one.message}" for one in mistakes[:5]
            )
        enforcing = self._enforcing(tracker, manifests)
        if enforcing is not None and not enforcing.values:
            return f"topology.numa {manifests.gang.numa} is requested, and no node here reports that policy"
        return self._placement_of(tracker).lacks(manifests.gang) or self._look_over(tracker)

    async def _prepare(self, tracker: RunTracker, manifests: Manifests) -> None:
        """Create the objects that have to exist before the pods of this round."""
        number = tracker.record.progress.round
        if tracker.prepared == number:
            return
        await self._lease.confirm()
        await self._record_store.confirm(tracker)
        for resource, body in manifests.objects():
            name = body["metadata"]["name"]
            if number:
                # Objects of an earlier round are of other sizes, or used up.
                with contextlib.suppress(NotFoundError):
                    await self._api.delete(resource, tracker.record.namespace, name)
            await self._create_once(tracker, resource, body)
        tracker.prepared = number

    async def _list_members(self, tracker: RunTracker, manifests: Manifests) -> None:
        """Let members that a resized run gets find the others: those of a run that had a single one have neither list nor service."""
        if not tracker.record.progress.sizes or tracker.listed == tracker.sizes:
            return
        for resource, body in manifests.shared():
            held = await self._create_once(tracker, resource, body)
            if "data" in body and held.get("data") != body["data"]:
                name = body["metadata"]["name"]
                await self._api.patch(resource, tracker.record.namespace, name, {"data": body["data"]})
        tracker.listed = dict(tracker.sizes)

    async def _fit(self, tracker: RunTracker, *, creates: bool) -> None:
        """Let the scheduler's objects of a running gang want no more members than can still come: those of its size that have not
        succeeded. A group that wanted as many as at its start would hold back a member that starts again or comes later.
        """
        placement, progress = self._placement_of(tracker), tracker.record.progress
        if not (placement.rejoins and tracker.has_run) or progress.stop is not None or progress.verdict is not None:
            return
        pods = [pod for pod in tracker.pods.values() if pod.round == progress.round]
        if not creates and all(pod.node or pod.is_over for pod in pods):
            return
        gang, ended = self._manifests(tracker).gang, Counter(pod.role for pod in pods if pod.stage == "succeeded")
        roles = tuple(replace(role, least=min(role.least, role.size - ended[role.name])) for role in gang.roles)
        least = min(gang.least, gang.size - ended.total())
        numbers = least, *(role.least for role in roles)
        if tracker.fitted == numbers:
            return
        whole = replace(gang, awaits_nodes=False)  # what was asked of an autoscaler stays as it is
        fitting = placement.objects(replace(whole, roles=roles, least=least))
        for (resource, before), (_, body) in zip(placement.objects(whole), fitting, strict=True):
            patch = {"spec": _merged(before["spec"], body["spec"])}
            with contextlib.suppress(NotFoundError):
                await self._api.patch(resource, tracker.record.namespace, body["metadata"]["name"], patch)
        tracker.fitted = numbers

    async def _create_once(
        self, tracker: RunTracker, resource: Any, body: dict[str, Any], *, strict: bool = False
    ) -> dict[str, Any]:
        """Create an object of a run, and return it as it is stored; or the one that an earlier attempt has created."""
        try:
            return await self._api.create(resource, tracker.record.namespace, body, strict=strict)
        except ConflictError:
            try:
                held = await self._api.get(resource, tracker.record.namespace, body["metadata"]["name"])
            except NotFoundError:
                raise _still_there(body) from None
            labels = held["metadata"].get("labels") or {}
            if (labels.get(LABEL_AGENT), labels.get(LABEL_RUN)) != (self._config.cluster, tracker.run):
                raise
            if "deletionTimestamp" in held["metadata"]:
                raise _still_there(held) from None
            return held
        except NotFoundError as error:
            if not error.is_kind_gone:
                raise
            raise NotFoundError(error.status, f"{words_on(resource)} ({error})", error.reason, error.details) from error

    async def _create_pod(
        self, tracker: RunTracker, manifests: Manifests, member: Member, node: str, among: Sequence[AllowedNodes]
    ) -> None:
        body = manifests.pod(*member, beside=self._beside(tracker, manifests), node=node, among=among)
        name = body["metadata"]["name"]
        try:
            async with self._creating:
                if not self._lease.is_valid():
                    raise UnavailableError("the lease expired before all members were created")
                stored = await self._api.create(PODS, tracker.record.namespace, body)
                await self._help_kai(stored)
        except ConflictError as error:
            if error.reason != "AlreadyExists":
                raise UnavailableError(
                    str(error)
                ) from error  # for example because a quota counts two concurrent creations
            try:
                stored = await self._api.get(PODS, tracker.record.namespace, name)
            except NotFoundError:
                raise UnavailableError(f"an earlier pod {name} has only just been deleted") from None
            sight = see(stored)
            if sight is None or sight.run != tracker.run:
                raise RefusedError(409, f"a pod {name} that is not ours exists", "Foreign") from error
        sight = see(stored)
        if sight is not None:
            tracker.note(sight)

    def _beside(self, tracker: RunTracker, manifests: Manifests) -> dict[str, str] | None:
        """Return the node labels that a member joining a running gang needs; None while the gang has not started."""
        if tracker.record.progress.round != tracker.ran_in:
            return None
        level = manifests.gang.required
        node = next((pod.node for pod in tracker.pods.values() if pod.node), "")
        value = None if level is None else self._node_capacity.label(node, level)
        return {} if level is None or value is None else {level: value}

    async def _open(self, tracker: RunTracker) -> bool:
        changed = await self.opener.open(tracker, self._manifests(tracker), self._levels(), self._lease.confirm)
        if changed is None:
            return False
        await self._record_store.save(tracker, changed)
        return True

    async def _end(self, tracker: RunTracker, verdict: RecordedEnd) -> None:
        await self._record_store.save(tracker, replace(tracker.record.progress, verdict=verdict))


def _merged(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """Return the merge patch by which an object with ``before`` has ``now``: what is no longer there is null."""
    patch: dict[str, Any] = dict.fromkeys(before.keys() - now.keys())
    for name, value in now.items():
        held = before.get(name)
        patch[name] = _merged(held, value) if isinstance(value, dict) and isinstance(held, dict) else value
    return patch


def _has_ended(pod: Mapping[str, Any]) -> bool:
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def _refused(error: RefusedError, what: str) -> RecordedEnd:
    """Return the run's end for a refusal of the API server; ``what``: the objects that it refuses."""
    words = " ".join(str(error).split())[:500]
    if isinstance(error, ForbiddenError | NotFoundError) and error.is_namespace_gone:
        return RecordedEnd(RunState.PREEMPTED, f"preempted by the cluster: {words}")
    if isinstance(error, ForbiddenError | NotFoundError | ConflictError):
        return RecordedEnd(RunState.RETURNED, f"refused by the cluster: {words}")
    if error.reason == "Foreign":
        return RecordedEnd(RunState.RETURNED, f"refused: {words}")
    end = RunEnd(category=FailureCategory.CONFIG, message=f"the cluster does not take its {what}: {words}")
    return RecordedEnd(RunState.FAILED, end.message, end)


def _still_there(held: Mapping[str, Any]) -> KubeError:
    return UnavailableError(f"{held['metadata']['name']} of an earlier round is still being deleted")
