"""`KubernetesRuntime`: the runtime port over one Kubernetes cluster.

One event loop owns all books. Watches and calls of the port mark runs as to be looked at; workers look, a run at a time.
"""

import asyncio
import contextlib
import logging
import os
import socket
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from trainmaster.agent.capacity.inventory import Inventory
from trainmaster.agent.capacity.quotas import PodTraits, Quotas
from trainmaster.agent.kube.client import ApiServer
from trainmaster.agent.kube.errors import (
    KubeError,
    RefusedError,
    UnavailableError,
)
from trainmaster.agent.kube.lease import LeaseKeeper, LeaseLostError
from trainmaster.agent.kube.paths import (
    CONFIG_MAPS,
    NAMESPACES,
    PODS,
    RESOURCE_QUOTAS,
    SERVICES,
    Resource,
    key_of,
)
from trainmaster.agent.kube.pods import PodSight
from trainmaster.agent.kube.watch import Watch
from trainmaster.agent.placement.choose import choose, detect, probe_native
from trainmaster.agent.placement.port import Placement
from trainmaster.agent.runtime.kubernetes.book import Book, first_status
from trainmaster.agent.runtime.kubernetes.burial import Burial
from trainmaster.agent.runtime.kubernetes.cluster_books import entries
from trainmaster.agent.runtime.kubernetes.config import KubernetesCluster
from trainmaster.agent.runtime.kubernetes.crew import Crew
from trainmaster.agent.runtime.kubernetes.facts import facts_of
from trainmaster.agent.runtime.kubernetes.intake import Intake
from trainmaster.agent.runtime.kubernetes.manifests import roster_name
from trainmaster.agent.runtime.kubernetes.orphans import Orphans
from trainmaster.agent.runtime.kubernetes.output import Outputs
from trainmaster.agent.runtime.kubernetes.record import (
    ALIVE,
    LABEL_AGENT,
    LABEL_ANCHOR,
    UnreadableAnchorError,
    Verdict,
    read_record,
)
from trainmaster.agent.runtime.kubernetes.room import Room
from trainmaster.agent.runtime.kubernetes.sinks import NodeSink, ObjectSink, PodSink
from trainmaster.agent.runtime.kubernetes.worklist import Worklist
from trainmaster.agent.runtime.news import News
from trainmaster.agent.runtime.port import LogSlice, RunStatus
from trainmaster.protocol.agent import CapacityReport, ResizeRun, RunEnd, StartRun, StopRun
from trainmaster.protocol.durations import parse_duration
from trainmaster.protocol.quantities import Resources
from trainmaster.protocol.states import FailureCategory, RunState

log = logging.getLogger(__name__)

_WORKERS = 48
_FIRST_BACK_OFF, _MOST_BACK_OFF = 0.2, 5.0
_TICK_SECONDS = 0.2
_AWAY_SECONDS = 8.0
"""After so long without an answer of the API server the dispatcher is told to send nothing."""
_LIST_PATIENCE = 120.0
_NAMESPACE_SECONDS = 10.0


