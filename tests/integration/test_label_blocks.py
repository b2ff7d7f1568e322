"""Jobs that must not have a label: pages of them are those that a look at every job finds, whatever is known of their blocks."""

import random
from collections.abc import AsyncIterator, Sequence

import psycopg
import pytest

from trainmaster_dispatcher.api.kube.job_selection import conditions_of
from trainmaster_dispatcher.api.kube.selectors import parse_labels
from trainmaster_dispatcher.services.common_labels import find_common_labels
from trainmaster_dispatcher.store import job_objects, jobs, retention
from trainmaster_dispatcher.store.database import Database, dumps
from trainmaster_dispatcher.store.jobs import Filter, LabelCondition
from trainmaster_dispatcher.store.label_blocks import BLOCK, ExcludedLabel, candidates, forget_common

SELECTORS = (
    "class!=batch",
    "!class",
    "class notin (batch,rare)",
    "team=t1,class!=batch",
    "team in (t1,t2),!late",
    "!late,class!=batch",
    "class,class!=batch",
    "color!=c9",
    "team notin (t0,t1,t2)",
    "nothing!=x",
    "!team",
)


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    """A store with two queues, whose first job begins block 1."""
    with psycopg.connect(database_url) as connection:
        connection.execute(f"SELECT setval(pg_get_serial_sequence('jobs', 'id'), {BLOCK}, false)")
        connection.execute("INSERT INTO queues (path, spec) VALUES ('a', '{}'), ('b', '{}')")
    opened = Database(database_url)
    yield opened
    await opened.close()


async def add(database: Database, labels: Sequence[dict[str, str] | None], *, ended: bool = False) -> None:
    """Store jobs with these labels, in the two queues by turns."""
    async with database.transaction() as tx:
        await tx.run(
            """
            INSERT INTO jobs (name, queue_id, class_id, shape_id, spec_id, api_key_id, state, labels, ended_at)
            SELECT 'job', (SELECT min(id) FROM queues) + n % 2, (SELECT min(id) FROM priority_classes), 1, 1, 1,
                   CAST(:state AS job_state), NULLIF(l, 'null'), CASE WHEN :ended THEN now() - interval '1 day' END
            FROM jsonb_array_elements(CAST(:labels AS jsonb)) WITH ORDINALITY AS e(l, n) ORDER BY n
            """,
            labels=dumps(labels),
            state="succeeded" if ended else "queued",
            ended=ended,
        )


def labels_of(chance: random.Random) -> dict[str, str] | None:
    """Return the labels of a job: nearly all have class=batch, many a team and a color of many."""
    if chance.random() < 0.002:
        return None
    labels = {"class": "batch" if chance.random() < 0.995 else chance.choice(("rare", "other"))}
    if chance.random() < 0.002:
        del labels["class"]
    if chance.random() < 0.9995:
        labels["team"] = f"t{chance.randrange(4)}"
    if chance.random() < 0.998:
        labels["late"] = ""
    labels["color"] = f"c{chance.randrange(40)}"
    return labels


def conditions(selector: str) -> tuple[LabelCondition, ...]:
    return tuple(conditions_of(parse_labels(selector)))


async def pages(database: Database, wanted: Filter, limit: int) -> list[int]:
    """Return the keys of all jobs that match, page by page."""
    found: list[int] = []
    while True:
        async with database.reading() as tx:
            page = await jobs.page(tx, wanted, found[-1] if found else None, limit)
        found += [one.id for one in page]
        if len(page) < limit:
            return found


async def expected(database: Database, selector: str, queue_id: int | None) -> list[int]:
    requirements = parse_labels(selector)
    async with database.reading() as tx:
        rows = await tx.all("SELECT id, queue_id, labels FROM jobs ORDER BY id DESC")
    return [
        row.id
        for row in rows
        if queue_id in (None, row.queue_id) and all(one.holds(row.labels or {}) for one in requirements)
    ]


async def check(database: Database, chance: random.Random) -> None:
    """Compare the pages of all selectors with a look at every job."""
    async with database.reading() as tx:
        first = (await tx.one("SELECT min(id) AS id FROM queues")).id
    for selector in SELECTORS:
        queue_id = chance.choice((None, first, first + 1))
        queues = None if queue_id is None else (queue_id,)
        wanted = Filter(queue_ids=queues, label_conditions=conditions(selector))
        found = await pages(database, wanted, chance.choice((7, 100, 501)))
        assert found == await expected(database, selector, queue_id), (selector, queue_id)


