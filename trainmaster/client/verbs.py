"""The API's calls as steps: the requests of each call, and what their answers mean. Sans-I/O.

``scripts/clients`` writes ``blocking.py`` and ``awaited.py`` from the public methods of ``Verbs``: their signatures, their docstrings.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar, overload

from pydantic import BaseModel

from trainmaster.client import calls, core, steps
from trainmaster.client.calls import Action, Parameters, ScheduleDocument, Spec, WorkflowDocument
from trainmaster.client.core import Request
from trainmaster.client.errors import JobFailedError, UnknownHostError, WaitTimeoutError
from trainmaster.client.steps import CallTerms, Item, Sleep, Steps, Tell, Telling, send
from trainmaster.client.streams import Ended, EventWatch, JobsWatch, LogPiece, LogTail, Notice
from trainmaster.client.values import JobFilter, Moment, Span, WithWarnings, seconds_in, written_moment
from trainmaster.protocol.access import Directory, PermissionAnswer, WhoCan
from trainmaster.protocol.answers import (
    AgentKey,
    AuditEntry,
    AuditPage,
    BulkAnswer,
    ClusterView,
    DeadLetter,
    DeadLetterPage,
    DrainAnswer,
    DryRun,
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
    SubmissionWarning,
    TriedJob,
    WebhookSecrets,
)
from trainmaster.protocol.arrays import (
    CancelledElements,
    ElementsOfJob,
    JobOfElement,
    JobsOfElements,
    ResultOfElement,
    ResultsOfElements,
)
from trainmaster.protocol.attainment import AttainmentAnswer
from trainmaster.protocol.bursting import BurstPolicySpec, Previews
from trainmaster.protocol.declarations import ApplyAnswer, HistoryPage, RevisionView, RollbackAnswer
from trainmaster.protocol.documents import document_of
from trainmaster.protocol.efficiency import EfficiencyAnswer, EfficiencyGroup
from trainmaster.protocol.errors import Code, ProblemError, TrainmasterError
from trainmaster.protocol.files import (
    PART_BYTES,
    ArtifactAnswer,
    ArtifactsOfJob,
    UploadAnswer,
    UploadedPart,
    UploadSpec,
)
from trainmaster.protocol.groups import CancelledGroup, GroupPage, GroupView
from trainmaster.protocol.health import HealthReport
from trainmaster.protocol.jobs import JobSpec
from trainmaster.protocol.json_limits import shown
from trainmaster.protocol.member_use import TopAnswer, TopGroup, TopSort, UseOfJob
from trainmaster.protocol.notices import Notices, NoticesSpec
from trainmaster.protocol.permissions import Permission
from trainmaster.protocol.resource_kinds import CLUSTER, KINDS, QUEUE, Kind
from trainmaster.protocol.schedules import SchedulePage, ScheduleView
from trainmaster.protocol.series import SeriesAnswer, SeriesBy, SeriesMetricInfo
from trainmaster.protocol.sessions import SessionLinkView, SessionView
from trainmaster.protocol.simulations import QuotaWhatIfSpec, SimulationSpec, SimulationView
from trainmaster.protocol.states import GroupState, JobState
from trainmaster.protocol.suggestions import suggestion
from trainmaster.protocol.tenants import EventView, JobEventView, JobView, JoinSpec, KeySpec, RotateKeySpec
from trainmaster.protocol.usage import Per, UsageAnswer
from trainmaster.protocol.workflows import SubmittedWorkflow, WorkflowPage, WorkflowView
from trainmaster.protocol.workload import Workload

Model = TypeVar("Model", bound=BaseModel)

PAGE = 500
ALL = JobFilter()
_LAST_LOOK_SECONDS = 1.0
_VERIFY_SECONDS = 900.0
_LOOK_SECONDS = 1.0


class Verbs:
    """Each verb returns steps for a transport."""

    def __init__(self, terms: CallTerms) -> None:
        self._terms = terms

    # Jobs

    def submit(
        self,
        specs: Spec | Sequence[Spec],
        *,
        idempotency_key: str | None = None,
        on_behalf_of: str | None = None,
        close_group: bool = False,
    ) -> Steps[WithWarnings[str]]:
        """Submit one specification or many, all or nothing; return their ids in the given order, and ``warnings``.

        ``on_behalf_of``: the user whose jobs these are, for a key that may submit for that user. ``close_group``: these are the last
        jobs of their groups.

        Repeating a call with the same ``idempotency_key`` and specifications within seven days makes the jobs only once.
        """
        return self._ids(calls.submit(_listed(specs), idempotency_key, on_behalf_of, close_group=close_group))

    def submit_parameters(
        self,
        spec: Spec,
        parameters: Sequence[Parameters],
        *,
        idempotency_key: str | None = None,
        on_behalf_of: str | None = None,
        close_group: bool = False,
    ) -> Steps[WithWarnings[str]]:
        """Submit one job for each set of parameters, all or nothing; return their ids in that order, and ``warnings``.

        ``${name}`` in the commands, arguments and environment values of ``spec`` is replaced by the set's value. ``close_group``:
        these are the last jobs of their group.
        """
        request = calls.submit_parameters(spec, parameters, idempotency_key, on_behalf_of, close_group=close_group)
        return self._ids(request)

    def dry_run(
        self, specs: Spec | Sequence[Spec], *, on_behalf_of: str | None = None
    ) -> Steps[WithWarnings[TriedJob]]:
        """Return what would happen to up to 100 jobs if they were submitted now; raises as ``submit`` does, and stores nothing."""
        found = yield from self._model(calls.dry_run(_listed(specs), on_behalf_of), DryRun)
        return WithWarnings(found.jobs, found.warnings)

    def dry_run_parameters(
        self, spec: Spec, parameters: Sequence[Parameters], *, on_behalf_of: str | None = None
    ) -> Steps[WithWarnings[TriedJob]]:
        """Return what would happen to the jobs of ``submit_parameters``, all of them as one; raises as it does, and stores nothing."""
        found = yield from self._model(calls.dry_run_parameters(spec, parameters, on_behalf_of), DryRun)
        return WithWarnings(found.jobs, found.warnings)

    def pages(self, wanted: JobFilter = ALL, page_size: int = PAGE) -> Telling[JobPage, None]:
        """Yield pages of the jobs that match, newest first."""
        return self._pages(wanted, page_size, lambda page: (page,))

    def jobs(self, wanted: JobFilter = ALL, page_size: int = PAGE) -> Telling[JobView, None]:
        """Yield jobs that match, newest first; pages are fetched as needed."""
        return self._pages(wanted, page_size, lambda page: page.jobs)

    def _pages(
        self, wanted: JobFilter, page_size: int, items: Callable[[JobPage], Sequence[Item]]
    ) -> Telling[Item, None]:
        cursor: str | None = None
        while True:
            page = yield from self._model(calls.list_jobs(wanted, cursor, page_size), JobPage)
            for item in items(page):
                yield Tell(item)
            cursor = page.next
            if cursor is None:
                return

    def job(self, job: str) -> Steps[JobView]:
        """Return a job with its specification and runs."""
        return self._model(calls.show_job(job), JobView)

    def why(self, job: str) -> Steps[JobReason]:
        """Return why a job is in its state, and what each cluster lacked."""
        return self._model(calls.why(job), JobReason)

    def dependencies(self, job: str) -> Steps[JobDependencies]:
        """Return the jobs after which a job starts, and those that start after it."""
        return self._model(calls.dependencies(job), JobDependencies)

    def elements(self, job: str) -> Steps[ElementsOfJob]:
        """Return the elements of an array by state."""
        return self._model(calls.elements(job), ElementsOfJob)

    def jobs_of_elements(self, job: str, elements: str | None = None) -> Telling[JobOfElement, None]:
        """Yield the jobs of an array's elements, by element; ``elements``: only of these, such as ``0-99,105``."""
        cursor: int | None = None
        while True:
            page = yield from self._model(calls.jobs_of_elements(job, elements, cursor), JobsOfElements)
            for one in page.jobs:
                yield Tell(one)
            cursor = page.next
            if cursor is None:
                return

    def results_of_elements(self, job: str) -> Telling[ResultOfElement, None]:
        """Yield what elements of an array returned, in the order in which it came; pages are fetched as needed."""
        cursor: int | None = None
        while True:
            page = yield from self._model(calls.results_of_elements(job, cursor), ResultsOfElements)
            for one in page.results:
                yield Tell(one)
            cursor = page.next
            if cursor is None:
                return

    def cancel_elements(self, job: str, elements: str) -> Steps[CancelledElements]:
        """Cancel elements of an array that have not ended; ``elements``: ranges of them, such as ``0-99,105``."""
        return self._model(calls.cancel_elements(job, elements), CancelledElements)

    def begin_upload(self, queue: str, sha256: str, size: int) -> Steps[UploadAnswer]:
        """Begin to upload an archive of this SHA-256 and size for the jobs of a queue; ``upload_files`` does all of it."""
        return self._model(calls.begin_upload(UploadSpec(queue=queue, sha256=sha256, size=size)), UploadAnswer)

    def write_upload(self, upload: str, offset: int, data: bytes) -> Steps[UploadedPart]:
        """Write a part of an upload that has no address of its own."""
        return self._model(calls.write_upload(upload, offset, data), UploadedPart)

    def finish_upload(self, upload: str) -> Steps[UploadAnswer]:
        """Let the dispatcher verify an upload; from then on jobs of its queue may name the files."""
        terms = replace(self._terms, answer_seconds=_VERIFY_SECONDS)
        answer = yield from send(terms, calls.finish_upload(upload), _VERIFY_SECONDS)
        return core.read_model(answer, UploadAnswer)

    def artifacts(self, job: str, *, attempt: int | None = None) -> Steps[ArtifactsOfJob]:
        """Return the artifacts of a job's last run, or of the run of ``attempt``: the outputs that it has left."""
        return self._model(calls.artifacts(job, attempt), ArtifactsOfJob)

    def artifact(self, job: str, name: str, *, attempt: int | None = None) -> Steps[ArtifactAnswer]:
        """Return an artifact and where its archive is; ``download_artifact`` fetches it."""
        return self._model(calls.artifact(job, name, attempt), ArtifactAnswer)

    def read_artifact(
        self, job: str, name: str, *, offset: int = 0, limit: int = PART_BYTES, attempt: int | None = None
    ) -> Steps[bytes]:
        """Return a part of an artifact's archive, a gzipped tar file; nothing behind its end."""
        request = calls.read_artifact(job, name, attempt, offset, limit)
        return core.read_bytes((yield from send(self._terms, request)))

    def events(self, job: str, after: int = 0, limit: int = 1000) -> Steps[list[EventView]]:
        """Return a job's transitions after number ``after``, oldest first."""
        return self._models(calls.events(job, after, limit), "events", EventView)

    def watch(
        self, job: str, after: int = 0, *, timeout: Span | None = None
    ) -> Telling[EventView | Notice | Ended, None]:
        """Yield a job's transitions as they happen, reconnecting when needed; ends after Ended, or at the time-out."""
        return steps.follow(self._terms, EventWatch(job, after), seconds_in(timeout, "timeout"))

    def watch_jobs(
        self,
        wanted: JobFilter = ALL,
        *,
        kinds: Sequence[str] = (),
        after: str | None = None,
        timeout: Span | None = None,
    ) -> Telling[JobEventView | Notice, None]:
        """Yield transitions of all jobs that match, reconnecting when needed, until the time-out: from a position on, or from now on.

        ``states`` of ``wanted`` are those that a job enters, its ``cluster`` that of the run; it has no ``since`` and ``until``. The
        transitions of each job are in their order.
        """
        stream = JobsWatch(calls.event_query(wanted, kinds), after)
        return steps.follow(self._terms, stream, seconds_in(timeout, "timeout"))

    def events_of_jobs(
        self, wanted: JobFilter = ALL, *, kinds: Sequence[str] = (), after: str | None = None, limit: int = 1000
    ) -> Steps[JobEventPage]:
        """Return a page of transitions of all jobs that match ``wanted``, as for ``watch_jobs``, and the position of the next page.

        ``after``: ``next`` of another page, or ``"0"`` for all that is stored; without it, the page is empty and has the position of
        now.
        """
        return self._model(calls.events_of_jobs(wanted, kinds, after, limit), JobEventPage)

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
    ) -> Telling[LogPiece | Notice | Ended, None]:
        """Yield output of a job's members; with ``follow`` as it comes, reconnecting when needed and over later runs.

        It begins ``tail_bytes`` before the end of each member's output (1073741824: with its first byte), or ``tail_lines``, or with
        what was first seen at ``since``. ``previous``: only what members printed before their last restart.
        """
        tail = LogTail(job, follow, role, index, attempt, tail_bytes, tail_lines, since, previous, timestamps)
        return steps.follow(self._terms, tail, None)

    @overload
    def wait(self, job: str, timeout: Span | None = None, *, check: bool = False) -> Telling[Any, JobView]: ...
    @overload
    def wait(
        self, job: list[str] | tuple[str, ...], timeout: Span | None = None, *, check: bool = False
    ) -> Telling[Any, list[JobView]]: ...
    @overload
    def wait(
        self, job: str | list[str] | tuple[str, ...], timeout: Span | None = None, *, check: bool = False
    ) -> Telling[Any, JobView | list[JobView]]: ...
    def wait(
        self, job: str | list[str] | tuple[str, ...], timeout: Span | None = None, *, check: bool = False
    ) -> Telling[Any, JobView | list[JobView]]:
        """Return the job, or jobs, when all have ended, or as last seen at the time-out.

        ``timeout`` may be a text such as ``10m``. With ``check``, raises JobFailedError unless all succeeded, and
        WaitTimeoutError when some have not ended.
        """
        seconds = seconds_in(timeout, "timeout")
        ends = None if seconds is None else self._terms.clock() + seconds
        jobs = []
        for one in [job] if isinstance(job, str) else job:
            jobs.append((yield from self._wait(one, ends)))  # noqa: PERF401 - a comprehension cannot yield
        if check:
            _check(jobs)
        return jobs[0] if isinstance(job, str) else jobs

    def _wait(self, job: str, ends: float | None) -> Telling[Any, JobView]:
        now = yield from self.job(job)
        while not now.state.is_terminal:
            left = self._left(ends)
            if left is not None and left <= 0:
                break
            yield from steps.follow(self._terms, EventWatch(job, now.version), left, known=True, is_read=False)
            now = yield from self._look_again(now, ends)
        return now

    def _look_again(self, last: JobView, ends: float | None) -> Steps[JobView]:
        """Return the current job, or the last known one if the dispatcher stays unreachable until the time is up."""
        left = self._left(ends)
        within = float("inf") if left is None else max(left, _LAST_LOOK_SECONDS)
        try:
            return (yield from self._model(calls.show_job(last.id), JobView, within))
        except TrainmasterError as error:
            if core.is_passing(error) or isinstance(error, UnknownHostError):
                return last
            raise

    def _left(self, ends: float | None) -> float | None:
        return None if ends is None else ends - self._terms.clock()

    def cancel(self, job: str, *, grace: str | None = None) -> Steps[JobAction]:
        """End a job for good; it shows ``cancelling`` until its members are gone.

        ``grace``: the most time that members get, such as ``5s``; also shortens a stop in progress.
        """
        return self.act(job, "cancel", grace=grace)

    def suspend(self, job: str) -> Steps[JobAction]:
        """Stop a job and hold it until ``resume``."""
        return self.act(job, "suspend")

    def resume(self, job: str) -> Steps[JobAction]:
        """Release a held job."""
        return self.act(job, "resume")

    def retry(self, job: str) -> Steps[JobAction]:
        """Run a failed or cancelled job once more."""
        return self.act(job, "retry")

    def act(self, job: str, action: Action, *, grace: str | None = None) -> Steps[JobAction]:
        """Apply one of these four actions."""
        return self._model(calls.act(job, action, grace), JobAction)

    def bulk(
        self, action: Action, wanted: JobFilter, *, dry_run: bool = False, grace: str | None = None
    ) -> Steps[BulkAnswer]:
        """Apply an action to every job that matches; a dry run only counts them."""
        return self._model(calls.bulk(action, wanted, dry_run=dry_run, grace=grace), BulkAnswer)

    def change(self, job: str, *, priority: int | None = None, priority_class: str | None = None) -> Steps[JobView]:
        """Change the priority or the class of a waiting job."""
        return self._model(calls.change(job, _patch(priority, priority_class)), JobView)

    def bulk_change(
        self,
        wanted: JobFilter,
        *,
        priority: int | None = None,
        priority_class: str | None = None,
        dry_run: bool = False,
    ) -> Steps[BulkAnswer]:
        """Change every waiting job that matches."""
        return self._model(calls.bulk_change(wanted, _patch(priority, priority_class), dry_run=dry_run), BulkAnswer)

    # Tenants

    def queues(self, *, usage: bool = False, ended: bool = False) -> Steps[list[QueueView]]:
        """Return the queues that the key may see, with unfinished jobs by state; with ``ended``, all jobs that are stored.

        With ``usage``, also current usage if a leader answers.
        """
        return self._models(calls.queues(usage=usage, ended=ended), QUEUE.member, QueueView)

    def use_of(self, job: str, *, since: Moment | None = None, step: int | None = None) -> Steps[UseOfJob]:
        """Return what the members of a job's latest run use, beside what was requested for them.

        With ``since`` or ``step``, in seconds, also the history of it, as ``series``.
        """
        return self._model(calls.use_of(job, since, step), UseOfJob)

    def top(
        self,
        *,
        queue: str | None = None,
        cluster: str | None = None,
        user: str | None = None,
        gpus_idle: bool = False,
        sort: TopSort = "cpu",
        by: TopGroup | None = None,
        limit: int = 100,
    ) -> Steps[TopAnswer]:
        """Return running jobs with what they use, at most ``limit``, or with ``by`` the sums of those of each queue, cluster or user.

        ``gpus_idle``: only those whose GPUs do nothing, by the policy of their queue. ``sort``: the most cores, memory or GPUs first,
        or with ``idle`` the smallest part of what was requested.
        """
        return self._model(calls.top(queue, cluster, user, gpus_idle, sort, by, limit), TopAnswer)

    def series(
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
    ) -> Steps[SeriesAnswer]:
        """Return how a metric of clusters, queues or burst policies went over time, by default in the last six hours.

        ``by``: labels to keep, where others are added up. ``depth``: the most levels below ``queue``. ``step``: seconds.
        """
        labels = {"cluster": cluster, "queue": queue, "depth": depth, "product": product, "policy": policy}
        return self._model(calls.series(metric, labels, by, since, until, step), SeriesAnswer)

    def series_metrics(self) -> Steps[list[SeriesMetricInfo]]:
        """Return the metrics of which there are series."""
        return self._models(calls.series_metrics(), "metrics", SeriesMetricInfo)

    def sessions(
        self, *, queue: str | None = None, user: str | None = None, limit: int = 100
    ) -> Steps[list[SessionView]]:
        """Return interactive sessions that have not ended, at most ``limit``, newest first: those of a queue, or of a user."""
        return self._models(calls.sessions(queue, user, limit), "sessions", SessionView)

    def session_link(self, job: str, port: int | str) -> Steps[SessionLinkView]:
        """Return the address at which a browser opens a port of a job's first member, by its number or name. It counts once, and for
        a minute.
        """
        return self._model(calls.session_link(job, str(port)), SessionLinkView)

    def usage(
        self, begin: Moment, end: Moment, *, per: Per = "all", by: Sequence[str] = (), queue: str | None = None
    ) -> Steps[UsageAnswer]:
        """Return the usage of the key's queues and its cost, in whole hours of UTC.

        ``by``: any of ``queue``, ``user``, ``cluster``, ``kind``, ``class`` and ``label:KEY``. Running jobs count until now. ``begin``
        and ``end`` may be texts such as ``2026-11-01``.
        """
        return self._model(calls.usage(begin, end, per, by, queue), UsageAnswer)

    def efficiency(
        self, begin: Moment, end: Moment, *, by: EfficiencyGroup = "queue", queue: str | None = None, limit: int = 100
    ) -> Steps[EfficiencyAnswer]:
        """Return what runs used beside what they requested, by queue, user, cluster or job, and requests that would suit recurring
        jobs.
        """
        return self._model(calls.efficiency(begin, end, by, queue, limit), EfficiencyAnswer)

    def attainment(
        self, begin: Moment | None = None, end: Moment | None = None, *, queue: str | None = None
    ) -> Steps[AttainmentAnswer]:
        """Return by month, queue and class how many jobs started within the wait that their class promises.

        From the month of ``begin``, by default the one of ``end``, to that of ``end``, by default now.
        """
        return self._model(calls.attainment(begin, end, queue), AttainmentAnswer)

    def clusters(self) -> Steps[list[ClusterView]]:
        """Return the clusters with their contact and capacity."""
        return self._models(calls.list_objects("Cluster"), CLUSTER.member, ClusterView)

    def objects(self, kind: Kind) -> Steps[list[dict[str, Any]]]:
        """Return all objects of a kind, such as ``"PriceBook"``, as the API shows them."""
        value = yield from self._value(calls.list_objects(kind))
        found: list[dict[str, Any]] = value[calls.kind_of(kind).member]
        return found

    def get_object(self, kind: Kind, name: str) -> Steps[dict[str, Any]]:
        """Return one object, by its path or name. Raises ProblemError NOT_FOUND."""
        known = {calls.kind_of(kind).name_in(item): item for item in (yield from self.objects(kind))}
        if name in known:
            return known[name]
        raise ProblemError(Code.NOT_FOUND, f"there is no {calls.kind_of(kind).name} {name!r}{suggestion(name, known)}")

    def put(self, kind: Kind, name: str, body: Mapping[str, Any]) -> Steps[dict[str, Any]]:
        """Create or change an object; a field missing in ``body`` gets its default."""
        return self._value(calls.put_object(kind, name, body))

    def delete(self, kind: Kind, name: str) -> Steps[None]:
        """Remove an object. Raises ProblemError IN_USE."""
        yield from self._value(calls.delete_object(kind, name))

    def patch(
        self, kind: Kind, name: str, patch: Mapping[str, Any], *, if_match: str | None = None
    ) -> Steps[dict[str, Any]]:
        """Change some fields of an object by a JSON merge patch (RFC 7396), in which None sets a field back to its default.

        With ``if_match``, an ETag, only if nobody has changed the object since.
        """
        return self._value(calls.patch_object(kind, name, patch, if_match))

    # Declared state

    def apply(
        self,
        documents: Sequence[Mapping[str, Any]],
        *,
        applier: str | None = None,
        dry_run: bool = False,
        replace: bool = False,
        force: bool = False,
        prune: str | None = None,
        idempotency_key: str | None = None,
    ) -> Steps[ApplyAnswer]:
        """Apply up to 1,000 documents in one transaction, each with its ``kind`` and only the fields that it is to set.

        ``applier`` owns these fields then. ``replace`` resets fields that a document leaves out, ``force`` takes over fields of other
        appliers, ``prune`` removes the objects of this applier that no document names. A dry run answers the same and changes nothing.
        """
        wanted = {"applier": applier, "prune": prune}
        flags = {"dryRun": dry_run, "replace": replace, "force": force}
        body: dict[str, Any] = {"documents": [dict(one) for one in documents]}
        body |= {key: value for key, value in (wanted | flags).items() if value}
        return self._model(calls.apply(body, idempotency_key), ApplyAnswer)

    def export(self, kinds: Sequence[Kind] = ()) -> Steps[list[dict[str, Any]]]:
        """Return the documents of all objects of these kinds, by default of all kinds, in an order in which they can be applied."""
        found: list[dict[str, Any]] = []
        for kind in KINDS.values():
            if not kinds or kind.kind in kinds:
                every = yield from self.objects(kind.kind)
                found += sorted(
                    (document_of(kind, one) for one in every), key=lambda one: str(one[kind.key]).count("/")
                )
        return found

    def history(self, kind: Kind, name: str, page_size: int = PAGE) -> Telling[RevisionView, None]:
        """Yield the revisions of an object, the latest first, also of a removed one; pages are fetched as needed."""
        cursor: int | None = None
        while True:
            page = yield from self._model(calls.list_revisions(kind, name, cursor, page_size), HistoryPage)
            for one in page.revisions:
                yield Tell(one)
            cursor = page.next
            if cursor is None:
                return

    def rollback(
        self, kind: Kind, name: str, revision: int | None = None, *, dry_run: bool = False
    ) -> Steps[RollbackAnswer]:
        """Return an object to a revision, by default to the last one that differs from it; create it again if it was removed."""
        return self._model(calls.roll_back(kind, name, revision, dry_run=dry_run), RollbackAnswer)

    # Clusters

    def cordon(self, cluster: str, *, on: bool = True) -> Steps[None]:
        """Close a cluster to new runs, or, with ``on`` false, open it again."""
        yield from self._value(calls.cordon(cluster, on=on))

    def cluster(self, cluster: str) -> Steps[ClusterView]:
        """Return a cluster with its state and capacity."""
        return self._model(calls.show_cluster(cluster), ClusterView)

    def join_cluster(self, spec: JoinSpec) -> Steps[AgentKey]:
        """Make a key for a cluster's agent, and the cluster unless it exists. Never retried, as ``make_key``."""
        return self._model(calls.join_cluster(spec), AgentKey)

    def rotate_cluster_key(self, cluster: str, *, revoke_old: bool = False) -> Steps[AgentKey]:
        """Make another key for a cluster's agent; ``revoke_old`` revokes the old ones at once. Never retried."""
        return self._model(calls.rotate_cluster_key(cluster, revoke_old=revoke_old), AgentKey)

    def drain(self, cluster: str, *, let_finish: bool = False) -> Steps[DrainAnswer]:
        """Close a cluster to new runs and stop its runs, or let them finish."""
        return self._model(calls.drain_cluster(cluster, let_finish=let_finish), DrainAnswer)

    def watch_drain(self, cluster: str, timeout: Span | None = None) -> Telling[ClusterView, None]:
        """Yield the cluster each time its number of runs has changed, until none is left or ``timeout`` seconds have passed."""
        seconds = seconds_in(timeout, "timeout")
        ends = None if seconds is None else self._terms.clock() + seconds
        before = None
        while True:
            now = yield from self.cluster(cluster)
            if (now.live_runs, now.stopping_runs) != before:
                before = now.live_runs, now.stopping_runs
                yield Tell(now)
            left = self._left(ends)
            if now.live_runs == 0 or (left is not None and left <= 0):
                return
            yield Sleep(_LOOK_SECONDS if left is None else min(_LOOK_SECONDS, left))

    def quarantined_runs(self, cluster: str) -> Steps[list[QuarantinedRun]]:
        """Return runs that a cluster's agent holds and that the store lost when it was restored from a backup."""
        return self._models(calls.quarantined_runs(cluster), "runs", QuarantinedRun)

    def stop_quarantined(self, cluster: str, runs: Sequence[str] = ()) -> Steps[list[str]]:
        """Stop these quarantined runs, or all; return their ids. Raises ProblemError NOT_FOUND."""
        value = yield from self._value(calls.stop_quarantined(cluster, runs))
        return list(value["stopping"])

    def declare_lost(self, cluster: str, *, force: bool = False, orphans: bool = False) -> Steps[LostRuns]:
        """Declare that nothing runs on a cluster any more. Raises ProblemError CLUSTER_IN_CONTACT."""
        return self._model(calls.declare_lost(cluster, force=force, orphans=orphans), LostRuns)

    def remove_cluster(self, cluster: str, *, force: bool = False) -> Steps[None]:
        """Remove a cluster with its keys; with ``force`` its runs are declared lost first. Raises ProblemError IN_USE."""
        yield from self._value(calls.remove_cluster(cluster, force=force))

    def workload(self, begin: Moment, end: Moment) -> Telling[Workload, None]:
        """Yield pages of the jobs that were submitted in this time and have run, the latest first: a workload for simulations."""
        cursor: int | None = None
        while True:
            page = yield from self._model(calls.workload(begin, end, cursor), Workload)
            yield Tell(page)
            cursor = page.next
            if cursor is None:
                return

    def preview_bursts(self, policies: Sequence[BurstPolicySpec] = ()) -> Steps[Previews]:
        """Return what would go to public clusters now; ``policies`` replace stored ones of the same names. Changes nothing."""
        return self._model(calls.preview_bursts([one.to_wire() | {"name": one.name} for one in policies]), Previews)

    # Schedules

    def create_schedule(
        self, spec: ScheduleDocument, *, idempotency_key: str | None = None, on_behalf_of: str | None = None
    ) -> Steps[ScheduleView]:
        """Create a schedule; return it. ``on_behalf_of``: the user whose jobs it makes, for a key that may submit for that user."""
        return self._model(calls.create_schedule(spec, idempotency_key, on_behalf_of), ScheduleView)

    def schedules(self, queue: str | None = None, page_size: int = PAGE) -> Telling[ScheduleView, None]:
        """Yield schedules without their specifications, newest first, of a queue and those below it or of all; pages are fetched as
        needed.
        """
        cursor: str | None = None
        while True:
            page = yield from self._model(calls.list_schedules(queue, cursor, page_size), SchedulePage)
            for one in page.schedules:
                yield Tell(one)
            cursor = page.next
            if cursor is None:
                return

    def schedule(self, name: str, queue: str | None = None) -> Steps[ScheduleView]:
        """Return a schedule; ``queue``: where several queues have one of this name."""
        return self._model(calls.show_schedule(name, queue), ScheduleView)

    def replace_schedule(self, name: str, spec: ScheduleDocument, queue: str | None = None) -> Steps[ScheduleView]:
        """Replace the specification of a schedule; return it."""
        return self._model(calls.replace_schedule(name, spec, queue), ScheduleView)

    def change_schedule(self, name: str, patch: Mapping[str, Any], queue: str | None = None) -> Steps[ScheduleView]:
        """Change a schedule by a merge patch of its specification, such as ``{"suspend": True}``; return it."""
        return self._model(calls.change_schedule(name, patch, queue), ScheduleView)

    def delete_schedule(self, name: str, queue: str | None = None, *, keep_jobs: bool = False) -> Steps[None]:
        """Delete a schedule, and its jobs unless ``keep_jobs``: those that have not ended are cancelled."""
        yield from self._value(calls.delete_schedule(name, queue, keep_jobs=keep_jobs))

    def run_schedule(self, name: str, queue: str | None = None, *, idempotency_key: str | None = None) -> Steps[str]:
        """Submit a job of a schedule now, beside its due times; return the job's id."""
        value = yield from self._value(calls.run_schedule(name, queue, idempotency_key))
        return str(value["id"])

    def _watch(
        self, look: Callable[[], Steps[Model]], has_ended: Callable[[Model], bool], timeout: Span | None
    ) -> Telling[Model, None]:
        """Yield what ``look`` returns each time it has changed, until it has ended or ``timeout`` seconds have passed."""
        seconds = seconds_in(timeout, "timeout")
        ends = None if seconds is None else self._terms.clock() + seconds
        before = None
        while True:
            now = yield from look()
            if now != before:
                before = now
                yield Tell(now)
            left = self._left(ends)
            if has_ended(now) or (left is not None and left <= 0):
                return
            yield Sleep(_LOOK_SECONDS if left is None else min(_LOOK_SECONDS, left))

    # Workflows

    def submit_workflow(
        self, spec: WorkflowDocument, *, idempotency_key: str | None = None, on_behalf_of: str | None = None
    ) -> Steps[SubmittedWorkflow]:
        """Submit a workflow; return its ``id``, and ``warnings``.

        ``on_behalf_of``: the user whose jobs it makes, for a key that may submit for that user.
        """
        return self._model(calls.submit_workflow(spec, idempotency_key, on_behalf_of), SubmittedWorkflow)

    def workflows(
        self, queue: str | None = None, states: Sequence[str] = (), page_size: int = PAGE
    ) -> Telling[WorkflowView, None]:
        """Yield workflows without their specifications, newest first, of a queue and those below it or of all, in some states or in
        all; pages are fetched as needed.
        """
        cursor: str | None = None
        while True:
            page = yield from self._model(calls.list_workflows(queue, states, cursor, page_size), WorkflowPage)
            for one in page.workflows:
                yield Tell(one)
            cursor = page.next
            if cursor is None:
                return

    def workflow(self, workflow: str) -> Steps[WorkflowView]:
        """Return a workflow with its specification, and what its steps wait for."""
        return self._model(calls.show_workflow(workflow), WorkflowView)

    def watch_workflow(self, workflow: str, timeout: Span | None = None) -> Telling[WorkflowView, None]:
        """Yield a workflow each time it has changed, until it has ended or ``timeout`` seconds have passed."""
        return self._watch(lambda: self.workflow(workflow), lambda one: one.state.is_terminal, timeout)

    def cancel_workflow(self, workflow: str, *, cleanup: bool = True) -> Steps[WorkflowView]:
        """Cancel a workflow: its jobs are cancelled, and then its cleanup steps run, unless ``cleanup`` is false."""
        return self._model(calls.cancel_workflow(workflow, cleanup=cleanup), WorkflowView)

    def resume_workflow(self, workflow: str) -> Steps[WorkflowView]:
        """Let a workflow that failed or was cancelled go on: jobs that have not succeeded are tried again, and later steps run."""
        return self._model(calls.resume_workflow(workflow), WorkflowView)

    # Groups

    def groups(
        self, queue: str | None = None, states: str | Sequence[str] = (), page_size: int = PAGE
    ) -> Telling[GroupView, None]:
        """Yield groups of jobs, newest first, of a queue and those below it or of all, in some states or in all; pages are fetched as
        needed.
        """
        cursor: str | None = None
        while True:
            page = yield from self._model(calls.list_groups(queue, states, cursor, page_size), GroupPage)
            for one in page.groups:
                yield Tell(one)
            cursor = page.next
            if cursor is None:
                return

    def group(self, group: str, queue: str | None = None) -> Steps[GroupView]:
        """Return a group with the numbers of its jobs. ``queue`` is needed where several queues have a group of this name."""
        return self._model(calls.show_group(group, queue), GroupView)

    def close_group(self, group: str, queue: str | None = None) -> Steps[GroupView]:
        """Close a group: it takes no more jobs, and has ended once all its jobs have."""
        return self._model(calls.close_group(group, queue), GroupView)

    def cancel_group(self, group: str, queue: str | None = None, *, grace: str | None = None) -> Steps[CancelledGroup]:
        """Close a group and cancel all its jobs. ``grace``: the most time that members get, such as ``5s``."""
        return self._model(calls.cancel_group(group, queue, grace), CancelledGroup)

    def watch_group(
        self, group: str, queue: str | None = None, timeout: Span | None = None, *, until_closed: bool = True
    ) -> Telling[GroupView, None]:
        """Yield a group each time it has changed, until it has ended or ``timeout`` seconds have passed. Without ``until_closed``, an
        open group has ended once it has no unfinished jobs.
        """
        return self._watch(
            lambda: self.group(group, queue), lambda one: _is_over(one, until_closed=until_closed), timeout
        )

    def wait_group(
        self, group: str, queue: str | None = None, timeout: Span | None = None, *, until_closed: bool = True
    ) -> Telling[Any, GroupView]:
        """Return a group when it is closed and all its jobs have ended, or as last seen at the time-out.

        ``timeout`` may be a text such as ``10m``. Without ``until_closed``, an open group is returned once it has no unfinished jobs.
        """
        seconds = seconds_in(timeout, "timeout")
        ends = None if seconds is None else self._terms.clock() + seconds
        while True:
            now = yield from self.group(group, queue)
            left = self._left(ends)
            if _is_over(now, until_closed=until_closed) or (left is not None and left <= 0):
                return now
            yield Sleep(_LOOK_SECONDS if left is None else min(_LOOK_SECONDS, left))

    # Simulations

    def simulate(self, spec: SimulationSpec) -> Steps[SimulationView]:
        """Request a simulation; it is only queued when this returns, and runs in the background."""
        return self._model(calls.simulate(spec), SimulationView)

    def quota_what_if(self, path: str, spec: QuotaWhatIfSpec) -> Steps[SimulationView]:
        """Request a simulation of past jobs with the present quotas and with edited ones of a queue and those below it."""
        return self._model(calls.quota_what_if(path, spec), SimulationView)

    def simulations(self, page_size: int = PAGE) -> Telling[SimulationView, None]:
        """Yield simulations without their results, the latest first; pages are fetched as needed."""
        cursor: int | None = None
        while True:
            value = yield from self._value(calls.list_simulations(cursor, page_size))
            for one in value["simulations"]:
                yield Tell(SimulationView.model_validate(one))
            cursor = value["next"]
            if cursor is None:
                return

    def simulation(self, simulation: int) -> Steps[SimulationView]:
        """Return one simulation, with its result if there is one."""
        return self._model(calls.show_simulation(simulation), SimulationView)

    def watch_simulation(self, simulation: int, timeout: Span | None = None) -> Telling[SimulationView, None]:
        """Yield the simulation each time it has changed, until it has ended or ``timeout`` seconds have passed."""
        return self._watch(lambda: self.simulation(simulation), lambda one: one.state.is_terminal, timeout)

    def simulation_report(self, simulation: int) -> Steps[str]:
        """Return a succeeded simulation's report as a page. Raises ProblemError WRONG_STATE."""
        response = yield from send(self._terms, calls.simulation_report(simulation))
        core.check(response)
        return response.body.decode()

    def cancel_simulation(self, simulation: int) -> Steps[SimulationView]:
        """Cancel a queued or running simulation. Raises ProblemError WRONG_STATE."""
        return self._model(calls.cancel_simulation(simulation), SimulationView)

    def remove_simulation(self, simulation: int) -> Steps[None]:
        """Remove an ended simulation. Raises ProblemError WRONG_STATE."""
        yield from self._value(calls.remove_simulation(simulation))

    # Keys

    def keys(self) -> Steps[list[KeyView]]:
        """Return all API keys, without their secrets."""
        return self._models(calls.list_keys(), "keys", KeyView)

    def make_key(self, spec: KeySpec) -> Steps[NewKey]:
        """Make an API key. Never retried: if the answer is lost, revoke the key that ``keys`` shows."""
        return self._model(calls.make_key(spec), NewKey)

    def revoke_key(self, key_id: int, *, force: bool = False) -> Steps[None]:
        """Revoke an API key; it becomes invalid within two seconds.

        Raises ProblemError IN_USE for the last valid key of an admin, unless ``force`` is given.
        """
        yield from self._value(calls.revoke_key(key_id, force=force))

    def restore_person(self, key_id: int) -> Steps[None]:
        """Let the tokens of a person who was revoked count again. Raises ProblemError NOT_FOUND, also for an API key, and CONFLICT."""
        yield from self._value(calls.restore_person(key_id))

    def rotate_key(self, key_id: int, *, overlap: Span | None = None, expires_in: Span | None = None) -> Steps[NewKey]:
        """Make a new key of the same name and rights; the old one stays valid for ``overlap``, without it for an hour.

        Never retried: if the answer is lost, revoke the key that ``keys`` shows.
        """
        fields = {"overlap": overlap, "expiresIn": expires_in}
        given = {name: f"{seconds_in(value, name)}s" for name, value in fields.items() if value is not None}
        return self._model(calls.rotate_key(key_id, RotateKeySpec.model_validate(given)), NewKey)

    def can_i(self, permission: Permission | str, queue: str | None = None) -> Steps[PermissionAnswer]:
        """Return whether the caller has a permission: in a queue; without one, in any or in the whole installation."""
        return self._model(calls.can_i(permission, queue), PermissionAnswer)

    def who_can(self, permission: Permission | str, queue: str | None = None) -> Steps[WhoCan]:
        """Return who has a permission, by role bindings and API keys."""
        return self._model(calls.who_can(permission, queue), WhoCan)

    def people(self) -> Steps[Directory]:
        """Return the people who have signed in, and the groups that were seen."""
        return self._model(calls.people(), Directory)

    def whoami(self) -> Steps[Identity]:
        """Return the key of this client, and the dispatcher's version."""
        return self._model(calls.whoami(), Identity)

    def set_key_email(self, key_id: int, email: str | None) -> Steps[None]:
        """Set the e-mail address of an API key's user, None for none. Raises ProblemError NOT_FOUND, also for a person."""
        yield from self._value(calls.set_key_email(key_id, email))

    # Notices

    def notices(self) -> Steps[Notices]:
        """Return what the user of this client is notified of, and the user's e-mail address."""
        return self._model(calls.show_notices(), Notices)

    def put_notices(self, spec: NoticesSpec) -> Steps[Notices]:
        """Set what the user of this client is notified of. Raises ProblemError MAIL_OFF, WEBHOOKS_OFF, INVALID_SPEC."""
        return self._model(calls.put_notices(spec), Notices)

    def remove_notices(self) -> Steps[None]:
        """Notify the user of this client of nothing any more."""
        yield from self._value(calls.remove_notices())

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
    ) -> Telling[AuditEntry, None]:
        """Yield changes and refused calls with who made them, newest first; for admins. Pages are fetched as needed."""
        given = (("since", since), ("until", until))
        moments = [(name, None if at is None else written_moment(at, name)) for name, at in given]
        filters = [("target", target), ("actor", actor), ("action", action), *moments]
        cursor: str | None = None
        while True:
            page = yield from self._model(calls.list_audit(filters, cursor, page_size), AuditPage)
            for entry in page.audit:
                yield Tell(entry)
            cursor = page.next
            if cursor is None:
                return

    # Webhooks

    def webhook_secrets(self, queue: str) -> Steps[WebhookSecrets]:
        """Return the secrets that sign webhook messages about a queue's jobs."""
        return self._model(calls.webhook_secrets(queue), WebhookSecrets)

    def rotate_webhook_secret(self, queue: str, *, overlap: str = "1d") -> Steps[WebhookSecrets]:
        """Replace a queue's secret; the previous one stays valid for ``overlap``. Never retried."""
        return self._model(calls.rotate_webhook_secret(queue, overlap), WebhookSecrets)

    def dead_letters(self, page_size: int = PAGE) -> Telling[DeadLetter, None]:
        """Yield undelivered webhook messages, newest first; pages are fetched as needed."""
        cursor: str | None = None
        while True:
            page = yield from self._model(calls.dead_letters(cursor, page_size), DeadLetterPage)
            for letter in page.dead:
                yield Tell(letter)
            cursor = page.next
            if cursor is None:
                return

    def retry_dead_letter(self, letter: int) -> Steps[DeadLetter]:
        """Retry an undelivered message as often as a new one; return it as it was."""
        return self._model(calls.retry_dead_letter(letter), DeadLetter)

    def drop_dead_letter(self, letter: int) -> Steps[None]:
        """Delete an undelivered message."""
        yield from self._value(calls.drop_dead_letter(letter))

    # Checks

    def doctor(self) -> Steps[HealthReport]:
        """Return the api's release and clock and the key in use; for admins also checks of stores, processes and agents."""
        return self._model(calls.doctor(), HealthReport)

    # Sending

    def _value(self, request: Request) -> Steps[Any]:
        return core.read_value((yield from send(self._terms, request)))

    def _model(self, request: Request, model: type[Model], within: float | None = None) -> Steps[Model]:
        return core.read_model((yield from send(self._terms, request, within)), model)

    def _models(self, request: Request, field: str, model: type[Model]) -> Steps[list[Model]]:
        value = yield from self._value(request)
        return [model.model_validate(item) for item in value[field]]

    def _ids(self, request: Request) -> Steps[WithWarnings[str]]:
        value = yield from self._value(request)
        warnings = tuple(SubmissionWarning.model_validate(one) for one in value.get("warnings", ()))
        return WithWarnings((item["id"] for item in value["jobs"]), warnings)


