"""Notices under faults: workers are killed again and again while users' jobs end; each end is in one message, sent at least once."""

import asyncio
import random
from email.message import EmailMessage

import pytest

from tests.conftest import Service
from tests.faults.test_worker_faults import env, kill, settings, worker
from tests.integration.mail_server import MailReceiver
from tests.integration.rows import value
from tests.integration.test_notices import SENDER, WANTED, end, jobs_of, key_of_user
from tests.waiting import eventually
from trainmaster.protocol.states import JobState
from trainmaster_dispatcher.cli.embedded import free_port

__all__ = ["env", "settings"]
pytestmark = pytest.mark.faults

PORT = free_port()
JOBS, KILLS = 60, 6


@pytest.fixture(autouse=True)
def mail_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINMASTER_SMTP_URL", f"smtp://127.0.0.1:{PORT}")
    monkeypatch.setenv("TRAINMASTER_MAIL_FROM", SENDER)


def ids_of(messages: list[EmailMessage]) -> dict[str, str]:
    """Return the jobs that messages are about, by Message-ID; repeats of a message have its id."""
    return {str(one["Message-ID"]): str(one["Subject"]).split()[2] for one in messages}


async def test_each_end_is_reported_once_however_often_workers_are_killed(
    service: Service, env: dict[str, str]
) -> None:
    _, ada = await key_of_user(service)
    with MailReceiver(lambda number: "451 later" if number % 5 == 0 else "250 OK", port=PORT) as mails:
        async with ada:
            stored = await ada.put("/v1/notices", json=WANTED | {"most": 100})
            assert stored.status_code == 200, stored.text
            ids = await jobs_of(ada, JOBS)

        async def flow() -> None:
            for one in ids:
                await end(service, JobState.FAILED, one)
                await asyncio.sleep(0.05)

        flowing = asyncio.create_task(flow())
        for _ in range(KILLS):
            process = worker(env)
            before, more = len(mails.received), random.randint(1, 10)

            async def has_done_some(before: int = before, more: int = more) -> bool:
                return len(mails.received) >= before + more or (flowing.done() and await nothing_left(service))

            try:
                await eventually(has_done_some, 40)
            finally:
                kill(process)
        await flowing
        process = worker(env)
        try:
            await eventually(lambda: nothing_left(service), 60)
        finally:
            kill(process)
    found = ids_of([one.message for one in mails.taken])
    assert sorted(found.values()) == sorted(ids)


async def nothing_left(service: Service) -> bool:
    waiting = "SELECT (SELECT count(*) FROM notice_events) + (SELECT count(*) FROM outbox WHERE dead_at IS NULL)"
    return bool(await value(service.stores, waiting) == 0)
