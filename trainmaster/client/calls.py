"""The API's calls as request values. Pure; ``values.py`` has the filters."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, get_args
from urllib.parse import quote

from trainmaster.client import core
from trainmaster.client.core import Request
from trainmaster.client.values import JobFilter, Moment, written_moment
from trainmaster.protocol.agent import OutputPush, StreamPush, SyncRequest
from trainmaster.protocol.arrays import ElementsPush
from trainmaster.protocol.efficiency import EfficiencyGroup
from trainmaster.protocol.errors import Code, ProblemError
from trainmaster.protocol.files import FilesCall, FilesProblem, OutputFilesSpec, UploadSpec
from trainmaster.protocol.jobs import JobSpec
from trainmaster.protocol.json_limits import shown
from trainmaster.protocol.member_use import TopGroup, TopSort, UsePush
from trainmaster.protocol.notices import NoticesSpec
from trainmaster.protocol.resource_kinds import KINDS, QUEUE, Kind, ResourceKind
from trainmaster.protocol.schedules import ScheduleSpec
from trainmaster.protocol.simulations import QuotaWhatIfSpec, SimulationSpec
from trainmaster.protocol.suggestions import did_you_mean
from trainmaster.protocol.tenants import JoinSpec, KeySpec, RotateKeySpec
from trainmaster.protocol.usage import Per
from trainmaster.protocol.workflows import WorkflowSpec

Action = Literal["cancel", "suspend", "resume", "retry"]


_ACTIONS: tuple[Action, ...] = get_args(Action)


def kind_of(word: Kind) -> ResourceKind[Any]:
    """Return the kind that a word means. Raises ProblemError INVALID_PARAMETER for any other word."""
    if word not in KINDS:
        hint = did_you_mean(str(word), KINDS)
        raise ProblemError(Code.INVALID_PARAMETER, f"kind: must be one of {', '.join(KINDS)}, not {shown(word)}{hint}")
    return KINDS[word]


def _checked(action: Action) -> Action:
    if action not in _ACTIONS:
        hint = did_you_mean(str(action), _ACTIONS)
        raise ProblemError(
            Code.INVALID_PARAMETER, f"action: must be one of {', '.join(_ACTIONS)}, not {shown(action)}{hint}"
        )
    return action


def job_path(job: str, sub: str = "") -> str:
    """Return the path of a job. Raises ProblemError BAD_ID for what is no text, and for text that would change the path."""
    if not isinstance(job, str) or job.strip(".") == "":
        raise ProblemError(Code.BAD_ID, f"{job!r} is not a job id; a job id looks like bert-7k2p9xq")
    return f"/v1/jobs/{quote(job, safe='')}{sub}"


Spec = Mapping[str, Any] | JobSpec
"""A job's specification: as in YAML and JSON, or as a model."""
Parameters = Mapping[str, str | int | float | bool]
"""Values for the placeholders ``${name}`` of a specification, for one job."""


def submit(
    specs: Sequence[Spec],
    idempotency_key: str | None = None,
    on_behalf_of: str | None = None,
    *,
    close_group: bool = False,
) -> Request:
    body = {"jobs": [_plain(spec) for spec in specs]}
    return core.post("/v1/jobs", body, idempotency_key, _about_submission(on_behalf_of, close_group=close_group))


def _about_submission(on_behalf_of: str | None, *, close_group: bool) -> list[tuple[str, str | None]]:
    return [("onBehalfOf", on_behalf_of), ("closeGroup", "true" if close_group else None)]


def submit_parameters(
    spec: Spec,
    parameters: Iterable[Parameters],
    idempotency_key: str | None = None,
    on_behalf_of: str | None = None,
    *,
    close_group: bool = False,
) -> Request:
    """Submit one specification with a table of parameter sets."""
    body = {"job": _plain(spec), "parameters": [dict(row) for row in parameters]}
    return core.post("/v1/jobs", body, idempotency_key, _about_submission(on_behalf_of, close_group=close_group))


def dry_run(specs: Sequence[Spec], on_behalf_of: str | None = None) -> Request:
    body = {"jobs": [_plain(spec) for spec in specs]}
    return core.ask("/v1/jobs", body, dryRun="true", onBehalfOf=on_behalf_of)


