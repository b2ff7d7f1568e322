"""Calls of the API on an event loop. Written by scripts/clients from verbs.py; changes made here are lost."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, overload

from trainmaster.client.async_transport import AsyncTransport
from trainmaster.client.calls import Action, Parameters, ScheduleDocument, Spec, WorkflowDocument
from trainmaster.client.streams import Ended, LogPiece, Notice
from trainmaster.client.values import JobFilter, Moment, Span, WithWarnings
from trainmaster.client.verbs import ALL, PAGE, Verbs
from trainmaster.protocol.access import Directory, PermissionAnswer, WhoCan
from trainmaster.protocol.answers import (
    AgentKey,
    AuditEntry,
    BulkAnswer,
    ClusterView,
    DeadLetter,
    DrainAnswer,
    Identity,
    JobAction,
    JobDependencies,
    JobEventPage,
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
from trainmaster.protocol.arrays import CancelledElements, ElementsOfJob, JobOfElement, ResultOfElement
from trainmaster.protocol.attainment import AttainmentAnswer
from trainmaster.protocol.bursting import BurstPolicySpec, Previews
from trainmaster.protocol.declarations import ApplyAnswer, RevisionView, RollbackAnswer
from trainmaster.protocol.efficiency import EfficiencyAnswer, EfficiencyGroup
from trainmaster.protocol.files import (
    PART_BYTES,
    ArtifactAnswer,
    ArtifactsOfJob,
    UploadAnswer,
    UploadedPart,
)
from trainmaster.protocol.groups import CancelledGroup, GroupView
from trainmaster.protocol.health import HealthReport
from trainmaster.protocol.member_use import TopAnswer, TopGroup, TopSort, UseOfJob
from trainmaster.protocol.notices import Notices, NoticesSpec
from trainmaster.protocol.permissions import Permission
from trainmaster.protocol.resource_kinds import Kind
from trainmaster.protocol.schedules import ScheduleView
from trainmaster.protocol.series import SeriesAnswer, SeriesBy, SeriesMetricInfo
from trainmaster.protocol.sessions import SessionLinkView, SessionView
from trainmaster.protocol.simulations import QuotaWhatIfSpec, SimulationSpec, SimulationView
from trainmaster.protocol.tenants import EventView, JobEventView, JobView, JoinSpec, KeySpec
from trainmaster.protocol.usage import Per, UsageAnswer
from trainmaster.protocol.workflows import SubmittedWorkflow, WorkflowView
from trainmaster.protocol.workload import Workload


class AwaitedCalls:
    """Runs the steps of each call over a transport."""

    def __init__(self, transport: AsyncTransport, verbs: Verbs) -> None:
        self._transport = transport
        self._verbs = verbs

    # Jobs

    async def submit(
        self,
        specs: Spec | Sequence[Spec],
        *,
        idempotency_key: str | None = None,
        on_behalf_of: str | None = None,
        close_group: bool = False,
    ) -> WithWarnings[str]:
        """Submit one specification or many, all or nothing; return their ids in the given order, and ``warnings``.

        ``on_behalf_of``: the user whose jobs these are, for a key that may submit for that user. ``close_group``: these are the last
        jobs of their groups.

        Repeating a call with the same ``idempotency_key`` and specifications within seven days makes the jobs only once.
        """
        return await self._transport.run(
            self._verbs.submit(
                specs, idempotency_key=idempotency_key, on_behalf_of=on_behalf_of, close_group=close_group
            )
        )

    async def submit_parameters(
        self,
        spec: Spec,
        parameters: Sequence[Parameters],
        *,
        idempotency_key: str | None = None,
        on_behalf_of: str | None = None,
        close_group: bool = False,
    ) -> WithWarnings[str]:
        """Submit one job for each set of parameters, all or nothing; return their ids in that order, and ``warnings``.

        ``${name}`` in the commands, arguments and environment values of ``spec`` is replaced by the set's value. ``close_group``:
        these are the last jobs of their group.
        """
        return await self._transport.run(
            self._verbs.submit_parameters(
                spec, parameters, idempotency_key=idempotency_key, on_behalf_of=on_behalf_of, close_group=close_group
            )
        )

    async def dry_run(self, specs: Spec | Sequence[Spec], *, on_behalf_of: str | None = None) -> WithWarnings[TriedJob]:
        """Return what would happen to up to 100 jobs if they were submitted now; raises as ``submit`` does, and stores nothing."""
        return await self._transport.run(self._verbs.dry_run(specs, on_behalf_of=on_behalf_of))

    async def dry_run_parameters(
        self, spec: Spec, parameters: Sequence[Parameters], *, on_behalf_of: str | None = None
    ) -> WithWarnings[TriedJob]:
        """Return what would happen to the jobs of ``submit_parameters``, all of them as one; raises as it does, and stores nothing."""
        return await self._transport.run(self._verbs.dry_run_parameters(spec, parameters, on_behalf_of=on_behalf_of))

    def pages(self, wanted: JobFilter = ALL, page_size: int = PAGE) -> AsyncGenerator[JobPage, None]:
        """Yield pages of the jobs that match, newest first."""
        return self._transport.iterate(self._verbs.pages(wanted, page_size))

    def jobs(self, wanted: JobFilter = ALL, page_size: int = PAGE) -> AsyncGenerator[JobView, None]:
        """Yield jobs that match, newest first; pages are fetched as needed."""
        return self._transport.iterate(self._verbs.jobs(wanted, page_size))

    async def job(self, job: str) -> JobView:
        """Return a job with its specification and runs."""
        return await self._transport.run(self._verbs.job(job))

    async def why(self, job: str) -> JobReason:
        """Return why a job is in its state, and what each cluster lacked."""
        return await self._transport.run(self._verbs.why(job))

    async def dependencies(self, job: str) -> JobDependencies:
        """Return the jobs after which a job starts, and those that start after it."""
        return await self._transport.run(self._verbs.dependencies(job))

    async def elements(self, job: str) -> ElementsOfJob:
        """Return the elements of an array by state."""
        return await self._transport.run(self._verbs.elements(job))

    def jobs_of_elements(self, job: str, elements: str | None = None) -> AsyncGenerator[JobOfElement, None]:
        """Yield the jobs of an array's elements, by element; ``elements``: only of these, such as ``0-99,105``."""
        return self._transport.iterate(self._verbs.jobs_of_elements(job, elements))

    def results_of_elements(self, job: str) -> AsyncGenerator[ResultOfElement, None]:
        """Yield what elements of an array returned, in the order in which it came; pages are fetched as needed."""
        return self._transport.iterate(self._verbs.results_of_elements(job))

    async def cancel_elements(self, job: str, elements: str) -> CancelledElements:
        """Cancel elements of an array that have not ended; ``elements``: ranges of them, such as ``0-99,105``."""
        return await self._transport.run(self._verbs.cancel_elements(job, elements))

    async def begin_upload(self, queue: str, sha256: str, size: int) -> UploadAnswer:
        """Begin to upload an archive of this SHA-256 and size for the jobs of a queue; ``upload_files`` does all of it."""
        return await self._transport.run(self._verbs.begin_upload(queue, sha256, size))

    async def write_upload(self, upload: str, offset: int, data: bytes) -> UploadedPart:
        """Write a part of an upload that has no address of its own."""
        return await self._transport.run(self._verbs.write_upload(upload, offset, data))

    async def finish_upload(self, upload: str) -> UploadAnswer:
        """Let the dispatcher verify an upload; from then on jobs of its queue may name the files."""
        return await self._transport.run(self._verbs.finish_upload(upload))

    async def artifacts(self, job: str, *, attempt: int | None = None) -> ArtifactsOfJob:
        """Return the artifacts of a job's last run, or of the run of ``attempt``: the outputs that it has left."""
        return await self._transport.run(self._verbs.artifacts(job, attempt=attempt))

    async def artifact(self, job: str, name: str, *, attempt: int | None = None) -> ArtifactAnswer:
        """Return an artifact and where its archive is; ``download_artifact`` fetches it."""
        return await self._transport.run(self._verbs.artifact(job, name, attempt=attempt))

    async def read_artifact(
        self, job: str, name: str, *, offset: int = 0, limit: int = PART_BYTES, attempt: int | None = None
    ) -> bytes:
        """Return a part of an artifact's archive, a gzipped tar file; nothing behind its end."""
        return await self._transport.run(
            self._verbs.read_artifact(job, name, offset=offset, limit=limit, attempt=attempt)
        )

    async def events(self, job: str, after: int = 0, limit: int = 1000) -> list[EventView]:
        """Return a job's transitions after number ``after``, oldest first."""
        return await self._transport.run(self._verbs.events(job, after, limit))

    def watch(
        self, job: str, after: int = 0, *, timeout: Span | None = None
    ) -> AsyncGenerator[EventView | Notice | Ended, None]:
        """Yield a job's transitions as they happen, reconnecting when needed; ends after Ended, or at the time-out."""
        return self._transport.iterate(self._verbs.watch(job, after, timeout=timeout))

    def watch_jobs(
        self,
        wanted: JobFilter = ALL,
        *,
        kinds: Sequence[str] = (),
        after: str | None = None,
        timeout: Span | None = None,
    ) -> AsyncGenerator[JobEventView | Notice, None]:
        """Yield transitions of all jobs that match, reconnecting when needed, until the time-out: from a position on, or from now on.

        ``states`` of ``wanted`` are those that a job enters, its ``cluster`` that of the run; it has no ``since`` and ``until``. The
        transitions of each job are in their order.
        """
        return self._transport.iterate(self._verbs.watch_jobs(wanted, kinds=kinds, after=after, timeout=timeout))

    async def events_of_jobs(
        self, wanted: JobFilter = ALL, *, kinds: Sequence[str] = (), after: str | None = None, limit: int = 1000
    ) -> JobEventPage:
        """Return a page of transitions of all jobs that match ``wanted``, as for ``watch_jobs``, and the position of the next page.

        ``after``: ``next`` of another page, or ``"0"`` for all that is stored; without it, the page is empty and has the position of
        now.
        """
        return await self._transport.run(self._verbs.events_of_jobs(wanted, kinds=kinds, after=after, limit=limit))

    def logs(
        self,
        job: str,
        *,
        follow: bool = False,
        role: str | None = None,
        index: int | None = None,
        attempt: int | None = None,
        tail_bytes: int = 65536,
        tail_lines: int | None = None,
        since: Moment | None = None,
        previous: bool = False,
        timestamps: bool = False,
    ) -> AsyncGenerator[LogPiece | Notice | Ended, None]:
        """Yield output of a job's members; with ``follow`` as it comes, reconnecting when needed and over later runs.

        It begins ``tail_bytes`` before the end of each member's output (1073741824: with its first byte), or ``tail_lines``, or with
        what was first seen at ``since``. ``previous``: only what members printed before their last restart.
        """
        return self._transport.iterate(
            self._verbs.logs(
                job,
                follow=follow,
                role=role,
                index=index,
                attempt=attempt,
                tail_bytes=tail_bytes,
                tail_lines=tail_lines,
                since=since,
                previous=previous,
                timestamps=timestamps,
            )
        )

    @overload
    async def wait(self, job: str, timeout: Span | None = None, *, check: bool = False) -> JobView: ...

    @overload
    async def wait(
        self, job: list[str] | tuple[str, ...], timeout: Span | None = None, *, check: bool = False
    ) -> list[JobView]: ...

    @overload
    async def wait(
        self, job: str | list[str] | tuple[str, ...], timeout: Span | None = None, *, check: bool = False
    ) -> JobView | list[JobView]: ...

    async def wait(
        self, job: str | list[str] | tuple[str, ...], timeout: Span | None = None, *, check: bool = False
    ) -> JobView | list[JobView]:
        """Return the job, or jobs, when all have ended, or as last seen at the time-out.

        ``timeout`` may be a text such as ``10m``. With ``check``, raises JobFailedError unless all succeeded, and
        WaitTimeoutError when some have not ended.
        """
        return await self._transport.run(self._verbs.wait(job, timeout, check=check))

    async def cancel(self, job: str, *, grace: str | None = None) -> JobAction:
        """End a job for good; it shows ``cancelling`` until its members are gone.

        ``grace``: the most time that members get, such as ``5s``; also shortens a stop in progress.
        """
        return await self._transport.run(self._verbs.cancel(job, grace=grace))

    async def suspend(self, job: str) -> JobAction:
        """Stop a job and hold it until ``resume``."""
        return await self._transport.run(self._verbs.suspend(job))

    async def resume(self, job: str) -> JobAction:
        """Release a held job."""
        return await self._transport.run(self._verbs.resume(job))

    async def retry(self, job: str) -> JobAction:
        """Run a failed or cancelled job once more."""
        return await self._transport.run(self._verbs.retry(job))

    async def act(self, job: str, action: Action, *, grace: str | None = None) -> JobAction:
        """Apply one of these four actions."""
        return await self._transport.run(self._verbs.act(job, action, grace=grace))

    async def bulk(
        self, action: Action, wanted: JobFilter, *, dry_run: bool = False, grace: str | None = None
    ) -> BulkAnswer:
        """Apply an action to every job that matches; a dry run only counts them."""
        return await self._transport.run(self._verbs.bulk(action, wanted, dry_run=dry_run, grace=grace))

    async def change(self, job: str, *, priority: int | None = None, priority_class: str | None = None) -> JobView:
        """Change the priority or the class of a waiting job."""
        return await self._transport.run(self._verbs.change(job, priority=priority, priority_class=priority_class))

    async def bulk_change(
        self,
        wanted: JobFilter,
        *,
        priority: int | None = None,
        priority_class: str | None = None,
        dry_run: bool = False,
    ) -> BulkAnswer:
        """Change every waiting job that matches."""
        return await self._transport.run(
            self._verbs.bulk_change(wanted, priority=priority, priority_class=priority_class, dry_run=dry_run)
        )

    # Tenants

    async def queues(self, *, usage: bool = False, ended: bool = False) -> list[QueueView]:
        """Return the queues that the key may see, with unfinished jobs by state; with ``ended``, all jobs that are stored.

        With ``usage``, also current usage if a leader answers.
        """
        return await self._transport.run(self._verbs.queues(usage=usage, ended=ended))

    async def use_of(self, job: str, *, since: Moment | None = None, step: int | None = None) -> UseOfJob:
        """Return what the members of a job's latest run use, beside what was requested for them.

        With ``since`` or ``step``, in seconds, also the history of it, as ``series``.
        """
        return await self._transport.run(self._verbs.use_of(job, since=since, step=step))

    async def top(
        self,
        *,
        queue: str | None = None,
        cluster: str | None = None,
        user: str | None = None,
        gpus_idle: bool = False,
        sort: TopSort = "cpu",
        by: TopGroup | None = None,
        limit: int = 100,
    ) -> TopAnswer:
        """Return running jobs with what they use, at most ``limit``, or with ``by`` the sums of those of each queue, cluster or user.

        ``gpus_idle``: only those whose GPUs do nothing, by the policy of their queue. ``sort``: the most cores, memory or GPUs first,
        or with ``idle`` the smallest part of what was requested.
        """
        return await self._transport.run(
            self._verbs.top(queue=queue, cluster=cluster, user=user, gpus_idle=gpus_idle, sort=sort, by=by, limit=limit)
        )

    async def series(
        self,
        metric: str,
        *,
        by: Sequence[SeriesBy] = (),
        cluster: str | None = None,
        queue: str | None = None,
        depth: int | None = None,
        product: str | None = None,
        policy: str | None = None,
        since: Moment | None = None,
        until: Moment | None = None,
        step: int | None = None,
    ) -> SeriesAnswer:
        """Return how a metric of clusters, queues or burst policies went over time, by default in the last six hours.

        ``by``: labels to keep, where others are added up. ``depth``: the most levels below ``queue``. ``step``: seconds.
        """
        return await self._transport.run(
            self._verbs.series(
                metric,
                by=by,
                cluster=cluster,
                queue=queue,
                depth=depth,
                product=product,
                policy=policy,
                since=since,
                until=until,
                step=step,
            )
        )

    async def series_metrics(self) -> list[SeriesMetricInfo]:
        """Return the metrics of which there are series."""
        return await self._transport.run(self._verbs.series_metrics())

    async def sessions(
        self, *, queue: str | None = None, user: str | None = None, limit: int = 100
    ) -> list[SessionView]:
        """Return interactive sessions that have not ended, at most ``limit``, newest first: those of a queue, or of a user."""
        return await self._transport.run(self._verbs.sessions(queue=queue, user=user, limit=limit))

    async def session_link(self, job: str, port: int | str) -> SessionLinkView:
        """Return the address at which a browser opens a port of a job's first member, by its number or name. It counts once, and for
        a minute.
        """
        return await self._transport.run(self._verbs.session_link(job, port))

    async def usage(
        self, begin: Moment, end: Moment, *, per: Per = "all", by: Sequence[str] = (), queue: str | None = None
    ) -> UsageAnswer:
        """Return the usage of the key's queues and its cost, in whole hours of UTC.

        ``by``: any of ``queue``, ``user``, ``cluster``, ``kind``, ``class`` and ``label:KEY``. Running jobs count until now. ``begin``
        and ``end`` may be texts such as ``2026-11-01``.
        """
        return await self._transport.run(self._verbs.usage(begin, end, per=per, by=by, queue=queue))

    async def efficiency(
        self, begin: Moment, end: Moment, *, by: EfficiencyGroup = "queue", queue: str | None = None, limit: int = 100
    ) -> EfficiencyAnswer:
        """Return what runs used beside what they requested, by queue, user, cluster or job, and requests that would suit recurring
        jobs.
        """
        return await self._transport.run(self._verbs.efficiency(begin, end, by=by, queue=queue, limit=limit))

    async def attainment(
        self, begin: Moment | None = None, end: Moment | None = None, *, queue: str | None = None
    ) -> AttainmentAnswer:
        """Return by month, queue and class how many jobs started within the wait that their class promises.

        From the month of ``begin``, by default the one of ``end``, to that of ``end``, by default now.
        """
        return await self._transport.run(self._verbs.attainment(begin, end, queue=queue))

    async def clusters(self) -> list[ClusterView]:
        """Return the clusters with their contact and capacity."""
        return await self._transport.run(self._verbs.clusters())

    async def objects(self, kind: Kind) -> list[dict[str, Any]]:
        """Return all objects of a kind, such as ``"PriceBook"``, as the API shows them."""
        return await self._transport.run(self._verbs.objects(kind))

    async def get_object(self, kind: Kind, name: str) -> dict[str, Any]:
        """Return one object, by its path or name. Raises ProblemError NOT_FOUND."""
        return await self._transport.run(self._verbs.get_object(kind, name))

    async def put(self, kind: Kind, name: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Create or change an object; a field missing in ``body`` gets its default."""
        return await self._transport.run(self._verbs.put(kind, name, body))

    async def delete(self, kind: Kind, name: str) -> None:
        """Remove an object. Raises ProblemError IN_USE."""
        return await self._transport.run(self._verbs.delete(kind, name))

    async def patch(
        self, kind: Kind, name: str, patch: Mapping[str, Any], *, if_match: str | None = None
    ) -> dict[str, Any]:
        """Change some fields of an object by a JSON merge patch (RFC 7396), in which None sets a field back to its default.

        With ``if_match``, an ETag, only if nobody has changed the object since.
        """
        return await self._transport.run(self._verbs.patch(kind, name, patch, if_match=if_match))

    # Declared state

    async def apply(
        self,
        documents: Sequence[Mapping[str, Any]],
        *,
        applier: str | None = None,
        dry_run: bool = False,
        replace: bool = False,
        force: bool = False,
        prune: str | None = None,
        idempotency_key: str | None = None,
    ) -> ApplyAnswer:
        """Apply up to 1,000 documents in one transaction, each with its ``kind`` and only the fields that it is to set.

        ``applier`` owns these fields then. ``replace`` resets fields that a document leaves out, ``force`` takes over fields of other
        appliers, ``prune`` removes the objects of this applier that no document names. A dry run answers the same and changes nothing.
        """
        return await self._transport.run(
            self._verbs.apply(
                documents,
                applier=applier,
                dry_run=dry_run,
                replace=replace,
                force=force,
                prune=prune,
                idempotency_key=idempotency_key,
            )
        )

    async def export(self, kinds: Sequence[Kind] = ()) -> list[dict[str, Any]]:
        """Return the documents of all objects of these kinds, by default of all kinds, in an order in which they can be applied."""
        return await self._transport.run(self._verbs.export(kinds))

    def history(self, kind: Kind, name: str, page_size: int = PAGE) -> AsyncGenerator[RevisionView, None]:
        """Yield the revisions of an object, the latest first, also of a removed one; pages are fetched as needed."""
        return self._transport.iterate(self._verbs.history(kind, name, page_size))

    async def rollback(
        self, kind: Kind, name: str, revision: int | None = None, *, dry_run: bool = False
    ) -> RollbackAnswer:
        """Return an object to a revision, by default to the last one that differs from it; create it again if it was removed."""
        return await self._transport.run(self._verbs.rollback(kind, name, revision, dry_run=dry_run))

    # Clusters

    async def cordon(self, cluster: str, *, on: bool = True) -> None:
        """Close a cluster to new runs, or, with ``on`` false, open it again."""
        return await self._transport.run(self._verbs.cordon(cluster, on=on))

    async def cluster(self, cluster: str) -> ClusterView:
        """Return a cluster with its state and capacity."""
        return await self._transport.run(self._verbs.cluster(cluster))

    async def join_cluster(self, spec: JoinSpec) -> AgentKey:
        """Make a key for a cluster's agent, and the cluster unless it exists. Never retried, as ``make_key``."""
        return await self._transport.run(self._verbs.join_cluster(spec))

    async def rotate_cluster_key(self, cluster: str, *, revoke_old: bool = False) -> AgentKey:
        """Make another key for a cluster's agent; ``revoke_old`` revokes the old ones at once. Never retried."""
        return await self._transport.run(self._verbs.rotate_cluster_key(cluster, revoke_old=revoke_old))

    async def drain(self, cluster: str, *, let_finish: bool = False) -> DrainAnswer:
        """Close a cluster to new runs and stop its runs, or let them finish."""
        return await self._transport.run(self._verbs.drain(cluster, let_finish=let_finish))

    def watch_drain(self, cluster: str, timeout: Span | None = None) -> AsyncGenerator[ClusterView, None]:
        """Yield the cluster each time its number of runs has changed, until none is left or ``timeout`` seconds have passed."""
        return self._transport.iterate(self._verbs.watch_drain(cluster, timeout))

    async def quarantined_runs(self, cluster: str) -> list[QuarantinedRun]:
        """Return runs that a cluster's agent holds and that the store lost when it was restored from a backup."""
        return await self._transport.run(self._verbs.quarantined_runs(cluster))

    async def stop_quarantined(self, cluster: str, runs: Sequence[str] = ()) -> list[str]:
        """Stop these quarantined runs, or all; return their ids. Raises ProblemError NOT_FOUND."""
        return await self._transport.run(self._verbs.stop_quarantined(cluster, runs))

    async def declare_lost(self, cluster: str, *, force: bool = False, orphans: bool = False) -> LostRuns:
        """Declare that nothing runs on a cluster any more. Raises ProblemError CLUSTER_IN_CONTACT."""
        return await self._transport.run(self._verbs.declare_lost(cluster, force=force, orphans=orphans))

    async def remove_cluster(self, cluster: str, *, force: bool = False) -> None:
        """Remove a cluster with its keys; with ``force`` its runs are declared lost first. Raises ProblemError IN_USE."""
        return await self._transport.run(self._verbs.remove_cluster(cluster, force=force))

    def workload(self, begin: Moment, end: Moment) -> AsyncGenerator[Workload, None]:
        """Yield pages of the jobs that were submitted in this time and have run, the latest first: a workload for simulations."""
        return self._transport.iterate(self._verbs.workload(begin, end))

    async def preview_bursts(self, policies: Sequence[BurstPolicySpec] = ()) -> Previews:
        """Return what would go to public clusters now; ``policies`` replace stored ones of the same names. Changes nothing."""
        return await self._transport.run(self._verbs.preview_bursts(policies))

    # Schedules

    async def create_schedule(
        self, spec: ScheduleDocument, *, idempotency_key: str | None = None, on_behalf_of: str | None = None
    ) -> ScheduleView:
        """Create a schedule; return it. ``on_behalf_of``: the user whose jobs it makes, for a key that may submit for that user."""
        return await self._transport.run(
            self._verbs.create_schedule(spec, idempotency_key=idempotency_key, on_behalf_of=on_behalf_of)
        )

    def schedules(self, queue: str | None = None, page_size: int = PAGE) -> AsyncGenerator[ScheduleView, None]:
        """Yield schedules without their specifications, newest first, of a queue and those below it or of all; pages are fetched as
        needed.
        """
        return self._transport.iterate(self._verbs.schedules(queue, page_size))

    async def schedule(self, name: str, queue: str | None = None) -> ScheduleView:
        """Return a schedule; ``queue``: where several queues have one of this name."""
        return await self._transport.run(self._verbs.schedule(name, queue))

    async def replace_schedule(self, name: str, spec: ScheduleDocument, queue: str | None = None) -> ScheduleView:
        """Replace the specification of a schedule; return it."""
        return await self._transport.run(self._verbs.replace_schedule(name, spec, queue))

    async def change_schedule(self, name: str, patch: Mapping[str, Any], queue: str | None = None) -> ScheduleView:
        """Change a schedule by a merge patch of its specification, such as ``{"suspend": True}``; return it."""
        return await self._transport.run(self._verbs.change_schedule(name, patch, queue))

    async def delete_schedule(self, name: str, queue: str | None = None, *, keep_jobs: bool = False) -> None:
        """Delete a schedule, and its jobs unless ``keep_jobs``: those that have not ended are cancelled."""
        return await self._transport.run(self._verbs.delete_schedule(name, queue, keep_jobs=keep_jobs))

    async def run_schedule(self, name: str, queue: str | None = None, *, idempotency_key: str | None = None) -> str:
        """Submit a job of a schedule now, beside its due times; return the job's id."""
        return await self._transport.run(self._verbs.run_schedule(name, queue, idempotency_key=idempotency_key))

    # Workflows

    async def submit_workflow(
        self, spec: WorkflowDocument, *, idempotency_key: str | None = None, on_behalf_of: str | None = None
    ) -> SubmittedWorkflow:
        """Submit a workflow; return its ``id``, and ``warnings``.

        ``on_behalf_of``: the user whose jobs it makes, for a key that may submit for that user.
        """
        return await self._transport.run(
            self._verbs.submit_workflow(spec, idempotency_key=idempotency_key, on_behalf_of=on_behalf_of)
        )

    def workflows(
        self, queue: str | None = None, states: Sequence[str] = (), page_size: int = PAGE
    ) -> AsyncGenerator[WorkflowView, None]:
        """Yield workflows without their specifications, newest first, of a queue and those below it or of all, in some states or in
        all; pages are fetched as needed.
        """
        return self._transport.iterate(self._verbs.workflows(queue, states, page_size))

    async def workflow(self, workflow: str) -> WorkflowView:
        """Return a workflow with its specification, and what its steps wait for."""
        return await self._transport.run(self._verbs.workflow(workflow))

    def watch_workflow(self, workflow: str, timeout: Span | None = None) -> AsyncGenerator[WorkflowView, None]:
        """Yield a workflow each time it has changed, until it has ended or ``timeout`` seconds have passed."""
        return self._transport.iterate(self._verbs.watch_workflow(workflow, timeout))

    async def cancel_workflow(self, workflow: str, *, cleanup: bool = True) -> WorkflowView:
        """Cancel a workflow: its jobs are cancelled, and then its cleanup steps run, unless ``cleanup`` is false."""
        return await self._transport.run(self._verbs.cancel_workflow(workflow, cleanup=cleanup))

    async def resume_workflow(self, workflow: str) -> WorkflowView:
        """Let a workflow that failed or was cancelled go on: jobs that have not succeeded are tried again, and later steps run."""
        return await self._transport.run(self._verbs.resume_workflow(workflow))

    # Groups

    def groups(
        self, queue: str | None = None, states: str | Sequence[str] = (), page_size: int = PAGE
    ) -> AsyncGenerator[GroupView, None]:
        """Yield groups of jobs, newest first, of a queue and those below it or of all, in some states or in all; pages are fetched as
        needed.
        """
        return self._transport.iterate(self._verbs.groups(queue, states, page_size))

    async def group(self, group: str, queue: str | None = None) -> GroupView:
        """Return a group with the numbers of its jobs. ``queue`` is needed where several queues have a group of this name."""
        return await self._transport.run(self._verbs.group(group, queue))

    async def close_group(self, group: str, queue: str | None = None) -> GroupView:
        """Close a group: it takes no more jobs, and has ended once all its jobs have."""
        return await self._transport.run(self._verbs.close_group(group, queue))

    async def cancel_group(self, group: str, queue: str | None = None, *, grace: str | None = None) -> CancelledGroup:
        """Close a group and cancel all its jobs. ``grace``: the most time that members get, such as ``5s``."""
        return await self._transport.run(self._verbs.cancel_group(group, queue, grace=grace))

    def watch_group(
        self, group: str, queue: str | None = None, timeout: Span | None = None, *, until_closed: bool = True
    ) -> AsyncGenerator[GroupView, None]:
        """Yield a group each time it has changed, until it has ended or ``timeout`` seconds have passed. Without ``until_closed``, an
        open group has ended once it has no unfinished jobs.
        """
        return self._transport.iterate(self._verbs.watch_group(group, queue, timeout, until_closed=until_closed))

    async def wait_group(
        self, group: str, queue: str | None = None, timeout: Span | None = None, *, until_closed: bool = True
    ) -> GroupView:
        """Return a group when it is closed and all its jobs have ended, or as last seen at the time-out.

        ``timeout`` may be a text such as ``10m``. Without ``until_closed``, an open group is returned once it has no unfinished jobs.
        """
        return await self._transport.run(self._verbs.wait_group(group, queue, timeout, until_closed=until_closed))

    # Simulations

    async def simulate(self, spec: SimulationSpec) -> SimulationView:
        """Request a simulation; it is only queued when this returns, and runs in the background."""
        return await self._transport.run(self._verbs.simulate(spec))

    async def quota_what_if(self, path: str, spec: QuotaWhatIfSpec) -> SimulationView:
        """Request a simulation of past jobs with the present quotas and with edited ones of a queue and those below it."""
        return await self._transport.run(self._verbs.quota_what_if(path, spec))

    def simulations(self, page_size: int = PAGE) -> AsyncGenerator[SimulationView, None]:
        """Yield simulations without their results, the latest first; pages are fetched as needed."""
        return self._transport.iterate(self._verbs.simulations(page_size))

    async def simulation(self, simulation: int) -> SimulationView:
        """Return one simulation, with its result if there is one."""
        return await self._transport.run(self._verbs.simulation(simulation))

    def watch_simulation(self, simulation: int, timeout: Span | None = None) -> AsyncGenerator[SimulationView, None]:
        """Yield the simulation each time it has changed, until it has ended or ``timeout`` seconds have passed."""
        return self._transport.iterate(self._verbs.watch_simulation(simulation, timeout))

    async def simulation_report(self, simulation: int) -> str:
        """Return a succeeded simulation's report as a page. Raises ProblemError WRONG_STATE."""
        return await self._transport.run(self._verbs.simulation_report(simulation))

    async def cancel_simulation(self, simulation: int) -> SimulationView:
        """Cancel a queued or running simulation. Raises ProblemError WRONG_STATE."""
        return await self._transport.run(self._verbs.cancel_simulation(simulation))

    async def remove_simulation(self, simulation: int) -> None:
        """Remove an ended simulation. Raises ProblemError WRONG_STATE."""
        return await self._transport.run(self._verbs.remove_simulation(simulation))

    # Keys

    async def keys(self) -> list[KeyView]:
        """Return all API keys, without their secrets."""
        return await self._transport.run(self._verbs.keys())

    async def make_key(self, spec: KeySpec) -> NewKey:
        """Make an API key. Never retried: if the answer is lost, revoke the key that ``keys`` shows."""
        return await self._transport.run(self._verbs.make_key(spec))

    async def revoke_key(self, key_id: int, *, force: bool = False) -> None:
        """Revoke an API key; it becomes invalid within two seconds.

        Raises ProblemError IN_USE for the last valid key of an admin, unless ``force`` is given.
        """
        return await self._transport.run(self._verbs.revoke_key(key_id, force=force))

    async def restore_person(self, key_id: int) -> None:
        """Let the tokens of a person who was revoked count again. Raises ProblemError NOT_FOUND, also for an API key, and CONFLICT."""
        return await self._transport.run(self._verbs.restore_person(key_id))

    async def rotate_key(self, key_id: int, *, overlap: Span | None = None, expires_in: Span | None = None) -> NewKey:
        """Make a new key of the same name and rights; the old one stays valid for ``overlap``, without it for an hour.

        Never retried: if the answer is lost, revoke the key that ``keys`` shows.
        """
        return await self._transport.run(self._verbs.rotate_key(key_id, overlap=overlap, expires_in=expires_in))

    async def can_i(self, permission: Permission | str, queue: str | None = None) -> PermissionAnswer:
        """Return whether the caller has a permission: in a queue; without one, in any or in the whole installation."""
        return await self._transport.run(self._verbs.can_i(permission, queue))

    async def who_can(self, permission: Permission | str, queue: str | None = None) -> WhoCan:
        """Return who has a permission, by role bindings and API keys."""
        return await self._transport.run(self._verbs.who_can(permission, queue))

    async def people(self) -> Directory:
        """Return the people who have signed in, and the groups that were seen."""
        return await self._transport.run(self._verbs.people())

    async def whoami(self) -> Identity:
        """Return the key of this client, and the dispatcher's version."""
        return await self._transport.run(self._verbs.whoami())

    async def set_key_email(self, key_id: int, email: str | None) -> None:
        """Set the e-mail address of an API key's user, None for none. Raises ProblemError NOT_FOUND, also for a person."""
        return await self._transport.run(self._verbs.set_key_email(key_id, email))

    # Notices

    async def notices(self) -> Notices:
        """Return what the user of this client is notified of, and the user's e-mail address."""
        return await self._transport.run(self._verbs.notices())

    async def put_notices(self, spec: NoticesSpec) -> Notices:
        """Set what the user of this client is notified of. Raises ProblemError MAIL_OFF, WEBHOOKS_OFF, INVALID_SPEC."""
        return await self._transport.run(self._verbs.put_notices(spec))

    async def remove_notices(self) -> None:
        """Notify the user of this client of nothing any more."""
        return await self._transport.run(self._verbs.remove_notices())

    # Audit

    def audit(
        self,
        *,
        target: str | None = None,
        actor: str | None = None,
        action: str | None = None,
        since: Moment | None = None,
        until: Moment | None = None,
        page_size: int = PAGE,
    ) -> AsyncGenerator[AuditEntry, None]:
        """Yield changes and refused calls with who made them, newest first; for admins. Pages are fetched as needed."""
        return self._transport.iterate(
            self._verbs.audit(target=target, actor=actor, action=action, since=since, until=until, page_size=page_size)
        )

    # Webhooks

    async def webhook_secrets(self, queue: str) -> WebhookSecrets:
        """Return the secrets that sign webhook messages about a queue's jobs."""
        return await self._transport.run(self._verbs.webhook_secrets(queue))

    async def rotate_webhook_secret(self, queue: str, *, overlap: str = "1d") -> WebhookSecrets:
        """Replace a queue's secret; the previous one stays valid for ``overlap``. Never retried."""
        return await self._transport.run(self._verbs.rotate_webhook_secret(queue, overlap=overlap))

    def dead_letters(self, page_size: int = PAGE) -> AsyncGenerator[DeadLetter, None]:
        """Yield undelivered webhook messages, newest first; pages are fetched as needed."""
        return self._transport.iterate(self._verbs.dead_letters(page_size))

    async def retry_dead_letter(self, letter: int) -> DeadLetter:
        """Retry an undelivered message as often as a new one; return it as it was."""
        return await self._transport.run(self._verbs.retry_dead_letter(letter))

    async def drop_dead_letter(self, letter: int) -> None:
        """Delete an undelivered message."""
        return await self._transport.run(self._verbs.drop_dead_letter(letter))

    # Checks

    async def doctor(self) -> HealthReport:
        """Return the api's release and clock and the key in use; for admins also checks of stores, processes and agents."""
        return await self._transport.run(self._verbs.doctor())
