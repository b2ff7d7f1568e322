"""The client on an event loop. Written by scripts/async-client from http.py; changes made here are lost."""

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
from trainmaster.client.steps import CallTerms
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
    """Calls of the API. All raise ProblemError, UnreachableError when the dispatcher stays away, ClosedError after ``aclose``.

    Without ``url`` and ``key``: those of TRAINMASTER_URL and TRAINMASTER_API_KEY, else of the configuration file; raises
    ConfigurationError. ``timeout``: seconds for one answer. ``on_retry`` is told of each failure that is tried again, and after
    how many seconds.

    For one event loop. Leave an ``async for`` over ``watch`` or ``logs`` early within ``contextlib.aclosing``, so that its
    connection is closed at once.
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
        self._verbs = Verbs(CallTerms(retries, timeout, on_retry, clock))
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
        """Submit one specification or many, all or nothing; their ids in the order given.

        Two calls with the same ``idempotency_key`` make the jobs once, within seven days and with the same specifications.
        """
        return await self._run(self._verbs.submit(specs, idempotency_key))

    async def submit_parameters(
        self, spec: Spec, parameters: Sequence[Parameters], *, idempotency_key: str | None = None
    ) -> list[str]:
        """Submit one job for each set of parameters, all or nothing; their ids in that order.

        ``${name}`` in the commands, arguments and environment values of ``spec`` is replaced by the set's value.
        """
        return await self._run(self._verbs.submit_parameters(spec, parameters, idempotency_key))

    async def dry_run(self, specs: Spec | Sequence[Spec]) -> list[TriedJob]:
        """What would become of up to 100 jobs if they were submitted now; raises as ``submit`` does, and stores nothing."""
        return await self._run(self._verbs.dry_run(specs))

    def pages(self, wanted: JobFilter = ALL, page_size: int = PAGE) -> AsyncGenerator[JobPage, None]:
        """Jobs that match, newest first, a page at a time."""
        return self._iterate(self._verbs.pages(wanted, page_size))

    def jobs(self, wanted: JobFilter = ALL, page_size: int = PAGE) -> AsyncGenerator[JobView, None]:
        """Jobs that match, newest first; pages are fetched as they are needed."""
        return self._iterate(self._verbs.jobs(wanted, page_size))

    async def job(self, job: str) -> JobView:
        """A job with its specification and runs."""
        return await self._run(self._verbs.job(job))

    async def why(self, job: str) -> JobReason:
        """Why a job is where it is, and what each cluster lacked."""
        return await self._run(self._verbs.why(job))

    async def events(self, job: str, after: int = 0, limit: int = 1000) -> list[EventView]:
        """Transitions of a job after one of them, oldest first."""
        return await self._run(self._verbs.events(job, after, limit))

    def watch(
        self, job: str, after: int = 0, *, timeout: float | None = None
    ) -> AsyncGenerator[EventView | Notice | Ended, None]:
        """Transitions of a job as they happen, over lost connections; ends after Ended, or when the time is up."""
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
        """Output of a job's members; with ``follow`` as it comes, over lost connections and later runs."""
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
        """The job, or jobs, when all have ended, or as they are when the time is up.

        With ``check``, raises JobFailedError unless all succeeded, and WaitTimeoutError when some have not ended.
        """
        return await self._run(self._verbs.wait(job, timeout, check))

    async def cancel(self, job: str, *, grace: str | None = None) -> JobAction:
        """End a job for good; it shows ``cancelling`` until its members are gone.

        ``grace``: the most that members may take, such as ``5s``; shortens a stop that is under way, too.
        """
        return await self.act(job, "cancel", grace=grace)

    async def suspend(self, job: str) -> JobAction:
        """Stop a job and hold it until ``resume``."""
        return await self.act(job, "suspend")

    async def resume(self, job: str) -> JobAction:
        """Let a held job go on."""
        return await self.act(job, "resume")

    async def retry(self, job: str) -> JobAction:
        """Try a failed or cancelled job once more."""
        return await self.act(job, "retry")

    async def act(self, job: str, action: Action, *, grace: str | None = None) -> JobAction:
        """Any of these four."""
        return await self._run(self._verbs.act(job, action, grace))

    async def bulk(
        self, action: Action, wanted: JobFilter, *, dry_run: bool = False, grace: str | None = None
    ) -> BulkAnswer:
        """Do it to every job that matches; a dry run only counts them."""
        return await self._run(self._verbs.bulk(action, wanted, dry_run, grace))

    async def change(self, job: str, *, priority: int | None = None, priority_class: str | None = None) -> JobView:
        """Change a job that waits."""
        return await self._run(self._verbs.change(job, priority, priority_class))

    async def bulk_change(
        self,
        wanted: JobFilter,
        *,
        priority: int | None = None,
        priority_class: str | None = None,
        dry_run: bool = False,
    ) -> BulkAnswer:
        """Change every waiting job that matches."""
        return await self._run(self._verbs.bulk_change(wanted, priority, priority_class, dry_run))

    # Tenants, clusters and keys

    async def queues(self, *, usage: bool = False) -> list[QueueView]:
        """The queues that the key may see, with their jobs by state; with ``usage``, what each uses now, where a leader answers."""
        return await self._run(self._verbs.queues(usage))

    async def usage(
        self, begin: datetime, end: datetime, *, per: Per = "all", by: Sequence[str] = (), queue: str | None = None
    ) -> UsageAnswer:
        """What the key's queues have used and what it cost, in whole hours of UTC.

        ``by``: of ``queue``, ``user``, ``cluster``, ``kind`` and ``label:KEY``. Runs at work count until now.
        """
        return await self._run(self._verbs.usage(begin, end, per, by, queue))

    def workload(self, begin: datetime, end: datetime) -> AsyncGenerator[Workload, None]:
        """What was submitted in this time and has run, the latest first, a page at a time: for simulations."""
        return self._iterate(self._verbs.workload(begin, end))

    async def preview_bursts(self, policies: Sequence[BurstPolicySpec] = ()) -> Previews:
        """What would go to public clusters now by burst policies, with these in place of those of their names. Changes nothing."""
        return await self._run(self._verbs.preview_bursts(policies))

    async def clusters(self) -> list[ClusterView]:
        """The clusters with their contact and capacity."""
        return await self._run(self._verbs.clusters())

    async def objects(self, kind: Kind) -> list[dict[str, Any]]:
        """All queues, priority classes or clusters, as the API shows them."""
        return await self._run(self._verbs.objects(kind))

    async def get_object(self, kind: Kind, name: str) -> dict[str, Any]:
        """One of them, by its path or name. Raises ProblemError NOT_FOUND."""
        return await self._run(self._verbs.get_object(kind, name))

    async def put(self, kind: Kind, name: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Make or change one of them; what ``body`` leaves out gets its default."""
        return await self._run(self._verbs.put(kind, name, body))

    async def delete(self, kind: Kind, name: str) -> None:
        """Remove one of them. Raises ProblemError IN_USE."""
        await self._run(self._verbs.delete(kind, name))

    async def cordon(self, cluster: str, *, on: bool = True) -> None:
        """Let nothing new start on a cluster, or, with ``on`` false, let it again."""
        await self._run(self._verbs.cordon(cluster, on))

    async def cluster(self, cluster: str) -> ClusterView:
        """One cluster with its state and what it has."""
        return await self._run(self._verbs.cluster(cluster))

    async def join_cluster(self, spec: JoinSpec) -> AgentKey:
        """Make a key for a cluster's agent, and the cluster if it is not there. Sent once only, as ``make_key`` is."""
        return await self._run(self._verbs.join_cluster(spec))

    async def rotate_cluster_key(self, cluster: str, *, revoke_old: bool = False) -> AgentKey:
        """Make another key for a cluster's agent; with ``revoke_old`` the old ones are dead at once. Sent once only."""
        return await self._run(self._verbs.rotate_cluster_key(cluster, revoke_old))

    async def drain(self, cluster: str, *, let_finish: bool = False) -> DrainAnswer:
        """Close a cluster to new runs and stop those that are there, or let them finish."""
        return await self._run(self._verbs.drain(cluster, let_finish))

    def watch_drain(self, cluster: str, timeout: float | None = None) -> AsyncGenerator[ClusterView, None]:
        """The cluster each time that its number of runs has changed, until there are none or ``timeout`` seconds have passed."""
        return self._iterate(self._verbs.watch_drain(cluster, timeout))

    async def quarantined_runs(self, cluster: str) -> list[QuarantinedRun]:
        """Runs that a cluster's agent holds and that the store has forgotten since it was restored from a backup."""
        return await self._run(self._verbs.quarantined_runs(cluster))

    async def stop_quarantined(self, cluster: str, runs: Sequence[str] = ()) -> list[str]:
        """Have these quarantined runs stopped, or all of them; which are. Raises ProblemError NOT_FOUND."""
        return await self._run(self._verbs.stop_quarantined(cluster, runs))

    async def declare_lost(self, cluster: str, *, force: bool = False, orphans: bool = False) -> LostRuns:
        """Say that nothing of a cluster runs any more. Raises ProblemError CLUSTER_IN_CONTACT."""
        return await self._run(self._verbs.declare_lost(cluster, force, orphans))

    async def remove_cluster(self, cluster: str, *, force: bool = False) -> None:
        """Remove a cluster with its keys; with ``force`` its runs are declared lost first. Raises ProblemError IN_USE."""
        await self._run(self._verbs.remove_cluster(cluster, force))

    # Simulations

    async def simulate(self, spec: SimulationSpec) -> SimulationView:
        """Ask for a simulation in the background; it is only queued when this returns."""
        return await self._run(self._verbs.simulate(spec))

    def simulations(self, page_size: int = PAGE) -> AsyncGenerator[SimulationView, None]:
        """Simulations, the latest first, without their results; pages are fetched as they are needed."""
        return self._iterate(self._verbs.simulations(page_size))

    async def simulation(self, simulation: int) -> SimulationView:
        """One simulation, with its result once it has one."""
        return await self._run(self._verbs.simulation(simulation))

    def watch_simulation(self, simulation: int, timeout: float | None = None) -> AsyncGenerator[SimulationView, None]:
        """The simulation each time that it has changed, until it has ended or ``timeout`` seconds have passed."""
        return self._iterate(self._verbs.watch_simulation(simulation, timeout))

    async def simulation_report(self, simulation: int) -> str:
        """The report of one that has succeeded, as a page. Raises ProblemError WRONG_STATE."""
        return await self._run(self._verbs.simulation_report(simulation))

    async def cancel_simulation(self, simulation: int) -> SimulationView:
        """End one that is queued or running. Raises ProblemError WRONG_STATE."""
        return await self._run(self._verbs.cancel_simulation(simulation))

    async def remove_simulation(self, simulation: int) -> None:
        """Forget one that has ended. Raises ProblemError WRONG_STATE."""
        await self._run(self._verbs.remove_simulation(simulation))

    # Keys

    async def keys(self) -> list[KeyView]:
        """All API keys, without their secrets."""
        return await self._run(self._verbs.keys())

    async def make_key(self, spec: KeySpec) -> NewKey:
        """Make an API key. Sent once only: when the answer is lost, look at ``keys`` and revoke what was made."""
        return await self._run(self._verbs.make_key(spec))

    async def revoke_key(self, key_id: int) -> None:
        """Make an API key useless, within two seconds."""
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
        """Who changed what and what was refused, newest first; for admins. Pages are fetched as they are needed."""
        return self._iterate(self._verbs.audit(target, actor, action, since, until, page_size))

    # Webhooks

    async def webhook_secrets(self, queue: str) -> WebhookSecrets:
        """What signs webhook messages of a queue's jobs."""
        return await self._run(self._verbs.webhook_secrets(queue))

    async def rotate_webhook_secret(self, queue: str, *, overlap: str = "1d") -> WebhookSecrets:
        """Give a queue another secret; the one before signs for ``overlap`` as well. Sent once only."""
        return await self._run(self._verbs.rotate_webhook_secret(queue, overlap))

    def dead_letters(self, page_size: int = PAGE) -> AsyncGenerator[DeadLetter, None]:
        """Webhook messages that were given up, newest first; pages are fetched as they are needed."""
        return self._iterate(self._verbs.dead_letters(page_size))

    async def retry_dead_letter(self, letter: int) -> DeadLetter:
        """Let one of them be tried again, as often as a new message; the letter as it was."""
        return await self._run(self._verbs.retry_dead_letter(letter))

    async def drop_dead_letter(self, letter: int) -> None:
        """Forget one of them."""
        await self._run(self._verbs.drop_dead_letter(letter))