@pytest.mark.parametrize("seed", range(3))
async def test_pages_are_those_of_a_look_at_every_job(
    database: Database, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(jobs, "_WINDOW", 300)
    monkeypatch.setattr(jobs, "_FIRST_BLOCKS", 2)
    monkeypatch.setattr(jobs, "_MOST_BLOCKS_FOR_LABELS", 6)
    chance = random.Random(seed)
    for _ in range(4):
        await add(database, [labels_of(chance) for _ in range(chance.randrange(200, 1500))])
        await add(database, [labels_of(chance) for _ in range(chance.randrange(0, 600))], ended=True)
        await find_common_labels(database)
        await check(database, chance)
        await find_common_labels(database)
        await check(database, chance)
        async with database.transaction() as tx:
            ids = [row.id for row in await tx.all("SELECT id FROM jobs ORDER BY id")]
            for key in chance.sample(ids, 5):
                await job_objects.relabel(tx, key, labels_of(chance) or {})
            await jobs_gone(database, [row for row in ids if chance.random() < 0.7])
        await check(database, chance)


async def jobs_gone(database: Database, ids: list[int]) -> None:
    """Remove those of these jobs that have ended, as retention does."""
    async with database.transaction() as tx:
        await retention.remove_jobs(tx, ids, 60.0)


async def blocks_with(database: Database, excluded: ExcludedLabel) -> list[int]:
    """Return the blocks in which there can be jobs without a label."""
    async with database.reading() as tx:
        return list((await candidates(tx, [excluded], None)).blocks)


NOT_BATCH = ExcludedLabel("class", ("batch",))


async def known(database: Database) -> None:
    """Find the labels of all blocks that are whole: they begin, and are looked at by the next call."""
    await find_common_labels(database)
    await find_common_labels(database)


async def test_blocks_whose_jobs_all_have_a_label_are_skipped(database: Database) -> None:
    labels: list[dict[str, str] | None] = [{"class": "batch", "n": str(n % 9)} for n in range(8 * BLOCK)]
    labels[3 * BLOCK] = {"class": "rare", "n": "1"}
    labels[5 * BLOCK + 7] = {"n": "1"}
    await add(database, labels)
    await known(database)
    assert await blocks_with(database, NOT_BATCH) == [6, 4]
    assert await blocks_with(database, ExcludedLabel("class", ("batch", "rare"))) == [6]
    assert await blocks_with(database, ExcludedLabel("class", None)) == [6]
    assert await blocks_with(database, ExcludedLabel("n", None)) == []
    many = await blocks_with(database, ExcludedLabel("n", ("1",)))
    assert many == list(range(8, 0, -1)), "all of it"


async def test_a_block_is_unknown_while_a_job_may_still_come_to_it(database: Database) -> None:
    await add(database, [{"class": "batch"}] * (BLOCK - 2))
    async with database.transaction() as late:
        row = await late.one(
            "INSERT INTO jobs (name, queue_id, class_id, shape_id, spec_id, api_key_id, state)"
            " SELECT 'late', min(id), (SELECT min(id) FROM priority_classes), 1, 1, 1, 'queued' FROM queues RETURNING id"
        )
        await add(database, [{"class": "batch"}] * (2 * BLOCK))
        await known(database)
        assert await blocks_with(database, NOT_BATCH) == [2, 1], "nothing is known of them"
    await known(database)
    assert await blocks_with(database, NOT_BATCH) == [1]
    wanted = Filter(label_conditions=conditions("class!=batch"))
    assert await pages(database, wanted, 10) == [row.id]


async def test_what_is_known_of_a_block_is_forgotten_with_the_labels_of_a_job_of_it(database: Database) -> None:
    await add(database, [{"class": "batch"}] * (4 * BLOCK))
    await known(database)
    assert await blocks_with(database, NOT_BATCH) == []
    async with database.transaction() as tx:
        await job_objects.relabel(tx, BLOCK + 5, {"class": "rare"})
        assert await blocks_with(database, NOT_BATCH) == [], "it is not committed"
    assert await blocks_with(database, NOT_BATCH) == [1]
    async with database.transaction() as tx:
        await forget_common(tx, 2 * BLOCK)
        await known(database)  # leaves out the block that another transaction has
    assert await blocks_with(database, NOT_BATCH) == [2, 1]
    await known(database)
    assert await blocks_with(database, NOT_BATCH) == [1]


async def test_blocks_without_jobs_are_removed_and_gaps_are_passed(database: Database) -> None:
    await add(database, [{"class": "batch"}] * (3 * BLOCK), ended=True)
    await known(database)
    await jobs_gone(database, list(range(2 * BLOCK, 3 * BLOCK + 1)))
    async with database.transaction() as tx:
        assert [row.block for row in await tx.all("SELECT block FROM label_blocks ORDER BY 1")] == [1, 3]
        await tx.run("SELECT setval(pg_get_serial_sequence('jobs', 'id'), 1000000000)")
    await add(database, [{"class": "batch"}] * (2 * BLOCK) + [{}])
    await known(database)
    async with database.reading() as tx:
        blocks = [row.block for row in await tx.all("SELECT block FROM label_blocks ORDER BY 1")]
        places = await candidates(tx, [NOT_BATCH], None)
    assert len(blocks) <= 5
    assert places.young > 1_000_000_000
    assert await pages(database, Filter(label_conditions=conditions("class!=batch")), 10) == [places.last]
