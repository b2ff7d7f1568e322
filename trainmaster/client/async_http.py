"""The client on an event loop: the verbs of ``http.Client``, awaited."""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Self, overload

import httpx

from trainmaster.client import config
from trainmaster.client.async_transport import AsyncTransport
from trainmaster.client.calls import Action, Parameters, Spec
from trainmaster.client.core import Retries
from trainmaster.client.steps import Terms
from trainmaster.client.streams import Ended, LogPiece, Notice
from trainmaster.client.values import JobFilter
from trainmaster.client.verbs import ALL, PAGE, Verbs
from trainmaster.protocol.answers import (
    AgentKey,
    AuditEntry,
    BulkAnswer,
    ClusterView,
    DeadLetter,
    DrainAnswer,
    JobAction,
    JobPage,
    JobReason,
    KeyView,
    LostRuns,
    NewKey,
    QuarantinedRun,
    QueueView,
    TriedJob,
    WebhookSecrets,
)
from trainmaster.protocol.bursting import BurstPolicySpec, Previews
from trainmaster.protocol.errors import TrainmasterError
from trainmaster.protocol.resource_kinds import Kind
from trainmaster.protocol.simulations import SimulationSpec, SimulationView
from trainmaster.protocol.tenants import EventView, JobView, JoinSpec, KeySpec
from trainmaster.protocol.usage import Per, UsageAnswer
from trainmaster.protocol.workload import Workload

_RETRIES = Retries()


