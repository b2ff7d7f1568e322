"""`Crew`: brings one run to what its record wants, step by step, by calls to the API server.

Assess, write down what was decided, act, look again. Each step may be cut off anywhere and is taken up again from what is there.
Before anything is created the Lease and the anchor are read again: an agent that was paused, or whose run has ended meanwhile,
creates nothing.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from trainmaster.protocol.agent import RunEnd
from trainmaster.protocol.durations import parse_duration
from trainmaster.protocol.states import FailureCategory, RunState
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
from trainmaster_agent.kube.paths import PODS
from trainmaster_agent.kube.pods import LABEL_ROUND, LABEL_RUN, PodSight, see
from trainmaster_agent.placement.port import GangState, PlacementPort
from trainmaster_agent.runtime.kubernetes.checkpoint import send_checkpoint
from trainmaster_agent.runtime.kubernetes.config import KubernetesCluster
from trainmaster_agent.runtime.kubernetes.gate_opener import Opening
from trainmaster_agent.runtime.kubernetes.manifests import Manifests
from trainmaster_agent.runtime.kubernetes.node_capacity import NodeCapacity
from trainmaster_agent.runtime.kubernetes.node_health import Unready
from trainmaster_agent.runtime.kubernetes.output import Outputs
from trainmaster_agent.runtime.kubernetes.reconcile import Assessment, ReconcileLimits, Sights, assess
from trainmaster_agent.runtime.kubernetes.record import (
    LABEL_AGENT,
    AnchoredEnd,
    Progress,
)
from trainmaster_agent.runtime.kubernetes.record_store import PERMISSION_PATIENCE, Anchors
from trainmaster_agent.runtime.kubernetes.resize import give_up, late_growth, take_resize
from trainmaster_agent.runtime.kubernetes.run_spec import Member
from trainmaster_agent.runtime.kubernetes.run_state import RunTracker

log = logging.getLogger(__name__)

_BATCH = 128
"""Members created between two looks at Lease and anchor; a multiple of the requests under way, or some wait alone at its end."""
_KEPT_OUTPUTS = 8
"""Members of a stopping run whose last output is kept, as their pods go with it."""
_MOST_STEPS = 50
_TOGETHER = 4
"""More pods than these, if they are all of a run's, are deleted in one call."""
Check = Callable[[RunTracker], str | None]
"""Why this cluster cannot run a run; None if it can."""