def dry_run_parameters(spec: Spec, parameters: Iterable[Parameters], on_behalf_of: str | None = None) -> Request:
    body = {"job": _plain(spec), "parameters": [dict(row) for row in parameters]}
    return core.ask("/v1/jobs", body, dryRun="true", onBehalfOf=on_behalf_of)


def _plain(spec: Spec) -> Mapping[str, Any]:
    return spec.to_wire() if isinstance(spec, JobSpec) else spec


def list_jobs(wanted: JobFilter, cursor: str | None, limit: int) -> Request:
    return core.get("/v1/jobs", [*wanted.to_query(), ("cursor", cursor), ("limit", str(limit))])


def show_job(job: str) -> Request:
    return core.get(job_path(job))


def why(job: str) -> Request:
    return core.get(job_path(job, "/why"))


def dependencies(job: str) -> Request:
    return core.get(job_path(job, "/dependencies"))


def elements(job: str) -> Request:
    return core.get(job_path(job, "/elements"))


def jobs_of_elements(job: str, elements: str | None, cursor: int | None) -> Request:
    query = [("elements", elements), ("cursor", None if cursor is None else str(cursor))]
    return core.get(job_path(job, "/elements/jobs"), query)


def results_of_elements(job: str, cursor: int | None) -> Request:
    return core.get(job_path(job, "/elements/results"), [("cursor", None if cursor is None else str(cursor))])


def cancel_elements(job: str, elements: str) -> Request:
    return core.post(job_path(job, "/elements/cancel"), {"elements": elements})


def begin_upload(spec: UploadSpec) -> Request:
    return core.post_state("/v1/files", spec)


def write_upload(upload: str, offset: int, data: bytes) -> Request:
    return core.put_bytes(f"/v1/files/{quote(upload, safe='')}", data, [("offset", str(offset))])


def finish_upload(upload: str) -> Request:
    return core.ask(f"/v1/files/{quote(upload, safe='')}/finish", {})


def artifacts(job: str, attempt: int | None) -> Request:
    return core.get(job_path(job, "/artifacts"), [("attempt", None if attempt is None else str(attempt))])


def artifact(job: str, name: str, attempt: int | None) -> Request:
    path = job_path(job, f"/artifacts/{_artifact_name(name)}")
    return core.get(path, [("attempt", None if attempt is None else str(attempt))])


def read_artifact(job: str, name: str, attempt: int | None, offset: int, limit: int) -> Request:
    query = [("attempt", None if attempt is None else str(attempt)), ("offset", str(offset)), ("limit", str(limit))]
    path = job_path(job, f"/artifacts/{_artifact_name(name)}/data")
    return core.get(path, query, accept="application/octet-stream")


def _artifact_name(name: str) -> str:
    """Return the name of an artifact in a path. Raises ProblemError NOT_FOUND for text that would change the path."""
    if not name.strip("."):
        raise ProblemError(Code.NOT_FOUND, f"{name!r} is not the name of an artifact")
    return quote(name, safe="")


def events(job: str, after: int, limit: int) -> Request:
    return core.get(job_path(job, "/events"), [("after", str(after)), ("limit", str(limit))])


def events_of_jobs(wanted: JobFilter, kinds: Sequence[str], after: str | None, limit: int) -> Request:
    """List transitions of many jobs. Raises ProblemError INVALID_PARAMETER for a filter by the time of submission, or a search."""
    return core.get("/v1/events", [*event_query(wanted, kinds), ("after", after), ("limit", str(limit))])


def event_query(wanted: JobFilter, kinds: Sequence[str]) -> list[tuple[str, str | None]]:
    """Return the query for transitions of jobs. Raises ProblemError INVALID_PARAMETER for a filter by the time of submission, or a
    search.
    """
    if wanted.since is not None or wanted.until is not None:
        raise ProblemError(
            Code.INVALID_PARAMETER, "transitions of jobs are not filtered by since and until; give after, a position"
        )
    if wanted.search is not None:
        raise ProblemError(
            Code.INVALID_PARAMETER, "transitions of jobs are not filtered by search; give name, submitted_by or labels"
        )
    chosen = [kinds] if isinstance(kinds, str) else kinds
    return [*(item for item in wanted.to_query() if item[1] is not None), *(("kind", one) for one in chosen)]


def act(job: str, action: Action, grace: str | None = None) -> Request:
    return core.post(job_path(job, f"/{_checked(action)}"), None if grace is None else {"grace": grace})


