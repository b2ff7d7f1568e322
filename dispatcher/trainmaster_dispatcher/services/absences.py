"""Runs that the agent of their cluster has no record of: when their end is accepted, and what is reported to users meanwhile.

An agent may have lost its records, or be another agent with the same key. A run ends only on evidence that none of its members is
alive: the run was leased to these very records and never reported, or the agent has searched where its members would be, or
the run's disconnect limit has passed, or an admin gave the run up.
"""

from collections.abc import Collection, Mapping

from trainmaster.protocol.agent import Absence, RunReport
from trainmaster.protocol.ids import RunRef
from trainmaster.protocol.states import StopCause
from trainmaster_dispatcher.domain import run_machine
from trainmaster_dispatcher.domain.job_events import JobEventKind
from trainmaster_dispatcher.services.context import Stores
from trainmaster_dispatcher.store import jobs as job_store
from trainmaster_dispatcher.store import runs, scheduling
from trainmaster_dispatcher.store.database import Transaction

MISSING = "the cluster's agent no longer holds it"
_UNHEARD = "the agent it was sent to was replaced by another one, which makes sure that it does not run"
_MOST_ORPHANS = 1_000
"""Most runs of earlier holders whose jobs are notified in one transaction."""


def orphaned(cluster: str) -> str:
    """Return the message for a job whose run was left behind by the agent that started the run."""
    return (
        f"the agent of cluster {cluster} that started it was replaced by one that has no record of it; it may go on there"
        f" unattended. It ends when the agent that started it is back, when it is cancelled or suspended, or when an admin gives it"
        f" up: trainmaster clusters declare-lost {cluster} --orphans"
    )


def unverified(cluster: str) -> str:
    """Return the message for a job whose run is to stop and whose agent cannot verify that the run is gone."""
    return (
        f"the agent of cluster {cluster} has no record of this run and cannot look where it was started, so it may still be"
        f" running. It ends when the agent that started it is back, or when an admin gives it up:"
        f" trainmaster clusters declare-lost {cluster} --orphans"
    )


def is_evidence(report: RunReport, origin: runs.Origin, *, known: bool) -> bool:
    """Return whether a report on a run that the agent does not hold shows that no member of it is alive.

    ``known``: whether the run was ever reported as held. Records are durable before anything starts, so a run that was leased to
    these records and is not in them never started, unless it was in them before.
    """
    if report.absence is Absence.VERIFIED and origin.same_place:
        return True
    return origin.same_records and not known


async def split(
    tx: Transaction, cluster_id: int, reports: Mapping[RunRef, RunReport], place: str, known: Mapping[RunRef, bool]
) -> tuple[set[RunRef], dict[RunRef, runs.Origin]]:
    """Return which reported absences are no evidence, and the agent to which each of the runs was leased."""
    absent = {ref: report for ref, report in reports.items() if not report.is_held}
    if not absent:
        return set(), {}
    origins = await runs.origins(tx, cluster_id, absent, place)
    doubtful = {
        ref for ref, origin in origins.items() if not is_evidence(absent[ref], origin, known=known.get(ref, False))
    }
    return doubtful, origins


async def ask_to_verify(
    tx: Transaction, cluster_id: int, records: Collection[runs.RunRecord], message: str
) -> list[job_store.Transition]:
    """Stop runs that their agent has no record of, so that the agent ends what is left of them and reports it. Locks their jobs."""
    if not records:
        return []
    jobs = await job_store.lock(tx, [record.ref.job_key for record in records])
    locked = await runs.lock(tx, [record.ref for record in records])
    live = [record for record in locked.values() if record.run.is_live and record.run.stop_cause is None]
    if not live:
        return []
    transitions = [
        job_store.Transition(
            jobs[record.ref.job_key],
            jobs[record.ref.job_key].job._replace(message=message),
            kind=JobEventKind.RUN_MISSING,
            attempt=record.ref.attempt,
            cluster_id=cluster_id,
            message=message,
        )
        for record in live
    ]
    await job_store.write(tx, transitions)
    version = (await runs.raise_desired(tx, [cluster_id]))[cluster_id]
    await runs.write(
        tx,
        [
            runs.RunChange(record.ref, run_machine.ask_stop(record.run, StopCause.UNKNOWN), desired_version=version)
            for record in live
        ],
    )
    return transitions


def note_doubtful(
    doubtful: Collection[RunRef],
    origins: Mapping[RunRef, runs.Origin],
    records: Mapping[RunRef, runs.RunRecord],
    jobs: Mapping[int, job_store.JobRecord],
    cluster: str,
) -> list[job_store.Transition]:
    """Tell jobs, once, that nobody can verify the end of their run; if the agent can search for members, only after its search."""
    text = unverified(cluster)
    return [
        job_store.Transition(
            jobs[ref.job_key],
            jobs[ref.job_key].job._replace(message=text),
            kind=JobEventKind.RUN_UNVERIFIED,
            attempt=ref.attempt,
            cluster_id=records[ref].cluster_id,
            message=text,
            is_neutral=True,
        )
        for ref in sorted(doubtful)
        if not origins[ref].same_place and records[ref].run.is_live and jobs[ref.job_key].job.message != text
    ]


async def note_takeover(tx: Transaction, cluster_id: int, cluster: str) -> list[job_store.Transition]:
    """Notify the jobs whose runs the new agent of a cluster has no record of, and those whose agent is back."""
    text = orphaned(cluster)
    left = await runs.of_earlier_holders(tx, cluster_id, _MOST_ORPHANS)
    orphans = {row.ref for row in left if row.known}
    back = set(await runs.reported_to_holder(tx, cluster_id)) - orphans
    jobs = await job_store.lock(tx, [ref.job_key for ref in (*orphans, *back)])
    transitions = [
        _transition(jobs[ref.job_key], ref, cluster_id, JobEventKind.RUN_ORPHANED, text)
        for ref in sorted(orphans)
        if jobs[ref.job_key].job.message != text
    ]
    transitions += [
        _transition(jobs[ref.job_key], ref, cluster_id, JobEventKind.RUN_FOUND, "")
        for ref in sorted(back)
        if jobs[ref.job_key].job.message == text
    ]
    await job_store.write(tx, transitions)
    return transitions


def _transition(
    job: job_store.JobRecord, ref: RunRef, cluster_id: int, kind: JobEventKind, text: str
) -> job_store.Transition:
    return job_store.Transition(
        job,
        job.job._replace(message=text),
        kind=kind,
        attempt=ref.attempt,
        cluster_id=cluster_id,
        message=text or "the agent that started it is back",
        is_neutral=True,
    )


async def recall_unheard(stores: Stores, token: int) -> int:
    """Have runs verified that were sent to an agent which was replaced before it reported them; return how many runs."""
    async with stores.database.transaction() as tx:
        if not await scheduling.is_lead(tx, token):
            return 0
        by_cluster: dict[int, list[runs.RunRecord]] = {}
        for record in await runs.unheard_of_earlier_holders(tx):
            by_cluster.setdefault(record.cluster_id, []).append(record)
        transitions: list[job_store.Transition] = []
        for cluster_id, records in sorted(by_cluster.items()):
            transitions += await ask_to_verify(tx, cluster_id, records, _UNHEARD)
    if transitions:
        stores.jobs_changed([one.record.id for one in transitions], by_cluster)
    return len(transitions)
