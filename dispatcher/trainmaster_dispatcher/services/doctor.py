"""Checks of an installation from the side of its stores: each says what was found, what it means and what to do. Changes nothing."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

from trainmaster import __version__
from trainmaster.protocol.durations import format_duration
from trainmaster.protocol.errors import TrainmasterError
from trainmaster.protocol.health import HealthCheck, clock_check, error, fine, warning
from trainmaster.protocol.ids import job_id
from trainmaster_dispatcher.services.settings import Settings, mistyped
from trainmaster_dispatcher.store import doctor as store
from trainmaster_dispatcher.store import metrics, recovery, redis_channels, tenants
from trainmaster_dispatcher.store.database import Database, Transaction
from trainmaster_dispatcher.store.schema import newest_revision

_SLOW_SECONDS = 0.25
_LONG_TRANSACTION_SECONDS = 60.0
_MOST_SESSIONS_PART = 0.8
_SIDE_JOB_SECONDS = 60.0
_OLD_MESSAGE_SECONDS = 900.0
_MIB = 1024 * 1024


async def examine(database: Database, settings: Settings) -> list[HealthCheck]:
    """Check the stores, the processes that leave traces in them, and the names of this process's settings."""
    checks = [warning("settings", said, "see docs/reference/settings.md") for said in mistyped()]
    parts: tuple[tuple[str, Callable[[Transaction], Awaitable[Sequence[HealthCheck]]]], ...] = (
        ("database", _database),
        ("schema", _schema),
        ("leader", _leader),
        ("agents", _agents),
        ("priority classes", _classes),
        ("recovery", _recovery),
        ("webhooks", _webhooks),
    )
    for name, part in parts:
        try:
            async with database.transaction() as tx:
                checks += await part(tx)
        except TrainmasterError as problem:
            checks.append(error(name, f"it could not be checked: {problem}", "look at Postgres and its log"))
            if name == "database":
                break
    checks += await asyncio.to_thread(_redis, settings.redis_url)
    return checks


async def examine_agents(database: Database, clusters: Sequence[str]) -> list[HealthCheck]:
    """Check the agents of these clusters."""
    async with database.transaction() as tx:
        return [_agent(facts) for facts in await store.agent_facts(tx) if facts.cluster in clusters]


async def _database(tx: Transaction) -> Sequence[HealthCheck]:
    began = time.monotonic()
    await tx.one("SELECT 1")
    took = time.monotonic() - began
    before = time.time()
    facts = await store.database_facts(tx)
    after = time.time()
    text = f"Postgres {facts.version} answers in {took * 1000:.0f} ms; {facts.size / _MIB:.0f} MiB"
    text += f", replicas: {facts.replicas or 'none'}"
    found = [
        fine("database", text)
        if took < _SLOW_SECONDS
        else warning("database", f"{text}: it is slow", "look for a busy disk, or for a long way to it")
    ]
    if not facts.safe:
        found.append(
            warning(
                "durability",
                "fsync, full_page_writes or synchronous_commit is off: jobs that were accepted may be lost in a crash",
                "switch them on in Postgres's configuration",
            )
        )
    if facts.sessions >= _MOST_SESSIONS_PART * facts.most_sessions:
        found.append(
            warning(
                "connections",
                f"{facts.sessions} of Postgres's {facts.most_sessions} connections are in use",
                "raise max_connections, or lower TRAINMASTER_POOL_SIZE or the number of processes",
            )
        )
    if facts.oldest is not None and facts.oldest > _LONG_TRANSACTION_SECONDS:
        found.append(
            warning(
                "transactions",
                f"a transaction is open since {format_duration(round(facts.oldest))}: old rows cannot be removed meanwhile",
                "find it in pg_stat_activity; a backup that runs is one, too",
            )
        )
    least, most = facts.now - after, facts.now - before
    return [*found, clock_check("clock of the database", least, most, "the clocks of api and database")]


async def _schema(tx: Transaction) -> Sequence[HealthCheck]:
    found, own = await store.revision(tx), newest_revision()
    if found == own:
        return [fine("schema", f"revision {found}, as release {__version__} needs it")]
    if found < own:
        return [error("schema", f"revision {found}, and release {__version__} needs {own}", "run: trainmaster migrate")]
    return [
        warning(
            "schema",
            f"revision {found} is of a newer release than {__version__}",
            "finish the upgrade, or the way back",
        )
    ]


async def _leader(tx: Transaction) -> Sequence[HealthCheck]:
    facts = await store.lead_facts(tx)
    if facts.left > 0:
        return [fine("leader", f"{facts.holder} leads")]
    return [error("leader", "no scheduler leads: no job starts", "start one: trainmaster scheduler; look at its log")]


