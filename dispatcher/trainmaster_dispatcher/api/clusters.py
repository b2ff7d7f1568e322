"""Routes of clusters."""

from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from fastapi import Query, Request, Response

from trainmaster.protocol import answers
from trainmaster.protocol.errors import Code
from trainmaster.protocol.tenants import (
    DeclareLostSpec,
    DrainSpec,
    JoinSpec,
    RotateSpec,
    StopQuarantinedSpec,
)
from trainmaster_dispatcher.api.context import (
    App,
    ClusterOperator,
    ClusterWriter,
    State,
    answer,
    note,
    once,
    once_in_parts,
    read_large_model,
    read_model,
)
from trainmaster_dispatcher.api.declared import add_routes, same_name
from trainmaster_dispatcher.api.openapi import contract, documented_router
from trainmaster_dispatcher.api.parameters import NameInPath
from trainmaster_dispatcher.api.tenants import refuse_idempotency_key
from trainmaster_dispatcher.services import auditing, clusters, recovery, tenants
from trainmaster_dispatcher.services.declared_kinds import object_of
from trainmaster_dispatcher.store.database import Transaction
from trainmaster_dispatcher.store.keys import Caller

router = documented_router("/v1", "clusters")

Force = Annotated[
    bool, Query(description="Declare the cluster's runs lost first, whether its agent is in contact or not.")
]


add_routes(router, "clusters")


@router.delete("/clusters/{name}", **contract(status=204, refuses=(Code.IN_USE, Code.CLUSTER_IN_CONTACT)))
async def delete_cluster(name: NameInPath, state: App, caller: ClusterWriter, force: Force = False) -> Response:
    """Remove a cluster with its agent's keys, once nothing of it runs; with ``force`` its runs are declared lost first."""

    action = "delete cluster"
    async with state.stores.database.transaction() as tx:
        details = auditing.change_of(await object_of(tx, action, name), None)

    async def noted(tx: Transaction) -> None:
        await note(tx, caller, action, name, details | ({"force": True} if force else {}))

    await clusters.remove(state.stores, caller, name, force=force, note=noted)
    return Response(status_code=204)


@router.post(
    "/clusters/{name}/join", **contract(takes=JoinSpec, gives=answers.AgentKey, status=201, refuses=(Code.CONFLICT,))
)
async def join_cluster(name: NameInPath, request: Request, state: App, caller: ClusterOperator) -> Response:
    """Make a key for a cluster's agent and, for an admin, the cluster if it does not exist.

    The secret is in this answer and nowhere else.
    """
    refuse_idempotency_key(request)
    spec = read_model(JoinSpec, await request.body())
    same_name(spec.name, name, "cluster")
    made = await _make_agent_key(state, caller, "join cluster", name, lambda tx: clusters.join(tx, caller, spec))
    return _at(f"/v1/clusters/{name}", made)


@router.post(
    "/clusters/{name}/rotate", **contract(takes=RotateSpec, is_optional=True, gives=answers.AgentKey, status=201)
)
async def rotate_agent_key(name: NameInPath, request: Request, state: App, caller: ClusterOperator) -> Response:
    """Make another key for a cluster's agent, and revoke the old ones at once or not."""
    refuse_idempotency_key(request)
    spec = read_model(RotateSpec, await request.body() or b"{}")
    revoke_old = spec.revoke_old
    made = await _make_agent_key(
        state, caller, "rotate key", name, lambda tx: clusters.rotate(tx, caller, name, revoke_old=revoke_old)
    )
    return _at(f"/v1/keys/{made['key']['id']}", made)


def _at(address: str, made: dict[str, Any]) -> Response:
    """Return the answer with a new key. Its secret is not to be stored on its way."""
    created = answer(made, 201)
    created.headers.update({"Location": address, "Cache-Control": "no-store"})
    return created


async def _make_agent_key(
    state: State, caller: Caller, action: str, name: str, work: Callable[[Transaction], Awaitable[dict[str, Any]]]
) -> dict[str, Any]:
    async with state.stores.database.transaction() as tx:
        made = await work(tx)
        details = {"key": made["key"]["id"], "revoked": made.get("revoked", [])}
        await note(tx, caller, action, name, details)
    state.stores.tenants_changed()
    return made


