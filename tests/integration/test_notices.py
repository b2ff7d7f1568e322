"""Notices by e-mail and to chats from the store to real servers, preferences of users, digests, and who may set what."""

import asyncio
import ssl
import subprocess
from collections.abc import AsyncIterator
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import Service, job
from tests.integration.mail_server import MailReceiver
from tests.integration.receiver import SECRET, Receiver
from tests.integration.rows import execute, rows, value
from tests.integration.test_dependency_races import end_all
from trainmaster.protocol.ids import parse_job_id
from trainmaster.protocol.states import JobState
from trainmaster_dispatcher.domain.mail_server import MailServer, read_mail_server
from trainmaster_dispatcher.domain.webhooks import AddressPolicy, Persistence
from trainmaster_dispatcher.services import notices
from trainmaster_dispatcher.services.webhooks import DeliveryTerms, Relay, Tally
from trainmaster_dispatcher.worker.http import Poster
from trainmaster_dispatcher.worker.mail import Mailer

POLICY = AddressPolicy(allow_http=True, networks=(ip_network("127.0.0.1/32"),))
SENDER = "trainmaster@example.com"
QUICK = Persistence(first_seconds=0.001, most_seconds=0.002, attempts=3)
TERMS = DeliveryTerms(POLICY, (SECRET,), QUICK, 64, 60, SENDER, ("example.com",), "https://tm.example.com")
WANTED = {"email": True, "events": ["failed", "succeeded"]}


@pytest.fixture(autouse=True)
def settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in {
        "WEBHOOK_SECRET": SECRET,
        "WEBHOOK_ALLOW_HTTP": "true",
        "WEBHOOK_ALLOW_NETWORKS": "127.0.0.1/32",
        "SMTP_URL": "smtp://127.0.0.1:2525",
        "MAIL_FROM": SENDER,
        "MAIL_DOMAINS": "example.com",
    }.items():
        monkeypatch.setenv(f"TRAINMASTER_{name}", text)


@pytest.fixture
async def post() -> AsyncIterator[Poster]:
    async with Poster(POLICY) as poster:
        yield poster


def server_of(receiver: MailReceiver, **fields: Any) -> MailServer:
    return read_mail_server(receiver.url)._replace(**fields)


async def relay_all(service: Service, post: Poster, server: MailServer | None, terms: DeliveryTerms = TERMS) -> Tally:
    """Relay until all messages that are left are dead, and return the counts; pauses between attempts are skipped."""
    total = Tally()
    mailer = None if server is None else Mailer(server, SENDER, 5.0)
    while await value(service.stores, "SELECT count(*) FROM outbox WHERE dead_at IS NULL"):
        await execute(service.stores, "UPDATE outbox SET next_at = now() WHERE dead_at IS NULL")
        done = await Relay(service.stores.database, terms, post, send_mail=mailer).run()
        total = Tally(total.delivered + done.delivered, total.failed + done.failed, total.dead + done.dead)
    return total


async def end(service: Service, state: JobState, *ids: str) -> None:
    async with service.stores.database.transaction() as tx:
        await end_all(tx, [parse_job_id(one)[1] for one in ids], state)


async def key_of_user(
    service: Service, name: str = "ada", email: str | None = "ada@example.com"
) -> tuple[int, httpx.AsyncClient]:
    made = (await service.http.post("/v1/keys", json={"name": name, "role": "user", "queues": ["default"]})).json()
    if email is not None:
        answer = await service.http.post(f"/v1/keys/{made['id']}/email", json={"email": email})
        assert answer.status_code == 204, answer.text
    return made["id"], service.as_key(made["key"])


async def jobs_of(http: httpx.AsyncClient, many: int = 1) -> list[str]:
    answer = await http.post("/v1/jobs", json={"jobs": [job(f"j{n}") for n in range(many)]})
    assert answer.status_code == 201, answer.text
    return [one["id"] for one in answer.json()["jobs"]]


# Entries of notify


