"""The life of a cluster: joining, rotating its agent's key, draining, declaring it lost, removal.

Changes of many runs are made in batches of one transaction each, and are idempotent.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from trainmaster.protocol.errors import Code, ProblemError
from trainmaster.protocol.ids import RunRef
from trainmaster.protocol.permissions import Permission
from trainmaster.protocol.states import ClusterKind, KeyRole, RunState, StopCause
from trainmaster.protocol.tenants import ClusterSpec, JoinSpec, KeySpec
from trainmaster_dispatcher.domain import run_machine
from trainmaster_dispatcher.domain.job_events import JobEventKind
from trainmaster_dispatcher.domain.job_machine import RunEnding
from trainmaster_dispatcher.services import declared_kinds, gauges, tenants
from trainmaster_dispatcher.services.agent_reports import Findings, give_up, write_findings
from trainmaster_dispatcher.services.context import Stores
from trainmaster_dispatcher.services.revisions import Author
from trainmaster_dispatcher.store import agents, declared, keys, recovery, runs
from trainmaster_dispatcher.store import jobs as job_store
from trainmaster_dispatcher.store import tenants as store
from trainmaster_dispatcher.store.database import Transaction
from trainmaster_dispatcher.store.keys import Caller

BATCH = 1000


async def join(tx: Transaction, caller: Caller, spec: JoinSpec) -> dict[str, Any]:
    """Create a key for the agent of a cluster and return it; a cluster that does not exist is created by an admin's call.

    Raises ProblemError CONFLICT when the cluster exists with another kind or other labels than those given, and NOT_FOUND for the
    owner of one that was removed a moment ago.
    """
    await declared.lock(tx, f"cluster {spec.name}")
    row = await store.lock_cluster(tx, spec.name)
    if row is None:
        if not caller.has(Permission.CLUSTERS_WRITE):
            raise await tenants.unknown_cluster(tx, caller, spec.name)
        made = ClusterSpec(name=spec.name, cluster_kind=spec.cluster_kind or ClusterKind.PRIVATE, labels=spec.labels)
        await declared_kinds.CLUSTER.put(tx, made, Author(caller.name, None, "join"))
    else:
        _check_same(ClusterSpec.model_validate(row.spec), spec)
    return {"cluster": spec.name, "created": row is None, **await _new_key(tx, spec.name)}


def _check_same(there: ClusterSpec, wanted: JoinSpec) -> None:
    differs = []
    if wanted.cluster_kind not in (None, there.cluster_kind):
        differs.append(f"its kind is {there.cluster_kind}")
    differs += [
        f"its label {key} is {there.labels.get(key, 'not there')}"
        for key, value in wanted.labels.items()
        if there.labels.get(key) != value
    ]
    if differs:
        raise ProblemError(
            Code.CONFLICT,
            f"cluster {there.name!r} exists already, and {', '.join(differs)}; change it with: trainmaster apply -f FILE",
        )


async def rotate(tx: Transaction, caller: Caller, name: str, *, revoke_old: bool) -> dict[str, Any]:
    """Create another key for the agent of a cluster and return it; the old keys remain valid unless ``revoke_old``."""
    if await store.lock_cluster(tx, name) is None:
        raise await tenants.unknown_cluster(tx, caller, name)
    made = await _new_key(tx, name)
    if revoke_old:
        made["revoked"], made["otherKeys"] = made["otherKeys"], []
        for key_id in made["revoked"]:
            await keys.revoke(tx, key_id)
    return {"cluster": name, **made}


async def _new_key(tx: Transaction, name: str) -> dict[str, Any]:
    cluster_id = await store.cluster_id(tx, name)
    others = [] if cluster_id is None else await keys.of_cluster(tx, cluster_id)
    key = await tenants.make_key(tx, KeySpec(name=f"agent-{name}", role=KeyRole.AGENT, cluster=name))
    return {"key": key, "otherKeys": others}


async def drain(stores: Stores, caller: Caller, name: str, *, let_finish: bool) -> dict[str, Any]:
    """Close a cluster to new runs and, unless ``let_finish``, stop its runs; their jobs are queued again.

    No retry is used, and members have time to save their state. Raises ProblemError NOT_FOUND.
    """
    async with stores.database.transaction() as tx:
        cluster_id = await store.cordon(tx, name, True, draining=True)
        if cluster_id is None:
            raise await tenants.unknown_cluster(tx, caller, name)
    stores.tenants_changed()
    stopped, last = 0, 0 if let_finish else BATCH
    while last == BATCH:
        async with stores.database.transaction() as tx:
            refs = await runs.live_on(tx, cluster_id, BATCH, unstopped=True)
            last = len(refs)
            stopped += await _stop(tx, stores, caller, cluster_id, refs, f"cluster {name} is drained")
    async with stores.database.transaction() as tx:
        left, reachable = await runs.count_live_on(tx, cluster_id), bool(await agents.reachable(tx, [cluster_id]))
    return {"name": name, "stopped": stopped, "liveRuns": left, "reachable": reachable}


async def _stop(
    tx: Transaction, stores: Stores, caller: Caller, cluster_id: int, refs: Sequence[RunRef], why: str
) -> int:
    """Ask these runs to stop and be queued again; return how many were neither stopping nor over."""
    wanted = set(refs)
    records = await job_store.lock(tx, [ref.job_key for ref in wanted])
    live = [
        record
        for record in (await runs.lock_live(tx, records)).values()
        if record.ref in wanted and record.run.stop_cause is None
    ]
    if not live:
        return 0
    await job_store.write(
        tx,
        [
            job_store.Transition(
                records[run.ref.job_key],
                records[run.ref.job_key].job._replace(message=why),
                kind=JobEventKind.PREEMPT,
                attempt=run.ref.attempt,
                cluster_id=cluster_id,
                actor=caller.name,
                message=why,
            )
            for run in live
        ],
    )
    version = (await runs.raise_desired(tx, [cluster_id]))[cluster_id]
    await runs.write(
        tx,
        [
            runs.RunChange(one.ref, run_machine.ask_stop(one.run, StopCause.PREEMPT), desired_version=version)
            for one in live
        ],
    )

    async def wake() -> None:
        stores.jobs_changed([one.ref.job_key for one in live], [cluster_id])

    tx.after_commit(wake)
    return len(live)


async def declare_lost(stores: Stores, caller: Caller, name: str, *, force: bool) -> dict[str, Any]:
    """Accept an admin's word that nothing of a cluster runs any more: its live runs are lost, and their jobs queued again.

    This holds whatever the jobs' ``onDisconnect`` is. The cluster is closed to new runs, and its agent's session is over: a
    returning agent is notified that its runs are unknown, and stops them. Raises ProblemError NOT_FOUND, and CLUSTER_IN_CONTACT unless
    ``force``.
    """
    async with stores.database.transaction() as tx:
        cluster_id = await store.cluster_id(tx, name)
        if cluster_id is None:
            raise await tenants.unknown_cluster(tx, caller, name)
        if await agents.lock_contact(tx, cluster_id) and not force:
            raise ProblemError(
                Code.CLUSTER_IN_CONTACT,
                f"the agent of cluster {name!r} is in contact, so its runs can be stopped: trainmaster clusters drain"
                f" {name}; if its runs have certainly ended, --force declares them lost",
            )
        await agents.end_session(tx, cluster_id)
        await recovery.note_recovered(tx, cluster_id)
    async with stores.database.transaction() as tx:
        await store.cordon(tx, name, True)
    stores.tenants_changed()
    message = f"cluster {name} was declared lost by {caller.name}"
    return {"name": name, "lost": await _give_up_all(stores, name, cluster_id, message, runs.live_on)}


async def give_up_orphans(stores: Stores, caller: Caller, name: str) -> dict[str, Any]:
    """Accept an admin's word that runs without a record at the cluster's agent are gone: they are lost, and their jobs queued again.

    Raises ProblemError NOT_FOUND.
    """
    async with stores.database.transaction() as tx:
        cluster_id = await store.cluster_id(tx, name)
        if cluster_id is None:
            raise await tenants.unknown_cluster(tx, caller, name)
    message = f"the agent that started it was replaced; {caller.name} gave the run up"
    return {"name": name, "lost": await _give_up_all(stores, name, cluster_id, message, runs.orphans_on)}


async def _give_up_all(
    stores: Stores,
    name: str,
    cluster_id: int,
    message: str,
    select: Callable[[Transaction, int, int], Awaitable[list[RunRef]]],
) -> int:
    """Declare the runs lost that ``select`` finds on a cluster, in batches; return how many there were."""
    ending = RunEnding(RunState.LOST, message=message)
    lost, last = 0, BATCH
    while last == BATCH:
        found = Findings()
        async with stores.database.transaction() as tx:
            refs = await select(tx, cluster_id, BATCH)
            last = len(refs)
            await give_up(tx, refs, ending, found)
            await write_findings(tx, found)
            await agents.unset_checked(tx, [cluster_id])
        gauges.count_ends(found.transitions, {cluster_id: name})
        stores.jobs_changed([one.record.id for one in found.transitions], [cluster_id])
        lost += len(found.transitions)
    return lost


async def remove(
    stores: Stores, caller: Caller, name: str, *, force: bool, note: Callable[[Transaction], Awaitable[None]]
) -> None:
    """Remove a cluster with its agent's keys. With ``force`` the cluster is declared lost first, in contact or not.

    ``note`` writes the audit row in the same transaction. Raises ProblemError NOT_FOUND, and IN_USE while runs are live there.
    """
    if force:
        await declare_lost(stores, caller, name, force=True)
    async with stores.database.transaction() as tx:
        await declared.lock(tx, f"cluster {name}")
        await declared_kinds.CLUSTER.delete(tx, name, Author(caller.name, caller.name, "delete"))
        await note(tx)
    stores.tenants_changed()