async def _classes(tx: Transaction) -> Sequence[HealthCheck]:
    found = await tenants.CLASSES.every(tx)
    default = next((one.spec.name for one in found if one.spec.default), None)
    if default is not None:
        return [fine("priority classes", f"{len(found)}, of which {default} is the default")]
    return [
        warning(
            "priority classes",
            "none is the default: jobs that name none are refused",
            """trainmaster patch priority-class NAME -p '{"default": true}'""",
        )
    ]


async def _agents(tx: Transaction) -> Sequence[HealthCheck]:
    found = [_agent(facts) for facts in await store.agent_facts(tx)]
    return found or [warning("agents", "there is no cluster, so nothing can run", "trainmaster clusters join NAME")]


def _agent(facts: store.AgentFacts) -> HealthCheck:
    name = f"agent {facts.cluster}"
    if facts.age is None or facts.left is None:
        return warning(name, "it has never connected", f"install it: trainmaster clusters join {facts.cluster}")
    age = format_duration(round(facts.age)) if facts.age >= 1 else "less than a second"
    if facts.left <= 0:
        return error(
            name,
            f"out of contact since {age}: nothing starts there",
            "look at the agent's log and at the way to the api; a new key for it: trainmaster clusters rotate "
            + facts.cluster,
        )
    if facts.closed:
        return warning(
            name,
            f"in contact, but it can start nothing now: {facts.closed}",
            "its owner sees to it; the agent's log has more",
        )
    if facts.quarantined:
        return warning(
            name,
            f"it holds {facts.quarantined} runs that the restored store does not have",
            f"look at them: trainmaster clusters quarantined {facts.cluster}",
        )
    if facts.returned and facts.example is not None and facts.number is not None:
        jobs = (
            "a job that it returned is held"
            if facts.returned == 1
            else f"{facts.returned} jobs that it returned are held"
        )
        named = job_id(facts.example, facts.number)
        return warning(
            name,
            f"in contact, but {jobs}" + (f"; of {named} it said: {facts.said}" if facts.said else ""),
            f"correct the cluster or the jobs, then: trainmaster resume {named}",
        )
    if facts.release != __version__:
        return warning(name, f"release {facts.release}, and the api has {__version__}", "upgrade the older of the two")
    return fine(name, f"in contact, {age} ago; release {facts.release}")


async def _recovery(tx: Transaction) -> Sequence[HealthCheck]:
    if not await recovery.is_on(tx):
        return []
    names = ", ".join(await recovery.awaited(tx)) or "none"
    message = f"the store was restored, and nothing starts before all agents have reported; missing: {names}"
    return [
        warning(
            "recovery", message, "start these agents; for a cluster that is gone: trainmaster clusters declare-lost"
        )
    ]


async def _webhooks(tx: Transaction) -> Sequence[HealthCheck]:
    counts = await metrics.outbox(tx)
    if counts.waiting and counts.age > _OLD_MESSAGE_SECONDS:
        age = format_duration(round(counts.age))
        return [
            warning("webhooks", f"{counts.waiting} messages wait, the oldest since {age}", "look at the workers' logs")
        ]
    if counts.dead:
        return [
            warning(
                "webhooks", f"{counts.dead} messages were given up", "trainmaster webhooks, then retry or drop them"
            )
        ]
    return []


def _redis(url: str | None) -> list[HealthCheck]:
    """Check Redis, and by what is in it the workers and beat."""
    if not url:
        return [
            warning("redis", "none is configured: wake-ups take up to a second, and no side job runs", "set REDIS_URL")
        ]
    try:
        traces = redis_channels.side_jobs(url)
    except (TrainmasterError, ValueError) as problem:
        advice = "start Redis, or correct REDIS_URL; its content may be lost at any time"
        return [error("redis", f"{problem}: it works on, slower, and no side job runs", advice)]
    return [fine("redis", "it answers"), _side_jobs(traces)]


def _side_jobs(traces: redis_channels.SideJobs) -> HealthCheck:
    if traces.age is not None and traces.age < _SIDE_JOB_SECONDS:
        return fine("worker and beat", f"the last side job ended {format_duration(round(traces.age))} ago")
    if traces.age is None and not traces.waiting:
        advice = "look again in a minute; if it stays so, start both: trainmaster beat, trainmaster worker"
        return warning("worker and beat", "no side job has ended yet", advice)
    last = (
        "none has ended yet" if traces.age is None else f"the last one ended {format_duration(round(traces.age))} ago"
    )
    lacks = "webhooks are not sent, usage is not counted and old data stays"
    if traces.waiting:
        return error(
            "worker and beat",
            f"{traces.waiting} side jobs wait for a worker, {last}: {lacks}",
            "start one: trainmaster worker; look at its log",
        )
    return error(
        "worker and beat",
        f"nobody asks for side jobs, {last}: {lacks}",
        "start both: trainmaster beat, trainmaster worker",
    )
