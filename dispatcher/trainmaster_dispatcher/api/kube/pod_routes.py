"""Members of jobs as pods by the Kubernetes API: listed, watched, and their output read. Output is that of the REST API."""

import re
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import StreamingResponse

from trainmaster.protocol.errors import Code, ProblemError
from trainmaster_dispatcher.api.context import App, State
from trainmaster_dispatcher.api.kube.calls import (
    KubernetesRoute,
    Listing,
    ListToken,
    is_true,
    listed,
    person,
    selector,
    shown,
    wants_table,
)
from trainmaster_dispatcher.api.kube.job_selection import filter_of
from trainmaster_dispatcher.api.kube.job_watches import WatchEvent
from trainmaster_dispatcher.api.kube.objects import ListMetadata, Wire
from trainmaster_dispatcher.api.kube.pods import JOB_LABEL, POD_FIELDS, PodName, containers_of, pod_object
from trainmaster_dispatcher.api.kube.resources import PODS
from trainmaster_dispatcher.api.kube.selectors import Operator, parse_fields, parse_labels, refused
from trainmaster_dispatcher.api.kube.status import not_found
from trainmaster_dispatcher.api.kube.watching import Followed, Watch, each_page, frames
from trainmaster_dispatcher.api.limits import StreamKind
from trainmaster_dispatcher.containment import Part
from trainmaster_dispatcher.containment import note as note_error
from trainmaster_dispatcher.domain.namespaces import namespace_of
from trainmaster_dispatcher.services import job_members, job_objects, job_queries, logs
from trainmaster_dispatcher.services.event_feed import Position
from trainmaster_dispatcher.services.job_members import JobMember
from trainmaster_dispatcher.services.job_objects import ReadJob
from trainmaster_dispatcher.store import versions
from trainmaster_dispatcher.store.database import Transaction
from trainmaster_dispatcher.store.keys import Caller
from trainmaster_dispatcher.store.redis_channels import JOBS

router = APIRouter(include_in_schema=False, route_class=KubernetesRoute)

_JOBS_PER_PAGE = 50
_ALL = "/api/v1/namespaces/{namespace}/pods"
_WITH_ZONE = re.compile(r"(Z|[+-]\d\d:\d\d)$")


@router.get("/api/v1/pods")
async def list_all_pods(request: Request, state: App, wanted: Annotated[Listing, Depends()]) -> Response:
    return await _list(request, state, wanted, None)


@router.get(_ALL)
async def list_pods(namespace: str, request: Request, state: App, wanted: Annotated[Listing, Depends()]) -> Response:
    return await _list(request, state, wanted, namespace)


@router.get(f"{_ALL}/{{name}}")
async def show_pod(namespace: str, name: str, request: Request, state: App) -> Response:
    caller = await person(request)
    async with state.stores.database.reading() as tx:
        member = await _member(tx, caller, namespace, name)
    return shown(request, pod_object(member), PODS)


class _LogQuery:
    """The parameters of a call that reads the output of a pod. Raises ProblemError INVALID_PARAMETER."""

    def __init__(
        self,
        container: Annotated[str, Query()] = "",
        follow: Annotated[str, Query()] = "",
        previous: Annotated[str, Query()] = "",
        timestamps: Annotated[str, Query()] = "",
        tail_lines: Annotated[int | None, Query(alias="tailLines", ge=0, le=1_000_000)] = None,
        limit: Annotated[int | None, Query(alias="limitBytes", ge=1)] = None,
        seconds: Annotated[int | None, Query(alias="sinceSeconds", ge=1)] = None,
        since: Annotated[str, Query(alias="sinceTime")] = "",
    ) -> None:
        self.container = container
        self.limit = limit
        self.options = logs.LogOptions(
            follow=is_true(follow),
            tail_bytes=logs.WHOLE,
            tail_lines=tail_lines,
            since=_since(seconds, since),
            previous=is_true(previous),
            timestamps=is_true(timestamps),
        )

    def of(self, member: JobMember) -> logs.LogOptions:
        """Return what is read of a member: of its run alone, as a pod is one of one run. Raises ProblemError INVALID_PARAMETER."""
        names = [one.get("name", "") for one in containers_of(dict(member.role))]
        if self.container not in ("", *names[:1]):
            kept = "" if self.container not in names else "; the output of others is not kept"
            raise refused(
                "container", f"{self.container!r} has no output here; the container with output is {names[0]!r}{kept}"
            )
        return replace(self.options, role=member.role_name, index=member.index, attempt=member.run.attempt)


