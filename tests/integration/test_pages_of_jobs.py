"""Pages of jobs by filters: those that a look at every job finds, wherever the jobs are that match, and what people search for."""

import random
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from tests.conftest import Service
from tests.integration.rows import execute
from tests.integration.test_job_filters import ids, submitted, user
from trainmaster.protocol.ids import parse_job_id
from trainmaster_dispatcher.store import jobs
from trainmaster_dispatcher.store.database import Database
from trainmaster_dispatcher.store.jobs import Filter, Search

_BEGIN = datetime(2037, 1, 1, tzinfo=UTC)
_JOBS = 600


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    """A store with jobs of three queues, two clusters and three submitters, in all states, in the order of their submission."""
    with psycopg.connect(database_url) as connection:
        connection.execute("INSERT INTO queues (path, spec) SELECT p, '{}' FROM unnest(ARRAY['x', 'x/a', 'y']) p")
        connection.execute("INSERT INTO priority_classes (name, value, spec) VALUES ('bulk', 1, '{}')")
        connection.execute(
            "INSERT INTO clusters (name, kind, spec) SELECT n, 'private', '{}' FROM unnest(ARRAY['west', 'east']) n"
        )
        connection.execute(
            "INSERT INTO api_keys (name, hash, hint, role) SELECT n, sha256(n::bytea), '', 'user' FROM unnest(ARRAY['u', 'v', 'w']) n"
        )
        connection.execute(
            """
            INSERT INTO jobs (name, queue_id, class_id, shape_id, spec_id, api_key_id, submitted_at, state, wish, attempt, ended_at,
                              labels)
            SELECT CASE WHEN mod(n, 200) = 7 THEN 'rare_%%' ELSE 'bert-' || mod(n, 7) END, q.ids[1 + mod(n, 3)],
                   (SELECT min(id) FROM priority_classes), 1, 1, k.ids[1 + mod(n / 5, 3)],
                   CAST(%s AS timestamptz) + n * interval '1 minute', s.state, s.wish, mod(n, 2),
                   CASE WHEN s.state IN ('succeeded', 'failed', 'cancelled') THEN now() END,
                   jsonb_build_object('team', 't' || mod(n, 4))
            FROM generate_series(0, CAST(%s AS int)) n,
                 (SELECT array_agg(id ORDER BY id) ids FROM queues WHERE path IN ('x', 'x/a', 'y')) q,
                 (SELECT array_agg(id ORDER BY id) ids FROM api_keys WHERE name IN ('u', 'v', 'w')) k,
                 (SELECT CAST('{succeeded,queued,held,running,failed,cancelled}' AS job_state[]) AS every) a,
                 LATERAL (SELECT a.every[1 + mod(n / 3, 6)] AS state,
                                 CASE WHEN mod(n / 3, 6) = 3 AND mod(n, 2) = 0 THEN 'cancelling'::wish END AS wish) s
            ORDER BY n
            """,
            (_BEGIN, _JOBS - 1),
        )
        connection.execute(
            """
            INSERT INTO runs (job_id, attempt, cluster_id, state, desired_version, digest, sizes, assumed, decision, ended_at)
            SELECT j.id, 1, c.ids[1 + mod(j.id, 2)], 'failed', 1, 1, '{}', '[]', '{}', now()
            FROM jobs j, (SELECT array_agg(id ORDER BY id) ids FROM clusters WHERE name IN ('west', 'east')) c
            """
        )
    opened = Database(database_url)
    yield opened
    await opened.close()


def _filters(clusters: dict[str, int]) -> list[Filter]:
    single = [
        Filter(states=("failed",)),
        Filter(states=("queued", "held")),
        Filter(states=("failed", "running")),
        Filter(states=("cancelling",)),
        Filter(states=("cancelling", "succeeded")),
        Filter(name="bert-3"),
        Filter(name="bert-*"),
        Filter(name="*-3"),
        Filter(name="rare_%"),
        Filter(name="rare%"),
        Filter(labels={"team": "t3"}),
        Filter(cluster_id=clusters["west"]),
        Filter(submitter="v"),
        Filter(submitter="nobody"),
        Filter(since=_BEGIN + timedelta(minutes=500)),
        Filter(until=_BEGIN + timedelta(minutes=77)),
        Filter(since=_BEGIN + timedelta(minutes=100), until=_BEGIN + timedelta(minutes=110)),
        Filter(since=_BEGIN + timedelta(days=99)),
        Filter(until=_BEGIN),
        Filter(search=Search("bert-3")),
        Filter(search=Search("rare_")),
        Filter(search=Search("team=t2")),
        Filter(search=Search("no-such", key=17)),
    ]
    pairs, nothing = [], Filter()
    for number, one in enumerate(single):
        for other in single[number + 1 :]:
            chosen = {name: getattr(other, name) for name in Filter.__slots__}
            differing = {name: value for name, value in chosen.items() if value != getattr(nothing, name)}
            if all(getattr(one, name) == getattr(nothing, name) for name in differing):
                pairs.append(replace(one, **differing))
    return single + random.Random(7).sample(pairs, 60)