@router.post(
    "/clusters/{name}/drain", **contract(takes=DrainSpec, is_optional=True, gives=answers.DrainAnswer, is_once=True)
)
async def drain_cluster(name: NameInPath, request: Request, state: App, caller: ClusterOperator) -> Response:
    """Drain a cluster: close it, and stop its runs or let them finish."""
    body = await request.body() or b"{}"
    spec = read_model(DrainSpec, body)

    details = dict(spec.to_wire())

    async def work() -> tuple[int, Any]:
        done = await clusters.drain(state.stores, caller, name, let_finish=spec.let_finish)
        details.update(done)
        return 200, done

    return await once_in_parts(request, state, caller, body, work, action="drain", target=name, details=details)


@router.post(
    "/clusters/{name}/declare-lost",
    **contract(
        takes=DeclareLostSpec,
        is_optional=True,
        gives=answers.LostRuns,
        is_once=True,
        refuses=(Code.CLUSTER_IN_CONTACT, Code.WRONG_STATE),
    ),
)
async def declare_runs_lost(name: NameInPath, request: Request, state: App, caller: ClusterWriter) -> Response:
    """Declare all runs of a cluster lost, when nothing of it runs any more; with ``orphans`` only those its agent has no record of."""
    body = await request.body() or b"{}"
    spec = read_model(DeclareLostSpec, body)

    details = dict(spec.to_wire())

    async def work() -> tuple[int, Any]:
        if spec.orphans:
            done = await clusters.give_up_orphans(state.stores, caller, name)
        else:
            done = await clusters.declare_lost(state.stores, caller, name, force=spec.force)
        details.update(done)
        return 200, done

    return await once_in_parts(request, state, caller, body, work, action="declare lost", target=name, details=details)


@router.get("/clusters/{name}/quarantined-runs", **contract(gives=answers.QuarantinedRuns))
async def list_quarantined_runs(name: NameInPath, state: App, caller: ClusterOperator) -> Response:
    """List runs that the cluster's agent holds and that the store has forgotten since it was restored."""
    async with state.stores.database.transaction() as tx:
        return answer({"runs": await recovery.list_quarantined(tx, caller, name)})


@router.post(
    "/clusters/{name}/stop-quarantined",
    **contract(takes=StopQuarantinedSpec, gives=answers.StoppedQuarantined, is_once=True),
)
async def stop_quarantined_runs(name: NameInPath, request: Request, state: App, caller: ClusterWriter) -> Response:
    """Have quarantined runs stopped: those that are named, or all of them."""
    body = await request.body()
    spec = await read_large_model(StopQuarantinedSpec, body)

    async def work(tx: Transaction) -> tuple[int, Any]:
        return 200, {"name": name, "stopping": await recovery.stop_quarantined(tx, caller, name, list(spec.runs))}

    return await once(request, state, caller, body, work, action="stop quarantined", target=name)


@router.post("/clusters/{name}/cordon", **contract(gives=answers.CordonAnswer, is_once=True))
async def cordon_cluster(name: NameInPath, request: Request, state: App, caller: ClusterOperator) -> Response:
    """Let nothing new start on a cluster."""
    return await _cordon(name, request, state, caller, on=True)


@router.post("/clusters/{name}/uncordon", **contract(gives=answers.CordonAnswer, is_once=True))
async def uncordon_cluster(name: NameInPath, request: Request, state: App, caller: ClusterOperator) -> Response:
    """Let jobs start on a cluster again."""
    return await _cordon(name, request, state, caller, on=False)


async def _cordon(name: str, request: Request, state: State, caller: Caller, *, on: bool) -> Response:
    details: dict[str, Any] = {}

    async def work(tx: Transaction) -> tuple[int, Any]:
        before = await object_of(tx, "cordon cluster", name)
        await tenants.cordon(tx, caller, name, on)
        details.update(auditing.change_of(before, await object_of(tx, "cordon cluster", name)))
        return 200, {"name": name, "cordoned": on}

    action = "cordon" if on else "uncordon"
    done = await once(request, state, caller, await request.body(), work, action=action, target=name, details=details)
    state.stores.tenants_changed()
    return done