def bulk(action: Action, wanted: JobFilter, *, dry_run: bool, grace: str | None = None) -> Request:
    body = {"filter": wanted.to_wire(), "dryRun": dry_run}
    return core.post(f"/v1/jobs/{_checked(action)}", body if grace is None else body | {"grace": grace})


def change(job: str, fields: Mapping[str, Any]) -> Request:
    return core.patch(job_path(job), dict(fields))


def bulk_change(wanted: JobFilter, fields: Mapping[str, Any], *, dry_run: bool) -> Request:
    return core.post("/v1/jobs/reprioritise", {"filter": wanted.to_wire(), "dryRun": dry_run, "patch": dict(fields)})


def list_objects(kind: Kind) -> Request:
    return core.get(kind_of(kind).address)


def queues(*, usage: bool, ended: bool) -> Request:
    return core.get(QUEUE.address, (("usage", "true" if usage else None), ("ended", "true" if ended else None)))


def use_of(job: str, since: Moment | None, step: int | None) -> Request:
    times = [] if since is None else [("since", written_moment(since, "since"))]
    return core.get(job_path(job, "/use"), [*times, *([] if step is None else [("step", str(step))])])


def top(
    queue: str | None,
    cluster: str | None,
    user: str | None,
    gpus_idle: bool,
    sort: TopSort,
    by: TopGroup | None,
    limit: int,
) -> Request:
    query = [("queue", queue), ("cluster", cluster), ("submittedBy", user), ("sort", sort), ("by", by)]
    idle = [("gpusIdle", "true")] if gpus_idle else []
    return core.get("/v1/top", [*query, *idle, ("limit", str(limit))])


def series(
    metric: str,
    labels: Mapping[str, str | int | None],
    by: Sequence[str],
    since: Moment | None,
    until: Moment | None,
    step: int | None,
) -> Request:
    times = [(name, written_moment(at, name)) for name, at in (("since", since), ("until", until)) if at is not None]
    query = [("metric", metric), *(("by", one) for one in by)]
    query += [(name, str(value)) for name, value in labels.items() if value is not None]
    return core.get("/v1/series", [*query, *times, ("step", None if step is None else str(step))])


def series_metrics() -> Request:
    return core.get("/v1/series/metrics")


def quota_what_if(path: str, spec: QuotaWhatIfSpec) -> Request:
    return core.post(f"/v1/queues/{quote(path)}/what-if", spec.to_wire())


def sessions(queue: str | None, user: str | None, limit: int) -> Request:
    return core.get("/v1/sessions", [("queue", queue), ("submittedBy", user), ("limit", str(limit))])


def session_link(job: str, port: str) -> Request:
    return core.post(job_path(job, "/session-links"), {"port": port})


def usage(begin: Moment, end: Moment, per: Per, by: Sequence[str], queue: str | None) -> Request:
    dimensions = [by] if isinstance(by, str) else by
    query = [*_window(begin, end), ("per", per), *(("by", one) for one in dimensions)]
    return core.get("/v1/usage", [*query, ("queue", queue)])


def efficiency(begin: Moment, end: Moment, by: EfficiencyGroup, queue: str | None, limit: int) -> Request:
    return core.get("/v1/efficiency", [*_window(begin, end), ("by", by), ("queue", queue), ("limit", str(limit))])


def attainment(begin: Moment | None, end: Moment | None, queue: str | None) -> Request:
    times = [
        (name, written_moment(moment, name)) for name, moment in (("begin", begin), ("end", end)) if moment is not None
    ]
    return core.get("/v1/attainment", [*times, ("queue", queue)])


def _window(begin: Moment, end: Moment) -> list[tuple[str, str]]:
    return [(name, written_moment(moment, name)) for name, moment in (("begin", begin), ("end", end))]


def workload(begin: Moment, end: Moment, cursor: int | None) -> Request:
    return core.get("/v1/workload", [*_window(begin, end), ("cursor", None if cursor is None else str(cursor))])


def preview_bursts(policies: Sequence[Mapping[str, Any]]) -> Request:
    return core.ask("/v1/burst-policies/preview", {"policies": list(policies)})


def simulate(spec: SimulationSpec) -> Request:
    return core.post("/v1/simulations", spec.to_wire())