def _is_over(group: GroupView, *, until_closed: bool) -> bool:
    """Return whether a group has ended, or, without ``until_closed``, is open and has no unfinished jobs."""
    return group.state.is_terminal or (not until_closed and group.state is GroupState.OPEN and not group.unfinished)


def _listed(specs: Spec | Sequence[Spec]) -> Sequence[Spec]:
    """Return specifications as a list. Raises ProblemError INVALID_SPEC for what is neither one nor several."""
    if isinstance(specs, Mapping | JobSpec):
        return [specs]
    given: object = specs  # what programs without types pass
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise ProblemError(
            Code.INVALID_SPEC,
            f"a specification is a mapping or a JobSpec, and several are a list of them, not {shown(given)};"
            " read a file with yaml.safe_load",
        )
    return list(specs)


def _check(jobs: Sequence[JobView]) -> None:
    """Raise JobFailedError or WaitTimeoutError unless all jobs succeeded."""
    failed = [job for job in jobs if job.state.is_terminal and job.state is not JobState.SUCCEEDED]
    if failed:
        raise JobFailedError(failed)
    late = [job for job in jobs if not job.state.is_terminal]
    if late:
        raise WaitTimeoutError(late)


def _patch(priority: int | None, priority_class: str | None) -> dict[str, Any]:
    fields = {"priority": priority, "priorityClass": priority_class}
    return {name: value for name, value in fields.items() if value is not None}
