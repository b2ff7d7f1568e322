"""What each verb of the client does, as steps: which requests are sent and what their answers mean. Sans-I/O.

``http.Client`` and ``async_http.AsyncClient`` run these and add nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

from pydantic import BaseModel

from trainmaster.client import calls, core
from trainmaster.client.calls import Action, Parameters, Spec
from trainmaster.client.core import Request
from trainmaster.client.errors import JobFailedError, WaitTimeoutError
from trainmaster.client.steps import CallTerms, Item, Sleep, Steps, Tell, Telling, follow, send
from trainmaster.client.streams import Ended, EventWatch, LogPiece, LogTail, Notice
from trainmaster.client.values import JobFilter
from trainmaster.protocol.answers import (
    AgentKey,
    AuditEntry,
    AuditPage,
    BulkAnswer,
    ClusterView,
    DeadLetter,
    DeadLetterPage,
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
from trainmaster.protocol.errors import Code, ProblemError, TrainmasterError
from trainmaster.protocol.jobs import JobSpec
from trainmaster.protocol.resource_kinds import Kind
from trainmaster.protocol.simulations import SimulationSpec, SimulationView
from trainmaster.protocol.states import JobState
from trainmaster.protocol.tenants import EventView, JobView, JoinSpec, KeySpec
from trainmaster.protocol.usage import Per, UsageAnswer
from trainmaster.protocol.workload import Workload

Model = TypeVar("Model", bound=BaseModel)

PAGE = 500
ALL = JobFilter()
_LAST_LOOK_SECONDS = 1.0
_LOOK_SECONDS = 1.0


class Verbs:
    """Each verb gives steps for a transport."""

    def __init__(self, terms: CallTerms) -> None:
        self._terms = terms

    # Jobs

    def submit(self, specs: Spec | Sequence[Spec], idempotency_key: str | None) -> Steps[list[str]]:
        return self._ids(calls.submit(_listed(specs), idempotency_key))

    def submit_parameters(
        self, spec: Spec, parameters: Sequence[Parameters], idempotency_key: str | None
    ) -> Steps[list[str]]:
        return self._ids(calls.submit_parameters(spec, parameters, idempotency_key))

    def dry_run(self, specs: Spec | Sequence[Spec]) -> Steps[list[TriedJob]]:
        return self._models(calls.dry_run(_listed(specs)), "jobs", TriedJob)

    def pages(self, wanted: JobFilter, page_size: int) -> Telling[JobPage, None]:
        return self._pages(wanted, page_size, lambda page: (page,))

    def jobs(self, wanted: JobFilter, page_size: int) -> Telling[JobView, None]:
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
        return self._model(calls.show_job(job), JobView)

    def why(self, job: str) -> Steps[JobReason]:
        return self._model(calls.why(job), JobReason)

    def events(self, job: str, after: int, limit: int) -> Steps[list[EventView]]:
        return self._models(calls.events(job, after, limit), "events", EventView)

    def watch(self, job: str, after: int, timeout: float | None) -> Telling[EventView | Notice | Ended, None]:
        return follow(self._terms, EventWatch(job, after), timeout)

    def logs(
        self, job: str, wanted: bool, role: str | None, index: int | None, attempt: int | None, tail_bytes: int
    ) -> Telling[LogPiece | Notice | Ended, None]:
        return follow(self._terms, LogTail(job, wanted, role, index, attempt, tail_bytes), None)

    def wait(
        self, job: str | Sequence[str], timeout: float | None, check: bool
    ) -> Telling[Any, JobView | list[JobView]]:
        """Once the dispatcher has answered, it may be away for as long as there is time."""
        ends = None if timeout is None else self._terms.clock() + timeout
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
            yield from follow(self._terms, EventWatch(job, now.version), left, known=True)
            now = yield from self._look_again(now, ends)
        return now

    def _look_again(self, last: JobView, ends: float | None) -> Steps[JobView]:
        """The job as it is, or as it was last seen if the dispatcher stays away until the time is up."""
        left = self._left(ends)
        within = float("inf") if left is None else max(left, _LAST_LOOK_SECONDS)
        try:
            return (yield from self._model(calls.show_job(last.id), JobView, within))
        except TrainmasterError as error:
            if core.is_passing(error):
                return last
            raise

    def _left(self, ends: float | None) -> float | None:
        return None if ends is None else ends - self._terms.clock()

    def act(self, job: str, action: Action, grace: str | None) -> Steps[JobAction]:
        return self._model(calls.act(job, action, grace), JobAction)

    def bulk(self, action: Action, wanted: JobFilter, dry_run: bool, grace: str | None) -> Steps[BulkAnswer]:
        return self._model(calls.bulk(action, wanted, dry_run=dry_run, grace=grace), BulkAnswer)

    def change(self, job: str, priority: int | None, priority_class: str | None) -> Steps[JobView]:
        return self._model(calls.change(job, _patch(priority, priority_class)), JobView)

    def bulk_change(
        self, wanted: JobFilter, priority: int | None, priority_class: str | None, dry_run: bool
    ) -> Steps[BulkAnswer]:
        return self._model(calls.bulk_change(wanted, _patch(priority, priority_class), dry_run=dry_run), BulkAnswer)

    # Tenants, clusters and keys

    def queues(self, usage: bool) -> Steps[list[QueueView]]:
        return self._models(calls.queues(usage=usage), calls.COLLECTIONS["Queue"][1], QueueView)

    def usage(
        self, begin: datetime, end: datetime, per: Per, by: Sequence[str], queue: str | None
    ) -> Steps[UsageAnswer]:
        return self._model(calls.usage(begin, end, per, by, queue), UsageAnswer)

    def clusters(self) -> Steps[list[ClusterView]]:
        return self._models(calls.list_objects("Cluster"), calls.COLLECTIONS["Cluster"][1], ClusterView)

    def objects(self, kind: Kind) -> Steps[list[dict[str, Any]]]:
        value = yield from self._value(calls.list_objects(kind))
        found: list[dict[str, Any]] = value[calls.COLLECTIONS[kind][1]]
        return found

    def get_object(self, kind: Kind, name: str) -> Steps[dict[str, Any]]:
        for item in (yield from self.objects(kind)):
            if item.get("path", item.get("name")) == name:
                return item
        raise ProblemError(Code.NOT_FOUND, f"there is no {kind} {name!r}")

    def put(self, kind: Kind, name: str, body: Mapping[str, Any]) -> Steps[dict[str, Any]]:
        return self._value(calls.put_object(kind, name, body))

    def delete(self, kind: Kind, name: str) -> Steps[None]:
        yield from self._value(calls.delete_object(kind, name))

    def cordon(self, cluster: str, on: bool) -> Steps[None]:
        yield from self._value(calls.cordon(cluster, on=on))

    def cluster(self, cluster: str) -> Steps[ClusterView]:
        return self._model(calls.show_cluster(cluster), ClusterView)

    def join_cluster(self, spec: JoinSpec) -> Steps[AgentKey]:
        return self._model(calls.join_cluster(spec), AgentKey)

    def rotate_cluster_key(self, cluster: str, revoke_old: bool) -> Steps[AgentKey]:
        return self._model(calls.rotate_cluster_key(cluster, revoke_old=revoke_old), AgentKey)

    def drain(self, cluster: str, let_finish: bool) -> Steps[DrainAnswer]:
        return self._model(calls.drain_cluster(cluster, let_finish=let_finish), DrainAnswer)

    def watch_drain(self, cluster: str, timeout: float | None) -> Telling[ClusterView, None]:
        """The cluster each time that its number of runs has changed, until there are none or the time is up."""
        ends = None if timeout is None else self._terms.clock() + timeout
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
        return self._models(calls.quarantined_runs(cluster), "runs", QuarantinedRun)

    def stop_quarantined(self, cluster: str, runs: Sequence[str]) -> Steps[list[str]]:
        value = yield from self._value(calls.stop_quarantined(cluster, runs))
        return list(value["stopping"])

    def declare_lost(self, cluster: str, force: bool, orphans: bool) -> Steps[LostRuns]:
        return self._model(calls.declare_lost(cluster, force=force, orphans=orphans), LostRuns)

    def remove_cluster(self, cluster: str, force: bool) -> Steps[None]:
        yield from self._value(calls.remove_cluster(cluster, force=force))

    def workload(self, begin: datetime, end: datetime) -> Telling[Workload, None]:
        cursor: int | None = None
        while True:
            page = yield from self._model(calls.workload(begin, end, cursor), Workload)
            yield Tell(page)
            cursor = page.next
            if cursor is None:
                return

    def preview_bursts(self, policies: Sequence[BurstPolicySpec]) -> Steps[Previews]:
        return self._model(calls.preview_bursts([one.to_wire() | {"name": one.name} for one in policies]), Previews)

    # Simulations

    def simulate(self, spec: SimulationSpec) -> Steps[SimulationView]:
        return self._model(calls.simulate(spec), SimulationView)

    def simulations(self, page_size: int) -> Telling[SimulationView, None]:
        cursor: int | None = None
        while True:
            value = yield from self._value(calls.list_simulations(cursor, page_size))
            for one in value["simulations"]:
                yield Tell(SimulationView.model_validate(one))
            cursor = value["next"]
            if cursor is None:
                return

    def simulation(self, simulation: int) -> Steps[SimulationView]:
        return self._model(calls.show_simulation(simulation), SimulationView)

    def watch_simulation(self, simulation: int, timeout: float | None) -> Telling[SimulationView, None]:
        """The simulation each time that it has changed, until it has ended or the time is up."""
        ends = None if timeout is None else self._terms.clock() + timeout
        before = None
        while True:
            now = yield from self.simulation(simulation)
            if now != before:
                before = now
                yield Tell(now)
            left = self._left(ends)
            if now.state.is_terminal or (left is not None and left <= 0):
                return
            yield Sleep(_LOOK_SECONDS if left is None else min(_LOOK_SECONDS, left))

    def simulation_report(self, simulation: int) -> Steps[str]:
        response = yield from send(self._terms, calls.simulation_report(simulation))
        core.check(response)
        return response.body.decode()

    def cancel_simulation(self, simulation: int) -> Steps[SimulationView]:
        return self._model(calls.cancel_simulation(simulation), SimulationView)

    def remove_simulation(self, simulation: int) -> Steps[None]:
        yield from self._value(calls.remove_simulation(simulation))

    # Keys

    def keys(self) -> Steps[list[KeyView]]:
        return self._models(calls.list_keys(), "keys", KeyView)

    def make_key(self, spec: KeySpec) -> Steps[NewKey]:
        return self._model(calls.make_key(spec), NewKey)

    def revoke_key(self, key_id: int) -> Steps[None]:
        yield from self._value(calls.revoke_key(key_id))

    # Audit

    def audit(
        self,
        target: str | None,
        actor: str | None,
        action: str | None,
        since: datetime | None,
        until: datetime | None,
        page_size: int,
    ) -> Telling[AuditEntry, None]:
        moments = [(name, None if at is None else at.isoformat()) for name, at in (("since", since), ("until", until))]
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
        return self._model(calls.webhook_secrets(queue), WebhookSecrets)

    def rotate_webhook_secret(self, queue: str, overlap: str) -> Steps[WebhookSecrets]:
        return self._model(calls.rotate_webhook_secret(queue, overlap), WebhookSecrets)

    def dead_letters(self, page_size: int) -> Telling[DeadLetter, None]:
        cursor: str | None = None
        while True:
            page = yield from self._model(calls.dead_letters(cursor, page_size), DeadLetterPage)
            for letter in page.dead:
                yield Tell(letter)
            cursor = page.next
            if cursor is None:
                return

    def retry_dead_letter(self, letter: int) -> Steps[DeadLetter]:
        return self._model(calls.retry_dead_letter(letter), DeadLetter)

    def drop_dead_letter(self, letter: int) -> Steps[None]:
        yield from self._value(calls.drop_dead_letter(letter))

    # Sending

    def _value(self, request: Request) -> Steps[Any]:
        return core.read_value((yield from send(self._terms, request)))

    def _model(self, request: Request, model: type[Model], within: float | None = None) -> Steps[Model]:
        return core.read_model((yield from send(self._terms, request, within)), model)

    def _models(self, request: Request, field: str, model: type[Model]) -> Steps[list[Model]]:
        value = yield from self._value(request)
        return [model.model_validate(item) for item in value[field]]

    def _ids(self, request: Request) -> Steps[list[str]]:
        value = yield from self._value(request)
        return [item["id"] for item in value["jobs"]]


def _listed(specs: Spec | Sequence[Spec]) -> Sequence[Spec]:
    return [specs] if isinstance(specs, Mapping | JobSpec) else list(specs)


def _check(jobs: Sequence[JobView]) -> None:
    """Raise JobFailedError, or WaitTimeoutError, unless all jobs succeeded."""
    failed = [job for job in jobs if job.state.is_terminal and job.state is not JobState.SUCCEEDED]
    if failed:
        raise JobFailedError(failed)
    late = [job for job in jobs if not job.state.is_terminal]
    if late:
        raise WaitTimeoutError(late)


def _patch(priority: int | None, priority_class: str | None) -> dict[str, Any]:
    fields = {"priority": priority, "priorityClass": priority_class}
    return {name: value for name, value in fields.items() if value is not None}