def list_simulations(cursor: int | None, limit: int) -> Request:
    return core.get("/v1/simulations", [("cursor", None if cursor is None else str(cursor)), ("limit", str(limit))])


def show_simulation(simulation: int) -> Request:
    return core.get(f"/v1/simulations/{simulation}")


def simulation_report(simulation: int) -> Request:
    return core.get(f"/v1/simulations/{simulation}/report", accept="text/html")


def cancel_simulation(simulation: int) -> Request:
    return core.post(f"/v1/simulations/{simulation}/cancel", None)


def remove_simulation(simulation: int) -> Request:
    return core.delete(f"/v1/simulations/{simulation}")


def put_object(kind: Kind, name: str, body: Mapping[str, Any]) -> Request:
    return core.put(f"{kind_of(kind).address}/{quote(name)}", dict(body))


def delete_object(kind: Kind, name: str) -> Request:
    return core.delete(f"{kind_of(kind).address}/{quote(name)}")


def patch_object(kind: Kind, name: str, patch: Mapping[str, Any], if_match: str | None) -> Request:
    """Change fields of an object. With ``if_match`` not repeatable: a second try would meet the change of the first."""
    request = core.patch(f"{kind_of(kind).address}/{quote(name)}", dict(patch))
    if if_match is None:
        return request
    return replace(request, headers={**request.headers, "If-Match": if_match}, repeatable=False)


def apply(body: Mapping[str, Any], idempotency_key: str | None) -> Request:
    """Apply documents; a dry run has no idempotency key."""
    if body.get("dryRun"):
        return core.ask("/v1/apply", dict(body))
    return core.post("/v1/apply", dict(body), idempotency_key)


def list_revisions(kind: Kind, name: str, cursor: int | None, limit: int) -> Request:
    query = [("kind", kind), ("name", name), ("cursor", None if cursor is None else str(cursor))]
    return core.get("/v1/history", [*query, ("limit", str(limit))])


def roll_back(kind: Kind, name: str, revision: int | None, *, dry_run: bool) -> Request:
    body: dict[str, Any] = {"kind": kind, "name": name} | ({} if revision is None else {"revision": revision})
    return core.ask("/v1/rollback", body | {"dryRun": True}) if dry_run else core.post("/v1/rollback", body)


def cordon(cluster: str, *, on: bool) -> Request:
    return core.post(cluster_path(cluster, "/cordon" if on else "/uncordon"), None)


def cluster_path(cluster: str, sub: str = "") -> str:
    return f"/v1/clusters/{quote(cluster, safe='')}{sub}"


def show_cluster(cluster: str) -> Request:
    return core.get(cluster_path(cluster))


def join_cluster(spec: JoinSpec) -> Request:
    """Make a cluster's agent key. Not repeatable: the API caches no answer with a secret."""
    return core.post_once(cluster_path(spec.name, "/join"), spec.to_wire())


def rotate_cluster_key(cluster: str, *, revoke_old: bool) -> Request:
    """Make another key for a cluster's agent. Not repeatable: the API caches no answer with a secret."""
    return core.post_once(cluster_path(cluster, "/rotate"), {"revokeOld": revoke_old})


def drain_cluster(cluster: str, *, let_finish: bool) -> Request:
    return core.post(cluster_path(cluster, "/drain"), {"letFinish": let_finish})


def quarantined_runs(cluster: str) -> Request:
    return core.get(cluster_path(cluster, "/quarantined-runs"))


def stop_quarantined(cluster: str, runs: Sequence[str]) -> Request:
    return core.post(cluster_path(cluster, "/stop-quarantined"), {"runs": list(runs)})


def declare_lost(cluster: str, *, force: bool, orphans: bool) -> Request:
    body = {"force": force} | ({"orphans": True} if orphans else {})
    return core.post(cluster_path(cluster, "/declare-lost"), body)


def remove_cluster(cluster: str, *, force: bool) -> Request:
    return core.delete(cluster_path(cluster), (("force", "true" if force else None),))


def list_keys() -> Request:
    return core.get("/v1/keys")


def make_key(spec: KeySpec) -> Request:
    """Make an API key. Not repeatable: the API caches no answer with a secret."""
    return core.post_once("/v1/keys", spec.to_wire())


def rotate_key(key_id: int, spec: RotateKeySpec) -> Request:
    """Make another key in place of one. Not repeatable: the API caches no answer with a secret."""
    return core.post_once(f"/v1/keys/{key_id}/rotate", spec.to_wire())


