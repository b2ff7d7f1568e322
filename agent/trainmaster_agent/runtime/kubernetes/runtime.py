"""`KubernetesRuntime`: the runtime port over one Kubernetes cluster.

One event loop owns all state. Watches and calls of the port put runs on a worklist; workers reconcile them, each one run at a time.
"""

import asyncio
import contextlib
import logging
import os
import socket
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace

from pydantic import ValidationError

from trainmaster.cluster_model.capabilities import Capability
from trainmaster.protocol.agent import CapacityReport, ReportedAdmission, ResizeRun, RunEnd, StartRun, StopRun
from trainmaster.protocol.durations import parse_duration
from trainmaster.protocol.member_streams import OpenMemberStream
from trainmaster.protocol.states import FailureCategory, RunState
from trainmaster.workload_kinds.kind import WorkloadKind
from trainmaster.workload_kinds.registry import KINDS
from trainmaster_agent.capacity.claim_templates import ClaimTemplates, NamedClaims
from trainmaster_agent.capacity.inventory import Inventory
from trainmaster_agent.capacity.quotas import Quotas
from trainmaster_agent.capacity.shared_gpus import GpuSharing
from trainmaster_agent.containment import contain, run_for_ever
from trainmaster_agent.kube.client import ApiServer
from trainmaster_agent.kube.errors import (
    KubeError,
    RefusedError,
    UnavailableError,
)
from trainmaster_agent.kube.lease import LeaseKeeper, LeaseLostError
from trainmaster_agent.kube.paths import (
    CONFIG_MAPS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    SERVICES,
    Resource,
)
from trainmaster_agent.kube.watch import KubeWatch
from trainmaster_agent.placement.choose import choose, detect, probe_native
from trainmaster_agent.placement.port import PlacementPort
from trainmaster_agent.runtime.change_event import ChangeEvent
from trainmaster_agent.runtime.kubernetes.accept import RunAcceptor
from trainmaster_agent.runtime.kubernetes.config import KubernetesCluster
from trainmaster_agent.runtime.kubernetes.event_handlers import EventHandlers, Watched
from trainmaster_agent.runtime.kubernetes.garbage_collector import GarbageCollector
from trainmaster_agent.runtime.kubernetes.gpu_metrics import GpuUse
from trainmaster_agent.runtime.kubernetes.leftovers import Leftovers
from trainmaster_agent.runtime.kubernetes.manifests import (
    claim_template_name,
    files_name,
    roster_name,
    shared_claim_names,
)
from trainmaster_agent.runtime.kubernetes.member_streams import PodStreams
from trainmaster_agent.runtime.kubernetes.member_use import PodUse
from trainmaster_agent.runtime.kubernetes.namespaces import JobNamespaces
from trainmaster_agent.runtime.kubernetes.node_capacity import NodeCapacity
from trainmaster_agent.runtime.kubernetes.node_health import NodeHealth
from trainmaster_agent.runtime.kubernetes.older_records import OlderRecords
from trainmaster_agent.runtime.kubernetes.orphans import KnownRecords, Orphans
from trainmaster_agent.runtime.kubernetes.output import Outputs
from trainmaster_agent.runtime.kubernetes.preflight import what_lacks
from trainmaster_agent.runtime.kubernetes.record import (
    LABEL_AGENT,
    KubeRunRecord,
    RecordedEnd,
)
from trainmaster_agent.runtime.kubernetes.record_store import RecordStore
from trainmaster_agent.runtime.kubernetes.run_reconciler import RunReconcilers
from trainmaster_agent.runtime.kubernetes.run_spec import Facts, UnknownWorkloadError, facts_of
from trainmaster_agent.runtime.kubernetes.run_state import RunTracker, first_status
from trainmaster_agent.runtime.kubernetes.served_kinds import ServedKinds
from trainmaster_agent.runtime.kubernetes.served_placement import PlacementChangedError, ServedPlacement
from trainmaster_agent.runtime.kubernetes.strays import identity_of_cluster, no_pods_of
from trainmaster_agent.runtime.kubernetes.worklist import Worklist
from trainmaster_agent.runtime.kubernetes.workload_objects import object_name, resource_of
from trainmaster_agent.runtime.port import (
    LogSlice,
    MemberStream,
    MemberUse,
    RunStatus,
    RuntimeAwayError,
    StreamRefusedError,
    UseReading,
)

log = logging.getLogger(__name__)