def _since(seconds: int | None, moment: str) -> float | None:
    if seconds is not None and moment:
        raise refused("sinceTime", "is not given together with sinceSeconds")
    if seconds is not None:
        return time.time() - seconds
    if not moment:
        return None
    try:
        if not _WITH_ZONE.search(moment):
            raise ValueError(moment)
        return datetime.fromisoformat(moment).timestamp()
    except ValueError as error:
        raise refused("sinceTime", f"must be a time such as 2026-01-31T12:00:00Z, not {moment[:100]!r}") from error


@router.get(f"{_ALL}/{{name}}/log")
async def read_log(
    namespace: str, name: str, request: Request, state: App, wanted: Annotated[_LogQuery, Depends()]
) -> Response:
    """Answer with the output of a member, as text."""
    caller = await person(request)
    async with state.stores.database.reading() as tx:
        member = await _member(tx, caller, namespace, name)
    text = str(member.job.line["id"])
    options = wanted.of(member)
    key = await logs.find(state.stores, caller, text, options)
    stream = state.limits.open_stream(
        request.scope, StreamKind.LOGS, lambda: state.stores.channels.wake_here(JOBS, [key])
    )
    pieces = logs.read(state.stores, state.followers, key, text, options, stream.check)

    async def output() -> AsyncIterator[bytes]:
        left = wanted.limit
        is_begun = False
        try:
            async for piece in pieces:
                data = str(piece.get("data", ""))
                if options.timestamps and data:
                    at = str(piece.get("at", ""))
                    begin, is_begun = is_begun, not data.endswith("\n")
                    lines = data.splitlines(keepends=True)
                    data = "".join(
                        line if begin and number == 0 else f"{at} {line}" for number, line in enumerate(lines)
                    )
                part = data.encode()[:left]
                if part:
                    yield part
                if left is not None:
                    left -= len(part)
                    if left <= 0:
                        return
        except ProblemError as error:
            yield f"\n{error.detail}\n".encode()
        except Exception as error:  # noqa: BLE001 - noted with its traceback
            note_error(Part.STREAM, f"output of {name}", error)
            yield b"\nan error inside Trainmaster ended this stream; its log has it\n"

    return StreamingResponse(output(), media_type="text/plain", headers={"Cache-Control": "no-store"})


async def _member(tx: Transaction, caller: Caller, namespace: str, name: str) -> JobMember:
    """Return the member that is a pod of this name. Raises ProblemError NOT_FOUND."""
    parts = PodName.read(name)
    if parts is not None:
        found = await job_members.of_jobs(tx, await job_objects.show_all(tx, caller, namespace, parts.job))
        for members in found.values():
            for one in members:
                if (one.role_name, one.index) == (parts.role, parts.index):
                    return one
    raise not_found(PODS.full_name, name)


@dataclass(frozen=True, slots=True)
class _ChosenPods:
    """The pods that a call is about. ``job``: the name of the only job's object; None for all jobs."""

    request: Request
    wanted: Listing
    caller: Caller
    namespace: str | None
    job: str | None

    @classmethod
    def of(cls, request: Request, wanted: Listing, caller: Caller, namespace: str | None) -> "_ChosenPods":
        """Return what a call chooses. Raises ProblemError INVALID_PARAMETER."""
        fields = {one.path: one.value for one in parse_fields(wanted.fields, POD_FIELDS, "pods") if not one.is_negated}
        place = namespace or fields.get("metadata.namespace") or None
        job = None
        for label in parse_labels(wanted.labels):
            if label.key == JOB_LABEL and label.operator is Operator.IN and len(label.values) == 1:
                (job,) = label.values
        parts = PodName.read(fields.get("metadata.name", ""))
        return cls(request, wanted, caller, place, job if parts is None else parts.job)

    def is_about(self, job: ReadJob) -> bool:
        """Return whether pods of a job can be among the chosen ones, and the caller may see it."""
        queue = job.line["queue"]
        return (
            self.caller.may_use(queue)
            and self.namespace in (None, namespace_of(queue))
            and self.job in (None, job.name)
        )

    def select(self, members: Sequence[JobMember]) -> list[Wire]:
        """Return those of these members that the selectors select, as pods."""
        selects = selector(self.wanted, POD_FIELDS, "pods")
        return [item for item in map(pod_object, members) if selects(item)]

    def frames(self, event: WatchEvent, items: Sequence[Wire]) -> bytes:
        """Return events of a watch."""
        included = self.wanted.included if wants_table(self.request) else None
        return frames(event, items, PODS, self.caller, included)