def can_i(permission: str, queue: str | None) -> Request:
    return core.get("/v1/can-i", [("permission", permission), ("queue", queue)])


def who_can(permission: str, queue: str | None) -> Request:
    return core.get("/v1/who-can", [("permission", permission), ("queue", queue)])


def people() -> Request:
    return core.get("/v1/people")


def whoami() -> Request:
    return core.get("/v1/whoami")


def revoke_key(key_id: int, *, force: bool) -> Request:
    return core.delete(f"/v1/keys/{key_id}", (("force", "true" if force else None),))


def restore_person(key_id: int) -> Request:
    return core.post(f"/v1/keys/{key_id}/restore", None)


def set_key_email(key_id: int, email: str | None) -> Request:
    return core.post(f"/v1/keys/{key_id}/email", {} if email is None else {"email": email})


def show_notices() -> Request:
    return core.get("/v1/notices")


def put_notices(spec: NoticesSpec) -> Request:
    return core.put("/v1/notices", spec.to_wire())


def remove_notices() -> Request:
    return core.delete("/v1/notices")


def list_audit(filters: Sequence[tuple[str, str | None]], cursor: str | None, limit: int) -> Request:
    return core.get("/v1/audit", [*filters, ("cursor", cursor), ("limit", str(limit))])


def doctor() -> Request:
    return core.get("/v1/doctor")


def webhook_secrets(queue: str) -> Request:
    return core.get(f"/v1/webhooks/secrets/{quote(queue)}")


def rotate_webhook_secret(queue: str, overlap: str) -> Request:
    """Replace a queue's secret. Not repeatable: the API caches no answer with a secret."""
    return core.post_once(f"/v1/webhooks/secrets/{quote(queue)}/rotate", {"overlap": overlap})


def dead_letters(cursor: str | None, limit: int) -> Request:
    return core.get("/v1/webhooks/dead", [("cursor", cursor), ("limit", str(limit))])


def retry_dead_letter(letter: int) -> Request:
    return core.post(f"/v1/webhooks/dead/{letter}/retry", None)


def drop_dead_letter(letter: int) -> Request:
    return core.delete(f"/v1/webhooks/dead/{letter}")


def agent_sync(body: SyncRequest) -> Request:
    return core.post_state("/agent/v1/sync", body)


def agent_desired(session: str, after: int, wait: float) -> Request:
    return core.get("/agent/v1/desired", [("session", session), ("after", str(after)), ("wait", f"{wait:g}")])


def agent_push(stream: str, body: StreamPush) -> Request:
    return core.post_state(f"/agent/v1/streams/{quote(stream, safe='')}", body)


def agent_output(run: str, body: OutputPush) -> Request:
    return core.post_state(f"/agent/v1/output/{quote(run, safe='')}", body)


def agent_array(run: str, session: str) -> Request:
    return core.get(f"/agent/v1/arrays/{quote(run, safe='')}", [("session", session)])


def agent_elements(run: str, body: ElementsPush) -> Request:
    return core.post_state(f"/agent/v1/arrays/{quote(run, safe='')}", body)


def agent_files(run: str, session: str) -> Request:
    return core.get(_files_path(run), [("session", session)])


def agent_read_input(run: str, session: str, number: int, offset: int, limit: int) -> Request:
    query = [("session", session), ("offset", str(offset)), ("limit", str(limit))]
    return core.get(_files_path(run, f"/inputs/{number}"), query, accept="application/octet-stream")


def agent_begin_output(run: str, body: OutputFilesSpec) -> Request:
    return core.post_state(_files_path(run, "/outputs"), body)


def agent_write_output(run: str, session: str, upload: str, offset: int, data: bytes) -> Request:
    query = [("session", session), ("offset", str(offset))]
    return core.put_bytes(_files_path(run, f"/uploads/{quote(upload, safe='')}"), data, query)


def agent_finish_output(run: str, upload: str, body: FilesCall) -> Request:
    return core.post_state(_files_path(run, f"/uploads/{quote(upload, safe='')}"), body)


def agent_files_problem(run: str, body: FilesProblem) -> Request:
    return core.post_state(_files_path(run, "/problem"), body)


def _files_path(run: str, sub: str = "") -> str:
    return f"/agent/v1/files/{quote(run, safe='')}{sub}"


