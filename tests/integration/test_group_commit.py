"""Small submissions that come together are stored together, and each is answered as if it had come alone."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import orjson
import pytest

from tests.integration.rows import execute, picture, rows, value
from tests.waiting import eventually
from trainmaster.protocol.errors import Code, ProblemError
from trainmaster.protocol.states import KeyRole
from trainmaster.protocol.tenants import KeySpec, QueueSpec
from trainmaster_dispatcher.services.bootstrap import make_local_installation
from trainmaster_dispatcher.services.context import Stores
from trainmaster_dispatcher.services.group_commit import (
    ByItselfError,
    GroupCommits,
    PendingSubmission,
    StoredSubmission,
)
from trainmaster_dispatcher.services.settings import Settings
from trainmaster_dispatcher.services.submission_parsing import Most, prepare
from trainmaster_dispatcher.services.submit import Submission
from trainmaster_dispatcher.services.tenants import make_key
from trainmaster_dispatcher.store import jobs as job_store
from trainmaster_dispatcher.store.keys import Caller, Claim

ADMIN = Caller(1, "admin", KeyRole.ADMIN)
USER = Caller(2, "user", KeyRole.USER, ("open",))
ROUTE = "POST /v1/jobs"


@pytest.fixture
async def stores(database_url: str) -> AsyncIterator[Stores]:
    settings = Settings.model_validate({"database_url": database_url, "redis_url": None})
    queues = [
        QueueSpec(path="open"),
        QueueSpec(path="narrow", max_queued=3),
        QueueSpec(path="shared", max_queued_per_user=2),
    ]
    await make_local_installation(settings, [], {"admin": "tmk_admin"}, queues)
    made = Stores.open(settings)
    async with made.database.transaction() as tx:
        await make_key(tx, KeySpec(name="user", role=KeyRole.USER, queues=("open",)))
    yield made
    await made.close()


@pytest.fixture
async def group_commits(stores: Stores) -> AsyncIterator[GroupCommits]:
    made = GroupCommits(stores)
    yield made
    await made.close()


def pending(
    queue: str = "open", *, key: str | None = None, caller: Caller = ADMIN, name: str = "x", jobs: int = 1, **more: Any
) -> PendingSubmission:
    template = {"command": ["true"], "resources": {"cpu": "1"}}
    job = {"name": name, "queue": queue, "roles": [{"name": "main", "template": template}], **more}
    body = orjson.dumps(job if jobs == 1 else {"jobs": [job] * jobs})
    claim = None if key is None else Claim(caller.key_id, ROUTE, key)
    return PendingSubmission(Submission(caller, prepare(body, Most())), claim, body, "request")


async def outcomes(group_commits: GroupCommits, given: list[PendingSubmission]) -> list[Any]:
    """Submit all at once; return the answer to each: its value, or the error."""
    done = await asyncio.gather(*[group_commits.submit(one) for one in given], return_exceptions=True)
    return [orjson.loads(one.body) if isinstance(one, StoredSubmission) else one for one in done]


async def transactions(stores: Stores) -> int:
    """Return the number of transactions that stored jobs: each has left one row."""
    return int(await value(stores, "SELECT count(*) FROM changes WHERE kind = 'jobs'"))


async def test_submissions_that_come_together_are_stored_in_few_transactions(
    group_commits: GroupCommits, stores: Stores
) -> None:
    given = [pending(name=f"job-{number}", jobs=1 + number % 3) for number in range(60)]
    done = await outcomes(group_commits, given)
    ids = [item["id"] for one in done for item in one.get("jobs", [one])]
    stored = await rows(stores, "SELECT id, name FROM jobs ORDER BY id")
    assert len(set(ids)) == len(ids) == len(stored) == sum(one.jobs for one in given) == 120
    names = [f"job-{number}" for number in range(60) for _ in range(1 + number % 3)]
    assert [row.name for row in stored] == names == [one.rsplit("-", 1)[0] for one in ids]
    assert [len(one["jobs"]) if "jobs" in one else 1 for one in done] == [one.jobs for one in given]
    assert await transactions(stores) == 2
    targets = await rows(stores, "SELECT target FROM audit WHERE action = 'submit' ORDER BY id")
    assert [row.target for row in targets] == ["1 job" if one.jobs == 1 else f"{one.jobs} jobs" for one in given]


async def test_one_that_is_refused_takes_no_other_with_it(group_commits: GroupCommits, stores: Stores) -> None:
    given = [
        pending(),
        pending(),
        pending("nowhere"),
        pending(caller=USER),
        pending("narrow", caller=USER),
        pending(priorityClass="none", key="k1"),
        pending(key="k2"),
    ]
    done = await outcomes(group_commits, given)
    codes = [one.code if isinstance(one, ProblemError) else None for one in done]
    unknown = [None, None, Code.UNKNOWN_QUEUE, None, Code.FORBIDDEN, Code.UNKNOWN_PRIORITY_CLASS, None]
    assert codes == unknown
    assert await value(stores, "SELECT count(*) FROM jobs") == 4
    assert [row.key for row in await rows(stores, "SELECT key FROM idempotency_keys")] == ["k2"]
    keys = await rows(stores, "SELECT api_key_id FROM jobs ORDER BY id")
    assert [row.api_key_id for row in keys] == [1, 1, 2, 1]


async def test_room_in_a_queue_goes_to_the_first_that_ask(group_commits: GroupCommits, stores: Stores) -> None:
    await outcomes(group_commits, [pending("narrow")])
    done = await outcomes(
        group_commits, [pending(), pending("narrow", jobs=3), pending("narrow"), pending("narrow"), pending("narrow")]
    )
    assert [isinstance(one, ProblemError) for one in done] == [False, True, False, False, True]
    assert (done[1].code, done[4].code) == (Code.QUEUE_FULL, Code.QUEUE_FULL)
    assert "holds 1 waiting jobs, 3 more would exceed" in done[1].detail
    assert "holds 3 waiting jobs, 1 more would exceed" in done[4].detail
    assert await value(stores, "SELECT count(*) FROM jobs WHERE queue_id = 2 OR name = 'x'") == 4


async def test_room_for_each_user_is_counted_for_each(group_commits: GroupCommits) -> None:
    other = replace(USER, queues=("shared",))
    given = [pending("shared", caller=who) for who in (ADMIN, other, ADMIN, ADMIN, other, other)]
    done = await outcomes(group_commits, [pending(), *given])
    assert [isinstance(one, ProblemError) for one in done[1:]] == [False, False, False, True, False, True]


async def test_a_key_used_before_or_twice_at_once_has_to_come_alone(
    group_commits: GroupCommits, stores: Stores
) -> None:
    (first,) = await outcomes(group_commits, [pending(key="old")])
    done = await outcomes(
        group_commits, [pending(), pending(key="old"), pending(key="new"), pending(key="new"), pending()]
    )
    assert group_commits._claims == set()
    assert [isinstance(one, ByItselfError) for one in done] == [False, True, False, True, False]
    kept = {
        row.key: (row.status, orjson.loads(row.answer)) for row in await rows(stores, "SELECT * FROM idempotency_keys")
    }
    assert kept == {"old": (201, first), "new": (201, done[2])}


async def test_what_postgres_refuses_is_refused_alone(group_commits: GroupCommits, stores: Stores) -> None:
    bad = pending()
    broken = bad.submission.prepared.specs[0]._replace(spec=b'{"a": "\\u0000"}')
    bad.submission.prepared.specs[0] = broken
    done = await outcomes(group_commits, [pending(), pending(key="a"), bad, pending()])
    assert isinstance(done[0], dict), "it went before the others"
    assert all(isinstance(one, ByItselfError) for one in done[1:])
    before = await picture(stores)
    (alone,) = await outcomes(group_commits, [bad])
    assert isinstance(alone, ProblemError)
    assert alone.code is Code.INVALID_SPEC
    assert await picture(stores) == before


async def test_a_queue_that_is_held_up_holds_up_no_other(group_commits: GroupCommits, stores: Stores) -> None:
    async with stores.database.transaction() as tx:
        await job_store.hold_room(tx, await value(stores, "SELECT id FROM queues WHERE path = 'narrow'"))
        done = await outcomes(group_commits, [pending("narrow", key="k"), pending(), pending("narrow"), pending()])
        assert [isinstance(one, ByItselfError) for one in done] == [True, False, True, False], (
            "those wait by themselves"
        )
    assert await rows(stores, "SELECT * FROM idempotency_keys") == [], "it takes its key when it is stored"
    (done_now,) = await outcomes(group_commits, [pending("narrow", key="k")])
    assert "id" in done_now


async def test_too_many_that_wait_are_turned_away(group_commits: GroupCommits, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainmaster_dispatcher.services.group_commit._MOST_WAITING", 3)
    done = await outcomes(group_commits, [pending() for _ in range(6)])
    assert [getattr(one, "code", None) for one in done] == [None] * 4 + [Code.TOO_BUSY] * 2


async def test_a_request_that_is_given_up_disturbs_no_other(group_commits: GroupCommits, stores: Stores) -> None:
    tasks = [asyncio.create_task(group_commits.submit(pending())) for _ in range(4)]
    await asyncio.sleep(0)
    tasks[0].cancel()
    tasks[2].cancel()
    done = await asyncio.gather(*tasks, return_exceptions=True)
    assert [isinstance(one, StoredSubmission) for one in done] == [False, True, False, True]

    async def are_stored() -> bool:
        """Return whether three jobs are stored: all but the third, which was given up before it was begun."""
        return bool(await value(stores, "SELECT count(*) FROM jobs") == 3)

    await eventually(are_stored)


async def test_a_request_that_is_given_up_and_comes_again_at_once_makes_one_job(
    group_commits: GroupCommits, stores: Stores
) -> None:
    under_way = asyncio.create_task(group_commits.submit(pending()))
    given_up = asyncio.create_task(group_commits.submit(pending(key="k")))
    await asyncio.sleep(0)
    given_up.cancel()
    await asyncio.sleep(0)
    again = await group_commits.submit(pending(key="k"))
    assert b"id" in again.body
    assert b"id" in (await under_way).body
    assert await value(stores, "SELECT count(*) FROM jobs") == 2
    assert [row.answer for row in await rows(stores, "SELECT answer FROM idempotency_keys")] == [again.body]


async def test_an_end_answers_those_that_wait(group_commits: GroupCommits, stores: Stores) -> None:
    tasks = [asyncio.create_task(group_commits.submit(pending())) for _ in range(3)]
    await asyncio.sleep(0)
    await group_commits.close()
    done = await asyncio.gather(*tasks, return_exceptions=True)
    codes = [getattr(one, "code", None) for one in done]
    assert codes == [None, Code.TOO_BUSY, Code.TOO_BUSY]
    assert await value(stores, "SELECT count(*) FROM jobs") == 1


async def test_an_expired_key_is_free_again(group_commits: GroupCommits, stores: Stores) -> None:
    await outcomes(group_commits, [pending(key="old")])
    await execute(stores, "UPDATE idempotency_keys SET created_at = now() - interval '8 days'")
    (again,) = await outcomes(group_commits, [pending(key="old")])
    assert isinstance(again, ByItselfError), "the way by itself removes it and takes it anew"


def test_parameter_sets_and_many_jobs_are_no_part_of_a_group() -> None:
    sets = prepare(b'{"job": %b, "parameters": [{"a": 1}]}' % pending().body_hash.replace(b'"true"', b'"${a}"'), Most())
    assert not GroupCommits.takes(replace(pending(), submission=Submission(ADMIN, sets)))
    assert GroupCommits.takes(pending(jobs=100))
    assert not GroupCommits.takes(pending(jobs=101))