async def _list(request: Request, state: State, wanted: Listing, namespace: str | None) -> Response:
    chosen = _ChosenPods.of(request, wanted, await person(request), namespace)
    if wanted.is_watch:
        return await _watch(state, chosen)
    token = ListToken.read(wanted.following)
    async with state.stores.database.reading() as tx:
        version = token.version or (await versions.horizon(tx)).version
        members, following = await _page(tx, chosen, token.cursor)
    metadata = ListMetadata(version, ListToken(version, following).written())
    return listed(request, wanted, chosen.select(members), PODS, metadata)


async def _page(tx: Transaction, chosen: _ChosenPods, cursor: str | None) -> tuple[list[JobMember], str | None]:
    """Return the members of a page of jobs, newest first, and the cursor of the next page."""
    following: str | None = None
    if chosen.job is not None:
        jobs: Sequence[ReadJob] = await job_objects.show_all(tx, chosen.caller, chosen.namespace, chosen.job)
    else:
        filtered = await filter_of(tx, chosen.caller, chosen.namespace, {})
        if filtered is None:
            return [], None
        page = await job_objects.page(tx, chosen.caller, filtered, (), cursor, _JOBS_PER_PAGE, is_whole=False)
        jobs, following = page.jobs, page.following
    found = await job_members.of_jobs(tx, jobs, chosen.wanted.limit if chosen.job is None else None)
    if len(found) < len(jobs):
        following = job_queries.make_cursor(list(found)[-1])
    return [member for members in found.values() for member in members], following


async def _watch(state: State, chosen: _ChosenPods) -> Response:
    """Answer a watch of pods. Raises ProblemError EXPIRED for a version from which changes are no longer known."""
    chosen.select(())  # so that wrong selectors are refused at once

    async def existing(cursor: str | None) -> tuple[bytes, str | None]:
        async with state.stores.database.reading() as tx:
            members, following = await _page(tx, chosen, cursor)
        return chosen.frames(WatchEvent.ADDED, chosen.select(members)), following

    async def read(position: Position) -> Followed:
        batch = await state.watches.after(position)
        events = {one.job.key: one.event for one in batch.changed if chosen.is_about(one.job)}
        jobs = [one.job for one in batch.changed if one.job.key in events]
        members: Mapping[int, Sequence[JobMember]] = {}
        if jobs:
            async with state.stores.database.reading() as tx:
                members = await job_members.of_jobs(tx, jobs)
        frames = (
            chosen.frames(
                WatchEvent.DELETED if events[key] is WatchEvent.DELETED else WatchEvent.MODIFIED, chosen.select(of_job)
            )
            for key, of_job in members.items()
        )
        return Followed(b"".join(frames), batch.position, batch.has_more, batch.missed)

    watch = Watch(PODS, chosen.wanted, wants_table(chosen.request), each_page(existing), read)
    return await watch.answer(chosen.request, state)


@router.api_route(f"{_ALL}/{{name}}/{{subresource}}", methods=["GET", "POST", "PUT", "PATCH", "DELETE"])
async def refuse_subresource(namespace: str, name: str, subresource: str, request: Request, state: App) -> Response:
    """Refuse what a member's pod cannot do here: kubectl shows these words."""
    caller = await person(request)
    async with state.stores.database.reading() as tx:
        member = await _member(tx, caller, namespace, name)
    raise ProblemError(
        Code.METHOD_NOT_ALLOWED,
        f"{subresource} of a pod is not offered here: this is a member of {member.job.line['id']}, and its pod is on the cluster"
        f" {member.run.cluster!r}",
    )