class RunReconcilers:
    """Acts on all runs of one agent. ``on_told`` is called with each run whose status has changed, ``doubt`` with a namespace
    that refuses what it took before."""

    def __init__(
        self,
        api: ApiServer,
        lease: LeaseKeeper,
        config: KubernetesCluster,
        placement: PlacementPort,
        room: NodeCapacity,
        outputs: Outputs,
        *,
        levels: Callable[[], Mapping[str, str]],
        products: Callable[[Iterable[str]], Mapping[str, Sequence[str]]],
        group_of: Callable[[str], str | None],
        look_over: Check,
        anchors: Anchors,
        lost_at: Callable[[RunTracker], tuple[float, float] | None],
        unready: Mapping[str, Unready],
        on_told: Callable[[RunTracker], None],
        doubt: Callable[[str], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._api = api
        self._lease = lease
        self._config = config
        self._placement = placement
        self._room = room
        self._outputs = outputs
        self._levels = levels
        self._products = products
        self._group_of = group_of
        self._look_over = look_over
        self._anchors = anchors
        self._lost_at = lost_at
        self._unready = unready
        self._on_told = on_told
        self._doubt = doubt
        self._clock = clock
        patience = config.patience
        self._limits = ReconcileLimits(
            image=parse_duration(patience.image),
            container=parse_duration(patience.container),
            start=parse_duration(patience.start),
            opened=parse_duration(patience.opened),
        )
        self.opening = Opening(api, room, placement, self._limits.opened, clock)
        self._creating = asyncio.Semaphore(config.parallel)
        """Creations wait here and not in the client, so that the Lease is looked at right before each one goes out."""

    async def settle(self, book: RunTracker) -> None:
        """Take all steps that can be taken now. Raises KubeError when the API server does not let it."""
        for _ in range(_MOST_STEPS):
            wished = self._wished(book)
            if wished is not None:
                await self._anchors.save(book, wished)
                continue
            found = assess(
                book.facts, book.record.progress, book.sizes, self._sights(book), self._limits, self._clock()
            )
            book.next_look = min(found.wake_at or float("inf"), late_growth(book))
            if found.progress is not None:
                await self._anchors.save(book, await self._with_output(book, found.progress))
                continue
            self.tell(book, found)
            if found.over or not await self._act(book, found):
                return
        log.error("run %s does not come to rest", book.run, extra={"run_id": book.run})

    async def fail(self, book: RunTracker, words: str) -> None:
        """End a run that this agent cannot handle: ``failed``, category ``config``. Raises KubeError."""
        end = RunEnd(category=FailureCategory.CONFIG, message=f"the agent cannot handle this run: {words}")
        await self._end(book, AnchoredEnd(RunState.FAILED, end.message, end))

    def look(self, book: RunTracker) -> None:
        """Say how a run is, and do nothing."""
        if book.record.progress.verdict is None and book.record.progress.stop is None:
            self._manifests(book)
        found = assess(book.facts, book.record.progress, book.sizes, self._sights(book), self._limits, self._clock())
        if found.progress is None:
            self.tell(book, found)

    def tell(self, book: RunTracker, found: Assessment) -> None:
        if found.at_work:
            book.ran_in = book.record.progress.round
        if book.tell(found, self._lease.term, self._group_of):
            self._on_told(book)

    # -- looking

    def _sights(self, book: RunTracker) -> Sights:
        now = self._clock()
        start = book.record.start
        for pod in book.pods.values():
            if pod.stage == "bound" and pod.reason:
                book.trouble_since.setdefault(pod.uid, now)
            else:
                book.trouble_since.pop(pod.uid, None)
        gang = GangState()
        if book.manifests is not None and book.record.progress.verdict is None:
            gang = self._placement.read(book.manifests.gang, list(book.objects.values()), list(book.pods.values()))
        lost = self._lost_at(book)
        return Sights(
            pods=dict(book.pods),
            gang=gang,
            accepted_at=book.record.accepted_at,
            placement_timeout=start.placement_timeout_seconds,
            ours=frozenset(book.ours),
            trouble_since=book.trouble_since,
            lost_at=None if lost is None else lost[0],
            lost_grace=1.0 if lost is None else lost[1],
            waits_for=book.waits_for,
            unready=self._unready,
            last_seen=book.last_seen,
            opened_at=book.opened_at,
        )

    def _said(self, book: RunTracker, role: str, index: int) -> int:
        return book.record.progress.said.get(f"{role}-{index}", 0)

    async def _with_output(self, book: RunTracker, progress: Progress) -> Progress:
        """Read what members that are to start again have said, before their pods go; the record with how much that was.

        Of a gang that starts again only some are read, of those that have ended; of others what was followed is kept.
        """
        before = book.record.progress
        if progress.verdict is not None or progress.stop is not None:
            return progress
        ended = [
            pod
            for (role, index), pod in book.pods.items()
            if pod.is_over
            and pod.has_started
            and (progress.round != before.round or progress.again.get(f"{role}-{index}", ("", ""))[1] == pod.uid)
            and before.again.get(f"{role}-{index}", ("", ""))[1] != pod.uid
        ]
        ended = sorted(ended, key=lambda pod: (pod.stage != "failed", pod.role, pod.index))[:_KEPT_OUTPUTS]
        if not ended:
            return progress
        ends = await asyncio.gather(
            *(self._outputs.finish(pod, said=self._said(book, pod.role, pod.index)) for pod in ended)
        )
        said = {f"{pod.role}-{pod.index}": end for pod, end in zip(ended, ends, strict=True)}
        return replace(progress, said=progress.said | said)

    def _wished(self, book: RunTracker) -> Progress | None:
        """The record with what the dispatcher has asked for since; None if there is nothing new."""
        progress = book.record.progress
        stop, book.wished_stop = book.wished_stop, None
        if book.namespace_is_gone and progress.verdict is None and progress.stop is None and progress.ended_at is None:
            words = f"preempted by the cluster: namespace {book.record.namespace} was deleted"
            return replace(progress, verdict=AnchoredEnd(RunState.PREEMPTED, words))
        if stop is not None and progress.ended_at is None:
            return replace(
                progress, stop=stop, stopped_at=self._clock(), generation=max(stop.generation, progress.generation)
            )
        resize, book.wished_resize = book.wished_resize, None
        if resize is not None and progress.stop is None and progress.verdict is None:
            try:
                return take_resize(book, resize, self._room, self._manifests(book), self._clock())
            except Exception as error:  # noqa: BLE001 - contained: nothing else ends with it
                # What is at work goes on: only the other sizes cannot be had.
                contain("resize", error, run=book.run)
                return replace(progress, generation=resize.generation, sizes=dict(book.sizes))
        if book.newcomers and progress.stop is None and progress.verdict is None:
            return give_up(book, self._clock())
        return None

    def _manifests(self, book: RunTracker) -> Manifests:
        key = book.record.progress.round, tuple(sorted(book.sizes.items()))
        if book.manifests is None or book.made_for != key:
            book.manifests = Manifests(
                book.record,
                book.facts,
                self._placement,
                agent=self._config.cluster,
                levels=self._levels(),
                policy=self._config.policy_of(book.record.start.queue),
                priority_class=self._config.placement.priority_class,
                port=self._config.port,
                run_as_user=self._config.run_as_user,
                holder=self._anchors.holder,
                products=self._products,
            )
            book.made_for = key
        return book.manifests

    # -- acting

    async def _act(self, book: RunTracker, found: Assessment) -> bool:
        """Whether to look again at once."""
        if found.signal and not book.signalled:
            book.signalled = True
            await self._signal(book)
            if book.record.progress.not_told:
                return True  # those need not be waited for
        if found.remove:
            await self._remove(book, found.remove)
            return False
        if found.create:
            return await self._create(book, found.create)
        if book.record.progress.verdict is None and book.record.progress.stop is None and self._placement.emulated:
            return await self._open(book)
        return False

    async def _signal(self, book: RunTracker) -> None:
        """Send the checkpoint signal to all members at work. A member that does not get it is told to end with the others."""
        stop = book.record.progress.stop
        if stop is None or not self._config.checkpoint:
            return
        pods = [pod for pod in book.pods.values() if pod.stage == "running" and not pod.deleting]
        not_told = await send_checkpoint(self._api, pods, stop.checkpoint_signal)
        if not_told:
            await self._anchors.save(book, replace(book.record.progress, not_told=not_told))

    async def _remove(self, book: RunTracker, pods: Sequence[tuple[PodSight, int]]) -> None:
        await self._lease.confirm()
        for pod, _ in pods:
            book.ours.add(pod.uid)
        running = [pod for pod, _ in pods if pod.stage == "running" and not pod.deleting]
        for pod in sorted(running, key=lambda one: (one.role, one.index))[:_KEPT_OUTPUTS]:
            self._outputs.follow(pod, ended=False, said=self._said(book, pod.role, pod.index))
        grace = pods[0][1]
        number = pods[0][0].round
        alike = all(one == grace and pod.round == number for pod, one in pods)
        if len(pods) > _TOGETHER and len(pods) == len(book.pods) and alike:
            # Of this round alone: should the call come late, the members of the next one are not meant.
            of_round = f"{LABEL_ROUND}={number}" if number else f"!{LABEL_ROUND}"
            selector = f"{LABEL_AGENT}={self._config.cluster},{LABEL_RUN}={book.run},{of_round}"
            await self._api.delete_all(PODS, book.record.namespace, selector, grace=grace)
            return
        await asyncio.gather(*(self._delete(book, pod, grace) for pod, grace in pods))

    async def _delete(self, book: RunTracker, pod: PodSight, grace: int) -> None:
        try:
            await self._api.delete(PODS, pod.namespace, pod.name, uid=pod.uid, grace=grace)
        except (NotFoundError, ConflictError):
            book.lose(pod)

    async def _create(self, book: RunTracker, members: Sequence[Member]) -> bool:
        manifests = self._manifests(book)
        if not book.looked_over:
            # Not once it has members: quotas count them as used already.
            why = None if book.pods or book.record.progress.created else self._refusal(book, manifests)
            book.looked_over = True
            if why is not None:
                await self._end(book, AnchoredEnd(RunState.RETURNED, why))
                return True
        ends = self._ends_of_earlier_lives(book, members)
        if not book.record.owner_uid:
            raise UnavailableError(f"nothing is known of namespace {book.record.namespace} yet")
        try:
            await self._prepare(book, manifests)
            for begin in range(0, len(members), _BATCH):
                await self._lease.confirm()
                await self._anchors.confirm(book)
                batch = members[begin : begin + _BATCH]
                # All of them come to an end before an error is acted upon: what is under way would create pods of a run that is over.
                outcomes = await asyncio.gather(
                    *(self._create_pod(book, manifests, member) for member in batch), return_exceptions=True
                )
                for outcome in outcomes:
                    if isinstance(outcome, BaseException):
                        raise outcome
        except RefusedError as error:
            if book.anchor_is_gone:
                return True
            self._doubt(book.record.namespace)
            if isinstance(error, ForbiddenError) and error.is_permission:
                book.forbidden_since = book.forbidden_since or time.monotonic()
                if time.monotonic() - book.forbidden_since < PERMISSION_PATIENCE:
                    raise UnavailableError(str(error)) from error
            await self._end(book, _refused(error))
            return True
        book.forbidden_since = None
        progress = book.record.progress
        complete = replace(progress, created=True, said=progress.said | ends)
        if progress.created or manifests.size == 1:
            # A member alone is one creation: nothing can be half done, and a restarted agent looks whether it is there.
            book.record.progress = complete
        else:
            await self._anchors.save(book, complete)
        return True

    def _ends_of_earlier_lives(self, book: RunTracker, members: Sequence[Member]) -> dict[str, int]:
        """By member that is about to be created once more: where the output of its earlier lives ends, as far as it is in memory."""
        if not book.record.progress.round:
            return {}
        ends = ((f"{role}-{index}", self._outputs.end_of((book.run, role, index))) for role, index in members)
        return {name: end for name, end in ends if end}

    def _refusal(self, book: RunTracker, manifests: Manifests) -> str | None:
        """Why this cluster cannot run it at all."""
        mistakes = manifests.mistakes()
        if mistakes:
            return "this cluster does not admit its pod template: " + "; ".join(
                f"{one.path}: {one.message}" for one in mistakes[:5]
            )
        return self._placement.lacks(manifests.gang) or self._look_over(book)

    async def _prepare(self, book: RunTracker, manifests: Manifests) -> None:
        """Create what has to be there before the pods of this round."""
        number = book.record.progress.round
        if book.prepared == number:
            return
        await self._lease.confirm()
        await self._anchors.confirm(book)
        for resource, body in manifests.objects():
            name = body["metadata"]["name"]
            if number:
                # Those of an earlier round are of other sizes, or have been used up.
                with contextlib.suppress(NotFoundError):
                    await self._api.delete(resource, book.record.namespace, name)
            await self._create_once(book, resource, body)
        book.prepared = number

    async def _create_once(self, book: RunTracker, resource: Any, body: dict[str, Any]) -> None:
        try:
            await self._api.create(resource, book.record.namespace, body)
        except ConflictError:
            try:
                held = await self._api.get(resource, book.record.namespace, body["metadata"]["name"])
            except NotFoundError:
                raise _still_there(body) from None
            labels = held["metadata"].get("labels") or {}
            if (labels.get(LABEL_AGENT), labels.get(LABEL_RUN)) != (self._config.cluster, book.run):
                raise
            if "deletionTimestamp" in held["metadata"]:
                raise _still_there(held) from None

    async def _create_pod(self, book: RunTracker, manifests: Manifests, member: Member) -> None:
        body = manifests.pod(*member, beside=self._beside(book, manifests))
        name = body["metadata"]["name"]
        try:
            async with self._creating:
                if not self._lease.is_valid():
                    raise UnavailableError("the lease ran out before all members were created")
                stored = await self._api.create(PODS, book.record.namespace, body)
        except ConflictError as error:
            if error.reason != "AlreadyExists":
                raise UnavailableError(str(error)) from error  # as of two creations at once that a quota counts
            try:
                stored = await self._api.get(PODS, book.record.namespace, name)
            except NotFoundError:
                raise UnavailableError(f"an earlier pod {name} has only just gone") from None
            sight = see(stored)
            if sight is None or sight.run != book.run:
                raise RefusedError(409, f"pod {name} is there and is not ours", "Foreign") from error
        sight = see(stored)
        if sight is not None:
            book.note(sight)

    def _beside(self, book: RunTracker, manifests: Manifests) -> dict[str, str] | None:
        """Where a member has to be that comes to a gang at work; None while the gang has not started."""
        if book.record.progress.round != book.ran_in:
            return None
        level = manifests.gang.required
        node = next((pod.node for pod in book.pods.values() if pod.node), "")
        value = None if level is None else self._room.label(node, level)
        return {} if level is None or value is None else {level: value}

    async def _open(self, book: RunTracker) -> bool:
        changed = await self.opening.open(book, self._manifests(book), self._levels(), self._lease.confirm)
        if changed is None:
            return False
        await self._anchors.save(book, changed)
        return True

    async def _end(self, book: RunTracker, verdict: AnchoredEnd) -> None:
        await self._anchors.save(book, replace(book.record.progress, verdict=verdict))


def _refused(error: RefusedError) -> AnchoredEnd:
    """What a refusal of the API server makes of a run."""
    words = " ".join(str(error).split())[:500]
    if isinstance(error, ForbiddenError | NotFoundError) and error.is_namespace_gone:
        return AnchoredEnd(RunState.PREEMPTED, f"preempted by the cluster: {words}")
    if isinstance(error, ForbiddenError | NotFoundError | ConflictError):
        return AnchoredEnd(RunState.RETURNED, f"refused by the cluster: {words}")
    if error.reason == "Foreign":
        return AnchoredEnd(RunState.RETURNED, f"refused: {words}")
    end = RunEnd(category=FailureCategory.CONFIG, message=f"the cluster does not take its pods: {words}")
    return AnchoredEnd(RunState.FAILED, end.message, end)


def _still_there(held: Mapping[str, Any]) -> KubeError:
    return UnavailableError(f"{held['metadata']['name']} of an earlier round is still being deleted")