class AsyncClient:
    """What ``Client`` does, in the same words, with ``await`` and ``async for``. For one event loop.

    Leave an ``async for`` over ``watch`` or ``logs`` early within ``contextlib.aclosing``, so that its connection is closed at once.
    """

    def __init__(
        self,
        url: str | None = None,
        key: str | None = None,
        *,
        timeout: float = 30.0,
        retries: Retries = _RETRIES,
        on_retry: Callable[[TrainmasterError, float], None] | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        context = config.Context(url, key) if url and key else config.load(url, key)
        self._transport = AsyncTransport(context.url, context.key, transport=transport, sleep=sleep)
        self._verbs = Verbs(Terms(retries, timeout, on_retry, clock))
        self._run = self._transport.run
        self._iterate = self._transport.iterate

    @property
    def url(self) -> str:
        return self._transport.url

    async def aclose(self) -> None:
        await self._transport.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    # Jobs

    async def submit(self, specs: Spec | Sequence[Spec], *, idempotency_key: str | None = None) -> list[str]:
        return await self._run(self._verbs.submit(specs, idempotency_key))

    async def submit_parameters(
        self, spec: Spec, parameters: Sequence[Parameters], *, idempotency_key: str | None = None
    ) -> list[str]:
        return await self._run(self._verbs.submit_parameters(spec, parameters, idempotency_key))

    async def dry_run(self, specs: Spec | Sequence[Spec]) -> list[TriedJob]:
        return await self._run(self._verbs.dry_run(specs))

    def pages(self, wanted: JobFilter = ALL, page_size: int = PAGE) -> AsyncGenerator[JobPage, None]:
        return self._iterate(self._verbs.pages(wanted, page_size))

    def jobs(self, wanted: JobFilter = ALL, page_size: int = PAGE) -> AsyncGenerator[JobView, None]:
        return self._iterate(self._verbs.jobs(wanted, page_size))

    async def job(self, job: str) -> JobView:
        return await self._run(self._verbs.job(job))

    async def why(self, job: str) -> JobReason:
        return await self._run(self._verbs.why(job))

    async def events(self, job: str, after: int = 0, limit: int = 1000) -> list[EventView]:
        return await self._run(self._verbs.events(job, after, limit))

    def watch(
        self, job: str, after: int = 0, *, timeout: float | None = None
    ) -> AsyncGenerator[EventView | Notice | Ended, None]:
        return self._iterate(self._verbs.watch(job, after, timeout))

    def logs(
        self,
        job: str,
        *,
        follow: bool = False,
        role: str | None = None,
        index: int | None = None,
        attempt: int | None = None,
        tail_bytes: int = 65_536,
    ) -> AsyncGenerator[LogPiece | Notice | Ended, None]:
        return self._iterate(self._verbs.logs(job, follow, role, index, attempt, tail_bytes))

    @overload
    async def wait(self, job: str, timeout: float | None = None, *, check: bool = False) -> JobView: ...
    @overload
    async def wait(
        self, job: list[str] | tuple[str, ...], timeout: float | None = None, *, check: bool = False
    ) -> list[JobView]: ...
    async def wait(
        self, job: str | list[str] | tuple[str, ...], timeout: float | None = None, *, check: bool = False
    ) -> JobView | list[JobView]:
        return await self._run(self._verbs.wait(job, timeout, check))

    async def cancel(self, job: str, *, grace: str | None = None) -> JobAction:
        return await self.act(job, "cancel", grace=grace)

    async def suspend(self, job: str) -> JobAction:
        return await self.act(job, "suspend")

    async def resume(self, job: str) -> JobAction:
        return await self.act(job, "resume")

    async def retry(self, job: str) -> JobAction:
        return await self.act(job, "retry")

    async def act(self, job: str, action: Action, *, grace: str | None = None) -> JobAction:
        return await self._run(self._verbs.act(job, action, grace))

    async def bulk(
        self, action: Action, wanted: JobFilter, *, dry_run: bool = False, grace: str | None = None
    ) -> BulkAnswer:
        return await self._run(self._verbs.bulk(action, wanted, dry_run, grace))

    async def change(self, job: str, *, priority: int | None = None, priority_class: str | None = None) -> JobView:
        return await self._run(self._verbs.change(job, priority, priority_class))

    async def bulk_change(
        self,
        wanted: JobFilter,
        *,
        priority: int | None = None,
        priority_class: str | None = None,
        dry_run: bool = False,
    ) -> BulkAnswer:
        return await self._run(self._verbs.bulk_change(wanted, priority, priority_class, dry_run))

    # Tenants, clusters and keys

    async def queues(self, *, usage: bool = False) -> list[QueueView]:
        return await self._run(self._verbs.queues(usage))

    async def usage(
        self, begin: datetime, end: datetime, *, per: Per = "all", by: Sequence[str] = (), queue: str | None = None
    ) -> UsageAnswer:
        return await self._run(self._verbs.usage(begin, end, per, by, queue))

    def workload(self, begin: datetime, end: datetime) -> AsyncGenerator[Workload, None]:
        return self._iterate(self._verbs.workload(begin, end))

    async def preview_bursts(self, policies: Sequence[BurstPolicySpec] = ()) -> Previews:
        return await self._run(self._verbs.preview_bursts(policies))

    async def clusters(self) -> list[ClusterView]:
        return await self._run(self._verbs.clusters())

    async def objects(self, kind: Kind) -> list[dict[str, Any]]:
        return await self._run(self._verbs.objects(kind))

    async def get_object(self, kind: Kind, name: str) -> dict[str, Any]:
        return await self._run(self._verbs.get_object(kind, name))

    async def put(self, kind: Kind, name: str, body: Mapping[str, Any]) -> dict[str, Any]:
        return await self._run(self._verbs.put(kind, name, body))

    async def delete(self, kind: Kind, name: str) -> None:
        await self._run(self._verbs.delete(kind, name))

    async def cordon(self, cluster: str, *, on: bool = True) -> None:
        await self._run(self._verbs.cordon(cluster, on))

    async def cluster(self, cluster: str) -> ClusterView:
        return await self._run(self._verbs.cluster(cluster))

    async def join_cluster(self, spec: JoinSpec) -> AgentKey:
        return await self._run(self._verbs.join_cluster(spec))

    async def rotate_cluster_key(self, cluster: str, *, revoke_old: bool = False) -> AgentKey:
        return await self._run(self._verbs.rotate_cluster_key(cluster, revoke_old))

    async def drain(self, cluster: str, *, let_finish: bool = False) -> DrainAnswer:
        return await self._run(self._verbs.drain(cluster, let_finish))

    def watch_drain(self, cluster: str, timeout: float | None = None) -> AsyncGenerator[ClusterView, None]:
        return self._iterate(self._verbs.watch_drain(cluster, timeout))

    async def quarantined_runs(self, cluster: str) -> list[QuarantinedRun]:
        """Runs that a cluster's agent holds and that the store has forgotten since it was restored from a backup."""
        return await self._run(self._verbs.quarantined_runs(cluster))

    async def stop_quarantined(self, cluster: str, runs: Sequence[str] = ()) -> list[str]:
        """Have these quarantined runs stopped, or all of them; which are. Raises ProblemError NOT_FOUND."""
        return await self._run(self._verbs.stop_quarantined(cluster, runs))

    async def declare_lost(self, cluster: str, *, force: bool = False, orphans: bool = False) -> LostRuns:
        return await self._run(self._verbs.declare_lost(cluster, force, orphans))

    async def remove_cluster(self, cluster: str, *, force: bool = False) -> None:
        await self._run(self._verbs.remove_cluster(cluster, force))

    # Simulations

    async def simulate(self, spec: SimulationSpec) -> SimulationView:
        return await self._run(self._verbs.simulate(spec))

    def simulations(self, page_size: int = PAGE) -> AsyncGenerator[SimulationView, None]:
        return self._iterate(self._verbs.simulations(page_size))

    async def simulation(self, simulation: int) -> SimulationView:
        return await self._run(self._verbs.simulation(simulation))

    def watch_simulation(self, simulation: int, timeout: float | None = None) -> AsyncGenerator[SimulationView, None]:
        return self._iterate(self._verbs.watch_simulation(simulation, timeout))

    async def simulation_report(self, simulation: int) -> str:
        return await self._run(self._verbs.simulation_report(simulation))

    async def cancel_simulation(self, simulation: int) -> SimulationView:
        return await self._run(self._verbs.cancel_simulation(simulation))

    async def remove_simulation(self, simulation: int) -> None:
        await self._run(self._verbs.remove_simulation(simulation))

    # Keys

    async def keys(self) -> list[KeyView]:
        return await self._run(self._verbs.keys())

    async def make_key(self, spec: KeySpec) -> NewKey:
        return await self._run(self._verbs.make_key(spec))

    async def revoke_key(self, key_id: int) -> None:
        await self._run(self._verbs.revoke_key(key_id))

    # Audit

    def audit(
        self,
        *,
        target: str | None = None,
        actor: str | None = None,
        action: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        page_size: int = PAGE,
    ) -> AsyncGenerator[AuditEntry, None]:
        return self._iterate(self._verbs.audit(target, actor, action, since, until, page_size))

    # Webhooks

    async def webhook_secrets(self, queue: str) -> WebhookSecrets:
        return await self._run(self._verbs.webhook_secrets(queue))

    async def rotate_webhook_secret(self, queue: str, *, overlap: str = "1d") -> WebhookSecrets:
        return await self._run(self._verbs.rotate_webhook_secret(queue, overlap))

    def dead_letters(self, page_size: int = PAGE) -> AsyncGenerator[DeadLetter, None]:
        return self._iterate(self._verbs.dead_letters(page_size))

    async def retry_dead_letter(self, letter: int) -> DeadLetter:
        return await self._run(self._verbs.retry_dead_letter(letter))

    async def drop_dead_letter(self, letter: int) -> None:
        await self._run(self._verbs.drop_dead_letter(letter))