class KubernetesRuntime:
    """Members are pods. ``clock`` must be the one that ``renew`` is told the time of."""

    def __init__(
        self,
        api: ApiServer,
        config: KubernetesCluster,
        *,
        namespace: str,
        clock: Callable[[], float],
        identity: str | None = None,
    ) -> None:
        """``namespace`` is the agent's own, where its Lease is."""
        self._api = api
        self._config = config
        self._clock = clock
        lease = config.lease
        self.lease = LeaseKeeper(
            api,
            lease.namespace or namespace,
            lease.name or f"trainmaster-agent-{config.cluster}",
            identity or f"{os.environ.get('HOSTNAME') or socket.gethostname()}-{uuid.uuid4().hex[:8]}",
            parse_duration(lease.duration),
        )
        self.inventory = Inventory(config.capacity, (LABEL_AGENT, config.cluster))
        self._quotas = Quotas()
        self._room = Room(self.inventory)
        self._outputs = Outputs(api)
        self._placement: Placement | None = None
        self._crew: Crew | None = None
        self._tombstone = parse_duration(config.tombstone)
        self._books: dict[str, Book] = {}
        self._orphans = Orphans(api, self.lease)
        self._burial = Burial(api, self.lease, config.cluster, self._tombstone, self._is_starting)
        self._statuses: dict[str, RunStatus] = {}
        self._accepting: dict[str, asyncio.Task[None]] = {}
        self._intake = Intake(api, self.lease, config, lambda: self._told_closed)
        self._worklist = Worklist(self._is_new)
        self._changed = News()
        self._room_changed = False
        self._tasks: list[asyncio.Task[None]] = []
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._watches: list[Watch] = []
        self._holder = ""
        self._renewed_at: float | None = None
        self._report_version = -1
        self._told_closed = ""
        """Why nothing can be started here, as far as it was reported."""
        self.is_ready = False

    # -- the port

    @property
    def holder(self) -> str:
        return self._holder

    async def open(self) -> None:
        """Waits until this replica is the one that acts; then reads all that there is. Raises KubeError.

        Raises PlacementUnavailableError where the cluster has not the scheduler that the configuration names. Where it raises,
        ``close`` has to follow; then it may be called again.
        """
        await self.lease.acquire()
        self._tasks.append(asyncio.create_task(self.lease.keep(), name="lease"))
        home = await self._api.get(NAMESPACES, None, self._config.job_namespaces[0])
        self._holder = home["metadata"]["uid"]
        self._placement = await self._choose_placement()
        self._crew = self._make_crew(self._placement)
        self._watch_all(self._placement)
        async with asyncio.timeout(_LIST_PATIENCE):
            await asyncio.gather(*(watch.listed.wait() for watch in self._watches if watch.is_needed))
        self.inventory.report()
        for namespace in self._config.job_namespaces:
            await self._burial.take_over(namespace)
        await self.lease.raise_term(max((book.record.term for book in self._books.values()), default=0))
        for book in self._books.values():
            book.status = first_status(book.record, self.lease.term)
            self._statuses[book.run] = book.status
        await self._look_at_all_once()
        for number in range(_WORKERS):
            self._tasks.append(asyncio.create_task(self._work(), name=f"worker-{number}"))
        self._tasks.append(asyncio.create_task(self._tick(), name="tick"))
        self._tasks.append(asyncio.create_task(self._burial.run(), name="burial"))
        self._tasks.append(asyncio.create_task(self._look_for_namespaces(), name="namespaces"))
        self._tasks.append(asyncio.create_task(self._orphans.run(self._books.__contains__), name="orphans"))
        self.is_ready = True
        await self.lease.confirm()  # reading may have taken long, and who does not act must not call the dispatcher

    async def close(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        tasks = [*self._tasks, *self._accepting.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._outputs.close()
        if self.lease.is_valid():
            await self._burial.close()
        await self.lease.release()
        self._forget_all()

    def _forget_all(self) -> None:
        """What is in memory is a copy, and is built anew by the next ``open``."""
        self.is_ready = False
        for memory in (self._books, self._statuses, self._accepting, self._timers):
            memory.clear()
        self._tasks.clear()
        self._watches.clear()
        self._worklist = Worklist(self._is_new)
        self._intake = Intake(self._api, self.lease, self._config, lambda: self._told_closed)
        self._orphans = Orphans(self._api, self.lease)
        self._burial = Burial(self._api, self.lease, self._config.cluster, self._tombstone, self._is_starting)
        self._quotas = Quotas()
        self._room = Room(self.inventory)
        self._placement = self._crew = None

    async def watch_over(self) -> None:
        """Return never; raises what makes this replica unfit to act, of it LeaseLostError."""
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()

    async def capacity(self) -> CapacityReport:
        found = self.inventory.report()
        if found.version != self._report_version:
            self._report_version = found.version
            for book in self._books.values():
                if book.pods and not book.status.state.is_terminal:
                    self._crew_now.look(book)  # places are told with the groups that they are in
        placement, self._told_closed = self._placement, self._closed()
        capabilities = set(placement.capabilities) if placement is not None else set()
        capabilities |= {"gangRestart", "maxPerNode", "memberRestart", "podTemplate", "successRole"}
        if self._config.checkpoint:
            capabilities.add("checkpoint")
        return CapacityReport(
            groups=found.groups,
            runtime="kubernetes",
            scheduler="" if placement is None else placement.name,
            capabilities=tuple(sorted(capabilities)),
            datasets=self._config.datasets,
            not_counted=found.not_counted,
            closed=self._told_closed,
        )

    def held(self) -> dict[str, RunStatus]:
        """The same mapping each time, brought up to date."""
        return self._statuses

    async def start(self, run: StartRun) -> None:
        """Raises RuntimeAwayError when the API server does not take the record now."""
        if run.run in self._statuses:
            return
        task = self._accepting.get(run.run)
        if task is None:
            task = self._accepting[run.run] = asyncio.create_task(self._accept(run))
        await asyncio.shield(task)

    async def stop(self, stop: StopRun) -> None:
        """Raises RuntimeAwayError where the run may have been recorded, and the API server does not tell now whether it was."""
        if (task := self._accepting.get(stop.run)) is not None:
            await asyncio.wait((task,))
        if stop.run in self._intake.unsure:
            # Its record may still come true. So it is made certain that there is one, and that one is stopped.
            await self.start(self._intake.unsure[stop.run])
        book = self._books.get(stop.run)
        if book is None or book.status.state.is_terminal:
            return
        if stop.generation < book.record.progress.generation:
            return
        for known in (book.wished_stop, book.record.progress.stop):
            if known is not None and (stop.generation, -stop.longest) <= (known.generation, -known.longest):
                return
        book.wished_stop = stop
        self._look_at(stop.run)

    async def resize(self, resize: ResizeRun) -> None:
        if (task := self._accepting.get(resize.run)) is not None:
            await asyncio.wait((task,))
        book = self._books.get(resize.run)
        if book is None or book.status.state.is_terminal or book.wished_stop is not None:
            return
        known = book.wished_resize
        if book.record.progress.stop is None and (known is None or resize.generation > known.generation):
            book.wished_resize = resize
            self._look_at(resize.run)

    async def forget(self, run: str) -> None:
        status = self._statuses.get(run)
        if status is None or not status.state.is_terminal:
            return
        del self._statuses[run]
        book = self._books.pop(run, None)
        if book is None:
            return
        self._room.drop(run)
        self._crew_now.opening.waiting.pop(run, None)
        self._cancel_timer(run)
        for pod in book.pods.values():
            self._outputs.forget(pod.uid)
        self._burial.bury(book, self._objects_of(book))

    async def renew(self, asked_at: float) -> None:
        if self._renewed_at is None or asked_at > self._renewed_at:
            self._renewed_at = asked_at
            for book in self._books.values():
                if book.record.start.disconnect_seconds is not None and not book.status.state.is_terminal:
                    self._look_at(book.run)

    async def wait_changed(self, timeout: float) -> bool:
        return await self._changed.taken_within(timeout)

    async def read_log(self, run: str, role: str, index: int, offset: int, limit: int) -> LogSlice:
        book = self._books[run]
        pod = book.pods.get((role, index))
        if pod is not None and pod.has_started:
            return await self._outputs.read(
                pod.namespace, pod.name, pod.uid, pod.container, offset, limit, ended=pod.is_over
            )
        last = book.last_pods.get((role, index))
        kept = None if last is None else self._outputs.kept(last, offset, limit)
        if kept is not None:
            return kept
        if (role, index) not in book.facts.wanted(book.sizes):
            raise KeyError(f"run {run} has no member {role}-{index}")
        return LogSlice(0, b"", book.status.state.is_terminal)

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
        if namespace not in self._config.job_namespaces:
            self._refuse(run, RunState.RETURNED, f"namespace {namespace} is not among those that this agent may use")
            return
        record = await self._intake.record(run, namespace)
        if isinstance(record, Verdict):
            self._refuse(run, record.state, record.message)
            return
        book = self._books.get(run.run)
        if book is None:
            book = Book(record, facts, first_status(record, self.lease.term), anchor_read_at=time.monotonic())
            self._books[run.run] = book
            for sight in self._orphans.take(run.run):
                book.note(sight)
        self._statuses[run.run] = book.status
        self._changed.set()
        self._look_at(run.run)

    def _refuse(self, run: StartRun, state: RunState, message: str, end: RunEnd | None = None) -> None:
        """A run for which there can be no record. It is told again as long as the dispatcher asks for it."""
        self._statuses[run.run] = RunStatus(run.run, run.generation, 1, state, message, end)
        self._changed.set()

    # -- looking at runs

    @property
    def _crew_now(self) -> Crew:
        if self._crew is None:
            raise RuntimeError("the runtime is not open")
        return self._crew

    def _look_at(self, run: str) -> None:
        self._worklist.add(run)

    def _is_new(self, run: str) -> bool:
        book = self._books.get(run)
        return book is None or book.prepared < 0

    async def _work(self) -> None:
        while True:
            run = await self._worklist.take()
            try:
                book = self._books.get(run)
                if book is not None:
                    await self._settle(book)
            finally:
                self._worklist.done(run)

    async def _settle(self, book: Book) -> None:
        pause = None
        try:
            await self._crew_now.settle(book)
            book.retries = 0
        except LeaseLostError as error:
            log.warning("run %s is left alone: %s", book.run, error, extra={"run_id": book.run})
            pause = _MOST_BACK_OFF
        except KubeError as error:
            pause = min(_MOST_BACK_OFF, _FIRST_BACK_OFF * 2**book.retries)
            book.retries = min(book.retries + 1, 10)
            level = logging.INFO if isinstance(error, UnavailableError) else logging.WARNING
            log.log(level, "run %s: %s", book.run, error, extra={"run_id": book.run})
        self._set_timer(book, pause)

    def _set_timer(self, book: Book, pause: float | None) -> None:
        self._cancel_timer(book.run)
        at = book.next_look - time.time()
        wait = at if pause is None else min(pause, at)
        if wait < 1e8 and book.run in self._books:
            loop = asyncio.get_running_loop()
            self._timers[book.run] = loop.call_later(max(0.01, wait), self._look_at, book.run)

    def _cancel_timer(self, run: str) -> None:
        timer = self._timers.pop(run, None)
        if timer is not None:
            timer.cancel()

    async def _look_at_all_once(self) -> None:
        """After a start: say of every run how it is, before anything is done."""
        for book in self._books.values():
            self._crew_now.look(book)
            self._look_at(book.run)

    async def _tick(self) -> None:
        """Let gangs that wait for room look again when there may be some, oldest first."""
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            if self._room_changed:
                self._room_changed = False
                waiting = self._crew_now.opening.waiting
                for run in sorted(waiting, key=lambda one: waiting[one]):
                    self._look_at(run)

    async def _look_for_namespaces(self) -> None:
        """For ever."""
        while True:
            await asyncio.sleep(_NAMESPACE_SECONDS)
            await self._intake.look_for_namespaces()

    def _is_starting(self) -> bool:
        """Whether runs wait for their pods to be made."""
        return bool(self._accepting) or len(self._worklist) > _WORKERS

    def _on_told(self, book: Book) -> None:
        self._statuses[book.run] = book.status
        self._changed.set()

    def _lost_at(self, book: Book) -> tuple[float, float] | None:
        """When silence of the dispatcher makes a run stop, in seconds of the epoch, and the grace that its members then have."""
        limit = book.record.start.disconnect_seconds
        if limit is None or self._renewed_at is None:
            return None
        grace = max(1.0, float(int(min(book.facts.stop_grace, limit / 3) + 0.999)))
        left = self._renewed_at + limit - grace - max(0.5, limit / 10) - self._clock()
        return time.time() + left, grace

    def _closed(self) -> str:
        """Why nothing can be started here now."""
        silent = self.lease.silent_for
        if silent > _AWAY_SECONDS:
            return f"the API server has not answered for {max(_AWAY_SECONDS, silent // 10 * 10):.0f} s"
        if self._intake.lacks:
            return self._intake.lacks
        refused = next((watch.refused for watch in self._watches if watch.refused and watch.is_needed), "")
        return f"the API server refuses: {refused}" if refused else ""

    # -- what is watched

    async def _choose_placement(self) -> Placement:
        found = await detect(self._api)
        if found.native is not None:
            with contextlib.suppress(RefusedError):
                kept = await probe_native(self._api, self._config.job_namespaces[0], found.native)
                found = replace(found, native_topology=kept)
        placement = choose(self._config.placement, found)
        log.info("gangs are placed by %s", placement.name)
        return placement

    def _make_crew(self, placement: Placement) -> Crew:
        return Crew(
            self._api,
            self.lease,
            self._config,
            placement,
            self._room,
            self._outputs,
            levels=self.inventory.level_labels,
            group_of=self.inventory.group_of,
            look_over=self._look_over,
            lost_at=self._lost_at,
            on_told=self._on_told,
        )

    def _look_over(self, book: Book) -> str | None:
        """What this cluster lacks for a run, and will not get by waiting."""
        spec = book.facts.spec
        missing = sorted(set(spec.placement.datasets) - set(self._config.datasets))
        if missing:
            return f"the datasets {', '.join(missing)} are not here"
        manifests = book.manifests
        pods = {} if manifests is None else {role.name: role.pod for role in manifests.gang.roles}
        never = self._room.never(book.facts, pods)
        if never is not None:
            return never
        total: Resources = {}
        for role in book.facts.roles.values():
            for name, amount in role.requests.items():
                total[name] = total.get(name, 0) + amount * book.sizes.get(role.name, 0)
        return self._quotas.shortfall(
            book.record.namespace,
            total,
            sum(book.sizes.values()),
            limits=total if all(role.template is not None for role in spec.roles) else None,
            traits=PodTraits(
                terminating=book.facts.time_limit is not None, priority_class=self._config.placement.priority_class
            ),
        )

    def _watch_all(self, placement: Placement) -> None:
        inventory = self.inventory
        pods = PodSink(
            inventory,
            self._config.cluster,
            on_put=self._on_pod,
            on_gone=self._on_pod_gone,
            on_change=self._on_room_change,
        )
        self._watch(PODS, pods)
        selector = f"{LABEL_AGENT}={self._config.cluster}"
        for namespace in self._config.job_namespaces:
            anchors = ObjectSink(self._on_anchor, self._on_anchor_gone)
            self._watch(CONFIG_MAPS, anchors, namespace, f"{LABEL_ANCHOR}={ALIVE},{selector}")
            quotas = ObjectSink(self._quotas.put, lambda obj: self._quotas.drop(key_of(obj)))
            self._watch(RESOURCE_QUOTAS, quotas, namespace, needed=False)
            for resource in placement.watched:
                objects = ObjectSink(self._on_object, self._on_object_gone)
                own = "" if resource.plural == "workloads" else selector
                self._watch(resource, objects, namespace, own, needed=False)
        for entry in entries(inventory):
            sink = NodeSink(inventory, entry.kind, entry.put, entry.drop, self._on_room_change)
            self._watch(entry.resource, sink, needed=entry.needed)

    def _watch(
        self, resource: Resource, sink: Any, namespace: str | None = None, selector: str = "", *, needed: bool = True
    ) -> None:
        watch = Watch(self._api, resource, sink, namespace=namespace, selector=selector, is_needed=needed)
        self._watches.append(watch)
        self._tasks.append(asyncio.create_task(watch.run(), name=f"watch-{resource.plural}-{namespace or 'all'}"))

    def _on_room_change(self) -> None:
        self._room_changed = True

    def _on_pod(self, sight: PodSight) -> None:
        book = self._books.get(sight.run)
        if book is None:
            self._orphans.put(sight)
            return
        if book.note(sight):
            self._look_at(sight.run)

    def _on_pod_gone(self, sight: PodSight) -> None:
        self._orphans.drop(sight)
        book = self._books.get(sight.run)
        if book is not None:
            book.lose(sight)
            self._look_at(sight.run)

    def _on_anchor(self, obj: dict[str, Any]) -> None:
        run = obj["metadata"]["name"]
        if run in self._books or run in self._statuses or run in self._accepting or run in self._intake.unsure:
            return
        if self._burial.holds(run):
            return
        try:
            record = read_record(obj)
            facts = facts_of(record.start)
        except (UnreadableAnchorError, ValidationError) as error:
            log.error("%s", error)  # noqa: TRY400 - the words are the whole of it
            return
        self._books[run] = Book(record, facts, first_status(record, self.lease.term))
        for sight in self._orphans.take(run):
            self._books[run].note(sight)
        if self.is_ready:
            # The agent before this one had sent it, and it came late.
            self._on_told(self._books[run])
            self._look_at(run)

    def _on_anchor_gone(self, obj: dict[str, Any]) -> None:
        book = self._books.get(obj["metadata"]["name"])
        if book is not None and book.record.uid == obj["metadata"]["uid"]:
            self._crew_now.lose_anchor(book)
            self._look_at(book.run)

    def _on_object(self, obj: dict[str, Any]) -> None:
        run = self._placement.run_of(obj) if self._placement is not None else None
        book = None if run is None else self._books.get(run)
        if book is not None:
            book.objects[obj["metadata"]["uid"]] = obj
            self._look_at(book.run)

    def _on_object_gone(self, obj: dict[str, Any]) -> None:
        for book in self._books.values():
            if book.objects.pop(obj["metadata"]["uid"], None) is not None:
                self._look_at(book.run)

    def _objects_of(self, book: Book) -> tuple[tuple[Resource, str], ...]:
        """What was created for a run beside its pods."""
        found: list[tuple[Resource, str]] = []
        if book.manifests is not None:
            found += [(one.resource, one.body["metadata"]["name"]) for one in book.manifests.objects()]
        elif sum(book.sizes.values()) > 1:
            found += [(CONFIG_MAPS, roster_name(book.run)), (SERVICES, book.run)]
        return tuple(found)
