"""Members of jobs as pods by the Kubernetes API: listed, watched, and their output read. Output is that of the REST API."""

import re
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Annotated

from fastapi import Depends, Query, Request, Response
from fastapi.responses import StreamingResponse
from starlette.websockets import WebSocket

from trainmaster.protocol.errors import Code, ProblemError
from trainmaster.protocol.member_streams import MemberStreamKind
from trainmaster.protocol.permissions import Permission
from trainmaster_dispatcher.api.context import App, State
from trainmaster_dispatcher.api.kube.calls import (
    KubernetesRouter,
    ListedBy,
    is_true,
    person,
    refusal,
    shown,
)
from trainmaster_dispatcher.api.kube.grouped_pods import NamedPod, create_grouped, delete_pod, member_among, of_group
from trainmaster_dispatcher.api.kube.job_parts import JobParts, list_parts
from trainmaster_dispatcher.api.kube.job_resources import SUBMITTED_PODS
from trainmaster_dispatcher.api.kube.job_routes import PodCalls, changes_of_pods
from trainmaster_dispatcher.api.kube.objects import Wire
from trainmaster_dispatcher.api.kube.pods import (
    POD_FIELDS,
    PodName,
    containers_of,
    grouped_pod,
    is_submitted_pod,
    pod_object,
    submitted_pod,
)
from trainmaster_dispatcher.api.kube.resources import PODS
from trainmaster_dispatcher.api.kube.selectors import refused
from trainmaster_dispatcher.api.kube.status import not_found
from trainmaster_dispatcher.api.limits import StreamKind
from trainmaster_dispatcher.api.member_streams import read_options, serve_stream
from trainmaster_dispatcher.containment import Part
from trainmaster_dispatcher.containment import note as note_error
from trainmaster_dispatcher.services import job_members, job_objects, logs, pod_groups
from trainmaster_dispatcher.services.job_members import JobMember
from trainmaster_dispatcher.services.job_objects import ReadJob
from trainmaster_dispatcher.services.member_streams import WantedMember, check_stream
from trainmaster_dispatcher.store import pod_groups as group_store
from trainmaster_dispatcher.store.database import Transaction
from trainmaster_dispatcher.store.keys import Caller
from trainmaster_dispatcher.store.redis_channels import JOBS

router = KubernetesRouter()

_ALL = "/api/v1/namespaces/{namespace}/pods"
_STREAMS = {
    "exec": MemberStreamKind.EXEC,
    "attach": MemberStreamKind.ATTACH,
    "portforward": MemberStreamKind.PORT_FORWARD,
}
_COMMANDS = {
    MemberStreamKind.EXEC: "exec",
    MemberStreamKind.ATTACH: "attach",
    MemberStreamKind.PORT_FORWARD: "port-forward",
}
"""Commands of the command line for the same."""
_WITH_ZONE = re.compile(r"(Z|[+-]\d\d:\d\d)$")


@router.get("/api/v1/pods")
async def list_all_pods(request: Request, state: App, wanted: ListedBy) -> Response:
    return await list_parts(_PARTS, request, state, wanted, None)


@router.get(_ALL)
async def list_pods(namespace: str, request: Request, state: App, wanted: ListedBy) -> Response:
    return await list_parts(_PARTS, request, state, wanted, namespace)


@router.get(f"{_ALL}/{{name}}")
async def show_pod(namespace: str, name: str, request: Request, state: App) -> Response:
    caller = await person(request)
    async with state.stores.database.reading() as tx:
        found = await _pod(tx, caller, namespace, name)
    return shown(request, found.item(), PODS)


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
        pod = await _pod(tx, caller, namespace, name)
    member = pod.member
    if member is None:
        raise ProblemError(Code.WRONG_STATE, f"the pod {name!r} has no output yet: {pod.why}")
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