def agent_use(body: UsePush) -> Request:
    return core.post_state("/agent/v1/use", body)


ScheduleDocument = Mapping[str, Any] | ScheduleSpec
"""A schedule: a document of this system or a CronJob of Kubernetes, as in YAML and JSON, or a model."""


def _schedule_path(name: str, sub: str = "") -> str:
    return f"/v1/schedules/{quote(name, safe='')}{sub}"


def _schedule_body(spec: ScheduleDocument) -> Mapping[str, Any]:
    return {**spec.to_wire(), "kind": "Schedule"} if isinstance(spec, ScheduleSpec) else spec


def create_schedule(spec: ScheduleDocument, idempotency_key: str | None, on_behalf_of: str | None) -> Request:
    return core.post("/v1/schedules", _schedule_body(spec), idempotency_key, [("onBehalfOf", on_behalf_of)])


def list_schedules(queue: str | None, cursor: str | None, limit: int) -> Request:
    return core.get("/v1/schedules", [("queue", queue), ("cursor", cursor), ("limit", str(limit))])


def show_schedule(name: str, queue: str | None) -> Request:
    return core.get(_schedule_path(name), [("queue", queue)])


def replace_schedule(name: str, spec: ScheduleDocument, queue: str | None) -> Request:
    return _in_queue(core.put(_schedule_path(name), _schedule_body(spec)), queue)


def change_schedule(name: str, patch: Mapping[str, Any], queue: str | None) -> Request:
    return _in_queue(core.patch(_schedule_path(name), dict(patch)), queue)


def _in_queue(request: Request, queue: str | None) -> Request:
    return request if queue is None else replace(request, query=(("queue", queue),))


def delete_schedule(name: str, queue: str | None, *, keep_jobs: bool) -> Request:
    return core.delete(_schedule_path(name), [("queue", queue), ("keepJobs", "true" if keep_jobs else None)])


def run_schedule(name: str, queue: str | None, idempotency_key: str | None) -> Request:
    return core.post(_schedule_path(name, "/run"), None, idempotency_key, [("queue", queue)])


WorkflowDocument = Mapping[str, Any] | WorkflowSpec
"""A workflow: a document, as in YAML and JSON, or a model."""


def _workflow_path(workflow: str, sub: str = "") -> str:
    return f"/v1/workflows/{quote(workflow, safe='')}{sub}"


def submit_workflow(spec: WorkflowDocument, idempotency_key: str | None, on_behalf_of: str | None) -> Request:
    body = {**spec.to_wire(), "kind": "Workflow"} if isinstance(spec, WorkflowSpec) else spec
    return core.post("/v1/workflows", body, idempotency_key, [("onBehalfOf", on_behalf_of)])


def list_workflows(queue: str | None, states: Sequence[str], cursor: str | None, limit: int) -> Request:
    wanted = [("state", state) for state in states]
    return core.get("/v1/workflows", [("queue", queue), *wanted, ("cursor", cursor), ("limit", str(limit))])


def show_workflow(workflow: str) -> Request:
    return core.get(_workflow_path(workflow))


def cancel_workflow(workflow: str, *, cleanup: bool) -> Request:
    return core.post(_workflow_path(workflow, "/cancel"), None if cleanup else {"cleanup": False})


def resume_workflow(workflow: str) -> Request:
    return core.post(_workflow_path(workflow, "/resume"), None)


# Groups


def _group_path(group: str, sub: str = "") -> str:
    return f"/v1/groups/{quote(group, safe='')}{sub}"


def list_groups(queue: str | None, states: Sequence[str], cursor: str | None, limit: int) -> Request:
    wanted = [("state", state) for state in ([states] if isinstance(states, str) else states)]
    return core.get("/v1/groups", [("queue", queue), *wanted, ("cursor", cursor), ("limit", str(limit))])


def show_group(group: str, queue: str | None) -> Request:
    return core.get(_group_path(group), [("queue", queue)])


def close_group(group: str, queue: str | None) -> Request:
    return core.post(_group_path(group, "/close"), None, None, [("queue", queue)])


def cancel_group(group: str, queue: str | None, grace: str | None) -> Request:
    body = None if grace is None else {"grace": grace}
    return core.post(_group_path(group, "/cancel"), body, None, [("queue", queue)])
