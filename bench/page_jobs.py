"""The stored jobs of ``bench.pages``: a million of them, written by Postgres itself, in seconds."""

import hashlib
import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import orjson

from bench.flow import spec
from bench.posting import Poster
from bench.stage import Stage

ROOTS, TEAMS, USERS, CLUSTERS = 10, 19, 300, 20
QUEUES = tuple(
    path for root in range(ROOTS) for path in (f"org-{root}", *(f"org-{root}/team-{team}" for team in range(TEAMS)))
)
SUBTREE = "org-3"
"""The queue of the user who sees a tenth of the jobs."""
USER_KEY = "tmk_bench_user"
ENDED, RUNNING = 0.90, 0.005
"""The shares of the jobs that have ended and that run; the others are queued. The newest are queued."""
RARE = (1000, 2000, 3000)
"""Jobs, among the oldest, that have a name, a label, a user and a cluster of their own."""
_FIRST_DAY = "2037-01-01T00:00:00Z"
_STATE = """
    CASE WHEN n > %(jobs)s * (%(ended)s + %(running)s) THEN 'queued' WHEN n > %(jobs)s * %(ended)s THEN 'running'
         WHEN n %% 9973 = 0 THEN 'cancelled' WHEN n %% 97 = 0 THEN 'failed' ELSE 'succeeded' END
"""


@dataclass(frozen=True, slots=True)
class Case:
    """A list of jobs that a page may show, by its parameters."""

    name: str
    query: tuple[tuple[str, str], ...]

    @property
    def path(self) -> str:
        return "/v1/jobs?" + urlencode([*self.query, ("limit", "50")])


_SINGLE: dict[str, list[tuple[str, str]]] = {
    "state": [
        ("state", "succeeded"),
        ("state", "failed"),
        ("state", "cancelled"),
        ("state", "running"),
        ("state", "held"),
    ],
    "name": [
        ("name", "bert-17"),
        ("name", "bert-*"),
        ("name", "*-17"),
        ("name", "needle"),
        ("name", "need*"),
        ("name", "no-such"),
    ],
    "label": [("label", "team=t3"), ("label", "sweep=s77"), ("label", "rare=yes"), ("label", "team=nobody")],
    "user": [("submittedBy", "user-7"), ("submittedBy", "user-299"), ("submittedBy", "nobody")],
    "queue": [("queue", "org-3"), ("queue", "org-3/team-3")],
    "cluster": [("cluster", "c3"), ("cluster", "c19"), ("cluster", "c20")],
    "time": [("since", "2037-01-08T00:00:00Z"), ("until", "2037-01-02T00:00:00Z"), ("since", "2099-01-01T00:00:00Z")],
    "search": [("search", "bert-1"), ("search", "user-299"), ("search", "rare=yes"), ("search", "no-such")],
}


def cases() -> list[Case]:
    """Return the first page without a filter, with each value of a filter, with several states, and with pairs of filters."""
    made = [Case("first", ())]
    made += [Case(f"{kind} {value}", ((key, value),)) for kind, values in _SINGLE.items() for key, value in values]
    made.append(Case("states failed, cancelled", (("state", "failed"), ("state", "cancelled"))))
    made.append(Case("states queued, running", (("state", "queued"), ("state", "running"))))
    chosen = [
        ("state", "failed"), ("state", "running"), ("name", "bert-17"), ("name", "needle"), ("label", "sweep=s77"),
        ("label", "rare=yes"), ("submittedBy", "user-299"), ("submittedBy", "user-7"), ("queue", "org-3/team-3"),
        ("cluster", "c19"), ("cluster", "c3"), ("until", "2037-01-02T00:00:00Z"),
    ]  # fmt: skip
    for place, one in enumerate(chosen):
        for other in chosen[place + 1 :]:
            if one[0] != other[0]:
                made.append(Case(f"{one[1]} + {other[1]}", (one, other)))
    return made