async def _pods(
    tx: Transaction, jobs: Sequence[ReadJob], most: int | None, *, with_gone: bool = False
) -> Mapping[int, Sequence[Wire]]:
    """Return the pods of jobs: their members; of a job that was submitted as a pod, or as a group of pods, those, also while it
    waits.
    """
    found = await job_members.of_jobs(tx, jobs, most)
    groups = await group_store.groups_among(tx, found)
    grouped = await group_store.of_jobs(tx, groups, with_gone=with_gone) if groups else {}
    submitted = {job.key for job in jobs if job.key in found and is_submitted_pod(job)}
    whole = await job_objects.read(tx, submitted | groups) if submitted | groups else {}
    versions = {job.key: job.metadata.version for job in jobs}
    pods: dict[int, Sequence[Wire]] = {}
    for key, members in found.items():
        if (job := whole.get(key)) is None:
            pods[key] = [] if key in submitted | groups else [pod_object(member) for member in members]
        else:
            # The version with which the caller gets the job, as of the others: that of a watch is the change that it has come to.
            job = replace(job, metadata=job.metadata._replace(version=versions[key]))
            if key in submitted:
                pods[key] = [submitted_pod(job, members[0] if members else None)]
            else:
                pods[key] = [grouped_pod(one, job, member_among(one, members)) for one in grouped.get(key, ())]
    return pods


def _jobs_in(name: str) -> frozenset[str]:
    parts = PodName.read(name)
    return frozenset(filter(None, (name, "" if parts is None else parts.job)))


async def _beside(tx: Transaction, caller: Caller, namespace: str | None, names: frozenset[str]) -> Sequence[Wire]:
    """Return the pods of groups that are not complete; with names, also those of complete ones, by their own names."""
    if not names:
        return [grouped_pod(one, None, None) for one in await pod_groups.incomplete(tx, caller, namespace)]
    found = [one for name in sorted(names) for one in await pod_groups.named(tx, caller, namespace, name)]
    return [(await of_group(tx, one)).item() for one in found]


async def _changed_pods(tx: Transaction, jobs: Sequence[ReadJob], most: int | None) -> Mapping[int, Sequence[Wire]]:
    return await _pods(tx, jobs, most, with_gone=True)


def _is_gone(pod: Wire) -> bool:
    return "deletionTimestamp" in pod["metadata"] and pod["status"]["phase"] in ("Succeeded", "Failed")


_PARTS = JobParts(PODS, POD_FIELDS, _jobs_in, _pods, _changed_pods, _beside, _is_gone)


async def _pod(tx: Transaction, caller: Caller, namespace: str, name: str) -> NamedPod:
    """Return the pod of this name. Raises ProblemError NOT_FOUND."""
    for grouped in await pod_groups.named(tx, caller, namespace, name):
        return await of_group(tx, grouped)
    for job in await job_objects.show_all(tx, caller, namespace, name, SUBMITTED_PODS.kind):
        members = (await job_members.of_jobs(tx, [job])).get(job.key)
        return NamedPod(job, members[0] if members else None)
    parts = PodName.read(name)
    if parts is not None:
        found = await job_members.of_jobs(tx, await job_objects.show_all(tx, caller, namespace, parts.job))
        for members in found.values():
            for one in members:
                if (one.role_name, one.index) == (parts.role, parts.index) and not is_submitted_pod(one.job):
                    return NamedPod(one.job, one)
    raise not_found(PODS.full_name, name)


async def refuse_members(namespace: str, name: str, request: Request, state: App) -> None:
    """Refuse changes of a member of a job, which is no object of its own, and all but the deletion of a pod of a group.

    Raises ProblemError METHOD_NOT_ALLOWED.
    """
    caller = await person(request, Permission.JOBS_READ)
    async with state.stores.database.reading() as tx:
        if await pod_groups.named(tx, caller, namespace, name):
            if request.method == "DELETE":
                return
            raise ProblemError(
                Code.METHOD_NOT_ALLOWED,
                f"the pod {name!r} is one of a group, and cannot be changed: delete it, and create it again",
            )
        if PodName.read(name) is None:
            return
        if await job_objects.show_all(tx, caller, namespace, name, SUBMITTED_PODS.kind):
            return
        pod = await _pod(tx, caller, namespace, name)
    raise ProblemError(
        Code.METHOD_NOT_ALLOWED,
        f"this pod is a member of {pod.owner}, which makes it: change or delete the job",
    )


