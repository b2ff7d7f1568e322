"""The limit that ``bench.flow`` compares with: the same row writes, bare, in batches of 1,000 on one connection.

Each job costs what it costs the dispatcher in rows: a specification, a job, a run, three changes of the job, two of the run,
three events. Nothing is read, checked or decided.
"""

import time
from typing import Any

import orjson
import psycopg

BATCH = 1000

_JOBS = """
    UPDATE jobs SET version = jobs.version + 1, state = %(state)s::job_state, attempt = 1, message = '',
           started_at = CASE WHEN %(state)s IN ('running', 'succeeded') THEN coalesce(started_at, now()) END,
           ended_at = CASE WHEN %(state)s = 'succeeded' THEN now() END
    FROM unnest(%(ids)s::bigint[]) AS n(id) WHERE jobs.id = n.id
"""
_EVENTS = """
    INSERT INTO events (job_id, seq, kind, states, attempt, cluster_id, message, details, xid, quiet_xid)
    SELECT id, %(seq)s, %(kind)s, ARRAY[%(state)s], 1, 1, '', '{"job": "x"}'::jsonb,
           CASE WHEN %(state)s <> 'running' THEN pg_current_xact_id() END,
           CASE WHEN %(state)s = 'running' THEN pg_current_xact_id() END
    FROM unnest(%(ids)s::bigint[]) AS n(id)
"""
_NEW_RUNS = """
    INSERT INTO runs (job_id, attempt, cluster_id, state, desired_version, digest, sizes, assumed, orders, decision)
    SELECT id, 1, 1, 'leased', 1, id, '{"main": 1}'::jsonb, '{"nodes": {"main": 1}}'::jsonb, '{"version": 1}'::jsonb,
           %(decision)s::jsonb
    FROM unnest(%(ids)s::bigint[]) AS n(id)
"""
_RUNS = """
    UPDATE runs SET state = %(state)s::run_state, seq = seq + 1, known = true, result = %(result)s::jsonb,
           started_at = coalesce(started_at, now()), ended_at = CASE WHEN %(state)s = 'succeeded' THEN now() END
    FROM unnest(%(ids)s::bigint[]) AS n(id) WHERE runs.job_id = n.id AND runs.attempt = 1
"""


def replay(url: str, spec: dict[str, Any], jobs: int) -> float:
    """Write the rows of ``jobs`` jobs into the database of the run, after it; return the jobs per second."""
    text = orjson.dumps(spec).replace(b"\\", b"\\\\")
    decision = orjson.dumps(
        {"why": "the only cluster where it fits now", "table": [{"score": 1.0}], "cycle": 1}
    ).decode()
    result = orjson.dumps({"end": {"exitCode": 0}, "members": [{"role": "main", "index": 0}]}).decode()
    with psycopg.connect(url) as connection, connection.cursor() as cursor:
        began = time.perf_counter()
        for _ in range(jobs // BATCH):
            first = _submit(cursor, text)
            connection.commit()
            ids = list(range(first, first + BATCH))
            for state, seq in (("dispatched", 2), ("running", 3), ("succeeded", 4)):
                values = {"ids": ids, "state": state, "seq": seq, "kind": f"run.{state}"}
                cursor.execute(_JOBS, values)
                cursor.execute(_EVENTS, values)
                if state == "dispatched":
                    cursor.execute(_NEW_RUNS, values | {"decision": decision})
                else:
                    cursor.execute(_RUNS, values | {"result": result if state == "succeeded" else None})
                connection.commit()
        return jobs / (time.perf_counter() - began)


def _submit(cursor: "psycopg.Cursor[Any]", spec: bytes) -> int:
    cursor.execute(
        "INSERT INTO changes (kind, ref, many) SELECT 'jobs', take_ids('jobs_id_seq'::regclass, %(n)s), %(n)s RETURNING ref",
        {"n": BATCH},
    )
    row = cursor.fetchone()
    assert row is not None
    first = int(row[0])
    with cursor.copy("COPY job_specs (id, last_job_id, spec) FROM STDIN") as copy:
        copy.write(b"".join(b"%d\t%d\t%b\n" % (key, key, spec) for key in range(first, first + BATCH)))
    with cursor.copy(
        "COPY jobs (id, spec_id, name, queue_id, class_id, shape_id, api_key_id, state) FROM STDIN"
    ) as copy:
        copy.write(
            b"".join(b"%d\t%d\treplay\t1\t2\t1\t1\tqueued\n" % (key, key) for key in range(first, first + BATCH))
        )
    return first