async def test_each_address_of_a_job_gets_mail_and_chats_get_their_formats(service: Service, post: Poster) -> None:
    with MailReceiver() as mails, Receiver() as chats:
        notify: list[dict[str, Any]] = [
            {"email": ["ada@example.com", "bo@example.com"], "states": ["cancelled"]},
            *({"chat": {"url": f"{chats.url}/{one}", "format": one}} for one in ("slack", "teams", "mattermost")),
            {"url": f"{chats.url}/hook", "states": ["cancelled"]},
        ]
        job_id = await service.submit(notify=notify)
        assert (await service.http.post(f"/v1/jobs/{job_id}/cancel")).status_code == 200
        assert await relay_all(service, post, server_of(mails)) == Tally(6, 0, 0)
    assert sorted(one.recipients[0] for one in mails.taken) == ["ada@example.com", "bo@example.com"]
    for mail in mails.taken:
        assert mail.sender == SENDER
        assert mail.subject == f"[Trainmaster] Job {job_id} was cancelled"
        assert f"https://tm.example.com/v1/jobs/{job_id}" in mail.text
        assert mail.message["Auto-Submitted"] == "auto-generated"
    by_path = {one.path.strip("/"): one for one in chats.taken}
    assert by_path["hook"].is_signed()
    assert "startedAt" not in by_path["hook"].value
    assert by_path["slack"].value["text"] == f"Job {job_id} was cancelled"
    assert by_path["teams"].value["attachments"][0]["content"]["type"] == "AdaptiveCard"
    assert by_path["mattermost"].value["attachments"][0]["title"] == f"Job {job_id} was cancelled"
    assert "trainmaster-signature" not in by_path["slack"].headers


async def test_workflows_and_groups_are_reported_as_well(service: Service, post: Poster) -> None:
    steps = [{"name": "a", "job": {"roles": job()["roles"]}}]
    made = await service.http.post(
        "/v1/workflows",
        json={
            "name": "w",
            "queue": "default",
            "steps": steps,
            "notify": [{"email": ["ada@example.com"], "states": ["running"]}],
        },
    )
    assert made.status_code == 201, made.text
    with MailReceiver() as mails:
        assert (await relay_all(service, post, server_of(mails))).delivered == 1
    assert mails.taken[0].subject.startswith("[Trainmaster] Workflow w-")
    grouped = job(group="g", notify=[{"email": ["ada@example.com"], "group": True}])
    assert (await service.http.post("/v1/jobs", json={"jobs": [grouped]})).status_code == 201
    assert [row.url for row in await rows(service.stores, "SELECT url FROM group_hooks")] == ["mailto:ada@example.com"]


async def test_addresses_that_an_admin_does_not_allow_are_refused(service: Service) -> None:
    entry = {"email": ["ada@example.com", "victim@example.org"]}
    refused = await service.http.post("/v1/jobs", json=job(notify=[entry]))
    assert refused.status_code == 422
    assert refused.json()["code"] == "invalid-spec"
    assert [one["path"] for one in refused.json()["mistakes"]] == ["notify[0].email[1]"]
    assert "allowed are example.com" in refused.text
    chat = {"chat": {"url": "http://10.0.0.1/x", "format": "slack"}}
    refused = await service.http.post("/v1/jobs", json=job(notify=[chat]))
    assert [one["path"] for one in refused.json()["mistakes"]] == ["notify[0].chat.url"]
    assert await value(service.stores, "SELECT count(*) FROM jobs") == 0


async def test_a_domain_that_is_not_allowed_any_more_gets_nothing(service: Service, post: Poster) -> None:
    await service.submit(notify=[{"email": ["ada@example.com"], "states": ["queued"]}])
    with MailReceiver() as mails:
        terms = DeliveryTerms(POLICY, (SECRET,), QUICK, 64, 60, SENDER, ("example.org",))
        assert await relay_all(service, post, server_of(mails), terms) == Tally(0, 1, 1)
    assert mails.received == []
    letter = (await service.http.get("/v1/webhooks/dead")).json()["dead"][0]
    assert "does not allow" in letter["error"]