changes_router = changes_of_pods([Depends(refuse_members)], PodCalls(create_grouped, delete_pod))


@router.websocket(f"{_ALL}/{{name}}/exec")
async def run_command(socket: WebSocket, namespace: str, name: str) -> None:
    """Run a command in a member."""
    await _serve_stream(socket, namespace, name, MemberStreamKind.EXEC)


@router.websocket(f"{_ALL}/{{name}}/attach")
async def attach(socket: WebSocket, namespace: str, name: str) -> None:
    """Attach to the first process of a member."""
    await _serve_stream(socket, namespace, name, MemberStreamKind.ATTACH)


@router.websocket(f"{_ALL}/{{name}}/portforward")
async def forward_ports(socket: WebSocket, namespace: str, name: str) -> None:
    """Connect to ports of a member."""
    await _serve_stream(socket, namespace, name, MemberStreamKind.PORT_FORWARD)


async def _serve_stream(socket: WebSocket, namespace: str, name: str, kind: MemberStreamKind) -> None:
    state: State = socket.app.state.trainmaster
    try:
        caller = await person(socket, Permission.JOBS_CONNECT)
        wanted = await _member_of(state, caller, namespace, name)
        await serve_stream(socket, state, caller, wanted, read_options(socket, kind), with_status=True)
    except ProblemError as error:
        answer = refusal(socket, error)
        await socket.send_denial_response(answer)


async def _member_of(state: State, caller: Caller, namespace: str, name: str) -> WantedMember:
    """Return the member that a pod is. Raises ProblemError."""
    async with state.stores.database.reading() as tx:
        pod = await _pod(tx, caller, namespace, name)
    member = pod.member
    if member is None:
        raise ProblemError(Code.WRONG_STATE, f"the pod {name!r} does not run: {pod.why}")
    return WantedMember(str(member.job.line["id"]), member.role_name, member.index, member.run.attempt)


@router.api_route(f"{_ALL}/{{name}}/{{subresource}}", methods=["GET", "POST", "PUT", "PATCH", "DELETE"])
async def refuse_subresource(namespace: str, name: str, subresource: str, request: Request, state: App) -> Response:
    """Refuse what a member's pod cannot do here: kubectl shows these words."""
    is_stream = subresource in _STREAMS
    caller = await person(request, Permission.JOBS_CONNECT if is_stream else Permission.JOBS_READ)
    if (kind := _STREAMS.get(subresource)) is not None:
        # What kubectl tries once more after its WebSocket was refused: it prints the words of this answer alone.
        wanted = await _member_of(state, caller, namespace, name)
        async with state.stores.database.transaction() as tx:
            await check_stream(tx, caller, wanted, kind)
        raise ProblemError(
            Code.INVALID_PARAMETER,
            f"{subresource} is offered over WebSockets, as kubectl calls it from 1.31 on; if it is newer, its first call was refused"
            f" by the member's cluster, or a proxy on the way lets no WebSocket pass: trainmaster {_COMMANDS[kind]} says which",
        )
    async with state.stores.database.reading() as tx:
        pod = await _pod(tx, caller, namespace, name)
    where = "" if pod.member is None else f", and its pod is on the cluster {pod.member.run.cluster!r}"
    raise ProblemError(
        Code.METHOD_NOT_ALLOWED,
        f"{subresource} of a pod is not offered here: this is a member of {pod.owner}{where}",
    )