async def test_pages_have_the_jobs_that_a_look_at_every_job_finds(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "_WINDOW", 40)
    monkeypatch.setattr(jobs, "_RUNS", 30)
    found_any = 0
    async with database.transaction() as tx:
        clusters = {row.name: row.id for row in await tx.all("SELECT id, name FROM clusters")}
        for base in _filters(clusters):
            for wanted in (base, replace(base, below=("x",)), replace(base, below=("none",))):
                expected = sorted(await jobs.matching(tx, wanted, 0, 10_000), reverse=True)
                found_any += bool(expected)
                pages: list[int] = []
                before = None
                while True:
                    rows = await jobs.page(tx, wanted, before, 25)
                    pages += [row.id for row in rows]
                    if len(rows) < 25:
                        break
                    before = rows[-1].id
                assert pages == expected, wanted
    assert found_any > 80, "most filters match something"


async def test_pages_of_filters_are_planned_for_what_each_filter_matches(database: Database) -> None:
    """A prepared statement may get one plan for rare labels and common ones; that read a million jobs for a page of three."""
    async with database.transaction() as tx:
        for _ in range(12):
            await jobs.page(tx, Filter(labels={"team": "t3"}, states=("failed",)), None, 25)
            await jobs.count_matching(tx, Filter(name="bert-3"))
            await jobs.page(tx, Filter(below=("x",)), None, 25)
        prepared = [row.statement for row in await tx.all("SELECT statement FROM pg_prepared_statements")]
    assert [one for one in prepared if "labels @>" in one or "name LIKE" in one] == []
    assert len([one for one in prepared if "page AS MATERIALIZED" in one]) == 1, "that of a queue, by its index"


async def test_people_search_for_ids_names_users_and_labels(service: Service) -> None:
    one, other = await submitted(service.http, "bert-large"), await submitted(service.http, "gpt")
    await execute(service.stores, "UPDATE jobs SET labels = '{\"team\": \"vision\"}' WHERE name = 'gpt'")
    async with await user(service, "ann", "default") as ann:
        of_ann = await submitted(ann, "job")
        assert await ids(service.http, search=one) == {one}
        assert await ids(service.http, search="bert") == {one}
        assert await ids(service.http, search="ert") == set()
        assert await ids(service.http, search="ann") == {of_ann}
        assert await ids(service.http, search="team=vision") == {other}
        assert await ids(service.http, search="team=") == set()
        assert await ids(service.http, search="%") == set()
        assert await ids(service.http, search="ann", state="running") == set()
        body = {"filter": {"search": "bert"}, "dryRun": True}
        assert (await service.http.post("/v1/jobs/cancel", json=body)).json()["matched"] == 1
    assert (await service.http.get("/v1/jobs", params={"search": ""})).json()["code"] == "invalid-parameter"


async def test_a_search_finds_no_jobs_of_queues_that_a_user_may_not_see(service: Service) -> None:
    await service.http.put("/v1/queues/other", json={"path": "other"})
    job = await submitted(service.http, "bert")
    async with await user(service, "ann", "other") as ann:
        for text in (job, "bert", "admin"):
            assert await ids(ann, search=text) == set(), text
    assert parse_job_id(job)[1] > 0


async def test_jobs_by_time_need_not_be_in_the_order_of_their_submission(database: Database) -> None:
    """Transactions at the same time store jobs whose keys and times are in different orders."""
    async with database.transaction() as tx:
        await tx.run("UPDATE jobs SET submitted_at = submitted_at + (id % 7 - 3) * interval '100 seconds'")
        for minute in range(0, _JOBS, 37):
            for wanted in (
                Filter(since=_BEGIN + timedelta(minutes=minute)),
                Filter(until=_BEGIN + timedelta(minutes=minute)),
            ):
                expected = sorted(await jobs.matching(tx, wanted, 0, 10_000), reverse=True)
                assert [row.id for row in await jobs.page(tx, wanted, None, 1000)] == expected