_MADE_BY_AGENT: frozenset[str] = frozenset(kind.capability for kind in KINDS if kind.is_made_by_agent)
_OF_ALL_PLACEMENTS = frozenset(
    (
        Capability.GANG_RESTART,
        Capability.MAX_PER_NODE,
        Capability.MEMBER_RESTART,
        Capability.MOUNTS,
        Capability.POD_TEMPLATE,
        Capability.SUCCESS_ROLE,
    )
)
_FORBIDDEN, _WRONG_STATE = 403, 409
_WORKERS = 48
_FIRST_BACK_OFF, _MOST_BACK_OFF = 0.2, 5.0
_TICK_SECONDS = 0.2
_MOST_ERRORS = 5
"""Unexpected errors in a row after which a run with pods is failed; one without pods is failed at the first."""
_AWAY_SECONDS = 8.0
"""Seconds without an answer of the API server after which the cluster is reported as closed."""
_LIST_PATIENCE = 120.0


class KubernetesRuntime:
    """Members are pods. ``clock`` must be the one of the times given to ``renew``."""

    def __init__(
        self,
        api: ApiServer,
        config: KubernetesCluster,
        *,
        namespace: str,
        clock: Callable[[], float],
        identity: str | None = None,
    ) -> None:
        """``namespace``: the agent's own, with its Lease and the records. Raises RecordsExposedError if jobs run there."""
        self._home = config.home(namespace)
        self._api = api
        self._config = config
        self._use = PodUse(api, config.use_source)
        self._gpu_use = None if config.gpu_metrics is None else GpuUse(api, config.gpu_metrics)
        self._clock = clock
        lease = config.lease
        self.lease = LeaseKeeper(
            api,
            lease.namespace or namespace,
            lease.name or f"trainmaster-agent-{config.cluster}",
            identity or f"{os.environ.get('HOSTNAME') or socket.gethostname()}-{uuid.uuid4().hex[:8]}",
            parse_duration(lease.duration),
        )
        self.inventory = Inventory(config.capacity, (LABEL_AGENT, config.cluster), time.time)
        self._record_store = RecordStore(api, self.lease, self._home, parse_duration(lease.duration))
        self._records = KnownRecords(api, self._home)
        self._older = OlderRecords(api, self.lease, config.cluster, self._home)
        self._quotas = Quotas()
        self._claim_templates, self._named_claims = ClaimTemplates(LABEL_AGENT), NamedClaims(LABEL_AGENT)
        self._node_capacity = NodeCapacity(self.inventory)
        self._outputs = Outputs(api)
        self._kinds = self._make_kinds()
        self._handlers: EventHandlers | None = None
        self._placement: PlacementPort | None = None
        self._served: ServedPlacement | None = None
        self._reconcilers: RunReconcilers | None = None
        self._tombstone = parse_duration(config.tombstone)
        self._trackers: dict[str, RunTracker] = {}
        self._streams = PodStreams()
        self._namespaces = self._make_namespaces()
        self._orphans = Orphans(api, self.lease, self._records)
        self._garbage_collector = self._make_garbage_collector()
        self._statuses: dict[str, RunStatus] = {}
        self._accepting: dict[str, asyncio.Task[None]] = {}
        self._acceptor = self._make_acceptor()
        self._worklist = Worklist(self._is_new)
        self._changed = ChangeEvent()
        self._node_health = NodeHealth()
        self._capacity_changed = False
        self._tasks: list[asyncio.Task[None]] = []
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._watches: list[KubeWatch] = []
        self._holder = ""
        self._place = ""
        self._renewed_at: float | None = None
        self._report_version = -1
        self._reported_closed = ""
        """Reason why nothing can be started here, as last reported."""
        self.is_ready = False

    # -- the port

    @property
    def holder(self) -> str:
        return self._holder

    @property
    def place(self) -> str:
        """Identity of the Kubernetes cluster; empty where the agent may not read it."""
        return self._place

    async def open(self) -> None:
        """Wait until this replica holds the Lease; then read the whole state. Raises KubeError.

        Raises PlacementUnavailableError where the cluster has not the scheduler that the configuration names. Where it raises,
        ``close`` has to follow; then it may be called again.
        """
        await self.lease.acquire()
        self._spawn("lease", self.lease.keep)
        self._place = await identity_of_cluster(self._api)
        try:
            await self._namespaces.look()
        except KubeError as error:
            if not self._namespaces.existing:
                raise
            log.warning("cannot read all namespaces for jobs, starting without them: %s", error)
        if not self._namespaces.existing:
            raise UnavailableError(self._namespaces.lacks)
        moving, over = await self._older.find(self._namespaces.existing)
        earlier = self._namespaces.uid(self._config.job_namespaces[0]) if moving or over else ""
        self._holder = await self._record_store.identity(self._config.cluster, earlier)
        self._records.holder = self._holder
        for namespace, name in moving:
            try:
                await self._older.move(namespace, name, replaces=True)
            except KubeError:
                raise
            except Exception as error:  # noqa: BLE001 - contained: nothing else ends with it
                contain("older anchor", error, run=name)
        self._placement = await self._choose_placement()
        served = self._served = ServedPlacement(self._api, self._placement, self._choose_placement)
        self._node_capacity.binds_zones = self._placement.emulated and Capability.NUMA in self._placement.capabilities
        self._reconcilers = self._make_reconcilers(self._placement)
        self._watch_all(self._placement)
        try:
            await self._kinds.look()
        except KubeError as error:
            log.warning("cannot look up the kinds of workloads, starting without them: %s", error)
        async with asyncio.timeout(_LIST_PATIENCE):
            await asyncio.gather(*(watch.listed.wait() for watch in self._watches if watch.is_needed))
        self.inventory.report()
        await self._garbage_collector.take_over(over)
        await self.lease.raise_term(max((tracker.record.term for tracker in self._trackers.values()), default=0))
        for tracker in self._trackers.values():
            tracker.status = first_status(tracker.record, self.lease.term)
            self._statuses[tracker.run] = tracker.status
        await self._look_at_all_once()
        for number in range(_WORKERS):
            self._spawn("worker", self._work, f"worker-{number}")
        self._spawn("tick", self._tick)
        self._spawn("garbage-collector", self._garbage_collector.run)
        self._spawn("namespaces", self._namespaces.run)
        self._spawn("workload-kinds", self._kinds.run)
        self._spawn("placement-kinds", served.run)
        self._spawn("orphans", lambda: self._orphans.run(self._trackers.__contains__, self._is_served))
        leftovers = self._leftovers(self._placement)
        self._spawn(
            "leftovers", lambda: leftovers.run(lambda: self._namespaces.existing, self._is_known, self._is_served)
        )
        self.is_ready = True
        # Reading may have taken long, and a replica that does not act must not call the dispatcher.
        await self.lease.confirm()

    def _spawn(self, place: str, loop: Callable[[], Awaitable[None]], name: str = "") -> None:
        """Start a task for as long as the runtime is open. Only the loss of the Lease, or a placement that changed, ends it."""
        task = asyncio.create_task(run_for_ever(place, loop, LeaseLostError, PlacementChangedError), name=name or place)
        self._tasks.append(task)

    async def close(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        tasks = [*self._tasks, *self._accepting.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._streams.close()
        await self._outputs.close()
        if self.lease.is_valid():
            await self._garbage_collector.close()
        await self.lease.release()
        self._forget_all()

    def _forget_all(self) -> None:
        """Clear the memory, a copy that the next ``open`` rebuilds."""
        self.is_ready = False
        for memory in (self._trackers, self._statuses, self._accepting, self._timers):
            memory.clear()
        self._tasks.clear()
        self._watches.clear()
        self._worklist = Worklist(self._is_new)
        self._namespaces = self._make_namespaces()
        self._acceptor = self._make_acceptor()
        self._orphans = Orphans(self._api, self.lease, self._records)
        self._garbage_collector = self._make_garbage_collector()
        self._quotas = Quotas()
        self._claim_templates, self._named_claims = ClaimTemplates(LABEL_AGENT), NamedClaims(LABEL_AGENT)
        self._node_capacity = NodeCapacity(self.inventory)
        self._node_health = NodeHealth()
        self._kinds = self._make_kinds()
        self._placement = self._reconcilers = self._handlers = self._served = None

    async def watch_over(self) -> None:
        """Run for ever; raise what makes this replica unfit to act, such as LeaseLostError.

        After PlacementChangedError it can be closed and opened again.
        """
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()

    async def capacity(self) -> CapacityReport:
        found = self.inventory.report()
        if found.version != self._report_version:
            self._report_version = found.version
            for tracker in self._trackers.values():
                if tracker.pods and not tracker.status.state.is_terminal:
                    self._report_only(tracker)  # placements are reported with their node groups
        placement, self._reported_closed = self._placement, self._closed()
        capabilities: set[str] = set(placement.capabilities) if placement is not None else set()
        capabilities |= _OF_ALL_PLACEMENTS | _MADE_BY_AGENT
        if placement is not None and not placement.restarts:
            capabilities -= {Capability.GANG_RESTART, Capability.MEMBER_RESTART}
        for_workloads = None if placement is None else placement.for_workloads
        workloads = () if for_workloads is None else self._kinds.offered(for_workloads)
        claim_templates = self._claim_templates.capabilities(self._namespaces.existing)
        claims = self._named_claims.capabilities(self._namespaces.existing)
        if self._kinds.takes_devices:
            capabilities.add(Capability.DEVICES)
        if self._kinds.takes_shared_devices and placement is not None and placement.for_shared_claims:
            capabilities.add(Capability.SHARED_DEVICES)
        if self._config.checkpoint:
            capabilities.add(Capability.CHECKPOINT)
        if self._config.member_streams:
            capabilities |= {Capability.EXEC, Capability.ATTACH, Capability.PORT_FORWARD}
        return CapacityReport(
            groups=found.groups,
            runtime="kubernetes",
            scheduler="" if placement is None else placement.name,
            capabilities=tuple(sorted({*capabilities, *workloads, *claim_templates, *claims})),
            pools=found.pools,
            start_seconds=parse_duration(self._config.patience.start),
            datasets=self._config.datasets,
            not_counted=found.not_counted,
            admission=ReportedAdmission(
                needs_image=True, policy=self._config.admission, queues=self._config.admissions
            ),
            closed=self._reported_closed,
            health=found.health,
            others=found.others,
        )

    def held(self) -> dict[str, RunStatus]:
        """Return the statuses, always in the same mapping, brought up to date."""
        return self._statuses

    async def start(self, run: StartRun) -> None:
        """Accept a run. Raises RuntimeAwayError when the API server does not take the record now."""
        if run.run in self._statuses:
            return
        task = self._accepting.get(run.run)
        if task is None:
            task = self._accepting[run.run] = asyncio.create_task(self._accept(run))
        await asyncio.shield(task)

    async def stop(self, stop: StopRun) -> None:
        """Stop a run. Raises RuntimeAwayError where its record may exist and the API server cannot confirm that now."""
        if (task := self._accepting.get(stop.run)) is not None:
            await asyncio.wait((task,))
        if stop.run in self._acceptor.unsure:
            # Its record may still be stored. So a record is written for certain, and that run is stopped.
            await self.start(self._acceptor.unsure[stop.run])
        tracker = self._trackers.get(stop.run)
        if tracker is None or tracker.status.state.is_terminal:
            return
        if stop.generation < tracker.record.progress.generation:
            return
        for known in (tracker.wished_stop, tracker.record.progress.stop):
            if known is not None and (stop.generation, -stop.longest) <= (known.generation, -known.longest):
                return
        tracker.wished_stop = stop
        self._look_at(stop.run)

    async def verify_absent(self, stop: StopRun, installation: str) -> bool:
        """Search the cluster for pods of the run, by this agent's name; two installations must not share one name."""
        if stop.run in self._accepting or stop.run in self._trackers or stop.run in self._acceptor.unsure:
            return False
        return await no_pods_of(self._api, self.lease, self._config.cluster, stop)

    async def resize(self, resize: ResizeRun) -> None:
        if (task := self._accepting.get(resize.run)) is not None:
            await asyncio.wait((task,))
        tracker = self._trackers.get(resize.run)
        if tracker is None or tracker.status.state.is_terminal or tracker.wished_stop is not None:
            return
        known = tracker.wished_resize
        if tracker.record.progress.stop is None and (known is None or resize.generation > known.generation):
            tracker.wished_resize = resize
            self._look_at(resize.run)

    async def forget(self, run: str) -> None:
        status = self._statuses.get(run)
        if status is None or not status.state.is_terminal:
            return
        del self._statuses[run]
        tracker = self._trackers.pop(run, None)
        if tracker is None:
            return
        self._node_capacity.drop(run)
        self._reconcilers_now.opener.waiting.pop(run, None)
        self._cancel_timer(run)
        self._outputs.forget(run)
        try:
            objects = self._objects_of(tracker)
        except Exception as error:  # noqa: BLE001 - contained: nothing else ends with it
            contain("objects", error, run=run)
            objects = self._usual_objects_of(tracker)
        self._garbage_collector.add(tracker, objects)

    async def renew(self, asked_at: float) -> None:
        if self._renewed_at is None or asked_at > self._renewed_at:
            self._renewed_at = asked_at
            for tracker in self._trackers.values():
                if tracker.record.start.disconnect_seconds is not None and not tracker.status.state.is_terminal:
                    self._look_at(tracker.run)

    async def wait_changed(self, timeout: float) -> bool:
        return await self._changed.taken_within(timeout)

    async def read_log(self, run: str, role: str, index: int, offset: int, limit: int) -> LogSlice:
        tracker = self._trackers[run]
        pod = tracker.pods.get((role, index))
        if pod is not None and pod.has_started:
            said = tracker.record.progress.said.get(f"{role}-{index}", 0)
            return await self._outputs.read(pod, offset, limit, said=said)
        kept = self._outputs.kept((run, role, index), offset, limit)
        if kept is not None:
            return kept
        if (role, index) not in tracker.facts.wanted(tracker.sizes):
            raise KeyError(f"run {run} has no member {role}-{index}")
        return LogSlice(0, b"", tracker.status.state.is_terminal)

    @property
    def stores_output(self) -> bool:
        return True

    def output_end(self, run: str, role: str, index: int) -> int | None:
        return self._outputs.whole_length((run, role, index))

    def output_lives(self, run: str, role: str, index: int) -> tuple[int, ...]:
        return self._outputs.lives((run, role, index))

    async def member_use(self) -> UseReading:
        pods = [pod for tracker in self._trackers.values() for pod in tracker.pods.values()]
        reading = await self._use.read(pods)
        if self._gpu_use is not None:
            reading = await self._gpu_use.added_to(reading, pods)
        return replace(reading, members=tuple(map(self._with_earlier_lives, reading.members)))

    def _with_earlier_lives(self, use: MemberUse) -> MemberUse:
        """Add what happened in the earlier lives of a member: each was a pod of its own."""
        tracker = self._trackers.get(use.run)
        if tracker is None or use.restarts is None:
            return use
        progress, name = tracker.record.progress, f"{use.role}-{use.index}"
        return replace(
            use,
            restarts=use.restarts + progress.restarts.get(name, 0) + progress.gang_restarts,
            oom_kills=(use.oom_kills or 0) + progress.oom_kills.get(name, 0),
        )

    async def open_stream(self, order: OpenMemberStream) -> MemberStream:
        if not self._config.member_streams:
            raise StreamRefusedError(
                _FORBIDDEN, "the owner of this cluster allows no streams to members (memberStreams)"
            )
        tracker = self._trackers.get(order.run)
        pod = None if tracker is None else tracker.pods.get((order.role, order.index))
        if pod is None or pod.is_over or not pod.node:
            raise StreamRefusedError(_WRONG_STATE, f"the member {order.role}-{order.index} of {order.run} does not run")
        return await self._streams.open(self._api, pod, order)

    # -- accepting

    async def _accept(self, run: StartRun) -> None:
        try:
            await self._accept_once(run)
        finally:
            del self._accepting[run.run]

    async def _accept_once(self, run: StartRun) -> None:
        namespace = self._config.namespace_of(run.queue)
        try:
            facts = facts_of(run)
        except ValidationError as error:
            message = f"this agent does not understand the job: {error.errors()[0]['msg']}"
            end = RunEnd(category=FailureCategory.CONFIG, message=message)
            self._refuse(run, RunState.RETURNED, message, end)
            return
        except UnknownWorkloadError as error:
            message = f"this agent does not understand the job: {error}"
            self._refuse(run, RunState.RETURNED, message, RunEnd(category=FailureCategory.CONFIG, message=message))
            return
        except Exception as error:  # noqa: BLE001 - contained: nothing else ends with it
            message = f"the agent cannot handle this run: {contain('accept', error, run=run.run)}"
            self._refuse(run, RunState.FAILED, message, RunEnd(category=FailureCategory.CONFIG, message=message))
            return
        if namespace not in self._config.job_namespaces:
            message = (
                f"queue {run.queue} has no namespace in this cluster: its agent may not use {namespace}; "
                "an admin of the cluster adds it, as with `queues` of the agent's chart"
            )
            self._refuse(run, RunState.RETURNED, message)
            return
        try:
            record = await self._acceptor.record(run, namespace)
        except RuntimeAwayError:
            raise
        except Exception as error:
            # Its record may have been stored, so the run may not be called off.
            self._acceptor.unsure[run.run] = run
            raise RuntimeAwayError(
                f"run {run.run} could not be recorded: {contain('record', error, run=run.run)}"
            ) from error
        if isinstance(record, RecordedEnd):
            self._refuse(run, record.state, record.message)
            return
        tracker = self._trackers.get(run.run)
        if tracker is None:
            tracker = self._take_up(record, facts, time.monotonic())
        self._statuses[run.run] = tracker.status
        self._changed.set()
        self._look_at(run.run)

    def _refuse(self, run: StartRun, state: RunState, message: str, end: RunEnd | None = None) -> None:
        """End a run that can have no record. It is reported as long as the dispatcher asks for it."""
        self._statuses[run.run] = RunStatus(run.run, run.generation, 1, state, message, end)
        self._changed.set()

    # -- reconciling runs

    @property
    def _reconcilers_now(self) -> RunReconcilers:
        if self._reconcilers is None:
            raise RuntimeError("the runtime is not open")
        return self._reconcilers

    def _look_at(self, run: str) -> None:
        self._worklist.add(run)

    def _is_new(self, run: str) -> bool:
        tracker = self._trackers.get(run)
        return tracker is None or tracker.prepared < 0

    async def _work(self) -> None:
        while True:
            run = await self._worklist.take()
            try:
                tracker = self._trackers.get(run)
                if tracker is not None:
                    await self._settle(tracker)
            except Exception as error:  # noqa: BLE001 - contained: nothing else ends with it
                contain("worker", error, run=run)
                asyncio.get_running_loop().call_later(_MOST_BACK_OFF, self._look_at, run)
            finally:
                self._worklist.done(run)

    async def _settle(self, tracker: RunTracker) -> None:
        pause = None
        try:
            await self._reconcilers_now.settle(tracker)
            tracker.retries = tracker.errors = 0
            tracker.prevented = ""
        except KubeError as error:
            pause = self._refused_pause(tracker, error)
        except Exception as error:  # noqa: BLE001 - contained: nothing else ends with it
            pause = await self._contain(tracker, error)
        self._set_timer(tracker, pause)

    def _refused_pause(self, tracker: RunTracker, error: KubeError) -> float:
        """Return how long to wait after the API server prevented a step."""
        if isinstance(error, LeaseLostError):
            log.warning(
                "run %s is not acted on, as this replica does not hold the lease: %s",
                tracker.run,
                error,
                extra={"run_id": tracker.run},
            )
            return _MOST_BACK_OFF
        tracker.prevented = str(error)
        level = logging.INFO if isinstance(error, UnavailableError) else logging.WARNING
        log.log(level, "run %s: %s", tracker.run, error, extra={"run_id": tracker.run})
        return self._growing_pause(tracker)

    def _growing_pause(self, tracker: RunTracker) -> float:
        pause: float = min(_MOST_BACK_OFF, _FIRST_BACK_OFF * 2**tracker.retries)
        tracker.retries = min(tracker.retries + 1, 10)
        return pause

    async def _contain(self, tracker: RunTracker, error: Exception) -> float:
        """End a run whose handling raised, or return how long to wait before it is tried again.

        A running run is tried again a few times first: an error that passes must not cost its work. One that is stopping, or has
        failed already, is tried for ever, and its message names the error.
        """
        words = contain("run", error, run=tracker.run)
        tracker.errors += 1
        progress = tracker.record.progress
        try:
            if (
                progress.verdict is None
                and progress.stop is None
                and (not tracker.pods or tracker.errors >= _MOST_ERRORS)
            ):
                await self._reconcilers_now.fail(tracker, words)
                tracker.retries = 0
                return 0.0
            if tracker.show(f"the agent tries again after an error of its own: {words}"):
                self._on_status(tracker)
        except KubeError as refused:
            return self._refused_pause(tracker, refused)
        except Exception as again:  # noqa: BLE001 - contained: nothing else ends with it
            contain("fail", again, run=tracker.run)
        return self._growing_pause(tracker)

    def _set_timer(self, tracker: RunTracker, pause: float | None) -> None:
        self._cancel_timer(tracker.run)
        at = tracker.next_look - time.time()
        wait = at if pause is None else min(pause, at)
        if wait < 1e8 and tracker.run in self._trackers:
            loop = asyncio.get_running_loop()
            self._timers[tracker.run] = loop.call_later(max(0.01, wait), self._look_at, tracker.run)

    def _cancel_timer(self, run: str) -> None:
        timer = self._timers.pop(run, None)
        if timer is not None:
            timer.cancel()

    async def _look_at_all_once(self) -> None:
        """Report every run's state after a start, before anything is changed."""
        for tracker in self._trackers.values():
            self._report_only(tracker)
            self._look_at(tracker.run)

    def _report_only(self, tracker: RunTracker) -> None:
        """Report a run's state; an error is left to the worker that acts on the run."""
        try:
            self._reconcilers_now.look(tracker)
        except Exception as error:  # noqa: BLE001 - contained: nothing else ends with it
            contain("look", error, run=tracker.run)
            self._look_at(tracker.run)

    async def _tick(self) -> None:
        """Requeue runs on nodes that turned ready or not, and, oldest first, gangs when capacity may be free."""
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            for look in (self._look_at_turned_nodes, self._look_at_waiting):
                try:
                    look()
                except Exception as error:  # noqa: BLE001 - contained: tried again at the next tick
                    contain("tick", error)

    def _look_at_turned_nodes(self) -> None:
        turned = set(self._node_health.turned)
        if turned:
            for tracker in self._trackers.values():
                if any(pod.node in turned for pod in tracker.pods.values()):
                    self._look_at(tracker.run)
            self._node_health.turned.difference_update(turned)

    def _look_at_waiting(self) -> None:
        if self._capacity_changed:
            waiting = self._reconcilers_now.opener.waiting
            for run in sorted(waiting, key=waiting.__getitem__):
                self._look_at(run)
            self._capacity_changed = False

    def _is_starting(self) -> bool:
        """Return whether runs wait for their pods to be created."""
        return bool(self._accepting) or len(self._worklist) > _WORKERS

    def _on_status(self, tracker: RunTracker) -> None:
        self._statuses[tracker.run] = tracker.status
        self._changed.set()

    def _lost_at(self, tracker: RunTracker) -> tuple[float, float] | None:
        """Return when silence of the dispatcher stops a run, in seconds of the epoch, and its members' grace."""
        limit = tracker.record.start.disconnect_seconds
        if limit is None or self._renewed_at is None:
            return None
        grace = max(1.0, float(int(min(tracker.facts.stop_grace, limit / 3) + 0.999)))
        left = self._renewed_at + limit - grace - max(0.5, limit / 10) - self._clock()
        return time.time() + left, grace

    def _closed(self) -> str:
        """Return why nothing can be started here now; empty if it can."""
        silent = self.lease.silent_for
        if silent > _AWAY_SECONDS:
            return f"the API server has not answered for {max(_AWAY_SECONDS, silent // 10 * 10):.0f} s"
        lacks = self._namespaces.lacks or ("" if self._served is None else self._served.lacks)
        if lacks:
            return lacks
        refused = next((watch.refused for watch in self._watches if watch.refused and watch.is_needed), "")
        return f"the API server refuses: {refused}" if refused else ""

    # -- what is watched

    async def _choose_placement(self) -> PlacementPort:
        found = await detect(self._api)
        if found.native is not None:
            with contextlib.suppress(RefusedError):
                kept = await probe_native(self._api, self._namespaces.existing[0], found.native)
                found = replace(found, native_topology=kept)
        capacity = self._config.capacity
        placement = choose(
            self._config.placement,
            found,
            capacity.autoscaler.provisioning_request,
            is_hami=capacity.gpu_sharing is GpuSharing.HAMI,
        )
        log.info("gangs are placed by %s", placement.name)
        return placement

    def _make_reconcilers(self, placement: PlacementPort) -> RunReconcilers:
        return RunReconcilers(
            self._api,
            self.lease,
            self._config,
            placement,
            self._node_capacity,
            self._outputs,
            levels=self.inventory.level_labels,
            products=self.inventory.products_of,
            group_of=self.inventory.group_of,
            look_over=lambda tracker: what_lacks(tracker, self._config, self._node_capacity, self._quotas),
            record_store=self._record_store,
            lost_at=self._lost_at,
            unready=self._node_health.unready,
            on_status=self._on_status,
            doubt=self._namespaces.doubt,
        )

    def _make_namespaces(self) -> JobNamespaces:
        return JobNamespaces(self._api, self._config.job_namespaces, self._on_namespace_gone)

    def _make_acceptor(self) -> RunAcceptor:
        closed = lambda: self._reported_closed  # noqa: E731 - it is reported anew each time
        return RunAcceptor(self._api, self.lease, self._config, self._namespaces, home=self._home, closed=closed)

    def _make_garbage_collector(self) -> GarbageCollector:
        return GarbageCollector(
            self._api,
            self.lease,
            self._config.cluster,
            self._home,
            self._tombstone,
            is_busy=self._is_starting,
            is_gone=lambda namespace: self._namespaces.is_missing(namespace),
        )

    def _make_kinds(self) -> ServedKinds:
        return ServedKinds(self._api, lambda: self._namespaces.existing, self._watch_workloads)

    def _leftovers(self, placement: PlacementPort) -> Leftovers:
        created = (CONFIG_MAPS, SERVICES, *placement.created)

        def resources() -> tuple[Resource, ...]:
            claims = (RESOURCE_CLAIM_TEMPLATES,) if self._kinds.takes_devices else ()
            shared = (RESOURCE_CLAIMS,) if self._kinds.takes_shared_devices else ()
            return (*created, *claims, *shared, *map(resource_of, self._kinds.kinds))

        return Leftovers(self._api, self.lease, self._config.cluster, self._records, self._older, resources)

    def _watch_all(self, placement: PlacementPort) -> None:
        handlers = self._handlers = EventHandlers(
            self._config,
            placement,
            self._trackers,
            self._orphans,
            home=self._home,
            look_at=self._look_at,
            lose_record=self._record_store.lose,
            is_known=self._is_known,
            on_found=self._on_found,
            doubt=self._namespaces.doubt,
        )
        self._watch(
            handlers.watched(
                self.inventory,
                self._quotas,
                self._claim_templates,
                self._named_claims,
                self._node_health,
                self._on_capacity_change,
            )
        )

    def _watch_workloads(self, kind: WorkloadKind) -> None:
        if self._handlers is not None:
            self._watch(self._handlers.watched_workloads(kind))

    def _watch(self, watched: Iterable[Watched]) -> None:
        for one in watched:
            watch = KubeWatch(
                self._api,
                one.resource,
                one.handler,
                namespace=one.namespace,
                selector=one.selector,
                name=one.name,
                is_needed=one.is_needed,
            )
            self._watches.append(watch)
            self._spawn("watch", watch.run, f"watch-{one.resource.plural}-{one.namespace or 'all'}")

    def _on_capacity_change(self) -> None:
        self._capacity_changed = True

    def _is_served(self) -> bool:
        """Return whether the dispatcher has answered. A second agent with the same key must not remove the first one's runs."""
        return self._renewed_at is not None

    def _is_known(self, run: str) -> bool:
        """Return whether the run is held, or about to be, or is over."""
        return (
            run in self._statuses
            or run in self._accepting
            or run in self._acceptor.unsure
            or self._garbage_collector.holds(run)
        )

    def _on_found(self, record: KubeRunRecord, facts: Facts) -> None:
        """Take over a record that this agent has not written."""
        tracker = self._take_up(record, facts)
        if self.is_ready:
            # The previous agent had sent it, and it was stored late.
            self._on_status(tracker)
            self._look_at(tracker.run)

    def _take_up(self, record: KubeRunRecord, facts: Facts, read_at: float = -1e9) -> RunTracker:
        record.owner_uid = record.owner_uid or self._namespaces.uid(record.namespace)
        tracker = RunTracker(record, facts, first_status(record, self.lease.term), record_read_at=read_at)
        self._trackers[tracker.run] = tracker
        for sight in self._orphans.take(tracker.run):
            tracker.note(sight)
        if self._handlers is not None:
            self._handlers.meet(tracker)
        return tracker

    def _on_namespace_gone(self, namespace: str) -> None:
        for tracker in self._trackers.values():
            if tracker.record.namespace == namespace:
                tracker.namespace_is_gone = True
                self._look_at(tracker.run)

    def _objects_of(self, tracker: RunTracker) -> tuple[tuple[Resource, str], ...]:
        """Return the objects created for a run beside its pods."""
        if tracker.manifests is None:
            return self._usual_objects_of(tracker)
        manifests = tracker.manifests
        objects = (*manifests.objects(), *((manifests.workload(),) if manifests.is_workload else ()))
        held = () if self._placement is None else self._placement.holders
        return (
            *((one.resource, one.body["metadata"]["name"]) for one in objects),
            *((one, tracker.run) for one in held),
        )

    def _usual_objects_of(self, tracker: RunTracker) -> tuple[tuple[Resource, str], ...]:
        """Return the objects that may exist for a run without manifests, because it had already ended when found."""
        created = () if self._placement is None else (*self._placement.created, *self._placement.holders)
        found = [(resource, tracker.run) for resource in created]
        for role in tracker.facts.spec.roles:
            if role.template is not None and role.template.files:
                found.append((CONFIG_MAPS, files_name(tracker.run, role.name)))
            if role.members_per_claim > 1:
                names = shared_claim_names(tracker.run, role, tracker.sizes.get(role.name, 0))
                found += [(RESOURCE_CLAIMS, name) for name in names]
            elif role.template is not None and role.template.devices:
                found.append((RESOURCE_CLAIM_TEMPLATES, claim_template_name(tracker.run, role.name)))
        if tracker.facts.workload is not None:
            return (*found, (resource_of(tracker.facts.workload), object_name(tracker.run)))
        if sum(tracker.sizes.values()) > 1:
            found += [(CONFIG_MAPS, roster_name(tracker.run)), (SERVICES, tracker.run)]
        return tuple(found)