def fill(stage: Stage, jobs: int) -> float:
    """Store the jobs with their specifications and runs; return the seconds. A submitted job is what the others are made of."""
    began = time.monotonic()
    first = {**spec(0), "queue": QUEUES[1]}
    Poster(stage.urls[0]).post("/v1/jobs", orjson.dumps(first))
    parameters: dict[str, Any] = {
        "jobs": jobs,
        "ended": ENDED,
        "running": RUNNING,
        "day": _FIRST_DAY,
        "rare": list(RARE),
    }
    with stage.sql() as connection:
        for statement in _STATEMENTS:
            connection.execute(statement.encode(), parameters)
        connection.execute(
            "INSERT INTO api_keys (name, hash, hint, role, queues) VALUES ('page', %s, 'tmk_', 'user', %s)",
            (hashlib.sha256(USER_KEY.encode()).digest(), [SUBTREE]),
        )
        for table in ("jobs", "runs", "job_specs", "api_keys", "clusters", "queues"):
            connection.execute(f"VACUUM ANALYZE {table}".encode())
    return time.monotonic() - began


_STATEMENTS = (
    f"""
    INSERT INTO api_keys (name, hash, hint, role)
    SELECT 'user-' || n, sha256(('user-' || n)::bytea), 'tmk_', 'user' FROM generate_series(0, {USERS - 1}) n
    """,
    f"""
    INSERT INTO clusters (name, kind, spec)
    SELECT 'c' || n, 'private', jsonb_build_object('name', 'c' || n, 'clusterKind', 'private')
    FROM generate_series(0, {CLUSTERS}) n
    """,
    f"""
    INSERT INTO jobs (name, queue_id, class_id, shape_id, spec_id, api_key_id, submitted_at, state, attempt, started_at, ended_at,
                      version, labels)
    SELECT CASE WHEN n = ANY(%(rare)s) THEN 'needle'
                ELSE (ARRAY['bert', 'eval', 'llama', 'resnet', 'whisper'])[1 + n %% 5] || '-' || n * 7919 %% 100 END,
           b.ids[1 + (n * 2654435761 %% 4294967296 * {len(QUEUES)} / 4294967296)::int], p.class_id, p.shape_id, p.spec_id,
           u.ids[CASE WHEN n = ANY(%(rare)s) THEN {USERS} ELSE 1 + n * 40507 %% {USERS - 1} END],
           CAST(%(day)s AS timestamptz) + n * interval '1 second', CAST({_STATE} AS job_state),
           CASE WHEN n > %(jobs)s * (%(ended)s + %(running)s) THEN 0 ELSE 1 END,
           CASE WHEN n <= %(jobs)s * (%(ended)s + %(running)s) THEN CAST(%(day)s AS timestamptz) + (n + 60) * interval '1 second' END,
           CASE WHEN n <= %(jobs)s * %(ended)s THEN CAST(%(day)s AS timestamptz) + (n + 600) * interval '1 second' END,
           CASE WHEN n > %(jobs)s * (%(ended)s + %(running)s) THEN 1 WHEN n > %(jobs)s * %(ended)s THEN 3 ELSE 4 END,
           jsonb_build_object('team', 't' || n %% 10, 'sweep', 's' || n %% 10000)
           || CASE WHEN n = ANY(%(rare)s) THEN '{{"rare": "yes"}}'::jsonb ELSE '{{}}'::jsonb END
    FROM (SELECT * FROM jobs ORDER BY id LIMIT 1) p,
         (SELECT array_agg(id ORDER BY id) AS ids FROM queues) b,
         (SELECT array_agg(id ORDER BY id) AS ids FROM api_keys WHERE name LIKE 'user-%%') u,
         generate_series(1, CAST(%(jobs)s AS bigint)) n
    """,
    f"""
    INSERT INTO runs (job_id, attempt, cluster_id, state, known, desired_version, digest, sizes, assumed, decision, counted,
                      leased_at, started_at, ended_at)
    SELECT j.id, 1, c.ids[CASE WHEN j.name = 'needle' THEN {CLUSTERS} ELSE 1 + j.id * 48271 %% {CLUSTERS - 1} END],
           CAST(j.state::text AS run_state), true, 1, 1, '{{"main": 1}}', '[]', '{{}}', true, j.submitted_at, j.started_at, j.ended_at
    FROM jobs j, (SELECT array_agg(id ORDER BY id) AS ids FROM clusters) c WHERE j.attempt = 1
    """,
)