class TestWithoutMail:
    @pytest.fixture(autouse=True)
    def without(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("TRAINMASTER_SMTP_URL")

    async def test_mail_is_refused_and_what_is_stored_waits(self, service: Service, post: Poster) -> None:
        refused = await service.http.post("/v1/jobs", json=job(notify=[{"email": ["ada@example.com"]}]))
        assert (refused.status_code, refused.json()["code"]) == (422, "mail-off")
        _, ada = await key_of_user(service)
        async with ada:
            refused = await ada.put("/v1/notices", json=WANTED)
            assert (refused.status_code, refused.json()["code"]) == (422, "mail-off")
            assert (await ada.get("/v1/notices")).json() == {
                "address": "ada@example.com", "sendsEmail": False, "notices": None,
            }  # fmt: skip
        await execute(
            service.stores,
            "INSERT INTO outbox (api_key_id, seq, hook, url, body) VALUES (1, 1, 0, 'mailto:a@example.com', '{}')",
        )
        assert await Relay(service.stores.database, TERMS, post).run() == Tally()
        assert await value(service.stores, "SELECT attempts FROM outbox") == 0


# Mail servers


async def test_refusals_for_now_are_tried_again_and_refusals_for_good_are_given_up(
    service: Service, post: Poster
) -> None:
    def of_recipient(address: str) -> str:
        return "550 no such user" if address.startswith("gone") else "250 OK"

    with MailReceiver(lambda number: "451 later" if number == 1 else "250 OK", of_recipient) as mails:
        entry = {"email": ["ada@example.com"], "states": ["queued"]}
        job_id = await service.submit(notify=[entry])
        assert await relay_all(service, post, server_of(mails)) == Tally(1, 1, 0)
        first, second = mails.received
        assert first.message["Message-ID"] == second.message["Message-ID"]
        lost = await service.submit(notify=[{"email": ["gone@example.com", "ada@example.com"], "states": ["queued"]}])
        assert await relay_all(service, post, server_of(mails)) == Tally(1, 1, 1)
        letter = (await service.http.get("/v1/webhooks/dead")).json()["dead"][0]
        assert (letter["job"], letter["url"], letter["hook"]) == (lost, "mailto:gone@example.com", 0)
        assert letter["error"] == "the mail server 127.0.0.1 answered 550 no such user"
        assert letter["attempts"] == 1
        assert (await service.job(lost))["undelivered"] == 1
        mails.of_recipient = lambda address: "250 OK"
        assert (await service.http.post(f"/v1/webhooks/dead/{letter['id']}/retry")).status_code == 200
        assert await relay_all(service, post, server_of(mails)) == Tally(1, 0, 0)
    assert mails.taken[-1].recipients == ["gone@example.com"]
    assert job_id != lost


async def test_a_server_that_is_away_or_breaks_off_is_a_failure_that_is_tried_again(
    service: Service, post: Poster
) -> None:
    await service.submit(notify=[{"email": ["ada@example.com"], "states": ["queued"]}])
    nobody = MailServer("127.0.0.1", 1, is_tls=False, may_be_plain=True)
    assert await relay_all(service, post, nobody) == Tally(0, 3, 1)
    letter = (await service.http.get("/v1/webhooks/dead")).json()["dead"][0]
    assert letter["error"] == "the mail server 127.0.0.1 cannot be reached: Connection refused"

    async def break_off(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 hello\r\n")
        await reader.readline()
        writer.close()

    server = await asyncio.start_server(break_off, "127.0.0.1", 0)
    broken = nobody._replace(port=server.sockets[0].getsockname()[1])
    await service.http.post(f"/v1/webhooks/dead/{letter['id']}/retry")
    assert await relay_all(service, post, broken) == Tally(0, 3, 1)
    server.close()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, Path]:
    """The context of a server on this machine, and the certificate by which it is verified."""
    folder = tmp_path_factory.mktemp("mail")
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    made += [
        "-addext",
        "subjectAltName=IP:127.0.0.1",
        "-keyout",
        str(folder / "key.pem"),
        "-out",
        str(folder / "ca.pem"),
    ]
    subprocess.run(made, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "ca.pem", folder / "key.pem")
    return context, folder / "ca.pem"


@pytest.mark.parametrize("from_start", [False, True], ids=["starttls", "smtps"])
async def test_tls_and_passwords(
    service: Service, post: Poster, certificate: tuple[ssl.SSLContext, Path], from_start: bool
) -> None:
    context, ca_file = certificate
    with MailReceiver(tls=context, from_start=from_start, login=("tm", "p w")) as mails:
        server = server_of(mails, is_tls=from_start, user="tm", password="p w", ca_file=str(ca_file))
        await service.submit(notify=[{"email": ["ada@example.com"], "states": ["queued"]}])
        assert await relay_all(service, post, server) == Tally(1, 0, 0)
        assert mails.taken[0].is_tls
        await service.submit(notify=[{"email": ["ada@example.com"], "states": ["queued"]}])
        wrong = server._replace(password="other")
        assert await relay_all(service, post, wrong) == Tally(0, 3, 1)
        letter = (await service.http.get("/v1/webhooks/dead")).json()["dead"][0]
        assert letter["error"] == "the mail server 127.0.0.1 did not take the user and password: 535"
        await service.http.post(f"/v1/webhooks/dead/{letter['id']}/retry")
        assert await relay_all(service, post, server._replace(ca_file="")) == Tally(0, 3, 1)
        assert "TLS failed" in (await service.http.get("/v1/webhooks/dead")).json()["dead"][0]["error"]
    assert len(mails.received) == 1


async def test_without_starttls_nothing_is_sent_unless_an_admin_allows_it(service: Service, post: Poster) -> None:
    await service.submit(notify=[{"email": ["ada@example.com"], "states": ["queued"]}])
    with MailReceiver() as mails:
        assert await relay_all(service, post, server_of(mails, may_be_plain=False)) == Tally(0, 3, 1)
        letter = (await service.http.get("/v1/webhooks/dead")).json()["dead"][0]
        assert "offers no STARTTLS" in letter["error"]
        assert mails.received == []


# Preferences


async def test_a_user_sets_sees_and_removes_what_to_be_notified_of(service: Service) -> None:
    key_id, ada = await key_of_user(service)
    async with ada:
        assert (await ada.get("/v1/notices")).json()["notices"] is None
        stored = await ada.put("/v1/notices", json=WANTED | {"minDuration": "10m", "window": "5m"})
        assert stored.status_code == 200, stored.text
        found = (await ada.get("/v1/notices")).json()
        assert found == stored.json()
        assert (found["address"], found["sendsEmail"]) == ("ada@example.com", True)
        assert found["notices"]["minDuration"] == "10m"
        assert (await service.http.get("/v1/notices")).json()["notices"] is None, "those of another user"
        assert (await ada.delete("/v1/notices")).status_code == 204
        assert (await ada.get("/v1/notices")).json()["notices"] is None
    keys = (await service.http.get("/v1/keys")).json()["keys"]
    assert next(one for one in keys if one["id"] == key_id)["email"] == "ada@example.com"


async def test_nobody_chooses_an_address_and_nobody_sets_what_others_get(service: Service) -> None:
    key_id, bo = await key_of_user(service, "bo", None)
    ada_id, ada = await key_of_user(service)
    async with bo, ada:
        refused = await bo.put("/v1/notices", json=WANTED)
        assert (refused.status_code, refused.json()["mistakes"][0]["path"]) == (422, "email")
        for body in ({"email": "victim@example.com"}, WANTED | {"address": "victim@example.com"}):
            assert (await bo.put("/v1/notices", json=body)).status_code == 422
        for number in (key_id, ada_id):
            answer = await bo.post(f"/v1/keys/{number}/email", json={"email": "victim@example.com"})
            assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
        assert (await ada.put("/v1/notices", json=WANTED)).status_code == 200
        chat = {"chat": {"url": "http://10.0.0.1/x", "format": "slack"}}
        refused = await bo.put("/v1/notices", json=chat)
        assert (refused.status_code, refused.json()["mistakes"][0]["path"]) == (422, "chat.url")
        assert (await bo.delete("/v1/notices")).status_code == 204
        assert (await ada.get("/v1/notices")).json()["notices"] is not None
    assert await value(service.stores, "SELECT count(*) FROM notice_preferences") == 1
    for number in (9999, 1 << 40):
        answer = await service.http.post(f"/v1/keys/{number}/email", json={"email": "a@example.com"})
        assert answer.status_code == 404


async def test_ends_of_own_jobs_are_reported_once_and_no_others(service: Service, post: Poster) -> None:
    _, ada = await key_of_user(service)
    async with ada:
        await ada.put("/v1/notices", json=WANTED | {"events": ["failed"]})
        (own, other) = await jobs_of(ada, 2)
        (of_admin,) = await jobs_of(service.http)
        await end(service, JobState.FAILED, own, of_admin)
        await end(service, JobState.SUCCEEDED, other)
        assert await value(service.stores, "SELECT count(*) FROM notice_events") == 1
        with MailReceiver() as mails:
            assert await notices.gather(service.stores.database) == 1
            assert await notices.gather(service.stores.database) == 0
            assert await relay_all(service, post, server_of(mails)) == Tally(1, 0, 0)
    assert [mail.recipients for mail in mails.taken] == [["ada@example.com"]]
    assert mails.taken[0].subject == f"[Trainmaster] Job {own} failed"


async def test_short_jobs_are_left_out_where_that_is_wanted(service: Service) -> None:
    _, ada = await key_of_user(service)
    async with ada:
        await ada.put("/v1/notices", json=WANTED | {"minDuration": "10m"})
        short, long = await jobs_of(ada, 2)
        key = parse_job_id(long)[1]
        await execute(
            service.stores, "UPDATE jobs SET started_at = now() - interval '11 minutes' WHERE id = :id", id=key
        )
        await end(service, JobState.FAILED, short, long)
    found = await rows(service.stores, "SELECT body->>'job' AS job FROM notice_events")
    assert [row.job for row in found] == [long]


async def test_a_sweep_is_one_digest(service: Service, post: Poster) -> None:
    _, ada = await key_of_user(service)
    with MailReceiver() as mails, Receiver() as chats:
        async with ada:
            chat = {"url": chats.url, "format": "slack"}
            await ada.put("/v1/notices", json=WANTED | {"chat": chat})
            ids = await jobs_of(ada, 1000)
            for first in range(0, 1000, 100):
                await end(service, JobState.FAILED, *ids[first : first + 1])
                await end(service, JobState.SUCCEEDED, *ids[first + 1 : first + 100])
                assert await notices.gather(service.stores.database) == 0, "more than three: they are held"
            await execute(service.stores, "UPDATE notice_preferences SET window_ends_at = now()")
            assert await notices.gather(service.stores.database) == 2
            assert await value(service.stores, "SELECT count(*) FROM notice_events") == 0
            assert await relay_all(service, post, server_of(mails)) == Tally(2, 0, 0)
            # What comes after it waits for the next window.
            (late,) = await jobs_of(ada)
            await end(service, JobState.FAILED, late)
            assert await notices.gather(service.stores.database) == 0
            await execute(service.stores, "UPDATE notice_preferences SET window_ends_at = now()")
            assert await notices.gather(service.stores.database) == 2
            assert await relay_all(service, post, server_of(mails)) == Tally(2, 0, 0)
    assert [mail.subject for mail in mails.taken] == [
        "[Trainmaster] 1000 events of your jobs: 10 failed, 990 succeeded",
        f"[Trainmaster] Job {late} failed",
    ]
    for job_id in ids[::100]:
        assert f"{job_id}: failed, queue default" in mails.taken[0].text
    assert chats.taken[0].value["text"] == "1000 events of your jobs: 10 failed, 990 succeeded"


async def test_workers_that_gather_at_the_same_time_report_each_event_once(service: Service) -> None:
    _, ada = await key_of_user(service)
    async with ada:
        await ada.put("/v1/notices", json=WANTED | {"most": 100})
        ids = await jobs_of(ada, 60)
        for first in range(0, 60, 6):
            await end(service, JobState.FAILED, *ids[first : first + 6])
            await asyncio.gather(*(notices.gather(service.stores.database) for _ in range(4)))
    await notices.gather(service.stores.database)
    found = await rows(service.stores, "SELECT body->>'job' AS job FROM outbox")
    assert sorted(row.job for row in found) == sorted(ids)


async def test_a_digest_that_nobody_takes_is_seen_by_its_user_and_admins_alone(service: Service, post: Poster) -> None:
    _, ada = await key_of_user(service)
    _, bo = await key_of_user(service, "bo")
    async with ada, bo:
        await ada.put("/v1/notices", json=WANTED)
        await end(service, JobState.FAILED, *await jobs_of(ada, 5))
        await notices.gather(service.stores.database)
        await execute(service.stores, "UPDATE notice_preferences SET window_ends_at = now()")
        assert await notices.gather(service.stores.database) == 1
        with MailReceiver(lambda number: "554 no") as mails:
            assert await relay_all(service, post, server_of(mails)) == Tally(0, 1, 1)
            assert (await bo.get("/v1/webhooks/dead")).json()["dead"] == []
            (letter,) = (await ada.get("/v1/webhooks/dead")).json()["dead"]
            assert (await service.http.get("/v1/webhooks/dead")).json()["dead"] == [letter]
            assert (letter["queue"], letter["url"]) == ("", "mailto:ada@example.com")
            assert letter["digest"].split("-")[0].isdigit()
            for method, path in (("POST", "/retry"), ("DELETE", "")):
                answer = await bo.request(method, f"/v1/webhooks/dead/{letter['id']}{path}")
                assert answer.status_code == 404
            mails.answer = lambda number: "250 OK"
            assert (await ada.post(f"/v1/webhooks/dead/{letter['id']}/retry")).status_code == 200
            assert await relay_all(service, post, server_of(mails)) == Tally(1, 0, 0)


async def test_a_renewed_key_keeps_address_and_preferences(service: Service) -> None:
    key_id, ada = await key_of_user(service)
    async with ada:
        stored = await ada.put("/v1/notices", json=WANTED | {"minDuration": "5m"})
    await service.http.delete(f"/v1/keys/{key_id}")
    _, again = await key_of_user(service, email=None)
    async with again:
        assert (await again.get("/v1/notices")).json() == stored.json()
    _, bo = await key_of_user(service, "bo", None)
    async with bo:
        assert (await bo.get("/v1/notices")).json()["address"] is None


async def test_a_revoked_user_gets_nothing_and_removed_preferences_leave_nothing(service: Service) -> None:
    key_id, ada = await key_of_user(service)
    async with ada:
        await ada.put("/v1/notices", json=WANTED)
        first, second = await jobs_of(ada, 2)
        await service.http.delete(f"/v1/keys/{key_id}")
        await end(service, JobState.FAILED, first)
        assert await notices.gather(service.stores.database) == 0
        assert await value(service.stores, "SELECT count(*) FROM notice_events") == 0
        await execute(service.stores, "DELETE FROM notice_preferences")
        await end(service, JobState.FAILED, second)
    assert await value(service.stores, "SELECT count(*) FROM notice_events") == 0
    await execute(
        service.stores,
        "INSERT INTO notice_events (api_key_id, body, created_at) VALUES (:key, '{}', now() - interval '1 hour')",
        key=key_id,
    )
    await notices.gather(service.stores.database)
    assert await value(service.stores, "SELECT count(*) FROM notice_events") == 0
